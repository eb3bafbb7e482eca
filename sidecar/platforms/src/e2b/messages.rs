//! The messages of `envd`'s process service, in the JSON form of its protocol buffers.
//!
//! What must stay true: unknown fields are ignored, and absent fields have their default value, as in protocol buffers.

use std::borrow::Cow;

use base64ct::{Base64, Encoding as _};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::connect::encode_frame;

#[derive(Serialize)]
pub(super) struct StartRequest<'a> {
    pub(super) process: ProcessConfig<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tag: Option<&'a str>,
    pub(super) stdin: bool,
}

/// The command of a process. The platform logs it.
#[derive(Serialize)]
pub(super) struct ProcessConfig<'a> {
    pub(super) cmd: &'a str,
    pub(super) args: Vec<&'a str>,
}

/// Which process a request is about.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Selector<'a> {
    Pid(u32),
    Tag(&'a str),
}

#[derive(Serialize)]
pub(super) struct CloseStdinRequest<'a> {
    pub(super) process: Selector<'a>,
}

#[derive(Serialize)]
pub(super) struct SignalRequest<'a> {
    pub(super) process: Selector<'a>,
    pub(super) signal: Signal,
}

#[derive(Clone, Copy, Serialize)]
pub(super) enum Signal {
    #[serde(rename = "SIGNAL_SIGKILL")]
    Kill,
    #[serde(rename = "SIGNAL_SIGTERM")]
    Terminate,
}

/// An event of a process.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum ProcessEvent {
    Started(u32),
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Ended(ProcessEnd),
    /// A keep-alive, or an event that this version does not know.
    KeepAlive,
}

#[derive(Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ProcessEnd {
    pub(super) exit_code: i32,
    pub(super) exited: bool,
    pub(super) status: String,
}

/// An error of the Connect protocol.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RpcError {
    pub(super) code: String,
    pub(super) message: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct EndOfStream {
    pub(super) error: Option<RpcError>,
}

#[derive(Debug, thiserror::Error)]
#[error("an event of the process is not the expected JSON")]
pub(super) struct InvalidEvent;

#[derive(Deserialize)]
struct EventResponse<'a> {
    #[serde(borrow, default)]
    event: Event<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Event<'a> {
    start: Option<Started>,
    #[serde(borrow)]
    data: Option<Output<'a>>,
    end: Option<ProcessEnd>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Started {
    pid: u32,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Output<'a> {
    #[serde(borrow)]
    stdout: Option<Cow<'a, str>>,
    #[serde(borrow)]
    stderr: Option<Cow<'a, str>>,
}

impl ProcessEvent {
    pub(super) fn read(json: &[u8]) -> Result<Self, InvalidEvent> {
        let EventResponse { event } = serde_json::from_slice(json).map_err(|_| InvalidEvent)?;
        let decode = |text: &str| Base64::decode_vec(text).map_err(|_| InvalidEvent);
        Ok(match event {
            Event { start: Some(Started { pid }), .. } => Self::Started(pid),
            Event { data: Some(Output { stdout: Some(bytes), .. }), .. } => Self::Stdout(decode(&bytes)?),
            Event { data: Some(Output { stderr: Some(bytes), .. }), .. } => Self::Stderr(decode(&bytes)?),
            Event { end: Some(end), .. } => Self::Ended(end),
            Event { .. } => Self::KeepAlive,
        })
    }
}

/// The first frame of an input stream, which names the process.
pub(super) fn input_start(process: Selector<'_>) -> Bytes {
    let process = serde_json::to_string(&process).unwrap_or_default();
    encode_frame(format!(r#"{{"start":{{"process":{process}}}}}"#).as_bytes())
}

/// A frame with bytes for the process's stdin.
pub(super) fn input_data(bytes: &[u8]) -> Bytes {
    let bytes = Base64::encode_string(bytes);
    encode_frame(format!(r#"{{"data":{{"input":{{"stdin":"{bytes}"}}}}}}"#).as_bytes())
}

pub(super) fn input_keep_alive() -> Bytes {
    encode_frame(br#"{"keepalive":{}}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_envd_are_parsed() {
        let read = |json: &str| ProcessEvent::read(json.as_bytes()).ok();
        assert_eq!(read(r#"{"event":{"start":{"pid":42}}}"#), Some(ProcessEvent::Started(42)));
        assert_eq!(
            read(r#"{"event":{"data":{"stdout":"AP8K"}}}"#),
            Some(ProcessEvent::Stdout(vec![0, 255, 10]))
        );
        assert_eq!(read(r#"{"event":{"data":{"stdout":"\/w=="}}}"#), Some(ProcessEvent::Stdout(vec![255])));
        assert_eq!(
            read(r#"{"event":{"data":{"stderr":"bm8="}}}"#),
            Some(ProcessEvent::Stderr(b"no".to_vec()))
        );
        assert_eq!(read(r#"{"event":{"keepalive":{}}}"#), Some(ProcessEvent::KeepAlive));
        assert_eq!(read(r#"{"event":{"something":{"new":1}},"more":2}"#), Some(ProcessEvent::KeepAlive));
        let end = ProcessEnd { exit_code: 0, exited: true, status: "exit status 0".to_owned() };
        assert_eq!(
            read(r#"{"event":{"end":{"exited":true,"status":"exit status 0"}}}"#),
            Some(ProcessEvent::Ended(end))
        );
        for bad in ["", "7", r#"{"event":{"data":{"stdout":"*"}}}"#, r#"{"event":{"start":{"pid":-1}}}"#] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn requests_have_the_json_that_envd_expects() {
        let process = ProcessConfig { cmd: "/bin/x", args: vec!["a b", "\"c\""] };
        let start = serde_json::to_value(StartRequest { process, tag: Some("hub"), stdin: true }).unwrap();
        assert_eq!(
            start,
            serde_json::json!({"process": {"cmd": "/bin/x", "args": ["a b", "\"c\""]}, "tag": "hub", "stdin": true})
        );
        assert_eq!(&input_start(Selector::Pid(7))[5..], br#"{"start":{"process":{"pid":7}}}"#);
        assert_eq!(&input_data(&[0, 255])[5..], br#"{"data":{"input":{"stdin":"AP8="}}}"#);
        let signal = SignalRequest { process: Selector::Tag("t"), signal: Signal::Terminate };
        assert_eq!(
            serde_json::to_string(&signal).unwrap(),
            r#"{"process":{"tag":"t"},"signal":"SIGNAL_SIGTERM"}"#
        );
    }
}
