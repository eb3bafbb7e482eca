//! `cofferdam demo`: a complete set-up with a built-in configuration.
//!
//! The demo runs a real sidecar, a real sandbox if bubblewrap is available, and sends requests as a harness does: one that uses
//! a credential, one that tries to leak it, one that the rules deny. It checks what it prints.
//!
//! | module | what it holds |
//! |---|---|
//! | [`harness`] | sends MCP requests over the shim's stdio |
//! | [`host`] | the sidecar with its secret and configuration |
//! | [`sandbox`] | bubblewrap, or no isolation |
//! | [`server`] | the MCP server |

mod harness;
mod host;
mod sandbox;
pub(crate) mod server;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use cofferdam_audit as audit;
use cofferdam_scrub::{Needle, Scrubber};
use serde_json::{Value, json};

use crate::terminal::print_line;
use harness::Harness;
use host::Host;
use sandbox::{Isolation, Shim};

/// The first argument with which this program runs as a shim; used unless `--shim` names a static one.
pub(crate) const SHIM: &str = "demo-shim";
/// The first argument with which this program runs as the demo's MCP server.
pub(crate) const SERVER: &str = "demo-server";

#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error("{what}")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the credential leaked: it was found in {place}")]
    Leaked { place: &'static str },
    #[error("cannot open the shim `{}`", .path.display())]
    NoShim {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the shim sent no response to `{method}`")]
    NoResponse { method: String },
    #[error("the sidecar did not start; its log:\n{log}")]
    NoSidecar { log: String },
    #[error("unexpected response to `{request}`: {response}")]
    Unexpected { request: &'static str, response: String },
}

pub(crate) fn run(shim: Option<PathBuf>) -> Result<ExitCode, DemoError> {
    let doing = |what| move |source| DemoError::Io { what, source };
    let program = std::env::current_exe().map_err(doing("find the file of this program"))?;
    let shim = match shim {
        Some(path) => match path.canonicalize() {
            Ok(path) => Shim::Static(path),
            Err(source) => return Err(DemoError::NoShim { path, source }),
        },
        None => Shim::ThisProgram(program.clone()),
    };
    print_line("Cofferdam demo: a credential that the sandbox uses but never sees\n");
    let mut host = Host::start(&program)?;
    print_host(&host);
    let isolation = sandbox::detect_isolation(&shim, &host.relay_directory());
    print_sandbox(isolation, &shim);
    let mut harness = Harness::start(sandbox::command(isolation, &shim, &host.relay_directory()))?;
    make_requests(&mut harness)?;
    print_visible(&harness, isolation);
    let output = harness.stop();
    print_decisions(&host)?;
    host.stop();
    check_for_leaks(&host, &output)?;
    print_line(
        "\nNext: write a cofferdam.toml (packaging/examples/minimal.toml is a start), then `cofferdam check` and",
    );
    print_line(
        "`cofferdam serve`; mount the relay's directory into your sandbox and let the harness start cofferdam-shim.",
    );
    Ok(ExitCode::SUCCESS)
}

fn print_host(host: &Host) {
    print_line("The host");
    print_line(&format!(
        "  sidecar   process {}, configuration and state in {}",
        host.pid(),
        host.directory.display()
    ));
    print_line(&format!(
        "  secret    shop.value: {} characters in a file on the host, generated just now",
        host.key.len()
    ));
    print_line(
        "  server    `orders`, started on the host with SHOP_API_KEY={shop.value}; rule: deny delete_*\n",
    );
}

fn print_sandbox(isolation: Isolation, shim: &Shim) {
    print_line("The sandbox");
    match isolation {
        Isolation::Bubblewrap => {
            print_line("  isolation bubblewrap: separate namespaces, no network, no files except those below")
        }
        Isolation::None => {
            print_line(
                "  isolation NONE: bubblewrap is missing or not permitted here, so the shim is an ordinary child process",
            );
            print_line(
                "            (install it with `apt install bubblewrap` to run the demo in a real sandbox)",
            );
        }
    }
    match shim {
        Shim::ThisProgram(_) => {
            print_line("  shim      this program, run as the shim (--shim names a static one)\n")
        }
        Shim::Static(path) => print_line(&format!("  shim      {}\n", path.display())),
    }
}

/// Makes the requests of a harness, and checks each response.
fn make_requests(harness: &mut Harness) -> Result<(), DemoError> {
    print_line("The harness, in the sandbox, speaks MCP to the shim");
    harness.initialize()?;
    let listed = harness.request("tools/list", &json!({}))?;
    let tools: Vec<&str> = listed["result"]["tools"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    print_exchange("tools/list", &tools.join(", "));
    if !tools.contains(&"list_orders") || tools.contains(&"delete_orders") {
        return Err(DemoError::Unexpected { request: "tools/list", response: listed.to_string() });
    }
    for (tool, expected) in [
        ("list_orders", "the shop accepted the key"),
        ("print_environment", "[redacted:shop.value]"),
        ("delete_orders", "Unknown tool"),
    ] {
        let response = harness.request("tools/call", &json!({ "name": tool, "arguments": {} }))?;
        let text = response_text(&response);
        print_exchange(&format!("tools/call {tool}"), &text);
        if !text.contains(expected) {
            return Err(DemoError::Unexpected { request: tool, response: response.to_string() });
        }
    }
    Ok(())
}

fn response_text(response: &Value) -> String {
    let result = response["result"]["content"][0]["text"].as_str();
    result.or_else(|| response["error"]["message"].as_str()).unwrap_or_default().to_string()
}

fn print_exchange(request: &str, response: &str) {
    print_line(&format!("  -> {request}"));
    for text in response.lines() {
        print_line(&format!("     {text}"));
    }
}

/// Prints the variables, files and network interfaces of the shim's process, read from outside through `/proc`.
fn print_visible(harness: &Harness, isolation: Isolation) {
    let inside = sandbox::ShimProcess::of(harness.pid());
    print_line("\nWhat the shim's process can see");
    print_line(&format!("  variables {}", inside.variables()));
    match isolation {
        Isolation::Bubblewrap => {
            print_line(&format!("  files     {}", inside.files()));
            print_line(&format!("  network   {}", inside.network()));
        }
        Isolation::None => print_line("  files     all files of this user, because there is no isolation"),
    }
}

fn print_decisions(host: &Host) -> Result<(), DemoError> {
    print_line("\nThe audit on the host");
    let records = audit::tail(&host.audit_directory(), 100)
        .map_err(|error| DemoError::Io { what: "read the audit", source: io::Error::other(error) })?;
    for record in records.iter().filter(|record| record.contains("\"tools/")) {
        print_line(&format!("  {}", audit::human(record)));
    }
    Ok(())
}

/// Searches all output of the shim, the log and the audit for the key, in every encoding that the scrubber knows.
fn check_for_leaks(host: &Host, output: &str) -> Result<(), DemoError> {
    let needle = Needle { label: "shop.value".into(), value: host.key.clone().into_bytes().into() };
    let finder = Scrubber::new(vec![needle]);
    let audit: Vec<u8> = fs::read_dir(host.audit_directory())
        .into_iter()
        .flatten()
        .flatten()
        .flat_map(|entry| fs::read(entry.path()).unwrap_or_default())
        .collect();
    let log = host.log();
    let places = [
        ("the output to the sandbox", output.as_bytes()),
        ("the sidecar's log", &log),
        ("the audit", &audit),
    ];
    for (place, bytes) in places {
        if finder.text(bytes).redactions > 0 {
            return Err(DemoError::Leaked { place });
        }
    }
    let total: usize = places.iter().map(|(_, bytes)| bytes.len()).sum();
    print_line(&format!(
        "\nSearched {total} bytes (the output to the sandbox, the log, the audit) for the key in plain text, base64, hex and\npercent-encoding: not found."
    ));
    Ok(())
}
