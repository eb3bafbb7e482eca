//! A network namespace with one virtual cable (veth pair) to the host; the rest of the host's network cannot be seen from inside.
//!
//! The sidecar binds to [`Veth::host`], which exists only as long as the sandbox. Addresses are chosen so that sandboxes of
//! other tests have different ones, also in other processes.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;

use super::{Guest, Sandbox, described, if_usable, is_root, shim, text_of_success, unique_and_number};
use crate::process::{command, output_of, send};
use crate::tools::{Tool, cannot_run};

/// One namespace and its cable.
#[derive(Debug)]
pub struct Veth {
    program: PathBuf,
    name: String,
    cable: String,
    host: Ipv4Addr,
    guest: Ipv4Addr,
}

/// Whether packets pass.
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
        let cable = format!("cd{}-{number}", std::process::id());
        let veth = Self { program, name, cable, host, guest };
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
        set.args(["-n", &self.name, "link", "set", "dev", GUEST_END, state]);
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
        let (name, cable) = (self.name.as_str(), self.cable.as_str());
        let steps: [&[&str]; 7] = [
            &["netns", "add", name],
            &["link", "add", cable, "type", "veth", "peer", "name", GUEST_END, "netns", name],
            &["address", "add", &host, "dev", cable],
            &["link", "set", "dev", cable, "up"],
            &["-n", name, "address", "add", &guest, "dev", GUEST_END],
            &["-n", name, "link", "set", "dev", GUEST_END, "up"],
            &["-n", name, "link", "set", "dev", "lo", "up"],
        ];
        for step in steps {
            let mut ip = command(&self.program);
            ip.args(step);
            let output = output_of(ip, "ip");
            if !output.status.success() {
                return Err(format!("ip {}: {}", step.join(" "), described(&output)));
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
        for arguments in [["netns", "delete", &self.name], ["link", "delete", &self.cable]] {
            let mut ip = command(&self.program);
            ip.args(arguments);
            output_of(ip, "ip");
        }
    }
}

/// The interface name of the cable inside.
const GUEST_END: &str = "cable";

/// Two addresses of a network of four in 10.231.0.0/16 that this machine does not have yet.
#[track_caller]
fn free_addresses(program: &Path, seed: u32) -> (Ipv4Addr, Ipv4Addr) {
    const NETWORKS: u32 = 1 << 14;
    let base = u32::from(Ipv4Addr::new(10, 231, 0, 0));
    let free = (0..64).map(|attempt| base + (seed.wrapping_add(attempt) % NETWORKS) * 4).find(|network| {
        let mut show = command(program);
        show.args(["-o", "-4", "address", "show", "to", &format!("{}/30", Ipv4Addr::from(*network))]);
        text_of_success(show, "ip address show").is_empty()
    });
    let network = free.expect("not all of them are taken");
    (Ipv4Addr::from(network + 1), Ipv4Addr::from(network + 2))
}
