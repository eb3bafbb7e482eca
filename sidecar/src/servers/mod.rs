//! A link's server: started when first needed, restarted with backoff, its handshake replayed, replaced when its
//! credential is.
//!
//! | module | what it holds |
//! |---|---|
//! | [`backoff`] | when a server that failed may be started again |
//! | [`current`] | the process that messages go to, whatever state it is in |
//! | [`event`] | what a server gives its link |
//! | [`gate`] | how many processes and starts a grant may have |
//! | [`generation`] | one process, from its start to its end |
//! | [`instance`] | one server with all its processes |
//! | [`keyring`] | the credentials of an HTTP server's requests |
//! | [`leaving`] | servers that were given up and may still be dying |
//! | [`likeness`] | whether two processes offer the same |
//! | [`pace`] | how often something may happen within a minute |
//! | [`queue`] | messages that wait for a server to be ready |
//! | [`reload`] | files written anew under a process that reads them again |
//! | [`renewal`] | how a new credential reaches a process that runs |
//! | [`scoped`] | the servers of one link: one, and others for the tools of scopes |
//! | `scripted` | for tests: a server whose processes are played by the test |
//! | [`spec`] | what the configuration says of a server |
//! | [`start`] | from configuration and credentials to a running upstream |
//! | [`stderr`] | what a server says on the side: bounded, scrubbed, into the log |
//! | [`upstream`] | a started server, whichever way it is reached |

mod backoff;
mod current;
mod event;
pub(crate) mod gate;
mod generation;
pub(crate) mod instance;
mod keyring;
mod leaving;
mod likeness;
mod queue;
mod reload;
pub(crate) mod renewal;
pub(crate) mod scoped;
#[cfg(test)]
pub(crate) mod scripted;
pub(crate) mod spec;
pub(crate) mod start;
mod stderr;
#[cfg(test)]
mod tests;
mod upstream;
