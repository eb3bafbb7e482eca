//! Checks whether the packages of servers are locked and installed, and whether their files are unchanged.

use cofferdam_packages::Inspection;

use super::findings::Findings;
use crate::config::Config;

pub(super) fn check(config: &Config, findings: &mut Findings<'_>) {
    for (name, server) in &config.servers {
        let Some(source) = server.kind.package() else { continue };
        if let Err(not_ready) = source.locate(Inspection::Content) {
            let key = ["servers", name.as_str(), "package"];
            let message = format!("`servers.{name}` cannot start: {}", not_ready.describe());
            findings.add(not_ready.code(), &key, message, not_ready.next_step());
        }
    }
}
