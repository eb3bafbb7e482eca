//! The next step after an unknown name, in the file and on the command line.

pub(crate) use relay_proto::nearest::nearest;

/// The next step after an unknown name: the likely one, or all that there are.
pub(crate) fn hint<'a>(name: &str, noun: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => format!("the configuration has no {noun}"),
        None => {
            let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
            format!("the {noun}s are: {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_gets_the_likely_one_or_all() {
        assert_eq!(hint("gihub", "server", ["github", "wiki"]), "did you mean `github`?");
        assert_eq!(hint("x", "server", ["github", "wiki"]), "the servers are: `github`, `wiki`");
        assert_eq!(hint("x", "server", []), "the configuration has no server");
    }
}
