//! Pings on an idle WebSocket, for proxies that close idle connections.
//!
//! What must stay true: as long as the stream is polled for reading, at least one frame is sent per interval.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::WebSocketStream;
use crate::Stream;

/// A WebSocket that sends a ping when nothing was written for an interval. The peer's pong is discarded.
#[derive(Debug)]
pub struct KeepAlive<S> {
    stream: WebSocketStream<S>,
    interval: Duration,
    ping_due: Pin<Box<Sleep>>,
}

impl<S: Stream> KeepAlive<S> {
    pub fn new(stream: WebSocketStream<S>, interval: Duration) -> Self {
        Self { stream, interval, ping_due: Box::pin(sleep(interval)) }
    }

    fn restart_interval(&mut self) {
        self.ping_due.as_mut().reset(Instant::now() + self.interval);
    }
}

impl<S: Stream> AsyncRead for KeepAlive<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.ping_due.as_mut().poll(context).is_ready() {
            self.stream.poll_ping(context)?;
            self.restart_interval();
        }
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl<S: Stream> AsyncWrite for KeepAlive<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.restart_interval();
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use relay_proto::address::{Host, WebSocket};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;
    use crate::websocket::connect;

    const INTERVAL: Duration = Duration::from_secs(20);
    const PING: u8 = 0x89;

    /// A client with pings, and the peer's end of its connection after the upgrade.
    async fn connected() -> (KeepAlive<tokio::io::DuplexStream>, tokio::io::DuplexStream) {
        let (ours, mut theirs) = duplex(4096);
        let address = WebSocket { host: Host::Name("box.test".into()), port: 443, path: "/".into() };
        let respond = async {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(theirs.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
            let accept = crate::websocket::upgrade::accept_value(key);
            let response = format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Accept: {accept}\r\n\r\n"
            );
            theirs.write_all(response.as_bytes()).await.unwrap();
        };
        let (stream, ()) = tokio::join!(connect(ours, &address, &[]), respond);
        (KeepAlive::new(stream.unwrap(), INTERVAL), theirs)
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_stream_pings_once_per_interval() {
        let (mut stream, mut theirs) = connected().await;
        let start = Instant::now();
        let pings = async {
            for count in 1..=3 {
                let mut frame = [0; 6];
                theirs.read_exact(&mut frame).await.unwrap();
                assert_eq!(frame[0], PING);
                assert_eq!(start.elapsed(), INTERVAL * count);
            }
        };
        let mut byte = [0];
        tokio::select! {
            () = pings => {}
            read = stream.read(&mut byte) => panic!("the peer sent nothing, but a read returned {read:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_postpones_the_ping() {
        let (mut stream, mut theirs) = connected().await;
        let start = Instant::now();
        let mut byte = [0];
        let idle = tokio::time::timeout(INTERVAL / 2, stream.read(&mut byte)).await;
        assert!(idle.is_err(), "the peer sent nothing, but a read returned");
        stream.write_all(b"x").await.unwrap();
        let mut data = [0; 7];
        theirs.read_exact(&mut data).await.unwrap();
        assert_ne!(data[0], PING);
        let ping = async {
            let mut frame = [0; 6];
            theirs.read_exact(&mut frame).await.unwrap();
            assert_eq!((frame[0], start.elapsed()), (PING, INTERVAL * 3 / 2));
        };
        tokio::select! {
            () = ping => {}
            read = stream.read(&mut byte) => panic!("the peer sent nothing, but a read returned {read:?}"),
        }
    }
}
