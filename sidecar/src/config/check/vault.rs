//! Checks `[vault]`, and the Vault paths and policies of other sections.

use std::path::PathBuf;

use cofferdam_secrets::VaultPath;
use cofferdam_vault::Settings;
use http::Uri;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::http_server::is_loopback;
use super::{Checker, span_of, vault_auth};
use crate::config::raw::{RawVault, RawVaultAuth, RawVaultMethod};
use crate::config::spanned::Spanned;

const ADDRESS_HINT: &str = "write one such as `https://vault.example.com:8200`";

/// The longest name of a role or a policy; a longer one is probably a mistake.
pub(super) const MAX_NAME_BYTES: usize = 128;

pub(super) fn check_vault(checker: &mut Checker<'_, '_>, raw: Spanned<RawVault>) -> Option<Settings> {
    let Spanned { value: raw, span } = raw;
    let has_removed = checker.removed.affects(&["vault"]);
    if raw.address.is_none() && !has_removed {
        checker.add(&span, "`vault` has no `address`", ADDRESS_HINT);
    }
    if raw.auth.is_none() && !has_removed {
        let hint = "set `auth`, as in `auth = { method = \"token-file\", path = \"/run/vault-token\" }`";
        checker.add(&span, "`vault` does not say how to log in", hint);
    }
    let address = raw.address.and_then(|written| check_address(checker, &written));
    if address.as_ref().is_some_and(|address| address.scheme_str() == Some("http")) {
        let by_certificate = |auth: &Spanned<RawVaultAuth>| {
            auth.value.method.as_ref().filter(|method| method.value == RawVaultMethod::Cert).cloned()
        };
        let method = span_of(&raw.auth.as_ref().and_then(by_certificate));
        for (key, span) in [("vault.ca-file", span_of(&raw.ca_file)), ("vault.auth.method", method)] {
            if let Some(span) = span {
                let message = format!("`{key}` needs TLS, and `vault.address` is `http://`");
                checker.add(&span, message, "use `https://`, or leave it out");
            }
        }
    }
    let namespace = raw.namespace.and_then(|written| check_namespace(checker, &written));
    let ca_file = raw.ca_file.and_then(|written| check_ca_file(checker, &written));
    let token_role =
        raw.token_role.and_then(|written| vault_auth::check_role(checker, "vault.token-role", &written));
    let auth = raw.auth.and_then(|written| vault_auth::check_auth(checker, written));
    Some(Settings { address: address?, namespace, ca_file, auth: auth?, token_role })
}

/// Checks the Vault path of `key`.
pub(super) fn check_vault_path(
    checker: &mut Checker<'_, '_>,
    key: &str,
    written: &Spanned<String>,
) -> Option<VaultPath> {
    match written.value.parse::<VaultPath>() {
        Ok(path) => Some(path),
        Err(reason) => {
            checker.add(&written.span, format!("`{key}` {reason}"), reason.hint());
            None
        }
    }
}

/// Checks names of policies. They must be lower case, as Vault stores them: it treats `Root` as `root`.
pub(super) fn check_policies(
    checker: &mut Checker<'_, '_>,
    key: &str,
    written: Vec<Spanned<String>>,
) -> Vec<String> {
    let mut policies: Vec<String> = Vec::new();
    for Spanned { value: name, span } in written {
        let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/');
        if !(1..=MAX_NAME_BYTES).contains(&name.len()) || !name.bytes().all(is_allowed) {
            let hint = format!("use 1 to {MAX_NAME_BYTES} of a-z, 0-9, `-`, `_`, `.` and `/`");
            checker.add(&span, format!("`{key}` holds an invalid policy name"), hint);
        } else if name == "root" {
            let hint = "name a policy that allows what the grant's secrets need, and no more";
            checker.add(&span, format!("`{key}` holds `root`, which allows everything"), hint);
        } else if policies.contains(&name) {
            checker.add(&span, format!("`{key}` names `{name}` twice"), "keep one of them");
        } else {
            policies.push(name);
        }
    }
    policies
}

fn check_address(checker: &mut Checker<'_, '_>, written: &Spanned<String>) -> Option<Uri> {
    let text = &written.value;
    let mut refuse = |message: &str, hint: &str| {
        checker.add(&written.span, format!("`vault.address` {message}"), hint);
        None
    };
    let Ok(address) = text.parse::<Uri>() else {
        return refuse("is not a URL", ADDRESS_HINT);
    };
    if !matches!(address.scheme_str(), Some("http" | "https")) {
        return refuse("is neither `https://` nor `http://`", ADDRESS_HINT);
    }
    let authority = address.authority().map_or("", |authority| authority.as_str());
    if authority.contains('@') {
        return refuse("holds a user or a password", "leave it out: `vault.auth` says how to log in");
    }
    let host = address.host().unwrap_or_default();
    let port = authority.strip_prefix(host).unwrap_or_default();
    if host.is_empty() || (!port.is_empty() && address.port_u16().is_none_or(|port| port == 0)) {
        return refuse("is not a URL", ADDRESS_HINT);
    }
    // The URL parser drops fragments, so the text itself is searched.
    if address.path() != "/" || address.query().is_some() || text.contains('#') {
        let hint = "leave out what follows the host and the port; `vault.namespace` names a namespace";
        return refuse("has a path, a query or a fragment", hint);
    }
    if address.scheme_str() == Some("http") && !is_loopback(&address) {
        let hint = "use an `https://` URL; `http://` is for loopback only";
        return refuse("would send tokens across the network unencrypted", hint);
    }
    Some(address)
}

fn check_namespace(checker: &mut Checker<'_, '_>, written: &Spanned<String>) -> Option<VaultPath> {
    let path = check_vault_path(checker, "vault.namespace", written)?;
    if !path.as_str().is_ascii() {
        let hint = "use ASCII only";
        checker.add(&written.span, "`vault.namespace` cannot be sent in a header", hint);
        return None;
    }
    Some(path)
}

/// Checks the file's content too: otherwise a wrong file would be noticed only at the first connection.
fn check_ca_file(checker: &mut Checker<'_, '_>, written: &Spanned<String>) -> Option<PathBuf> {
    let path = checker.check_path("vault.ca-file", written)?;
    let bytes = match checker.context.environment.read(&path) {
        Ok(bytes) => bytes,
        Err(error) => {
            let hint = "name a file that the user who runs the sidecar can read";
            checker.add(&written.span, format!("`vault.ca-file` cannot be read: {error}"), hint);
            return None;
        }
    };
    let hint = "write the CA's certificate there, which begins with `-----BEGIN CERTIFICATE-----`";
    let mut refuse = |message: &str| {
        checker.add(&written.span, format!("`vault.ca-file` {message}"), hint);
        None
    };
    let Ok(certificates) = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>() else {
        return refuse("is not PEM");
    };
    if certificates.is_empty() {
        return refuse("holds no certificate in PEM");
    }
    let mut trusted = RootCertStore::empty();
    if certificates.into_iter().any(|certificate| trusted.add(certificate).is_err()) {
        return refuse("holds a certificate that cannot be read");
    }
    Some(path)
}
