//! Vault and OpenBao: the client, the sidecar's login, and the tokens and leases of sessions.
//!
//! | module | what it is for |
//! |---|---|
//! | `address` | where Vault is; plain text to loopback only |
//! | `trust` | which certificate authorities are trusted; the client certificate |
//! | `client` | one request, one response: time, size and memory are bounded here |
//! | `body` | request bodies, in memory that is wiped when dropped |
//! | `envelope` | the response around every result: lease, warnings, wrapping, login, data |
//! | `error` | why a request failed, and what an operator can do about it |
//! | `token` | tokens, accessors and lease ids, which `Debug` does not show |
//! | `api` | the calls; `kv`, `lease`, `wrapping` and `token_calls` are parts of it |
//! | `capabilities` | the permissions that a token needs, and the policy lines that grant them |
//! | `operator` | requests of an operator's commands, which other crates compose |
//! | `access` | client, login and revoker, shared by all sessions |
//! | `accessor_files` | accessors on disk, for the next sidecar |
//! | `settings` | the checked configuration of Vault |
//! | `session` | one session's tokens: the current one, and one for each lease |
//! | `session_token` | a token of a session, and which ones are outstanding |
//! | `source` | Vault as a source of secrets |
//! | `revoker` | revokes tokens that are released, of ended sessions, or left behind by an earlier sidecar |
//! | [`login`] | the sidecar's own token: six ways to get it, one task that keeps it valid |
//!
//! What must stay true: no environment variable changes the behaviour; no redirect is followed; no request is repeated
//! unless its caller repeats it, because each success may have created a lease; no token, body or lease id is in any
//! `Debug`, `Display` or log; expiry is counted from before the request, on a clock that tests can pause.
//!
//! **Memory.** Tokens, lease ids, bodies and data are wiped when dropped. The buffers of the HTTP and TLS layers are
//! not; they are freed with the connection, which lives for one request.

#![forbid(unsafe_code)]

mod access;
mod accessor_files;
mod address;
mod api;
mod body;
mod capabilities;
mod client;
mod envelope;
mod error;
mod kv;
mod lease;
pub mod login;
mod operator;
mod revoker;
mod session;
mod session_token;
mod settings;
mod source;
#[cfg(test)]
mod tests;
mod token;
mod token_calls;
mod trust;
mod wrapping;

pub use access::{Access, AccessError, client, method};
pub use address::{Address, AddressError};
pub use api::{ClientSettings, Health, SettingsError, Vault};
pub use capabilities::{Capability, Need, Verdict, policy_lines};
pub use envelope::{Auth, Data, Envelope, WrapInfo};
pub use error::{Kind, Problem, RequestLine, UnwrappedBy, VaultError, VaultMessages};
pub use kv::{KvSecret, KvVersion, Mount};
pub use lease::LeaseInfo;
pub use operator::OperatorRequest;
pub use revoker::{LeaseEnd, Outcome, Revoked};
pub use session::{RemainingLinks, SessionVault};
pub use session_token::TokenOwner;
pub use settings::{AuthSettings, SecretIdForm, Settings};
pub use token::{Accessor, LeaseId, Token, TokenError};
pub use token_calls::{ChildToken, Mint, Renewable, TokenInfo};
pub use trust::TrustError;
pub use wrapping::WrappingInfo;
