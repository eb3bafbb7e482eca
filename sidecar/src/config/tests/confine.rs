//! Tests of `[servers.NAME.confine]`.

use cofferdam_confine::{FurtherWall, Home, ShownPath};
use cofferdam_servers::spec::WorkspaceAccess;

use super::*;

#[test]
fn a_server_is_confined_unless_the_file_says_off() {
    let config = valid(
        "[servers.a]\ncommand = ['a']\n[servers.b]\ncommand = ['b']\nconfine = 'off'\n\
         [servers.c]\ncommand = ['c']\nconfine = {}\n\
         [servers.d]\ncommand = ['d']\n[servers.d.confine]\nhome = 'keep'\npids = 8\nmemory = '1GiB'\nread = ['/opt/tools/data']\n",
    );
    let confinement = |name: &str| match &config.servers[&name.parse().expect("a name")].kind {
        ServerKind::Stdio(stdio) => stdio.confinement.as_ref().map(|confinement| confinement.profile.clone()),
        ServerKind::Http(_) => None,
    };
    assert_eq!(confinement("a"), Some(Default::default()));
    assert_eq!(confinement("b"), None);
    assert_eq!(confinement("c"), Some(Default::default()));
    let profile = confinement("d").expect("it is confined");
    assert_eq!((profile.home, profile.pids, profile.memory), (Home::Keep, Some(8), Some(1024 * 1024 * 1024)));
    assert_eq!(profile.read[0].path(), Path::new("/opt/tools/data"));
}

#[test]
fn confine_is_a_table_or_off_and_for_programs_only() {
    assert_problems(
        "[servers.a]\ncommand = ['a']\nconfine = 'on'\n[servers.b]\nurl = 'https://b'\nconfine = {}\n",
        "cofferdam.toml:3: `servers.a.confine` has a value that is not known\n  \
         hint: use `off`\n\
         cofferdam.toml:6: `servers.b.confine` is for servers with `command`\n  \
         hint: leave it out",
    );
}

#[test]
fn a_profile_names_no_file_of_the_sidecar_and_no_directory_that_every_server_has() {
    assert_problems(
        "state-dir = '/var/lib/state'\n[relay]\nunix = '/srv/relay/relay.sock'\nunix-grant = 'g'\n[grants.g]\nservers = ['a']\n\
         [servers.a]\ncommand = ['a']\n[servers.a.confine]\n\
         read = ['/var/lib', '/proc', '~/x', '']\nwrite = ['/srv/relay', '/']\npids = 0\nmemory = '1KiB'\n",
        "cofferdam.toml:10: `servers.a.confine.read` cannot name `/var/lib`: it contains `/var/lib/state`, which the server must not see\n  \
         hint: name the files or directories that the server needs\n\
         cofferdam.toml:10: `servers.a.confine.read` cannot name `/proc`: it is, or contains, `/proc`, of which every confined server has its own\n  \
         hint: name the files or directories that the server needs\n\
         cofferdam.toml:10: `servers.a.confine.read` begins with `~`, which is not expanded\n  \
         hint: `~` is for shells: write the whole path\n\
         cofferdam.toml:10: `servers.a.confine.read` is not a path\n  \
         hint: write an absolute path\n\
         cofferdam.toml:11: `servers.a.confine.write` cannot name `/srv/relay`: it contains `/srv/relay/relay.sock`, which the server must not see\n  \
         hint: name the files or directories that the server needs\n\
         cofferdam.toml:11: `servers.a.confine.write` cannot name `/`: it is, or contains, `/dev`, of which every confined server has its own\n  \
         hint: name the files or directories that the server needs\n\
         cofferdam.toml:12: `servers.a.confine.pids` is too small\n  \
         hint: use a value from 1 to 65536\n\
         cofferdam.toml:13: `servers.a.confine.memory` is too small\n  \
         hint: use a value from 16MiB to 1024GiB",
    );
}

#[test]
fn processors_and_required_walls_are_checked() {
    let config = valid(
        "[servers.a]\ncommand = ['a']\nconfine = { cpu = 0.5, require = ['network', 'files', 'limits', 'processes', 'user'] }\n\
         [servers.b]\ncommand = ['b']\nconfine = { cpu = 2 }\n",
    );
    let profile = |name: &str| match &config.servers[&name.parse().expect("a name")].kind {
        ServerKind::Stdio(stdio) => stdio.confinement.as_ref().expect("it is confined").profile.clone(),
        ServerKind::Http(_) => panic!("it has a command"),
    };
    assert_eq!(profile("a").cpu, Some(500));
    assert_eq!(profile("a").require, [FurtherWall::Limits, FurtherWall::User].into());
    assert_eq!((profile("b").cpu, profile("b").require), (Some(2000), [].into()));
    assert_problems(
        "[servers.a]\ncommand = ['a']\n[servers.a.confine]\ncpu = -1\nrequire = ['files', 'network']\n\
         [servers.b]\ncommand = ['b']\n[servers.b.confine]\ncpu = 1e9\nrequire = ['walls']\n",
        "cofferdam.toml:4: `servers.a.confine.cpu` is too small\n  \
         hint: use a value from 0.01 to 1024\n\
         cofferdam.toml:5: `servers.a.confine.require` lacks `processes`\n  \
         hint: name it: these three are made together, by namespaces, and no server is confined without one of them\n\
         cofferdam.toml:9: `servers.b.confine.cpu` is too large\n  \
         hint: use a value from 0.01 to 1024\n\
         cofferdam.toml:10: `servers.b.confine.require` has a value that is not known\n  \
         hint: use one of `files`, `landlock`, `limits`, `network`, `processes`, `user`",
    );
}

#[test]
fn hosts_that_cannot_be_listed_are_refused_with_their_line() {
    assert_problems(
        "[servers.a]\ncommand = ['a']\n[servers.a.confine]\nhosts = [\n'a.example',\n'a.example:0',\n'a.*.example:443',\n\
         'http://a.example:80',\n'29.18.0.7:443',\n'b.example:443',\n]\n",
        "cofferdam.toml:5: `servers.a.confine.hosts`: `a.example` does not say which host and port a server may reach: the port is missing; add it, as in `api.github.com:443`\n  \
         hint: write a host and its port\n\
         cofferdam.toml:6: `servers.a.confine.hosts`: `a.example:0` does not say which host and port a server may reach: `0` is not a port from 1 to 65535\n  \
         hint: write a host and its port\n\
         cofferdam.toml:7: `servers.a.confine.hosts`: `a.*.example:443` does not say which host and port a server may reach: `*` stands for the whole first label, with at least two labels after it, as in `*.amazonaws.com:443`\n  \
         hint: write a host and its port\n\
         cofferdam.toml:8: `servers.a.confine.hosts`: `http://a.example:80` does not say which host and port a server may reach: it is a URL; leave out the scheme and the path, as in `api.github.com:443`\n  \
         hint: write a host and its port\n\
         cofferdam.toml:9: `servers.a.confine.hosts`: `29.18.0.7:443` is inside the pool 29.18.0.0/16, whose addresses stand for names inside\n  \
         hint: leave this entry out",
    );
}

#[test]
fn the_workspace_is_that_of_the_grant_which_must_name_one() {
    let servers = "[servers.a]\ncommand = ['a']\nconfine = { write = ['{workspace}'] }\n\
                   [servers.b]\ncommand = ['b']\nconfine = { read = ['{workspace}', '/srv/x'] }\n[servers.c]\ncommand = ['c']\n";
    let config = valid(&format!(
        "{servers}[grants.g]\nservers = ['a', 'b', 'c']\nworkspace = '/srv/project'\n[grants.h]\nservers = ['c']\n"
    ));
    let access = |name: &str| match &config.servers[&name.parse().expect("a name")].kind {
        ServerKind::Stdio(stdio) => stdio.confinement.as_ref().and_then(|confinement| confinement.workspace),
        ServerKind::Http(_) => None,
    };
    assert_eq!((access("a"), access("b")), (Some(WorkspaceAccess::Write), Some(WorkspaceAccess::Read)));
    assert_eq!(access("c"), None);
    let workspace = config.grants[&"g".parse().expect("a name")].workspace.as_ref();
    assert_eq!(workspace.map(ShownPath::path), Some(Path::new("/srv/project")));
    assert_problems(
        &format!(
            "state-dir = '/srv/state'\n{servers}[grants.g]\nservers = ['a']\n[grants.h]\nservers = ['b']\nworkspace = '/srv'\n"
        ),
        "cofferdam.toml:10: `grants.g` has no `workspace`, and its server `a` is shown `{workspace}`\n  \
         hint: name the directory, as in `workspace = \"/srv/project\"`\n\
         cofferdam.toml:14: `grants.h.workspace` cannot name `/srv`: it contains `/srv/state`, which the server must not see\n  \
         hint: name the files or directories that the server needs",
    );
    assert_problems(
        "[servers.a]\ncommand = ['a']\nconfine = { read = ['{workspace}/src'] }\n",
        "cofferdam.toml:3: `servers.a.confine.read` names a part of `{workspace}`, and it can only be shown whole\n  \
         hint: write `{workspace}` alone",
    );
}
