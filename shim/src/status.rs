//! `cofferdam-shim status`: requests the sidecar's status at the address that a shim uses, without opening a link.

use std::fmt::Write as _;
use std::future::poll_fn;
use std::time::Duration;

use relay_proto::code::Code;
use relay_proto::control::{Hello, Purpose, Refusal, Status};
use relay_proto::decoder::Decoder;
use relay_proto::frame::{DecodeError, Frame, PREFACE};
use relay_proto::limits::VERSION;
use serde::Serialize;
use tokio::time::timeout;

use crate::connection::{Connection, OpenedConnection};
use crate::failure::Failure;
use crate::link::Dialer;
use crate::options::{Options, OutputFormat, SOFTWARE};
use crate::shim_error::describe_version_difference;
use crate::stream::Stream;

/// The text to print, and whether the sidecar responded.
pub(crate) struct Report {
    pub(crate) text: String,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    Success,
    Failure,
}

/// The output of `status --json`.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct JsonReport<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<String>,
    #[serde(flatten)]
    status: Option<&'a Status>,
    #[serde(rename = "trouble", skip_serializing_if = "Option::is_none")]
    error: Option<&'a Failure>,
}

/// The timeout from Hello to the response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests the status and formats it.
pub(crate) async fn report(options: Options, format: OutputFormat) -> Report {
    let (link, fetched) = fetch(options).await;
    let (status, error) = match &fetched {
        Ok(status) => (Some(status), None),
        Err(error) => (None, Some(error)),
    };
    let outcome = if fetched.is_ok() { Outcome::Success } else { Outcome::Failure };
    let text = match (format, status, error) {
        (OutputFormat::Json, status, error) => JsonReport { link, status, error }.to_line(),
        (OutputFormat::Text, Some(status), _) => as_text(link.as_deref().unwrap_or("?"), status),
        (OutputFormat::Text, None, error) => {
            error.map(|Failure { code, message, .. }| format!("{code}: {message}")).unwrap_or_default()
        }
    };
    Report { text, outcome }
}

/// Connects and requests the status. Returns the address of the connection, and the status or why there is none.
pub(crate) async fn fetch(options: Options) -> (Option<String>, Result<Status, Failure>) {
    let mut dialer = Dialer::new(options);
    let attempted = match dialer.listens() {
        // The running shim uses that port, and the sidecar does not dial in for a status request.
        true => {
            Err("no status: the sidecar dials in on this link; run `cofferdam sessions` on the host".into())
        }
        false => dialer.attempt().await.map_err(|error| error.to_string()),
    };
    match attempted {
        Ok(OpenedConnection { connection, address, proof, held_key: _held_key }) => {
            let hello = Hello {
                versions: vec![VERSION],
                proof,
                purpose: Purpose::Status,
                server: None,
                resume: None,
                capabilities: Vec::new(),
                software: SOFTWARE.into(),
            };
            let response = timeout(RESPONSE_TIMEOUT, query(connection, hello)).await;
            let status = response.unwrap_or_else(|_| {
                Err(Failure::unavailable("the sidecar accepted the connection but did not respond"))
            });
            (Some(address.to_string()), status)
        }
        Err(error) => (None, Err(Failure::unavailable(&error))),
    }
}

/// The line that a command with `--json` prints when it fails.
pub(crate) fn failure_json(failure: &Failure) -> Vec<u8> {
    JsonReport { link: None, status: None, error: Some(failure) }.to_line().into_bytes()
}

impl JsonReport<'_> {
    fn to_line(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers always serialise") + "\n"
    }
}

async fn query(mut connection: Connection, hello: Hello) -> Result<Status, Failure> {
    let mut bytes = PREFACE.to_vec();
    Frame::Hello(hello).encode(&mut bytes);
    let mut sent = 0;
    while sent < bytes.len() || connection.stream.has_unsent() {
        let written = connection.stream.write(&bytes[sent..]).await;
        sent += written.map_err(|error| Failure::unavailable(&format!("write to the sidecar: {error}")))?;
    }
    let Connection { stream, decoder } = &mut connection;
    match next_frame(stream, decoder).await? {
        Frame::Status(status) => Ok(status),
        Frame::Refusal(Refusal { code, message, .. }) => Err(Failure::new(&code, message)),
        _ => Err(Failure::unavailable(
            "the sidecar did not send its status; if it is older than this shim, upgrade it",
        )),
    }
}

async fn next_frame(stream: &Stream, decoder: &mut Decoder) -> Result<Frame, Failure> {
    loop {
        if let Some(frame) = decoder.next().map_err(|error| undecodable(&error))? {
            return Ok(frame);
        }
        let read = poll_fn(|context| stream.poll_read(context, decoder.spare())).await;
        match read.map_err(|error| Failure::unavailable(&format!("read from the sidecar: {error}")))? {
            0 => return Err(Failure::unavailable("the sidecar closed the connection")),
            count => decoder.filled(count),
        }
    }
}

fn undecodable(error: &DecodeError) -> Failure {
    match error {
        DecodeError::OtherVersion { ours, theirs } => {
            Failure::new(Code::VersionRefused.as_str(), describe_version_difference(*ours, *theirs))
        }
        error => Failure::unavailable(&error.to_string()),
    }
}

fn as_text(link: &str, status: &Status) -> String {
    let servers = status.servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let session = match &status.session {
        Some(session) => format!("{session}, {} links", status.links),
        None => "none now".into(),
    };
    let mut text = String::new();
    let mut row = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<9}{value}");
    };
    row("link", link);
    row("sidecar", &status.software);
    if let Some(name) = &status.name {
        row("sandbox", name);
    }
    row("grant", &status.grant.to_string());
    row("servers", &servers);
    row("session", &session);
    if let Some(seconds) = status.expires_in_seconds {
        row("expires", &format!("in {}h{:02}m{:02}s", seconds / 3600, seconds / 60 % 60, seconds % 60));
    }
    text.chars().filter(|character| *character == '\n' || !character.is_control()).collect()
}
