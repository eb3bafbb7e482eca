//! References in texts of settings: to environment variables, to inputs that VS Code asks for, to files, and to directories
//! such as `${workspaceFolder}`.

use std::path::PathBuf;

use zeroize::Zeroizing;

use crate::dialect::Dialect;
use crate::surroundings::Surroundings;

/// A piece of a text.
pub(crate) enum Piece {
    Reference(Reference),
    Text(Zeroizing<String>),
}

/// What stands in the settings for a value that is elsewhere.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Reference {
    /// The content of a file.
    File(PathBuf),
    /// A value that VS Code asks for and keeps.
    Input(String),
    /// An environment variable. If it has a default, the harness uses that where the variable is not set.
    Variable { name: String, default: Option<String> },
}

/// Splits a text at its references. Those to directories are replaced.
pub(crate) fn pieces(text: &str, dialect: Dialect, surroundings: &Surroundings<'_>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut literal = Zeroizing::new(String::with_capacity(text.len()));
    let mut rest = text;
    while !rest.is_empty() {
        match reference_at(rest, dialect, surroundings) {
            Some((length, found)) => {
                match found {
                    Found::Directory(directory) => literal.push_str(&directory),
                    Found::Reference(reference) => {
                        push_literal(&mut pieces, &mut literal);
                        pieces.push(Piece::Reference(reference));
                    }
                }
                rest = &rest[length..];
            }
            None => {
                let length = rest.chars().next().map_or(1, char::len_utf8);
                literal.push_str(&rest[..length]);
                rest = &rest[length..];
            }
        }
    }
    push_literal(&mut pieces, &mut literal);
    pieces
}

enum Found {
    Directory(String),
    Reference(Reference),
}

fn push_literal(pieces: &mut Vec<Piece>, literal: &mut Zeroizing<String>) {
    if !literal.is_empty() {
        pieces.push(Piece::Text(literal.clone()));
        literal.clear();
    }
}

/// The reference with which a text begins, and its length.
fn reference_at(text: &str, dialect: Dialect, surroundings: &Surroundings<'_>) -> Option<(usize, Found)> {
    if dialect == Dialect::OpenCode {
        let inside = text.strip_prefix('{')?.split_once('}')?.0;
        let length = inside.len() + 2;
        if let Some(name) = inside.strip_prefix("env:").filter(|name| is_variable(name)) {
            return Some((length, variable(name, None)));
        }
        let path = inside.strip_prefix("file:").filter(|path| !path.is_empty())?;
        return Some((length, Found::Reference(Reference::File(surroundings.absolute(path)))));
    }
    if dialect == Dialect::Codex || dialect == Dialect::E2b {
        return None;
    }
    if let Some(inside) = text.strip_prefix("${") {
        let inside = inside.split_once('}')?.0;
        return in_braces(inside, surroundings).map(|found| (inside.len() + 3, found));
    }
    let name = text.strip_prefix('$').filter(|_| dialect == Dialect::Gemini)?;
    let end = name.find(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    let name = &name[..end.unwrap_or(name.len())];
    is_variable(name).then(|| (name.len() + 1, variable(name, None)))
}

fn in_braces(inside: &str, surroundings: &Surroundings<'_>) -> Option<Found> {
    let directory = |path: Option<&PathBuf>| Some(Found::Directory(path?.to_str()?.to_owned()));
    match inside {
        "workspaceFolder" | "workspaceRoot" | "CLAUDE_PROJECT_DIR" => {
            return directory(surroundings.project.as_ref());
        }
        "workspaceFolderBasename" => {
            let name = surroundings.project.as_ref()?.file_name()?.to_str()?;
            return Some(Found::Directory(name.to_owned()));
        }
        "userHome" | "HOME" | "env:HOME" => return directory(surroundings.home.as_ref()),
        "pathSeparator" | "/" => return Some(Found::Directory("/".to_owned())),
        _ => {}
    }
    if let Some(id) = inside.strip_prefix("input:") {
        return (!id.is_empty()).then(|| Found::Reference(Reference::Input(id.to_owned())));
    }
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let name = name.strip_prefix("env:").unwrap_or(name);
    is_variable(name).then(|| variable(name, default))
}

fn variable(name: &str, default: Option<&str>) -> Found {
    Found::Reference(Reference::Variable { name: name.to_owned(), default: default.map(str::to_owned) })
}

fn is_variable(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.bytes().all(is_allowed) && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(text: &str, dialect: Dialect) -> Vec<String> {
        let surroundings = Surroundings {
            home: Some("/home/ada".into()),
            project: Some("/home/ada/app".into()),
            ..Surroundings::nowhere()
        };
        let describe = |piece| match piece {
            Piece::Text(text) => text.to_string(),
            Piece::Reference(reference) => format!("{reference:?}"),
        };
        pieces(text, dialect, &surroundings).into_iter().map(describe).collect()
    }

    #[test]
    fn each_dialect_has_its_references() {
        let variable = r#"Variable { name: "TOKEN", default: None }"#;
        assert_eq!(described("Bearer ${TOKEN}!", Dialect::Standard), ["Bearer ", variable, "!"]);
        assert_eq!(described("${env:TOKEN}", Dialect::VsCode), [variable]);
        assert_eq!(described("$TOKEN-x", Dialect::Gemini), [variable, "-x"]);
        assert_eq!(described("$TOKEN", Dialect::Standard), ["$TOKEN"]);
        assert_eq!(described("a {env:TOKEN}", Dialect::OpenCode), ["a ", variable]);
        assert_eq!(described("{file:~/key}", Dialect::OpenCode), [r#"File("/home/ada/key")"#]);
        assert_eq!(described("${input:key}", Dialect::VsCode), [r#"Input("key")"#]);
        assert_eq!(described("${TOKEN}", Dialect::Codex), ["${TOKEN}"]);
        assert_eq!(
            described("${TOKEN:-none}", Dialect::Standard),
            [r#"Variable { name: "TOKEN", default: Some("none") }"#]
        );
    }

    #[test]
    fn directories_are_replaced_and_what_is_no_reference_stays() {
        assert_eq!(described("${workspaceFolder}/a", Dialect::VsCode), ["/home/ada/app/a"]);
        assert_eq!(described("${userHome}${/}a", Dialect::Standard), ["/home/ada/a"]);
        for text in ["${", "${}", "${a b}", "$", "{env:}", "é${1}"] {
            assert_eq!(described(text, Dialect::Standard), [text]);
        }
    }
}
