//! The client of Vault and its login, against a real OpenBao. What that cannot be made to say is replayed by a few bytes
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
