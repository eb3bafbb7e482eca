//! Daytona: the real SDK works with the double, and the client of `cofferdam-platforms` is tested with it.
//!
//! | module | what it shows |
//! |---|---|
//! | `faults` | failures of the platform and of the sandbox, and the errors for the operator |
//! | `pipes` | from a sandbox's id to a pipe that carries links, through restarts, pauses and idle times |
//! | `sdk` | the real Python SDK with the double |
//! | `secrets` | the API key and the tokens are where they must be, and nowhere else |
//! | `ssh` | the pipe over the system's `ssh` |

mod faults;
mod pipes;
mod sdk;
mod secrets;
mod ssh;
mod support;
