//! Asks about each secret that was found.

use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::prompt::{self, Answer};

use super::gather::ReadSettings;

/// What the person refuses is written into the configuration as it is.
pub(super) fn ask(settings: &mut [ReadSettings]) -> Result<(), Failure> {
    for server in settings.iter_mut().flat_map(|read| read.settings.servers_mut()) {
        for secret in &mut server.secrets {
            let question =
                format!("{}: {} ({}): move it out as a secret?", server.name, secret.place, secret.masked());
            let answer = prompt::ask_yes_or_no(&question, Answer::Yes).map_err(|error| {
                Failure::new(
                    Sysexit::Unavailable,
                    format!("nothing was changed: no answer was given: {error}"),
                )
            })?;
            secret.is_refused = answer == Answer::No;
        }
    }
    Ok(())
}
