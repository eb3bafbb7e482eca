//! Measures how much slower an honest link is while a hostile sandbox attacks the same sidecar.
//!
//! There is one sidecar with default limits, but for the audit's budget, which all links of the shared socket have together. Each round measures without another process, beside a process that only computes,
//! and beside each attack. Each time a new honest shim, connected before the attack begins, makes small calls one at
//! a time. The attacker is a process of normal priority on the same cores, so part of a slowdown is due to the shared
//! cores: the process that only computes shows how much.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::bench_error::BenchError;
use crate::client::Client;
use crate::contender::{Contender, PreparedContender, Ready};
use crate::contenders::{SECRET, SIDECAR, SIDECAR_DIRECTORIES};
use crate::measure::{RoundLimits, SmallCalls};
use crate::process::{Running, command};
use crate::program_paths::ProgramPaths;

use self::attack::{Attack, STARTED};

pub(crate) mod attack;

/// The name of this measurement for `--only`.
pub(crate) const HOSTILE: &str = "hostile";

/// The calls of an honest shim without an attack and during each attack, round by round.
#[derive(Clone, Debug)]
pub(crate) struct HostileResults {
    pub(crate) quiet: Vec<SmallCalls>,
    pub(crate) attacked: Vec<Attacked>,
}

/// The calls of an honest shim during an attack.
#[derive(Clone, Debug)]
pub(crate) struct Attacked {
    pub(crate) attack: Attack,
    pub(crate) rounds: Vec<SmallCalls>,
    /// Attacks in all rounds, and how long these took.
    pub(crate) attacks: AttackCount,
}

impl HostileResults {
    pub(crate) fn under(&self, attack: Attack) -> Option<&Attacked> {
        self.attacked.iter().find(|attacked| attacked.attack == attack)
    }
}

/// Runs all rounds; `dir` is for the sidecar's files.
pub(crate) fn run(
    limits: RoundLimits,
    dir: &Path,
    paths: &ProgramPaths,
) -> Result<HostileResults, BenchError> {
    let prepared = SIDECAR_UNDER_ATTACK.prepare(&dir.join(HOSTILE), paths)?;
    let _host = prepared.start_host()?;
    let socket = dir.join(HOSTILE).join(SOCKET);
    let mut quiet = Vec::new();
    let none_yet = |attack| Attacked { attack, rounds: Vec::new(), attacks: AttackCount::default() };
    let mut attacked: Vec<Attacked> = Attack::ALL.into_iter().map(none_yet).collect();
    for number in 1..=limits.rounds {
        let small = round(&prepared, limits, || Ok(()), |()| Ok(()))?.0;
        eprintln!("bench: round {number}, quiet: {:?} per small call", small.median);
        quiet.push(small);
        for attacked in &mut attacked {
            let attack = attacked.attack;
            let (small, done) =
                round(&prepared, limits, || Attacker::start(attack, &socket), Attacker::finish)?;
            eprintln!(
                "bench: round {number}, {}: {:?} per small call, {:.0} attacks per second",
                attack.name(),
                small.median,
                done.per_second()
            );
            attacked.rounds.push(small);
            attacked.attacks.add(done);
        }
    }
    Ok(HostileResults { quiet, attacked })
}

/// The server that honest and hostile sandboxes request.
const SERVER: &str = "bench";
const SOCKET: &str = "relay/relay.sock";
const SIDECAR_UNDER_ATTACK: Contender = Contender {
    name: HOSTILE,
    about: "the sidecar under attack",
    directories: SIDECAR_DIRECTORIES,
    files: &[("cofferdam.toml", include_str!("cofferdam.toml")), ("secret", SECRET)],
    host: SIDECAR,
    ready: Ready::Unix(SOCKET),
    enrol: &[],
    client: &["{shim}", "--relay", "unix:{dir}/relay/relay.sock", "--server", SERVER],
    env: &[],
};
/// A round is long enough with these.
const MAX_CALLS: usize = 5_000;
const WARM_UP_CALLS: usize = 1_000;
/// The timeout for an attacker to start, and to end.
const ATTACKER_TIMEOUT: Duration = Duration::from_secs(10);

/// Measures an honest shim's calls between `begin` and `end`, which start and stop an attack.
fn round<A, T>(
    prepared: &PreparedContender,
    limits: RoundLimits,
    begin: impl FnOnce() -> Result<A, BenchError>,
    end: impl FnOnce(A) -> Result<T, BenchError>,
) -> Result<(SmallCalls, T), BenchError> {
    let mut client = Client::start(&prepared.client)?;
    for _ in 0..WARM_UP_CALLS {
        client.small_call()?;
    }
    let begun = begin()?;
    let small = limits.small_calls(MAX_CALLS, || client.small_call())?;
    let ended = end(begun)?;
    client.end();
    Ok((small, ended))
}

/// The running hostile sandbox.
struct Attacker {
    running: Running,
    printed: BufReader<ChildStdout>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct AttackCount {
    pub(crate) count: u64,
    pub(crate) seconds: f64,
}

impl AttackCount {
    pub(crate) fn per_second(self) -> f64 {
        self.count as f64 / self.seconds
    }

    fn add(&mut self, more: Self) {
        self.count += more.count;
        self.seconds += more.seconds;
    }
}

impl Attacker {
    fn start(attack: Attack, socket: &Path) -> Result<Self, BenchError> {
        let failed = |source| BenchError::Start { what: "an attacker".into(), source };
        let mut attacker = command(std::env::current_exe().map_err(failed)?);
        attacker.args(["attack", attack.name()]).arg(socket);
        attacker.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Running::spawn(attacker, "an attacker")?;
        let printed = BufReader::new(running.child.stdout.take().expect("stdout is piped"));
        let mut attacker = Self { running, printed };
        match attacker.read_line()?.as_str() {
            STARTED => Ok(attacker),
            other => Err(BenchError::UnexpectedResponse(other.into())),
        }
    }

    fn finish(mut self) -> Result<AttackCount, BenchError> {
        drop(self.running.child.stdin.take());
        let line = self.read_line()?;
        parse_attack_count(&line).ok_or(BenchError::UnexpectedResponse(line))
    }

    fn read_line(&mut self) -> Result<String, BenchError> {
        if self.printed.buffer().is_empty() {
            let mut ready = [PollFd::new(self.printed.get_ref().as_fd(), PollFlags::POLLIN)];
            let within = PollTimeout::try_from(ATTACKER_TIMEOUT).unwrap_or(PollTimeout::MAX);
            if poll(&mut ready, within) == Ok(0) {
                let what = "an attacker".into();
                return Err(BenchError::NotReady {
                    what,
                    within: ATTACKER_TIMEOUT,
                    last_log_line: String::new(),
                });
            }
        }
        let mut line = String::new();
        let read = self.printed.read_line(&mut line);
        read.map_err(|source| BenchError::Read { what: "from an attacker".into(), source })?;
        match line.trim_end() {
            "" => Err(BenchError::Ended { what: "an attacker".into(), last_log_line: String::new() }),
            line => Ok(line.into()),
        }
    }
}

fn parse_attack_count(line: &str) -> Option<AttackCount> {
    let (count, seconds) = line.split_once(' ')?;
    let done = AttackCount { count: count.parse().ok()?, seconds: seconds.parse().ok()? };
    (done.seconds > 0.0).then_some(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attacks_of_all_rounds_are_added() {
        let mut attacks = AttackCount::default();
        for (count, seconds) in [(100, 0.5), (50, 0.25), (150, 0.25)] {
            attacks.add(AttackCount { count, seconds });
        }
        assert_eq!((attacks.count, attacks.per_second()), (300, 300.0));
    }

    #[test]
    fn an_attackers_last_line_has_a_count_and_a_time() {
        assert_eq!(parse_attack_count("1200 0.5"), Some(AttackCount { count: 1200, seconds: 0.5 }));
        assert_eq!(parse_attack_count("1200 0"), None);
        assert_eq!(parse_attack_count("attack started"), None);
    }
}
