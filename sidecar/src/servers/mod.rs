//! A link's server: started when first needed, restarted with backoff, its handshake replayed.
//!
//! | module | what it holds |
//! |---|---|
//! | [`backoff`] | when a server that failed may be started again |
//! | [`event`] | what a server gives its link |
//! | [`gate`] | how many processes and starts a grant may have |
//! | [`instance`] | the one server of one link, whatever state it is in |
//! | [`keyring`] | the credentials of an HTTP server's requests |
//! | [`leaving`] | servers that were given up and may still be dying |
//! | [`pace`] | how often something may happen within a minute |
//! | [`queue`] | messages that wait for a server to be ready |
//! | [`readings`] | secrets of scopes on their way, and the requests that wait for them |
//! | [`scoped`] | the servers of one link: one, and others for the tools of scopes |
//! | [`start`] | from configuration and credentials to a running upstream |
//! | [`state`] | from nothing to gone |
//! | [`stderr`] | what a server says on the side: bounded, scrubbed, into the log |
//! | [`upstream`] | a started server, whichever way it is reached |

mod backoff;
mod event;
pub(crate) mod gate;
pub(crate) mod instance;
mod keyring;
mod leaving;
pub(crate) mod pace;
mod queue;
mod readings;
pub(crate) mod scoped;
pub(crate) mod start;
mod state;
mod stderr;
mod upstream;
