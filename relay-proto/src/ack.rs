//! The acknowledgement. Its usual body `{"seq":N,"window":W}` is written and read without a JSON parser, because an
//! acknowledgement is sent with every batch of messages.
//!
//! Must stay true: [`read`] accepts exactly this form, and reads it as any JSON parser would. Every other body
//! (other keys, white space, another order) is left to serde.

/// Everything up to frame `seq` was received; the peer may have `window` bytes in flight after it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Ack {
    pub seq: u64,
    pub window: u64,
}

/// Appends the JSON body to `out`.
pub(crate) fn write(ack: Ack, out: &mut Vec<u8>) {
    out.extend_from_slice(SEQ);
    write_number(ack.seq, out);
    out.extend_from_slice(WINDOW);
    write_number(ack.window, out);
    out.extend_from_slice(END);
}

/// Reads the body. `None` if it is not written in the usual way; it may still be valid JSON.
pub(crate) fn read(body: &[u8]) -> Option<Ack> {
    let (seq, rest) = read_number(body.strip_prefix(SEQ)?)?;
    let (window, rest) = read_number(rest.strip_prefix(WINDOW)?)?;
    (rest == END).then_some(Ack { seq, window })
}

const SEQ: &[u8] = br#"{"seq":"#;
const WINDOW: &[u8] = br#","window":"#;
const END: &[u8] = b"}";

/// How many digits `u64::MAX` has.
const MAX_DIGITS: usize = 20;

fn write_number(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; MAX_DIGITS];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Reads the number at the start of `bytes`; returns it and the rest.
fn read_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let count = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = bytes.split_at(count);
    // JSON has no leading zeros.
    if digits.is_empty() || digits.len() > MAX_DIGITS || digits.len() > 1 && digits[0] == b'0' {
        return None;
    }
    let value = digits
        .iter()
        .try_fold(0_u64, |value, digit| value.checked_mul(10)?.checked_add(u64::from(digit - b'0')))?;
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_ack_is_written_and_read_as_serde_does(seq: u64, window: u64, shift in 0..64_u32) {
            let ack = Ack { seq: seq >> shift, window: window >> (63 - shift) };
            let mut out = Vec::new();
            write(ack, &mut out);
            prop_assert_eq!(&out, &serde_json::to_vec(&ack).unwrap());
            prop_assert_eq!(read(&out), Some(ack));
        }

        #[test]
        fn a_damaged_body_is_read_as_serde_does_or_left_to_it(
            seq: u64,
            at in any::<prop::sample::Index>(),
            with in "[0-9\\-+.e \",:}{a]{0,3}",
            removed in 0..3_usize,
        ) {
            let mut body = serde_json::to_vec(&Ack { seq, window: 1 << 21 }).unwrap();
            let at = at.index(body.len());
            let end = (at + removed).min(body.len());
            body.splice(at..end, with.into_bytes());
            if let Some(ack) = read(&body) {
                prop_assert_eq!(serde_json::from_slice::<Ack>(&body).ok(), Some(ack));
            }
        }
    }

    #[test]
    fn other_forms_are_not_read() {
        for body in [
            r#"{"seq":01,"window":2}"#,
            r#"{"seq":18446744073709551616,"window":2}"#,
            r#"{"seq":-1,"window":2}"#,
            r#"{"seq":,"window":2}"#,
            r#"{"seq":1,"window":2}}"#,
            r#"{"seq":1,"window":2,"window":3}"#,
            r#"{"window":2,"seq":1}"#,
            "",
        ] {
            assert_eq!(read(body.as_bytes()), None, "{body}");
        }
    }
}
