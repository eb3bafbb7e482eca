//! Splits the texts of one server into literals, secrets and references.

use zeroize::Zeroizing;

use crate::dialect::Dialect;
use crate::found::{Composed, FoundKind, FoundSecret, Part, Place, ReferencedOrigin, ReferencedSource};
use crate::recognise::{Reason, is_placeholder, secret_parts};
use crate::references::{Piece, Reference, pieces};
use crate::secret_names::is_secret_name;
use crate::surroundings::Surroundings;

/// Collects what is found in the texts of a server.
pub(crate) struct Composer<'a> {
    pub(crate) dialect: Dialect,
    pub(crate) surroundings: &'a Surroundings<'a>,
    pub(crate) secrets: Vec<FoundSecret>,
    pub(crate) sources: Vec<ReferencedSource>,
    pub(crate) notes: Vec<String>,
}

/// The shortest argument that counts as a secret by the flag before it alone: shorter ones are words such as `stdio`.
const SHORTEST_ARGUMENT: usize = 8;

impl<'a> Composer<'a> {
    pub(crate) fn new(dialect: Dialect, surroundings: &'a Surroundings<'a>) -> Self {
        Self { dialect, surroundings, secrets: Vec::new(), sources: Vec::new(), notes: Vec::new() }
    }

    /// Splits a text. `name` is the name of its variable, header or flag.
    pub(crate) fn compose(&mut self, name: &str, text: &str, place: &Place) -> Composed {
        let mut composed = Composed::default();
        let pieces = pieces(text, self.dialect, self.surroundings);
        // What stands beside a reference is not the secret that the name promises, for instance `Bearer `.
        let has_reference = pieces.iter().any(|piece| matches!(piece, Piece::Reference(_)));
        let text_name = if has_reference { "" } else { name };
        for piece in pieces {
            match piece {
                Piece::Text(text) => self.add_text(text_name, &text, place, &mut composed),
                Piece::Reference(reference) => self.add_reference(name, reference, place, &mut composed),
            }
        }
        if is_secret_name(name) && is_placeholder(text) {
            self.notes.push(format!("{place} has a placeholder: put the real value into the configuration"));
        }
        composed
    }

    /// A text that is kept as it is, but for references to directories.
    pub(crate) fn plain(&self, text: &str) -> Option<String> {
        let mut plain = String::new();
        for piece in pieces(text, self.dialect, self.surroundings) {
            match piece {
                Piece::Text(text) => plain.push_str(&text),
                Piece::Reference(Reference::Variable { name, default }) => {
                    plain.push_str(&(self.surroundings.variable)(&name).or(default)?);
                }
                Piece::Reference(_) => return None,
            }
        }
        Some(plain)
    }

    fn add_text(&mut self, name: &str, text: &str, place: &Place, composed: &mut Composed) {
        let mut position = 0;
        for part in secret_parts(name, text) {
            let value = &text[part.range.clone()];
            let is_whole_argument = matches!(place, Place::Argument(_)) && part.label.is_empty();
            if is_whole_argument && part.reason == Reason::Name && value.len() < SHORTEST_ARGUMENT {
                continue;
            }
            push_literal(composed, &text[position..part.range.start]);
            let label = match (part.label.as_str(), place) {
                ("", Place::Variable(own) | Place::Header(own)) if name.is_empty() => own.clone(),
                ("", _) => name.to_owned(),
                ("password" | "user" | "path", Place::Variable(name)) => format!("{name}_{}", part.label),
                (label, _) => label.to_owned(),
            };
            composed.0.push(self.secret(&label, Zeroizing::new(value.to_owned()), part.reason, place));
            position = part.range.end;
        }
        push_literal(composed, &text[position..]);
    }

    /// A secret of the server. The same value twice is one field.
    pub(crate) fn secret(
        &mut self,
        label: &str,
        value: Zeroizing<String>,
        reason: Reason,
        place: &Place,
    ) -> Part {
        if let Some(index) = self.secrets.iter().position(|secret| secret.value == value) {
            // The argument decides what the person is warned of.
            if matches!(place, Place::Argument(_)) {
                self.secrets[index].place = place.clone();
            }
            return Part::Secret(index);
        }
        let base = match field_name(label) {
            name if name.is_empty() => "value".to_owned(),
            name => name,
        };
        let is_taken = |name: &String| self.secrets.iter().any(|secret| secret.field == *name);
        let numbered = (2..).map(|number| format!("{base}_{number}"));
        let field = std::iter::once(base.clone()).chain(numbered).find(|name| !is_taken(name));
        let field = field.expect("there are more numbers than secrets");
        self.secrets.push(FoundSecret { field, value, reason, place: place.clone(), is_refused: false });
        Part::Secret(self.secrets.len() - 1)
    }

    /// Replaces secrets that also stand elsewhere in the same server, where nothing says that they are secrets.
    pub(crate) fn replace_known(&mut self, kind: &mut FoundKind) {
        let known: Vec<(usize, Zeroizing<String>)> = self
            .secrets
            .iter()
            .enumerate()
            .filter(|(_, secret)| secret.value.len() >= cofferdam_secrets::MIN_VALUE_BYTES)
            .map(|(index, secret)| (index, secret.value.clone()))
            .collect();
        match kind {
            FoundKind::Command { command, env, .. } => {
                for (number, argument) in command.iter_mut().enumerate().skip(1) {
                    for index in split_at_known(argument, &known) {
                        self.secrets[index].place = Place::Argument(number);
                    }
                }
                env.values_mut().for_each(|value| drop(split_at_known(value, &known)));
            }
            FoundKind::Url { headers, .. } => {
                headers.values_mut().for_each(|value| drop(split_at_known(value, &known)));
            }
        }
    }

    fn add_reference(&mut self, name: &str, reference: Reference, place: &Place, composed: &mut Composed) {
        let (origin, note) = match reference {
            Reference::File(path) => (ReferencedOrigin::File(path), None),
            Reference::Input(id) => {
                let variable = variable_name(&id);
                let note = format!(
                    "VS Code asks for `{id}`: give it to the sidecar as the environment variable {variable}, or put another source into the configuration"
                );
                (ReferencedOrigin::Variable(variable), Some(note))
            }
            Reference::Variable { name: variable, default } => {
                let is_set = (self.surroundings.variable)(&variable).is_some();
                match default {
                    Some(default) if !is_set => {
                        self.notes.push(format!(
                            "{place}: {variable} is not set, so its default is used; the configuration has no defaults"
                        ));
                        return self.add_text(name, &default, place, composed);
                    }
                    _ => (ReferencedOrigin::Variable(variable), None),
                }
            }
        };
        let is_public = match &origin {
            ReferencedOrigin::File(_) => false,
            ReferencedOrigin::Variable(variable) => !is_secret_name(variable) && !is_secret_name(name),
        };
        if let (ReferencedOrigin::Variable(variable), None) = (&origin, &note) {
            self.notes.push(format!("{place} comes from the environment variable {variable} of the sidecar"));
        }
        self.notes.extend(note);
        composed.0.push(self.source(ReferencedSource { origin, is_public }));
    }

    pub(crate) fn source(&mut self, source: ReferencedSource) -> Part {
        let index =
            self.sources.iter().position(|known| known.origin == source.origin).unwrap_or_else(|| {
                self.sources.push(source.clone());
                self.sources.len() - 1
            });
        // A value that is a secret in one place is one everywhere.
        self.sources[index].is_public &= source.is_public;
        Part::Source(index)
    }
}

/// Splits literals at these values; returns which of them were found.
fn split_at_known(composed: &mut Composed, known: &[(usize, Zeroizing<String>)]) -> Vec<usize> {
    let mut found = Vec::new();
    for (index, value) in known {
        let mut split = Composed::default();
        for part in std::mem::take(&mut composed.0) {
            let Part::Literal(text) = &part else {
                split.0.push(part);
                continue;
            };
            for (number, between) in text.split(value.as_str()).enumerate() {
                if number > 0 {
                    split.0.push(Part::Secret(*index));
                    found.push(*index);
                }
                push_literal(&mut split, between);
            }
        }
        *composed = split;
    }
    found
}

fn push_literal(composed: &mut Composed, text: &str) {
    if !text.is_empty() {
        composed.0.push(Part::Literal(Zeroizing::new(text.to_owned())));
    }
}

/// The name of a field: lower case, with the characters that fields may have.
pub(crate) fn field_name(label: &str) -> String {
    let allowed = |character: char| match character {
        character if character.is_ascii_alphanumeric() => character.to_ascii_lowercase(),
        _ => '_',
    };
    let name: String = label.chars().map(allowed).take(64).collect();
    name.trim_matches('_').to_owned()
}

/// The name of an environment variable for an input of VS Code.
fn variable_name(id: &str) -> String {
    let name = field_name(id).to_ascii_uppercase();
    match name.bytes().next() {
        Some(first) if !first.is_ascii_digit() => name,
        _ => format!("INPUT_{name}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_same_value_is_one_field_and_other_values_have_other_names() {
        let surroundings = Surroundings::nowhere();
        let mut composer = Composer::new(Dialect::Standard, &surroundings);
        let place = Place::Variable("A_TOKEN".to_owned());
        for value in ["one-secret", "one-secret", "two-secret"] {
            composer.compose("A_TOKEN", value, &place);
        }
        let fields: Vec<&str> = composer.secrets.iter().map(|secret| secret.field.as_str()).collect();
        assert_eq!(fields, ["a_token", "a_token_2"]);
    }

    #[test]
    fn inputs_have_names_of_variables() {
        assert_eq!(variable_name("github-token"), "GITHUB_TOKEN");
        assert_eq!(variable_name("1-é"), "INPUT_1");
    }

    proptest! {
        #[test]
        fn the_parts_give_the_text_again(text in r#"(ghp_[a-z0-9]{32}|://|[a-z]{1,4}:|@|token=|["'\\ ;&?/{}é]|Bearer |[A-Za-z0-9]{1,24}){0,9}"#) {
            let surroundings = Surroundings::nowhere();
            let mut composer = Composer::new(Dialect::Codex, &surroundings);
            let composed = composer.compose("X", &text, &Place::Url);
            let again: String = composed.0.iter().map(|part| match part {
                Part::Literal(text) => text.to_string(),
                Part::Secret(index) => composer.secrets[*index].value.to_string(),
                Part::Source(_) => unreachable!("Codex has no references in texts"),
            }).collect();
            prop_assert_eq!(again, text);
        }
    }
}
