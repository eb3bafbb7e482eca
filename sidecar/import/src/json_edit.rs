//! Edits of JSON with comments, on its concrete syntax tree.

use jsonc_parser::ast;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::document::{json_tree, parse_options};
use crate::edit::{Edit, RewriteError, is_set, is_written};
use crate::shim_entry::DEFINING_MEMBERS;

pub(crate) fn apply(
    body: &str,
    edits: &[Edit],
    earlier: Option<&str>,
) -> Result<Zeroizing<String>, RewriteError> {
    let mut text = Zeroizing::new(body.to_owned());
    for edit in edits {
        text = match edit {
            Edit::Restore { path } => restore(&text, path, earlier.unwrap_or_default())?,
            Edit::Define { .. } | Edit::Remove { .. } => change(&text, edit)?,
        };
    }
    Ok(text)
}

fn change(body: &str, edit: &Edit) -> Result<Zeroizing<String>, RewriteError> {
    let root = CstRootNode::parse(body, &parse_options()).map_err(|_| RewriteError::OtherParts)?;
    let form = || RewriteError::Form(edit.path().to_vec());
    if root.to_string() != body {
        return Err(RewriteError::OtherParts);
    }
    let (name, parents) = edit.path().split_last().ok_or_else(form)?;
    let mut parent = root.object_value_or_create().ok_or_else(form)?;
    for step in parents {
        parent = match edit {
            Edit::Remove { .. } => match property(&parent, step) {
                Some(property) => property.object_value().ok_or_else(form)?,
                None => return Ok(Zeroizing::new(body.to_owned())),
            },
            _ => object_at(&parent, step).ok_or_else(form)?,
        };
    }
    match edit {
        Edit::Define { members, .. } => {
            let is_new = property(&parent, name)
                .is_none_or(|entry| entry.object_value().is_some_and(|entry| entry.properties().is_empty()));
            if property(&parent, name).is_none() {
                let members = members.iter().map(|(member, value)| ((*member).to_owned(), input(value)));
                parent.append(name, CstInputValue::Object(members.collect()));
            } else {
                define(&object_at(&parent, name).ok_or_else(form)?, members, is_new);
            }
        }
        Edit::Remove { .. } => {
            if let Some(entry) = property(&parent, name) {
                entry.remove();
            }
        }
        Edit::Restore { .. } => return Err(form()),
    }
    Ok(Zeroizing::new(root.to_string()))
}

fn define(entry: &CstObject, members: &[(&'static str, Value)], is_new: bool) {
    for property in entry.properties() {
        let name = property.decoded_name().unwrap_or_default();
        if DEFINING_MEMBERS.contains(&name.as_str()) && !is_set(members, &name) {
            property.remove();
        }
    }
    for (member, value) in members {
        match property(entry, member) {
            Some(property) if property.to_serde_value().as_ref() == Some(value) => {}
            Some(property) => property.set_value(input(value)),
            None if is_written(member, is_new, false) => {
                entry.append(member, input(value));
            }
            None => {}
        }
    }
}

/// The member of an object; its name may be written with escapes.
fn property(object: &CstObject, name: &str) -> Option<jsonc_parser::cst::CstObjectProp> {
    object.properties().into_iter().find(|property| property.decoded_name().as_deref() == Some(name))
}

fn object_at(parent: &CstObject, name: &str) -> Option<CstObject> {
    match property(parent, name) {
        Some(property) => property.object_value(),
        None => {
            parent.append(name, CstInputValue::Object(Vec::new()));
            parent.object_value(name)
        }
    }
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Array(elements) => CstInputValue::Array(elements.iter().map(input).collect()),
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Null => CstInputValue::Null,
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::Object(members) => {
            CstInputValue::Object(members.iter().map(|(name, value)| (name.clone(), input(value))).collect())
        }
        Value::String(text) => CstInputValue::String(text.clone()),
    }
}

/// Replaces the text of an entry by its text in an earlier document.
fn restore(body: &str, path: &[String], earlier: &str) -> Result<Zeroizing<String>, RewriteError> {
    let form = || RewriteError::Form(path.to_vec());
    let present = range_of(body, path).ok_or_else(form)?;
    let before = range_of(earlier, path).ok_or_else(form)?;
    let mut text = Zeroizing::new(String::with_capacity(body.len() + before.len()));
    text.push_str(&body[..present.start]);
    text.push_str(&earlier[before]);
    text.push_str(&body[present.end..]);
    Ok(text)
}

fn range_of(body: &str, path: &[String]) -> Option<std::ops::Range<usize>> {
    let tree = json_tree(body).ok()??;
    let mut value = &tree;
    for step in path {
        let ast::Value::Object(object) = value else { return None };
        value = &object.properties.iter().find(|property| property.name.as_str() == step)?.value;
    }
    let range = jsonc_parser::common::Ranged::range(value);
    Some(range.start..range.end)
}
