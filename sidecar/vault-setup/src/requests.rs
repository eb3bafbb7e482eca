//! The request for each object, from vaultrs' types, which say method, path and body. They are never sent by vaultrs itself.
//!
//! What must stay true: no request here has a secret in it; a request of vaultrs is never printed with `Debug`, and neither
//! are its errors.

use std::collections::HashMap;
use std::time::Duration;

use cofferdam_vault::{OperatorRequest, Problem, RequestLine, VaultError};
use http::Method;
use rustify::endpoint::Endpoint;
use serde_json::{Value, json};
use vaultrs::api::auth::approle::requests as approle;
use vaultrs::api::auth::kubernetes::requests as kubernetes;
use vaultrs::api::auth::oidc::requests as jwt;
use vaultrs::api::sys::requests as sys;
use vaultrs::api::token::requests as token;

use crate::objects::{Binding, LoginRole, ObjectId, Setting, TokenRole, VaultObject, description};

/// The member of a secret-id's metadata that has the mark of the record.
pub(crate) const MARK: &str = "cofferdam-setup";

type Composed = Result<OperatorRequest, VaultError>;

/// Lists every secrets engine.
pub(crate) fn list_engines() -> Composed {
    compose(&sys::ListMountsRequest {})
}

/// Lists every login method.
pub(crate) fn list_auth_methods() -> Composed {
    compose(&sys::ListAuthsRequest {})
}

/// Reads the configuration of a login method for JSON Web Tokens or of Kubernetes.
pub(crate) fn read_auth_config(mount: &str) -> Composed {
    compose(&jwt::ReadConfigurationRequest { mount: mount.to_owned() })
}

/// Reads a policy or a role. `None` for objects that are found in another way.
pub(crate) fn read(id: &ObjectId) -> Option<Composed> {
    Some(match id.clone() {
        ObjectId::Policy { name } => compose(&sys::ReadPolicyRequest { name }),
        ObjectId::TokenRole { name } => compose(&token::ReadTokenRoleRequest { role_name: name }),
        ObjectId::AppRole { mount, name } => compose(&approle::ReadAppRoleRequest { mount, role_name: name }),
        ObjectId::JwtRole { mount, name } => compose(&jwt::ReadRoleRequest { mount, name }),
        ObjectId::KubernetesRole { mount, name } => {
            compose(&kubernetes::ReadKubernetesRoleRequest { mount, name })
        }
        ObjectId::KvEngine { .. }
        | ObjectId::AuthMethod { .. }
        | ObjectId::SecretId { .. }
        | ObjectId::File { .. } => return None,
    })
}

pub(crate) fn write(object: &VaultObject, mark: &str) -> Composed {
    match object {
        VaultObject::KvEngine { path } => compose(&sys::EnableEngineRequest {
            path: path.clone(),
            engine_type: Some("kv".to_owned()),
            description: Some(description(mark)),
            config: None,
            options: Some(HashMap::from([("version".to_owned(), "2".to_owned())])),
        }),
        VaultObject::Policy { name, text } => {
            compose(&sys::CreatePolicyRequest { name: name.clone(), policy: text.clone() })
        }
        VaultObject::TokenRole(role) => compose(&token_role(role)),
        VaultObject::AuthMethod { mount, method } => compose(&sys::EnableAuthRequest {
            path: mount.clone(),
            engine_type: Some((*method).to_owned()),
            description: Some(description(mark)),
            config: None,
        }),
        VaultObject::LoginRole(role) => login_role(role),
    }
}

/// Deletes an object. `None` for secret-ids and files.
pub(crate) fn delete(id: &ObjectId) -> Option<Composed> {
    Some(match id.clone() {
        ObjectId::KvEngine { path } => compose(&sys::DisableEngineRequest { path }),
        ObjectId::Policy { name } => compose(&sys::DeletePolicyRequest { name }),
        ObjectId::TokenRole { name } => compose(&token::DeleteTokenRoleRequest { role_name: name }),
        ObjectId::AuthMethod { mount } => compose(&sys::DisableAuthRequest { path: mount }),
        ObjectId::AppRole { mount, name } => {
            compose(&approle::DeleteAppRoleRequest { mount, role_name: name })
        }
        ObjectId::JwtRole { mount, name } => compose(&jwt::DeleteRoleRequest { mount, name }),
        ObjectId::KubernetesRole { mount, name } => {
            compose(&kubernetes::DeleteKubernetesRoleRequest { mount, name })
        }
        ObjectId::SecretId { .. } | ObjectId::File { .. } => return None,
    })
}

/// Lists the roles of a login method.
pub(crate) fn list_roles(mount: &str) -> Composed {
    compose(&approle::ListRolesRequest { mount: mount.to_owned() })
}

pub(crate) fn read_role_id(mount: &str, role: &str) -> Composed {
    compose(&approle::ReadRoleIDRequest { mount: mount.to_owned(), role_name: role.to_owned() })
}

/// Creates a secret-id with the record's mark; with `wrap_ttl`, Vault returns a wrapping token instead.
pub(crate) fn create_secret_id(mount: &str, role: &str, mark: &str, wrap_ttl: Option<Duration>) -> Composed {
    let request = approle::GenerateNewSecretIDRequest {
        mount: mount.to_owned(),
        role_name: role.to_owned(),
        metadata: Some(json!({ MARK: mark }).to_string()),
        cidr_list: None,
        token_bound_cidrs: None,
    };
    Ok(OperatorRequest { wrap_ttl, ..compose(&request)? })
}

/// Lists the accessors of a role's secret-ids.
pub(crate) fn list_secret_ids(mount: &str, role: &str) -> Composed {
    compose(&approle::ListSecretIDRequest { mount: mount.to_owned(), role_name: role.to_owned() })
}

pub(crate) fn read_secret_id(mount: &str, role: &str, accessor: &str) -> Composed {
    compose(&approle::ReadSecretIDAccessorRequest {
        mount: mount.to_owned(),
        role_name: role.to_owned(),
        secret_id_accessor: accessor.to_owned(),
    })
}

pub(crate) fn destroy_secret_id(mount: &str, role: &str, accessor: &str) -> Composed {
    compose(&approle::DeleteSecretIDAccessorRequest {
        mount: mount.to_owned(),
        role_name: role.to_owned(),
        secret_id_accessor: accessor.to_owned(),
    })
}

fn token_role(role: &TokenRole) -> token::SetTokenRoleRequest {
    let settings = role.settings();
    token::SetTokenRoleRequest {
        role_name: role.name.clone(),
        allowed_policies: Some(role.allowed_policies.clone()),
        orphan: flag(&settings, "orphan"),
        renewable: flag(&settings, "renewable"),
        token_no_default_policy: flag(&settings, "token_no_default_policy"),
        token_type: text(&settings, "token_type"),
        ..Default::default()
    }
}

fn login_role(role: &LoginRole) -> Composed {
    let settings = role.settings();
    let (mount, name, token_policies) = (role.mount.clone(), role.name.clone(), Some(role.policies.clone()));
    let (token_ttl, token_max_ttl) = (seconds(&settings, "token_ttl"), seconds(&settings, "token_max_ttl"));
    let token_no_default_policy = flag(&settings, "token_no_default_policy");
    match &role.binding {
        Binding::AppRole => compose(&approle::SetAppRoleRequest {
            mount,
            role_name: name,
            token_ttl,
            token_max_ttl,
            token_policies,
            token_no_default_policy,
            ..Default::default()
        }),
        Binding::Jwt { audiences, subject } => compose(&jwt::SetRoleRequest {
            mount,
            name,
            user_claim: text(&settings, "user_claim").unwrap_or_default(),
            role_type: text(&settings, "role_type"),
            bound_audiences: Some(audiences.clone()),
            bound_subject: Some(subject.clone()),
            token_ttl,
            token_max_ttl,
            token_policies,
            token_no_default_policy,
            ..Default::default()
        }),
        Binding::Kubernetes { service_account, namespace, audience } => {
            compose(&kubernetes::CreateKubernetesRoleRequest {
                mount,
                name,
                bound_service_account_names: vec![service_account.clone()],
                bound_service_account_namespaces: vec![namespace.clone()],
                audience: audience.clone(),
                token_ttl,
                token_max_ttl,
                token_policies,
                token_no_default_policy,
                ..Default::default()
            })
        }
    }
}

fn value<'a>(settings: &'a [Setting], name: &str) -> Option<&'a Value> {
    settings.iter().find(|setting| setting.name == name).map(|setting| &setting.value)
}

fn flag(settings: &[Setting], name: &str) -> Option<bool> {
    value(settings, name).and_then(Value::as_bool)
}

fn text(settings: &[Setting], name: &str) -> Option<String> {
    value(settings, name).and_then(Value::as_str).map(str::to_owned)
}

fn seconds(settings: &[Setting], name: &str) -> Option<String> {
    value(settings, name).and_then(Value::as_u64).map(|seconds| format!("{seconds}s"))
}

/// What a request of vaultrs says, for our own client.
fn compose<E: Endpoint>(endpoint: &E) -> Composed {
    let method: Method = endpoint.method().into();
    let path = endpoint.path().trim().trim_matches('/').to_owned();
    // Requests that read or delete have their parameters in the path; vaultrs repeats some of them in a body.
    let has_body = method == Method::POST || method == Method::PUT;
    let body = endpoint.body().map_err(|_| VaultError {
        request: RequestLine { method: method.clone(), path: path.clone() },
        problem: Problem::Malformed { why: "the request cannot be written as JSON" },
    })?;
    Ok(OperatorRequest { method, path, body: body.filter(|_| has_body), wrap_ttl: None })
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn roles() -> Vec<VaultObject> {
        let role = |binding| {
            VaultObject::LoginRole(LoginRole {
                mount: "teams/login".into(),
                name: "sidecar".into(),
                policies: vec!["cofferdam".into(), "agent".into()],
                binding,
            })
        };
        vec![
            VaultObject::TokenRole(TokenRole {
                name: "cofferdam".into(),
                allowed_policies: vec!["agent".into()],
            }),
            role(Binding::AppRole),
            role(Binding::Jwt { audiences: vec!["vault".into()], subject: "agent".into() }),
            role(Binding::Kubernetes {
                service_account: "cofferdam".into(),
                namespace: "agents".into(),
                audience: Some("vault".into()),
            }),
        ]
    }

    /// The body of a request, with durations in seconds as Vault returns them.
    fn sent(object: &VaultObject) -> Map<String, Value> {
        let body = write(object, "mark").unwrap().body.unwrap();
        let mut body: Map<String, Value> = serde_json::from_slice(&body).unwrap();
        for (name, value) in &mut body {
            if name.ends_with("_ttl") {
                let seconds = value.as_str().unwrap().trim_end_matches('s');
                *value = seconds.parse::<u64>().unwrap().into();
            }
        }
        body
    }

    #[test]
    fn every_setting_of_a_role_is_sent() {
        for object in roles() {
            assert_eq!(object.id().lines_of_role(&sent(&object)), object.lines("mark"), "{object:?}");
        }
    }

    #[test]
    fn requests_have_the_paths_of_their_objects() {
        for object in roles() {
            let id = object.id();
            let path = id.api_path().unwrap();
            assert_eq!(write(&object, "mark").unwrap().path, path);
            for (request, method) in [(read(&id), Method::GET), (delete(&id), Method::DELETE)] {
                let request = request.unwrap().unwrap();
                assert_eq!((request.path, request.method, request.body), (path.clone(), method, None));
            }
        }
        let engine = VaultObject::KvEngine { path: "teams/kv".into() };
        assert_eq!(write(&engine, "m").unwrap().path, "sys/mounts/teams/kv");
        assert_eq!(sent(&engine)["options"], json!({"version": "2"}));
    }
}
