//! The Vault client and its login, with a real OpenBao. Responses that a real server cannot be made to send are sent by
//! a fake server, in the tests with `faked` in their names.

mod calls;
mod canary;
mod environment;
mod faked_responses;
mod login_renewal;
mod logins;
mod server_failures;
mod support;
mod wrapping;
