//! A thousand attached sandboxes in one sidecar: memory of each, and processor time and wake-ups while nothing is called.
//!
//! The sandboxes are those of one double of E2B in this process; each has a real hub. A first sandbox is attached and
//! gets the shim by upload; the others find the shim in their template's directory. They are added to the configuration
//! and attached by a reload. All of them must be attached, and stay so while the idle sidecar is measured.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_tests::e2b_double::{API_KEY, E2bDouble, SandboxUser};
use serde::Deserialize;

use crate::bench_error::BenchError;
use crate::clock::{Deadline, now};
use crate::contender::{Contender, PreparedContender, Ready, replace_in};
use crate::contenders::{SECRET, SIDECAR};
use crate::footprint::{Activity, activity, resident};
use crate::measure::RoundLimits;
use crate::process::{Running, output_of, raise_descriptor_limit};
use crate::program_paths::ProgramPaths;

/// The name of this measurement for `--only`.
pub(crate) const ATTACHMENTS: &str = "attachments";

#[derive(Clone, Copy, Debug)]
pub(crate) struct AttachmentResults {
    pub(crate) attachments: usize,
    /// From the reload of the configuration until all sandboxes were attached.
    pub(crate) attach_time: Duration,
    /// Bytes of the sidecar's memory for one attachment.
    pub(crate) memory: u64,
    /// The load of the sidecar while no calls are made.
    pub(crate) idle: IdleLoad,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleLoad {
    /// Processor time per minute.
    pub(crate) processor_per_minute: Duration,
    /// How often a thread of the sidecar was woken, per second.
    pub(crate) wake_ups_per_second: f64,
}

/// Runs the measurement; `dir` is for the sidecar's files.
pub(crate) fn run(
    limits: RoundLimits,
    dir: &Path,
    paths: &ProgramPaths,
) -> Result<AttachmentResults, BenchError> {
    raise_descriptor_limit(DESCRIPTORS)?;
    let attachments = if limits.is_full() { ATTACHMENT_COUNT } else { QUICK_ATTACHMENT_COUNT };
    let missing = || BenchError::Missing("bubblewrap; `tests/tools` installs it".into());
    let platform = E2bDouble::start().ok_or_else(missing)?;
    let mut sidecar = Sidecar::start(&dir.join(ATTACHMENTS), paths, &platform)?;
    let first = sidecar.create(&platform)?;
    sidecar.reload()?;
    sidecar.wait_until_attached(1)?;
    let before = resident(sidecar.process())?;
    let shim = uploaded_shim(&platform, &first)?;
    for _ in 0..attachments {
        let sandbox = sidecar.create(&platform)?;
        link_into_template(&shim, &platform.path(&sandbox, TEMPLATE_DIRECTORY))?;
    }
    let begin = now();
    sidecar.reload()?;
    sidecar.wait_until_attached(attachments + 1)?;
    let attach_time = begin.elapsed();
    let idle = sidecar.idle_load()?;
    let memory = resident(sidecar.process())?.saturating_sub(before) / attachments as u64;
    // No attachment was lost meanwhile.
    sidecar.check_attached(attachments + 1)?;
    eprintln!(
        "bench: {attachments} attachments in {attach_time:?}, {memory} bytes each; idle: {:?} of processor time a minute, {:.0} wake-ups a second",
        idle.processor_per_minute, idle.wake_ups_per_second
    );
    sidecar.stop();
    Ok(AttachmentResults { attachments, attach_time, memory, idle })
}

const ATTACHMENT_COUNT: usize = 1_000;
const QUICK_ATTACHMENT_COUNT: usize = 50;
/// The descriptor limit of this process, which has the pipes and connections of the double, and of the sidecar: about six
/// descriptors for each attachment.
const DESCRIPTORS: u64 = 8_192;
/// Where the sidecar looks for a shim that the sandbox's template has.
const TEMPLATE_DIRECTORY: &str = "/usr/local/lib/cofferdam";
const UPLOAD_DIRECTORY: &str = "/home/user/.local/lib/cofferdam";
/// The attachments share the cores with all their hubs.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(240);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(250);
/// The pause between the last attachment and the beginning of the idle time.
const SETTLE: Duration = Duration::from_secs(5);
/// Long enough for several heartbeats of every hub and one keep-alive of every stream.
const IDLE: Duration = Duration::from_secs(20);

const ATTACHING_SIDECAR: Contender = Contender {
    name: ATTACHMENTS,
    about: "a sidecar with many attached sandboxes",
    directories: &["admin", "state"],
    files: &[("cofferdam.toml", include_str!("cofferdam.toml")), ("secret", SECRET), ("e2b-key", API_KEY)],
    host: SIDECAR,
    ready: Ready::Unix("admin/admin.sock"),
    enrol: &[],
    client: &[],
    env: &[],
};

struct Sidecar {
    host: Running,
    prepared: PreparedContender,
    config: PathBuf,
    text: String,
    sandboxes: usize,
}

/// One row of `cofferdam attach list --json`.
#[derive(Debug, Deserialize)]
struct ListedAttachment {
    state: String,
    /// Why the sandbox is not attached, if the sidecar knows.
    why: Option<String>,
}

impl Sidecar {
    fn start(dir: &Path, paths: &ProgramPaths, platform: &E2bDouble) -> Result<Self, BenchError> {
        let prepared = ATTACHING_SIDECAR.prepare(dir, paths)?;
        let config = dir.join("cofferdam.toml");
        let values = [("{e2b-api}", platform.api_url()), ("{e2b-envd}", platform.sandbox_url())];
        replace_in(&config, &values.each_ref().map(|(placeholder, value)| (*placeholder, value.as_str())))?;
        let text = std::fs::read_to_string(&config)
            .map_err(|source| BenchError::Read { what: "a configuration".into(), source })?;
        let host = prepared.start_host()?.ok_or_else(|| BenchError::Missing("a sidecar".into()))?;
        Ok(Self { host, prepared, config, text, sandboxes: 0 })
    }

    fn process(&self) -> u32 {
        self.host.child.id()
    }

    /// Creates a sandbox and adds it to the configuration; returns its id.
    fn create(&mut self, platform: &E2bDouble) -> Result<String, BenchError> {
        let sandbox = platform.create(SandboxUser::Usual);
        self.sandboxes += 1;
        // Writing to a string cannot fail.
        let _ = write!(
            self.text,
            "\n[attach.box{}]\nplatform = \"e2b\"\nsandbox = \"{sandbox}\"\ngrant = \"bench\"\n",
            self.sandboxes
        );
        std::fs::write(&self.config, &self.text)
            .map_err(|source| BenchError::Write { what: "a configuration".into(), source })?;
        Ok(sandbox)
    }

    fn reload(&self) -> Result<(), BenchError> {
        self.command(&["reload"]).map(|_| ())
    }

    fn command(&self, arguments: &[&str]) -> Result<String, BenchError> {
        let mut argv =
            vec![self.prepared.host.argv[0].clone(), "-c".into(), self.config.display().to_string()];
        argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let command_line = self.prepared.host.with_arguments(argv);
        output_of(command_line.command(), COMMAND_TIMEOUT).ok_or_else(|| BenchError::Ended {
            what: format!("cofferdam {}", arguments.join(" ")),
            last_log_line: command_line.last_log_line(),
        })
    }

    fn listed(&self) -> Result<Vec<ListedAttachment>, BenchError> {
        let printed = self.command(&["attach", "list", "--json"])?;
        serde_json::from_str(&printed).map_err(|error| BenchError::UnexpectedResponse(error.to_string()))
    }

    /// How many sandboxes are attached, and the first known reason why another is not.
    fn attached(&self) -> Result<(usize, String), BenchError> {
        let listed = self.listed()?;
        let is_attached = |listed: &&ListedAttachment| listed.state == "attached";
        let count = listed.iter().filter(is_attached).count();
        let reason = listed.into_iter().filter(|listed| !is_attached(&listed)).find_map(|listed| listed.why);
        Ok((count, reason.unwrap_or_default()))
    }

    fn wait_until_attached(&self, count: usize) -> Result<(), BenchError> {
        let deadline = Deadline::after(ATTACH_TIMEOUT);
        loop {
            let (attached, reason) = self.attached()?;
            if attached == count {
                return Ok(());
            }
            if deadline.is_over() {
                let what = format!("{} of {count} attachments", count - attached);
                return Err(BenchError::NotReady { what, within: ATTACH_TIMEOUT, last_log_line: reason });
            }
            std::thread::sleep(POLL);
        }
    }

    fn check_attached(&self, count: usize) -> Result<(), BenchError> {
        match self.attached()? {
            (attached, _) if attached == count => Ok(()),
            (attached, reason) => Err(BenchError::UnexpectedResponse(format!(
                "{attached} of {count} attachments are left after the idle time: {reason}"
            ))),
        }
    }

    fn idle_load(&self) -> Result<IdleLoad, BenchError> {
        std::thread::sleep(SETTLE);
        let (begin, before) = (now(), activity(self.process())?);
        std::thread::sleep(IDLE);
        let (after, seconds) = (activity(self.process())?, begin.elapsed().as_secs_f64());
        let Activity { processor, wake_ups } = after.since(before);
        Ok(IdleLoad {
            processor_per_minute: processor.mul_f64(60.0 / seconds),
            wake_ups_per_second: wake_ups as f64 / seconds,
        })
    }

    /// Stops the sidecar; the hubs end with it.
    fn stop(&mut self) {
        self.host.end(STOP_TIMEOUT);
    }
}

/// The shim that the sidecar has uploaded into this sandbox.
fn uploaded_shim(platform: &E2bDouble, sandbox: &str) -> Result<PathBuf, BenchError> {
    let directory = std::fs::read_dir(platform.path(sandbox, UPLOAD_DIRECTORY));
    let mut files = directory.into_iter().flatten().flatten();
    files.next().map(|file| file.path()).ok_or_else(|| BenchError::Missing("the uploaded shim".into()))
}

/// Makes the shim available in the sandbox by a hard link: a copy for each sandbox would need gigabytes.
fn link_into_template(shim: &Path, directory: &Path) -> Result<(), BenchError> {
    let linked = std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::hard_link(shim, directory.join(shim.file_name().unwrap_or_default())));
    linked.map_err(|source| BenchError::Write { what: "the shim into a sandbox".into(), source })
}
