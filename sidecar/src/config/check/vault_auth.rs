//! `vault.auth`: how the sidecar logs in. Each method has the keys that it needs, and none that would do nothing.

use std::collections::BTreeMap;

use super::Checker;
use super::vault::{MAX_NAME_BYTES, check_vault_path};
use crate::config::at::{At, Span};
use crate::config::raw::{RawVaultAuth, RawVaultMethod};
use crate::secrets::VaultPath;
use crate::vault::{AuthSettings, SecretIdForm};

pub(super) fn check_auth(checker: &mut Checker<'_, '_>, raw: At<RawVaultAuth>) -> Option<AuthSettings> {
    let At { value: raw, span } = raw;
    let Some(At { value: method, .. }) = raw.method else {
        if !checker.damage.touches(&["vault", "auth"]) {
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
    let texts: BTreeMap<&str, At<String>> =
        texts.into_iter().filter_map(|(key, written)| Some((key, written?))).collect();
    let places = texts.iter().map(|(key, written)| (*key, &written.span));
    let places = places.chain(wrapped.as_ref().map(|wrapped| ("secret-id-wrapped", &wrapped.span)));
    let form = match wrapped {
        Some(At { value: true, .. }) => Form::Wrapped,
        Some(At { value: false, .. }) | None => Form::Plain,
    };
    check_keys_of_method(checker, method, form, &span, &places.collect());
    let key = |name: &str| format!("vault.auth.{name}");
    let mut file = |name: &str| checker.path(&key(name), texts.get(name)?);
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
            secret_id: match form {
                Form::Plain => SecretIdForm::Plain,
                Form::Wrapped => SecretIdForm::Wrapped { role: role? },
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

/// A method has the keys that it needs, and none that would do nothing.
fn check_keys_of_method(
    checker: &mut Checker<'_, '_>,
    method: RawVaultMethod,
    form: Form,
    span: &Span,
    written: &BTreeMap<&str, &Span>,
) {
    let quoted = |keys: &mut dyn Iterator<Item = &&str>| {
        keys.map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
    };
    let (name, needed, optional) = (method.name(), method.needed(form), method.optional());
    for key in needed.iter().filter(|key| !written.contains_key(**key)) {
        if !checker.damage.touches(&["vault", "auth"]) {
            let hint = format!("the method `{name}` needs {}", quoted(&mut needed.iter()));
            checker.add(span, format!("`vault.auth` has no `{key}`"), hint);
        }
    }
    for (key, span) in written {
        if method == RawVaultMethod::Approle && form == Form::Plain && *key == "role" {
            let hint = "leave it out, or set `secret-id-wrapped = true`: the role's name is needed to verify where the wrap was made";
            checker.add(span, "`vault.auth.role` is for a wrapped secret-id only", hint);
        } else if !needed.contains(key) && !optional.contains(key) {
            let taken = quoted(&mut needed.iter().chain(optional));
            let hint = format!("leave it out: the method takes {taken}");
            checker.add(span, format!("`vault.auth.{key}` is not for the method `{name}`"), hint);
        }
    }
}

fn check_mount(checker: &mut Checker<'_, '_>, written: &At<String>) -> Option<VaultPath> {
    let path = check_vault_path(checker, "vault.auth.mount", written)?;
    if path.as_str().starts_with("auth/") {
        let hint = "leave `auth/` out: every method is below it";
        checker.add(&written.span, "`vault.auth.mount` begins with `auth/`", hint);
        return None;
    }
    Some(path)
}

/// The name of a role or a user, as Vault allows them: one part of a path.
pub(super) fn check_role(checker: &mut Checker<'_, '_>, key: &str, written: &At<String>) -> Option<String> {
    let word = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let inner = |character: char| word(character) || matches!(character, '-' | '.');
    let name = &written.value;
    let plain = name.len() <= MAX_NAME_BYTES
        && name.starts_with(word)
        && name.ends_with(word)
        && name.chars().all(inner);
    if !plain {
        let hint = format!(
            "use 1 to {MAX_NAME_BYTES} letters, digits, `-`, `_` and `.`, with a letter or digit at both ends"
        );
        checker.add(&written.span, format!("`{key}` is not a name that Vault allows"), hint);
        return None;
    }
    Some(name.clone())
}

/// How a secret-id is delivered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Form {
    Plain,
    Wrapped,
}

impl RawVaultMethod {
    /// As it is written, and Vault's default mount.
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

    fn needed(self, secret_id: Form) -> &'static [&'static str] {
        match self {
            Self::Approle => match secret_id {
                Form::Plain => &["role-id-file", "secret-id-file"],
                Form::Wrapped => &["role-id-file", "secret-id-file", "role"],
            },
            Self::Cert => &["cert-file", "key-file", "role"],
            Self::Jwt | Self::Kubernetes => &["role", "jwt-file"],
            Self::TokenFile => &["path"],
            Self::Userpass => &["username", "password-file"],
        }
    }

    fn optional(self) -> &'static [&'static str] {
        match self {
            Self::Approle => &["mount", "secret-id-wrapped"],
            Self::Cert | Self::Jwt | Self::Kubernetes | Self::Userpass => &["mount"],
            // No login: the token is in the file.
            Self::TokenFile => &[],
        }
    }
}
