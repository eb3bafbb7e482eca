//! `cofferdam demo`: the whole path on embedded defaults.
//!
//! A real sidecar, a real sandbox where bubblewrap is there, and the requests a harness would make: one that uses a
//! credential, one that tries to leak it, one that the rules deny. Everything it claims it has looked at.
//!
//! | module | what it holds |
//! |---|---|
//! | [`harness`] | MCP over the shim's stdio |
//! | [`host`] | the sidecar with its secret and configuration |
//! | [`sandbox`] | bubblewrap, or nothing |
//! | [`server`] | the MCP server behind it all |

mod harness;
mod host;
mod sandbox;
pub(crate) mod server;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::audit;
use crate::scrub::{Needle, Scrubber};
use crate::terminal::line;
use harness::Harness;
use host::Host;
use sandbox::{Shim, Walls};

/// The first argument by which this program runs as a shim, where no static one is given.
pub(crate) const SHIM: &str = "shim";
/// The first argument by which this program runs as the demo's MCP server.
pub(crate) const SERVER: &str = "demo-server";

#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error("{what}")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the credential got out: it was found in {place}")]
    Leaked { place: &'static str },
    #[error("no answer to `{method}` came out of the sandbox")]
    NoAnswer { method: String },
    #[error("the sidecar did not start; its log says:\n{log}")]
    NoSidecar { log: String },
    #[error("the answer to `{asked}` is not what the demo promises: {answer}")]
    Odd { asked: &'static str, answer: String },
}

pub(crate) fn run(shim: Option<PathBuf>) -> Result<ExitCode, DemoError> {
    let doing = |what| move |source| DemoError::Io { what, source };
    let program = std::env::current_exe().map_err(doing("find this program's own file"))?;
    let shim = match shim {
        Some(path) => Shim::Static(path.canonicalize().map_err(doing("find the shim that was given"))?),
        None => Shim::Itself(program.clone()),
    };
    line("Cofferdam demo: a credential that is used and never seen\n");
    let mut host = Host::start(&program)?;
    tell_host(&host);
    let walls = sandbox::walls(&shim, &host.relay_directory());
    tell_sandbox(walls, &shim);
    let mut harness = Harness::start(sandbox::command(walls, &shim, &host.relay_directory()))?;
    talk(&mut harness)?;
    tell_sight(&harness, walls);
    let seen = harness.seen.clone();
    drop(harness);
    tell_decisions(&host)?;
    host.stop();
    search(&host, &seen)?;
    line(
        "\nNext: write a cofferdam.toml (packaging/examples/minimal.toml is a start), then `cofferdam check` and",
    );
    line(
        "`cofferdam serve`; mount the relay's directory into your sandbox and let the harness start cofferdam-shim.",
    );
    Ok(ExitCode::SUCCESS)
}

fn tell_host(host: &Host) {
    line("The host");
    line(&format!(
        "  sidecar   process {}, configuration and state in {}",
        host.pid(),
        host.directory.display()
    ));
    line(&format!(
        "  secret    shop.value: {} characters in a file of the host's, made up just now",
        host.key.len()
    ));
    line("  server    `orders`, started on the host with SHOP_API_KEY={shop.value}; rule: deny delete_*\n");
}

fn tell_sandbox(walls: Walls, shim: &Shim) {
    line("The sandbox");
    match walls {
        Walls::Bubblewrap => {
            line("  walls     bubblewrap: own namespaces, no network, no files but those below")
        }
        Walls::None => {
            line(
                "  walls     NONE: bubblewrap is missing or not permitted here, so the shim is a bare child process",
            );
            line("            (install it with `apt install bubblewrap` to see the real thing)");
        }
    }
    match shim {
        Shim::Itself(_) => {
            line("  shim      this program, re-executed as the shim (give a static one with --shim)\n")
        }
        Shim::Static(path) => line(&format!("  shim      {}\n", path.display())),
    }
}

/// The requests of a harness, each with what must come back.
fn talk(harness: &mut Harness) -> Result<(), DemoError> {
    line("The harness, inside, speaks MCP to the shim");
    harness.initialize()?;
    let listed = harness.request("tools/list", &json!({}))?;
    let tools: Vec<&str> = listed["result"]["tools"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    show("tools/list", &tools.join(", "));
    if !tools.contains(&"list_orders") || tools.contains(&"delete_orders") {
        return Err(DemoError::Odd { asked: "tools/list", answer: listed.to_string() });
    }
    for (tool, promised) in [
        ("list_orders", "the shop accepted the key"),
        ("print_environment", "[redacted:shop.value]"),
        ("delete_orders", "Unknown tool"),
    ] {
        let answer = harness.request("tools/call", &json!({ "name": tool, "arguments": {} }))?;
        let text = text_of(&answer);
        show(&format!("tools/call {tool}"), &text);
        if !text.contains(promised) {
            return Err(DemoError::Odd { asked: tool, answer: answer.to_string() });
        }
    }
    Ok(())
}

fn text_of(answer: &Value) -> String {
    let result = answer["result"]["content"][0]["text"].as_str();
    result.or_else(|| answer["error"]["message"].as_str()).unwrap_or_default().to_string()
}

fn show(asked: &str, answer: &str) {
    line(&format!("  -> {asked}"));
    for answer in answer.lines() {
        line(&format!("     {answer}"));
    }
}

/// What is there to be seen from inside, looked at from outside.
fn tell_sight(harness: &Harness, walls: Walls) {
    let inside = sandbox::Sight::of(harness.pid());
    line("\nWhat the shim's process can see");
    line(&format!("  variables {}", inside.variables()));
    match walls {
        Walls::Bubblewrap => {
            line(&format!("  files     {}", inside.files()));
            line(&format!("  network   {}", inside.network()));
        }
        Walls::None => line("  files     all that this user can: there are no walls here"),
    }
}

fn tell_decisions(host: &Host) -> Result<(), DemoError> {
    line("\nWhat the host wrote down");
    let records = audit::tail(&host.audit_directory(), 100)
        .map_err(|error| DemoError::Io { what: "read the audit", source: io::Error::other(error) })?;
    for record in records.iter().filter(|record| record.contains("\"tools/")) {
        line(&format!("  {}", audit::human(record)));
    }
    Ok(())
}

/// Looks for the key, in every encoding the scrubber knows, in all that left the sidecar.
fn search(host: &Host, seen: &str) -> Result<(), DemoError> {
    let needle = Needle { label: "shop.value".into(), value: host.key.clone().into_bytes().into() };
    let finder = Scrubber::new(vec![needle]);
    let audit: Vec<u8> = fs::read_dir(host.audit_directory())
        .into_iter()
        .flatten()
        .flatten()
        .flat_map(|entry| fs::read(entry.path()).unwrap_or_default())
        .collect();
    let log = host.log();
    let places =
        [("what the sandbox got", seen.as_bytes()), ("the sidecar's log", &log), ("the audit", &audit)];
    for (place, bytes) in places {
        if finder.text(bytes).redactions > 0 {
            return Err(DemoError::Leaked { place });
        }
    }
    let total: usize = places.iter().map(|(_, bytes)| bytes.len()).sum();
    line(&format!(
        "\nSearched {total} bytes (all that the sandbox got, the log, the audit) for the key, plain, base64, hex and\npercent-encoded: not there."
    ));
    Ok(())
}
