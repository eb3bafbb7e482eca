//! Joins the words of a command line for a POSIX shell.

use std::ffi::OsStr;

use cofferdam_base::text::shell_quoted;

/// Quotes and joins the words of a command line. Bytes that are not UTF-8 become replacement characters: such words are
/// only printed, never run by a shell.
pub(super) fn command_line<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> String {
    let quoted = words.into_iter().map(|word| shell_quoted(&word.to_string_lossy()).into_owned());
    quoted.collect::<Vec<_>>().join(" ")
}
