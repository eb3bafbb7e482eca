//! The login of the sidecar: the method, its role, and the files with its credentials.
//!
//! What must stay true: a role is bound to what the configuration names, never to more; a login that needs a credential of
//! another system is left to the operator.

use cofferdam_vault::{AuthSettings, SecretIdForm};
use cofferdam_vault_setup::{Binding, CredentialFiles, LoginRole, SecretIdDelivery, VaultObject};

use super::derive::{Existing, NeededSetup};
use super::jwt_claims::Claims;

impl<'a> NeededSetup<'a> {
    /// Adds the login method, its role and its files. `policies` are those of the login's token.
    pub(super) fn add_login(
        &mut self,
        auth: &'a AuthSettings,
        name: &'a str,
        policies: Vec<String>,
        existing: &Existing,
    ) {
        let listed = policies.join(",");
        let (mount, role, binding) = match auth {
            AuthSettings::AppRole { mount, role_id_file, secret_id_file, secret_id } => {
                let (role, delivery) = match secret_id {
                    SecretIdForm::Plain => (name, SecretIdDelivery::Plain),
                    SecretIdForm::Wrapped { role } => (role.as_str(), SecretIdDelivery::Wrapped),
                };
                self.files = Some(CredentialFiles {
                    mount: mount.as_str(),
                    role,
                    role_id_file,
                    secret_id_file,
                    delivery,
                });
                (mount, role, Some(Binding::AppRole))
            }
            AuthSettings::Jwt { mount, role, jwt_file } => {
                let bound = Claims::read(jwt_file).map(|claims| Binding::Jwt {
                    audiences: claims.audiences(),
                    subject: claims.subject().to_owned(),
                });
                let next = format!(
                    "bao write auth/{mount}/role/{role} role_type=jwt user_claim=sub bound_audiences=… bound_subject=… token_policies={listed}"
                );
                (mount, role.as_str(), self.bound(bound, role, next))
            }
            AuthSettings::Kubernetes { mount, role, jwt_file } => {
                let bound = Claims::read(jwt_file).and_then(|claims| {
                    let (namespace, account) = claims
                        .service_account()
                        .ok_or_else(|| format!("`{}` is not of a service account", jwt_file.display()))?;
                    Ok(Binding::Kubernetes {
                        service_account: account.to_owned(),
                        namespace: namespace.to_owned(),
                        audience: claims.audiences().into_iter().next(),
                    })
                });
                let next = format!(
                    "bao write auth/{mount}/role/{role} bound_service_account_names=… bound_service_account_namespaces=… token_policies={listed}"
                );
                (mount, role.as_str(), self.bound(bound, role, next))
            }
            AuthSettings::Cert { mount, role, .. } => {
                return self.remain(
                    format!("the login with a certificate needs the role `{role}` of `auth/{mount}/`"),
                    format!(
                        "bao write auth/{mount}/certs/{role} certificate=@CA.pem token_policies={listed}"
                    ),
                );
            }
            AuthSettings::TokenFile { path } => {
                return self.remain(
                    format!("the login needs a token in `{}`, unless there is one already", path.display()),
                    format!(
                        "bao token create -orphan -no-default-policy -period=24h {} -field=token, written to that file with mode 0600",
                        policies.iter().map(|policy| format!("-policy={policy}")).collect::<Vec<_>>().join(" ")
                    ),
                );
            }
            AuthSettings::Userpass { mount, username, .. } => {
                return self.remain(
                    format!("the login needs the user `{username}` of `auth/{mount}/`, unless there is one already"),
                    format!("bao write auth/{mount}/users/{username} password=- token_policies={listed}"),
                );
            }
        };
        let method = auth.method();
        match existing.auth_methods.at(mount.as_str()) {
            None => self.objects.push(VaultObject::AuthMethod { mount: mount.to_string(), method }),
            Some(found) if found.kind == method => {}
            Some(found) => {
                self.files = None;
                return self.remain(
                    format!("`auth/{mount}/` is a login method of type `{}`, not `{method}`", found.kind),
                    "set `mount` of `auth` in [vault] to another path".to_owned(),
                );
            }
        }
        if let Some(binding) = binding {
            let (mount, name) = (mount.to_string(), role.to_owned());
            self.objects.push(VaultObject::LoginRole(LoginRole { mount, name, policies, binding }));
        }
    }

    /// What the role is bound to; if that is not known, the role is left to the operator.
    fn bound(&mut self, bound: Result<Binding, String>, role: &str, next: String) -> Option<Binding> {
        match bound {
            Ok(binding) => Some(binding),
            Err(why) => {
                self.remain(
                    format!("the role `{role}` has to be bound to the sidecar's token, which is not known here: {why}"),
                    format!("unless the role exists already: {next}"),
                );
                None
            }
        }
    }
}
