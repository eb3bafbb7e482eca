//! A command that follows its attachment: the sidecar sends it the attachment's status, and ends the attachment when the
//! command disconnects, unless the attachment was detached.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::keeper::AttachmentKeeper;
use super::status::{AttachmentState, AttachmentStatus, OverCause};
use super::table::{EndReason, Entry};

/// Ends its attachment when dropped, unless the attachment was detached.
pub(crate) struct Follower {
    keeper: AttachmentKeeper,
    entry: Entry,
    at_drop: AtDrop,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum AtDrop {
    EndAttachment,
    KeepAttachment,
}

/// Whether the attachment is detached from its command once the sandbox is attached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Detach {
    No,
    WhenAttached,
}

/// How long sending one status may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

impl Follower {
    pub(super) fn new(keeper: AttachmentKeeper, entry: Entry) -> Self {
        Self { keeper, entry, at_drop: AtDrop::EndAttachment }
    }

    /// Sends each new status as a JSON line, until the attachment is over or the client disconnects. A client that reads
    /// slowly gets the newest status, not all of them.
    pub(crate) async fn follow(mut self, mut stream: UnixStream, detach: Detach) {
        let mut statuses = self.entry.status.subscribe();
        statuses.mark_changed();
        let mut buffer = [0; 64];
        loop {
            let changed = tokio::select! {
                changed = statuses.changed() => changed,
                () = self.keeper.daemon.stop.cancelled() => {
                    // The attachment's task ends by itself, after the links have ended.
                    self.at_drop = AtDrop::KeepAttachment;
                    return;
                }
                // The client sends nothing; only its disconnect matters.
                read = stream.read(&mut buffer) => match read {
                    Ok(1..) => continue,
                    _ => return,
                },
            };
            // `self.entry` has a sender, so this does not fail.
            if changed.is_err() {
                return;
            }
            let mut status = statuses.borrow_and_update().clone();
            if may_be_detached(&status.state)
                && detach == Detach::WhenAttached
                && self.at_drop == AtDrop::EndAttachment
            {
                match self.keeper.detach(&self.entry).await {
                    Ok(()) => self.at_drop = AtDrop::KeepAttachment,
                    Err(why) => {
                        let why = format!("the attachment cannot be detached: {why}");
                        status.state = AttachmentState::Over { why, cause: OverCause::NotSaved };
                    }
                }
                status.lifetime = self.entry.status.borrow().lifetime;
            }
            let is_over = matches!(status.state, AttachmentState::Over { .. });
            if send(&mut stream, &status).await.is_err() || is_over {
                return;
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if self.at_drop == AtDrop::EndAttachment {
            self.entry.set_end_reason(EndReason::CommandDisconnected);
            self.entry.stop.cancel();
        }
    }
}

/// Whether the attachment has reached a state in which it may be detached.
fn may_be_detached(state: &AttachmentState) -> bool {
    matches!(state, AttachmentState::Attached { .. } | AttachmentState::Suspended { .. })
}

async fn send(stream: &mut UnixStream, status: &AttachmentStatus) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(status)?;
    line.push(b'\n');
    timeout(SEND_TIMEOUT, stream.write_all(&line)).await?
}
