//! What a server gets when it starts, as data. Its JSON is what `confine show --json` prints.
//!
//! What must stay true: the report has names and paths only, no value of a variable and nothing of a secret.

use std::collections::BTreeSet;
use std::sync::Arc;

use cofferdam_confine::manifest::{Manifest, Permission};
use cofferdam_confine::view::{Content, SeenPath, View, Why};
use cofferdam_egress::{AllowedHost, ReachedAddresses};
use cofferdam_process::Limit;
use cofferdam_servers::confined_view::{ConfinedView, SeenVariable, VariableOrigin};
use cofferdam_servers::spec::{Confinement, Scope, ServerSpec, StdioServer};
use serde::Serialize;

use crate::config::format_size;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) server: String,
    pub(super) confined: bool,
    /// Everything below is absent for a server that is not confined.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) gets: Option<Gets>,
}

#[derive(Debug, Serialize)]
pub(super) struct Gets {
    pub(super) program: String,
    pub(super) files: Vec<File>,
    /// The only programs that may be executed; `None`: all in files that may be executed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) programs: Option<Vec<String>>,
    pub(super) injected_files: Vec<String>,
    pub(super) variables: Vec<Variable>,
    pub(super) hosts: Vec<Host>,
    pub(super) refused: &'static [&'static str],
    pub(super) walls: Vec<Wall>,
    pub(super) limits: Vec<LimitValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) manifest: Option<Bound>,
}

#[derive(Debug, Serialize)]
pub(super) struct File {
    pub(super) path: String,
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) execute: bool,
    pub(super) why: &'static str,
    /// What is there, if it is not the same path of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) from: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct Host {
    pub(super) host: String,
    pub(super) addresses: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct Wall {
    pub(super) wall: &'static str,
    pub(super) what: String,
}

#[derive(Debug, Serialize)]
pub(super) struct LimitValue {
    pub(super) limit: &'static str,
    pub(super) value: u64,
    #[serde(skip)]
    pub(super) unit: LimitUnit,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LimitUnit {
    Bytes,
    Count,
}

/// What the manifest allows, and what of it no key of the configuration refines.
#[derive(Debug, Serialize)]
pub(super) struct Bound {
    pub(super) permissions: Vec<&'static str>,
    pub(super) unrefined: Vec<&'static str>,
}

/// What every confined server is refused in its network.
const REFUSED: [&str; 5] = [
    "names that are not listed: they do not resolve",
    "other addresses and ports: connections fail at once",
    "a listed name that resolves to loopback, link-local or metadata addresses, or, without `private:`, to a private network",
    "TLS to another name than the listed one that was connected to",
    "UDP, raw and packet sockets; connections from outside",
];

pub(super) const CONFIGURED: &str = "configuration";
pub(super) const OWN: &str = "every-confined-server";
pub(super) const INHERITED: &str = "sidecar";

pub(super) fn confined(
    server: &ServerSpec,
    stdio: &StdioServer,
    confinement: &Confinement,
    view: ConfinedView,
) -> Report {
    let ConfinedView { files, variables } = view;
    let View { program, paths, programs, limits, filter_instructions } = files;
    let text = |path: &std::path::Path| path.display().to_string();
    let gets = Gets {
        program: text(&program),
        files: paths.iter().map(file).collect(),
        programs: programs.map(|programs| programs.iter().map(|program| text(program)).collect()),
        injected_files: injected_files(stdio, &server.scopes),
        variables: all_variables(variables, &server.scopes),
        hosts: confinement.hosts.iter().map(host).collect(),
        refused: &REFUSED,
        walls: walls(filter_instructions),
        limits: limits.into_iter().map(limit).collect(),
        manifest: confinement.manifest.as_deref().map(|manifest| bound(manifest, server, stdio)),
    };
    Report { server: server.name.to_string(), confined: true, gets: Some(gets) }
}

fn file(seen: &SeenPath) -> File {
    let content = match &seen.content {
        Content::Device => Some("a device".to_owned()),
        Content::Empty => Some("an empty directory".to_owned()),
        Content::Host(source) if *source == seen.path => None,
        Content::Host(source) => Some(format!("what is at {}", source.display())),
        Content::Link(target) => Some(format!("a link to {}", target.display())),
        Content::Made => Some("a file made for it".to_owned()),
        Content::Memory(bytes) => {
            Some(format!("an empty directory in memory, at most {}", format_size(*bytes)))
        }
        Content::Processes => Some("its own processes, or nothing in some containers".to_owned()),
    };
    let why = match seen.why {
        Why::Argument => "command",
        Why::Directory => "cwd",
        Why::Exec => "confine.exec",
        Why::Interpreter => "interpreter",
        Why::KeptHome => "confine.home",
        Why::Own => "own",
        Why::Program => "program",
        Why::Read => "confine.read",
        Why::System => "system",
        Why::Write => "confine.write",
    };
    let path = seen.path.display().to_string();
    File { path, read: true, write: seen.rights.write, execute: seen.rights.execute, why, content }
}

/// The injected files of the server and of the scopes of its tools.
fn injected_files(stdio: &StdioServer, scopes: &[Arc<Scope>]) -> Vec<String> {
    let of_scopes = scopes.iter().flat_map(|scope| scope.files.keys());
    stdio.files.keys().chain(of_scopes).cloned().collect::<BTreeSet<_>>().into_iter().collect()
}

/// The variables of the server, and those that only a scope of its tools has.
fn all_variables(variables: Vec<SeenVariable>, scopes: &[Arc<Scope>]) -> Vec<Variable> {
    let mut all: Vec<Variable> = variables
        .into_iter()
        .map(|variable| Variable {
            name: variable.name.display().to_string(),
            from: match variable.origin {
                VariableOrigin::Configured => CONFIGURED,
                VariableOrigin::Inherited => INHERITED,
                VariableOrigin::Own => OWN,
            },
        })
        .collect();
    for name in scopes.iter().flat_map(|scope| scope.env.keys()) {
        if !all.iter().any(|variable| variable.name == *name && variable.from == CONFIGURED) {
            all.push(Variable { name: name.clone(), from: CONFIGURED });
        }
    }
    all
}

fn host(host: &AllowedHost) -> Host {
    let addresses = match host.addresses() {
        ReachedAddresses::Itself => "this address",
        ReachedAddresses::Public => "its public addresses",
        ReachedAddresses::PublicAndPrivate => "its addresses, also those of private networks",
        ReachedAddresses::ThisMachine => "this machine",
    };
    Host { host: host.to_string(), addresses }
}

fn walls(filter_instructions: usize) -> Vec<Wall> {
    let filter = match filter_instructions {
        0 => "no filter".to_owned(),
        count => format!(
            "a filter of {count} instructions, which refuses mounting, tracing, new namespaces and the like"
        ),
    };
    let walls = [
        (
            "files",
            "a root directory of its own, with the paths above; Landlock too, where the kernel has it"
                .to_owned(),
        ),
        ("processes", "its own only: it cannot see, trace or signal others".to_owned()),
        ("network", "a loopback interface of its own; the sidecar makes the connections".to_owned()),
        ("shared memory", "its own: no semaphore, queue or segment of others".to_owned()),
        ("privileges", "no capability, no setuid, no new privileges, no core file".to_owned()),
        ("system calls", filter),
    ];
    walls.into_iter().map(|(wall, what)| Wall { wall, what }).collect()
}

fn limit((limit, value): (Limit, u64)) -> LimitValue {
    let (limit, unit) = match limit {
        Limit::Data => ("memory of each process", LimitUnit::Bytes),
        Limit::Files => ("open files of each process", LimitUnit::Count),
        Limit::LockedMemory => ("locked memory of each process", LimitUnit::Bytes),
        Limit::Processes => ("processes and threads, unless the sidecar runs as root", LimitUnit::Count),
    };
    LimitValue { limit, value, unit }
}

fn bound(manifest: &Manifest, server: &ServerSpec, stdio: &StdioServer) -> Bound {
    let words = |permissions: Vec<Permission>| permissions.into_iter().map(Permission::word).collect();
    let unrefined = stdio.given(&server.scopes).map(|given| manifest.unrefined(&given)).unwrap_or_default();
    Bound {
        permissions: words(manifest.permissions.iter().copied().collect()),
        unrefined: words(unrefined.into_iter().map(|(permission, _)| permission).collect()),
    }
}
