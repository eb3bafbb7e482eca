//! A virtual machine's vsock at the Unix socket of its monitor, as in Firecracker.
//!
//! The host connects to the socket, sends `CONNECT PORT\n`, and receives `OK NUMBER\n` when a program in the machine has
//! accepted the connection; further bytes are between host and program. Must stay true: no byte after the response's
//! newline is read here, and a response without one is given up after a few bytes.

use std::io;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HybridVsockError {
    #[error(
        "connect to the monitor's socket `{path}`: {source}; is the machine running, may this user write there, and is it the \
         path that the monitor has for its vsock (`uds_path`)?"
    )]
    Connect { path: PathBuf, source: io::Error },
    #[error(
        "ask the monitor at `{path}` for port {port}: it closed the connection; no program in the machine listens on that port (yet): start \
         `cofferdam-shim hub --listen vsock:{port}` there"
    )]
    NoListener { path: PathBuf, port: u32 },
    #[error(
        "ask the monitor at `{path}` for port {port}: the response is not that of a monitor's vsock; is the path right?"
    )]
    NotAMonitor { path: PathBuf, port: u32 },
    #[error("ask the monitor at `{path}` for port {port}: {source}; is the machine still running?")]
    Io { path: PathBuf, port: u32, source: io::Error },
}

/// Connects to `port` of the machine whose monitor has this socket. Has no timeout of its own; a machine may be paused.
pub async fn connect(path: &Path, port: u32) -> Result<UnixStream, HybridVsockError> {
    let own = || path.to_path_buf();
    let connected = UnixStream::connect(path).await;
    let mut stream = connected.map_err(|source| HybridVsockError::Connect { path: own(), source })?;
    let asked = stream.write_all(format!("CONNECT {port}\n").as_bytes()).await;
    let answered = match asked {
        Ok(()) => answer(&mut stream).await,
        Err(error) => Err(error),
    };
    match answered {
        Ok(Answer::Connected) => Ok(stream),
        Ok(Answer::Closed) => Err(HybridVsockError::NoListener { path: own(), port }),
        Ok(Answer::Malformed) => Err(HybridVsockError::NotAMonitor { path: own(), port }),
        Err(source) if CLOSED_KINDS.contains(&source.kind()) => {
            Err(HybridVsockError::NoListener { path: own(), port })
        }
        Err(source) => Err(HybridVsockError::Io { path: own(), port, source }),
    }
}

/// `OK `, a number of 32 bits and a newline.
const MAX_ANSWER: usize = 14;
const CLOSED_KINDS: [io::ErrorKind; 2] = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];

#[derive(Debug, Eq, PartialEq)]
enum Answer {
    Connected,
    Closed,
    Malformed,
}

async fn answer(stream: &mut UnixStream) -> io::Result<Answer> {
    let mut line = Vec::with_capacity(MAX_ANSWER);
    while line.len() < MAX_ANSWER {
        // One byte at a time: what follows the line belongs to the caller.
        match stream.read_u8().await {
            Ok(b'\n') => {
                let number = line.strip_prefix(b"OK ").unwrap_or_default();
                let is_one = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
                return Ok(if is_one { Answer::Connected } else { Answer::Malformed });
            }
            Ok(byte) => line.push(byte),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(if line.is_empty() { Answer::Closed } else { Answer::Malformed });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Answer::Malformed)
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    /// A monitor with this response. It keeps the connection open, unless the response is empty.
    async fn dialled(answer: &'static [u8]) -> (String, Result<UnixStream, HybridVsockError>) {
        let directory = std::env::temp_dir().join(format!(
            "hybrid-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("vsock");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let monitor = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; "CONNECT 7443\n".len()];
            stream.read_exact(&mut asked).await.unwrap();
            stream.write_all(answer).await.unwrap();
            (String::from_utf8(asked).unwrap(), (!answer.is_empty()).then_some(stream))
        };
        let (connected, (asked, _stream)) = tokio::join!(connect(&path, 7443), monitor);
        std::fs::remove_dir_all(directory).unwrap();
        (asked, connected)
    }

    #[tokio::test]
    async fn bytes_after_the_response_are_left_to_the_caller() {
        let (asked, connected) = dialled(b"OK 1073741824\nhello").await;
        assert_eq!(asked, "CONNECT 7443\n");
        let mut received = [0; 5];
        connected.unwrap().read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"hello");
    }

    #[tokio::test]
    async fn other_responses_are_refused_and_an_endless_one_is_given_up() {
        for answer in [
            &b"NO\n"[..],
            b"OK\n",
            b"OK \n",
            b"OK x\n",
            b"\n",
            b"OK 11111111111",
            b"HTTP/1.1 400 Bad Request",
        ] {
            let error = dialled(answer).await.1.expect_err("no monitor responds like this");
            assert!(matches!(error, HybridVsockError::NotAMonitor { port: 7443, .. }), "{error}");
        }
        let error = dialled(b"").await.1.expect_err("it closed the connection");
        assert!(matches!(error, HybridVsockError::NoListener { port: 7443, .. }), "{error}");
        let error = connect(Path::new("/no/such/vsock"), 7443).await.expect_err("there is none");
        assert!(error.to_string().contains("is the machine running"), "{error}");
    }
}
