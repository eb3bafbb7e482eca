//! `[secrets.*]`: where credentials come from.

use std::collections::BTreeMap;
use std::sync::Arc;

use relay_proto::name::Name;

use super::{Checker, present, span_of};
use crate::config::at::{At, Span};
use crate::config::raw::{RawSecret, RawShort};
use crate::config::{Origin, SecretSource, ShortValues};
use crate::inject::is_field_name;

impl Checker<'_, '_> {
    pub(super) fn secrets(
        &mut self,
        raw: BTreeMap<At<String>, RawSecret>,
    ) -> BTreeMap<Name, Arc<SecretSource>> {
        let checked = raw.into_iter().filter_map(|(written, secret)| {
            let name = self.name("a secret", &written);
            let source = self.secret(&written, secret);
            let (name, (origin, public, short)) = name.zip(source)?;
            Some((name.clone(), Arc::new(SecretSource { name, origin, public, short })))
        });
        checked.collect()
    }

    fn secret(&mut self, name: &At<String>, raw: RawSecret) -> Option<(Origin, Vec<String>, ShortValues)> {
        let table = format!("secrets.{}", name.value);
        let sources = present([
            ("env", span_of(&raw.env)),
            ("exec", span_of(&raw.exec)),
            ("file", span_of(&raw.file)),
            ("kv", raw.kv.as_ref().map(|later| later.span.clone())),
            ("vault", raw.vault.as_ref().map(|later| later.span.clone())),
        ]);
        self.one_source(&table, name, &sources);
        self.later(&format!("{table}.vault"), raw.vault);
        self.later(&format!("{table}.kv"), raw.kv);
        self.later(&format!("{table}.write"), raw.write);
        self.later(&format!("{table}.refresh"), raw.refresh);
        let file = raw.file.and_then(|written| self.path(&format!("{table}.file"), &written));
        let env = raw.env.and_then(|written| self.variable(&format!("{table}.env"), &written));
        let exec = raw.exec.and_then(|written| self.arguments(&format!("{table}.exec"), written));
        let public = self.public(&table, raw.public.unwrap_or_default());
        let short = match raw.short {
            Some(RawShort::Allow) => ShortValues::Allow,
            Some(RawShort::Refuse) | None => ShortValues::Refuse,
        };
        let origin = file.map(Origin::File).or(env.map(Origin::Env)).or(exec.map(Origin::Exec))?;
        Some((origin, public, short))
    }

    fn one_source(&mut self, table: &str, name: &At<String>, sources: &BTreeMap<&str, Span>) {
        match sources.len() {
            0 if !self.damage.touches(&["secrets", &name.value]) => self.add(
                &name.span,
                format!("`{table}` has no source"),
                "set one of `file`, `env` and `exec`",
            ),
            0 | 1 => {}
            _ => {
                let listed: Vec<String> = sources.keys().map(|key| format!("`{key}`")).collect();
                let message = format!("`{table}` has {} sources: {}", listed.len(), listed.join(", "));
                self.add(&name.span, message, "keep one of them");
            }
        }
    }

    fn public(&mut self, table: &str, written: Vec<At<String>>) -> Vec<String> {
        for field in &written {
            if !is_field_name(&field.value) {
                let hint = "use letters, digits, `-`, `_` and `.`";
                self.add(&field.span, format!("`{table}.public` holds what is no name of a field"), hint);
            }
        }
        written.into_iter().map(|field| field.value).collect()
    }

    /// The name of an environment variable.
    pub(super) fn variable(&mut self, key: &str, written: &At<String>) -> Option<String> {
        let name = &written.value;
        if name.is_empty() || name.contains(['=', '\0']) {
            let hint = "it has at least one character, and no `=`";
            self.add(&written.span, format!("`{key}` is not the name of an environment variable"), hint);
            return None;
        }
        Some(name.clone())
    }
}
