//! The published Debian package in a Debian without a compiler, under its own systemd; and packages that are made of the
//! programs under test. Both take the tools of `tests/tools --dist`, so this runs in `just slow`.

use std::path::{Path, PathBuf};

use cofferdam_tests::booted_debian::{BootedDebian, Shared};
use cofferdam_tests::packaged::stripped_program;
use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::tools::Tool;

use super::commands_of_guide;
use super::published::{Published, VERSION};

pub(crate) const SECTION: &str = "Debian and Ubuntu, with systemd";

/// A configuration with a server that runs in Node.
const CONFIGURATION: &str = r#"
state-dir = "/var/lib/cofferdam"
[relay]
unix = "/run/cofferdam/relay/relay.sock"
unix-grant = "dev"
[admin]
socket = "/run/cofferdam/admin/admin.sock"
[servers.everything]
command = ["/usr/bin/node", "/opt/node_modules/@modelcontextprotocol/server-everything/dist/index.js"]
confine = "off"
[servers.confined]
command = ["/usr/bin/node", "/opt/node_modules/@modelcontextprotocol/server-everything/dist/index.js"]
confine = {}
[grants.dev]
servers = ["everything", "confined"]
"#;
const CALL: &str = r#"/tmp/shim call everything echo '{"message": "through the unit"}'"#;

/// Holds a link open and looks at the process of its server: no new privileges, filtered system calls, no file system that it
/// could write to.
const SERVER_UNDER_THE_UNITS_RESTRICTIONS: &str = r#"
mkfifo /tmp/in
/tmp/shim --server everything < /tmp/in > /tmp/out &
exec 3> /tmp/in
echo '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}' >&3
until grep -q '"id":1' /tmp/out; do kill -0 $! && sleep 0.1; done
server=$(pgrep -u cofferdam --newest --full '^/usr/bin/node ')
grep -Eq '^NoNewPrivs:[[:space:]]1$' /proc/$server/status
grep -Eq '^Seccomp:[[:space:]]2$' /proc/$server/status
grep -Eq '^CapBnd:[[:space:]]0+$' /proc/$server/status
awk '$5 == "/" { print $6 }' /proc/$server/mountinfo | tail -n 1 | grep -Eq '^ro,'
exec 3>&-
wait $!
"#;

/// Upgrades the package while a harness is connected: its shim reconnects, and the call that runs meanwhile and the one after it
/// have one answer each.
const LINK_ACROSS_THE_UPGRADE: &str = r#"
mkfifo /tmp/harness
/tmp/shim --server everything < /tmp/harness > /tmp/answers &
exec 3> /tmp/harness
answered() { until grep -q "\"id\":$1[,}]" /tmp/answers; do kill -0 $! && sleep 0.1; done; }
echo '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}' >&3
answered 1
echo '{"jsonrpc":"2.0","method":"notifications/initialized"}' >&3
call() { echo '{"jsonrpc":"2.0","id":'$1',"method":"tools/call","params":{"name":"'$2'","arguments":'$3'}}' >&3; }
call 2 echo '{"message":"before the upgrade"}'
answered 2
call 3 trigger-long-running-operation '{"duration":600,"steps":600}'
apt-get install --yes /dist/newer.deb
call 4 echo '{"message":"after the upgrade"}'
answered 3
answered 4
grep '"id":4[,}]' /tmp/answers | grep -q 'after the upgrade'
grep '"id":3[,}]' /tmp/answers | grep -q outcome_unknown
for id in 1 2 3 4; do test $(grep -c "\"id\":$id[,}]" /tmp/answers) = 1; done
exec 3>&-
wait $!
"#;

/// The package of the built programs, in this directory.
#[track_caller]
fn package(directory: &Path) -> Option<PathBuf> {
    let tools = Tool::CargoDeb.path()?;
    let program = stripped_program(directory);
    let mut deb = command(Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/deb"));
    let shim = built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
    deb.arg("--fast").arg(directory).arg(program).arg(format!(
        "{}={}",
        std::env::consts::ARCH,
        shim.display()
    ));
    let path = std::env::var("PATH").expect("PATH is set");
    let tools = tools.parent().expect("a program is in a directory");
    deb.env("PATH", format!("{path}:{}", tools.display()));
    let output = output_of(deb, "packaging/deb");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut files = std::fs::read_dir(directory).expect("it exists").flatten().map(|entry| entry.path());
    files.find(|path| path.extension().is_some_and(|extension| extension == "deb"))
}

#[track_caller]
fn shell(script: &str, directory: &Path) -> String {
    let mut sh = command("sh");
    sh.args(["-ec", script]).current_dir(directory);
    let output = output_of(sh, script);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{script}: {stdout}{}", String::from_utf8_lossy(&output.stderr));
    stdout
}

#[test]
#[ignore = "minutes: just slow"]
fn the_package_runs_under_systemd_from_installation_to_purge() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let Some(published) = Published::open() else { return };
    let package = format!("cofferdam_{VERSION}-1_amd64.deb");
    std::fs::copy(published.file(&package), directory.path().join(&package))
        .expect("a temporary directory is writable");
    let newer = "dpkg-deb -R cofferdam_*.deb newer && sed -i 's/^Version: .*/Version: 9.9.9-1/' newer/DEBIAN/control && \
                 dpkg-deb --root-owner-group -Zgzip -z1 -b newer newer.deb";
    shell(newer, directory.path());
    std::fs::write(directory.path().join("cofferdam.toml"), CONFIGURATION)
        .expect("a temporary directory is writable");
    let Some(shared) = Shared::default().path(directory.path(), "/dist").node() else { return };
    let Some(debian) = BootedDebian::boot(&shared) else { return };

    // The commands of the guide, as they are written.
    let [install, reload] = &commands_of_guide(SECTION)[..] else { panic!("the guide has two blocks") };
    debian.succeeds(&format!("cd / && {install}"));
    debian.succeeds("test $(stat -c %U:%a /var/lib/cofferdam) = cofferdam:700");
    debian.succeeds("cofferdam demo && cofferdam shim --out /tmp/shim");
    debian
        .succeeds("cd /usr/share/man/man1 && test -s cofferdam-serve.1.gz -a -s cofferdam-shim-doctor.1.gz");
    debian.succeeds("test -s /usr/share/bash-completion/completions/cofferdam");

    // A reload applies a configuration, or fails and changes nothing.
    debian.succeeds(&format!("cat /dist/cofferdam.toml > /etc/cofferdam/cofferdam.toml\n{reload}"));
    assert!(debian.succeeds(CALL).contains("through the unit"));
    let refused = debian.run("echo no = 1 >> /etc/cofferdam/cofferdam.toml && systemctl reload cofferdam");
    assert!(!refused.status.success(), "a wrong configuration was loaded");
    assert!(debian.succeeds(CALL).contains("through the unit"));
    debian.succeeds("cat /dist/cofferdam.toml > /etc/cofferdam/cofferdam.toml");

    // The socket stays while the service is stopped, and starts it.
    debian.succeeds("systemctl stop cofferdam.service && ! pgrep -u cofferdam");
    assert!(debian.succeeds(CALL).contains("through the unit"));
    debian.succeeds(SERVER_UNDER_THE_UNITS_RESTRICTIONS);
    let environment = debian.succeeds("/tmp/shim call confined get-env '{}'");
    assert!(environment.contains(r#""HOME": "/home/server""#), "{environment}");
    debian.succeeds("! journalctl --unit cofferdam.service | grep 'have an empty /proc'");

    // An upgrade restarts the service with the same configuration and state, and a link that is open goes on.
    let key = debian.succeeds("runuser -u cofferdam -- cofferdam key -c /etc/cofferdam/cofferdam.toml");
    let process = debian.succeeds("systemctl show --property=MainPID cofferdam.service");
    debian.succeeds(LINK_ACROSS_THE_UPGRADE);
    debian.succeeds("runuser -u cofferdam -- cofferdam audit verify -c /etc/cofferdam/cofferdam.toml");
    debian.succeeds("systemctl is-active cofferdam.socket && systemctl is-active cofferdam.service");
    assert_ne!(
        debian.succeeds("systemctl show --property=MainPID cofferdam.service"),
        process,
        "it still runs the old program"
    );
    assert_eq!(
        debian.succeeds("runuser -u cofferdam -- cofferdam key -c /etc/cofferdam/cofferdam.toml"),
        key
    );
    assert!(debian.succeeds(CALL).contains("through the unit"));

    debian.succeeds("apt-get purge --yes cofferdam");
    let left = debian.succeeds(
        "find / -xdev -path /proc -prune -o -path /dist -prune -o -name '*cofferdam*' -print | grep -v '^/var/log/journal' || true",
    );
    assert_eq!(left, "", "files are left");
    debian.succeeds("! systemctl is-active cofferdam.socket cofferdam.service");
}

#[test]
#[ignore = "minutes: just slow"]
fn the_package_is_reproducible_and_lintian_finds_no_error() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let Some(lintian) = Tool::Lintian.path() else { return };
    let packages = ["one", "two"].map(|name| {
        let directory = directory.path().join(name);
        std::fs::create_dir(&directory).expect("a temporary directory is writable");
        package(&directory)
    });
    let [Some(one), Some(two)] = packages else { return };
    assert!(std::fs::read(&one).expect("it was made") == std::fs::read(two).expect("it was made"));
    let mut check = command(lintian);
    check.args(["--fail-on", "error"]).arg(one);
    let output = output_of(check, "lintian");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
