//! The credentials of a request: where they come from, and whom to ask for others when the server refuses them.
//!
//! What must stay true: they are asked for in the request's own task, so whoever waits for them holds up nobody else; what
//! was sent is held until the request is over, because the server may use it that long.

use std::pin::Pin;
use std::sync::Arc;

use http::HeaderMap;

use crate::inject::Reads;

/// What is being found out.
pub type Finding<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The headers that one request carries, or why there are none, in words.
pub type Outcome = Result<Arc<dyn Filled>, String>;

/// Where the credentials of a server's requests come from.
pub trait Credentials: Send + Sync {
    /// The newest there are. Waits, within a bound, where those that are held are over.
    fn current(&self) -> Finding<'_, Outcome>;

    /// The newest that are held, without asking anybody.
    fn at_hand(&self) -> Option<Arc<dyn Filled>>;
}

/// Credentials as one request carries them.
pub trait Filled: Send + Sync {
    fn headers(&self) -> &HeaderMap;

    /// The reads that they are from, where those are others than were decided with.
    fn other_reads(&self, decided: &Reads) -> Option<Arc<Reads>>;

    /// What they are made from, for people.
    fn origin(&self) -> String;

    /// Others than these, which the server answered with HTTP 401.
    fn others(&self) -> Finding<'_, Outcome>;
}
