//! Checks `[platforms.*]` and `[attach.*]`: platforms that run sandboxes, and the sandboxes that the sidecar attaches by
//! itself.
//!
//! What must stay true: an API key is never written in the file and never crosses a network unencrypted; two tables `[attach.*]`
//! do not attach the same sandbox, also through different platforms' tables.

use std::collections::BTreeMap;
use std::sync::Arc;

use cofferdam_platforms::{KeepAwake, PlatformKind, PlatformSettings, SandboxId, WhenSuspended};
use cofferdam_secrets::{Encoding, Origin, SecretSpec, Template, TemplatePart, VaultOrigin};
use http::Uri;
use relay_proto::name::Name;

use super::http_server::is_loopback;
use super::{Checker, Section, servers, span_of, vault};
use crate::config::raw::{RawAttachment, RawPlatform, RawPlatformKind};
use crate::config::spanned::Spanned;
use crate::config::{Attachment, Platform, Platforms, is_same_platform};

const KEY_HINT: &str = "name a field of a secret, as in `api-key = \"{e2b.value}\"`";
const URL_HINT: &str = "write one such as `https://api.example.com`";

pub(super) fn check_platforms(
    checker: &mut Checker<'_, '_>,
    raw: BTreeMap<Spanned<String>, RawPlatform>,
    secrets: &BTreeMap<Name, Arc<SecretSpec>>,
) -> Platforms {
    let checked = raw.into_iter().filter_map(|(written, raw)| {
        let name = checker.parse_name("a platform", &written);
        let platform = check_platform(checker, &written, name, raw, secrets)?;
        Some((platform.name.clone(), Arc::new(platform)))
    });
    checked.collect()
}

fn check_platform(
    checker: &mut Checker<'_, '_>,
    written: &Spanned<String>,
    name: Option<Name>,
    raw: RawPlatform,
    secrets: &BTreeMap<Name, Arc<SecretSpec>>,
) -> Option<Platform> {
    let table = format!("platforms.{}", written.value);
    let missing_key_may_be_reported = checker.missing_key_may_be_reported(&["platforms", &written.value]);
    let kind = match (raw.kind.map(|kind| kind.value), written.value.as_str()) {
        (Some(RawPlatformKind::Daytona), _) | (None, "daytona") => Some(PlatformKind::Daytona),
        (Some(RawPlatformKind::E2b), _) | (None, "e2b") => Some(PlatformKind::E2b),
        (None, _) if missing_key_may_be_reported => None,
        (None, _) => {
            let hint = "set `kind = \"e2b\"` or `kind = \"daytona\"`";
            checker.add(&written.span, format!("`{table}` does not say which platform it is"), hint);
            None
        }
    };
    if raw.api_key.is_none() && !missing_key_may_be_reported {
        checker.add(&written.span, format!("`{table}` has no `api-key`"), KEY_HINT);
    }
    let key_span = span_of(&raw.api_key);
    let api_key = raw
        .api_key
        .and_then(|written| check_api_key(checker, &format!("{table}.api-key"), &written, secrets));
    let in_vault = api_key.as_ref().is_some_and(|key| {
        let is_in_vault = |name: &Name| secrets.get(name).is_some_and(|secret| secret.origin.is_in_vault());
        key.fields().any(|(name, _)| is_in_vault(name))
    });
    let (policies, policies_span) = match raw.vault_policies {
        Some(Spanned { value, span }) => (value, Some(span)),
        None => (Vec::new(), None),
    };
    let policies_key = format!("{table}.vault-policies");
    match (in_vault, policies.is_empty(), policies_span) {
        (true, true, _) if !missing_key_may_be_reported => {
            let message = format!("`{table}` has no `vault-policies`, and its `api-key` is in Vault");
            let hint =
                "name the policies that allow to read it, as in `vault-policies = [\"platform-keys\"]`";
            checker.add(key_span.as_ref().unwrap_or(&written.span), message, hint);
        }
        (false, _, Some(span)) if api_key.is_some() => {
            let message = format!("`{policies_key}` has no effect: the `api-key` is not in Vault");
            checker.add(&span, message, "leave it out, or take the key from a secret with `kv`");
        }
        _ => {}
    }
    let vault_policies = vault::check_policies(checker, &policies_key, policies);
    let grants = raw.grants.map(|written| check_grants(checker, &format!("{table}.grants"), written));
    let api_url = raw.api_url.map(|written| check_url(checker, &format!("{table}.api-url"), &written));
    let sandbox_url =
        raw.sandbox_url.map(|written| check_url(checker, &format!("{table}.sandbox-url"), &written));
    let shim = raw.shim.and_then(|written| checker.check_path(&format!("{table}.shim"), &written));
    let settings =
        PlatformSettings { kind: kind?, api_url: api_url.flatten(), sandbox_url: sandbox_url.flatten() };
    Some(Platform { name: name?, settings, api_key: api_key?, vault_policies, grants, shim })
}

fn check_grants(checker: &mut Checker<'_, '_>, key: &str, written: Vec<Spanned<String>>) -> Vec<Name> {
    let mut grants = Vec::new();
    for Spanned { value, span } in written {
        let Some(grant) = checker.check_reference(key, Section::Grants, &value, &span) else { continue };
        match grants.contains(&grant) {
            true => checker.add(&span, format!("`{key}` names `{grant}` twice"), "keep one of them"),
            false => grants.push(grant),
        }
    }
    grants
}

/// The key is one field of a secret and nothing else, so it cannot be written in the file itself.
fn check_api_key(
    checker: &mut Checker<'_, '_>,
    key: &str,
    written: &Spanned<String>,
    secrets: &BTreeMap<Name, Arc<SecretSpec>>,
) -> Option<Template> {
    let template = servers::check_template(checker, key, written, &[])?;
    let [TemplatePart::Field { secret, encoding: Encoding::Plain, .. }] = template.parts.as_slice() else {
        checker.add(&written.span, format!("`{key}` is not exactly one field of a secret"), KEY_HINT);
        return None;
    };
    if let Some(Origin::Vault(VaultOrigin::Generated { .. })) =
        secrets.get(secret).map(|secret| &secret.origin)
    {
        let message = format!(
            "`{key}` uses the secret `{secret}`, which Vault creates anew at each read and revokes with its reader"
        );
        let hint = "an API key outlives what reads it: store it in a KV engine and name it with `kv`, or take it from `file`, `env` or `exec`";
        checker.add(&written.span, message, hint);
        return None;
    }
    Some(template)
}

fn check_url(checker: &mut Checker<'_, '_>, key: &str, written: &Spanned<String>) -> Option<Uri> {
    let text = &written.value;
    let mut refuse = |message: &str, hint: &str| {
        checker.add(&written.span, format!("`{key}` {message}"), hint);
        None
    };
    let Ok(url) = text.parse::<Uri>() else { return refuse("is not a URL", URL_HINT) };
    if !matches!(url.scheme_str(), Some("http" | "https")) {
        return refuse("is neither `https://` nor `http://`", URL_HINT);
    }
    let authority = url.authority().map_or("", |authority| authority.as_str());
    if authority.contains('@') {
        return refuse("holds a user or a password", "leave it out: `api-key` is what the platform checks");
    }
    let host = url.host().unwrap_or_default();
    let port = authority.strip_prefix(host).unwrap_or_default();
    if host.is_empty() || (!port.is_empty() && url.port_u16().is_none_or(|port| port == 0)) {
        return refuse("is not a URL", URL_HINT);
    }
    // The URL parser drops fragments, so the text itself is searched.
    if url.query().is_some() || text.contains('#') {
        return refuse("has a query or a fragment", "leave out what begins with `?` or `#`");
    }
    if url.scheme_str() == Some("http") && !is_loopback(&url) {
        let hint = "use an `https://` URL; `http://` is for loopback only";
        return refuse("would send tokens across the network unencrypted", hint);
    }
    Some(url)
}

pub(super) fn check_attachments(
    checker: &mut Checker<'_, '_>,
    raw: BTreeMap<Spanned<String>, RawAttachment>,
    platforms: &Platforms,
) -> BTreeMap<Name, Attachment> {
    let mut checked: BTreeMap<Name, Attachment> = BTreeMap::new();
    for (written, raw) in raw {
        let name = checker.parse_name("an attached sandbox", &written);
        let Some((name, attachment)) = name.zip(check_attachment(checker, &written, raw, platforms)) else {
            continue;
        };
        let is_same = |other: &Attachment| {
            other.sandbox == attachment.sandbox
                && is_same_platform(platforms, &other.platform, &attachment.platform)
        };
        if let Some((other, _)) = checked.iter().find(|(_, other)| is_same(other)) {
            let message = format!("`attach.{name}` attaches the same sandbox as `attach.{other}`");
            checker.add(&written.span, message, "keep one of them");
        }
        checked.insert(name, attachment);
    }
    checked
}

fn check_attachment(
    checker: &mut Checker<'_, '_>,
    written: &Spanned<String>,
    raw: RawAttachment,
    platforms: &Platforms,
) -> Option<Attachment> {
    let table = format!("attach.{}", written.value);
    let mut required = |key: &str, value: Option<Spanned<String>>, hint: &str| {
        if value.is_none() && !checker.missing_key_may_be_reported(&["attach", &written.value]) {
            checker.add(&written.span, format!("`{table}` has no `{key}`"), hint);
        }
        value
    };
    let platform =
        required("platform", raw.platform, "name a table `[platforms.NAME]`, as in `platform = \"e2b\"`");
    let sandbox = required("sandbox", raw.sandbox, "set the sandbox's id on its platform");
    let grant = required("grant", raw.grant, "say what the sandbox may use, as in `grant = \"dev\"`");
    let platform = platform.and_then(|written| {
        checker.check_reference(
            &format!("{table}.platform"),
            Section::Platforms,
            &written.value,
            &written.span,
        )
    });
    let grant = grant.and_then(|written| {
        checker.check_reference(&format!("{table}.grant"), Section::Grants, &written.value, &written.span)
    });
    let sandbox = sandbox.and_then(|written| match written.value.parse::<SandboxId>() {
        Ok(id) => Some(id),
        Err(_) => {
            let hint = "copy the id from the platform: letters, digits, `-` and `_`";
            checker.add(&written.span, format!("`{table}.sandbox` is not the id of a sandbox"), hint);
            None
        }
    });
    if let (Some(name), Some(grant)) = (&platform, &grant)
        && platforms.get(name).is_some_and(|platform| !platform.permits(grant))
    {
        let message = format!("`{table}.grant` is `{grant}`, which `platforms.{name}.grants` does not name");
        checker.add(&written.span, message, "name the grant there, or use another grant");
    }
    let when_suspended = match raw.resume {
        Some(Spanned { value: true, .. }) => WhenSuspended::Resume,
        Some(Spanned { value: false, .. }) | None => WhenSuspended::Refuse,
    };
    let kind = platform.as_ref().and_then(|name| platforms.get(name)).map(|platform| platform.settings.kind);
    let keep_awake = match raw.keep_awake {
        Some(Spanned { value: true, span }) => {
            if kind == Some(PlatformKind::E2b) {
                let hint = "leave it out: E2B suspends a sandbox at its own timeout, whatever is attached";
                checker.add(&span, format!("`{table}.keep-awake` has no effect on E2B"), hint);
            }
            KeepAwake::Yes
        }
        Some(Spanned { value: false, .. }) | None => KeepAwake::No,
    };
    let harness = raw.harness.map(|harness| harness.value);
    Some(Attachment {
        platform: platform?,
        sandbox: sandbox?,
        grant: grant?,
        when_suspended,
        keep_awake,
        harness,
    })
}
