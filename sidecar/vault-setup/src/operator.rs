//! The operator's client: what exists in Vault now.
//!
//! What must stay true: nothing here changes Vault; no value of a key-value secret is read, only the names of secrets.

use std::collections::BTreeMap;

use cofferdam_vault::{Data, Envelope, Kind, KvVersion, OperatorRequest, Token, Vault, VaultError};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::objects::{ObjectId, mount_lines, policy_lines};
use crate::requests;

/// A client with the operator's own token.
#[derive(Debug)]
pub struct Operator {
    pub vault: Vault,
    pub token: Token,
}

/// The secrets engines by path, which ends with a slash.
#[derive(Clone, Debug, Default)]
pub struct Engines(BTreeMap<String, Engine>);

/// A secrets engine.
#[derive(Clone, Debug, Deserialize)]
pub struct Engine {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub description: String,
    options: Option<BTreeMap<String, String>>,
}

/// The login methods by path, which ends with a slash.
#[derive(Clone, Debug, Default)]
pub struct AuthMethods(BTreeMap<String, Engine>);

impl Engines {
    /// The engine that serves `path`, with its own path.
    pub fn serving(&self, path: &str) -> Option<(&str, &Engine)> {
        let path = format!("{path}/");
        let found = self.0.iter().filter(|(mount, _)| path.starts_with(mount.as_str()));
        found.max_by_key(|(mount, _)| mount.len()).map(|(mount, engine)| (mount.as_str(), engine))
    }

    /// The engine at exactly this path, which has no slash at its end.
    pub fn at(&self, path: &str) -> Option<&Engine> {
        self.0.get(&format!("{path}/"))
    }
}

impl Engine {
    /// `None` if this is not a key-value engine. `mount` is its path, which ends with a slash.
    pub fn kv_version(&self, mount: &str) -> Option<KvVersion> {
        let version = self.options.as_ref().and_then(|options| options.get("version"));
        match (self.kind.as_str(), version.map(String::as_str)) {
            ("kv", Some("2")) => Some(KvVersion::V2 { mount: mount.to_owned() }),
            ("kv" | "generic", _) => Some(KvVersion::V1),
            _ => None,
        }
    }
}

impl AuthMethods {
    /// The login method at exactly this path below `auth/`.
    pub fn at(&self, mount: &str) -> Option<&Engine> {
        self.0.get(&format!("{mount}/"))
    }
}

impl Operator {
    pub async fn engines(&self) -> Result<Engines, VaultError> {
        Ok(Engines(mounts(&self.send(requests::list_engines()?).await?)))
    }

    pub async fn auth_methods(&self) -> Result<AuthMethods, VaultError> {
        Ok(AuthMethods(mounts(&self.send(requests::list_auth_methods()?).await?)))
    }

    /// The lines of an object that exists; `None` if it does not exist. Not for secret-ids and files.
    pub(crate) async fn current(&self, id: &ObjectId) -> Result<Option<Vec<String>>, VaultError> {
        let mount = match id {
            ObjectId::KvEngine { path } => self.engines().await?.at(path).cloned(),
            ObjectId::AuthMethod { mount } => self.auth_methods().await?.at(mount).cloned(),
            _ => None,
        };
        if let Some(Engine { kind, description, .. }) = mount {
            return Ok(Some(mount_lines(&kind, &description)));
        }
        let Some(request) = requests::read(id) else { return Ok(None) };
        let Some(found) = self.find(request?).await? else { return Ok(None) };
        Ok(Some(match id {
            ObjectId::Policy { .. } => {
                let text = found.get("rules").or_else(|| found.get("policy")).and_then(Value::as_str);
                policy_lines(text.unwrap_or_default())
            }
            _ => id.lines_of_role(&found),
        }))
    }

    /// Whether a login method for JSON Web Tokens or of Kubernetes is configured. `None` if the token may not read that.
    pub async fn is_auth_configured(&self, mount: &str) -> Result<Option<bool>, VaultError> {
        match self.find(requests::read_auth_config(mount)?).await {
            Ok(found) => Ok(Some(found.is_some_and(|config| config.values().any(is_set)))),
            Err(error) if is_refusal(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether something exists at a path that is read without a secret, such as the role of an engine. `None` if the token
    /// may not read it.
    pub async fn exists(&self, path: &str) -> Result<Option<bool>, VaultError> {
        match self.vault.read(&self.token, path).await {
            Ok(_) => Ok(Some(true)),
            Err(error) if error.kind() == Kind::Missing => Ok(Some(false)),
            Err(error) if is_refusal(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a key-value secret has a value, found by listing names. `None` if the token may not list them.
    pub async fn has_value(&self, path: &str, version: &KvVersion) -> Result<Option<bool>, VaultError> {
        let listed = match version {
            KvVersion::V1 => path.to_owned(),
            KvVersion::V2 { mount } => {
                format!("{mount}metadata/{}", path.strip_prefix(mount.as_str()).unwrap_or(path))
            }
        };
        let Some((parent, name)) = listed.rsplit_once('/') else { return Ok(None) };
        match self.names(&list_request(parent)).await {
            Ok(names) => Ok(Some(names.iter().any(|found| found == name))),
            Err(error) if is_refusal(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a key-value engine has no secret at all.
    pub(crate) async fn is_engine_empty(&self, path: &str) -> Result<bool, VaultError> {
        Ok(self.names(&list_request(&engine_root(self.engines().await?.at(path), path))).await?.is_empty())
    }

    /// The names in a list; an empty list is an error in Vault.
    pub(crate) async fn names(&self, request: &OperatorRequest) -> Result<Vec<String>, VaultError> {
        let found = self.find(request.clone()).await?.unwrap_or_default();
        let keys = found.get("keys").and_then(Value::as_array).cloned().unwrap_or_default();
        Ok(keys.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// The data of a response without secrets; `None` if there is nothing at the path.
    pub(crate) async fn find(
        &self,
        request: OperatorRequest,
    ) -> Result<Option<Map<String, Value>>, VaultError> {
        match self.send(request).await {
            Ok(envelope) => Ok(envelope.data.and_then(|data| data.read().ok())),
            Err(error) if error.kind() == Kind::Missing => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn send(&self, request: OperatorRequest) -> Result<Envelope, VaultError> {
        self.vault.operate(&self.token, &request).await
    }
}

fn mounts(envelope: &Envelope) -> BTreeMap<String, Engine> {
    let members: Map<String, Value> =
        envelope.data.as_ref().and_then(|data: &Data| data.read().ok()).unwrap_or_default();
    let engine = |(path, value): (String, Value)| Some((path, serde_json::from_value(value).ok()?));
    members.into_iter().filter_map(engine).collect()
}

/// The path at which the names of an engine's secrets are listed.
fn engine_root(engine: Option<&Engine>, path: &str) -> String {
    match engine.and_then(|engine| engine.kv_version(path)) {
        Some(KvVersion::V2 { .. }) => format!("{path}/metadata"),
        _ => path.to_owned(),
    }
}

pub(crate) fn list_request(path: &str) -> OperatorRequest {
    let method = http::Method::from_bytes(b"LIST").unwrap_or(http::Method::GET);
    OperatorRequest { method, path: path.to_owned(), body: None, wrap_ttl: None }
}

/// Vault refuses paths without an engine in the same way as paths that the token may not use.
fn is_refusal(error: &VaultError) -> bool {
    matches!(error.kind(), Kind::Denied | Kind::Invalid | Kind::Missing)
}

/// Whether a setting has a value.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Array(values) => !values.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => false,
    }
}
