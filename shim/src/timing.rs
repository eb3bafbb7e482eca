//! Every timeout and pause, in one place, so that tests can shorten them.

use std::time::Duration;

use relay_proto::mcp::ShimWait;

/// Timeouts and pauses of the shim.
#[derive(Clone, Debug)]
pub struct Timing {
    /// How long a handshake waits for a sidecar: less than the timeout of harnesses, which is about 30 s.
    pub handshake_wait: Duration,
    /// How long any other request waits for a sidecar.
    pub call_wait: Duration,
    /// The first pause between two attempts to connect. It doubles each time.
    pub first_retry: Duration,
    /// The longest pause while a request waits.
    pub longest_retry_waiting: Duration,
    /// The longest pause while no request waits.
    pub longest_retry_idle: Duration,
    /// The timeout from the connection to the sidecar's Welcome.
    pub welcome_timeout: Duration,
    /// How long an acknowledgement may wait to be sent with another frame.
    pub acknowledge_delay: Duration,
    /// How long the buffer of a long message is retained for another long message.
    pub keep_spare_buffer: Duration,
    /// How long the last bytes may take to be written when the shim exits.
    pub goodbye_timeout: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            handshake_wait: Duration::from_secs(20),
            call_wait: Duration::from_secs(60),
            first_retry: Duration::from_millis(50),
            longest_retry_waiting: Duration::from_secs(2),
            longest_retry_idle: Duration::from_secs(30),
            welcome_timeout: Duration::from_secs(10),
            acknowledge_delay: Duration::from_secs(1),
            keep_spare_buffer: Duration::from_secs(1),
            goodbye_timeout: Duration::from_millis(500),
        }
    }
}

impl Timing {
    /// How long a request of this kind waits while there is no sidecar.
    pub(crate) fn wait_for_sidecar(&self, wait: ShimWait) -> Duration {
        match wait {
            ShimWait::Call | ShimWait::Listener => self.call_wait,
            ShimWait::Handshake => self.handshake_wait,
        }
    }
}
