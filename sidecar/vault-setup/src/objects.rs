//! What can be made in Vault. Every object is also a list of lines, by which it is shown, compared with what exists, and
//! recognised later.
//!
//! What must stay true: the lines of an object and the lines of what Vault returns for it are the same if nothing changed
//! it; no object contains a secret.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The lifetime of the login's token; the sidecar renews it. In seconds.
const LOGIN_TTL: u64 = 3600;
/// After this the sidecar logs in again. In seconds.
const LOGIN_MAX_TTL: u64 = 24 * 3600;

/// Identifies an object, in the record and in Vault. Mounts have no slash at either end.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ObjectId {
    KvEngine {
        path: String,
    },
    Policy {
        name: String,
    },
    TokenRole {
        name: String,
    },
    AuthMethod {
        mount: String,
    },
    AppRole {
        mount: String,
        name: String,
    },
    JwtRole {
        mount: String,
        name: String,
    },
    KubernetesRole {
        mount: String,
        name: String,
    },
    /// The secret-ids of an AppRole that have the record's mark in their metadata.
    SecretId {
        mount: String,
        role: String,
    },
    File {
        path: PathBuf,
    },
}

/// An object that should exist.
#[derive(Clone, Debug)]
pub enum VaultObject {
    /// A key-value engine of version 2.
    KvEngine {
        path: String,
    },
    Policy {
        name: String,
        text: String,
    },
    TokenRole(TokenRole),
    /// `method` is `approle`, `jwt` or `kubernetes`.
    AuthMethod {
        mount: String,
        method: &'static str,
    },
    LoginRole(LoginRole),
}

/// The role that session tokens are created through.
#[derive(Clone, Debug)]
pub struct TokenRole {
    pub name: String,
    pub allowed_policies: Vec<String>,
}

/// The role that the sidecar logs in with.
#[derive(Clone, Debug)]
pub struct LoginRole {
    /// Below `auth/`.
    pub mount: String,
    pub name: String,
    pub policies: Vec<String>,
    pub binding: Binding,
}

/// What a login has to prove.
#[derive(Clone, Debug)]
pub enum Binding {
    AppRole,
    Jwt { audiences: Vec<String>, subject: String },
    Kubernetes { service_account: String, namespace: String, audience: Option<String> },
}

/// A setting of a role. Durations are in seconds, as Vault returns them.
#[derive(Clone, Debug)]
pub struct Setting {
    pub name: &'static str,
    pub value: Value,
}

impl VaultObject {
    pub fn id(&self) -> ObjectId {
        match self {
            Self::KvEngine { path } => ObjectId::KvEngine { path: path.clone() },
            Self::Policy { name, .. } => ObjectId::Policy { name: name.clone() },
            Self::TokenRole(role) => ObjectId::TokenRole { name: role.name.clone() },
            Self::AuthMethod { mount, .. } => ObjectId::AuthMethod { mount: mount.clone() },
            Self::LoginRole(role) => role.id(),
        }
    }

    /// `mark` tells the engines and login methods of one record from those of others.
    pub fn lines(&self, mark: &str) -> Vec<String> {
        match self {
            Self::KvEngine { .. } => mount_lines("kv", &description(mark)),
            Self::Policy { text, .. } => policy_lines(text),
            Self::TokenRole(role) => setting_lines(&role.settings()),
            Self::AuthMethod { method, .. } => mount_lines(method, &description(mark)),
            Self::LoginRole(role) => setting_lines(&role.settings()),
        }
    }
}

impl TokenRole {
    pub fn settings(&self) -> Vec<Setting> {
        vec![
            Setting { name: "allowed_policies", value: list(&self.allowed_policies) },
            Setting { name: "orphan", value: false.into() },
            Setting { name: "renewable", value: false.into() },
            Setting { name: "token_no_default_policy", value: true.into() },
            Setting { name: "token_type", value: "service".into() },
        ]
    }
}

impl LoginRole {
    pub fn id(&self) -> ObjectId {
        let (mount, name) = (self.mount.clone(), self.name.clone());
        match self.binding {
            Binding::AppRole => ObjectId::AppRole { mount, name },
            Binding::Jwt { .. } => ObjectId::JwtRole { mount, name },
            Binding::Kubernetes { .. } => ObjectId::KubernetesRole { mount, name },
        }
    }

    pub fn settings(&self) -> Vec<Setting> {
        let mut settings = match &self.binding {
            Binding::AppRole => Vec::new(),
            Binding::Jwt { audiences, subject } => vec![
                Setting { name: "bound_audiences", value: list(audiences) },
                Setting { name: "bound_subject", value: subject.as_str().into() },
                Setting { name: "role_type", value: "jwt".into() },
                Setting { name: "user_claim", value: "sub".into() },
            ],
            Binding::Kubernetes { service_account, namespace, audience } => vec![
                Setting { name: "audience", value: audience.as_deref().unwrap_or_default().into() },
                Setting { name: "bound_service_account_names", value: list(&[service_account]) },
                Setting { name: "bound_service_account_namespaces", value: list(&[namespace]) },
            ],
        };
        settings.extend([
            Setting { name: "token_max_ttl", value: LOGIN_MAX_TTL.into() },
            Setting { name: "token_no_default_policy", value: true.into() },
            Setting { name: "token_policies", value: list(&self.policies) },
            Setting { name: "token_ttl", value: LOGIN_TTL.into() },
        ]);
        settings
    }
}

impl ObjectId {
    /// The path of the object in Vault's API; `None` for a file.
    pub fn api_path(&self) -> Option<String> {
        match self {
            Self::KvEngine { path } => Some(format!("sys/mounts/{path}")),
            Self::Policy { name } => Some(format!("sys/policy/{name}")),
            Self::TokenRole { name } => Some(format!("auth/token/roles/{name}")),
            Self::AuthMethod { mount } => Some(format!("sys/auth/{mount}")),
            Self::AppRole { mount, name }
            | Self::JwtRole { mount, name }
            | Self::KubernetesRole { mount, name } => Some(format!("auth/{mount}/role/{name}")),
            Self::SecretId { mount, role } => Some(format!("auth/{mount}/role/{role}/secret-id")),
            Self::File { .. } => None,
        }
    }

    /// The names of the settings of such a role, in the order of its lines.
    fn setting_names(&self) -> Vec<&'static str> {
        let (mount, name) = (String::new(), String::new());
        let binding = match self {
            Self::TokenRole { .. } => {
                let role = TokenRole { name, allowed_policies: Vec::new() };
                return role.settings().iter().map(|setting| setting.name).collect();
            }
            Self::JwtRole { .. } => Binding::Jwt { audiences: Vec::new(), subject: String::new() },
            Self::KubernetesRole { .. } => Binding::Kubernetes {
                service_account: String::new(),
                namespace: String::new(),
                audience: None,
            },
            _ => Binding::AppRole,
        };
        let role = LoginRole { mount, name, policies: Vec::new(), binding };
        role.settings().iter().map(|setting| setting.name).collect()
    }

    /// The lines of a role that Vault returned.
    pub(crate) fn lines_of_role(&self, found: &Map<String, Value>) -> Vec<String> {
        let setting = |name| Setting { name, value: found.get(name).cloned().unwrap_or_default() };
        let settings: Vec<Setting> = self.setting_names().into_iter().map(setting).collect();
        setting_lines(&settings)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KvEngine { path } => write!(f, "key-value engine `{path}/`"),
            Self::Policy { name } => write!(f, "policy `{name}`"),
            Self::TokenRole { name } => write!(f, "token role `{name}`"),
            Self::AuthMethod { mount } => write!(f, "login method `auth/{mount}/`"),
            Self::AppRole { mount, name } => write!(f, "AppRole `{name}` of `auth/{mount}/`"),
            Self::JwtRole { mount, name } => write!(f, "JWT role `{name}` of `auth/{mount}/`"),
            Self::KubernetesRole { mount, name } => write!(f, "Kubernetes role `{name}` of `auth/{mount}/`"),
            Self::SecretId { mount, role } => {
                write!(f, "secret-id of the AppRole `{role}` of `auth/{mount}/`")
            }
            Self::File { path } => write!(f, "file {}", path.display()),
        }
    }
}

/// The description of an engine or a login method.
pub(crate) fn description(mark: &str) -> String {
    format!("made by `cofferdam vault setup` ({mark})")
}

pub(crate) fn mount_lines(kind: &str, description: &str) -> Vec<String> {
    vec![format!("type = {kind}"), format!("description = {description}")]
}

pub(crate) fn policy_lines(text: &str) -> Vec<String> {
    text.trim().lines().map(|line| line.trim_end().to_owned()).collect()
}

fn setting_lines(settings: &[Setting]) -> Vec<String> {
    settings.iter().map(|Setting { name, value }| format!("{name} = {}", canonical(value))).collect()
}

/// A value as text. The order of a list has no meaning in Vault, and an empty list or text may be returned as null.
fn canonical(value: &Value) -> String {
    match value {
        Value::Array(values) => {
            let mut texts: Vec<String> = values.iter().map(canonical).collect();
            texts.sort();
            match texts.is_empty() {
                true => "(none)".to_owned(),
                false => texts.join(", "),
            }
        }
        Value::Null => "(none)".to_owned(),
        Value::String(text) if text.is_empty() => "(none)".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn list<T: AsRef<str>>(texts: &[T]) -> Value {
    texts.iter().map(|text| Value::from(text.as_ref())).collect()
}
