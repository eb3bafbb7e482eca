//! Ids, requests and responses of the scripted servers.

use std::time::Duration;

use relay_proto::envelope::IdValue;

use super::CallResult;
use crate::scripted::{Reaction, ReceivedMessage, default_response};

/// Answers every request; a call after the time in its `wait` parameter.
pub(super) fn answer_after_wait(received: &ReceivedMessage) -> Vec<Reaction> {
    let wait = received.message.split_once(r#""wait":"#).map_or("", |(_, rest)| rest);
    let wait = wait.split(|char: char| !char.is_ascii_digit()).next().and_then(|text| text.parse().ok());
    let write = |response| match wait {
        Some(milliseconds @ 1..) => Reaction::WriteAfter(Duration::from_millis(milliseconds), response),
        _ => Reaction::Write(response),
    };
    default_response(received).map(write).into_iter().collect()
}

pub(super) fn json_rpc_id(id: u32) -> IdValue {
    IdValue::Integer(id.to_string().into())
}

pub(super) fn harness_id(id: &IdValue) -> Option<u32> {
    match id {
        IdValue::Integer(text) => text.parse().ok(),
        IdValue::Text(_) => None,
    }
}

pub(super) fn answered_by(process: usize) -> CallResult {
    CallResult::Answered(format!(r#"{{"by":{process}}}"#))
}
