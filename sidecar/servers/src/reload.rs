//! New credentials for a process that can read its files again: the files are rewritten in place, and the process gets
//! SIGHUP where that is configured.

use std::sync::Arc;

use cofferdam_secrets::files::FileError;
use cofferdam_secrets::{Secrets, Template};
use relay_proto::name::Name;

use crate::launcher::Launcher;
use crate::spec::{Reload, ServerKind};
use crate::upstream::StdioProcess;

impl Launcher {
    /// Whether rewriting files is enough to replace these secrets. The environment and the arguments of a running process
    /// cannot be changed.
    pub(crate) fn can_reload(&self, changed: &[Name]) -> bool {
        let ServerKind::Stdio(stdio) = &self.server().kind else { return false };
        let (env, _) = self.secrets.templates(stdio);
        let named = |template: &Template| template.fields().any(|(secret, _)| changed.contains(secret));
        self.server().reload.is_some() && !env.values().chain(&stdio.argument_templates).any(named)
    }
}

impl StdioProcess {
    /// Rewrites its files with the newest values, and returns the secrets that it had before.
    pub(crate) fn reload(&mut self, launcher: &Launcher) -> Result<Arc<Secrets>, FileError> {
        let newest = launcher.secrets.credentials.newest();
        let mut secrets = Secrets::clone(&self.resources.secrets);
        for (name, own) in &mut secrets {
            if let Some(newest) = newest.get(name) {
                *own = newest.clone();
            }
        }
        if let ServerKind::Stdio(stdio) = &launcher.server().kind {
            let (_, files) = launcher.secrets.templates(stdio);
            self.resources.files.rewrite(files, &secrets)?;
        }
        if launcher.server().reload == Some(Reload::Sighup) {
            self.pipes.send_sighup();
        }
        Ok(std::mem::replace(&mut self.resources.secrets, Arc::new(secrets)))
    }
}
