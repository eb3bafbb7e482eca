//! Checks `[servers.NAME] manifest`: a bound of what the configuration may give the server.
//!
//! What must stay true: a server with a manifest is confined; a manifest that cannot be read, or is exceeded, is an error, so
//! that the sidecar neither starts nor reloads with it.

use std::path::Path;
use std::sync::Arc;

use cofferdam_confine::manifest::{Asked, Manifest, ManifestError, Permission};
use cofferdam_servers::spec::{Scope, ServerKind};

use super::Checker;
use crate::config::spanned::Spanned;
use crate::config::suggest::nearest;

/// Checks the manifest and keeps it with the server's confinement. `table` is the server's path in the file.
pub(super) fn check_manifest(
    checker: &mut Checker<'_, '_>,
    table: &str,
    written: &Spanned<String>,
    kind: &mut ServerKind,
    scopes: &[Arc<Scope>],
) {
    // A manifest of a server with `url` is reported as misplaced.
    let ServerKind::Stdio(stdio) = kind else { return };
    let key = format!("{table}.manifest");
    let Some(path) = checker.check_path(&key, written) else { return };
    let Some(given) = stdio.given(scopes) else {
        let message = format!("`{key}` bounds what the server may reach, but the server is not confined");
        checker.add(&written.span, message, "confine it with `confine = {}`, or leave the manifest out");
        return;
    };
    if given.profile.write.iter().any(|shown| path.starts_with(shown.path())) {
        let message = format!("`{table}.confine.write` contains the manifest, so the server could change it");
        checker.add(&written.span, message, "keep the manifest where the server cannot write");
    }
    let Some(manifest) = read(checker, &key, written, &path) else { return };
    for Asked { permission, by } in manifest.exceeded_by(&given) {
        let by = by.path.join(".");
        let (message, hint) = match &given.profile.exec {
            None if permission == Permission::Execute => (
                format!(
                    "without `{table}.{by}` the server may execute every program that it sees: `{permission}`, which its manifest \
                     lacks"
                ),
                "write `exec = []` into `confine`, or add the word to the manifest if the server needs it",
            ),
            _ => (
                format!("`{table}.{by}` needs `{permission}`, which the server's manifest lacks"),
                "give the server less, or add the word to the manifest if the server needs it",
            ),
        };
        checker.add(&written.span, message, hint);
    }
    if let Some(confinement) = &mut stdio.confinement {
        confinement.manifest = Some(Box::new(manifest));
    }
}

fn read(
    checker: &mut Checker<'_, '_>,
    key: &str,
    written: &Spanned<String>,
    path: &Path,
) -> Option<Manifest> {
    let bytes = match checker.context.environment.read_manifest(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            let hint = "name a manifest's file; a relative path starts at the configuration's directory";
            checker.add(&written.span, format!("cannot read the file of `{key}`: {error}"), hint);
            return None;
        }
    };
    match Manifest::parse(&bytes) {
        Ok(manifest) => Some(manifest),
        Err(error) => {
            let hint = hint(&error);
            checker.add(&written.span, format!("the file of `{key}` cannot be used: {error}"), hint);
            None
        }
    }
}

fn hint(error: &ManifestError) -> String {
    match error {
        ManifestError::Cut => "write or download it again".into(),
        ManifestError::Duplicate(_) => "name each permission once".into(),
        ManifestError::Shape { .. } | ManifestError::Syntax { .. } => "is this the manifest?".into(),
        ManifestError::UnknownWord { word, .. } => {
            match nearest(word, Permission::ALL.iter().map(|permission| permission.word())) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "use words such as `mcp.ac.network.client`: the guide lists all".into(),
            }
        }
    }
}
