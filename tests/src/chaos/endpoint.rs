//! Byte streams and their addresses, for a proxy of any kind of link.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

/// An address to listen on or to connect to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Endpoint {
    Unix(PathBuf),
    /// On loopback; port 0 means any free port.
    Tcp(SocketAddr),
}

/// One end of a connection.
#[derive(Debug)]
pub enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

#[derive(Debug)]
pub enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Endpoint {
    pub fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            Self::Tcp(address) => TcpStream::connect(address).and_then(Stream::tcp),
        }
    }

    /// Listens here; returns the address with its final port.
    pub fn listen(&self) -> io::Result<(Listener, Self)> {
        match self {
            Self::Unix(path) => Ok((Listener::Unix(UnixListener::bind(path)?), self.clone())),
            Self::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                let found = Self::Tcp(listener.local_addr()?);
                Ok((Listener::Tcp(listener), found))
            }
        }
    }
}

impl Listener {
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener) => Ok(Stream::Unix(listener.accept()?.0)),
            Self::Tcp(listener) => Stream::tcp(listener.accept()?.0),
        }
    }
}

impl Stream {
    /// The same connection, for another thread.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
        }
    }

    /// Ignores errors: the stream may have ended already.
    pub fn close(&self, how: Shutdown) {
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(how),
            Self::Tcp(stream) => stream.shutdown(how),
        };
    }

    /// Disables Nagle's algorithm, so that small pieces are sent as small pieces.
    fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_carry_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let endpoints =
            [Endpoint::Unix(directory.path().join("s")), Endpoint::Tcp(([127, 0, 0, 1], 0).into())];
        for endpoint in endpoints {
            let (listener, found) = endpoint.listen().unwrap();
            let mut near = found.connect().unwrap();
            let mut far = listener.accept().unwrap();
            near.write_all(b"there").unwrap();
            near.close(Shutdown::Write);
            let mut text = String::new();
            far.read_to_string(&mut text).unwrap();
            assert_eq!(text, "there");
        }
    }
}
