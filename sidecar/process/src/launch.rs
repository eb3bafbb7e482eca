//! Starts a server under a keeper.
//!
//! What must stay true: the warden watches a keeper as soon as it is spawned, so a launch that fails or is cancelled
//! leaves no process behind.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::{AccessFlags, access};
use tokio::net::unix::pipe;
use zeroize::Zeroizing;

use super::descriptor_limit;
use super::environment::{InvalidEnvironment, Variable, check_environment};
use super::keeper;
use super::observation::{self, PathObserver};
use super::os;
use super::registry::spawn_known;
use super::server::{KeeperHandle, ProcessHandle, ServerProcess};
use super::walls::{Step, WallPart, Walls};
use super::warden::{ServerState, warden};
use super::wire::{self, Failure, Stage};

/// The limit from the keeper's start to the server's `execve`, which usually takes milliseconds, longer on a loaded host.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(10);

static KEEPER_PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// The command to start. It is executed directly, never by a shell.
#[derive(Debug)]
pub struct Launch {
    /// A path, or a name to be found on the sidecar's PATH.
    pub program: OsString,
    pub args: Vec<OsString>,
    /// The whole environment: see [`allowed_environment`](super::allowed_environment).
    pub environment: Vec<Variable>,
    pub directory: Option<PathBuf>,
    /// What surrounds the server. `None`: it runs as the sidecar's user, without any wall.
    pub walls: Option<Walls>,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("cannot confine `{}`: cannot {step}", .program.display())]
    Confine { program: OsString, step: String, at: WallPart, source: io::Error },
    #[error("cannot enter the directory `{}` for `{}`", directory.display(), program.display())]
    Directory { program: OsString, directory: PathBuf, source: io::Error },
    #[error(transparent)]
    Environment(#[from] InvalidEnvironment),
    #[error("cannot run `{}` (for a script: is the interpreter in its first line installed?)", .program.display())]
    Execute { program: OsString, source: io::Error },
    #[error("cannot start the keeper of `{}`", .program.display())]
    Keeper { program: OsString, source: io::Error },
    #[error("`{}` is not executable: make it executable, or name another command", .path.display())]
    NotExecutable { path: PathBuf },
    #[error("there is no `{}`: install it, put it on the sidecar's PATH, or give its full path", .program.display())]
    NotFound { program: OsString },
    #[error("an argument or the directory of `{}` contains a NUL byte", .program.display())]
    Nul { program: OsString },
    #[error("`{}` has more than {} sockets in its network", .program.display(), os::MAX_DESCRIPTORS)]
    Sockets { program: OsString },
    #[error("the keeper of `{}` did not start it within {} s", .program.display(), LAUNCH_TIMEOUT.as_secs())]
    Timeout { program: OsString },
    #[error("the arguments and environment of `{}` are larger than {} bytes", .program.display(), wire::MAX_SPECIFICATION)]
    TooLarge { program: OsString },
}

impl LaunchError {
    /// Whether the walls failed at `/proc`, which the kernel refuses to mount where parts of the host's are hidden.
    pub fn is_refused_proc(&self) -> bool {
        matches!(self, Self::Confine { at: WallPart::Proc, source, .. }
            if source.raw_os_error() == Some(Errno::EPERM as i32))
    }
}

/// Starts a server with pipes for its stdio. Returns once its program runs.
pub async fn launch(launch: Launch) -> Result<ServerProcess, LaunchError> {
    launch_for(launch, None).await
}

/// The same for a confined server whose walls have [`Walls::observed_calls`]: `observer` is told of the paths that it asks for.
/// The last reference to it is dropped when no process of the server is left.
pub async fn launch_observed(
    launch: Launch,
    observer: Arc<dyn PathObserver>,
) -> Result<ServerProcess, LaunchError> {
    launch_for(launch, Some(observer)).await
}

async fn launch_for(
    launch: Launch,
    observer: Option<Arc<dyn PathObserver>>,
) -> Result<ServerProcess, LaunchError> {
    let program = launch.program.clone();
    let keeper_error = |source| LaunchError::Keeper { program: program.clone(), source };
    let (child_stdin, stdin) = io::pipe().map_err(keeper_error)?;
    let (stdout, child_stdout) = io::pipe().map_err(keeper_error)?;
    let (stderr, child_stderr) = io::pipe().map_err(keeper_error)?;
    let stdin = pipe::Sender::from_owned_fd(stdin.into()).map_err(keeper_error)?;
    let stdout = pipe::Receiver::from_owned_fd(stdout.into()).map_err(keeper_error)?;
    let stderr = pipe::Receiver::from_owned_fd(stderr.into()).map_err(keeper_error)?;
    let stdio = [child_stdin.into(), child_stdout.into(), child_stderr.into()];
    let (handle, sockets) = launch_with(launch, stdio, observer).await?;
    Ok(ServerProcess { stdin, stdout, stderr, handle, sockets })
}

/// Sets the keeper's program, which is otherwise this process's binary. For tests, whose binary cannot run as a keeper;
/// only the first call has an effect.
pub fn use_keeper_program(path: PathBuf) {
    let _ = KEEPER_PROGRAM.set(path);
}

/// Starts a server with these descriptors as its stdin, stdout and stderr. Returns the sockets of its network too.
pub(super) async fn launch_with(
    mut launch: Launch,
    stdio: [OwnedFd; 3],
    observer: Option<Arc<dyn PathObserver>>,
) -> Result<(ProcessHandle, Vec<OwnedFd>), LaunchError> {
    let walls = launch.walls.take();
    let sockets = walls.as_ref().map_or(0, |walls| walls.network.sockets());
    let program = launch.program.clone();
    let directory = launch.directory.clone().unwrap_or_default();
    let keeper_error = |source| LaunchError::Keeper { program: program.clone(), source };
    if sockets > os::MAX_DESCRIPTORS {
        return Err(LaunchError::Sockets { program });
    }
    let (network, servers_end) = UnixStream::pair().map_err(keeper_error)?;
    let mut descriptors = Vec::from(stdio);
    if sockets > 0 || observer.is_some() {
        descriptors.push(servers_end.into());
    }
    // Before the start, because the server waits for its observer when it executes its program.
    let mut observed = None;
    if let Some(observer) = observer {
        let sidecar_end = network.try_clone().map_err(keeper_error)?;
        observed = Some(observation::start(sidecar_end, sockets, observer).map_err(keeper_error)?);
    }
    let encoded = encode_walls(walls.as_ref()).map_err(keeper_error)?;
    let started = tokio::task::spawn_blocking(move || start_keeper(&launch, &encoded, &descriptors)).await;
    let mut keeper = started.map_err(|panic| keeper_error(io::Error::other(panic)))??;
    let left_starting = keeper.state.wait_for(|state| !matches!(state, ServerState::Starting));
    let state = match tokio::time::timeout(LAUNCH_TIMEOUT, left_starting).await {
        Ok(Ok(state)) => *state,
        Ok(Err(closed)) => return Err(keeper_error(io::Error::other(closed))),
        Err(_) => return Err(LaunchError::Timeout { program }),
    };
    match state {
        ServerState::Failed(Failure { stage, errno }) => {
            let source = io::Error::from_raw_os_error(errno);
            Err(match stage {
                Stage::Directory => LaunchError::Directory { program, directory, source },
                Stage::Execute => LaunchError::Execute { program, source },
                Stage::Prepare => LaunchError::Keeper { program, source },
                Stage::Walls(step) => {
                    let at = WallPart::of(step);
                    let step = walls.as_ref().map_or_else(String::new, |walls| Step::describe(step, walls));
                    LaunchError::Confine { program, step, at, source }
                }
            })
        }
        // A server that has already exited did start: `ProcessHandle::exited` reports the exit.
        ServerState::Running { pid } | ServerState::Exited { pid, .. } | ServerState::Ended { pid, .. } => {
            // They were sent before the program was executed, so nothing is waited for here.
            let received = match (sockets, observed) {
                (0, _) => Vec::new(),
                (_, None) => receive_sockets(&network).map_err(keeper_error)?,
                (_, Some(received)) => received.await.unwrap_or_default(),
            };
            match received.len() == sockets {
                true => Ok((ProcessHandle::new(pid, keeper), received)),
                false => Err(keeper_error(io::Error::other("it did not send the sockets of the network"))),
            }
        }
        ServerState::Starting => unreachable!("waited for another state"),
    }
}

/// Starts a keeper and sends it the specification. Blocks while it forks, and while the keeper reads a specification that
/// is larger than the socket's buffer.
fn start_keeper(launch: &Launch, walls: &[u8], descriptors: &[OwnedFd]) -> Result<KeeperHandle, LaunchError> {
    let specification = encode_launch(launch, walls)?;
    let keeper_error = |source| LaunchError::Keeper { program: launch.program.clone(), source };
    let keeper = spawn_keeper().map_err(keeper_error)?;
    send_specification(&keeper.control, &specification, descriptors).map_err(keeper_error)?;
    Ok(keeper)
}

fn spawn_keeper() -> io::Result<KeeperHandle> {
    let warden = warden()?;
    let (control, keeper_end) = UnixStream::pair()?;
    control.set_write_timeout(Some(LAUNCH_TIMEOUT))?;
    let program = KEEPER_PROGRAM.get().map_or(Path::new("/proc/self/exe"), |path| path);
    #[expect(clippy::disallowed_methods, reason = "the only place where a keeper is started")]
    let child = spawn_known(
        Command::new(program)
            .arg(keeper::ARGUMENT)
            .args(descriptor_limit::keeper_argument())
            .env_clear()
            .stdin(OwnedFd::from(keeper_end))
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    )?;
    let control = Arc::new(control);
    let pid = child.id();
    let (id, state) = warden.watch(child, Arc::clone(&control));
    Ok(KeeperHandle { warden, id, pid, control, state })
}

fn receive_sockets(network: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    network.set_nonblocking(true)?;
    Ok(os::receive_descriptors(network.as_fd(), &mut [0])?.unwrap_or_default())
}

fn send_specification(control: &UnixStream, bytes: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?.to_be_bytes();
    let descriptors: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let header = [IoSlice::new(&length)];
    // The socket's buffer is empty, so the four bytes are sent at once.
    sendmsg::<()>(control.as_raw_fd(), &header, &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    (&*control).write_all(bytes)
}

/// In JSON, which contains no NUL. Empty for none.
fn encode_walls(walls: Option<&Walls>) -> io::Result<Vec<u8>> {
    Ok(walls.map(serde_json::to_vec).transpose()?.unwrap_or_default())
}

fn encode_launch(launch: &Launch, walls: &[u8]) -> Result<Zeroizing<Vec<u8>>, LaunchError> {
    check_environment(&launch.environment)?;
    let directory = launch.directory.as_deref().map_or(&b""[..], |path| path.as_os_str().as_bytes());
    let arguments: Vec<&[u8]> =
        [&launch.program].into_iter().chain(&launch.args).map(|argument| argument.as_bytes()).collect();
    if arguments.iter().chain([&directory]).any(|text| text.contains(&0)) {
        return Err(LaunchError::Nul { program: launch.program.clone() });
    }
    let program = program_path(&launch.program)?;
    let environment: Vec<(&[u8], &[u8])> =
        launch.environment.iter().map(|(name, value)| (name.as_bytes(), &value[..])).collect();
    wire::encode_specification(program.as_os_str().as_bytes(), directory, walls, &arguments, &environment)
        .ok_or_else(|| LaunchError::TooLarge { program: launch.program.clone() })
}

/// The path of a program that [`launch`] would start: a path, or a name that is searched for on this process's PATH.
pub fn program_path(program: &OsStr) -> Result<PathBuf, LaunchError> {
    find_program(program, std::env::var_os("PATH").as_deref())
}

/// Searches as a shell does, but skips relative entries of PATH: they depend on the sidecar's working directory.
fn find_program(program: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, LaunchError> {
    let not_found = || LaunchError::NotFound { program: program.to_owned() };
    let candidates: Vec<PathBuf> = match program.as_bytes().contains(&b'/') {
        // Absolute, because the server may start in another directory.
        true => std::path::absolute(program).into_iter().collect(),
        false if program.is_empty() => return Err(not_found()),
        false => path
            .map(|path| std::env::split_paths(path).filter(|entry| entry.is_absolute()).collect::<Vec<_>>())
            .unwrap_or_default()
            .iter()
            .map(|entry| entry.join(program))
            .collect(),
    };
    let existing: Vec<PathBuf> = candidates.into_iter().filter(|path| path.is_file()).collect();
    let executable = |path: &&PathBuf| access(path.as_path(), AccessFlags::X_OK).is_ok();
    match (existing.iter().find(executable), existing.first()) {
        (Some(path), _) => Ok(path.clone()),
        (None, Some(path)) => Err(LaunchError::NotExecutable { path: path.clone() }),
        (None, None) => Err(not_found()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_on_the_path_and_relative_entries_are_skipped() {
        let found = find_program("sh".as_ref(), Some("bin:.:/nowhere:/bin".as_ref())).unwrap();
        assert_eq!(found, Path::new("/bin/sh"));
        let missing = find_program("no-such-program".as_ref(), Some("/bin".as_ref())).unwrap_err();
        assert!(missing.to_string().contains("no `no-such-program`"), "{missing}");
        assert!(matches!(find_program("".as_ref(), None), Err(LaunchError::NotFound { .. })));
        assert!(matches!(find_program("sh".as_ref(), None), Err(LaunchError::NotFound { .. })));
        assert!(matches!(find_program("/etc".as_ref(), None), Err(LaunchError::NotFound { .. })));
        let plain = find_program("/etc/passwd".as_ref(), None).unwrap_err();
        assert!(matches!(plain, LaunchError::NotExecutable { .. }), "{plain}");
    }
}
