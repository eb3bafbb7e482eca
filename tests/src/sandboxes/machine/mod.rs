//! An emulated virtual machine: Debian's cloud kernel, and a root that holds only the shim.
//!
//! The harness is on a virtio serial port, which is QEMU's own stdio; the console, with the shim's stderr on it, is
//! QEMU's stderr. Its connection to the host is a vsock or a network, see [`Outlet`]. QEMU is one process without
//! children, and so is the vsock device; [`Booted`] ends both.

mod initramfs;
mod monitor;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Guest, text_of_success};
use crate::deadline::wait_until;
use crate::harness::Harness;
use crate::process::{Running, command, into_file};
use crate::tools::Tool;
use monitor::Monitor;

pub use initramfs::System;

/// The programs and files for starting a machine.
#[derive(Debug)]
pub struct Machine {
    emulator: PathBuf,
    kernel: PathBuf,
    busybox: PathBuf,
    directory: tempfile::TempDir,
}

/// The connection of a machine to the host.
#[derive(Clone, Debug)]
pub enum Outlet {
    /// A network in which 10.0.2.2 is the host's loopback. Such a machine can be snapshotted.
    Network,
    /// A hybrid vsock, as Firecracker has it: a connection of the guest to port P of CID 2 arrives at the Unix
    /// socket `PATH_P`; to reach the guest, the host connects to `PATH` and sends `CONNECT P`.
    Vsock(PathBuf),
}

/// A running machine.
#[derive(Debug)]
pub struct Booted {
    pub shim: Harness,
    monitor: PathBuf,
    line: EmulatorCommand,
    _device: Option<Running>,
}

/// A machine stopped in the middle of its work, including its memory. It can be restored any number of times.
#[derive(Debug)]
pub struct Snapshot {
    file: PathBuf,
    line: EmulatorCommand,
}

/// The part of the emulator's command line that a machine and its clones share.
#[derive(Clone, Debug)]
struct EmulatorCommand {
    emulator: PathBuf,
    memory: &'static str,
    arguments: Vec<OsString>,
    directory: PathBuf,
}

const MEMORY: &str = "256M";
/// With the programs and libraries of a [`System`], at first twice.
const SYSTEM_MEMORY: &str = "1536M";

impl Machine {
    #[track_caller]
    pub fn open() -> Option<Self> {
        Some(Self {
            emulator: Tool::Qemu.path()?,
            kernel: Tool::Kernel.path()?,
            busybox: Tool::Busybox.path()?,
            directory: tempfile::Builder::new()
                .prefix("machine-")
                .tempdir()
                .expect("a temporary directory can be made"),
        })
    }

    /// Boots with this guest inside. Mounts are ignored: a machine has no files of the host.
    #[track_caller]
    pub fn boot(&self, guest: &Guest, outlet: &Outlet) -> Option<Booted> {
        self.boot_with(guest, None, outlet)
    }

    /// Boots with these files and programs inside, and runs the system's script.
    #[track_caller]
    pub fn boot_system(&self, system: &System) -> Option<Booted> {
        self.boot_with(&Guest::default(), Some(system), &Outlet::Network)
    }

    #[track_caller]
    fn boot_with(&self, guest: &Guest, system: Option<&System>, outlet: &Outlet) -> Option<Booted> {
        let directory = self.directory.path();
        let initramfs = directory.join("initramfs");
        initramfs::write(&initramfs, &self.busybox, &self.kernel.join("modules"), guest, system);
        let mut arguments: Vec<OsString> = vec!["-kernel".into(), self.kernel.join("vmlinuz").into()];
        arguments.extend(["-initrd".into(), initramfs.into()]);
        let device = match outlet {
            Outlet::Network => {
                let network = "-netdev user,id=network -device virtio-net-pci,netdev=network,romfile= -machine q35,accel=tcg";
                arguments.extend(network.split(' ').map(OsString::from));
                None
            }
            Outlet::Vsock(hybrid) => {
                let socket = directory.join("vsock-device.sock");
                let device = vsock_device(&socket, hybrid)?;
                arguments.extend(["-chardev".into(), with_path("socket,id=vsock,path=", &socket)]);
                let shared =
                    "-device vhost-user-vsock-pci,chardev=vsock -machine q35,accel=tcg,memory-backend=memory";
                arguments.extend(shared.split(' ').map(OsString::from));
                let memory = format!("memory-backend-memfd,id=memory,size={MEMORY},share=on");
                arguments.extend(["-object".into(), memory.into()]);
                Some(device)
            }
        };
        let line = EmulatorCommand {
            emulator: self.emulator.clone(),
            memory: if system.is_some() { SYSTEM_MEMORY } else { MEMORY },
            arguments,
            directory: directory.to_owned(),
        };
        Some(line.start("original", None, device))
    }
}

impl Booted {
    /// Pauses the machine; no time passes in it.
    #[track_caller]
    pub fn pause(&self) {
        Monitor::connect(&self.monitor).execute("stop", "{}");
    }

    /// Continues a paused machine.
    #[track_caller]
    pub fn resume(&self) {
        Monitor::connect(&self.monitor).execute("cont", "{}");
    }

    /// Pauses the machine, saves all of it to a file, and ends it.
    #[track_caller]
    pub fn snapshot(mut self) -> Snapshot {
        let file = self.line.directory.join("snapshot");
        let mut monitor = Monitor::connect(&self.monitor);
        monitor.execute("stop", "{}");
        let target = format!("exec:cat > '{}'", file.display());
        monitor.execute("migrate", &serde_json::json!({ "uri": target }).to_string());
        wait_until("the machine is in the file", || {
            monitor.execute("query-migrate", "{}")["status"] == "completed"
        });
        self.shim.kill9();
        Snapshot { file, line: self.line.clone() }
    }
}

impl Snapshot {
    /// A clone that continues where the original was stopped; `name` distinguishes it from other clones.
    #[track_caller]
    pub fn restore(&self, name: &str) -> Booted {
        let clone = self.line.start(name, Some(&self.file), None);
        let mut monitor = Monitor::connect(&clone.monitor);
        // It was saved while paused, so it is restored paused.
        wait_until("the clone is loaded", || monitor.execute("query-status", "{}")["status"] == "paused");
        monitor.execute("cont", "{}");
        clone
    }
}

impl EmulatorCommand {
    #[track_caller]
    fn start(&self, name: &str, from: Option<&Path>, device: Option<Running>) -> Booted {
        let monitor = self.directory.join(format!("{name}.monitor"));
        let mut emulator: Command = command(&self.emulator);
        emulator.args(["-m", self.memory, "-nodefaults", "-nographic", "-no-reboot"]);
        emulator.args(["-append", "console=ttyS0 quiet panic=-1 rdinit=/init"]);
        emulator.args(["-chardev", "file,id=console,path=/dev/fd/2,append=on", "-serial", "chardev:console"]);
        emulator.args(["-chardev", "stdio,id=harness,signal=off", "-device", "virtio-serial-pci"]);
        emulator.args(["-device", "virtserialport,chardev=harness"]);
        // After the serial port, which the guest expects on its first device.
        emulator.args(&self.arguments);
        let mut control = with_path("unix:", &monitor);
        control.push(",server=on,wait=off");
        emulator.arg("-qmp").arg(control);
        if let Some(file) = from {
            emulator.arg("-incoming").arg(format!("exec:cat '{}'", file.display()));
        }
        let shim = Harness::start(emulator, "qemu-system-x86_64");
        Booted { shim, monitor, line: self.clone(), _device: device }
    }
}

/// The host's side of a vsock. It serves one machine and ends with it.
#[track_caller]
fn vsock_device(socket: &Path, hybrid: &Path) -> Option<Running> {
    let mut device = command(Tool::VsockDevice.path()?);
    device.args(["--guest-cid", "4", "--socket"]).arg(socket).arg("--uds-path").arg(hybrid);
    let log = socket.with_extension("log");
    device.stdin(Stdio::null()).stdout(into_file(&log)).stderr(into_file(&log));
    let device = Running::spawn(device, "vhost-device-vsock");
    wait_until("the vsock device is there", || socket.exists());
    Some(device)
}

fn with_path(text: &str, path: &Path) -> OsString {
    let mut whole = OsString::from(text);
    whole.push(path);
    whole
}

/// Runs a command that prepares the machine; it must succeed.
#[track_caller]
fn prepare(command: Command, name: &str) {
    text_of_success(command, name);
}
