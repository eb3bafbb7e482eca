//! Finds mounted files that look like credentials, for a warning. Only their names are looked at: no file is opened.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// The search is bounded so that it does not delay the start.
const MAX_ENTRIES: usize = 5_000;
const MAX_DEPTH: usize = 4;
const MAX_FOUND: usize = 8;

/// Directories that tools fill with many files, none of which the user wrote.
const SKIPPED_DIRECTORIES: [&str; 7] =
    [".git", ".venv", "__pycache__", "build", "node_modules", "target", "vendor"];
const CREDENTIAL_NAMES: [&str; 15] = [
    ".env",
    ".git-credentials",
    ".mcp.json",
    ".netrc",
    ".npmrc",
    ".pgpass",
    ".pypirc",
    ".vault-token",
    "credentials",
    "credentials.json",
    "id_ecdsa",
    "id_ed25519",
    "id_rsa",
    "kubeconfig",
    "terraform.tfstate",
];
const CREDENTIAL_SUFFIXES: [&str; 6] = [".jks", ".key", ".p12", ".pem", ".pfx", ".token"];
/// Suffixes of example files, which hold no credential.
const EXAMPLE_SUFFIXES: [&str; 4] = [".dist", ".example", ".sample", ".template"];

/// At most [`MAX_FOUND`] files below these directories that look like credentials.
pub(super) fn find_credential_files(directories: &[PathBuf]) -> Vec<PathBuf> {
    let mut pending: VecDeque<(PathBuf, usize)> = directories.iter().map(|path| (path.clone(), 0)).collect();
    let (mut found, mut seen) = (Vec::new(), 0);
    while let Some((directory, depth)) = pending.pop_front() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            seen += 1;
            if seen > MAX_ENTRIES || found.len() == MAX_FOUND {
                return found;
            }
            let name = entry.file_name();
            let name = name.to_string_lossy();
            match entry.file_type() {
                // Links are not followed.
                Ok(kind) if kind.is_dir() && depth < MAX_DEPTH && !SKIPPED_DIRECTORIES.contains(&&*name) => {
                    pending.push_back((entry.path(), depth + 1));
                }
                Ok(kind) if kind.is_file() && looks_like_credentials(&name) => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

fn looks_like_credentials(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    if EXAMPLE_SUFFIXES.iter().any(|end| name.ends_with(end)) || name.ends_with(".pub") {
        return false;
    }
    let stem = Path::new(&name).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    CREDENTIAL_NAMES.contains(&&*name)
        || CREDENTIAL_SUFFIXES.iter().any(|end| name.ends_with(end))
        || name.starts_with(".env.")
        || ["secret", "secrets", "token", "tokens"].contains(&&*stem)
        || name.starts_with("service-account") && name.ends_with(".json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_credentials_are_recognised() {
        for name in [".env", ".env.local", ".mcp.json", "id_rsa", "server.pem", "Token.txt", "secrets.yaml"] {
            assert!(looks_like_credentials(name), "{name}");
        }
        for name in [".env.example", "main.rs", "environment", "id_rsa.pub", "tokenizer.json", "README.md"] {
            assert!(!looks_like_credentials(name), "{name}");
        }
    }

    #[test]
    fn directories_are_searched_to_a_depth_and_those_of_tools_are_skipped() {
        let root = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-exposed-"));
        for path in ["a/b/.env", "node_modules/x/.env", "1/2/3/4/5/.env", "x.token"] {
            std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            std::fs::write(root.join(path), "").unwrap();
        }
        let found = find_credential_files(std::slice::from_ref(&root));
        assert_eq!(found, [root.join("x.token"), root.join("a/b/.env")]);
        std::fs::remove_dir_all(root).unwrap();
    }
}
