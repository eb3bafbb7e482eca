//! `init`: writes a first configuration for this user: one that works, with comments.
//!
//! What must stay true: nothing is written before the last answer, and nothing is left if that fails; no file is overwritten;
//! the configuration and the secret have mode 0600; a secret is not shown while it is typed, and is in no argument.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cofferdam_base::text::{error_chain, shell_quoted};
use cofferdam_import::{Needs, Surroundings};
use cofferdam_process::program_path;
use nix::unistd::getuid;
use relay_proto::name::Name;
use zeroize::Zeroizing;

use super::arguments::InitArguments;
use super::server_needs;
use crate::config::{self, Environment};
use crate::demo;
use crate::terminal;
use crate::terminal::failure::{Failure, Sysexit, creation_exit_code};
use crate::terminal::prompt;

/// The first server, as the answers describe it.
struct FirstServer {
    name: Name,
    command: Vec<String>,
    secret: Option<FirstSecret>,
    /// A variable that is not secret, which only the example server has.
    variable: Option<(&'static str, String)>,
    /// An extra comment.
    comment: &'static str,
}

struct FirstSecret {
    /// The server's environment variable for it.
    variable: String,
    value: Zeroizing<Vec<u8>>,
}

/// What was written so far; removed unless everything was.
#[derive(Default)]
struct Written {
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
}

const EXAMPLE: &str = "example";
const EXAMPLE_COMMENT: &str = "\
# An example that is built in: the order book of a shop, behind a key that only the sidecar has.
# Replace it by a server of yours.
";

pub(super) fn run(file: Option<&Path>, arguments: &InitArguments) -> Result<ExitCode, Failure> {
    let environment = Environment::of_process();
    let proposed = file.map(Path::to_owned).or_else(|| environment.user_configuration());
    let path = match (proposed, file, arguments.yes) {
        (Some(path), Some(_), _) | (Some(path), None, true) => path,
        (proposed, None, false) => {
            let proposed = proposed.map(|path| path.display().to_string());
            PathBuf::from(ask("Where to write the configuration?", proposed.as_deref())?)
        }
        (None, _, _) => {
            return Err(Failure::new(Sysexit::Configuration, "the home directory of this user is not known")
                .hint("set HOME, or name the file with `-c FILE`"));
        }
    };
    let path = std::path::absolute(&path).map_err(|error| Failure::new(Sysexit::Usage, error))?;
    if fs::symlink_metadata(&path).is_ok() {
        return Err(Failure::new(Sysexit::CannotCreate, format!("`{}` is there already", path.display()))
            .hint("it was not changed; `cofferdam doctor` examines it, `-c FILE` names another place"));
    }
    let server = match arguments.yes {
        true => example_server()?,
        false => ask_for_server()?,
    };
    let directory = path.parent().unwrap_or(Path::new("/")).to_owned();
    let relay = relay_socket(&environment);
    let needs = needs_of(&server, &path);
    needs.notes.iter().for_each(|note| eprintln!("  note: {note}"));
    let text = configuration(&server, &needs, &relay);
    if let Err(problems) = config::check_text(&text, &path) {
        return Err(Failure::new(Sysexit::Configuration, problems)
            .hint("nothing was written; run this again with other answers"));
    }
    let mut written = Written::default();
    let result = write_all(&path, &directory, &text, &server, &mut written);
    if let Err(error) = result {
        written.remove();
        let failure =
            Failure::new(creation_exit_code(&error), format!("cannot write the configuration: {error}"));
        let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        return Err(failure.hint(match is_full {
            true => {
                "nothing was left; free some space on that disk, or name a place on another with `-c FILE`"
            }
            false => "nothing was left; name another place with `-c FILE`",
        }));
    }
    print_next_steps(&path, file.is_some(), &server, &relay, &directory);
    Ok(ExitCode::SUCCESS)
}

/// The server that is built into this program, with a new key.
fn example_server() -> Result<FirstServer, Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::new(Sysexit::OperatingSystem, error))?;
    let key = cofferdam_base::random::hex::<16>();
    let fingerprint = demo::server::fingerprint(&key);
    Ok(FirstServer {
        name: EXAMPLE.parse().map_err(|error| Failure::new(Sysexit::Software, error))?,
        command: vec![program.display().to_string(), demo::SERVER.to_owned()],
        secret: Some(FirstSecret {
            variable: demo::server::KEY_VARIABLE.to_owned(),
            value: Zeroizing::new(key.into_bytes()),
        }),
        variable: Some((demo::server::VALID_KEY_VARIABLE, fingerprint)),
        comment: EXAMPLE_COMMENT,
    })
}

fn ask_for_server() -> Result<FirstServer, Failure> {
    eprintln!(
        "The command of an MCP server that speaks stdio, as you would type it. Enter alone: a built-in example."
    );
    let command = loop {
        let line = ask("Command?", Some(""))?;
        match words(&line) {
            Some(words) if words.is_empty() => return example_server(),
            Some(words) => {
                if let Err(error) = program_path(words[0].as_ref()) {
                    eprintln!("  note: {}; install it before `cofferdam serve`", error_chain(&error));
                }
                break words;
            }
            None => eprintln!("  a quote is not closed"),
        }
    };
    let proposed = name_from(&command);
    let name = loop {
        match ask("Its name?", Some(&proposed))?.parse::<Name>() {
            Ok(name) => break name,
            Err(error) => eprintln!("  {error}"),
        }
    };
    eprintln!("The environment variable in which it expects its token or password. Enter alone: none.");
    let variable = loop {
        let variable = ask("Variable?", Some(""))?;
        let is_name = |text: &str| {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                && !text.starts_with(|first: char| first.is_ascii_digit())
        };
        match is_name(&variable) {
            true => break variable,
            false => eprintln!("  a name has letters, digits and `_`"),
        }
    };
    let secret = match variable.is_empty() {
        true => None,
        false => Some(FirstSecret { variable, value: ask_for_value()? }),
    };
    Ok(FirstServer { name, command, secret, variable: None, comment: "" })
}

/// What the server needs inside its walls, as far as its command says.
fn needs_of(server: &FirstServer, path: &Path) -> Needs {
    let hidden = server_needs::hidden(path, None);
    let surroundings = Surroundings {
        home: std::env::var_os("HOME").map(PathBuf::from),
        variable: &|name| std::env::var(name).ok(),
        exists: &|path| path.exists(),
        directory: &|path| server_needs::directory(path, &hidden),
        text_of: &server_needs::text_of,
        default_registry: &server_needs::default_registry,
        ..Surroundings::nowhere()
    };
    Needs::of(&server.command, std::iter::empty(), None, &surroundings)
}

fn ask_for_value() -> Result<Zeroizing<Vec<u8>>, Failure> {
    loop {
        let value = prompt::read_hidden("Its value (not shown)? ").map_err(no_answer)?;
        let value = value.ok_or_else(no_terminal)?;
        match value.len() >= cofferdam_secrets::MIN_VALUE_BYTES {
            true => return Ok(value),
            false => eprintln!(
                "  a secret needs at least {} characters: shorter ones cannot be found in other text",
                cofferdam_secrets::MIN_VALUE_BYTES
            ),
        }
    }
}

fn ask(question: &str, proposed: Option<&str>) -> Result<String, Failure> {
    prompt::ask(question, proposed).map_err(no_answer)?.ok_or_else(no_terminal)
}

fn no_terminal() -> Failure {
    Failure::new(Sysexit::Usage, "there is no terminal to ask at")
        .hint("run `cofferdam init --yes`, which asks nothing")
}

fn no_answer(error: io::Error) -> Failure {
    Failure::new(Sysexit::NoInput, format!("no answer: {error}")).hint("nothing was written")
}

/// The words of a command line with quotes and backslashes as in a shell. `None` if a quote is not closed.
fn words(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (Some('"') | None, '\\') => word.get_or_insert_default().push(characters.next()?),
            (Some(_), other) => word.get_or_insert_default().push(other),
            (None, open @ ('\'' | '"')) => {
                word.get_or_insert_default();
                quote = Some(open);
            }
            (None, space) if space.is_whitespace() => words.extend(word.take()),
            (None, other) => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

/// A name for the server: the last word that names a program or package.
fn name_from(command: &[String]) -> String {
    let word = command.iter().rev().find(|word| {
        !word.starts_with('-') && !["stdio", "run", "serve", "start", "mcp"].contains(&word.as_str())
    });
    let word = word.map_or("server", |word| word.rsplit('/').next().unwrap_or_default());
    let word = word.split('@').next().unwrap_or_default().to_ascii_lowercase();
    let is_allowed = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    let name: String =
        word.chars().map(|character| if is_allowed(character) { character } else { '-' }).take(64).collect();
    match name.trim_matches('-') {
        "" => "server".to_owned(),
        name => name.to_owned(),
    }
}

/// Where the shared socket is: in a directory that holds nothing else. A relative path begins at the configuration.
fn relay_socket(environment: &Environment) -> PathBuf {
    match environment.runtime_directory() {
        _ if getuid().is_root() => "/run/cofferdam/relay/relay.sock".into(),
        Some(runtime) => runtime.join("cofferdam-relay/relay.sock"),
        None => "relay/relay.sock".into(),
    }
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn configuration(server: &FirstServer, needs: &Needs, relay: &Path) -> String {
    let FirstServer { name, command, secret, variable, comment } = server;
    let command: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    let mut environment = Vec::new();
    let mut secrets = String::new();
    if let Some(secret) = secret {
        environment.push(format!("{} = \"{{{name}.value}}\"", secret.variable));
        secrets = format!("[secrets.{name}]\nfile = {}\n\n", quoted(&format!("secrets/{name}")));
    }
    if let Some((variable, value)) = variable {
        environment.push(format!("{variable} = {}", quoted(value)));
    }
    let environment = match environment.is_empty() {
        true => "# env = { TOKEN = \"{name.value}\" }         # a secret of [secrets.name], which only this server gets".to_owned(),
        false => format!("env = {{ {} }}", environment.join(", ")),
    };
    let confine = match needs.value() {
        None => "# confine = { hosts = [\"api.example.com:443\"], write = [\"/srv/project\"] }".to_owned(),
        Some(value) => format!("confine = {}", value.to_string().trim()),
    };
    format!(
        "\
# The configuration of Cofferdam. Every key: packaging/guide/configuration.md, or `cofferdam check --schema`.
# After a change: `cofferdam check`, then `cofferdam reload`. If something does not work: `cofferdam doctor`.

# Audit, enrolments, keys and the servers' stderr. Default: the user's state directory.
# state-dir = \"…\"

[relay]
# Sandboxes connect here. Mount the directory of this socket into them; it holds nothing else.
unix = {relay}
# What every process that can open the socket may use: one of [grants].
unix-grant = \"dev\"

# Credentials. Each is read when a server first needs it, and never enters a sandbox.
# A file needs mode 0600. Vault and OpenBao: see packaging/guide/vault.md.
{secrets}{comment}[servers.{name}]
command = [{command}]
{environment}
# The server is confined: of this host it sees its own program and the system's, and it has no network. What else it needs:
{confine}
# What agents may call. Without this: every tool of the server.
# tools = {{ allow = [\"get_*\", \"list_*\"], ask = [], deny = [] }}

# What a sandbox may use, and for how long.
[grants.dev]
servers = [{server}]
ttl = \"8h\"
",
        relay = quoted(&relay.display().to_string()),
        command = command.join(", "),
        server = quoted(name.as_str()),
    )
}

fn write_all(
    path: &Path,
    directory: &Path,
    text: &str,
    server: &FirstServer,
    written: &mut Written,
) -> io::Result<()> {
    written.make_directory(directory)?;
    if let Some(secret) = &server.secret {
        let secrets = directory.join("secrets");
        written.make_directory(&secrets)?;
        written.write(&secrets.join(server.name.as_str()), &secret.value)?;
    }
    // Last, so that the configuration never names a secret that is not there.
    written.write(path, text.as_bytes())
}

impl Written {
    /// Makes a directory with its parents, for this user only.
    fn make_directory(&mut self, directory: &Path) -> io::Result<()> {
        let missing: Vec<&Path> =
            directory.ancestors().take_while(|ancestor| fs::symlink_metadata(ancestor).is_err()).collect();
        for directory in missing.into_iter().rev() {
            DirBuilder::new().mode(0o700).create(directory)?;
            self.directories.push(directory.to_owned());
        }
        Ok(())
    }

    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("`{}`: {error}", path.display()));
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(named)?;
        self.files.push(path.to_owned());
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(named)
    }

    fn remove(&self) {
        // What cannot be removed now could not have been made either.
        self.files.iter().for_each(|file| drop(fs::remove_file(file)));
        self.directories.iter().rev().for_each(|directory| drop(fs::remove_dir(directory)));
    }
}

fn print_next_steps(path: &Path, is_named: bool, server: &FirstServer, relay: &Path, directory: &Path) {
    terminal::print_line(&path.display().to_string());
    let option = match is_named {
        true => format!(" -c {}", shell_quoted(&path.display().to_string())),
        false => String::new(),
    };
    let link = format!("unix:{}", directory.join(relay).display());
    eprintln!(
        "\
written, with mode 0600. Next:
  cofferdam doctor{option}                 is everything there?
  cofferdam serve{option}                  the sidecar; leave it running
  cofferdam run{option} -- claude          a sandbox with a harness and the tools
  cofferdam shim --out ./cofferdam-shim && chmod +x ./cofferdam-shim
  ./cofferdam-shim tools {} --relay {}     the tools, without a sandbox",
        server.name,
        shell_quoted(&link)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_split_as_a_shell_does() {
        let split = |line: &str| words(line).map(|words| words.join("|"));
        assert_eq!(split("npx -y @scope/server").unwrap(), "npx|-y|@scope/server");
        assert_eq!(split(r#"  a 'b c' "d \" e" f\ g '' "#).unwrap(), r#"a|b c|d " e|f g|"#);
        assert_eq!(split("").unwrap(), "");
        assert_eq!((split("a 'b"), split("a \\")), (None, None));
    }

    #[test]
    fn the_proposed_name_is_one() {
        for (line, name) in [
            ("npx -y @modelcontextprotocol/server-github", "server-github"),
            ("/opt/GitHub_MCP stdio", "github-mcp"),
            ("uvx mcp-server-time@1.0 --local", "mcp-server-time"),
            ("-- --", "server"),
        ] {
            let proposed = name_from(&words(line).unwrap());
            assert_eq!(proposed, name, "{line}");
            assert!(proposed.parse::<Name>().is_ok());
        }
    }
}
