//! `harness`: prints, adds or removes the entries of a harness's settings that start the shim.
//!
//! What must stay true: entries hold no secret; an entry that starts another program is neither changed nor removed.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cofferdam_base::text::error_chain;
use cofferdam_import::{
    Dialect, FileState, HarnessEdit, ReadFileError, ReplaceError, Settings, ShimProgram, read_version,
    replace_file,
};
use cofferdam_shim::default_socket::SocketSearch;
use relay_proto::address::Address;

use super::arguments::{HarnessArguments, HarnessNameArgument};
use super::commands::load;
use crate::config::{Config, suggest};
use crate::harness::Harness;
use crate::terminal::failure::{Failure, Sysexit, creation_exit_code};
use crate::terminal::print_line;

pub(super) fn run(file: Option<&Path>, arguments: &HarnessArguments) -> Result<ExitCode, Failure> {
    let (_, config) = load(file)?;
    let servers: Vec<String> = match &arguments.grant {
        None => config.servers.keys().map(ToString::to_string).collect(),
        Some(grant) => {
            let found = config.grants.values().find(|known| known.name.as_str() == grant);
            let found = found.ok_or_else(|| {
                let known = config.grants.keys().map(|name| name.as_str());
                Failure::new(Sysexit::Usage, format!("there is no grant `{grant}`"))
                    .hint(suggest::hint(grant, "grant", known))
            })?;
            found.servers.iter().map(ToString::to_string).collect()
        }
    };
    let edits: Vec<HarnessEdit> = servers
        .into_iter()
        .map(|server| if arguments.remove { HarnessEdit::Remove(server) } else { HarnessEdit::Set(server) })
        .collect();
    let path = settings_path(arguments)?;
    let link = link(arguments, &config);
    let shim = ShimProgram { program: &arguments.shim.shim, relay: link.as_deref() };
    if arguments.write || arguments.remove {
        return change(arguments, shim, &path, &edits);
    }
    let empty: &[u8] =
        if path.extension().is_some_and(|extension| extension == "toml") { b"" } else { b"{}" };
    let (bytes, _) = edited(arguments.name, shim, &path, empty, &edits)?;
    print_line(String::from_utf8_lossy(&bytes).trim_end());
    eprintln!("these entries belong into `{}`; --write adds them", path.display());
    eprintln!("{}", advice(arguments.name, shim));
    Ok(ExitCode::SUCCESS)
}

/// The link in the arguments of the entries. Codex gives servers few of its variables, so its entries also name the socket of
/// the configuration where the shim would not look for it by itself. Other harnesses give servers their COFFERDAM_RELAY.
fn link(arguments: &HarnessArguments, config: &Config) -> Option<String> {
    if arguments.shim.relay.is_some() || arguments.name != HarnessNameArgument::Codex {
        return arguments.shim.relay.clone();
    }
    let socket = &config.relay.unix.as_ref()?.path;
    // XDG_RUNTIME_DIR is none of these few.
    let is_found = SocketSearch::new(None).paths().contains(socket);
    (!is_found).then(|| Address::Unix(socket.clone()).to_string())
}

fn settings_path(arguments: &HarnessArguments) -> Result<PathBuf, Failure> {
    let directory = std::env::current_dir().map_err(|error| Failure::new(Sysexit::NoInput, error))?;
    if let Some(file) = &arguments.file {
        return Ok(directory.join(file));
    }
    let harness = match arguments.name {
        HarnessNameArgument::Claude => Harness::ClaudeCode,
        HarnessNameArgument::Codex => Harness::Codex,
        HarnessNameArgument::Gemini => Harness::GeminiCli,
        HarnessNameArgument::OpenCode => Harness::OpenCode,
        HarnessNameArgument::VsCode => return Ok(directory.join(".vscode/mcp.json")),
    };
    if let (Harness::Codex, Some(home)) = (harness, std::env::var_os("CODEX_HOME")) {
        return Ok(PathBuf::from(home).join("config.toml"));
    }
    let home =
        std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute()).ok_or_else(|| {
            Failure::new(Sysexit::NoInput, "HOME is not set").hint("name the settings file with --file FILE")
        })?;
    Ok(home.join(harness.settings_path()))
}

fn dialect(name: HarnessNameArgument) -> Dialect {
    match name {
        HarnessNameArgument::Claude => Dialect::Standard,
        HarnessNameArgument::Codex => Dialect::Codex,
        HarnessNameArgument::Gemini => Dialect::Gemini,
        HarnessNameArgument::OpenCode => Dialect::OpenCode,
        HarnessNameArgument::VsCode => Dialect::VsCode,
    }
}

/// The settings with the edits, and the names of entries that start another program.
fn edited(
    name: HarnessNameArgument,
    shim: ShimProgram<'_>,
    path: &Path,
    bytes: &[u8],
    edits: &[HarnessEdit],
) -> Result<(Vec<u8>, Vec<String>), Failure> {
    let edited = Settings::with_shim(path, bytes, dialect(name), edits, shim).map_err(|error| {
        let what = format!("`{}` was not changed: {error}", path.display());
        Failure::new(Sysexit::Data, what).hint("correct it, or add the entries by hand")
    })?;
    Ok((edited.0.to_vec(), edited.1))
}

fn change(
    arguments: &HarnessArguments,
    shim: ShimProgram<'_>,
    path: &Path,
    edits: &[HarnessEdit],
) -> Result<ExitCode, Failure> {
    let shown = path.display();
    let (version, bytes) = match read_version(path) {
        Ok(FileState::Present { version, bytes }) => (Some(version), bytes.to_vec()),
        Ok(FileState::Absent) if arguments.remove => {
            print_line(&format!("{shown}: does not exist"));
            return Ok(ExitCode::SUCCESS);
        }
        Ok(FileState::Absent) => (None, Vec::new()),
        Err(error @ ReadFileError::SymbolicLink { .. }) => {
            let what = format!("`{shown}` was not changed: {error}");
            return Err(Failure::new(Sysexit::Data, what).hint("name that file with --file FILE"));
        }
        Err(error) => {
            return Err(Failure::new(Sysexit::NoInput, format!("`{shown}`: {}", error_chain(&error))));
        }
    };
    let (after, others) = edited(arguments.name, shim, path, &bytes, edits)?;
    if after != bytes {
        write(path, &after, version.as_ref())?;
        print_line(&format!("changed: {shown}"));
    } else {
        print_line(&format!("{shown}: as it should be"));
    }
    if !arguments.remove {
        eprintln!("{}", advice(arguments.name, shim));
    }
    match others.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => {
            let what = format!(
                "entries of `{shown}` that start other programs were left as they are: {}",
                others.join(", ")
            );
            Err(Failure::new(Sysexit::Data, what)
                .hint("move them over with `cofferdam import --rewrite`, or rename them"))
        }
    }
}

fn write(path: &Path, bytes: &[u8], version: Option<&cofferdam_import::FileVersion>) -> Result<(), Failure> {
    let created = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let replaced = created.map_err(ReplaceError::Write).and_then(|()| replace_file(path, bytes, version));
    replaced.map_err(|error| {
        let what = format!("`{}` was not changed: {}", path.display(), error_chain(&error));
        let (code, hint) = match &error {
            ReplaceError::Changed => (Sysexit::Unavailable, "run this again"),
            ReplaceError::Write(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                (Sysexit::NoPermission, "run this as the owner of the file")
            }
            error @ ReplaceError::Write(_) => {
                (creation_exit_code(error), "make room or the directory writable")
            }
        };
        Failure::new(code, what).hint(hint)
    })
}

/// What a person has to know about MCP servers in this harness.
fn advice(name: HarnessNameArgument, shim: ShimProgram<'_>) -> &'static str {
    match (name, shim.relay) {
        (HarnessNameArgument::Claude, _) => {
            "Claude Code asks for approval of servers in a project's .mcp.json; those in ~/.claude.json need none"
        }
        (HarnessNameArgument::Codex, None) => {
            "Codex passes servers only the variables in `env_vars`; give the link with --relay LINK if it has another. It waits one second for servers: set mcp_optional_startup_grace_ms = 10000, or `required = true` in an entry, which ends the session if that server does not start"
        }
        (HarnessNameArgument::Codex, Some(_)) => {
            "Codex passes servers few variables, so the entries name the link; for a sandbox in which the socket has another path give it with --relay LINK. It waits one second for servers: set mcp_optional_startup_grace_ms = 10000, or `required = true` in an entry, which ends the session if that server does not start"
        }
        (HarnessNameArgument::Gemini, _) => {
            "Gemini CLI starts servers of a project only in a folder that it trusts"
        }
        (HarnessNameArgument::OpenCode, _) => {
            "opencode starts servers of its own and of the project's settings without a question"
        }
        (HarnessNameArgument::VsCode, _) => {
            "VS Code asks whether to trust a server when it starts it for the first time"
        }
    }
}
