//! Patterns on names: `*` matches any run of characters, `?` matches one, everything else matches itself.
//!
//! What must stay true: a sandbox chooses the text that is matched, so matching never backtracks over more than one
//! `*`. The work is at most the pattern's length (bounded here) times the text's, and nothing is allocated. A pattern in
//! another syntax, such as a character class or a regular expression, is refused: read as plain text it would match no
//! name, and a `deny` rule would deny nothing.

use std::fmt;
use std::str::FromStr;

use super::fold::{fold, is_ignorable, narrow};

/// This limit keeps the time of matching linear in the text; a longer pattern is a mistake.
const MAX_PATTERN_BYTES: usize = 256;

/// Characters that mean something in other pattern languages. A `?` matches them in a name.
const OTHER_SYNTAX: &[char] = &['[', ']', '{', '}', '(', ')', '|', '\\', '^', '+', ','];

/// A well-formed pattern. [`Glob::matches`] is case-sensitive; [`Glob::folded`] is the same pattern for folded names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Glob(Box<str>);

/// A pattern for names that [`fold`] has folded.
#[derive(Clone, Debug)]
pub(crate) struct FoldedGlob(Glob);

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidGlob {
    #[error("a pattern cannot contain the control character {0:?}")]
    Control(char),
    #[error("a pattern cannot be empty")]
    Empty,
    #[error("a pattern cannot contain the invisible character {0:?}")]
    Invisible(char),
    #[error("a pattern cannot begin with `!`: no list excludes names from its other patterns")]
    Negated,
    #[error("`{0}` has no meaning in a pattern; write `?` where a name contains this character")]
    OtherSyntax(char),
    #[error("a pattern cannot begin or end with a space: no tool with such a name is allowed")]
    OuterSpace,
    #[error("a pattern cannot be longer than {MAX_PATTERN_BYTES} bytes")]
    TooLong,
}

impl Glob {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn folded(&self) -> FoldedGlob {
        FoldedGlob(Self(fold(&self.0).into()))
    }

    pub fn matches(&self, text: &str) -> bool {
        let mut pattern = self.0.chars();
        let mut rest = text.chars();
        // Where to resume after a mismatch: after the last `*`, which then matches one more character. Earlier stars
        // need no retry: the last star can match everything that they could match in addition.
        let mut retry = None;
        loop {
            let before = rest.clone();
            match (pattern.next(), rest.next()) {
                (None, None) => return true,
                (Some('*'), _) => {
                    rest = before;
                    retry = Some((pattern.clone(), rest.clone()));
                    continue;
                }
                (Some('?'), Some(_)) => continue,
                (Some(wanted), Some(found)) if wanted == found => continue,
                _ => {}
            }
            let Some((after_star, text_after_star)) = &mut retry else { return false };
            if text_after_star.next().is_none() {
                return false;
            }
            pattern = after_star.clone();
            rest = text_after_star.clone();
        }
    }
}

impl FoldedGlob {
    /// `text` is a folded name.
    pub(crate) fn matches(&self, text: &str) -> bool {
        self.0.matches(text)
    }
}

impl FromStr for Glob {
    type Err = InvalidGlob;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(InvalidGlob::Empty);
        }
        if text.len() > MAX_PATTERN_BYTES {
            return Err(InvalidGlob::TooLong);
        }
        if let Some(control) = text.chars().find(|character| character.is_control()) {
            return Err(InvalidGlob::Control(control));
        }
        if text.trim() != text {
            return Err(InvalidGlob::OuterSpace);
        }
        if text.starts_with('!') {
            return Err(InvalidGlob::Negated);
        }
        // `$/` begins the names of some methods; at the end, `$` is that of a regular expression.
        if text.ends_with('$') {
            return Err(InvalidGlob::OtherSyntax('$'));
        }
        for character in text.chars() {
            if is_ignorable(character) {
                return Err(InvalidGlob::Invisible(character));
            }
            // A full-width `*` or bracket is the same mistake, and would become a wildcard in the folded pattern.
            let narrow = narrow(character);
            if OTHER_SYNTAX.contains(&narrow) || (narrow != character && matches!(narrow, '*' | '?')) {
                return Err(InvalidGlob::OtherSyntax(character));
            }
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        pattern.parse::<Glob>().unwrap().matches(text)
    }

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, expected) in [
            ("get_*", "get_issue", true),
            ("get_*", "get_", true),
            ("get_*", "Get_issue", false),
            ("get_*", "forget_issue", false),
            ("*_issue", "get_issue_issue", true),
            ("*_issue", "get_issues", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("**", "", true),
            ("?", "é", true),
            ("?", "", false),
            ("?", "ab", false),
            ("*?", "a", true),
            ("get.issue", "get_issue", false),
            ("a?b?", "a[b]", true),
            ("$/*", "$/progress", true),
            ("plain", "plain", true),
            ("plain", "plainer", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} against {text}");
        }
    }

    #[test]
    fn a_pattern_of_the_greatest_length_is_accepted_unchanged() {
        let longest = "x".repeat(MAX_PATTERN_BYTES);
        assert_eq!(longest.parse::<Glob>().unwrap().as_str(), longest);
    }

    #[test]
    fn invalid_patterns_are_refused() {
        assert_eq!("".parse::<Glob>(), Err(InvalidGlob::Empty));
        assert_eq!("a\nb".parse::<Glob>(), Err(InvalidGlob::Control('\n')));
        assert_eq!("x".repeat(257).parse::<Glob>(), Err(InvalidGlob::TooLong));
        assert_eq!("!delete_*".parse::<Glob>(), Err(InvalidGlob::Negated));
        assert_eq!(" delete_*".parse::<Glob>(), Err(InvalidGlob::OuterSpace));
        assert_eq!("delete\u{200b}_*".parse::<Glob>(), Err(InvalidGlob::Invisible('\u{200b}')));
    }

    #[test]
    fn patterns_of_other_languages_are_refused() {
        for (pattern, character) in [
            ("delete_[b]", '['),
            ("delete_{a,b}", '{'),
            ("delete_*,write_*", ','),
            ("delete_(a|b)", '('),
            ("delete\\_*", '\\'),
            ("^delete_*", '^'),
            ("delete_.*$", '$'),
            ("delete_.+", '+'),
            ("delete_＊", '＊'),
            ("delete_［b］", '［'),
        ] {
            assert_eq!(pattern.parse::<Glob>(), Err(InvalidGlob::OtherSyntax(character)), "{pattern}");
        }
    }

    #[test]
    fn every_name_can_be_matched_by_a_pattern() {
        for name in ["a[b]", "{x}", "a,b", "tool!", "a^b"] {
            let pattern: String = name
                .chars()
                .map(|character| if character.is_alphanumeric() { character } else { '?' })
                .collect();
            assert!(matches(&pattern, name), "{pattern} against {name}");
        }
    }

    #[test]
    fn many_stars_do_not_take_exponential_time() {
        // A matcher that tries every split would not finish.
        assert!(!matches(&format!("{}b", "a*".repeat(100)), &"a".repeat(50_000)));
    }

    /// The definition, in exponential time.
    fn naive(pattern: &[char], text: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some(('*', tail)), None) => naive(tail, text),
            (Some(('*', tail)), Some((_, rest))) => naive(tail, text) || naive(pattern, rest),
            (Some(('?', tail)), Some((_, rest))) => naive(tail, rest),
            (Some((wanted, tail)), Some((found, rest))) => wanted == found && naive(tail, rest),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(pattern in "[ab*?é]{1,9}", text in "[abé]{0,12}") {
            let expected = naive(&pattern.chars().collect::<Vec<_>>(), &text.chars().collect::<Vec<_>>());
            prop_assert_eq!(matches(&pattern, &text), expected);
        }
    }
}
