//! Colours: one choice for the whole program, and the few roles that text can have.
//!
//! What must stay true: a stream that is not a terminal gets no colour unless `--color always` or `CLICOLOR_FORCE` asks for
//! it; `--color` takes precedence over `NO_COLOR`, `CLICOLOR`, `CLICOLOR_FORCE` and `TERM`; what a colour says is also said
//! by the text.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Effects, Style};
use clap::ValueEnum;

/// The values of `--color`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum ColourArgument {
    Auto,
    Always,
    Never,
}

/// Whether text for one stream is coloured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Colours {
    Ansi,
    Plain,
}

/// What a piece of text says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    Bad,
    /// Less important than the text around it.
    Faint,
    Good,
    Heading,
    /// The next step.
    Hint,
    Normal,
    Warning,
}

/// A text with its role, displayed in colour or not.
pub(crate) struct Painted<'a> {
    text: &'a str,
    style: Style,
}

impl ColourArgument {
    /// The value of the last `--color` before `--`. Read before the other arguments, because their help and errors have colours
    /// too; what is wrong with the value is reported with them.
    pub(crate) fn find(arguments: impl IntoIterator<Item = OsString>) -> Self {
        let mut found = Self::Auto;
        let mut arguments = arguments.into_iter().take_while(|argument| argument != "--");
        while let Some(argument) = arguments.next() {
            let value = match argument.to_str() {
                Some("--color") => arguments.next(),
                Some(text) => text.strip_prefix("--color=").map(OsString::from),
                None => None,
            };
            let parsed =
                value.as_deref().and_then(OsStr::to_str).and_then(|value| Self::from_str(value, false).ok());
            found = parsed.unwrap_or(found);
        }
        found
    }

    /// Makes this the choice of the program.
    pub(crate) fn apply(self) {
        let choice = match self {
            Self::Auto => ColorChoice::Auto,
            Self::Always => ColorChoice::AlwaysAnsi,
            Self::Never => ColorChoice::Never,
        };
        choice.write_global();
    }

    pub(crate) fn for_clap(self) -> clap::ColorChoice {
        match self {
            Self::Auto => clap::ColorChoice::Auto,
            Self::Always => clap::ColorChoice::Always,
            Self::Never => clap::ColorChoice::Never,
        }
    }
}

impl Colours {
    pub(crate) fn of_stdout() -> Self {
        Self::from(AutoStream::choice(&io::stdout()))
    }

    pub(crate) fn of_stderr() -> Self {
        Self::from(AutoStream::choice(&io::stderr()))
    }

    pub(crate) fn paint(self, role: Role, text: &str) -> Painted<'_> {
        let style = match self {
            Self::Ansi => role.style(),
            Self::Plain => Style::new(),
        };
        Painted { text, style }
    }
}

impl From<ColorChoice> for Colours {
    fn from(choice: ColorChoice) -> Self {
        match choice {
            ColorChoice::Never => Self::Plain,
            ColorChoice::Always | ColorChoice::AlwaysAnsi | ColorChoice::Auto => Self::Ansi,
        }
    }
}

impl Role {
    fn style(self) -> Style {
        let colour = |colour: AnsiColor| colour.on_default();
        match self {
            Self::Bad => colour(AnsiColor::Red).effects(Effects::BOLD),
            Self::Faint => Style::new().effects(Effects::DIMMED),
            Self::Good => colour(AnsiColor::Green),
            Self::Heading => Style::new().effects(Effects::BOLD),
            Self::Hint => colour(AnsiColor::Cyan),
            Self::Normal => Style::new(),
            Self::Warning => colour(AnsiColor::Yellow),
        }
    }
}

impl fmt::Display for Painted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, style } = self;
        match text.is_empty() {
            true => Ok(()),
            false => write!(f, "{style}{text}{style:#}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(arguments: &[&str]) -> ColourArgument {
        ColourArgument::find(arguments.iter().map(OsString::from))
    }

    #[test]
    fn the_last_choice_before_the_command_of_a_sandbox_counts() {
        assert_eq!(found(&["cofferdam", "sessions"]), ColourArgument::Auto);
        assert_eq!(found(&["cofferdam", "--color", "never", "sessions"]), ColourArgument::Never);
        assert_eq!(found(&["cofferdam", "sessions", "--color=always"]), ColourArgument::Always);
        assert_eq!(found(&["cofferdam", "--color=pink"]), ColourArgument::Auto);
        assert_eq!(found(&["cofferdam", "run", "--", "ls", "--color=always"]), ColourArgument::Auto);
    }

    #[test]
    fn text_has_codes_in_colour_and_none_without() {
        assert_eq!(Colours::Ansi.paint(Role::Good, "allow").to_string(), "\u{1b}[32mallow\u{1b}[0m");
        assert_eq!(Colours::Plain.paint(Role::Good, "allow").to_string(), "allow");
        assert_eq!(Colours::Ansi.paint(Role::Normal, "x").to_string(), "x");
        assert_eq!(Colours::Ansi.paint(Role::Bad, "").to_string(), "");
    }
}
