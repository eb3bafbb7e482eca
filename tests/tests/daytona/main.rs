//! Daytona: the double satisfies Daytona's own SDK, and the client does its work on the double.
//!
//! | module | what it shows |
//! |---|---|
//! | `faults` | what fails at the platform or in the sandbox, and what the operator is told |
//! | `pipes` | from a sandbox's id to a pipe that carries links, through restarts, pauses and idle times |
//! | `sdk` | the real Python SDK on the double |
//! | `secrets` | the API key and the tokens are where they must be, and nowhere else |
//! | `ssh` | the pipe by the system's `ssh` |

mod faults;
mod pipes;
mod sdk;
mod secrets;
mod ssh;
mod support;
