//! Measures sandboxes that the sidecar attaches on doubles of E2B and Daytona, compared with a local hub.
//!
//! One sidecar attaches in turn a hub that is a local process (`attach exec`), a sandbox of E2B over its exec stream and
//! a sandbox of Daytona over its preview proxy. Each round attaches anew, makes calls through a shim on the hub's socket
//! and detaches. The doubles run in this process and on the same cores, so their work is part of every time. The first
//! attachment of a platform's sandbox uploads the shim and is reported apart from those that find it there.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cofferdam_tests::daytona_double::{self, DaytonaDouble, Speed};
use cofferdam_tests::e2b_double::{self, E2bDouble, SandboxUser};

use crate::bench_error::BenchError;
use crate::client::Client;
use crate::clock::{Deadline, now};
use crate::contender::{CommandLine, Contender, PreparedContender, Ready, replace_in};
use crate::contenders::{SECRET, SIDECAR};
use crate::measure::{RoundLimits, SmallCalls, percentile};
use crate::process::{Running, into_file};
use crate::program_paths::ProgramPaths;

/// The name of this measurement for `--only`.
pub(crate) const PLATFORMS: &str = "platforms";

/// How a hub is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Route {
    /// `attach exec` with a local process.
    Local,
    E2b,
    Daytona,
}

/// The best round of each route.
#[derive(Clone, Debug)]
pub(crate) struct PlatformResults {
    pub(crate) routes: Vec<RouteResult>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteResult {
    pub(crate) route: Route,
    /// From the start of `cofferdam attach` to the first response to a call, with the upload of the shim.
    pub(crate) first_attach: Duration,
    /// The same time if the shim is in the sandbox already.
    pub(crate) attach: Duration,
    pub(crate) small: SmallCalls,
    /// The median time for [`LARGE_CALLS`] results of [`LARGE_BYTES`] each.
    pub(crate) large: Duration,
}

/// The size of one result. A message has at most 10 MiB, so 16 MiB are two results.
pub(crate) const LARGE_BYTES: usize = 8 << 20;
pub(crate) const LARGE_CALLS: u32 = 2;

impl Route {
    pub(crate) const ALL: [Self; 3] = [Self::Local, Self::E2b, Self::Daytona];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Local => "local hub",
            Self::E2b => "E2B",
            Self::Daytona => "Daytona",
        }
    }
}

impl PlatformResults {
    pub(crate) fn of(&self, route: Route) -> Option<&RouteResult> {
        self.routes.iter().find(|result| result.route == route)
    }
}

/// Runs all rounds; `dir` is for the sidecar's files.
pub(crate) fn run(
    limits: RoundLimits,
    dir: &Path,
    paths: &ProgramPaths,
) -> Result<PlatformResults, BenchError> {
    let fixture = PlatformFixture::start(&dir.join(PLATFORMS), paths)?;
    let mut routes = Vec::new();
    for route in Route::ALL {
        let (first_attach, attached) = fixture.attach(route)?;
        attached.end();
        eprintln!("bench: {}: first call {first_attach:?} after the first attach", route.name());
        routes.push(RouteResult {
            route,
            first_attach,
            attach: Duration::MAX,
            small: SmallCalls { median: Duration::MAX, p99: Duration::MAX, calls: 0 },
            large: Duration::MAX,
        });
    }
    for number in 1..=limits.rounds.min(MAX_ROUNDS) {
        for best in &mut routes {
            fixture.end_remaining_hub(best.route);
            let (attach, mut attached) = fixture.attach(best.route)?;
            limits.warm_up(&mut attached.client)?;
            let small = limits.small_calls(MAX_CALLS, || attached.client.small_call())?;
            let large = large_results(&mut attached.client)?;
            attached.end();
            eprintln!(
                "bench: round {number}, {}: first call after {attach:?}, {:?} per small call, 16 MiB in {large:?}",
                best.route.name(),
                small.median
            );
            best.attach = best.attach.min(attach);
            best.large = best.large.min(large);
            if small.median < best.small.median {
                best.small = small;
            }
        }
    }
    Ok(PlatformResults { routes })
}

const SIDECAR_WITH_PLATFORMS: Contender = Contender {
    name: PLATFORMS,
    about: "a sidecar that attaches sandboxes",
    directories: &["admin", "state"],
    files: &[
        ("cofferdam.toml", include_str!("cofferdam.toml")),
        ("secret", SECRET),
        ("daytona-key", daytona_double::API_KEY),
        ("e2b-key", e2b_double::API_KEY),
    ],
    host: SIDECAR,
    ready: Ready::Unix("admin/admin.sock"),
    enrol: &[],
    client: &["{shim}"],
    env: &[],
};
/// A round attaches, calls and detaches on each route.
const MAX_ROUNDS: usize = 6;
const MAX_CALLS: usize = 20_000;
const MEASURED_LARGE_RESULTS: usize = 3;
const ATTACH_TIMEOUT: Duration = Duration::from_secs(30);
const DETACH_TIMEOUT: Duration = Duration::from_secs(15);
/// How often the output of `attach` is read.
const POLL: Duration = Duration::from_millis(1);
/// The line that `cofferdam attach` prints when the hub has proven its key.
const ATTACHED: &str = "cofferdam attach: attached";

/// The sidecar, the doubles and one sandbox on each of them.
struct PlatformFixture {
    dir: PathBuf,
    prepared: PreparedContender,
    e2b: E2bDouble,
    e2b_sandbox: String,
    daytona: DaytonaDouble,
    _host: Option<Running>,
}

/// A running `cofferdam attach`, and a harness whose shim is connected to its hub.
struct Attached {
    client: Client,
    attach: Running,
}

impl PlatformFixture {
    fn start(dir: &Path, paths: &ProgramPaths) -> Result<Self, BenchError> {
        let prepared = SIDECAR_WITH_PLATFORMS.prepare(dir, paths)?;
        let missing = || BenchError::Missing("bubblewrap; `tests/tools` installs it".into());
        let e2b = E2bDouble::start().ok_or_else(missing)?;
        let daytona = DaytonaDouble::start(Speed(1)).ok_or_else(missing)?;
        replace_in(
            &dir.join("cofferdam.toml"),
            &[
                ("{daytona-api}", &daytona.api_url()),
                ("{daytona-proxy}", &daytona.proxy_url()),
                ("{e2b-api}", &e2b.api_url()),
                ("{e2b-envd}", &e2b.sandbox_url()),
            ],
        )?;
        let e2b_sandbox = e2b.create(SandboxUser::Usual);
        let host = prepared.start_host()?;
        Ok(Self { dir: dir.to_owned(), prepared, e2b, e2b_sandbox, daytona, _host: host })
    }

    /// Attaches and makes a first call; returns the time that both took.
    fn attach(&self, route: Route) -> Result<(Duration, Attached), BenchError> {
        let log = self.dir.join("attach.log");
        // The line of an earlier attachment must not be found.
        let _ = std::fs::remove_file(&log);
        let line = self.attach_line(route);
        let mut command = line.command();
        command.stdin(Stdio::null()).stdout(into_file(&log)).stderr(into_file(&log));
        let begin = now();
        let mut attach = Running::spawn(command, "cofferdam attach")?;
        wait_until_attached(&mut attach, &log)?;
        let relay = format!("unix:{}", self.socket(route).display());
        let shim = &self.prepared.client;
        let arguments = [&shim.argv[0], "--relay", &relay, "--server", "bench"];
        let mut client = Client::start(&shim.with_arguments(arguments.map(str::to_owned).to_vec()))?;
        client.small_call()?;
        Ok((begin.elapsed(), Attached { client, attach }))
    }

    fn attach_line(&self, route: Route) -> CommandLine {
        let host = &self.prepared.host;
        let config = self.dir.join("cofferdam.toml").display().to_string();
        let (shim, socket) = (&self.prepared.client.argv[0], self.socket(route).display().to_string());
        let route_arguments: Vec<&str> = match route {
            Route::Local => vec!["exec", "--", shim, "hub", "--pin", "{pin}", "--socket", &socket],
            Route::E2b => vec!["e2b", &self.e2b_sandbox],
            Route::Daytona => vec!["daytona", self.daytona.sandbox_id()],
        };
        let mut arguments = vec![host.argv[0].as_str(), "-c", &config, "attach", route_arguments[0]];
        arguments.extend(["--grant", "bench"]);
        arguments.extend(&route_arguments[1..]);
        host.with_arguments(arguments.into_iter().map(str::to_owned).collect())
    }

    /// The path of the hub's socket on this machine.
    fn socket(&self, route: Route) -> PathBuf {
        match route {
            Route::Local => self.dir.join("hub.sock"),
            Route::E2b => self.e2b.path(&self.e2b_sandbox, "/tmp/cofferdam-1000/relay.sock"),
            Route::Daytona => self.daytona.root().join("run/cofferdam/relay/relay.sock"),
        }
    }

    /// Ends a hub that stays in its sandbox after a detach, so that the next attachment has to start one.
    fn end_remaining_hub(&self, route: Route) {
        if route == Route::Daytona {
            self.daytona.stop();
            self.daytona.start_again();
        }
    }
}

impl Attached {
    fn end(mut self) {
        self.client.end();
        self.attach.end(DETACH_TIMEOUT);
    }
}

fn wait_until_attached(attach: &mut Running, log: &Path) -> Result<(), BenchError> {
    let deadline = Deadline::after(ATTACH_TIMEOUT);
    loop {
        let printed = std::fs::read(log).unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed);
        if printed.contains(ATTACHED) {
            return Ok(());
        }
        let what = "cofferdam attach".into();
        let last_log_line = crate::bench_error::last_log_line(&printed);
        if !attach.is_running() {
            return Err(BenchError::Ended { what, last_log_line });
        }
        if deadline.is_over() {
            return Err(BenchError::NotReady { what, within: ATTACH_TIMEOUT, last_log_line });
        }
        std::thread::sleep(POLL);
    }
}

/// The median time for 16 MiB of results.
fn large_results(client: &mut Client) -> Result<Duration, BenchError> {
    client.large_call(LARGE_BYTES)?; // buffers grow once
    let mut took = Vec::new();
    for _ in 0..MEASURED_LARGE_RESULTS {
        let begin = now();
        for _ in 0..LARGE_CALLS {
            client.large_call(LARGE_BYTES)?;
        }
        took.push(begin.elapsed());
    }
    Ok(percentile(&mut took, 50))
}
