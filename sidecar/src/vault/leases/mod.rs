//! Keeping what was lent: when to renew, when to read anew, how long to wait after a failure.
//!
//! | module | what it is for |
//! |---|---|
//! | `terms` | what is known of a credential: its class, its end |
//! | `tenure` | what to do next about one, and when; no clock, no chance and no request of its own |
//! | `tend` | the loop that does it, behind [`Source`] |
//! | [`simulation`] | many of them at a Vault that only counts |
//!
//! The five classes, and what is done about each:
//!
//! | class | how it is told | what is done |
//! |---|---|---|
//! | [`Class::Renewable`] | a lease, `renewable` | renewed at two thirds; read anew once that does not extend it, or once a look does not find it |
//! | [`Class::Fixed`] | a lease, not `renewable` | read anew before its end, or once a look does not find it |
//! | [`Class::OwnEnd`] | no lease; an end beside it, in it, or asked for (`secret::own_end`) | the same; it cannot be revoked |
//! | [`Class::Advised`] | a key-value secret with a `ttl` | looked at again that often |
//! | [`Class::Static`] | a key-value secret | looked at again every `refresh` |
//!
//! What must stay true: nothing is believed to outlive what it hangs from; what Vault answers counts from before the
//! question, on a clock that nobody sets; between two requests for one credential there is a pause, whatever lives Vault
//! gives out; many that began together do not act together.

pub mod simulation;
mod tend;
mod tenure;
mod terms;

pub use tend::{Event, Failure, Source, tend};
pub use tenure::{Act, Plan, Tenure};
pub use terms::{Class, Terms};
