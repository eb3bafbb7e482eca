//! How much slower an honest link is while a hostile sandbox attacks the same sidecar.
//!
//! One sidecar with default limits. In turn, again and again: no neighbour, a neighbour that only computes, and each
//! attack; every time a fresh honest shim, connected before the attack begins, makes small calls one at a time.
//! The attacker is a process of normal priority on the same cores, so part of a slowdown is the machine's: the neighbour
//! that only computes shows how much.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::awake::Awake;
use crate::bench_error::BenchError;
use crate::client::Client;
use crate::contender::{Contender, Prepared, Ready};
use crate::measure::{Pace, SmallCalls};
use crate::process::{Running, command};
use crate::program_paths::ProgramPaths;
use crate::roster::{SECRET, SIDECAR, SIDECAR_DIRECTORIES};

use self::attack::{Attack, STARTED};

pub(crate) mod attack;

/// Its name for `--only`.
pub(crate) const HOSTILE: &str = "hostile";

/// The best round of each.
#[derive(Clone, Debug)]
pub(crate) struct Hostile {
    pub(crate) quiet: SmallCalls,
    pub(crate) attacked: Vec<Attacked>,
}

/// The calls of an honest shim during an attack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attacked {
    pub(crate) attack: Attack,
    pub(crate) small: SmallCalls,
    /// Attacks per second in that round.
    pub(crate) per_second: f64,
    /// Attacks in all rounds.
    pub(crate) in_all: u64,
}

impl Hostile {
    pub(crate) fn under(&self, attack: Attack) -> Option<&Attacked> {
        self.attacked.iter().find(|attacked| attacked.attack == attack)
    }
}

/// Runs all rounds; `dir` is for the sidecar's files.
pub(crate) fn run(pace: Pace, dir: &Path, paths: &ProgramPaths) -> Result<Hostile, BenchError> {
    let prepared = SIDECAR_UNDER_ATTACK.prepare(&dir.join(HOSTILE), paths)?;
    let _host = prepared.start_host()?;
    let socket = dir.join(HOSTILE).join(SOCKET);
    let _awake = Awake::keep()?;
    let mut quiet: Option<SmallCalls> = None;
    let mut attacked: Vec<Attacked> = Vec::new();
    for number in 1..=pace.rounds {
        let small = round(&prepared, pace, || Ok(()), |()| Ok(()))?.0;
        eprintln!("bench: round {number}, quiet: {:?} a small call", small.median);
        quiet = quiet.into_iter().chain([small]).min_by_key(|small| small.median);
        for attack in Attack::ALL {
            let (small, done) =
                round(&prepared, pace, || Attacker::start(attack, &socket), Attacker::finish)?;
            let per_second = done.count as f64 / done.seconds;
            eprintln!(
                "bench: round {number}, {}: {:?} a small call, {per_second:.0} a second of the attack",
                attack.word(),
                small.median
            );
            keep_best(&mut attacked, Attacked { attack, small, per_second, in_all: done.count });
        }
    }
    let quiet = quiet.ok_or_else(|| BenchError::Missing("a round without an attack".into()))?;
    Ok(Hostile { quiet, attacked })
}

/// The server that honest and hostile sandboxes ask for.
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
/// Below the audit's default burst for one session, ten thousand calls: more would exceed its rate limit.
const MAX_CALLS: usize = 5_000;
const WARMING_CALLS: usize = 1_000;
/// The time for an attack to start, and to end.
const ATTACKER_WITHIN: Duration = Duration::from_secs(10);

/// Measures an honest shim's calls between `begin` and `end`, which start and stop an attack.
fn round<A, T>(
    prepared: &Prepared,
    pace: Pace,
    begin: impl FnOnce() -> Result<A, BenchError>,
    end: impl FnOnce(A) -> Result<T, BenchError>,
) -> Result<(SmallCalls, T), BenchError> {
    let mut client = Client::start(&prepared.client)?;
    for _ in 0..WARMING_CALLS {
        client.small_call()?;
    }
    let begun = begin()?;
    let small = pace.small_calls(MAX_CALLS, || client.small_call())?;
    let ended = end(begun)?;
    client.end();
    Ok((small, ended))
}

fn keep_best(all: &mut Vec<Attacked>, new: Attacked) {
    let Some(known) = all.iter_mut().find(|known| known.attack == new.attack) else { return all.push(new) };
    let in_all = known.in_all + new.in_all;
    if new.small.median < known.small.median {
        *known = new;
    }
    known.in_all = in_all;
}

/// The running hostile sandbox.
struct Attacker {
    running: Running,
    printed: BufReader<ChildStdout>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Done {
    count: u64,
    seconds: f64,
}

impl Attacker {
    fn start(attack: Attack, socket: &Path) -> Result<Self, BenchError> {
        let failed = |source| BenchError::Start { what: "an attacker".into(), source };
        let mut attacker = command(std::env::current_exe().map_err(failed)?);
        attacker.args(["attack", attack.word()]).arg(socket);
        attacker.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Running::spawn(attacker, "an attacker")?;
        let printed = BufReader::new(running.child.stdout.take().expect("stdout is piped"));
        let mut attacker = Self { running, printed };
        match attacker.line()?.as_str() {
            STARTED => Ok(attacker),
            other => Err(BenchError::UnexpectedResponse(other.into())),
        }
    }

    fn finish(mut self) -> Result<Done, BenchError> {
        drop(self.running.child.stdin.take());
        let line = self.line()?;
        done(&line).ok_or(BenchError::UnexpectedResponse(line))
    }

    fn line(&mut self) -> Result<String, BenchError> {
        if self.printed.buffer().is_empty() {
            let mut ready = [PollFd::new(self.printed.get_ref().as_fd(), PollFlags::POLLIN)];
            let within = PollTimeout::try_from(ATTACKER_WITHIN).unwrap_or(PollTimeout::MAX);
            if poll(&mut ready, within) == Ok(0) {
                let what = "an attacker".into();
                return Err(BenchError::NotReady {
                    what,
                    within: ATTACKER_WITHIN,
                    last_log_line: String::new(),
                });
            }
        }
        let mut line = String::new();
        let read = self.printed.read_line(&mut line);
        read.map_err(|source| BenchError::Read { what: "from an attacker".into(), source })?;
        match line.trim_end() {
            "" => Err(BenchError::Ended { what: "an attacker".into(), last_log_line: String::new() }),
            words => Ok(words.into()),
        }
    }
}

fn done(line: &str) -> Option<Done> {
    let (count, seconds) = line.split_once(' ')?;
    let done = Done { count: count.parse().ok()?, seconds: seconds.parse().ok()? };
    (done.seconds > 0.0).then_some(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attacked(median: u64, in_all: u64) -> Attacked {
        let time = Duration::from_micros(median);
        let small = SmallCalls { median: time, p99: time, calls: 1 };
        Attacked { attack: Attack::Messages, small, per_second: median as f64, in_all }
    }

    #[test]
    fn the_best_round_is_kept_and_attacks_of_all_rounds_are_added() {
        let mut all = Vec::new();
        for (median, attacks) in [(9, 1), (5, 10), (7, 100)] {
            keep_best(&mut all, attacked(median, attacks));
        }
        let [best] = all[..] else { panic!("one attack, one entry") };
        assert_eq!((best.small.median, best.per_second, best.in_all), (Duration::from_micros(5), 5.0, 111));
    }

    #[test]
    fn an_attackers_last_line_has_a_count_and_a_time() {
        assert_eq!(done("1200 0.5"), Some(Done { count: 1200, seconds: 0.5 }));
        assert_eq!(done("1200 0"), None);
        assert_eq!(done("attack started"), None);
    }
}
