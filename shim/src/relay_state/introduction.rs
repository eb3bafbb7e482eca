//! A fresh link has a new server process, which knows nothing of what the harness said to the old one.
//!
//! It is told so before the first request: the handshake, and when that is answered the settings. A server that does
//! not take its introduction (it does not start, for instance) gets none of the requests either; they are answered
//! with the reason, and the next one tries again.

use std::ops::Range;

use relay_proto::code::Code;
use relay_proto::envelope::{IdValue, Outcome};
use relay_proto::frame::MaybeRan;
use relay_proto::json;
use relay_proto::memory::{Heard, Question, Saying};

use super::{Introduction, Phase, Queued, RelayState};
use crate::answer::Answer;

impl RelayState {
    /// Begins the introduction if it is due and somebody is there to hear it.
    pub(super) fn introduce(&mut self) {
        if self.introduction != Introduction::Due || !matches!(self.phase, Phase::Up(_)) {
            return;
        }
        // The harness makes its own, which is among what waits.
        if self.memory.is_shaking_hands() {
            self.introduction = Introduction::Made;
            return;
        }
        match self.memory.handshake().filter(|question| question.message.len() <= self.max_message) {
            Some(question) => {
                self.outbox.push(&question.message, MaybeRan::No);
                self.introduction = Introduction::UnderWay;
            }
            None => self.finish_introduction(),
        }
    }

    /// An answer to a request of the shim's own.
    pub(super) fn own_answer(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) {
        match self.memory.own_answer(id, outcome, message, body.clone()) {
            Heard::Handshake(Outcome::Result) => {
                self.finish_introduction();
                self.send_backlog();
            }
            Heard::Handshake(Outcome::Error) => self.not_introduced(&why(message, body)),
            Heard::Nothing => {}
            Heard::ToolsChanged => {
                for line in self.memory.tools_changed() {
                    self.write_line(&line);
                }
            }
        }
    }

    fn finish_introduction(&mut self) {
        for saying in self.memory.settings() {
            let (Saying::Notification { message, .. } | Saying::Request(Question { message, .. })) = saying;
            if message.len() <= self.max_message {
                self.outbox.push(&message, MaybeRan::No);
            }
        }
        self.introduction = Introduction::Made;
    }

    /// What waited for the introduction did not run, unless it may have run on the link before.
    fn not_introduced(&mut self, answer: &Answer) {
        self.introduction = Introduction::Due;
        let unknown = Answer::outcome_unknown(&answer.sentence);
        for queued in std::mem::take(&mut self.backlog) {
            if let Queued::Request(id) = queued {
                self.answer(&id, answer, &unknown);
            }
        }
        self.backlog_bytes = 0;
    }
}

/// The sidecar's reason, or the server's, for not taking the handshake.
fn why(message: &[u8], error: Option<Range<usize>>) -> Answer {
    let member = |object: Option<Range<usize>>, key| object.and_then(|span| json::member(message, span, key));
    let text = |span: Option<Range<usize>>| span.and_then(|span| json::text(message, span));
    let code = text(member(member(error.clone(), "data"), "code")).and_then(|code| code.parse::<Code>().ok());
    let said = text(member(error, "message")).unwrap_or_default();
    match code {
        // The sentence begins with the code already.
        Some(code) => {
            let sentence = said.strip_prefix(&format!("{}: ", code.as_str())).unwrap_or(&said).to_owned();
            Answer { code: did_not_run(code), sentence }
        }
        None => Answer {
            code: Code::ServerUnavailable,
            sentence: format!(
                "it did not run: the server refused the handshake that it accepted before: {said}"
            ),
        },
    }
}

/// The handshake may or may not have been made; the requests that waited for it were not.
fn did_not_run(code: Code) -> Code {
    match code {
        Code::OutcomeUnknown => Code::ServerUnavailable,
        code => code,
    }
}
