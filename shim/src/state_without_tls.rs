//! A shim without TLS has no key, no enrolment, and no state.

use std::path::PathBuf;

use relay_proto::control::Epoch;
use relay_proto::key::PublicKey;

use crate::options::EnrolmentSources;

#[derive(Clone, Debug)]
pub(crate) struct EnrolmentState;

/// Cannot exist: there is no key to hold the lock for.
#[derive(Debug)]
pub(crate) enum HeldKey {}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OtherEnrolment {
    None,
    #[expect(dead_code, reason = "there is never another enrolment")]
    Ready,
}

impl EnrolmentState {
    pub(crate) fn new(_directory: PathBuf, _sources: EnrolmentSources) -> Self {
        Self
    }

    pub(crate) fn refused(&self, _key: &PublicKey) -> OtherEnrolment {
        OtherEnrolment::None
    }
}

impl HeldKey {
    pub(crate) fn key(&self) -> PublicKey {
        match *self {}
    }

    pub(crate) fn store_epoch(self, _epoch: Epoch) -> Result<(), std::convert::Infallible> {
        match self {}
    }
}
