//! The set-up as a script of `bao` commands.

use std::path::Path;

use cofferdam_base::text::shell_quoted;
use serde_json::Value;

use crate::credentials::{CredentialFiles, SecretIdDelivery, WRAP_TTL};
use crate::objects::{Setting, VaultObject};
use crate::setup_text::SetupText;

/// A script for a POSIX shell. It can be run again; then it makes another secret-id.
pub fn bao_text(setup: &SetupText<'_>) -> String {
    let mut script = format!(
        "# Printed by `cofferdam vault setup --print bao`. With HashiCorp's Vault write `vault` and VAULT_… instead.\n\
         set -eu\nexport BAO_ADDR={}\n",
        quoted(setup.address)
    );
    if let Some(namespace) = setup.namespace {
        script.push_str(&format!("export BAO_NAMESPACE={}\n", quoted(namespace)));
    }
    for object in setup.objects {
        script.push_str(&command(object));
    }
    if let Some(files) = &setup.files {
        script.push_str(&credential_commands(files));
    }
    script + &setup.remaining_comments()
}

fn command(object: &VaultObject) -> String {
    let path = object.id().api_path().unwrap_or_default();
    match object {
        VaultObject::KvEngine { path: mount } => format!(
            "# If `{mount}/` exists already with version 1, leave `data/` out of its paths in the policies below.\n\
             bao read {} >/dev/null 2>&1 || bao secrets enable -path={} -version=2 kv\n",
            quoted(&format!("{path}/tune")),
            quoted(mount)
        ),
        VaultObject::AuthMethod { mount, method } => format!(
            "bao read {} >/dev/null 2>&1 || bao auth enable -path={} {method}\n",
            quoted(&format!("{path}/tune")),
            quoted(mount)
        ),
        VaultObject::Policy { name, text } => {
            format!("bao policy write {} - <<'END'\n{}\nEND\n", quoted(name), text.trim_end())
        }
        VaultObject::TokenRole(role) => write_command(&path, &role.settings()),
        VaultObject::LoginRole(role) => write_command(&path, &role.settings()),
    }
}

fn write_command(path: &str, settings: &[Setting]) -> String {
    let arguments: String = settings
        .iter()
        .map(|Setting { name, value }| format!(" \\\n  {}", quoted(&format!("{name}={}", argument(value)))))
        .collect();
    format!("bao write {}{arguments}\n", quoted(path))
}

fn credential_commands(files: &CredentialFiles<'_>) -> String {
    let path = files.role_path();
    let secret_id = match files.delivery {
        SecretIdDelivery::Plain => "-field=secret_id".to_owned(),
        SecretIdDelivery::Wrapped => format!("-wrap-ttl={}s -field=wrapping_token", WRAP_TTL.as_secs()),
    };
    format!(
        "umask 077\nbao read -field=role_id {} >{}\nbao write -f {secret_id} {} >{}\n",
        quoted(&format!("{path}/role-id")),
        quoted_path(files.role_id_file),
        quoted(&format!("{path}/secret-id")),
        quoted_path(files.secret_id_file)
    )
}

/// A list is written with commas.
fn argument(value: &Value) -> String {
    match value {
        Value::Array(values) => values.iter().map(argument).collect::<Vec<_>>().join(","),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn quoted_path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

fn quoted(text: &str) -> String {
    shell_quoted(text).into_owned()
}
