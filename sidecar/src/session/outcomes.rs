//! What became of calls, written down in batches: after each turn of the link, before anything more is waited for.

use std::time::Duration;

use relay_proto::code::Code;

use super::calls::Call;
use super::link::Link;
use crate::audit::{self, CallResult, OutcomeRecord};

/// An outcome that waits to be written.
#[derive(Debug)]
pub(super) struct Outcome {
    call: Call,
    result: CallResult,
    code: Option<Code>,
    bytes: usize,
    duration: Duration,
    redactions: u32,
}

impl Link {
    pub(super) fn record_outcome(
        &mut self,
        call: Call,
        result: CallResult,
        code: Option<Code>,
        bytes: usize,
        redactions: u32,
    ) {
        let duration = call.began.elapsed();
        self.outcomes.push(Outcome { call, result, code, bytes, duration, redactions });
    }

    /// Writes all that wait, with one write.
    pub(super) fn write_outcomes(&mut self) {
        if self.outcomes.is_empty() {
            return;
        }
        let scrubber = self.session.credentials.scrubber();
        // What the sandbox called it may repeat what a server told it.
        let names: Vec<_> = self
            .outcomes
            .iter()
            .map(|outcome| {
                let tool = outcome.call.tool.as_deref().map(|tool| scrubber.name(tool));
                (scrubber.name(&outcome.call.method), tool)
            })
            .collect();
        let records = self.outcomes.iter().zip(&names).map(|(outcome, (method, tool))| OutcomeRecord {
            call: audit::Call {
                session: &self.session.id,
                link: &self.id,
                seq: outcome.call.seq,
                server: Some(self.server.as_str()),
                method,
                tool: tool.as_deref(),
            },
            result: outcome.result,
            code: outcome.code.map(Code::as_str),
            bytes: outcome.bytes as u64,
            duration: outcome.duration,
            redactions: u64::from(outcome.redactions),
        });
        if let Err(error) = self.session.context.audit.outcomes(&self.session.budget, records) {
            let count = self.outcomes.len();
            tracing::error!(link = %self.id, session = %self.session.id, %error, count, "outcomes not recorded");
        }
        drop(names);
        self.outcomes.clear();
    }
}
