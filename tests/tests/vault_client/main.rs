//! The Vault client and its login, against a real OpenBao. Responses that a real server cannot be made to give are replayed
//! on a socket, in the tests whose names say so.

mod answers;
mod calls;
mod canary;
mod keeping;
mod logins;
mod support;
mod surroundings;
mod troubles;
mod wrapping;
