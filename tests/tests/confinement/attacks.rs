//! What a malicious server tries, first without walls, where it works, and then with them.
//!
//! The attacker is `attacks.py`; its victim is another server of the same sidecar and user, and things of the test: a file, a
//! port, an abstract socket, shared memory.

use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use cofferdam_tests::other_user::{USER, copy_programs};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use serde_json::json;

/// Attacks that work for every server without walls.
const BY_ANY_SERVER: [&str; 25] = [
    "environment_of_another_server",
    "memory_of_another_server",
    "trace_another_server",
    "read_memory_by_system_call",
    "take_a_descriptor",
    "file_of_the_user",
    "file_by_dot_dot",
    "file_by_symbolic_link",
    "file_by_root_of_a_process",
    "injected_file_of_another_server",
    "admin_socket",
    "relay_socket",
    "abstract_socket",
    "loopback_port",
    "shared_memory",
    "signal_its_parent",
    "signal_another_server",
    "user_namespace",
    "clone_a_user_namespace",
    "setuid_program",
    "udp_to_the_host",
    "network_interfaces",
    "fork_bomb",
    "memory_bomb",
    "fill_its_temporary_directory",
];
/// Attacks that also need the privileges of root, or that the host's own kernel may forbid without walls too.
const BY_ROOT: [&str; 17] = [
    "mount_a_file_system",
    "remount_writable",
    "io_uring",
    "change_root",
    "become_another_user",
    "capabilities",
    "core_pattern",
    "clock",
    "kernel_log",
    "write_to_the_system",
    "write_to_its_program",
    "make_a_device",
    "raw_socket",
    "packet_socket",
    "netlink_audit",
    "vsock",
    "leaked_descriptors",
];

#[test]
fn attacks_that_work_without_walls_fail_with_them() {
    Scene::new(SidecarUser::OfTheTest).assert_walls_stop_attacks();
}

#[test]
fn attacks_fail_with_walls_also_where_the_sidecar_is_an_ordinary_user() {
    let Some(programs) = copy_programs() else { return };
    Scene::new(SidecarUser::Ordinary(programs)).assert_walls_stop_attacks();
}

/// Who runs the sidecar.
enum SidecarUser {
    OfTheTest,
    /// The user id [`USER`], with copies of the programs that it may read.
    Ordinary(tempfile::TempDir),
}

/// Whether the servers of a world are confined.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Walls {
    None,
    Up,
}

/// What there is to attack on the host.
struct Scene {
    user: SidecarUser,
    directory: tempfile::TempDir,
    port: TcpListener,
    udp: UdpSocket,
    _abstract_socket: UnixListener,
    shared_memory: PathBuf,
}

struct Attacked {
    world: World,
    mark: &'static str,
}

impl Scene {
    fn new(user: SidecarUser) -> Self {
        let directory = tempfile::tempdir().expect("make a directory");
        for name in ["shown", "shared"] {
            std::fs::create_dir(directory.path().join(name)).expect("make a directory");
        }
        std::fs::write(directory.path().join("key"), "a private key").expect("write the key");
        let port = TcpListener::bind("127.0.0.1:0").expect("listen");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let echo = udp.try_clone().expect("clone the socket");
        std::thread::spawn(move || {
            let mut bytes = [0; 16];
            while let Ok((length, peer)) = echo.recv_from(&mut bytes) {
                let _ = echo.send_to(&bytes[..length], peer);
            }
        });
        let address = SocketAddr::from_abstract_name(user.mark()).expect("an abstract address");
        let abstract_socket = UnixListener::bind_addr(&address).expect("listen");
        let shared_memory = PathBuf::from(format!("/dev/shm/{}", user.mark()));
        std::fs::write(&shared_memory, "shared").expect("write to shared memory");
        user.own(directory.path());
        user.own(&shared_memory);
        Self { user, directory, port, udp, _abstract_socket: abstract_socket, shared_memory }
    }

    fn assert_walls_stop_attacks(&self) {
        let open = self.world(Walls::None);
        let reached = open.attack_all(BY_ANY_SERVER);
        let failed: Vec<_> = reached.iter().filter(|(_, text)| !text.starts_with("REACHED")).collect();
        assert!(failed.is_empty(), "these prove nothing, because they fail without walls too: {failed:#?}");
        drop(open);
        let confined = self.world(Walls::Up);
        let stopped = confined.attack_all(BY_ANY_SERVER.into_iter().chain(BY_ROOT));
        let reached: Vec<_> = stopped.iter().filter(|(_, text)| !text.starts_with("STOPPED")).collect();
        assert!(reached.is_empty(), "the walls did not stop these: {reached:#?}");
    }

    /// A world with the victim and the attacker. Both run, each for its own link.
    fn world(&self, walls: Walls) -> Attacked {
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        let script = self.user.attacks();
        let port =
            |address: std::io::Result<std::net::SocketAddr>| address.expect("an address").port().to_string();
        let victim = self.user.victim().env("SECRET", "{mark.value}").file("victim.key", "{mark.value}");
        let attacker = Server::command(["/usr/bin/python3".to_owned(), script])
            .env("MARK", self.user.mark())
            .env("USER_FILE", &path("key"))
            .env("SHOWN", &path("shown"))
            .env("SHARED", &path("shared"))
            .env("PORT", &port(self.port.local_addr()))
            .env("UDP_PORT", &port(self.udp.local_addr()));
        let (victim, attacker) = match walls {
            // Without walls each attack must work, or it would prove nothing.
            Walls::None => (victim.unconfined(), attacker.unconfined()),
            Walls::Up => {
                let attacker = attacker.reading(&self.directory.path().join("shown"));
                let attacker = attacker.writing(&self.directory.path().join("shared"));
                (victim, attacker.confine("memory = \"256MiB\"").confine("pids = 64"))
            }
        };
        let world = World::new()
            .server("victim", victim)
            .server("attacker", attacker)
            .secret_file("mark", self.user.mark())
            .limit("confined-directory-bytes = \"16MiB\"");
        Attacked { world: self.user.start(world), mark: self.user.mark() }
    }
}

impl SidecarUser {
    /// The victim's secret, and the name of what the test shares with the host. Two tests may run at the same time.
    fn mark(&self) -> &'static str {
        match self {
            Self::OfTheTest => "c0ffee-mark-4711-0815-d00d",
            Self::Ordinary(_) => "c0ffee-mark-4712-0816-beef",
        }
    }

    /// Gives a file, or a directory with all that is in it, to the user.
    fn own(&self, path: &Path) {
        let Self::Ordinary(_) = self else { return };
        chown(path, Some(USER), Some(USER)).expect("root may give files away");
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            self.own(&entry.path());
        }
    }

    /// The script of the attacker, where the user can read it.
    fn attacks(&self) -> String {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/confinement/attacks.py");
        let Self::Ordinary(programs) = self else { return script.to_owned() };
        let copy = programs.path().join("attacks.py");
        std::fs::copy(script, &copy).expect("copy the script");
        copy.display().to_string()
    }

    fn victim(&self) -> Server {
        match self {
            Self::OfTheTest => Server::fixture(),
            Self::Ordinary(programs) => {
                Server::command([programs.path().join("fixture-server").display().to_string()])
            }
        }
    }

    fn start(&self, builder: Builder) -> World {
        let Self::Ordinary(programs) = self else { return builder.start() };
        let as_user = programs.path().join("cofferdam-as-user");
        let program = programs.path().join("cofferdam");
        let line = format!(
            "#!/bin/sh\nexec setpriv --reuid {USER} --regid {USER} --clear-groups -- {} \"$@\"\n",
            program.display()
        );
        std::fs::write(&as_user, line).expect("write a script");
        std::fs::set_permissions(&as_user, PermissionsExt::from_mode(0o755)).expect("it is the test's");
        let mut world = builder.program(as_user).prepare();
        self.own(world.layout().root());
        world.start_sidecar();
        world
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.shared_memory);
    }
}

impl Attacked {
    /// Makes these attacks while the victim runs, and returns what the attacker says of each.
    fn attack_all<'a>(&self, attacks: impl IntoIterator<Item = &'a str>) -> Vec<(&'a str, String)> {
        let mut victim = self.world.connected("victim");
        victim.call_text("echo", json!({"text": "running"}));
        let layout = self.world.layout();
        let with = json!({ "ADMIN": layout.admin, "RELAY": layout.relay, "VICTIM": process_with_secret(self.mark).to_string() });
        let mut attacker = self.world.connected("attacker");
        let mut attack = |name| attacker.call_text("attack", json!({ "name": name, "with": with }));
        attacks.into_iter().map(|name| (name, attack(name))).collect()
    }
}

/// The victim's process, by its number on the host.
fn process_with_secret(mark: &str) -> u32 {
    let secret = format!("SECRET={mark}");
    let has_secret = |process: &u32| {
        let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == secret.as_bytes())
    };
    let processes = std::fs::read_dir("/proc").expect("list the processes");
    let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.into_iter().find(has_secret).expect("the victim runs")
}
