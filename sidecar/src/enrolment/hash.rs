//! Hashes of tickets and epochs. The tickets and epochs themselves are not stored.

use std::fmt;

use cofferdam_base::text::hex;
use relay_proto::control::{Epoch, Ticket};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

/// SHA-256 of the text of a ticket or an epoch, in lower-case hex. Tickets and epochs have 256 random bits, so the hash
/// reveals nothing about them, and comparing hashes leaks nothing through timing.
#[derive(Clone, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Fingerprint(Box<str>);

impl Fingerprint {
    /// `None` if the text does not have the form of a ticket.
    pub(super) fn of_ticket(ticket: &Ticket) -> Option<Self> {
        let is_ticket =
            ticket.0.len() == TICKET_DIGITS && ticket.0.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_ticket.then(|| Self::of(&ticket.0.to_ascii_lowercase()))
    }

    pub(crate) fn of_epoch(epoch: &Epoch) -> Self {
        Self::of(&epoch.0)
    }

    fn of(text: &str) -> Self {
        let digest = digest(&SHA256, text.as_bytes());
        Self(hex(digest.as_ref()).into())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Fingerprint({}…)", self.0.get(..8).unwrap_or_default())
    }
}

const TICKET_DIGITS: usize = 64;
