//! Checks `vault.auth`: each login method must have all keys that it needs and no key that it does not use.

use std::collections::BTreeMap;

use cofferdam_secrets::VaultPath;
use cofferdam_vault::{AuthSettings, SecretIdForm};

use super::Checker;
use super::vault::{MAX_NAME_BYTES, check_vault_path};
use crate::config::raw::{RawVaultAuth, RawVaultMethod};
use crate::config::spanned::{Span, Spanned};

pub(super) fn check_auth(checker: &mut Checker<'_, '_>, raw: Spanned<RawVaultAuth>) -> Option<AuthSettings> {
    let Spanned { value: raw, span } = raw;
    let Some(Spanned { value: method, .. }) = raw.method else {
        if !checker.removed.affects(&["vault", "auth"]) {
            let hint =
                "set `method` to one of `approle`, `cert`, `jwt`, `kubernetes`, `token-file` and `userpass`";
            checker.add(&span, "`vault.auth` has no `method`", hint);
        }
        return None;
    };
    let wrapped = raw.secret_id_wrapped;
    let texts = [
        ("mount", raw.mount),
        ("path", raw.path),
        ("role-id-file", raw.role_id_file),
        ("secret-id-file", raw.secret_id_file),
        ("role", raw.role),
        ("jwt-file", raw.jwt_file),
        ("cert-file", raw.cert_file),
        ("key-file", raw.key_file),
        ("username", raw.username),
        ("password-file", raw.password_file),
    ];
    let texts: BTreeMap<&str, Spanned<String>> =
        texts.into_iter().filter_map(|(key, written)| Some((key, written?))).collect();
    let spans = texts.iter().map(|(key, written)| (*key, &written.span));
    let spans = spans.chain(wrapped.as_ref().map(|wrapped| ("secret-id-wrapped", &wrapped.span)));
    let delivery = match wrapped {
        Some(Spanned { value: true, .. }) => SecretIdDelivery::Wrapped,
        Some(Spanned { value: false, .. }) | None => SecretIdDelivery::Plain,
    };
    check_method_keys(checker, method, delivery, &span, &spans.collect());
    let key = |name: &str| format!("vault.auth.{name}");
    let mut file = |name: &str| checker.check_path(&key(name), texts.get(name)?);
    let (path, role_id_file, secret_id_file) = (file("path"), file("role-id-file"), file("secret-id-file"));
    let (jwt_file, cert_file, key_file) = (file("jwt-file"), file("cert-file"), file("key-file"));
    let password_file = file("password-file");
    let mut name = |name: &str| check_role(checker, &key(name), texts.get(name)?);
    let (role, username) = (name("role"), name("username"));
    let mount = match texts.get("mount") {
        Some(written) => check_mount(checker, written),
        None => method.name().parse().ok(),
    };
    Some(match method {
        RawVaultMethod::Approle => AuthSettings::AppRole {
            mount: mount?,
            role_id_file: role_id_file?,
            secret_id_file: secret_id_file?,
            secret_id: match delivery {
                SecretIdDelivery::Plain => SecretIdForm::Plain,
                SecretIdDelivery::Wrapped => SecretIdForm::Wrapped { role: role? },
            },
        },
        RawVaultMethod::Cert => {
            AuthSettings::Cert { mount: mount?, cert_file: cert_file?, key_file: key_file?, role: role? }
        }
        RawVaultMethod::Jwt => AuthSettings::Jwt { mount: mount?, role: role?, jwt_file: jwt_file? },
        RawVaultMethod::Kubernetes => {
            AuthSettings::Kubernetes { mount: mount?, role: role?, jwt_file: jwt_file? }
        }
        RawVaultMethod::TokenFile => AuthSettings::TokenFile { path: path? },
        RawVaultMethod::Userpass => {
            AuthSettings::Userpass { mount: mount?, username: username?, password_file: password_file? }
        }
    })
}

/// Reports missing keys of the method, and keys that it does not use.
fn check_method_keys(
    checker: &mut Checker<'_, '_>,
    method: RawVaultMethod,
    delivery: SecretIdDelivery,
    span: &Span,
    written: &BTreeMap<&str, &Span>,
) {
    let quoted = |keys: &mut dyn Iterator<Item = &&str>| {
        keys.map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
    };
    let (name, required, optional) = (method.name(), method.required_keys(delivery), method.optional_keys());
    for key in required.iter().filter(|key| !written.contains_key(**key)) {
        if !checker.removed.affects(&["vault", "auth"]) {
            let hint = format!("the method `{name}` needs {}", quoted(&mut required.iter()));
            checker.add(span, format!("`vault.auth` has no `{key}`"), hint);
        }
    }
    for (key, span) in written {
        if method == RawVaultMethod::Approle && delivery == SecretIdDelivery::Plain && *key == "role" {
            let hint = "leave it out, or set `secret-id-wrapped = true`: the role's name is needed to verify which role created the wrapping token";
            checker.add(span, "`vault.auth.role` is for a wrapped secret-id only", hint);
        } else if !required.contains(key) && !optional.contains(key) {
            let accepted = quoted(&mut required.iter().chain(optional));
            let hint = format!("leave it out: the method takes {accepted}");
            checker.add(span, format!("`vault.auth.{key}` is not for the method `{name}`"), hint);
        }
    }
}

fn check_mount(checker: &mut Checker<'_, '_>, written: &Spanned<String>) -> Option<VaultPath> {
    let path = check_vault_path(checker, "vault.auth.mount", written)?;
    if path.as_str().starts_with("auth/") {
        let hint = "leave `auth/` out: every method is below it";
        checker.add(&written.span, "`vault.auth.mount` begins with `auth/`", hint);
        return None;
    }
    Some(path)
}

/// Checks the name of a role or a user: Vault allows one path segment.
pub(super) fn check_role(
    checker: &mut Checker<'_, '_>,
    key: &str,
    written: &Spanned<String>,
) -> Option<String> {
    let is_word_character = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let is_allowed = |character: char| is_word_character(character) || matches!(character, '-' | '.');
    let name = &written.value;
    let is_valid = name.len() <= MAX_NAME_BYTES
        && name.starts_with(is_word_character)
        && name.ends_with(is_word_character)
        && name.chars().all(is_allowed);
    if !is_valid {
        let hint = format!(
            "use 1 to {MAX_NAME_BYTES} letters, digits, `-`, `_` and `.`, with a letter, digit or `_` at both ends"
        );
        checker.add(&written.span, format!("`{key}` is not a name that Vault allows"), hint);
        return None;
    }
    Some(name.clone())
}

/// How a secret-id is delivered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SecretIdDelivery {
    Plain,
    Wrapped,
}

impl RawVaultMethod {
    /// The value of `method`, which is also Vault's default mount.
    fn name(self) -> &'static str {
        match self {
            Self::Approle => "approle",
            Self::Cert => "cert",
            Self::Jwt => "jwt",
            Self::Kubernetes => "kubernetes",
            Self::TokenFile => "token-file",
            Self::Userpass => "userpass",
        }
    }

    fn required_keys(self, secret_id: SecretIdDelivery) -> &'static [&'static str] {
        match self {
            Self::Approle => match secret_id {
                SecretIdDelivery::Plain => &["role-id-file", "secret-id-file"],
                SecretIdDelivery::Wrapped => &["role-id-file", "secret-id-file", "role"],
            },
            Self::Cert => &["cert-file", "key-file", "role"],
            Self::Jwt | Self::Kubernetes => &["role", "jwt-file"],
            Self::TokenFile => &["path"],
            Self::Userpass => &["username", "password-file"],
        }
    }

    fn optional_keys(self) -> &'static [&'static str] {
        match self {
            Self::Approle => &["mount", "secret-id-wrapped"],
            Self::Cert | Self::Jwt | Self::Kubernetes | Self::Userpass => &["mount"],
            // There is no login: the token is in the file.
            Self::TokenFile => &[],
        }
    }
}
