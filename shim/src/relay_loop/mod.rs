//! The relay's event loop: waits for readiness, passes bytes to the [`RelayState`], writes its output.
//!
//! One task owns everything. In the usual case a message costs one read and one write: what was read is forwarded
//! in the same iteration, without waiting for readiness first, and timers are only touched when an earlier one is needed.

mod wait;

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};

use relay_proto::control::{Goodbye, Refusal};
use relay_proto::frame::{Frame, FrameView};
use relay_proto::limits::MAX_MESSAGE;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use crate::connection::{ConnectError, Connection, OpenedConnection};
use crate::fork_detector::{Fork, ForkDetector};
use crate::lines::Lines;
use crate::link::{Attempt, Dialer, EnrolmentWait};
use crate::options::Options;
use crate::relay_state::{ConnectionAction, RelayState};
use crate::stderr_log::StderrLog;
use crate::stdio::Stdio;
use crate::timing::Timing;
use wait::Events;

/// Relays until the harness is gone (end of input, or output closed) or `stop` resolves. Problems go to `log`.
pub(crate) async fn run(
    options: Options,
    timing: Timing,
    input: Stdio,
    output: Stdio,
    stop: impl Future<Output = ()>,
    log: StderrLog,
) -> io::Result<()> {
    let goodbye_timeout = timing.goodbye_timeout;
    let mut relay = Relay {
        state: RelayState::new(options.server.clone(), timing, Instant::now()),
        lines: Lines::new(MAX_MESSAGE),
        dialer: Dialer::new(options),
        attempt: None,
        connection: None,
        input,
        output,
        log,
        fork_detector: ForkDetector::new(),
    };
    let mut stop = pin!(stop);
    let mut alarm = pin!(sleep_until(Instant::now()));
    while relay.iterate(stop.as_mut(), alarm.as_mut()).await == Next::Continue {}
    relay.state.sidecar.fill();
    relay.state.sidecar.queue_goodbye();
    // Bytes that cannot be written within the timeout are lost.
    let _ = timeout(goodbye_timeout, relay.flush()).await;
    Ok(())
}

struct Relay {
    state: RelayState,
    lines: Lines,
    dialer: Dialer,
    attempt: Option<Attempt>,
    connection: Option<Connection>,
    input: Stdio,
    output: Stdio,
    log: StderrLog,
    fork_detector: ForkDetector,
}

/// Whether the loop continues. It exits when the harness has closed stdin or stdout, or when `stop` resolves.
#[derive(Eq, PartialEq)]
enum Next {
    Continue,
    Exit,
}

impl Relay {
    /// Waits for events and handles them.
    async fn iterate(
        &mut self,
        stop: Pin<&mut impl Future<Output = ()>>,
        mut alarm: Pin<&mut Sleep>,
    ) -> Next {
        self.start_attempt();
        if self.write() == Next::Exit {
            return Next::Exit;
        }
        let deadline = self.state.deadline();
        // The alarm may fire before a later deadline: cheaper than moving it with every message.
        if let Some(deadline) = deadline
            && (deadline < alarm.deadline() || alarm.is_elapsed())
        {
            alarm.as_mut().reset(deadline);
        }
        let events = self.wait(stop, alarm, deadline).await;
        let next = self.handle(events);
        if let Some(problem) = self.state.sidecar.take_unreported() {
            self.log.warn_once(problem);
        }
        next
    }

    /// The order matters: bytes that were written or read belong to the previous connection, not to a new one; and written
    /// bytes must be consumed first, even if the loop then ends.
    fn handle(&mut self, events: Events) -> Next {
        let now = Instant::now();
        match events.sent_to_sidecar {
            Some(Ok(count)) => self.state.sidecar.output.consume(count),
            Some(Err(error)) => self.connection_lost(format!("write to the sidecar: {error}"), now),
            None => {}
        }
        match events.sent_to_harness {
            Some(Ok(count)) => self.state.harness.output.consume(count),
            Some(Err(_)) => return Next::Exit,
            None => {}
        }
        if events.stop {
            return Next::Exit;
        }
        match events.frames {
            Some(Ok(count @ 1..)) => self.read_frames(count, now),
            Some(Ok(0)) => self.connection_lost("the sidecar closed the connection".into(), now),
            Some(Err(error)) => self.connection_lost(format!("read from the sidecar: {error}"), now),
            None => {}
        }
        match events.lines {
            Some(Ok(count @ 1..)) => {
                self.lines.filled(count);
                while let Some(line) = self.lines.next() {
                    self.state.line(line, now);
                }
            }
            // An error means the same as the end: there will be no more lines.
            Some(Ok(0) | Err(_)) => {
                if let Some(line) = self.lines.last() {
                    self.state.line(line, now);
                }
                return Next::Exit;
            }
            None => {}
        }
        if events.alarm && self.state.tick(now) == ConnectionAction::Close {
            self.close();
        }
        if let Some(result) = events.connected {
            self.attempt = None;
            self.attempt_ended(result, now);
        }
        Next::Continue
    }

    fn start_attempt(&mut self) {
        let wanted = self.connection.is_none() && self.state.should_connect(Instant::now());
        if self.attempt.is_none() && (wanted || self.dialer.listens() && !self.state.sidecar.is_refused()) {
            self.attempt = Some(self.dialer.attempt());
        }
        if wanted {
            self.state.sidecar.connecting();
        }
    }

    fn attempt_ended(&mut self, result: Result<OpenedConnection, ConnectError>, now: Instant) {
        match result {
            Ok(OpenedConnection { connection, proof, held_key, .. }) => {
                if self.connection.is_some() {
                    self.connection_lost("the sidecar connected again".into(), now);
                }
                if self.fork_detector.check() == Fork::Yes {
                    // The link belongs to the original sandbox. What this copy had sent may have run.
                    self.state.restart_link();
                }
                self.dialer.opened(held_key);
                self.connection = Some(connection);
                self.state.sidecar.connected(proof, now);
            }
            // Another peer failed to authenticate at the port of a shim that is connected.
            Err(error) if self.connection.is_some() => self.log.warn_once(error.to_string()),
            Err(error) if error.is_final() => self.state.stop_connecting(&error.to_string()),
            Err(error) => self.state.sidecar.disconnected(error.to_string(), now),
        }
        self.retry_if_waiting_for_enrolment(now);
    }

    /// Handles the frames in the `count` bytes that were received.
    fn read_frames(&mut self, count: usize, now: Instant) {
        let Some(connection) = &mut self.connection else { return };
        connection.decoder.filled(count);
        self.state.sidecar.bytes_received();
        loop {
            match connection.decoder.next_view() {
                Ok(Some(mut frame)) => {
                    let enrolment_change = use_other_enrolment(&mut self.dialer, &mut frame);
                    if self.state.frame(frame, now) == ConnectionAction::Close {
                        if enrolment_change == EnrolmentChange::Yes {
                            self.state.restart_link();
                        }
                        break;
                    }
                    if let Some(welcomed) = self.state.sidecar.take_welcomed()
                        && let Err(error) = self.dialer.welcomed(welcomed.epoch)
                    {
                        self.state.welcome_not_stored(error, now);
                        break;
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    self.state.undecodable(&error, now);
                    break;
                }
            }
        }
        self.close();
        self.retry_if_waiting_for_enrolment(now);
    }

    /// Schedules another attempt if the shim was refused for good: it may get a new enrolment while it runs.
    fn retry_if_waiting_for_enrolment(&mut self, now: Instant) {
        if self.dialer.enrolment_wait() == EnrolmentWait::Yes {
            self.state.sidecar.retry_after_refusal(now);
        }
    }

    fn close(&mut self) {
        self.connection = None;
        self.dialer.disconnected();
    }

    fn connection_lost(&mut self, why: String, now: Instant) {
        self.close();
        self.state.sidecar.disconnected(why, now);
    }

    /// Writes what can be written without waiting, in both directions.
    fn write(&mut self) -> Next {
        self.state.sidecar.fill();
        while let Some(connection) = &self.connection
            && !self.state.sidecar.output.is_empty()
        {
            match connection.stream.try_write(self.state.sidecar.output.waiting()) {
                Ok(0) => break,
                Ok(count) => self.state.sidecar.output.consume(count),
                Err(error) => self.connection_lost(format!("write to the sidecar: {error}"), Instant::now()),
            }
            self.state.sidecar.fill();
        }
        if !self.state.harness.output.is_empty() {
            match self.output.try_write(self.state.harness.output.waiting()) {
                Ok(count) => self.state.harness.output.consume(count),
                Err(_) => return Next::Exit,
            }
        }
        Next::Continue
    }

    /// Writes the rest, waiting for room: to the sidecar first, so that its servers end.
    async fn flush(&mut self) -> io::Result<()> {
        while let Some(connection) = &self.connection
            && (!self.state.sidecar.output.is_empty() || connection.stream.has_unsent())
        {
            match connection.stream.write(self.state.sidecar.output.waiting()).await {
                Ok(count) => self.state.sidecar.output.consume(count),
                Err(_) => self.connection = None,
            }
        }
        while !self.state.harness.output.is_empty() {
            let count = self.output.write(self.state.harness.output.waiting()).await?;
            self.state.harness.output.consume(count);
        }
        Ok(())
    }
}

/// Whether the next attempt uses another enrolment.
#[derive(Clone, Copy, Eq, PartialEq)]
enum EnrolmentChange {
    No,
    Yes,
}

/// Turns a final refusal in `frame` into a retry if there is another enrolment to try.
fn use_other_enrolment(dialer: &mut Dialer, frame: &mut FrameView<'_>) -> EnrolmentChange {
    let FrameView::Control(frame) = frame else { return EnrolmentChange::No };
    let (Frame::Refusal(Refusal { code, retry, .. }) | Frame::Goodbye(Goodbye { code, retry, .. })) =
        &mut **frame
    else {
        return EnrolmentChange::No;
    };
    let before = std::mem::replace(retry, dialer.refused(code, *retry));
    if before == *retry { EnrolmentChange::No } else { EnrolmentChange::Yes }
}
