//! Between a virtual machine and its host, without a network.
//!
//! A stream socket is read and written in the same way whatever its family, so tokio's kind for another one serves;
//! only asking it for addresses would be wrong.

use std::io;
use std::os::fd::OwnedFd;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

/// Connects to `port` at `cid` (the host is 2). Bound it with a time-out.
pub async fn connect(cid: u32, port: u32) -> io::Result<UnixStream> {
    let socket = new_socket()?;
    let under_way = match socket.connect(&SockAddr::vsock(cid, port)) {
        Ok(()) => false,
        Err(error) if error.raw_os_error() == Some(EINPROGRESS) => true,
        Err(error) => return Err(error),
    };
    let stream = as_stream(socket)?;
    if under_way {
        stream.writable().await?;
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
    }
    Ok(stream)
}

/// A port of this machine's, open to whoever has a vsock to it: its host, and what runs in it.
#[derive(Debug)]
pub struct Listener(AsyncFd<Socket>);

impl Listener {
    /// Needs a runtime around it.
    #[expect(
        deprecated,
        reason = "its successor is unsafe, and this crate forbids that; a socket that owns its descriptor is what it asks for"
    )]
    pub fn bind(port: u32) -> io::Result<Self> {
        let socket = new_socket()?;
        socket.bind(&SockAddr::vsock(ANY_CID, port))?;
        socket.listen(BACKLOG)?;
        Ok(Self(AsyncFd::with_interest(socket, Interest::READABLE)?))
    }

    /// Waits for the next one. Can be dropped at any time.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        let (socket, _) = self.0.async_io(Interest::READABLE, Socket::accept).await?;
        socket.set_nonblocking(true)?;
        as_stream(socket)
    }
}

/// What a bare error number does not say about a machine that was dialled.
pub fn dial_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(EAFNOSUPPORT) => "this kernel has no vsock: load its module `vhost_vsock`",
        Some(ENODEV | ENETUNREACH) => {
            "no machine with that CID runs here; where its monitor has a Unix socket instead, use vsock:PATH:PORT"
        }
        Some(ECONNREFUSED | ECONNRESET) => {
            "nobody listens on that port in the machine: start `cofferdam-shim hub --listen vsock:PORT` there"
        }
        _ => "is the machine running, and does it have a vsock device?",
    }
}

/// The same about a port that was to be opened.
pub fn listen_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(EACCES) => "ports below 1024 are root's: choose a higher one",
        Some(EADDRINUSE) => "another program is there: end it, or choose another port",
        Some(EAFNOSUPPORT) => {
            "this machine has no vsock: give it a vsock device, and its kernel `vmw_vsock_virtio_transport`"
        }
        _ => "does this machine have a vsock device?",
    }
}

/// Whichever number the machine has.
const ANY_CID: u32 = u32::MAX;
/// Connections that the kernel keeps for us.
const BACKLOG: i32 = 128;
const EACCES: i32 = 13;
const EADDRINUSE: i32 = 98;
const EAFNOSUPPORT: i32 = 97;
const ECONNREFUSED: i32 = 111;
const ECONNRESET: i32 = 104;
const EINPROGRESS: i32 = 115;
const ENETUNREACH: i32 = 101;
const ENODEV: i32 = 19;

fn new_socket() -> io::Result<Socket> {
    Socket::new(Domain::VSOCK, Type::STREAM.nonblocking().cloexec(), None)
}

fn as_stream(socket: Socket) -> io::Result<UnixStream> {
    UnixStream::from_std(std::os::unix::net::UnixStream::from(OwnedFd::from(socket)))
}

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

    /// Where there is no vsock at all, the first one is an error with a next step too.
    #[tokio::test]
    async fn a_port_has_one_listener() {
        let port = 4_000_000_000 + std::process::id() % 1_000_000;
        match Listener::bind(port) {
            Ok(listener) => {
                let error = Listener::bind(port).expect_err("it is taken");
                assert!(listen_advice(&error).contains("another program is there"), "{error}");
                drop(listener);
                Listener::bind(port).expect("it is free again");
            }
            Err(error) => assert!(listen_advice(&error).contains("no vsock"), "{error}"),
        }
    }
}
