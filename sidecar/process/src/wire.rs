//! The messages between the sidecar and a keeper on the control socket.
//!
//! First the sidecar sends the launch specification: a `u32` length together with the server's three descriptors, then
//! that many bytes. After that the sidecar sends orders and the keeper reports, in frames of thirteen bytes: a kind and three
//! numbers.
//!
//! What must stay true: the specification is in memory that is wiped when dropped, and is never copied out of it; the
//! keeper passes slices of it to `execve`.

use std::ffi::CStr;
use std::io;
use std::time::Duration;

use nix::errno::Errno;
use zeroize::Zeroizing;

/// In bytes. The kernel accepts about 2 MiB of arguments and environment with the usual stack limit, 6 MiB at most.
pub(super) const MAX_SPECIFICATION: usize = 8 * 1024 * 1024;
pub(super) const FRAME_BYTES: usize = 13;

/// A message from the keeper.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Report {
    /// No descendant is left.
    Ended,
    /// The server's main process ended, with this wait status.
    Exited(i32),
    /// The server could not be started.
    Failed(Failure),
    Started(StartedServer),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct StartedServer {
    /// The server's main process.
    pub(super) pid: u32,
    /// Why a confined server of root has no user of its own.
    pub(super) as_root: Option<Failure>,
}

/// A message from the sidecar.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Order {
    /// Send SIGHUP to the server's main process.
    HangUp,
    Stop {
        grace: Duration,
    },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Failure {
    pub(super) stage: Stage,
    pub(super) errno: i32,
}

/// What the keeper was doing when it failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stage {
    /// Entering the server's directory.
    Directory,
    /// `execve` itself.
    Execute,
    /// Everything before the directory is entered.
    Prepare,
    /// Building the walls around the server, with the number of the step.
    Walls(i32),
    /// The same, for the user of its own that the walls require.
    UserWall(i32),
}

impl Failure {
    pub(super) const BYTES: usize = 8;

    pub(super) fn at(stage: Stage, errno: Errno) -> Self {
        Self { stage, errno: errno as i32 }
    }

    /// As it travels from the failed process to the keeper.
    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.stage.number().to_be_bytes());
        bytes[4..].copy_from_slice(&self.errno.to_be_bytes());
        bytes
    }

    pub(super) fn from_bytes([a, b, c, d, e, f, g, h]: [u8; Self::BYTES]) -> Self {
        let stage = Stage::from_number(i32::from_be_bytes([a, b, c, d]));
        Self { stage, errno: i32::from_be_bytes([e, f, g, h]) }
    }
}

impl Report {
    pub(super) fn encode(self) -> [u8; FRAME_BYTES] {
        match self {
            Self::Ended => encode_frame(1, [0; 3]),
            Self::Exited(status) => encode_frame(2, [status, 0, 0]),
            Self::Failed(failure) => encode_frame(3, [failure.stage.number(), failure.errno, 0]),
            Self::Started(StartedServer { pid, as_root }) => {
                let (stage, errno) = as_root.map_or((0, 0), |why| (why.stage.number(), why.errno));
                encode_frame(4, [pid.cast_signed(), stage, errno])
            }
        }
    }

    pub(super) fn decode(bytes: [u8; FRAME_BYTES]) -> io::Result<Self> {
        let failure = |stage, errno| Failure { stage: Stage::from_number(stage), errno };
        match decode_frame(bytes) {
            (1, _) => Ok(Self::Ended),
            (2, [status, ..]) => Ok(Self::Exited(status)),
            (3, [stage, errno, _]) => Ok(Self::Failed(failure(stage, errno))),
            (4, [pid, stage, errno]) => {
                let as_root = (stage != 0).then(|| failure(stage, errno));
                Ok(Self::Started(StartedServer { pid: pid.cast_unsigned(), as_root }))
            }
            (kind, _) => Err(io::Error::other(format!("unknown kind of report from a keeper: {kind}"))),
        }
    }
}

impl Order {
    pub(super) fn encode(self) -> [u8; FRAME_BYTES] {
        match self {
            Self::HangUp => encode_frame(2, [0; 3]),
            Self::Stop { grace } => {
                encode_frame(1, [i32::try_from(grace.as_millis()).unwrap_or(i32::MAX), 0, 0])
            }
        }
    }

    pub(super) fn decode(bytes: [u8; FRAME_BYTES]) -> io::Result<Self> {
        match decode_frame(bytes) {
            (1, [milliseconds, ..]) => {
                Ok(Self::Stop { grace: Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0)) })
            }
            (2, _) => Ok(Self::HangUp),
            (kind, _) => Err(io::Error::other(format!("unknown kind of order to a keeper: {kind}"))),
        }
    }
}

impl Stage {
    /// The numbers from here on are those of steps of the walls.
    const WALLS: i32 = 1000;
    const USER_WALL: i32 = 1_000_000;

    pub(super) fn number(self) -> i32 {
        match self {
            Self::Directory => 1,
            Self::Execute => 2,
            Self::Prepare => 3,
            Self::Walls(step) => Self::WALLS.saturating_add(step),
            Self::UserWall(step) => Self::USER_WALL.saturating_add(step),
        }
    }

    pub(super) fn from_number(number: i32) -> Self {
        match number {
            1 => Self::Directory,
            2 => Self::Execute,
            Self::USER_WALL.. => Self::UserWall(number - Self::USER_WALL),
            Self::WALLS.. => Self::Walls(number - Self::WALLS),
            _ => Self::Prepare,
        }
    }
}

/// Layout: the numbers of arguments and variables, then NUL-terminated strings: program, directory (empty for none), walls in
/// JSON (empty for none), arguments, `NAME=value`.
pub(super) fn encode_specification(
    program: &[u8],
    directory: &[u8],
    walls: &[u8],
    arguments: &[&[u8]],
    environment: &[(&[u8], &[u8])],
) -> Option<Zeroizing<Vec<u8>>> {
    let size = 8
        + program.len()
        + directory.len()
        + walls.len()
        + 3
        + arguments.iter().map(|argument| argument.len() + 1).sum::<usize>()
        + environment.iter().map(|(name, value)| name.len() + value.len() + 2).sum::<usize>();
    if size > MAX_SPECIFICATION {
        return None;
    }
    // Allocated at once, because a growing buffer leaves copies that are not wiped.
    let mut bytes = Zeroizing::new(Vec::with_capacity(size));
    bytes.extend((u32::try_from(arguments.len()).ok()?).to_be_bytes());
    bytes.extend((u32::try_from(environment.len()).ok()?).to_be_bytes());
    for text in [program, directory, walls].iter().chain(arguments) {
        bytes.extend_from_slice(text);
        bytes.push(0);
    }
    for (name, value) in environment {
        bytes.extend_from_slice(name);
        bytes.push(b'=');
        bytes.extend_from_slice(value);
        bytes.push(0);
    }
    debug_assert_eq!(bytes.len(), size);
    Some(bytes)
}

/// A received specification; its fields borrow from the buffer, which is wiped when dropped.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Specification<'a> {
    pub(super) program: &'a CStr,
    pub(super) directory: Option<&'a CStr>,
    walls: &'a CStr,
    pub(super) arguments: Vec<&'a CStr>,
    pub(super) environment: Vec<&'a CStr>,
}

impl<'a> Specification<'a> {
    /// `None` if the bytes are not those of [`encode_specification`].
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (&arguments, rest) = bytes.split_first_chunk()?;
        let (&environment, mut rest) = rest.split_first_chunk()?;
        let mut next_text = || {
            let text = CStr::from_bytes_until_nul(rest).ok()?;
            rest = &rest[text.to_bytes_with_nul().len()..];
            Some(text)
        };
        let program = next_text()?;
        let directory = Some(next_text()?).filter(|directory| !directory.is_empty());
        let walls = next_text()?;
        let arguments = (0..u32::from_be_bytes(arguments)).map(|_| next_text()).collect::<Option<_>>()?;
        let environment = (0..u32::from_be_bytes(environment)).map(|_| next_text()).collect::<Option<_>>()?;
        rest.is_empty().then_some(Self { program, directory, walls, arguments, environment })
    }

    /// The walls around the server, in JSON; `None` if it runs without.
    pub(super) fn walls(&self) -> Option<&'a [u8]> {
        Some(self.walls.to_bytes()).filter(|walls| !walls.is_empty())
    }
}

fn encode_frame(kind: u8, numbers: [i32; 3]) -> [u8; FRAME_BYTES] {
    let mut bytes = [kind; FRAME_BYTES];
    for (place, number) in bytes[1..].chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_be_bytes());
    }
    bytes
}

fn decode_frame([kind, numbers @ ..]: [u8; FRAME_BYTES]) -> (u8, [i32; 3]) {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = numbers;
    (kind, [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(i32::from_be_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_decoded_as_they_were_encoded() {
        let failure = Failure { stage: Stage::Execute, errno: 2 };
        let started = |as_root| Report::Started(StartedServer { pid: u32::MAX, as_root });
        let as_root = Failure { stage: Stage::Walls(7), errno: 22 };
        let user_wall = Report::Failed(Failure { stage: Stage::UserWall(107), errno: 1 });
        for report in [
            Report::Ended,
            Report::Exited(9),
            Report::Failed(failure),
            user_wall,
            started(None),
            started(Some(as_root)),
        ] {
            assert_eq!(Report::decode(report.encode()).unwrap(), report);
        }
        for order in [Order::HangUp, Order::Stop { grace: Duration::from_millis(1500) }] {
            assert_eq!(Order::decode(order.encode()).unwrap(), order);
        }
        assert!(Report::decode([7; FRAME_BYTES]).is_err());
        assert!(Order::decode([7; FRAME_BYTES]).is_err());
    }

    #[test]
    fn a_specification_is_decoded_as_it_was_encoded() {
        let bytes =
            encode_specification(b"/bin/x", b"", b"", &[b"x", b""], &[(b"A", b"b=c"), (b"E", b"")]).unwrap();
        let expected = Specification {
            program: c"/bin/x",
            directory: None,
            walls: c"",
            arguments: vec![c"x", c""],
            environment: vec![c"A=b=c", c"E="],
        };
        assert_eq!(Specification::decode(&bytes), Some(expected));
        assert_eq!(Specification::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Specification::decode(&[&bytes[..], b"more\0"].concat()), None);
    }

    #[test]
    fn an_oversize_specification_is_refused_before_memory_is_allocated() {
        let value = vec![b'x'; 1024 * 1024];
        let many = vec![(&b"A"[..], &value[..]); 9];
        assert!(encode_specification(b"/bin/x", b"", b"", &[], &many).is_none());
    }
}
