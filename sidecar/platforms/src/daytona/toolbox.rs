//! The toolbox: the service in a sandbox that runs commands and takes files, behind Daytona's proxy.
//!
//! What must stay true: it gets the sandbox's own token and never the API key; what it returns comes from the sandbox and
//! is not trusted; Daytona stores the commands, so no command contains a secret.

use std::time::Duration;

use bytes::Bytes;
use cofferdam_base::random;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::SKIP_ACTIVITY;
use super::control::{Control, SandboxRecord};
use super::token::SandboxToken;
use crate::guest::{Guest, ScriptOutput};
use crate::redactor::Redactor;
use crate::rest::{Call, Reply, Service, encoded, secret_header};
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
    /// None while it runs.
    pub(super) exit_code: Option<i64>,
}

pub(super) const PREVIEW_TOKEN: HeaderName = HeaderName::from_static("x-daytona-preview-token");

/// For all requests except uploads.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The shim is 2.5 MB, about a minute on a slow uplink; this is three times as long.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(180);
const UPLOAD_PIECE: usize = 64 * 1024;

impl Toolbox {
    pub(super) fn new(
        control: &Control,
        sandbox: &SandboxRecord,
        id: &SandboxId,
        token: &SandboxToken,
        awake: KeepAwake,
    ) -> Result<Self, PlatformError> {
        let doing = "reach the sandbox's toolbox";
        let url = format!("{}/{id}", sandbox.toolbox_url.trim_end_matches('/'));
        let mut headers = HeaderMap::from_iter([secret_header(PREVIEW_TOKEN, token.header())]);
        if awake == KeepAwake::No {
            headers.insert(SKIP_ACTIVITY, HeaderValue::from_static("true"));
        }
        let url = control.named_address(doing, &url)?;
        Ok(Self { service: control.sandbox_service(doing, &url, headers)? })
    }

    /// The session with this id, if there is one.
    pub(super) async fn session(
        &self,
        doing: &'static str,
        id: &str,
    ) -> Result<Option<ShellSession>, PlatformError> {
        let reply = self.call(doing, Method::GET, &format!("/process/session/{id}"), None).await?;
        match reply.status.as_u16() {
            404 => Ok(None),
            _ => self.success(doing, &reply)?.json(doing).map(Some),
        }
    }

    /// Starts a command that outlives this request.
    pub(super) async fn start(
        &self,
        doing: &'static str,
        session: &str,
        command: &str,
    ) -> Result<(), PlatformError> {
        let created = json!({ "sessionId": session });
        let reply = self.call(doing, Method::POST, "/process/session", Some(created)).await?;
        // 409: it exists, which is as good.
        if reply.status.as_u16() != 409 {
            self.success(doing, &reply)?;
        }
        let body = json!({ "command": command, "runAsync": true, "suppressInputEcho": true });
        let reply =
            self.call(doing, Method::POST, &format!("/process/session/{session}/exec"), Some(body)).await?;
        self.success(doing, &reply).map(drop)
    }

    /// Ends a session and every process of it. Succeeds if the session does not exist.
    pub(super) async fn end(&self, doing: &'static str, session: &str) -> Result<(), PlatformError> {
        let reply = self.call(doing, Method::DELETE, &format!("/process/session/{session}"), None).await?;
        match reply.status.as_u16() {
            404 => Ok(()),
            _ => self.success(doing, &reply).map(drop),
        }
    }

    async fn call(
        &self,
        doing: &'static str,
        method: Method,
        path: &str,
        body: Option<serde_json::Value>,
    ) -> Result<Reply, PlatformError> {
        let body = body.map(|body| Bytes::from(body.to_string()));
        self.service.send(Call { doing, method, path, body, time: TIMEOUT }).await
    }

    /// What the toolbox itself says about an upload that it could not write; the proxy's answers have another form.
    fn write_errors(&self, reply: &Reply) -> Option<String> {
        #[derive(Deserialize)]
        struct WriteErrors {
            errors: Vec<String>,
        }
        let WriteErrors { errors } = serde_json::from_slice(&reply.body).ok()?;
        Some(self.service.printable(&errors.join(", ")))
    }

    /// All failures are treated as temporary: the sandbox may be stopping, and its token is valid only until it stops. The
    /// control API gives the actual state.
    fn success<'a>(&self, doing: &'static str, reply: &'a Reply) -> Result<&'a Reply, PlatformError> {
        match reply.status.as_u16() {
            200..=299 => Ok(reply),
            300..=399 => Err(self.service.redirected(doing, reply)),
            429 => Err(PlatformError::Quota { doing, why: self.service.message(reply) }),
            401 | 403 => {
                let why = "the sandbox's token is refused: the sandbox was restarted meanwhile".to_owned();
                Err(PlatformError::Unavailable { doing, why, retry_after: None })
            }
            _ => Err(PlatformError::Unavailable {
                doing,
                why: format!("the request to the sandbox failed ({})", self.service.message(reply)),
                retry_after: reply.retry_after(),
            }),
        }
    }
}

impl Guest for Toolbox {
    async fn run(
        &self,
        doing: &'static str,
        script: &str,
        parameters: &[&str],
    ) -> Result<ScriptOutput, PlatformError> {
        let quoted: String =
            parameters.iter().map(|parameter| format!(" {}", shell_word(parameter))).collect();
        // The toolbox ends the command a little before this client stops waiting.
        let body =
            json!({ "command": format!("set --{quoted}\n{script}"), "timeout": TIMEOUT.as_secs() - 5 });
        let reply = self.call(doing, Method::POST, "/process/execute", Some(body)).await?;
        let CommandOutput { exit_code, result } = self.success(doing, &reply)?.json(doing)?;
        let end = match exit_code {
            0 => Ok(()),
            code => Err(format!(
                "the command in the sandbox ended with exit code {code}: {}",
                self.service.printable(&result)
            )),
        };
        Ok(ScriptOutput { text: result, end })
    }

    async fn upload(
        &self,
        doing: &'static str,
        path: &str,
        content: Bytes,
        sent: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), PlatformError> {
        let boundary = random::id("cofferdam-");
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"files[0].path\"\r\n\r\n{path}\r\n\
             --{boundary}\r\nContent-Disposition: form-data; name=\"files[0].file\"; filename=\"file\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        );
        let tail = format!("\r\n--{boundary}--\r\n");
        let total = content.len() as u64;
        let builder = self
            .service
            .request(Method::POST, "/files/bulk-upload")
            .header(CONTENT_TYPE, format!("multipart/form-data; boundary={boundary}"))
            .header(CONTENT_LENGTH, head.len() as u64 + total + tail.len() as u64);
        let (mut body, response) = self.service.stream(doing, builder);
        let pieces = async move {
            // A failed send means that the connection is gone: the response says why.
            let mut rest = content;
            body.send_data(head.into()).await.ok()?;
            while !rest.is_empty() {
                let piece = rest.split_to(rest.len().min(UPLOAD_PIECE));
                body.send_data(piece).await.ok()?;
                sent(total - rest.len() as u64);
            }
            body.send_data(tail.into()).await.ok()
        };
        let exchange = async {
            let (_, response) = tokio::join!(pieces, response);
            self.service.reply(doing, response?).await
        };
        let Ok(reply) = timeout(UPLOAD_TIMEOUT, exchange).await else {
            let why = format!("it took longer than {} s", UPLOAD_TIMEOUT.as_secs());
            return Err(PlatformError::Unavailable { doing, why, retry_after: None });
        };
        let reply = reply?;
        match self.write_errors(&reply) {
            Some(errors) if reply.status.is_client_error() => Err(PlatformError::Sandbox {
                doing,
                why: format!("the sandbox cannot write the file: {errors}"),
            }),
            _ => self.success(doing, &reply).map(drop),
        }
    }

    async fn download(&self, doing: &'static str, path: &str) -> Result<Bytes, PlatformError> {
        let reply =
            self.call(doing, Method::GET, &format!("/files/download?path={}", encoded(path)), None).await?;
        self.success(doing, &reply)?;
        Ok(Bytes::from_owner(reply.body))
    }

    fn redactor(&self) -> &Redactor {
        self.service.redactor()
    }
}

/// One word of a shell script.
fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_stays_one_word() {
        assert_eq!(shell_word("/home/a b"), "'/home/a b'");
        assert_eq!(shell_word("a'; rm $x"), r"'a'\''; rm $x'");
    }
}
