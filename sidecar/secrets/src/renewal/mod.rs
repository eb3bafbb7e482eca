//! When a credential is renewed, when it is read again, and how long to wait after a failure.
//!
//! | module | what it is for |
//! |---|---|
//! | [`terms`] | what is known about a credential's validity: its class, its end |
//! | [`schedule`] | what to do next, and when; without a clock, randomness or requests |
//! | [`run`] | the loop that does it for a [`Renewable`] |
//!
//! The five classes of credentials:
//!
//! | class | how it is recognised | what is done |
//! |---|---|---|
//! | [`Class::Renewable`] | a lease, `renewable` | renewed at two thirds; read again once a renewal does not extend it, or a check does not find it |
//! | [`Class::Fixed`] | a lease, not `renewable` | read again before its end, or once a check does not find it |
//! | [`Class::OwnEnd`] | no lease, but an expiry: in the response, in the value or requested ([`embedded_expiry`](super::embedded_expiry)), or printed with it ([`expiring`](super::expiring)) | read again before its end; it cannot be revoked |
//! | [`Class::Advised`] | a key-value secret with a `ttl` | read again that often |
//! | [`Class::Static`] | a key-value secret | read again every `refresh` |
//!
//! What must stay true: no credential is assumed to outlive the token that it depends on; a lifetime counts from before the
//! request, on a monotonic clock; there is a pause between two requests for one credential, whatever lifetime the source
//! states; credentials that were read together are not renewed together.

mod run;
mod schedule;
mod terms;

pub use run::{Failure, Renewable, RenewalEvent, run_renewal};
pub use schedule::{Action, PlannedAction, RenewalSchedule};
pub use terms::{Class, Terms};
