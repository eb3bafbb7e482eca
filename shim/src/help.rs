//! The texts of `--help`. The help of the hub is in `hub::options`.
//!
//! What must stay true: each text ends with a line `Example: …` that the program accepts; its first paragraph begins with a
//! sentence that says what the command does; lines that must keep their form begin with spaces or `Usage:`.

/// Each command with its help; the first is the program itself. Manual pages are made of them.
pub const COMMANDS: &[(&str, &str)] = &[
    ("", RELAY),
    ("call", CALL),
    ("doctor", DOCTOR),
    #[cfg(feature = "hub")]
    ("hub", crate::hub::options::HELP),
    ("servers", SERVERS),
    ("status", STATUS),
    ("tools", TOOLS),
];

pub(crate) const RELAY: &str = "\
Serves MCP on stdin and stdout to a harness in a sandbox, and forwards the messages to the sidecar on the host.

Usage: cofferdam-shim [--relay LINK] [--server NAME] [--state DIR] [--proxy URL] [--pin KEY] [--expose]
       cofferdam-shim servers           list the MCP servers that are granted
       cofferdam-shim tools [SERVER]    list the tools of one server, or of all
       cofferdam-shim call SERVER TOOL [JSON|-]
                                        call a tool with these arguments, or those on stdin
       cofferdam-shim status            show the link, the session and what is granted
       cofferdam-shim doctor            look for what is wrong with the link, and name the next step
       cofferdam-shim hub --help        carry the links of all shims through one pipe to the host

  --relay LINK    where the sidecar is: unix:PATH, hub:FILE (a hub on the loopback), fd:N (an inherited socket),
                  tls://HOST:PORT, wss://HOST[:PORT]/PATH, vsock:CID:PORT, or where it dials in: listen:HOST:PORT,
                  listen:vsock:PORT
                  [environment: COFFERDAM_RELAY]
                  [default: the address in the enrolment, else the first of the sockets
                  /run/cofferdam/relay/relay.sock, $XDG_RUNTIME_DIR/cofferdam/relay.sock and
                  /tmp/cofferdam-UID/relay.sock in a directory of this user or root]
  --server NAME   which MCP server to reach; without it, the only one that is granted
  --state DIR     the directory of the sandbox's key, shared by its shims [environment: COFFERDAM_STATE]
  --proxy URL     go out through this HTTP proxy, http://[USER:PASSWORD@]HOST:PORT, ignoring NO_PROXY
                  [environment: HTTPS_PROXY or ALL_PROXY, unless NO_PROXY exempts the sidecar]
  --pin KEY       the key of the sidecar that may dial in, for listen: [environment: COFFERDAM_PIN]
  --expose        let listen: open a port that other machines can reach
  --json          servers, tools, call, status, doctor: print JSON
  --version, -V   print the version
  --help, -h      print this

An enrolment string, as `cofferdam enroll` prints it, is read from COFFERDAM_ENROLL, from the file that
COFFERDAM_ENROLL_FILE names, or from /run/cofferdam/enroll; a file is removed after use.

servers, tools, call and status exit with 0; 1 if the tool failed, or may have run; 64 for wrong arguments; 69 if nothing ran
because the sidecar, the server or its credential is unavailable; 77 if the sidecar denies it.

Example: cofferdam-shim --server github
";

pub(crate) const SERVERS: &str = "\
Lists the MCP servers that are granted to this sandbox, one a line.

Usage: cofferdam-shim servers [--json] [OPTIONS]

The options are those of `cofferdam-shim --help`, except --server.

Example: cofferdam-shim servers --json
";

pub(crate) const TOOLS: &str = "\
Lists the tools of one MCP server with their arguments, or of all servers that are granted.

Usage: cofferdam-shim tools [SERVER] [--json] [OPTIONS]

The options are those of `cofferdam-shim --help`, except --server.

Example: cofferdam-shim tools github
";

pub(crate) const CALL: &str = "\
Calls a tool of an MCP server, and prints its result.

Usage: cofferdam-shim call SERVER TOOL [JSON|-] [--json] [OPTIONS]

  JSON            the tool's arguments, a JSON object
  -               the tool's arguments are on stdin
  --json          print the whole result as JSON, not only its text

The other options are those of `cofferdam-shim --help`, except --server. It exits with 0; 1 if the tool failed, or may have
run; 64 for wrong arguments; 69 if nothing ran because the sidecar, the server or its credential is unavailable; 77 if the
sidecar denies it.

Example: cofferdam-shim call github search_code '{\"query\": \"cofferdam\"}'
";

pub(crate) const DOCTOR: &str = "\
Looks for what is wrong: which link a shim would use here and why, whether the sidecar answers there, the enrolment and its
pinned key, the proxy, the state directory and the clock. Changes nothing, and uses up no enrolment string.

Usage: cofferdam-shim doctor [--json] [OPTIONS]

The options are those of `cofferdam-shim --help`. It exits with 0 if there are only warnings; otherwise with the code of the
first error: 69 if the sidecar cannot be reached, 73 if the key cannot be stored, 77 if the sidecar refuses this sandbox, 78 if
an enrolment or a proxy variable cannot be used.

Example: cofferdam-shim doctor --json
";

pub(crate) const STATUS: &str = "\
Shows the link to the sidecar, the session, and what is granted. If there is no link, shows why, and exits with 69, or with 77
if the sidecar refuses this sandbox.

Usage: cofferdam-shim status [--json] [OPTIONS]

The options are those of `cofferdam-shim --help`.

Example: cofferdam-shim status
";

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use crate::options::{self, Command};

    /// Splits a command line at spaces, except within single quotes.
    fn words(line: &str) -> Vec<OsString> {
        let parts = line.split('\'').enumerate();
        let split = |(index, part): (usize, &str)| match index % 2 {
            0 => part.split_whitespace().map(OsString::from).collect(),
            _ => vec![OsString::from(part)],
        };
        parts.flat_map(split).collect()
    }

    #[test]
    fn the_help_of_every_command_ends_with_an_example_that_is_accepted() {
        let run = |arguments: &[OsString]| options::parse(arguments.iter().cloned(), |_| None);
        for (name, _) in super::COMMANDS {
            let command: &[&str] = if name.is_empty() { &[] } else { &[name] };
            let arguments: Vec<OsString> = command.iter().chain(&["--help"]).map(OsString::from).collect();
            let Ok(Command::Show(help)) = run(&arguments) else { panic!("{command:?} has no help") };
            let last = help.lines().last().unwrap();
            let example = last
                .strip_prefix("Example: cofferdam-shim ")
                .unwrap_or_else(|| panic!("{command:?}: {last}"));
            assert!(example.starts_with(&command.concat()), "{command:?}: {example} is of another command");
            if let Err(error) = run(&words(example)) {
                panic!("{command:?}: {example}: {error}");
            }
        }
    }
}
