//! Checks `[secrets.*]`: the sources of credentials.

use std::collections::BTreeMap;
use std::sync::Arc;

use cofferdam_secrets::{ExecFormat, Origin, SecretSpec, ShortValues, VaultOrigin, is_field_name};
use relay_proto::name::Name;

use super::{Checker, span_of, vault, written_keys};
use crate::config::document::dotted;
use crate::config::raw::{RawFormat, RawSecret, RawShort};
use crate::config::spanned::{Span, Spanned};

pub(super) fn check_secrets(
    checker: &mut Checker<'_, '_>,
    raw: BTreeMap<Spanned<String>, RawSecret>,
) -> BTreeMap<Name, Arc<SecretSpec>> {
    let checked = raw.into_iter().filter_map(|(written, secret)| {
        let name = checker.parse_name("a secret", &written);
        let source = check_secret(checker, &written, secret);
        let (name, (origin, public, short)) = name.zip(source)?;
        Some((name.clone(), Arc::new(SecretSpec { name, origin, public, short })))
    });
    checked.collect()
}

fn check_secret(
    checker: &mut Checker<'_, '_>,
    name: &Spanned<String>,
    raw: RawSecret,
) -> Option<(Origin, Vec<String>, ShortValues)> {
    let table = format!("secrets.{}", name.value);
    let sources = written_keys([
        ("env", span_of(&raw.env)),
        ("exec", span_of(&raw.exec)),
        ("file", span_of(&raw.file)),
        ("kv", span_of(&raw.kv)),
        ("vault", span_of(&raw.vault)),
    ]);
    check_single_source(checker, &table, name, &sources);
    for key in ["kv", "vault"] {
        if let Some(span) = sources.get(key) {
            checker.require_vault(&format!("{table}.{key}"), span);
        }
    }
    for (key, span, source) in [
        ("format", span_of(&raw.format), "exec"),
        ("refresh", span_of(&raw.refresh), "kv"),
        ("write", span_of(&raw.write), "vault"),
    ] {
        if let Some(span) = span
            && !sources.contains_key(source)
            && !checker.removed.affects(&["secrets", &name.value])
        {
            let message = format!("`{table}.{key}` is for secrets with `{source}`");
            checker.add(&span, message, "leave it out");
        }
    }
    let file = raw.file.and_then(|written| checker.check_path(&format!("{table}.file"), &written));
    let env = raw.env.and_then(|written| check_variable(checker, &format!("{table}.env"), &written));
    let exec = raw.exec.and_then(|written| checker.check_command(&format!("{table}.exec"), written));
    let kv = raw.kv.and_then(|written| vault::check_vault_path(checker, &format!("{table}.kv"), &written));
    let refresh = checker.check_duration(&format!("{table}.refresh"), raw.refresh, "5m", "1s"..="7d");
    let vault_path =
        raw.vault.and_then(|written| vault::check_vault_path(checker, &format!("{table}.vault"), &written));
    let write = raw.write.map(|written| check_parameters(checker, &format!("{table}.write"), written.value));
    let public = check_public(checker, &table, raw.public.unwrap_or_default());
    let short = match raw.short {
        Some(RawShort::Allow) => ShortValues::Allow,
        Some(RawShort::Refuse) | None => ShortValues::Refuse,
    };
    let format = match raw.format {
        Some(Spanned { value: RawFormat::Expiring, .. }) => ExecFormat::Expiring,
        Some(Spanned { value: RawFormat::Plain, .. }) | None => ExecFormat::Plain,
    };
    let exec = exec.map(|command| Origin::Exec { command, format });
    let host_origin = file.map(Origin::File).or(env.map(Origin::Env)).or(exec);
    let vault_origin = kv
        .map(|path| VaultOrigin::Kv { path, refresh })
        .or_else(|| vault_path.map(|path| VaultOrigin::Generated { path, write }));
    Some((host_origin.or(vault_origin.map(Origin::Vault))?, public, short))
}

/// Checks `write`, the parameters for a Vault path. They are sent as JSON, which has no dates and no infinite numbers.
fn check_parameters(
    checker: &mut Checker<'_, '_>,
    key: &str,
    written: BTreeMap<String, Spanned<serde_json::Value>>,
) -> BTreeMap<String, serde_json::Value> {
    for (name, Spanned { value, span }) in &written {
        if !is_plain_json(value) {
            let message = format!("`{key}.{}` holds a value that JSON does not have", dotted(&[name]));
            checker.add(span, message, "write a date, or a number that is not finite, as a string");
        }
    }
    written.into_iter().map(|(name, Spanned { value, .. })| (name, value)).collect()
}

fn check_single_source(
    checker: &mut Checker<'_, '_>,
    table: &str,
    name: &Spanned<String>,
    sources: &BTreeMap<&str, Span>,
) {
    match sources.len() {
        0 if !checker.removed.affects(&["secrets", &name.value]) => checker.add(
            &name.span,
            format!("`{table}` has no source"),
            "set one of `file`, `env`, `exec`, `kv` and `vault`",
        ),
        0 | 1 => {}
        _ => {
            let listed: Vec<String> = sources.keys().map(|key| format!("`{key}`")).collect();
            let message = format!("`{table}` has {} sources: {}", listed.len(), listed.join(", "));
            checker.add(&name.span, message, "keep one of them");
        }
    }
}

fn check_public(checker: &mut Checker<'_, '_>, table: &str, written: Vec<Spanned<String>>) -> Vec<String> {
    for field in &written {
        if !is_field_name(&field.value) {
            let hint = "use letters, digits, `-`, `_` and `.`";
            checker.add(&field.span, format!("`{table}.public` holds an invalid field name"), hint);
        }
    }
    written.into_iter().map(|field| field.value).collect()
}

/// Checks the name of an environment variable.
pub(super) fn check_variable(
    checker: &mut Checker<'_, '_>,
    key: &str,
    written: &Spanned<String>,
) -> Option<String> {
    let name = &written.value;
    if name.is_empty() || name.contains(['=', '\0']) {
        let hint = "it has at least one character, and no `=`";
        checker.add(&written.span, format!("`{key}` is not the name of an environment variable"), hint);
        return None;
    }
    Some(name.clone())
}

/// The TOML reader turns dates into tables with a private key, and infinite numbers and NaN into `null`.
fn is_plain_json(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Array(elements) => elements.iter().all(is_plain_json),
        serde_json::Value::Null => false,
        serde_json::Value::Object(entries) => {
            entries.iter().all(|(key, value)| !key.starts_with("$__toml_private") && is_plain_json(value))
        }
        _ => true,
    }
}
