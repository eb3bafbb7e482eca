//! A [`Context`] for tests, with its state and audit in a temporary directory.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_audit::{self as audit, Audit};
use cofferdam_secrets::files::FileStore;

use super::Context;
use super::principal::Principal;
use crate::config::check_text;
use crate::link::LinkResources;
use crate::link::memory::LinkMemory;

/// A context with one server and one grant. Its directory is removed on drop.
pub(crate) struct Fixture {
    directory: PathBuf,
    pub(crate) context: Arc<Context>,
}

impl Fixture {
    /// `relay` is added to the table `[relay]`.
    pub(crate) fn new(relay: &str) -> Self {
        Self::with_server(relay, "")
    }

    /// `server` adds keys of the server `tools` and of its secrets; `@` stands for the directory.
    pub(crate) fn with_server(relay: &str, server: &str) -> Self {
        Self::open("", relay, server, File::sync_data)
    }

    /// The audit calls `sync` instead of fsync; `top` is added at the top of the configuration, outside of tables.
    pub(crate) fn with_sync(
        top: &str,
        server: &str,
        sync: impl Fn(&File) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::open(top, "", server, sync)
    }

    fn open(
        top: &str,
        relay: &str,
        server: &str,
        sync: impl Fn(&File) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let directory = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-session-"));
        let text = format!(
            "{top}\nstate-dir = \"{0}/state\"\nadmin.socket = \"{0}/admin.sock\"\n\
             servers.tools.command = [\"true\"]\ngrants.dev.servers = [\"tools\"]\n{server}\n\
             [relay]\nunix = \"{0}/relay/relay.sock\"\nunix-grant = \"dev\"\n{relay}\n",
            directory.display(),
            server = server.replace('@', &directory.display().to_string()),
        );
        let config = check_text(&text, &directory.join("cofferdam.toml")).unwrap();
        let audit = Audit::open_with_sync(config.audit_options(audit::WriteBy::Caller), sync);
        let context =
            Context::new(config, audit.unwrap(), FileStore::open().unwrap(), Arc::default()).unwrap();
        Self { directory, context: Arc::new(context) }
    }

    /// What a link without an entry in a registry needs.
    pub(crate) fn link_resources(&self) -> LinkResources {
        let principal = Principal::anonymous("dev".parse().unwrap(), None);
        let end_record = self.context.reserve_events(&principal, 1).unwrap();
        LinkResources { memory: LinkMemory::unlimited(), end_record }
    }

    /// The path of a file in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The text of all audit files, without the key and the lock beside them.
    pub(crate) fn audit(&self) -> String {
        let entries = std::fs::read_dir(self.directory.join("state/audit")).unwrap().flatten();
        let records =
            entries.map(|entry| entry.path()).filter(|path| path.extension() == Some("jsonl".as_ref()));
        records.filter_map(|path| std::fs::read_to_string(path).ok()).collect()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
