//! For any settings file: reading it does not panic; what is planned is valid TOML, and a second import plans nothing; a rewritten
//! file has no server left, and restoring its entries gives the same bytes.

#![no_main]

use std::error::Error;
use std::path::Path;

use cofferdam_import::{
    Destination, Fields, FoundServer, Held, Plan, PlanInput, Settings, ShimProgram, Stored, StoredAt,
    Surroundings, plan,
};
use libfuzzer_sys::fuzz_target;

/// One of each form: the name decides how a file is read.
const FILES: [&str; 7] = [
    "/p/.mcp.json",
    "/p/.vscode/mcp.json",
    "/p/.gemini/settings.json",
    "/p/opencode.jsonc",
    "/p/.claude.json",
    "/p/e2b.json",
    "/p/.codex/config.toml",
];
const SHIM: ShimProgram<'_> = ShimProgram { program: "cofferdam-shim", relay: None };

/// What an earlier plan has stored.
struct Earlier<'a>(Option<&'a Plan>);

impl Stored for Earlier<'_> {
    fn held(&self, place: &StoredAt, fields: &Fields) -> Result<Held, Box<dyn Error + Send + Sync>> {
        let mut secrets = self.0.iter().flat_map(|plan| &plan.secrets);
        Ok(match secrets.find(|secret| secret.place == *place) {
            None => Held::Nothing,
            Some(secret) if secret.fields == *fields => Held::Same,
            Some(_) => Held::Other,
        })
    }
}

fuzz_target!(|bytes: &[u8]| {
    for file in FILES {
        let path = Path::new(file);
        let read = |bytes: &[u8]| Settings::read(path, bytes, &Surroundings::nowhere());
        let Ok(settings) = read(bytes) else { continue };
        let servers: Vec<(&Path, &FoundServer)> = settings.servers().map(|server| (path, server)).collect();
        let planned = |configuration: Option<&str>, earlier: Option<&Plan>| {
            let stored = &Earlier(earlier);
            let input = PlanInput { configuration, destination: &Destination::Files, grant: None, stored };
            plan(&input, &servers).expect("an import can be planned for a configuration of its own")
        };
        let first = planned(None, None);
        let second = planned(Some(&first.configuration), Some(&first));
        assert_eq!(second.configuration, first.configuration, "a second import changes the configuration");
        assert!(second.secrets.is_empty(), "a second import stores a secret again");

        if servers.is_empty() || !settings.can_be_rewritten() {
            continue;
        }
        let names: Vec<&str> = first.servers.iter().map(|server| server.name.as_str()).collect();
        // A file that cannot be rewritten stays as it is.
        let Ok((rewritten, entries)) = settings.rewritten(&names, SHIM) else { continue };
        assert_eq!(read(&rewritten).expect("the file was valid").servers().count(), 0);
        let restored = Settings::restored(path, &rewritten, bytes, &entries).expect("the entries are known");
        assert!(
            restored.left.is_empty() && restored.bytes[..] == *bytes,
            "the restored file has other bytes"
        );
    }
});
