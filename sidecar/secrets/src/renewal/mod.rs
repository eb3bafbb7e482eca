//! When a credential is renewed, when it is read again, and how long to wait after a failure.
//!
//! | module | what it is for |
//! |---|---|
//! | [`terms`] | what is known of a credential: its class, its end |
//! | [`schedule`] | what to do next about one, and when; it has no clock, no randomness and sends no request |
//! | [`run`] | the loop that does it, behind [`Renewable`] |
//!
//! The five classes, and what is done about each:
//!
//! | class | how it is recognised | what is done |
//! |---|---|---|
//! | [`Class::Renewable`] | a lease, `renewable` | renewed at two thirds; read again once a renewal does not extend it, or once a look-up does not find it |
//! | [`Class::Fixed`] | a lease, not `renewable` | read again before its end, or once a look-up does not find it |
//! | [`Class::OwnEnd`] | no lease; an end beside it, in it, or requested ([`embedded_expiry`](super::embedded_expiry)), or printed with it ([`expiring`](super::expiring)) | the same; it cannot be revoked |
//! | [`Class::Advised`] | a key-value secret with a `ttl` | read again that often |
//! | [`Class::Static`] | a key-value secret | read again every `refresh` |
//!
//! What must stay true: nothing is believed to outlive what it depends on; times that a source gives count from before
//! the request, on a monotonic clock; between two requests for one credential there is a pause, whatever times the source
//! gives; many credentials that were read together are not renewed together.

mod run;
mod schedule;
mod terms;

pub use run::{Event, Failure, Renewable, run_renewal};
pub use schedule::{Act, Plan, RenewalSchedule};
pub use terms::{Class, Terms};
