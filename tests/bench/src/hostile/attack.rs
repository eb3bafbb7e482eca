//! The hostile sandbox: a separate process that repeats one attack as fast as it can, until its stdin closes.
//!
//! It prints a line when it has started and, at its end, how often it attacked. It is limited only by its descriptors
//! and by the credit that the sidecar grants.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use relay_proto::frame::{Frame, PREFACE};

use crate::bench_error::BenchError;
use crate::clock::now;
use crate::relay::{Link, opening};

/// The kinds of attack.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Attack {
    /// No attack, only computation. It shows how much of a slowdown is due to the machine's load.
    Busy,
    /// Connects, sends nothing, half a Hello or garbage, and connects again.
    Connections,
    /// Sends tiny messages and pings on a link, as many as its credit allows.
    Messages,
}

impl Attack {
    pub(crate) const ALL: [Self; 3] = [Self::Busy, Self::Connections, Self::Messages];

    /// The attack's name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Connections => "connections",
            Self::Messages => "messages",
        }
    }
}

/// Printed when the attack has started.
pub(crate) const STARTED: &str = "attack started";

/// Runs until stdin closes; then prints how often it attacked, and in how many seconds.
pub(crate) fn run(attack: Attack, socket: &Path) -> Result<(), BenchError> {
    std::thread::spawn(|| {
        // A read error counts as the end of the input.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        INPUT_ENDED.store(true, Ordering::Relaxed);
    });
    let mut work = Work::new(attack, socket)?;
    let mut count = 0;
    let warm_up_attacks = match attack {
        Attack::Busy => 1,
        // More than the burst that the sidecar accepts before its rate limit applies.
        Attack::Connections => 500,
        Attack::Messages => 2_000,
    };
    while count < warm_up_attacks && !input_ended() {
        count += work.step()?;
    }
    print_line(STARTED)?;
    let begin = now();
    let mut count = 0;
    while !input_ended() {
        count += work.step()?;
    }
    print_line(&format!("{count} {}", begin.elapsed().as_secs_f64()))
}

enum Work {
    Busy,
    Connections(Connections),
    Messages(Box<Link>),
}

/// How many of the newest connections stay open at this side. The sidecar has closed most of them already.
const MAX_OPEN: usize = 500;
/// Messages between two pings.
const BATCH: usize = 100;
/// Messages that never reach the server: the sidecar drops or refuses each of them.
const TINY_MESSAGES: [&[u8]; 4] =
    [br#"{"jsonrpc":"2.0","method":"x"}"#, br#"{"jsonrpc":"2.0","id":1,"result":{}}"#, b"{}", b""];

static INPUT_ENDED: AtomicBool = AtomicBool::new(false);

impl Work {
    fn new(attack: Attack, socket: &Path) -> Result<Self, BenchError> {
        Ok(match attack {
            Attack::Busy => Self::Busy,
            Attack::Connections => Self::Connections(Connections {
                socket: socket.into(),
                openings: openings(),
                open: VecDeque::with_capacity(MAX_OPEN),
                opened: 0,
            }),
            Attack::Messages => {
                let link = Link::open(socket, super::SERVER)?;
                let unblocked = link.stream().set_nonblocking(true);
                unblocked
                    .map_err(|source| BenchError::Start { what: "a flood of messages".into(), source })?;
                Self::Messages(Box::new(link))
            }
        })
    }

    /// Runs one step of the attack; returns the number of attacks in it.
    fn step(&mut self) -> Result<u64, BenchError> {
        match self {
            Self::Busy => {
                for _ in 0..100_000 {
                    std::hint::spin_loop();
                }
                Ok(1)
            }
            Self::Connections(connections) => connections.next().map(|()| 1),
            Self::Messages(link) => flood(link),
        }
    }
}

struct Connections {
    socket: PathBuf,
    openings: Vec<Vec<u8>>,
    open: VecDeque<UnixStream>,
    opened: usize,
}

impl Connections {
    fn next(&mut self) -> Result<(), BenchError> {
        let mut stream = UnixStream::connect(&self.socket)
            .map_err(|source| BenchError::Start { what: "a connection of the flood".into(), source })?;
        // The sidecar may have closed it already.
        let _ = stream.write_all(&self.openings[self.opened % self.openings.len()]);
        self.opened += 1;
        if self.open.len() == MAX_OPEN
            && let Some(mut oldest) = self.open.pop_front()
        {
            let _ = oldest.write_all(b"\0"); // continues a Hello slowly
        }
        self.open.push_back(stream);
        Ok(())
    }
}

/// First bytes of connections that never become links.
fn openings() -> Vec<Vec<u8>> {
    let complete = opening(super::SERVER);
    let noise: Vec<u8> = (0..200_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let after_the_preface = |bytes: &[u8]| [PREFACE, bytes].concat();
    vec![
        Vec::new(),
        PREFACE[..5].to_vec(),
        complete[..PREFACE.len() + 5].to_vec(),
        complete[..complete.len() - 1].to_vec(),
        noise.clone(),
        after_the_preface(&noise),
        after_the_preface(&[0xff; 8]),
        opening("no-such-server"),
    ]
}

/// Sends as many messages as the credit allows, until the socket accepts no more.
fn flood(link: &mut Link) -> Result<u64, BenchError> {
    let mut sent = 0;
    while !link.outbox.is_full() && !link.has_unwritten() {
        for number in 0..BATCH {
            link.push(TINY_MESSAGES[number % TINY_MESSAGES.len()]);
        }
        link.push_frame(&Frame::Ping);
        link.write()?;
        sent += BATCH as u64;
    }
    let events =
        PollFlags::POLLIN | if link.has_unwritten() { PollFlags::POLLOUT } else { PollFlags::empty() };
    let mut ready = [PollFd::new(link.stream().as_fd(), events)];
    // A short timeout, so that the end of stdin is detected soon.
    match poll(&mut ready, PollTimeout::from(50_u8)) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(error) => return Err(BenchError::Read { what: "from the sidecar".into(), source: error.into() }),
    }
    let readable = ready[0].revents().is_some_and(|events| events.intersects(!PollFlags::POLLOUT));
    if readable {
        link.read_frames()?;
    }
    link.write()?;
    Ok(sent)
}

fn input_ended() -> bool {
    INPUT_ENDED.load(Ordering::Relaxed)
}

fn print_line(text: &str) -> Result<(), BenchError> {
    let mut out = std::io::stdout();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|source| BenchError::Write { what: "the result of the attack".into(), source })
}

#[cfg(test)]
mod tests {
    use relay_proto::decoder::Decoder;

    use super::*;

    #[test]
    fn no_opening_is_a_hello_for_the_server() {
        for opening in openings() {
            let mut decoder = Decoder::new();
            decoder.feed(&opening);
            let is_link = match decoder.next() {
                Ok(Some(Frame::Hello(hello))) => {
                    hello.server.is_some_and(|server| server.as_str() == super::super::SERVER)
                }
                _ => false,
            };
            assert!(!is_link, "{opening:?}");
        }
    }
}
