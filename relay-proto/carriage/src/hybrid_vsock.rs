//! A virtual machine's vsock at the Unix socket of its monitor, as in Firecracker.
//!
//! The host connects to the socket, sends `CONNECT PORT\n`, and receives `OK NUMBER\n` when a program in the machine
//! has accepted the connection; further bytes are exchanged between the host and that program. Must stay true: no byte
//! after the response's newline is read here, and a response without a newline is refused after a few bytes.

use std::io;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HybridVsockError {
    #[error(
        "cannot connect to the monitor's socket `{path}`: {source}; is the machine running, may this user write there, and is it \
         the path of the monitor's vsock (`uds_path`)?"
    )]
    Connect { path: PathBuf, source: io::Error },
    #[error(
        "cannot connect to port {port} through the monitor at `{path}`: the monitor closed the connection; no program in the machine listens on that port (yet): start \
         `cofferdam-shim hub --listen vsock:{port}` there"
    )]
    NoListener { path: PathBuf, port: u32 },
    #[error(
        "cannot connect to port {port} through the monitor at `{path}`: the response is not that of a monitor's vsock; is the path \
         correct?"
    )]
    NotAMonitor { path: PathBuf, port: u32 },
    #[error(
        "cannot connect to port {port} through the monitor at `{path}`: {source}; is the machine still running?"
    )]
    Io { path: PathBuf, port: u32, source: io::Error },
}

/// Connects to `port` of the machine whose monitor has this socket. Has no timeout, and may wait long: a machine may be
/// paused.
pub async fn connect(path: &Path, port: u32) -> Result<UnixStream, HybridVsockError> {
    let path_buf = || path.to_path_buf();
    let connected = UnixStream::connect(path).await;
    let mut stream = connected.map_err(|source| HybridVsockError::Connect { path: path_buf(), source })?;
    let sent = stream.write_all(format!("CONNECT {port}\n").as_bytes()).await;
    let response = match sent {
        Ok(()) => read_response(&mut stream).await,
        Err(error) => Err(error),
    };
    match response {
        Ok(MonitorResponse::Connected) => Ok(stream),
        Ok(MonitorResponse::Closed) => Err(HybridVsockError::NoListener { path: path_buf(), port }),
        Ok(MonitorResponse::Malformed) => Err(HybridVsockError::NotAMonitor { path: path_buf(), port }),
        Err(source) if CLOSED_KINDS.contains(&source.kind()) => {
            Err(HybridVsockError::NoListener { path: path_buf(), port })
        }
        Err(source) => Err(HybridVsockError::Io { path: path_buf(), port, source }),
    }
}

/// The length of `OK `, a number of 32 bits and a newline.
const MAX_RESPONSE_BYTES: usize = 14;
const CLOSED_KINDS: [io::ErrorKind; 2] = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];

#[derive(Debug, Eq, PartialEq)]
enum MonitorResponse {
    Connected,
    Closed,
    Malformed,
}

async fn read_response(stream: &mut UnixStream) -> io::Result<MonitorResponse> {
    let mut line = Vec::with_capacity(MAX_RESPONSE_BYTES);
    while line.len() < MAX_RESPONSE_BYTES {
        // One byte at a time: what follows the line belongs to the caller.
        match stream.read_u8().await {
            Ok(b'\n') => {
                let number = line.strip_prefix(b"OK ").unwrap_or_default();
                let is_number = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
                return Ok(if is_number { MonitorResponse::Connected } else { MonitorResponse::Malformed });
            }
            Ok(byte) => line.push(byte),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(if line.is_empty() {
                    MonitorResponse::Closed
                } else {
                    MonitorResponse::Malformed
                });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(MonitorResponse::Malformed)
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    /// Connects to a monitor that responds with `response`, and closes the connection only if that is empty. Returns the
    /// request that the monitor received, and the result.
    async fn connect_to_monitor(response: &'static [u8]) -> (String, Result<UnixStream, HybridVsockError>) {
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
            let mut request = vec![0; "CONNECT 7443\n".len()];
            stream.read_exact(&mut request).await.unwrap();
            stream.write_all(response).await.unwrap();
            (String::from_utf8(request).unwrap(), (!response.is_empty()).then_some(stream))
        };
        let (connected, (request, _stream)) = tokio::join!(connect(&path, 7443), monitor);
        std::fs::remove_dir_all(directory).unwrap();
        (request, connected)
    }

    #[tokio::test]
    async fn bytes_after_the_response_are_left_to_the_caller() {
        let (request, connected) = connect_to_monitor(b"OK 1073741824\nhello").await;
        assert_eq!(request, "CONNECT 7443\n");
        let mut received = [0; 5];
        connected.unwrap().read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"hello");
    }

    #[tokio::test]
    async fn other_responses_are_refused_even_if_they_do_not_end() {
        for response in [
            &b"NO\n"[..],
            b"OK\n",
            b"OK \n",
            b"OK x\n",
            b"\n",
            b"OK 11111111111",
            b"HTTP/1.1 400 Bad Request",
        ] {
            let error = connect_to_monitor(response).await.1.expect_err("an invalid response was accepted");
            assert!(matches!(error, HybridVsockError::NotAMonitor { port: 7443, .. }), "{error}");
        }
        let error = connect_to_monitor(b"").await.1.expect_err("a closed connection was accepted");
        assert!(matches!(error, HybridVsockError::NoListener { port: 7443, .. }), "{error}");
        let error = connect(Path::new("/no/such/vsock"), 7443)
            .await
            .expect_err("connected to a socket that does not exist");
        assert!(error.to_string().contains("is the machine running"), "{error}");
    }
}
