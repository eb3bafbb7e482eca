//! From a virtual machine to its host, without a network.

use std::io;
use std::os::fd::OwnedFd;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixStream;

/// Connects to `port` at `cid` (the host is 2). Bound it with a time-out.
///
/// A stream socket is read and written in the same way whatever its family, so tokio's kind for another one serves;
/// only asking it for addresses would be wrong.
pub async fn connect(cid: u32, port: u32) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::VSOCK, Type::STREAM.nonblocking().cloexec(), None)?;
    let under_way = match socket.connect(&SockAddr::vsock(cid, port)) {
        Ok(()) => false,
        Err(error) if error.raw_os_error() == Some(EINPROGRESS) => true,
        Err(error) => return Err(error),
    };
    let stream = UnixStream::from_std(std::os::unix::net::UnixStream::from(OwnedFd::from(socket)))?;
    if under_way {
        stream.writable().await?;
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
    }
    Ok(stream)
}

const EINPROGRESS: i32 = 115;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Where there is no vsock at all the error is another one; what matters is that it comes, and soon.
    #[tokio::test]
    async fn nobody_there_is_an_error_and_no_wait() {
        let connected = tokio::time::timeout(Duration::from_secs(20), connect(1, 4_000_000_000)).await;
        assert!(connected.expect("an answer").is_err());
    }
}
