//! What a mistyped option or command was probably meant to be.

use relay_proto::nearest::nearest;

/// The end of a message about an unknown argument; its value is not part of the name.
pub(crate) fn did_you_mean(argument: &str, known: &[&'static str]) -> String {
    let name = argument.split('=').next().unwrap_or_default();
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("; did you mean `{near}`?"),
        None => String::new(),
    }
}
