//! The set-up as a Terraform (OpenTofu) configuration for the provider `hashicorp/vault`.
//!
//! What must stay true: no secret-id is made by it, because Terraform would keep it in its state in plain text.

use cofferdam_base::text::shell_quoted;
use serde_json::Value;

use crate::credentials::SecretIdDelivery;
use crate::objects::{Binding, Setting, VaultObject};
use crate::setup_text::SetupText;

pub fn terraform_text(setup: &SetupText<'_>) -> String {
    let mut text = format!(
        "# Printed by `cofferdam vault setup --print terraform`.\n\
         terraform {{\n  required_providers {{\n    vault = {{\n      source = \"hashicorp/vault\"\n    }}\n  }}\n}}\n\n\
         provider \"vault\" {{\n  address = {}\n",
        quoted(setup.address)
    );
    if let Some(namespace) = setup.namespace {
        text.push_str(&format!("  namespace = {}\n", quoted(namespace)));
    }
    text.push_str("}\n");
    for object in setup.objects {
        text.push('\n');
        text.push_str(&resource(object, setup.objects));
    }
    if let Some(files) = &setup.files {
        let flags = match files.delivery {
            SecretIdDelivery::Plain => "-field=secret_id",
            SecretIdDelivery::Wrapped => "-wrap-ttl=10m -field=wrapping_token",
        };
        let path = files.role_path();
        text.push_str(&format!(
            "\n# Terraform would keep a secret-id in its state, so make the sidecar's files after `apply`, with `umask 077`:\n\
             #   bao read -field=role_id {} >{}\n#   bao write -f {flags} {} >{}\n",
            shell_quoted(&format!("{path}/role-id")),
            shell_quoted(&files.role_id_file.to_string_lossy()),
            shell_quoted(&format!("{path}/secret-id")),
            shell_quoted(&files.secret_id_file.to_string_lossy())
        ));
    }
    text + &setup.remaining_comments()
}

fn resource(object: &VaultObject, all: &[VaultObject]) -> String {
    match object {
        VaultObject::KvEngine { path } => block(
            "vault_mount",
            path,
            &[("path", quoted(path)), ("type", quoted("kv")), ("options", "{ version = \"2\" }".to_owned())],
        ),
        VaultObject::Policy { name, text } => {
            let text = escaped_template(text.trim_end());
            block("vault_policy", name, &[("name", quoted(name)), ("policy", format!("<<-END\n{text}\nEND"))])
        }
        VaultObject::AuthMethod { mount, method } => {
            block("vault_auth_backend", mount, &[("type", quoted(method)), ("path", quoted(mount))])
        }
        VaultObject::TokenRole(role) => {
            let mut attributes = vec![("role_name", quoted(&role.name))];
            attributes.extend(settings(&role.settings(), all));
            block("vault_token_auth_backend_role", &role.name, &attributes)
        }
        VaultObject::LoginRole(role) => {
            let kind = match role.binding {
                Binding::AppRole => "vault_approle_auth_backend_role",
                Binding::Jwt { .. } => "vault_jwt_auth_backend_role",
                Binding::Kubernetes { .. } => "vault_kubernetes_auth_backend_role",
            };
            let made_here = |object: &VaultObject| matches!(object, VaultObject::AuthMethod { mount, .. } if *mount == role.mount);
            let backend = match all.iter().any(made_here) {
                true => format!("vault_auth_backend.{}.path", identifier(&role.mount)),
                false => quoted(&role.mount),
            };
            let mut attributes = vec![("backend", backend), ("role_name", quoted(&role.name))];
            attributes.extend(settings(&role.settings(), all));
            block(kind, &role.name, &attributes)
        }
    }
}

fn settings(settings: &[Setting], all: &[VaultObject]) -> Vec<(&'static str, String)> {
    let is_empty = |value: &Value| value.as_str() == Some("");
    let present = settings.iter().filter(|setting| !is_empty(&setting.value));
    present.map(|Setting { name, value }| (*name, expression(value, all))).collect()
}

/// A value; the name of a policy that is made here becomes a reference to it.
fn expression(value: &Value, all: &[VaultObject]) -> String {
    match value {
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(|value| expression(value, all)).collect();
            format!("[{}]", values.join(", "))
        }
        Value::String(text) => {
            let is_policy =
                |object: &VaultObject| matches!(object, VaultObject::Policy { name, .. } if name == text);
            match all.iter().any(is_policy) {
                true => format!("vault_policy.{}.name", identifier(text)),
                false => quoted(text),
            }
        }
        other => other.to_string(),
    }
}

fn block(kind: &str, name: &str, attributes: &[(&str, String)]) -> String {
    let lines: String = attributes.iter().map(|(name, value)| format!("  {name} = {value}\n")).collect();
    format!("resource \"{kind}\" \"{}\" {{\n{lines}}}\n", identifier(name))
}

/// A name for Terraform: letters, digits, `_` and `-`, not beginning with a digit.
fn identifier(name: &str) -> String {
    let allowed = |letter: char| match letter.is_ascii_alphanumeric() || letter == '-' {
        true => letter,
        false => '_',
    };
    let name: String = name.chars().map(allowed).collect();
    match name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') {
        true => name,
        false => format!("_{name}"),
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped_template(&text.replace('\\', "\\\\").replace('"', "\\\"")))
}

/// In Terraform `${` and `%{` begin an expression.
fn escaped_template(text: &str) -> String {
    text.replace("${", "$${").replace("%{", "%%{")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::credentials::CredentialFiles;
    use crate::objects::{LoginRole, TokenRole};

    fn objects() -> Vec<VaultObject> {
        let role = |mount: &str, binding| {
            VaultObject::LoginRole(LoginRole {
                mount: mount.into(),
                name: "sidecar".into(),
                policies: vec!["agent/dev".into(), "other".into()],
                binding,
            })
        };
        vec![
            VaultObject::KvEngine { path: "teams/kv".into() },
            VaultObject::Policy {
                name: "agent/dev".into(),
                text: "# ${x}\npath \"kv/a \\\"b\\\"\" {\n  capabilities = [\"read\"]\n}\n".into(),
            },
            VaultObject::TokenRole(TokenRole {
                name: "1role".into(),
                allowed_policies: vec!["agent/dev".into()],
            }),
            VaultObject::AuthMethod { mount: "approle".into(), method: "approle" },
            role("approle", Binding::AppRole),
            role("jwt", Binding::Jwt { audiences: vec!["a".into()], subject: "quo\"te ${y}".into() }),
            role(
                "kubernetes",
                Binding::Kubernetes { service_account: "a".into(), namespace: "b".into(), audience: None },
            ),
        ]
    }

    #[test]
    fn the_text_is_valid_hcl_with_every_object() {
        let objects = objects();
        let files = CredentialFiles {
            mount: "approle",
            role: "sidecar",
            role_id_file: Path::new("/etc/role-id"),
            secret_id_file: Path::new("/etc/secret-id"),
            delivery: SecretIdDelivery::Wrapped,
        };
        let setup = SetupText {
            address: "https://vault.example.com:8200",
            namespace: Some("team-a"),
            objects: &objects,
            files: Some(files),
            remaining: &["do this\nand that".to_owned()],
        };
        let text = terraform_text(&setup);
        let body: hcl::Body = hcl::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let resources: Vec<&hcl::Block> =
            body.blocks().filter(|block| block.identifier() == "resource").collect();
        assert_eq!(resources.len(), objects.len(), "{text}");
        let attribute = |block: &hcl::Block, name: &str| {
            let found = block.body().attributes().find(|attribute| attribute.key() == name);
            found.map(|attribute| attribute.expr().to_string())
        };
        let labels: Vec<String> =
            resources.iter().map(|block| block.labels()[1].as_str().to_owned()).collect();
        assert_eq!(labels, ["teams_kv", "agent_dev", "_1role", "approle", "sidecar", "sidecar", "sidecar"]);
        let policies = attribute(resources[2], "allowed_policies").unwrap();
        assert!(policies.contains("vault_policy.agent_dev.name"), "{policies}");
        assert_eq!(attribute(resources[4], "backend").unwrap(), "vault_auth_backend.approle.path");
        assert_eq!(attribute(resources[5], "backend").unwrap(), "\"jwt\"");
        assert!(text.contains("quo\\\"te $${y}") && text.contains("# $${x}"), "{text}");
        assert!(!text.contains("secret_id\" \""), "{text}");
    }
}
