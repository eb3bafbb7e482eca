//! The syntax of templates: `{secret.field}`, `{secret.field:url}`, `{file:NAME}`; `{{` and `}}` are braces.
//!
//! What must stay true: every brace in a template is either part of a placeholder or doubled, so that a mistyped placeholder
//! never reaches a server as text; no error repeats the text around a placeholder, which may be a credential.

use std::str::FromStr;

use relay_proto::name::Name;

/// A parsed template. `{secret.field}`, `{secret.field:url}` (percent-encoded), `{file:NAME}`; `{{` and `}}` are braces.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Template {
    /// Literals are never empty and never adjacent.
    pub parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TemplatePart {
    Field {
        secret: Name,
        field: String,
        encoding: Encoding,
    },
    /// The path of one of the server's injected files.
    File(String),
    Literal(String),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Encoding {
    Plain,
    Url,
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidTemplate {
    #[error("`{0}` in braces is neither a secret's field nor a file")]
    Placeholder(String),
    #[error("the `{{` at character {at} is never closed")]
    Unclosed { at: usize },
    #[error("the encoding `{0}` is not known")]
    UnknownEncoding(String),
    #[error("the `}}` at character {at} closes nothing")]
    Unopened { at: usize },
}

impl InvalidTemplate {
    /// The next step for the author of the template.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Placeholder(_) => "write `{secret.field}`, `{secret.field:url}` or `{file:NAME}`",
            Self::UnknownEncoding(_) => "the only encoding is `url`, as in `{secret.field:url}`",
            Self::Unclosed { .. } => "close it with `}`, or write `{{` for a brace",
            Self::Unopened { .. } => "open it with `{`, or write `}}` for a brace",
        }
    }
}

impl Template {
    /// The secrets and fields that this template needs.
    pub fn fields(&self) -> impl Iterator<Item = (&Name, &str)> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Field { secret, field, .. } => Some((secret, field.as_str())),
            TemplatePart::File(_) | TemplatePart::Literal(_) => None,
        })
    }

    /// The injected files whose paths this template needs.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::File(name) => Some(name.as_str()),
            TemplatePart::Field { .. } | TemplatePart::Literal(_) => None,
        })
    }

    /// The literal text.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Literal(text) => Some(text.as_str()),
            TemplatePart::Field { .. } | TemplatePart::File(_) => None,
        })
    }
}

impl FromStr for Template {
    type Err = InvalidTemplate;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let position_of = |rest: &str| text[..text.len() - rest.len()].chars().count() + 1;
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(brace) = rest.find(['{', '}']) {
            literal.push_str(&rest[..brace]);
            rest = &rest[brace..];
            if let Some(behind) = rest.strip_prefix("{{").or_else(|| rest.strip_prefix("}}")) {
                literal.push_str(&rest[..1]);
                rest = behind;
                continue;
            }
            let Some(inside) = rest.strip_prefix('{') else {
                return Err(InvalidTemplate::Unopened { at: position_of(rest) });
            };
            let Some((placeholder, behind)) = inside.split_once('}') else {
                return Err(InvalidTemplate::Unclosed { at: position_of(rest) });
            };
            // Another opening brace before the closing one: the first is the one that is not closed.
            if placeholder.contains('{') {
                return Err(InvalidTemplate::Unclosed { at: position_of(rest) });
            }
            if !literal.is_empty() {
                parts.push(TemplatePart::Literal(std::mem::take(&mut literal)));
            }
            parts.push(placeholder.parse()?);
            rest = behind;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(TemplatePart::Literal(literal));
        }
        Ok(Self { parts })
    }
}

/// Parses the text between two braces.
impl FromStr for TemplatePart {
    type Err = InvalidTemplate;

    fn from_str(placeholder: &str) -> Result<Self, Self::Err> {
        let malformed = || InvalidTemplate::Placeholder(placeholder.to_owned());
        if let Some(file) = placeholder.strip_prefix("file:") {
            return match file.is_empty() {
                true => Err(malformed()),
                false => Ok(Self::File(file.to_owned())),
            };
        }
        let (secret, field) = placeholder.split_once('.').ok_or_else(malformed)?;
        let secret = secret.parse().map_err(|_| malformed())?;
        let (field, encoding) = match field.split_once(':') {
            None => (field, Encoding::Plain),
            Some((field, "url")) => (field, Encoding::Url),
            Some((_, other)) => return Err(InvalidTemplate::UnknownEncoding(other.to_owned())),
        };
        match is_field_name(field) {
            true => Ok(Self::Field { secret, field: field.to_owned(), encoding }),
            false => Err(malformed()),
        }
    }
}

/// Field names are JSON keys of other systems: less strict than the names of the configuration, but visible and without
/// template syntax.
pub fn is_field_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=128).contains(&text.len()) && text.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(secret: &str, field: &str, encoding: Encoding) -> TemplatePart {
        TemplatePart::Field { secret: secret.parse().unwrap(), field: field.to_owned(), encoding }
    }

    fn literal(text: &str) -> TemplatePart {
        TemplatePart::Literal(text.to_owned())
    }

    #[test]
    fn placeholders_and_literals_are_parsed() {
        let cases: &[(&str, &[TemplatePart])] = &[
            ("", &[]),
            ("plain", &[literal("plain")]),
            ("Bearer {github.token}", &[literal("Bearer "), field("github", "token", Encoding::Plain)]),
            ("{a.b}{a.c:url}", &[field("a", "b", Encoding::Plain), field("a", "c", Encoding::Url)]),
            ("{{\"k\": {{}}}}", &[literal("{\"k\": {}}")]),
            ("{{{a.b}}}", &[literal("{"), field("a", "b", Encoding::Plain), literal("}")]),
            ("{file:client.pem}", &[TemplatePart::File("client.pem".to_owned())]),
            ("{file.value}", &[field("file", "value", Encoding::Plain)]),
            ("{a.data.token}", &[field("a", "data.token", Encoding::Plain)]),
        ];
        for (text, parts) in cases {
            assert_eq!(text.parse::<Template>().unwrap().parts, *parts, "{text}");
        }
    }

    #[test]
    fn malformed_templates_are_refused() {
        for (text, message) in [
            ("Bearer {github.token", "the `{` at character 8 is never closed"),
            ("é{a.b", "the `{` at character 2 is never closed"),
            ("{a.b {c.d}", "the `{` at character 1 is never closed"),
            ("token}", "the `}` at character 6 closes nothing"),
            ("{}", "`` in braces is neither a secret's field nor a file"),
            ("{github}", "`github` in braces is neither a secret's field nor a file"),
            ("{github.}", "`github.` in braces is neither a secret's field nor a file"),
            ("{GitHub.token}", "`GitHub.token` in braces is neither a secret's field nor a file"),
            ("{ github.token }", "` github.token ` in braces is neither a secret's field nor a file"),
            ("{file:}", "`file:` in braces is neither a secret's field nor a file"),
            ("{a.b:base64}", "the encoding `base64` is not known"),
        ] {
            assert_eq!(text.parse::<Template>().unwrap_err().to_string(), message, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_can_be_written_with_doubled_braces(text in "[{}a.:é]{0,20}") {
            let template: Template = text.replace('{', "{{").replace('}', "}}").parse().unwrap();
            prop_assert_eq!(template.literals().collect::<String>(), text);
        }
    }
}
