//! `cofferdam vault setup` against a real OpenBao: from an empty server to a working session, and back.

mod changes;
mod interruptions;
mod logins;
mod permissions;
mod printed;
mod prompts;
mod sessions;
mod support;
mod terraform;
