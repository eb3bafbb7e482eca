//! Measures a thousand sessions on one sidecar: the memory of an idle session, and the duration of calls when each session
//! makes one call a second.
//!
//! Each session is a link driven by a thread of this process, without a shim; the server is one process over HTTP, so
//! that sessions need no processes. A second sidecar with the same configuration has one session, which makes calls
//! without a pause: the thousand sessions are compared with its median. Their calls begin at even intervals within
//! each second. Any error ends the measurement and is in the report.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::bench_error::BenchError;
use crate::clock::{Deadline, now};
use crate::contender::{Contender, Ready};
use crate::contenders::{SECRET, SIDECAR, SIDECAR_DIRECTORIES};
use crate::footprint::resident;
use crate::measure::{RoundLimits, SmallCalls};
use crate::process::{Running, raise_descriptor_limit};
use crate::program_paths::ProgramPaths;
use crate::relay::Link;

/// The name of this measurement for `--only`.
pub(crate) const MANY_SESSIONS: &str = "crowd";
pub(crate) const SESSIONS: usize = 1_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ManySessionsResults {
    /// Bytes of the sidecar's memory for one session that has sent only its Hello.
    pub(crate) idle_session: u64,
    /// The best round of one session alone.
    pub(crate) alone: SmallCalls,
    /// The best round of all sessions together, by its 99th percentile.
    pub(crate) together: SmallCalls,
}

/// Makes so many runs of the measurement, each with sidecars of its own; `dir` is for their files.
pub(crate) fn run_all(
    runs: usize,
    limits: RoundLimits,
    dir: &Path,
    paths: &ProgramPaths,
) -> Result<Vec<ManySessionsResults>, BenchError> {
    let run = |number| run(limits, &dir.join(format!("{MANY_SESSIONS}-{number}")), paths);
    (1..=runs).map(run).collect()
}

fn run(limits: RoundLimits, dir: &Path, paths: &ProgramPaths) -> Result<ManySessionsResults, BenchError> {
    raise_descriptor_limit(DESCRIPTORS)?;
    let single = Sidecar::start(&dir.join("single"), paths)?;
    let shared = Sidecar::start(&dir.join("shared"), paths)?;
    let (mut links, idle_session) = shared.idle_links()?;
    eprintln!("bench: {SESSIONS} idle sessions, {idle_session} bytes each");
    let mut alone = single.link()?;
    for link in links.iter_mut().chain([&mut alone]) {
        link.handshake()?;
        link.small_call()?;
    }
    let mut rounds = Vec::new();
    for number in 1..=limits.rounds.min(MAX_ROUNDS) {
        let alone = limits.small_calls(MAX_CALLS, || alone.small_call())?;
        let together = call_once_a_second(&mut links)?;
        eprintln!(
            "bench: round {number}, one session: {:?} per small call; {SESSIONS} sessions: {:?}, 99 % of the calls within {:?}",
            alone.median, together.median, together.p99
        );
        rounds.push((alone, together));
    }
    let alone = rounds.iter().map(|(alone, _)| *alone).min_by_key(|alone| alone.median);
    let together = rounds.iter().map(|(_, together)| *together).min_by_key(|together| together.p99);
    let (alone, together) = alone.zip(together).ok_or_else(|| BenchError::Missing("a round".into()))?;
    Ok(ManySessionsResults { idle_session, alone, together })
}

const SERVER: &str = "bench";
const SOCKET: &str = "relay/relay.sock";
const SHARED_SIDECAR: Contender = Contender {
    name: MANY_SESSIONS,
    about: "a sidecar and a server over HTTP",
    directories: SIDECAR_DIRECTORIES,
    files: &[("cofferdam.toml", include_str!("cofferdam.toml")), ("secret", SECRET)],
    host: SIDECAR,
    ready: Ready::Unix(SOCKET),
    enrol: &[],
    // Here the client's command is the MCP server.
    client: &["{server}", "http", "{port}"],
    env: &[],
};
/// A round takes several seconds.
const MAX_ROUNDS: usize = 4;
/// Calls of each session in a round, one a second.
const SECONDS: u32 = 3;
/// Calls of the single session in a round: few enough not to reach its audit rate limit.
const MAX_CALLS: usize = 1_500;
/// Descriptors for the sessions and for as many connections of the server, with some to spare.
const DESCRIPTORS: u64 = 4_096;
/// The stack size of a caller's thread, which needs little.
const STACK: usize = 128 * 1024;
/// The delay before the first call, in which all threads start.
const BEGIN_AFTER: Duration = Duration::from_millis(300);

struct Sidecar {
    host: Running,
    socket: std::path::PathBuf,
    _server: Running,
}

impl Sidecar {
    fn start(dir: &Path, paths: &ProgramPaths) -> Result<Self, BenchError> {
        let prepared = SHARED_SIDECAR.prepare(dir, paths)?;
        let mut server = prepared.client.command();
        // The server exits when its stdin closes, also if this process is killed.
        server.stdin(Stdio::piped()).stdout(Stdio::null());
        let server = Running::spawn(server, "the server over HTTP")?;
        let host = prepared.start_host()?.ok_or_else(|| BenchError::Missing("a sidecar".into()))?;
        Ok(Self { host, socket: dir.join(SOCKET), _server: server })
    }

    fn link(&self) -> Result<Link, BenchError> {
        Link::open(&self.socket, SERVER)
    }

    /// Opens all sessions, and measures the memory that each added to the sidecar. Another session is opened first, so
    /// that one-time costs are not counted.
    fn idle_links(&self) -> Result<(Vec<Link>, u64), BenchError> {
        let _first = self.link()?;
        let before = resident(self.host.child.id())?;
        let links: Vec<Link> =
            std::iter::repeat_with(|| self.link()).take(SESSIONS).collect::<Result<_, _>>()?;
        let after = resident(self.host.child.id())?;
        Ok((links, after.saturating_sub(before) / SESSIONS as u64))
    }
}

/// Makes one call a second on every link; the calls of the links are spread over the second.
fn call_once_a_second(links: &mut [Link]) -> Result<SmallCalls, BenchError> {
    let count = u32::try_from(links.len()).expect("there are fewer links than u32::MAX").max(1);
    let begin = Deadline::after(BEGIN_AFTER);
    let durations = std::thread::scope(|scope| {
        let caller = |(index, link): (u32, &'_ mut Link)| -> Result<Vec<Duration>, BenchError> {
            let mut durations = Vec::new();
            for second in 0..SECONDS {
                let offset = Duration::from_secs(second.into()) + Duration::from_secs(1) * index / count;
                std::thread::sleep(begin.later(offset).left());
                let call = now();
                link.small_call()?;
                durations.push(call.elapsed());
            }
            Ok(durations)
        };
        let threads: Vec<_> = (0_u32..)
            .zip(links)
            .map(|numbered| {
                std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, move || caller(numbered))
            })
            .collect::<Result<_, _>>()
            .map_err(|source| BenchError::Start { what: "a thread for a session".into(), source })?;
        let durations = threads.into_iter().map(|thread| thread.join().expect("a caller does not panic"));
        durations.collect::<Result<Vec<_>, _>>()
    })?;
    Ok(SmallCalls::of(durations.concat()))
}
