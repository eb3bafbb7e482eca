//! The client of the toolbox: the service in a sandbox that runs commands and reads and writes files, behind Daytona's proxy.
//!
//! What must stay true: it gets the sandbox's own token and never the API key; what it returns comes from the sandbox and
//! is not trusted; Daytona stores the commands, so no command contains a secret.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::SKIP_ACTIVITY;
use super::control::{Control, SandboxRecord};
use super::token::SandboxToken;
use crate::guest::{Guest, ScriptOutput};
use crate::multipart::FileForm;
use crate::redactor::Redactor;
use crate::rest::{Call, Reply, Service, encode_query_value, secret_header};
use crate::{KeepAwake, PlatformError, SandboxId};

pub(super) struct Toolbox {
    service: Service,
}

/// The exit code of a command, and its stdout and stderr together.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CommandOutput {
    exit_code: i64,
    #[serde(default)]
    result: String,
}

/// A shell in the sandbox that runs commands in the background; Daytona's word is session.
#[derive(Deserialize)]
pub(super) struct ShellSession {
    #[serde(default)]
    pub(super) commands: Vec<SessionCommand>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionCommand {
    pub(super) command: String,
    /// `None` while the command runs.
    pub(super) exit_code: Option<i64>,
}

pub(super) const PREVIEW_TOKEN: HeaderName = HeaderName::from_static("x-daytona-preview-token");

/// For all requests except uploads.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The shim is 2.5 MB, about a minute on a slow uplink; this is three times as long.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(180);

impl Toolbox {
    pub(super) fn new(
        control: &Control,
        sandbox: &SandboxRecord,
        id: &SandboxId,
        token: &SandboxToken,
        awake: KeepAwake,
    ) -> Result<Self, PlatformError> {
        let action = "reach the sandbox's toolbox";
        let url = format!("{}/{id}", sandbox.toolbox_url.trim_end_matches('/'));
        let mut headers = HeaderMap::from_iter([secret_header(PREVIEW_TOKEN, token.header())]);
        if awake == KeepAwake::No {
            headers.insert(SKIP_ACTIVITY, HeaderValue::from_static("true"));
        }
        let url = control.parse_reported_address(action, &url)?;
        Ok(Self { service: control.sandbox_service(action, &url, headers)? })
    }

    /// The session with this id, if there is one.
    pub(super) async fn session(
        &self,
        action: &'static str,
        id: &str,
    ) -> Result<Option<ShellSession>, PlatformError> {
        let reply = self.call(action, Method::GET, &format!("/process/session/{id}"), None).await?;
        match reply.status.as_u16() {
            404 => Ok(None),
            _ => self.success(action, &reply)?.json(action).map(Some),
        }
    }

    /// Starts a command that outlives this request.
    pub(super) async fn start(
        &self,
        action: &'static str,
        session: &str,
        command: &str,
    ) -> Result<(), PlatformError> {
        let created = json!({ "sessionId": session });
        let reply = self.call(action, Method::POST, "/process/session", Some(created)).await?;
        // 409: the session exists already.
        if reply.status.as_u16() != 409 {
            self.success(action, &reply)?;
        }
        let body = json!({ "command": command, "runAsync": true, "suppressInputEcho": true });
        let reply =
            self.call(action, Method::POST, &format!("/process/session/{session}/exec"), Some(body)).await?;
        self.success(action, &reply).map(drop)
    }

    /// Ends a session and every process of it. Succeeds if the session does not exist.
    pub(super) async fn end(&self, action: &'static str, session: &str) -> Result<(), PlatformError> {
        let reply = self.call(action, Method::DELETE, &format!("/process/session/{session}"), None).await?;
        match reply.status.as_u16() {
            404 => Ok(()),
            _ => self.success(action, &reply).map(drop),
        }
    }

    async fn call(
        &self,
        action: &'static str,
        method: Method,
        path: &str,
        body: Option<serde_json::Value>,
    ) -> Result<Reply, PlatformError> {
        let body = body.map(|body| Bytes::from(body.to_string()));
        self.service.send(Call { action, method, path, body, timeout: TIMEOUT }).await
    }

    /// The toolbox's own error messages about an upload that it could not write. `None` for other responses, such as the proxy's.
    fn write_errors(&self, reply: &Reply) -> Option<String> {
        #[derive(Deserialize)]
        struct WriteErrors {
            errors: Vec<String>,
        }
        let WriteErrors { errors } = serde_json::from_slice(&reply.body).ok()?;
        Some(self.service.printable(&errors.join(", ")))
    }

    /// Returns a successful response. Failures other than redirects are temporary: the sandbox may be stopping, and its token is
    /// valid only until it stops. The control API gives the actual state.
    fn success<'a>(&self, action: &'static str, reply: &'a Reply) -> Result<&'a Reply, PlatformError> {
        match reply.status.as_u16() {
            200..=299 => Ok(reply),
            300..=399 => Err(self.service.redirected(action, reply)),
            429 => Err(PlatformError::Quota { action, why: self.service.message(reply) }),
            401 | 403 => {
                let why = "the sandbox's token is refused: the sandbox was restarted meanwhile".to_owned();
                Err(PlatformError::Unavailable { action, why, retry_after: None })
            }
            _ => Err(PlatformError::Unavailable {
                action,
                why: format!("the request to the sandbox failed ({})", self.service.message(reply)),
                retry_after: reply.retry_after(),
            }),
        }
    }
}

impl Guest for Toolbox {
    async fn run(
        &self,
        action: &'static str,
        script: &str,
        parameters: &[&str],
    ) -> Result<ScriptOutput, PlatformError> {
        let quoted: String =
            parameters.iter().map(|parameter| format!(" {}", shell_quote(parameter))).collect();
        // The toolbox stops the command shortly before this client's timeout.
        let body =
            json!({ "command": format!("set --{quoted}\n{script}"), "timeout": TIMEOUT.as_secs() - 5 });
        let reply = self.call(action, Method::POST, "/process/execute", Some(body)).await?;
        let CommandOutput { exit_code, result: text } = self.success(action, &reply)?.json(action)?;
        let result = match exit_code {
            0 => Ok(()),
            code => Err(format!(
                "the command in the sandbox ended with exit code {code}: {}",
                self.service.printable(&text)
            )),
        };
        Ok(ScriptOutput { text, result })
    }

    async fn upload(
        &self,
        action: &'static str,
        path: &str,
        content: Bytes,
        sent: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), PlatformError> {
        let form = FileForm { fields: &[("files[0].path", path)], file_field: "files[0].file" };
        let exchange = self.service.upload(action, "/files/bulk-upload", form, content, sent);
        let Ok(reply) = timeout(UPLOAD_TIMEOUT, exchange).await else {
            let why = format!("it took longer than {} s", UPLOAD_TIMEOUT.as_secs());
            return Err(PlatformError::Unavailable { action, why, retry_after: None });
        };
        let reply = reply?;
        match self.write_errors(&reply) {
            Some(errors) if reply.status.is_client_error() => Err(PlatformError::Sandbox {
                action,
                why: format!("the sandbox cannot write the file: {errors}"),
            }),
            _ => self.success(action, &reply).map(drop),
        }
    }

    async fn download(&self, action: &'static str, path: &str) -> Result<Bytes, PlatformError> {
        let reply = self
            .call(action, Method::GET, &format!("/files/download?path={}", encode_query_value(path)), None)
            .await?;
        self.success(action, &reply)?;
        Ok(Bytes::from_owner(reply.body))
    }

    fn redactor(&self) -> &Redactor {
        self.service.redactor()
    }
}

/// Quotes a text as one word of a shell script.
fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_parameter_is_one_word() {
        assert_eq!(shell_quote("/home/a b"), "'/home/a b'");
        assert_eq!(shell_quote("a'; rm $x"), r"'a'\''; rm $x'");
    }
}
