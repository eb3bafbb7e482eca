//! Finds the parts of a text that are secrets: by the name of the value, by the shape of known credentials, in URLs, and by
//! entropy.
//!
//! What must stay true: a found part is a range of the text as it is written, so that a template with the part replaced gives
//! the same text. Too much is found rather than too little: the person who imports can refuse each.

use std::ops::Range;

use crate::secret_names::{is_public_name, is_secret_name};
use crate::shapes;

/// A part of a text that is a secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct SecretPart {
    pub(crate) range: Range<usize>,
    pub(crate) reason: Reason,
    /// What a field with this part is called; empty if the value as a whole has a good name.
    pub(crate) label: String,
}

/// Why a text counts as a secret.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// It looks random.
    Entropy,
    /// What its name says.
    Name,
    /// It has the form of a known kind of credential.
    Shape(&'static str),
    /// It is in a URL where a password or key is.
    Url,
}

/// How a header or variable introduces a credential.
const SCHEMES: &[&str] = &["Bearer ", "bearer ", "Basic ", "basic ", "Token ", "token ", "ApiKey "];

/// What people write where a secret is to be filled in.
const PLACEHOLDERS: &[&str] = &[
    "your-",
    "your_",
    "<",
    "xxxx",
    "replace",
    "changeme",
    "change-me",
    "change_me",
    "insert",
    "placeholder",
    "example-key",
    "todo",
    "...",
    "****",
];

/// The secret parts of a text, in order, none overlapping another.
pub(crate) fn secret_parts(name: &str, text: &str) -> Vec<SecretPart> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    let mut parts = Vec::new();
    in_urls(text, &mut parts);
    if parts.is_empty() && is_secret_name(name) {
        parts.extend(by_name(text));
    }
    if !covers(&parts, text) {
        in_pairs(text, &mut parts);
        by_shape(text, &mut parts);
    }
    if parts.is_empty() && !is_public_name(name) && looks_random(text) {
        parts.push(SecretPart { range: trimmed(text), reason: Reason::Entropy, label: String::new() });
    }
    merged(parts)
}

/// Whether a text stands for a secret that has yet to be filled in.
pub(crate) fn is_placeholder(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    PLACEHOLDERS.iter().any(|placeholder| lower.contains(placeholder))
}

fn trimmed(text: &str) -> Range<usize> {
    let start = text.len() - text.trim_start().len();
    start..start + text.trim().len()
}

fn covers(parts: &[SecretPart], text: &str) -> bool {
    parts.iter().any(|part| part.range == trimmed(text))
}

/// The whole text, behind the word that introduces it.
fn by_name(text: &str) -> Option<SecretPart> {
    let range = after_scheme(text, trimmed(text));
    let value = &text[range.clone()];
    let is_flag = matches!(
        value.to_ascii_lowercase().as_str(),
        "true" | "false" | "yes" | "no" | "none" | "null" | "0" | "1"
    );
    let is_structure = value.starts_with(['{', '[']) || value.contains("://");
    if value.is_empty() || is_flag || is_structure || is_path(value) || is_placeholder(value) {
        return None;
    }
    Some(SecretPart { range, reason: Reason::Name, label: String::new() })
}

fn after_scheme(text: &str, range: Range<usize>) -> Range<usize> {
    let value = &text[range.clone()];
    match SCHEMES.iter().find(|scheme| value.starts_with(**scheme)) {
        Some(scheme) => {
            let rest = &value[scheme.len()..];
            range.start + scheme.len() + (rest.len() - rest.trim_start().len())..range.end
        }
        None => range,
    }
}

fn is_path(value: &str) -> bool {
    let is_rooted = ["/", "~/", "./", "../"].iter().any(|start| value.starts_with(start));
    is_rooted && !value.contains(['=', '+', ' '])
}

/// Passwords, tokens in the place of a user, and parameters with the name of a secret.
fn in_urls(text: &str, parts: &mut Vec<SecretPart>) {
    for (position, _) in text.match_indices("://") {
        let start = position + 3;
        let end =
            text[start..].find([' ', '"', '\'', '\n', '\t', '<', '>']).map_or(text.len(), |end| start + end);
        let url = &text[start..end];
        let authority_end = url.find(['/', '?', '#']).unwrap_or(url.len());
        // A password may contain an `@` that is not encoded, so the last one counts.
        if let Some(at) = url[..authority_end].rfind('@') {
            let found = match url[..at].find(':') {
                Some(colon) => Some((colon + 1..at, "password")),
                None => looks_like_credential(&url[..at]).then_some((0..at, "user")),
            };
            let found = found.filter(|(range, _)| !range.is_empty() && !is_placeholder(&url[range.clone()]));
            parts.extend(found.map(|(range, label)| SecretPart {
                range: start + range.start..start + range.end,
                reason: Reason::Url,
                label: label.to_owned(),
            }));
        }
        in_query(text, start..end, parts);
        in_path(text, start + authority_end..end, parts);
    }
}

fn in_query(text: &str, url: Range<usize>, parts: &mut Vec<SecretPart>) {
    let Some(question) = text[url.clone()].find('?') else { return };
    let mut position = url.start + question + 1;
    let query = text[position..url.end].split('#').next().unwrap_or_default();
    for parameter in query.split('&') {
        if let Some((name, value)) = parameter.split_once('=') {
            let start = position + name.len() + 1;
            let is_secret = is_secret_name(name) || looks_like_credential(value);
            if is_secret && !value.is_empty() && !is_placeholder(value) {
                let range = start..start + value.len();
                parts.push(SecretPart { range, reason: Reason::Url, label: name.to_owned() });
            }
        }
        position += parameter.len() + 1;
    }
}

/// Parts of a path that are keys, as some hosted servers have in their addresses.
fn in_path(text: &str, rest: Range<usize>, parts: &mut Vec<SecretPart>) {
    let mut position = rest.start;
    let path = text[rest].split(['?', '#']).next().unwrap_or_default();
    for segment in path.split('/') {
        if looks_like_credential(segment) {
            let range = position..position + segment.len();
            parts.push(SecretPart { range, reason: Reason::Url, label: "path".to_owned() });
        }
        position += segment.len() + 1;
    }
}

fn looks_like_credential(text: &str) -> bool {
    shapes::shape_of(text).is_some() || looks_random(text) && !is_uuid(text)
}

/// `name=value`, `name: value` and `"name": "value"` inside a longer text.
fn in_pairs(text: &str, parts: &mut Vec<SecretPart>) {
    for (position, separator) in text.match_indices(['=', ':']) {
        let before = text[..position].trim_end_matches(['"', '\'', '\\', ' ']);
        let is_of_name =
            |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
        let name_start = before
            .rfind(|character| !is_of_name(character))
            .map_or(0, |end| end + before[end..].chars().next().map_or(1, char::len_utf8));
        let name = &before[name_start..];
        if !is_secret_name(name) || text[position + separator.len()..].starts_with("//") {
            continue;
        }
        let after = &text[position + separator.len()..];
        let skipped = after.len() - after.trim_start_matches(['"', '\'', '\\', ' ']).len();
        let start = position + separator.len() + skipped;
        let is_quoted = after[..skipped].contains(['"', '\'']);
        let value = &text[start..];
        let scheme =
            SCHEMES.iter().find(|scheme| value.starts_with(**scheme)).map_or(0, |scheme| scheme.len());
        let is_end = |character: char| match is_quoted {
            true => matches!(character, '"' | '\'' | '\\'),
            false => matches!(character, ';' | '&' | ',' | ' ' | '\n' | '"' | '\''),
        };
        let end = value[scheme..].find(is_end).map_or(text.len(), |end| start + scheme + end);
        let found = &text[start + scheme..end];
        if !found.is_empty() && !is_placeholder(found) && !found.starts_with(['{', '[', '$']) {
            let label = name.trim_matches('-').to_owned();
            parts.push(SecretPart { range: start + scheme..end, reason: Reason::Name, label });
        }
    }
}

fn by_shape(text: &str, parts: &mut Vec<SecretPart>) {
    if let Some(kind) = shapes::is_private_key(text) {
        parts.push(SecretPart { range: trimmed(text), reason: Reason::Shape(kind), label: String::new() });
        return;
    }
    let is_of_token = |character: char| {
        character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.' | '/' | '+')
    };
    let mut start = 0;
    for word in text.split(|character| !is_of_token(character)) {
        if let Some(kind) = shapes::shape_of(word) {
            parts.push(SecretPart {
                range: start..start + word.len(),
                reason: Reason::Shape(kind),
                label: String::new(),
            });
        }
        start += word.len();
        start += text[start..].chars().next().map_or(0, char::len_utf8);
    }
}

/// Whether a text is long, of the characters of keys, and without the repetitions and words of other texts.
fn looks_random(text: &str) -> bool {
    // Base64 ends with equals signs.
    let text = text.trim().trim_end_matches('=');
    let is_of_key = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'+' | b'.');
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let letters = text.bytes().filter(u8::is_ascii_alphabetic).count();
    (20..=512).contains(&text.len())
        && text.bytes().all(is_of_key)
        && !text.starts_with('-')
        && digits >= 3
        && letters >= 3
        && longest_word(text) < 10
        && plain_words(text) < 2
        && entropy(text) >= 3.3
}

fn is_uuid(text: &str) -> bool {
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// The longest run of lower-case letters: names of packages, hosts and models have long ones, keys have not.
fn longest_word(text: &str) -> usize {
    text.split(|character: char| !character.is_ascii_lowercase()).map(str::len).max().unwrap_or_default()
}

/// How many words of lower-case letters a text is joined from: names have several.
fn plain_words(text: &str) -> usize {
    let is_word = |part: &&str| part.len() >= 3 && part.bytes().all(|byte| byte.is_ascii_lowercase());
    text.split(['-', '_', '.']).filter(is_word).count()
}

/// Shannon's, in bits for each character.
fn entropy(text: &str) -> f64 {
    let mut counts = [0_u32; 256];
    text.bytes().for_each(|byte| counts[usize::from(byte)] += 1);
    let length = f64::from(u32::try_from(text.len()).unwrap_or(u32::MAX));
    let share = |count: &u32| f64::from(*count) / length;
    -counts.iter().filter(|count| **count > 0).map(share).map(|share| share * share.log2()).sum::<f64>()
}

/// In order; of overlapping parts the one that was found first stays.
fn merged(parts: Vec<SecretPart>) -> Vec<SecretPart> {
    let mut kept: Vec<SecretPart> = Vec::new();
    for part in parts {
        let overlaps =
            |other: &SecretPart| part.range.start < other.range.end && other.range.start < part.range.end;
        if !part.range.is_empty() && !kept.iter().any(overlaps) {
            kept.push(part);
        }
    }
    kept.sort_by_key(|part| part.range.start);
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        secret_parts(name, text).into_iter().map(|part| &text[part.range]).collect()
    }

    #[test]
    fn a_name_makes_its_value_a_secret_without_the_scheme() {
        assert_eq!(found("GITHUB_TOKEN", "abc"), ["abc"]);
        assert_eq!(found("Authorization", "Bearer abc.def"), ["abc.def"]);
        assert_eq!(found("Authorization", " Token   abc "), ["abc"]);
        assert_eq!(found("DB_PASSWORD", "hunter2 with spaces"), ["hunter2 with spaces"]);
    }

    #[test]
    fn urls_have_secrets_where_credentials_are() {
        assert_eq!(
            found("DATABASE_URL", "postgresql://ada:p@ss:w@db.internal:5432/app?sslmode=require"),
            ["p@ss:w"]
        );
        assert_eq!(found("X", "https://mcp.example.com/mcp?api_key=abc&team=7"), ["abc"]);
        assert_eq!(
            found("X", "https://ghp_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa@github.com/a/b"),
            ["ghp_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]
        );
        assert_eq!(
            found("X", "https://mcp.example.com/s/NjQ4ZmI3Nzk5ZTQ0YjU2Zjk2/mcp"),
            ["NjQ4ZmI3Nzk5ZTQ0YjU2Zjk2"]
        );
        assert_eq!(found("REDIS_URL", "redis://:s3cret@localhost:6379"), ["s3cret"]);
        assert_eq!(found("SECRET_URL", "https://example.com/a"), [""; 0]);
    }

    #[test]
    fn pairs_inside_a_text_are_found() {
        assert_eq!(found("args", "--token=abc"), ["abc"]);
        assert_eq!(found("--header", "Authorization: Bearer abc def"), ["abc"]);
        assert_eq!(found("CONNECTION", "Server=db;User Id=sa;Password=hunter2;Encrypt=true"), ["hunter2"]);
        assert_eq!(
            found(
                "OPENAPI_MCP_HEADERS",
                r#"{"Authorization": "Bearer ntn_1", "Notion-Version": "2022-06-28"}"#
            ),
            ["ntn_1"]
        );
    }

    #[test]
    fn known_shapes_and_randomness_are_found() {
        assert_eq!(
            found("args", "say ghp_0123456789abcdefghij0123456789abcdef!"),
            ["ghp_0123456789abcdefghij0123456789abcdef"]
        );
        assert_eq!(
            found("EXA", "8f2c1d9e-4b7a-4c3d-9e1f-0a2b3c4d5e6f"),
            ["8f2c1d9e-4b7a-4c3d-9e1f-0a2b3c4d5e6f"]
        );
        assert_eq!(found("EXA", "9f86d081884c7d659a2feaa0c55ad015"), ["9f86d081884c7d659a2feaa0c55ad015"]);
    }

    #[test]
    fn other_texts_are_no_secrets() {
        for (name, text) in [
            ("args", "@modelcontextprotocol/server-filesystem@2025.11.18"),
            ("args", "-y"),
            ("PATH", "/usr/bin:/bin"),
            ("PROJECT_ID", "9f86d081884c7d659a2feaa0c55ad015"),
            ("MODEL", "claude-sonnet-4-5-20250929"),
            ("GITHUB_TOKEN", "<your token>"),
            ("API_KEY", "YOUR_API_KEY"),
            ("AUTH", "true"),
            ("TOKEN", ""),
            ("GOOGLE_APPLICATION_CREDENTIALS", "/home/ada/key.json"),
            ("NODE_OPTIONS", "--max-old-space-size=4096"),
            ("args", "ghcr.io/github/github-mcp-server:v0.20.1"),
            ("args", "mcp-server-postgres-2025-11-18"),
            ("URL", "https://mcp.example.com:8443/v1/projects/1234/mcp"),
            ("args", "https://mcp.linear.app/sse"),
        ] {
            assert_eq!(found(name, text), [""; 0], "{name}={text}");
        }
    }

    proptest! {
        #[test]
        fn parts_are_in_order_and_inside_the_text(name in "[A-Za-z_-]{0,12}", text in r#"(ghp_|://|[a-z]{1,4}:|@|token=|["'\\ ;&?/{}é]|Bearer |[A-Za-z0-9]{1,24}){0,9}"#) {
            let mut end = 0;
            for part in secret_parts(&name, &text) {
                prop_assert!(part.range.start >= end && !part.range.is_empty());
                prop_assert!(text.get(part.range.clone()).is_some());
                end = part.range.end;
            }
        }
    }
}
