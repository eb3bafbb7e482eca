//! The Vault client and its login, with a real OpenBao. Responses that a real server cannot be made to send are sent by
//! a fake server, in the tests with `replayed` in their names.

mod calls;
mod canary;
mod environment;
mod login_renewal;
mod logins;
mod replayed_responses;
mod server_failures;
mod support;
mod wrapping;
