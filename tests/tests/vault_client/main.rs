//! The Vault client and its login, against a real OpenBao. Responses that a real server cannot be made to give are replayed
//! on a socket, in the tests whose names say so.

mod calls;
mod canary;
mod environment;
mod login_renewal;
mod logins;
mod replayed_responses;
mod server_failures;
mod support;
mod wrapping;
