//! Changes entries of a settings file: replaces them by the shim, adds, removes and restores them.
//!
//! What must stay true: every byte outside of the changed entries stays, and so do the members of an entry that do not say
//! what is started. The result is parsed again and compared with what was meant; if it differs, nothing is changed.

use serde_json::{Map, Value};
use zeroize::Zeroizing;

use crate::dialect::Dialect;
use crate::document::{Document, Format};
use crate::edit::{Edit, RewriteError, is_set, is_written};
use crate::shim_entry::DEFINING_MEMBERS;
use crate::{json_edit, toml_edits};

/// Applies edits to a document. `earlier` has the entries that are restored.
pub(crate) fn apply(
    document: &Document,
    edits: &[Edit],
    earlier: Option<&Document>,
) -> Result<Zeroizing<Vec<u8>>, RewriteError> {
    let body = match document.format {
        Format::Json => {
            json_edit::apply(&document.body, edits, earlier.map(|earlier| earlier.body.as_str()))?
        }
        Format::Toml => {
            toml_edits::apply(&document.body, edits, earlier.map(|earlier| earlier.body.as_str()))?
        }
    };
    let bytes = document.with_body(&body);
    let mut expected = crate::document::WipedValue(document.value.0.clone());
    for edit in edits {
        change(&mut expected.0, edit, earlier.map(|earlier| &earlier.value.0))
            .ok_or_else(|| RewriteError::Form(edit.path().to_vec()))?;
    }
    match Document::read(document.format, &bytes) {
        Ok(changed) if changed.value.0 == expected.0 => Ok(bytes),
        _ => Err(RewriteError::OtherParts),
    }
}

/// The same edit of the parsed value.
fn change(value: &mut Value, edit: &Edit, earlier: Option<&Value>) -> Option<()> {
    let (name, parents) = edit.path().split_last()?;
    let mut parent = value.as_object_mut()?;
    for step in parents {
        parent = parent.entry(step).or_insert_with(|| Map::new().into()).as_object_mut()?;
    }
    match edit {
        Edit::Define { members, .. } => {
            let entry = parent.entry(name).or_insert_with(|| Map::new().into()).as_object_mut()?;
            let is_new = entry.is_empty();
            entry.retain(|member, _| !DEFINING_MEMBERS.contains(&member.as_str()) || is_set(members, member));
            for (member, value) in members {
                if is_written(member, is_new, entry.contains_key(*member)) {
                    entry.insert((*member).to_owned(), value.clone());
                }
            }
        }
        Edit::Remove { .. } => drop(parent.remove(name)),
        Edit::Restore { path } => {
            let found = path.iter().try_fold(earlier?, |value, step| value.get(step))?;
            parent.insert(name.clone(), found.clone());
        }
    }
    Some(())
}

/// Whether an entry of this dialect can be replaced by the shim.
pub(crate) fn can_rewrite(dialect: Dialect) -> bool {
    dialect != Dialect::E2b
}
