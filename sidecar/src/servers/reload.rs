//! New credentials for a process that can read its files again: they are written in place, and it is told so where that
//! is how it learns of it.

use std::sync::Arc;

use relay_proto::name::Name;

use super::start::Starter;
use super::upstream::StdioProcess;
use crate::inject::files::FileError;
use crate::inject::{Secrets, Template};
use crate::servers::spec::{Reload, ServerKind};

impl Starter {
    /// Whether files alone bring these secrets to a process: a variable cannot be changed.
    pub(super) fn can_reload(&self, changed: &[Name]) -> bool {
        let ServerKind::Stdio(stdio) = &self.server.kind else { return false };
        let (env, _) = self.templates(stdio);
        let named = |template: &Template| template.fields().any(|(secret, _)| changed.contains(secret));
        self.server.reload.is_some() && !env.values().any(named)
    }
}

impl StdioProcess {
    /// Writes its files with the newest values; what it had before is returned.
    pub(super) fn reload(&mut self, starter: &Starter) -> Result<Arc<Secrets>, FileError> {
        let newest = starter.credentials.newest();
        let mut secrets = Secrets::clone(&self.belongings.secrets);
        for (name, own) in &mut secrets {
            if let Some(newest) = newest.get(name) {
                *own = newest.clone();
            }
        }
        if let ServerKind::Stdio(stdio) = &starter.server.kind {
            let (_, files) = starter.templates(stdio);
            self.belongings.files.rewrite(files, &secrets)?;
        }
        if starter.server.reload == Some(Reload::Sighup) {
            self.upstream.hang_up();
        }
        Ok(std::mem::replace(&mut self.belongings.secrets, Arc::new(secrets)))
    }
}
