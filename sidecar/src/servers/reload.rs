//! New credentials for a process that can read its files again: they are written in place, and it is told so where that
//! is how it learns of it.

use relay_proto::name::Name;

use super::start::Starter;
use super::upstream::StdioProcess;
use crate::config::{Reload, ServerKind, StdioServer};
use crate::inject::files::FileError;
use crate::inject::{Secrets, Template};

impl StdioServer {
    /// Whether files alone bring these secrets to the process: a variable cannot be changed.
    pub(super) fn can_reload(&self, changed: &[Name]) -> bool {
        let named = |template: &Template| template.fields().any(|(secret, _)| changed.contains(secret));
        !self.env.values().any(named)
    }
}

impl StdioProcess {
    /// Writes its files with the newest values; what it had before is returned.
    pub(super) fn reload(&mut self, starter: &Starter) -> Result<Secrets, FileError> {
        let newest = starter.credentials.newest();
        let mut secrets = self.belongings.secrets.clone();
        for (name, own) in &mut secrets {
            if let Some(newest) = newest.get(name) {
                *own = newest.clone();
            }
        }
        if let ServerKind::Stdio(stdio) = &starter.server.kind {
            self.belongings.files.rewrite(&stdio.files, &secrets)?;
        }
        if starter.server.reload == Some(Reload::Sighup) {
            self.upstream.hang_up();
        }
        Ok(std::mem::replace(&mut self.belongings.secrets, secrets))
    }
}
