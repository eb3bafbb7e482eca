//! A shim without TLS has no enrolment to connect with.

use std::future::{Ready, ready};

use relay_proto::address::Address;

use crate::connection::{ConnectError, OpenedConnection};
use crate::network::Network;
use crate::state::EnrolmentState;

/// Always fails: there is no enrolment, or no TLS for this address.
pub(crate) fn connect(
    _: EnrolmentState,
    relay: Option<Address>,
    _: Network,
) -> Ready<Result<OpenedConnection, ConnectError>> {
    ready(Err(relay.map_or_else(
        || ConnectError::NoEnrolment("this shim was built without TLS and cannot be enrolled".into()),
        ConnectError::NoTls,
    )))
}
