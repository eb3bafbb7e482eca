//! When a credential is renewed, when it is read again, and how long to wait after a failure.
//!
//! | module | what it is for |
//! |---|---|
//! | [`terms`] | what is known about a credential's validity: its class, its expiry |
//! | [`schedule`] | what to do next, and when; without a clock, randomness or requests |
//! | [`run`] | the loop that carries out the schedule of a [`Renewable`] |
//!
//! The five classes of credentials:
//!
//! | class | how it is recognised | what is done |
//! |---|---|---|
//! | [`RenewalClass::Renewable`] | a lease, `renewable` | renewed at two thirds; read again once a renewal does not extend it, or a check does not find it |
//! | [`RenewalClass::Fixed`] | a lease, not `renewable` | read again before its end, or once a check does not find it |
//! | [`RenewalClass::OwnExpiry`] | no lease, but an expiry: in the response, in the value or requested ([`embedded_expiry`](super::embedded_expiry)), or printed with the credential ([`expiring`](super::expiring)) | read again before its end; it cannot be revoked |
//! | [`RenewalClass::StatedInterval`] | a key-value secret with a `ttl` shorter than `refresh`, or a duration in the response without a lease | read again at this interval |
//! | [`RenewalClass::Static`] | a key-value secret | read again every `refresh` |
//!
//! What must stay true: no credential is assumed to outlive the token that it depends on; a lifetime counts from before the
//! request, on a monotonic clock; there is a pause between two requests for one credential, whatever lifetime the source
//! states; credentials that were read together are not renewed together.

mod run;
mod schedule;
mod terms;

pub use run::{Failure, Renewable, RenewalEvent, run_renewal};
pub use schedule::{Action, PlannedAction, RenewalSchedule};
pub use terms::{RenewalClass, Terms};
