//! A network namespace with one veth pair ("cable") to the host; the rest of the host's network cannot be reached from
//! inside.
//!
//! The sidecar binds to [`Veth::host`], which exists only as long as the sandbox. Sandboxes of other tests, also in
//! other processes, have different addresses.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;

use super::{Guest, Sandbox, describe_output, if_usable, is_root, shim, text_of_success, unique_and_number};
use crate::process::{command, output_of, send};
use crate::tools::{Tool, cannot_run};

/// One namespace and its cable.
#[derive(Debug)]
pub struct Veth {
    program: PathBuf,
    name: String,
    host_interface: String,
    host: Ipv4Addr,
    guest: Ipv4Addr,
}

/// The state of the guest's interface: down (`Cut`) or up (`Whole`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cable {
    Cut,
    Whole,
}

impl Veth {
    #[track_caller]
    pub fn open() -> Option<Self> {
        let program = Tool::Ip.path()?;
        if !is_root("a network namespace") {
            return None;
        }
        let (name, number) = unique_and_number();
        let (host, guest) =
            free_addresses(&program, std::process::id().wrapping_mul(31).wrapping_add(number));
        let host_interface = format!("cd{}-{number}", std::process::id());
        let veth = Self { program, name, host_interface, host, guest };
        veth.create().map_or_else(
            |problem| {
                cannot_run(&format!("a network namespace cannot be made here: {problem}"));
                None
            },
            |()| if_usable(veth),
        )
    }

    /// The host's address on the cable: what a sidecar binds to and a guest dials.
    pub fn host(&self) -> Ipv4Addr {
        self.host
    }

    /// The guest's address on the cable: what a sidecar dials where the guest listens.
    pub fn guest(&self) -> Ipv4Addr {
        self.guest
    }

    /// Cuts or restores the cable. While it is cut, packets are lost silently, as when a network fails.
    #[track_caller]
    pub fn set(&self, cable: Cable) {
        // Cutting is done at the guest's end: the host's address, and what is bound to it, stays.
        let state = match cable {
            Cable::Cut => "down",
            Cable::Whole => "up",
        };
        let mut set = command(&self.program);
        set.args(["-n", &self.name, "link", "set", "dev", GUEST_INTERFACE, state]);
        text_of_success(set, "ip link set");
    }

    /// A command that runs another program in the namespace.
    pub fn command_for(&self, program: &Path) -> Command {
        let mut command = command(&self.program);
        command.args(["netns", "exec", &self.name]).arg(program);
        command.env_clear();
        command
    }

    fn create(&self) -> Result<(), String> {
        let (host, guest) = (format!("{}/30", self.host), format!("{}/30", self.guest));
        let (name, cable) = (self.name.as_str(), self.host_interface.as_str());
        let steps: [&[&str]; 7] = [
            &["netns", "add", name],
            &["link", "add", cable, "type", "veth", "peer", "name", GUEST_INTERFACE, "netns", name],
            &["address", "add", &host, "dev", cable],
            &["link", "set", "dev", cable, "up"],
            &["-n", name, "address", "add", &guest, "dev", GUEST_INTERFACE],
            &["-n", name, "link", "set", "dev", GUEST_INTERFACE, "up"],
            &["-n", name, "link", "set", "dev", "lo", "up"],
        ];
        for step in steps {
            let mut ip = command(&self.program);
            ip.args(step);
            let output = output_of(ip, "ip");
            if !output.status.success() {
                return Err(format!("ip {}: {}", step.join(" "), describe_output(&output)));
            }
        }
        Ok(())
    }
}

impl Sandbox for Veth {
    fn name(&self) -> &'static str {
        "a network namespace"
    }

    /// Mounts are ignored: the guest sees the host's tree.
    fn command(&self, guest: &Guest) -> Command {
        let mut command = self.command_for(&shim());
        command.args(&guest.arguments).envs(guest.environment_outside());
        command
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        let mut pids = command(&self.program);
        pids.args(["netns", "pids", &self.name]);
        let processes = String::from_utf8_lossy(&output_of(pids, "ip netns pids").stdout).into_owned();
        for process in processes.lines().filter_map(|line| line.trim().parse().ok()) {
            send(process, Signal::SIGKILL);
        }
        // The cable is removed with the namespace, unless the namespace was never created.
        for arguments in [["netns", "delete", &self.name], ["link", "delete", &self.host_interface]] {
            let mut ip = command(&self.program);
            ip.args(arguments);
            output_of(ip, "ip");
        }
    }
}

/// The name of the veth interface inside the namespace.
const GUEST_INTERFACE: &str = "cable";

/// The two host addresses of a /30 in 10.231.0.0/16 that no interface of this machine uses.
#[track_caller]
fn free_addresses(program: &Path, seed: u32) -> (Ipv4Addr, Ipv4Addr) {
    const NETWORKS: u32 = 1 << 14;
    let base = u32::from(Ipv4Addr::new(10, 231, 0, 0));
    let free = (0..64).map(|attempt| base + (seed.wrapping_add(attempt) % NETWORKS) * 4).find(|network| {
        let mut show = command(program);
        show.args(["-o", "-4", "address", "show", "to", &format!("{}/30", Ipv4Addr::from(*network))]);
        text_of_success(show, "ip address show").is_empty()
    });
    let network = free.expect("one of 64 networks is not in use");
    (Ipv4Addr::from(network + 1), Ipv4Addr::from(network + 2))
}
