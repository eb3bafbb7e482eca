//! The admin socket: one JSON line asks, one JSON line answers. The command line talks to the daemon here.

pub(crate) mod client;
pub(crate) mod server;

use serde::{Deserialize, Serialize};

use crate::session::command::Description;
use crate::session::registry::EndedLink;

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Question {
    Kill { session: String },
    Reload,
    Sessions,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub(crate) enum Answer {
    Killed {
        links: Vec<EndedLink>,
        total_ms: u64,
    },
    Refused {
        why: String,
    },
    Reloaded {
        policy: String,
        /// Keys that changed and count only after a restart.
        #[serde(default)]
        at_restart: Vec<String>,
    },
    Sessions {
        sessions: Vec<Description>,
    },
}

/// A question is a few words; whatever is longer is not one.
const MAX_QUESTION: usize = 4 * 1024;
