//! The grammar of JSON numbers. Numbers are never converted.

/// The position after the number that starts at `at`; `None` if JSON does not allow this number.
pub(super) fn end(bytes: &[u8], at: usize) -> Option<usize> {
    let integer = if bytes.get(at) == Some(&b'-') { at + 1 } else { at };
    let mut end = match bytes.get(integer)? {
        b'0' => integer + 1,
        b'1'..=b'9' => skip_digits(bytes, integer)?,
        _ => return None,
    };
    if bytes.get(end) == Some(&b'.') {
        end = skip_digits(bytes, end + 1)?;
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let signed = matches!(bytes.get(end + 1), Some(b'+' | b'-'));
        end = skip_digits(bytes, if signed { end + 2 } else { end + 1 })?;
    }
    Some(end)
}

/// The position after a run of at least one digit.
fn skip_digits(bytes: &[u8], at: usize) -> Option<usize> {
    let mut end = at;
    while bytes.get(end).is_some_and(u8::is_ascii_digit) {
        end += 1;
    }
    (end > at).then_some(end)
}
