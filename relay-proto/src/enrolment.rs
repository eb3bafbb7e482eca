//! The enrolment string: where the sidecar is, which key it has, and a ticket that enrols one sandbox, once.
//!
//! `cofferdam:1:PIN:TICKET:ADDRESS`. The address comes last because it contains colons.

use std::fmt;
use std::str::FromStr;

use crate::address::{Address, InvalidAddress};
use crate::control::Ticket;
use crate::key::{InvalidKey, PublicKey, decode_hex};

/// What `cofferdam enroll` prints. Any sandbox that presents the ticket first is enrolled, so `Debug` hides the ticket.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EnrolmentString {
    /// The sidecar's key; a peer with another key is refused.
    pub pin: PublicKey,
    pub ticket: Ticket,
    pub relay: Address,
}

/// The messages repeat at most the address, never the ticket.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEnrolment {
    #[error("the address in it is not valid: {0}")]
    Address(#[from] InvalidAddress),
    #[error("it does not begin with `{START}`: use the string as `cofferdam enroll` printed it, whole")]
    NotAnEnrolment,
    #[error("the sidecar's key in it is not valid: {0}")]
    Pin(#[from] InvalidKey),
    #[error("it ends early: use the string as `cofferdam enroll` printed it, whole")]
    Short,
    #[error("the ticket in it is not valid: use the string as `cofferdam enroll` printed it, whole")]
    Ticket,
    #[error("a sandbox with an enrolment string dials out: its address is `tls://` or `wss://`, not `{0}`")]
    WrongAddress(Address),
}

impl FromStr for EnrolmentString {
    type Err = InvalidEnrolment;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rest = text.trim().strip_prefix(START).ok_or(InvalidEnrolment::NotAnEnrolment)?;
        let (pin, rest) = rest.split_once(':').ok_or(InvalidEnrolment::Short)?;
        let (ticket, relay) = rest.split_once(':').ok_or(InvalidEnrolment::Short)?;
        decode_hex::<TICKET_BYTES>(ticket).ok_or(InvalidEnrolment::Ticket)?;
        let relay: Address = relay.parse()?;
        match relay {
            Address::Tls(_) | Address::WebSocket(_) => {}
            _ => return Err(InvalidEnrolment::WrongAddress(relay)),
        }
        Ok(Self { pin: pin.parse()?, ticket: Ticket(ticket.into()), relay })
    }
}

impl fmt::Display for EnrolmentString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{START}{}:{}:{}", self.pin, self.ticket.0, self.relay)
    }
}

const START: &str = "cofferdam:1:";
const TICKET_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const PIN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    const TICKET: &str = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";

    #[test]
    fn a_string_is_displayed_as_it_was_parsed_and_debug_hides_the_ticket() {
        for relay in ["tls://relay.example.com:7443", "wss://relay.example.com/cofferdam", "tls://[::1]:7443"]
        {
            let text = format!("cofferdam:1:{PIN}:{TICKET}:{relay}");
            let enrolment: EnrolmentString = format!(" {text}\n").parse().unwrap();
            assert_eq!(enrolment.to_string(), text);
            assert!(!format!("{enrolment:?}").contains(TICKET));
        }
    }

    #[test]
    fn errors_do_not_repeat_the_ticket() {
        let refused = |text: &str| text.parse::<EnrolmentString>().unwrap_err();
        assert_eq!(refused("hello"), InvalidEnrolment::NotAnEnrolment);
        assert_eq!(refused("cofferdam:2:x"), InvalidEnrolment::NotAnEnrolment);
        assert_eq!(refused(&format!("cofferdam:1:{PIN}")), InvalidEnrolment::Short);
        assert_eq!(refused(&format!("cofferdam:1:{PIN}:{TICKET}")), InvalidEnrolment::Short);
        assert_eq!(
            refused(&format!("cofferdam:1:{PIN}:{}:tls://h:1", &TICKET[1..])),
            InvalidEnrolment::Ticket
        );
        assert_eq!(
            refused(&format!("cofferdam:1:{}:{TICKET}:tls://h:1", &PIN[2..])),
            InvalidEnrolment::Pin(InvalidKey(62))
        );
        let unix = refused(&format!("cofferdam:1:{PIN}:{TICKET}:unix:/x"));
        assert_eq!(unix, InvalidEnrolment::WrongAddress(Address::Unix("/x".into())));
        let address = refused(&format!("cofferdam:1:{PIN}:{TICKET}:tls://h"));
        assert!(matches!(address, InvalidEnrolment::Address(_)));
        assert!(!address.to_string().contains(TICKET));
    }
}
