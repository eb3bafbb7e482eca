//! Edits of TOML that keep comments and white space.

use serde_json::Value;
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, value};
use zeroize::Zeroizing;

use crate::edit::{Edit, RewriteError, is_set};
use crate::shim_entry::DEFINING_MEMBERS;

pub(crate) fn apply(
    body: &str,
    edits: &[Edit],
    earlier: Option<&str>,
) -> Result<Zeroizing<String>, RewriteError> {
    // The writer ends lines with a line feed alone.
    let line_ends = body.matches('\n').count();
    let has_carriage_returns = match body.matches("\r\n").count() {
        0 => false,
        count if count == line_ends => true,
        _ => return Err(RewriteError::MixedLineEnds),
    };
    let mut body = Zeroizing::new(body.replace("\r\n", "\n"));
    // The writer also ends the last line.
    let is_cut = !body.is_empty() && !body.ends_with('\n');
    if is_cut {
        body.push('\n');
    }
    let mut document: DocumentMut = body.parse().map_err(|_| RewriteError::OtherParts)?;
    if document.to_string() != *body {
        return Err(RewriteError::OtherParts);
    }
    let earlier = Zeroizing::new(earlier.unwrap_or_default().replace("\r\n", "\n"));
    let earlier: DocumentMut = earlier.parse().map_err(|_| RewriteError::OtherParts)?;
    for edit in edits {
        change(&mut document, edit, &earlier).ok_or_else(|| RewriteError::Form(edit.path().to_vec()))?;
    }
    let mut text = Zeroizing::new(document.to_string());
    if is_cut && text.ends_with('\n') {
        text.pop();
    }
    Ok(match has_carriage_returns {
        true => Zeroizing::new(text.replace('\n', "\r\n")),
        false => text,
    })
}

fn change(document: &mut DocumentMut, edit: &Edit, earlier: &DocumentMut) -> Option<()> {
    let (name, parents) = edit.path().split_last()?;
    let mut parent: &mut dyn TableLike = document.as_table_mut();
    for step in parents {
        let item = parent.entry(step).or_insert_with(implicit_table);
        parent = item.as_table_like_mut()?;
    }
    match edit {
        Edit::Define { members, .. } => {
            let entry = parent.entry(name).or_insert_with(|| Item::Table(Table::new()));
            define(entry.as_table_like_mut()?, members);
        }
        Edit::Remove { .. } => drop(parent.remove(name)),
        Edit::Restore { path } => {
            let found = path.iter().try_fold(earlier.as_item(), |item, step| item.get(step))?;
            parent.insert(name, found.clone());
        }
    }
    Some(())
}

fn implicit_table() -> Item {
    let mut table = Table::new();
    table.set_implicit(true);
    Item::Table(table)
}

fn define(entry: &mut dyn TableLike, members: &[(&'static str, Value)]) {
    for name in DEFINING_MEMBERS {
        if !is_set(members, name) {
            entry.remove(name);
        }
    }
    for (name, member) in members {
        let Some(mut new) = item(member) else { continue };
        if let (Some(present), Some(value)) = (entry.get(name).and_then(Item::as_value), new.as_value_mut()) {
            *value.decor_mut() = present.decor().clone();
        }
        match entry.get_mut(name) {
            Some(present) => *present = new,
            None => drop(entry.insert(name, new)),
        }
    }
}

/// Texts and lists of texts, of which entries of the shim consist.
fn item(member: &Value) -> Option<Item> {
    match member {
        Value::Array(elements) => Some(value(elements.iter().filter_map(Value::as_str).collect::<Array>())),
        Value::String(text) => Some(value(text)),
        _ => None,
    }
}
