//! The encodings in which a secret could reach a sandbox, and the search for them.
//!
//! Written independently of the product's scrubber, so that both do not miss the same encoding.

/// A secret in one encoding.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Form {
    pub name: String,
    pub bytes: Vec<u8>,
}

/// Every encoding that must never reach a sandbox: plain, base64 and base64url at three alignments, base32 at five, hex, also
/// with separators, percent, JSON escapes, HTML's numeric entities, UTF-16. [`found`] also finds those that are wrapped into
/// lines.
pub fn forms(secret: &str) -> Vec<Form> {
    let mut forms = vec![form("plain", secret)];
    for alignment in 0..3 {
        for (alphabet, name) in [(STANDARD, "base64"), (URL_SAFE, "base64url")] {
            forms.push(form(
                &format!("{name}+{alignment}"),
                &base64_core(secret.as_bytes(), alignment, alphabet),
            ));
        }
    }
    forms.push(form("hex", &hex(secret.as_bytes())));
    forms.push(form("HEX", &hex(secret.as_bytes()).to_uppercase()));
    for alignment in 0..5 {
        let core = base32_core(secret.as_bytes(), alignment);
        forms.push(form(&format!("base32+{alignment}, small"), &core.to_lowercase()));
        forms.push(form(&format!("base32+{alignment}"), &core));
    }
    for separator in [" ", ":", "-", ", ", ", 0x"] {
        forms.push(form(&format!("hex with {separator:?}"), &hex_with(secret.as_bytes(), separator)));
    }
    forms.push(form("decimal entities", &entities(secret)));
    forms.push(form("hexadecimal entities", &hexadecimal_entities(secret)));
    forms.push(form("UTF-16", utf16(secret).trim_matches('\0')));
    forms.push(form("UTF-16 in JSON", json_spelled(&utf16(secret)).trim_end_matches("\\u0000")));
    forms.push(form("percent", &percent_all(secret.as_bytes()).to_lowercase()));
    forms.push(form("PERCENT", &percent_all(secret.as_bytes())));
    forms.push(form("percent where needed", &percent_needed(secret.as_bytes())));
    forms.push(form("JSON \\u escapes", &json_escaped(secret)));
    // As JSON libraries and debug output write it, also within another JSON text.
    let spelled = json_spelled(secret);
    forms.push(form("JSON in JSON", &json_spelled(&spelled)));
    forms.push(form("ASCII JSON", &ascii_only(&spelled)));
    forms.push(form("JSON", &spelled));
    forms
}

/// The names of the encodings of `secret` that occur in `haystack`; also in any case where an encoding ignores it.
pub fn found(haystack: &[u8], secret: &str) -> Vec<String> {
    let mut found: Vec<String> = forms(secret)
        .into_iter()
        .filter(|form| contains(haystack, &form.bytes))
        .map(|form| form.name)
        .collect();
    let joined = without_line_ends(haystack);
    let wrapped =
        |form: &Form| ["base64", "base32", "hex", "HEX"].iter().any(|coding| form.name.starts_with(coding));
    let wrapped = forms(secret).into_iter().filter(|form| wrapped(form) && contains(&joined, &form.bytes));
    found.extend(wrapped.map(|form| format!("{} in lines", form.name)));
    let lowered = haystack.to_ascii_lowercase();
    for (name, bytes) in [
        ("hexadecimal entities, any case", hexadecimal_entities(secret).to_lowercase()),
        ("hex with colons, any case", hex_with(secret.as_bytes(), ":")),
        ("hex, any case", hex(secret.as_bytes())),
        ("percent, any case", percent_all(secret.as_bytes()).to_lowercase()),
        ("escapes, any case", json_escaped(secret).to_lowercase()),
    ] {
        if contains(&lowered, bytes.as_bytes()) {
            found.push(name.to_owned());
        }
    }
    found
}

#[track_caller]
pub fn assert_absent(what: &str, haystack: &[u8], secret: &str) {
    let found = found(haystack, secret);
    assert!(found.is_empty(), "{what} ({} bytes) contains the secret as {found:?}", haystack.len());
}

/// Padded, standard alphabet.
pub fn base64(bytes: &[u8]) -> String {
    encode64(bytes, STANDARD)
}

/// Not padded, URL-safe alphabet.
pub fn base64url(bytes: &[u8]) -> String {
    encode64(bytes, URL_SAFE).trim_end_matches('=').to_owned()
}

/// In lower case.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// In lower case, with this between the bytes.
pub fn hex_with(bytes: &[u8], separator: &str) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(separator)
}

/// Padded, in upper case.
pub fn base32(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.chunks(5) {
        let group =
            chunk.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)) << (8 * (5 - chunk.len()));
        for symbol_index in 0..8 {
            let symbol = BASE32[(group >> (35 - 5 * symbol_index) & 31) as usize];
            let is_used = symbol_index * 5 < chunk.len() * 8;
            out.push(if is_used { char::from(symbol) } else { '=' });
        }
    }
    out
}

/// Each character as `&#115;`.
pub fn entities(text: &str) -> String {
    text.chars().map(|character| format!("&#{};", u32::from(character))).collect()
}

/// Each character as `&#x73;`.
pub fn hexadecimal_entities(text: &str) -> String {
    text.chars().map(|character| format!("&#x{:x};", u32::from(character))).collect()
}

/// Little-endian UTF-16 of characters up to U+00FF, each byte as a character.
pub fn utf16(text: &str) -> String {
    text.chars().flat_map(|character| [character, '\0']).collect()
}

/// Lines of this width.
pub fn wrapped(text: &str, width: usize, ending: &str) -> String {
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(width)
        .map(|line| std::str::from_utf8(line).expect("the text is ASCII"))
        .collect();
    lines.join(ending)
}

/// Without line ends, as they are and as JSON escapes, and without the blanks after them.
fn without_line_ends(text: &[u8]) -> Vec<u8> {
    let mut joined = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let line_end = match rest {
            [b'\n' | b'\r', ..] => 1,
            [b'\\', b'n' | b'r', ..] => 2,
            _ => 0,
        };
        match line_end {
            0 => {
                joined.push(*first);
                rest = after;
            }
            _ => rest = rest[line_end..].trim_ascii_start(),
        }
    }
    joined
}

/// Every byte, in upper case.
pub fn percent_all(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("%{byte:02X}")).collect()
}

/// What `encodeURIComponent` would do.
pub fn percent_needed(bytes: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.!~*'()".contains(byte);
    bytes
        .iter()
        .map(|byte| if plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Every UTF-16 unit as `\u00xx`.
pub fn json_escaped(text: &str) -> String {
    text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect()
}

/// The JSON string that a library would write, without its quotes.
pub fn json_spelled(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

pub fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    !needle.is_empty() && memchr::memmem::find(haystack, needle).is_some()
}

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const URL_SAFE: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn ascii_only(text: &str) -> String {
    let spell = |character: char| match character.is_ascii() {
        true => character.to_string(),
        false => json_escaped(&character.to_string()),
    };
    text.chars().map(spell).collect()
}

fn form(name: &str, text: &str) -> Form {
    Form { name: name.to_owned(), bytes: text.as_bytes().to_vec() }
}

fn encode64(bytes: &[u8], alphabet: &[u8; 64]) -> String {
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0u32, |sum, byte| (sum << 8) | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for symbol_index in 0..4 {
            let symbol = alphabet[((group >> (18 - 6 * symbol_index)) & 63) as usize];
            out.push(if symbol_index <= chunk.len() { char::from(symbol) } else { '=' });
        }
    }
    out
}

/// The symbols that depend on the secret alone when it begins `alignment` bytes into a group of three.
fn base64_core(secret: &[u8], alignment: usize, alphabet: &[u8; 64]) -> String {
    let mut bytes = vec![0; alignment];
    bytes.extend_from_slice(secret);
    let (first, end) = ((alignment * 8).div_ceil(6), bytes.len() * 8 / 6);
    encode64(&bytes, alphabet)[first..end].to_owned()
}

/// The same of base32, `alignment` bytes into a group of five.
fn base32_core(secret: &[u8], alignment: usize) -> String {
    let bytes = [&vec![0; alignment][..], secret].concat();
    let (first, end) = ((alignment * 8).div_ceil(5), bytes.len() * 8 / 5);
    base32(&bytes)[first..end].to_owned()
}

/// The forms in which the fixture's tool `leak` returns its secret. One list for two tests: that each form leaks
/// without the scrubber, and that the scrubber removes each.
pub const LEAKED_AS: [&str; 26] = [
    "plain",
    "base64",
    "base64+1",
    "base64+2",
    "base64url",
    "base64url+1",
    "base64url+2",
    "hex",
    "HEX",
    "percent",
    "percent-all",
    "percent-lower",
    "json",
    "base64-in-lines",
    "base64-in-indented-lines",
    "base32",
    "base32+3",
    "base32-in-lines",
    "hex-in-lines",
    "hex-with-spaces",
    "hex-with-colons",
    "hex-with-0x",
    "HEX-with-colons",
    "entities",
    "hexadecimal-entities",
    "utf-16",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_encodes_as_specified() {
        assert_eq!(base64(b"M"), "TQ==");
        assert_eq!(base64(b"Ma"), "TWE=");
        assert_eq!(base64(b"Man"), "TWFu");
        assert_eq!(base64url(&[0xfb, 0xff]), "-_8");
    }

    #[test]
    fn base32_encodes_as_specified() {
        for (text, encoded) in [
            ("f", "MY======"),
            ("fo", "MZXQ===="),
            ("foo", "MZXW6==="),
            ("foob", "MZXW6YQ="),
            ("fooba", "MZXW6YTB"),
        ] {
            assert_eq!(base32(text.as_bytes()), encoded);
        }
    }

    #[test]
    fn a_secret_is_found_at_every_alignment() {
        let secret = "s3cret-Value/with+signs";
        for prefix in ["", "a", "ab", "abc", "abcd"] {
            let text = format!("{prefix}{secret}zz");
            assert!(!found(base64(text.as_bytes()).as_bytes(), secret).is_empty(), "after {prefix:?}");
            assert!(!found(base64url(text.as_bytes()).as_bytes(), secret).is_empty(), "after {prefix:?}");
            assert!(!found(base32(text.as_bytes()).as_bytes(), secret).is_empty(), "after {prefix:?}");
            for ending in ["\n", "\r\n  ", "\\n", "\\r\\n    "] {
                let lines = wrapped(&base64(text.as_bytes()), 7, ending);
                assert!(!found(lines.as_bytes(), secret).is_empty(), "{lines:?}");
            }
        }
        for spelled in [entities(secret), hexadecimal_entities(secret), hex_with(secret.as_bytes(), ", 0x")] {
            assert!(!found(spelled.as_bytes(), secret).is_empty(), "{spelled}");
        }
        for spelled in [utf16(secret), json_spelled(&utf16(secret))] {
            assert!(!found(spelled.as_bytes(), secret).is_empty(), "{spelled:?}");
        }
        assert!(!found(hex(secret.as_bytes()).to_uppercase().as_bytes(), secret).is_empty());
        assert!(!found(json_escaped(secret).as_bytes(), secret).is_empty());
        assert!(!found(percent_needed(secret.as_bytes()).as_bytes(), secret).is_empty());
    }

    #[test]
    fn a_secret_with_quotes_is_found_in_json() {
        let secret = "with \"quotes\" \\ ü";
        let json = serde_json::json!({ "text": secret }).to_string();
        assert!(!found(json.as_bytes(), secret).is_empty());
        let nested = serde_json::json!({ "text": json }).to_string();
        assert!(!found(nested.as_bytes(), secret).is_empty());
        assert!(!found(br#"{"text":"with \"quotes\" \\ \u00fc"}"#, secret).is_empty());
    }

    #[test]
    fn nothing_is_found_in_clean_text() {
        assert!(
            found(b"a clean text with [redacted:local.value] in it", "s3cret-Value/with+signs").is_empty()
        );
    }
}
