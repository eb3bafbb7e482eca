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
    let Ok(changed) = Document::read(document.format, &bytes) else { return Err(RewriteError::OtherParts) };
    if document.format == Format::Toml && changed.value.0 != expected.0 {
        remove_emptied_tables(&mut expected.0, edits);
    }
    match changed.value.0 == expected.0 {
        true => Ok(bytes),
        false => Err(RewriteError::OtherParts),
    }
}

/// A table of TOML that has no header of its own ends with its last entry.
fn remove_emptied_tables(value: &mut Value, edits: &[Edit]) {
    let removed = edits.iter().filter(|edit| matches!(edit, Edit::Remove { .. }));
    for edit in removed {
        let mut path = edit.path();
        while let Some((_, table)) = path.split_last()
            && let Some((name, parents)) = table.split_last()
        {
            let parent = parents.iter().try_fold(&mut *value, |value, step| value.get_mut(step));
            let Some(parent) = parent.and_then(Value::as_object_mut) else { break };
            if parent.get(name).and_then(Value::as_object).is_some_and(Map::is_empty) {
                parent.remove(name);
            }
            path = table;
        }
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
