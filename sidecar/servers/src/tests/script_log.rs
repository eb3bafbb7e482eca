//! What the log of a [`Script`] says about its processes.

use std::collections::HashSet;

use crate::scripted::{Entry, ReceivedMessage, Script};

pub(super) fn methods(received: &[ReceivedMessage]) -> Vec<&str> {
    received.iter().filter_map(|received| received.method.as_deref()).collect()
}

pub(super) fn call_id(received: &ReceivedMessage) -> Option<u32> {
    let is_call = received.method.as_deref() == Some("tools/call");
    received.id.as_deref().filter(|_| is_call)?.parse().ok()
}

pub(super) fn ended(script: &Script, process: usize) -> bool {
    script.log().contains(&Entry::Ended(process))
}

/// No process was sent two requests under one id, neither of the harness nor of the sidecar itself.
pub(super) fn assert_ids_differ(script: &Script) {
    for process in 0..script.started() {
        let received = script.received_by(process);
        let mut ids = HashSet::new();
        for id in received.iter().filter_map(|received| received.id.as_deref()) {
            assert!(ids.insert(id), "process {process} was sent two requests under {id}: {received:?}");
        }
    }
}
