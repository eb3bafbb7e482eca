//! The audit on a real file system that hangs, and whether its records reach the disk. Needs root to mount it.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cofferdam_tests::harness::Harness;
use cofferdam_tests::http::send_raw;
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::command;
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::cannot_run;
use cofferdam_tests::world::World;
use serde_json::{Value, json};

/// An ext4 file system in a file, mounted through a loop device. Thawed and unmounted on drop.
struct LoopDisk {
    mounted_at: PathBuf,
    /// Thaws the file system if this process is killed while it is frozen.
    thaw_later: Option<Child>,
}

impl LoopDisk {
    /// `None` where such a file system cannot be mounted.
    #[track_caller]
    fn mount(image: &Path, directory: &Path) -> Option<Self> {
        std::fs::create_dir_all(directory).expect("a temporary directory is writable");
        let file = std::fs::File::create(image).expect("a temporary directory is writable");
        file.set_len(32 << 20).expect("the image is sparse");
        let mounted = run("mkfs.ext4", &["-q".as_ref(), image])
            && run("mount", &["-o".as_ref(), "loop,commit=600".as_ref(), image, directory]);
        if !mounted {
            cannot_run("an ext4 file system in a loop device needs root, mkfs.ext4 and /dev/loop-control");
            return None;
        }
        Some(Self { mounted_at: directory.to_owned(), thaw_later: None })
    }

    /// From now on every write to the file system blocks.
    fn freeze(&mut self) {
        assert!(run("fsfreeze", &["-f".as_ref(), &self.mounted_at]), "the file system was not frozen");
        let mut later = command("sh");
        later.args(["-c", "sleep 90; exec fsfreeze -u \"$0\""]).arg(&self.mounted_at);
        self.thaw_later = Some(later.spawn().expect("a shell starts"));
    }

    fn thaw(&mut self) {
        if let Some(mut later) = self.thaw_later.take() {
            run("fsfreeze", &["-u".as_ref(), &self.mounted_at]);
            let _ = later.kill();
            let _ = later.wait();
        }
    }

    /// Writes that the device has completed, flushes of its cache included.
    fn completed_writes(&self) -> u64 {
        let source = command("findmnt").args(["-no", "SOURCE"]).arg(&self.mounted_at).output();
        let source = source.expect("util-linux is essential on Debian").stdout;
        let source = String::from_utf8(source).expect("names of devices are ASCII");
        let device = source.trim().trim_start_matches("/dev/");
        let text =
            std::fs::read_to_string(format!("/sys/block/{device}/stat")).expect("it is a block device");
        let writes = text.split_whitespace().nth(4).and_then(|field| field.parse().ok());
        writes.expect("the fifth field is the number of writes")
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        self.thaw();
        run("umount", &["-l".as_ref(), &self.mounted_at]);
    }
}

fn run(program: &str, arguments: &[&Path]) -> bool {
    let output = command(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn while_the_audits_disk_hangs_only_calls_that_need_a_record_wait() {
    let mut world = World::new().server("tools", Server::fixture()).prepare();
    let (image, state) = (world.layout().root().join("disk.img"), world.layout().state.clone());
    let Some(mut disk) = LoopDisk::mount(&image, &state) else { return };
    world.start_sidecar();
    let mut calling = world.connected("tools");
    let mut killed = world.connected("tools");
    killed.call("count", json!({}));
    let session = world.decisions().last().expect("the call is decided")["session"].clone();
    let session = session.as_str().expect("sessions have names").to_owned();
    let mut answered = world.connected("tools");
    let slow = answered.send_call("slow", json!({"ms": 3000}));
    world.wait_until("the slow call runs", || world.times_executed("tools", "slow") == 1);

    // What is asserted until the disk is thawed happens while it is frozen.
    disk.freeze();
    let waiting = calling.send_call("echo", json!({"text": "needs a record"}));
    let also_waiting = answered.send_call("echo", json!({"text": "needs a record"}));
    assert!(answered.answer_within(&slow, Duration::from_secs(8)).is_some(), "a response was held up");
    assert_eq!(world.sessions().as_array().map(Vec::len), Some(3), "`sessions` does not list every link");
    let process = processes_of(&world, &session);
    let kill = world.cofferdam(&["kill", &session]);
    assert!(kill.status.success(), "{}", String::from_utf8_lossy(&kill.stderr));
    world.wait_until("the killed session's process is gone", || {
        process.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    });
    for (harness, call) in [(&mut calling, &waiting), (&mut answered, &also_waiting)] {
        let refused = harness.answer_within(call, Duration::from_secs(20)).expect("refused in time");
        let message = refused["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("could not be recorded"), "{refused}");
    }
    assert_eq!(world.times_executed("tools", "echo"), 0, "a call ran without a record");

    disk.thaw();
    world.wait_until("calls are made again", || {
        calling.call("echo", json!({"text": "again"})).get("result").is_some()
    });
    assert!(world.cofferdam(&["audit", "verify"]).status.success());
    world.stop_sidecar();
}

/// While calls follow each other, their records are written by the runtime's own threads: this is where the disk begins
/// to hang.
#[test]
fn a_disk_that_begins_to_hang_under_a_stream_of_calls_holds_no_link() {
    let address = free_address();
    let mut world = World::new()
        .server("tools", Server::fixture())
        .relay("heartbeat = \"500ms\"")
        .admin(&format!("http = \"{address}\""))
        .prepare();
    let (image, state) = (world.layout().root().join("disk.img"), world.layout().state.clone());
    let Some(mut disk) = LoopDisk::mount(&image, &state) else { return };
    world.start_sidecar();
    let mut killed = world.connected("tools");
    killed.call("count", json!({}));
    let session = world.decisions().last().expect("the call is decided")["session"].clone();
    let session = session.as_str().expect("sessions have names").to_owned();
    let mut answered = world.connected("tools");
    let streams = [killed, world.connected("tools")].map(Stream::start);
    world.wait_until("both links call", || streams.iter().all(|stream| stream.answers() > 20));
    let slow = answered.send_call("slow", json!({"ms": 3000}));
    world.wait_until("the slow call runs", || world.times_executed("tools", "slow") == 1);

    // What is asserted until the disk is thawed happens while it is frozen.
    disk.freeze();
    assert!(answered.answer_within(&slow, Duration::from_secs(8)).is_some(), "a response was held up");
    // Six heartbeats have passed.
    assert!(!world.log().contains("connection lost"), "a link missed its heartbeats:\n{}", world.log());
    // As many as there may be threads that could wait.
    for _ in 0..4 {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let (status, _) = send_raw(address, request.as_bytes()).expect("metrics do not wait for the disk");
        assert_eq!(status, 200);
    }
    assert_eq!(world.sessions().as_array().map(Vec::len), Some(3), "`sessions` does not list every link");
    let process = processes_of(&world, &session);
    let kill = world.cofferdam(&["kill", &session]);
    assert!(kill.status.success(), "{}", String::from_utf8_lossy(&kill.stderr));
    assert!(!process.is_empty(), "the killed session has a process");
    world.wait_until("the killed session's process is gone", || {
        process.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    });
    let [(_killed, answer_to_killed), (_refused, refused)] = streams.map(Stream::end);
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("could not be recorded"), "{refused}");
    assert!(answer_to_killed.get("error").is_some(), "{answer_to_killed}");
    assert!(!world.log().contains("connection lost"), "a link missed its heartbeats:\n{}", world.log());

    disk.thaw();
    world.wait_until("calls are made again", || {
        answered.call("echo", json!({"text": "again"})).get("result").is_some()
    });
    assert!(world.cofferdam(&["audit", "verify"]).status.success());
    world.stop_sidecar();
}

/// A harness that calls again and again, in a thread of its own, until a call is refused.
struct Stream {
    answers: Arc<AtomicUsize>,
    thread: JoinHandle<(Harness, Value)>,
}

impl Stream {
    fn start(mut harness: Harness) -> Self {
        let answers = Arc::new(AtomicUsize::new(0));
        let thread = std::thread::spawn({
            let answers = Arc::clone(&answers);
            move || loop {
                let call = harness.send_call("echo", json!({"text": "again and again"}));
                let answer = harness.answer_within(&call, Duration::from_secs(40));
                let answer = answer.expect("every call is answered in time");
                if answer.get("result").is_none() {
                    return (harness, answer);
                }
                answers.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { answers, thread }
    }

    fn answers(&self) -> usize {
        self.answers.load(Ordering::Relaxed)
    }

    /// The harness, and the refusal.
    fn end(self) -> (Harness, Value) {
        self.thread.join().expect("the harness is answered")
    }
}

#[test]
fn with_a_sync_for_every_call_its_record_is_on_the_disk_before_the_response() {
    let mut world = World::new().line("audit-sync = \"call\"").server("tools", Server::fixture()).prepare();
    let (image, state) = (world.layout().root().join("disk.img"), world.layout().state.clone());
    let Some(disk) = LoopDisk::mount(&image, &state) else { return };
    world.start_sidecar();
    let mut shim = world.connected("tools");
    for _ in 0..5 {
        let before = disk.completed_writes();
        assert_eq!(shim.call_text("echo", json!({"text": "synced"})), "synced");
        assert!(disk.completed_writes() > before, "the response came before the record was on the disk");
    }
    world.stop_sidecar();
}

/// The server processes of a session.
fn processes_of(world: &World, session: &str) -> Vec<u64> {
    let sessions = world.sessions();
    let rows = sessions.as_array().cloned().unwrap_or_default();
    rows.iter().filter(|row| row["session"] == json!(session)).filter_map(|row| row["pid"].as_u64()).collect()
}
