//! Which of a package's programs is the server.

use std::collections::BTreeMap;

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ProgramProblem {
    #[error("the package has no program")]
    None,
    #[error("the package has no program of the name that `program` gives; it has {}", .0.join(", "))]
    Other(Vec<String>),
    #[error("the package has several programs, and `program` does not say which is the server: {}", .0.join(", "))]
    Several(Vec<String>),
}

/// The path of the wanted program, of the only one, or of the one that is named after the package.
pub(crate) fn choose<'a>(
    programs: &'a BTreeMap<String, String>,
    wanted: Option<&str>,
    package: &str,
) -> Result<&'a str, ProgramProblem> {
    let names = || programs.keys().cloned().collect();
    let package = package.rsplit('/').next().unwrap_or(package);
    let found = match wanted {
        _ if programs.is_empty() => return Err(ProgramProblem::None),
        Some(wanted) => programs.get(wanted).ok_or_else(|| ProgramProblem::Other(names()))?,
        None if programs.len() == 1 => programs.values().next().ok_or(ProgramProblem::None)?,
        None => programs.get(package).ok_or_else(|| ProgramProblem::Several(names()))?,
    };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_named_or_the_only_one_or_that_of_the_package() {
        let programs = |names: &[&str]| -> BTreeMap<String, String> {
            names.iter().map(|name| ((*name).to_owned(), format!("path of {name}"))).collect()
        };
        let one = programs(&["mcp-server"]);
        let two = programs(&["a", "server"]);
        assert_eq!(choose(&one, None, "@scope/other"), Ok("path of mcp-server"));
        assert_eq!(choose(&two, None, "@scope/server"), Ok("path of server"));
        assert_eq!(choose(&two, Some("a"), "server"), Ok("path of a"));
        assert_eq!(choose(&two, None, "x"), Err(ProgramProblem::Several(vec!["a".into(), "server".into()])));
        assert_eq!(choose(&one, Some("b"), "x"), Err(ProgramProblem::Other(vec!["mcp-server".into()])));
        assert_eq!(choose(&programs(&[]), None, "x"), Err(ProgramProblem::None));
    }
}
