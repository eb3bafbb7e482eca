//! Values inside of encoded bytes that are no text, and values that are no text themselves.

use super::spellings::base32;
use super::*;

#[test]
fn a_value_between_bytes_that_are_no_text_is_found_wherever_it_begins() {
    for length in 8..=16 {
        let value = &b"Zq7_rT9-wX4.kP2!"[..length];
        let scrubber = scrubber_for(value);
        // Eight letters of base32 are five bytes, four of base64 are three.
        for (before, after) in (0..10).flat_map(|before| (0..10).map(move |after| (before, after))) {
            let bytes = [&[0x93; 10][..before], value, &[0xE8; 10][..after]].concat();
            let in_base32 = base32(&bytes);
            for encoded in [
                base64(&bytes, b"+/").trim_end_matches('=').to_owned(),
                base64(&bytes, b"-_").trim_end_matches('=').to_owned(),
                in_base32.trim_end_matches('=').to_owned(),
                in_base32.trim_end_matches('=').to_lowercase(),
                hex(&bytes),
            ] {
                let message = format!(r#"{{"text":"see {encoded} there"}}"#);
                let scrubbed = scrubber.message(message.as_bytes());
                assert_eq!(
                    scrubbed.redactions, 1,
                    "{length} bytes after {before} and before {after}: {encoded}"
                );
            }
        }
    }
}

/// Every sidecar holds keys of random bytes, some of which are line ends.
#[test]
fn a_key_that_is_no_text_holds_no_lines_back_and_makes_no_search_slower() {
    let key = b"\xFE\x93abc\n\xC1de\n\x80f\n\x9Cxy\xFF\n\xE8\xB1\n\xA7q\n\xF5\xD2\xCC\x81\x99";
    let scrubber = scrubber_for(key);
    assert_eq!(scrubber.stream().push(b"a line.\n").bytes.len(), 8);
    assert!(!scrubber.indexes[0].has_other_characters);
    for encoded in [base64(key, b"+/"), base32(key), hex(key), base64(base64(key, b"+/").as_bytes(), b"+/")] {
        assert_eq!(scrubber.text(format!("see {encoded} there").as_bytes()).redactions, 1, "{encoded}");
    }
    assert!(scrubber_for("пароль-1234".as_bytes()).indexes[0].has_other_characters);
}
