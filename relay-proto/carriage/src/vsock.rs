//! vsock: between a virtual machine and its host, without a network.
//!
//! A stream socket is read and written in the same way whatever its family, so tokio's `UnixStream` is used for a
//! vsock; only its address methods must not be called.

use std::io;
use std::os::fd::OwnedFd;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

/// Connects to `port` at `cid` (the host is 2). Has no timeout.
pub async fn connect(cid: u32, port: u32) -> io::Result<UnixStream> {
    let socket = new_socket()?;
    let in_progress = match socket.connect(&SockAddr::vsock(cid, port)) {
        Ok(()) => false,
        Err(error) if error.raw_os_error() == Some(EINPROGRESS) => true,
        Err(error) => return Err(error),
    };
    let stream = as_stream(socket)?;
    if in_progress {
        stream.writable().await?;
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
    }
    Ok(stream)
}

/// A port of this machine, which its host and its own programs can reach.
#[derive(Debug)]
pub struct Listener(AsyncFd<Socket>);

impl Listener {
    /// Must be called within a tokio runtime.
    #[expect(
        deprecated,
        reason = "its replacement is unsafe, which this crate forbids; the socket owns its descriptor, as required"
    )]
    pub fn bind(port: u32) -> io::Result<Self> {
        let socket = new_socket()?;
        socket.bind(&SockAddr::vsock(ANY_CID, port))?;
        socket.listen(BACKLOG)?;
        Ok(Self(AsyncFd::with_interest(socket, Interest::READABLE)?))
    }

    /// Waits for the next connection. Cancel-safe.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        let (socket, _) = self.0.async_io(Interest::READABLE, Socket::accept).await?;
        socket.set_nonblocking(true)?;
        as_stream(socket)
    }
}

/// What to do about an error of [`connect`].
pub fn dial_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(EAFNOSUPPORT) => "this kernel has no vsock: load its module `vhost_vsock`",
        Some(ENODEV | ENETUNREACH) => {
            "no machine with that CID runs here; where its monitor has a Unix socket instead, use vsock:PATH:PORT"
        }
        Some(ECONNREFUSED | ECONNRESET) => {
            "no program in the machine listens on that port: start `cofferdam-shim hub --listen vsock:PORT` there"
        }
        _ => "is the machine running, and does it have a vsock device?",
    }
}

/// What to do about an error of [`Listener::bind`].
pub fn listen_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(EACCES) => "only root may use ports below 1024: choose a higher port",
        Some(EADDRINUSE) => "the port is in use: stop the other program, or choose another port",
        Some(EAFNOSUPPORT) => {
            "this machine has no vsock: give it a vsock device, and its kernel `vmw_vsock_virtio_transport`"
        }
        _ => "does this machine have a vsock device?",
    }
}

/// Any CID of this machine.
const ANY_CID: u32 = u32::MAX;
/// How many connections the kernel queues until they are accepted.
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

    /// On a machine without vsock the error is another one, but it comes as soon.
    #[tokio::test]
    async fn a_port_without_a_listener_fails_at_once() {
        let connected = tokio::time::timeout(Duration::from_secs(20), connect(1, 4_000_000_000)).await;
        assert!(connected.expect("connecting hangs").is_err());
    }

    /// On a machine without vsock even the first listener fails, and the advice says so.
    #[tokio::test]
    async fn a_port_has_one_listener() {
        let port = 4_000_000_000 + std::process::id() % 1_000_000;
        match Listener::bind(port) {
            Ok(listener) => {
                let error = Listener::bind(port).expect_err("a second listener was bound to the port");
                assert!(listen_advice(&error).contains("the port is in use"), "{error}");
                drop(listener);
                Listener::bind(port).expect("the port is free again");
            }
            Err(error) => assert!(listen_advice(&error).contains("no vsock"), "{error}"),
        }
    }
}
