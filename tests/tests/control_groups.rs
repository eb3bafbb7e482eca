//! Confined servers in control groups, in an emulated machine: the host of the tests may have none to delegate. These tests take
//! minutes, so they run only in `just slow`.

use std::time::Duration;

use cofferdam_tests::deadline::{holds_within, wait_until};
use cofferdam_tests::process::built;
use cofferdam_tests::sandboxes::{Machine, System};
use serde_json::json;

/// An emulated processor unpacks the programs slowly.
const BOOT_TIME: Duration = Duration::from_secs(240);
const CONFIG: &str = r#"
state-dir = "/state"
[relay]
unix = "/relay/relay.sock"
unix-grant = "dev"
[admin]
socket = "/admin/admin.sock"
[servers.tools]
command = ["/fixture-server"]
[servers.tools.confine]
memory = "64MiB"
pids = 40
cpu = 0.5
require = ["files", "processes", "network", "limits"]
[grants.dev]
servers = ["tools"]
"#;

/// Delegates a group to the sidecar, in which an earlier one seems to have been killed, and prints once a second which groups
/// there are.
const SCRIPT: &str = r#"
b=/bin/busybox
$b mkdir -p /proc /sys /tmp /state /relay /admin /dev/shm /run
$b chmod 700 /state /relay /admin
$b mount -t proc none /proc
$b mount -t sysfs none /sys
$b mount -t devtmpfs none /dev
$b mkdir -p /dev/shm
$b mount -t tmpfs none /dev/shm
$b mount -t cgroup2 none /sys/fs/cgroup
service=/sys/fs/cgroup/cofferdam.service
$b mkdir $service
echo "+cpu +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
$b mkdir $service/cofferdam-server-1-0
$b sleep 100000 &
echo $! >$service/cofferdam-server-1-0/cgroup.procs
say() { echo "groups: $*" >/dev/ttyS0; }
(while :; do
    for group in $service/cofferdam-server-*; do
        if [ -d $group ]; then
            processes=$($b wc -l <$group/cgroup.procs)
            say "${group##*/} memory=$($b cat $group/memory.max) pids=$($b cat $group/pids.max) cpu=$($b cat $group/cpu.max) processes=$processes;"
        else
            say none
        fi
    done
    $b sleep 1
done) &
say "left $($b ls $service | $b grep -c cofferdam-server-1-0)"
$b sh -c "echo \$\$ >$service/cgroup.procs; exec /cofferdam serve -c /cofferdam.toml >/dev/ttyS0 2>&1" </dev/null &
while [ ! -S /relay/relay.sock ]; do $b sleep 0.2; done
exec /cofferdam-shim --relay unix:/relay/relay.sock --server tools <>/dev/vport0p1 >&0
"#;

#[test]
#[ignore = "minutes: just slow"]
fn each_confined_server_has_a_control_group_that_ends_with_it() {
    let Some(machine) = Machine::open() else { return };
    let config = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    std::fs::write(config.path(), CONFIG).expect("a temporary file is writable");
    let system = System::new(SCRIPT)
        .program(&built("COFFERDAM_BIN", "cofferdam"), "/cofferdam")
        .program(&built("COFFERDAM_FIXTURE_BIN", "fixture-server"), "/fixture-server")
        .file(config.path(), "/cofferdam.toml");
    let Some(mut machine) = machine.boot_system(&system) else { return };
    let is_ready = holds_within(BOOT_TIME, || machine.shim.stderr().contains("ready; listening"));
    assert!(is_ready, "{}", machine.shim.stderr());
    machine.shim.initialize();
    assert_eq!(machine.shim.call_text("add", json!({"a": 20, "b": 22})), "42");
    let group = "cofferdam-server-";
    let limits = "memory=67108864 pids=41 cpu=50000 100000";
    wait_until("the server's group has its limits and processes", || {
        let console = machine.shim.stderr();
        let last = console.lines().rev().find(|line| line.contains("groups: "));
        last.is_some_and(|line| {
            // Complete, because the console is read while it is written.
            let is_complete = line.contains(';');
            is_complete && line.contains(group) && line.contains(limits) && !line.contains("processes=0;")
        })
    });
    let console = machine.shim.stderr();
    assert!(console.contains("groups: left 1"), "{console}");
    assert!(console.contains("confined servers have control groups of their own"), "{console}");
    assert!(console.contains("limits: control group and process limits"), "{console}");
    // It is started again at the next request only.
    machine.shim.call("crash", json!({}));
    wait_until("no group of a server is left", || {
        let console = machine.shim.stderr();
        console.lines().rev().find(|line| line.contains("groups: ")).is_some_and(|line| line.contains("none"))
    });
}
