//! A pipe of text for platforms that decode a command's output as UTF-8: every line is base64 (RFC 4648 §4, padded).
//!
//! A line may end after any group of four symbols. Must stay true: nothing but ASCII is written; received text is decoded
//! as it arrives, so that no line is buffered; text that is not base64 ends the pipe.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Any stream, as lines of base64.
#[derive(Debug)]
pub(super) struct TextPipe<S> {
    stream: S,
    decoder: Decoder,
    /// Decoded bytes, of which the first `consumed` were read.
    received: Vec<u8>,
    consumed: usize,
    /// Encoded text, of which the first `written` bytes are sent.
    encoded: Vec<u8>,
    written: usize,
}

/// Bytes that are encoded in one line, so that the text of a line stays under 16 KiB.
const MAX_LINE_BYTES: usize = 12 * 1024 - 3;
/// Characters that are read at a time.
const READ_BYTES: usize = 16 * 1024;

impl<S> TextPipe<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            decoder: Decoder::default(),
            received: Vec::new(),
            consumed: 0,
            encoded: Vec::new(),
            written: 0,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TextPipe<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.consumed == this.received.len() {
            let mut text = [0; READ_BYTES];
            let mut space = ReadBuf::new(&mut text);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut space))?;
            this.received.clear();
            this.consumed = 0;
            if space.filled().is_empty() {
                return Poll::Ready(this.decoder.finish());
            }
            this.decoder.decode(space.filled(), &mut this.received)?;
        }
        let count = buffer.remaining().min(this.received.len() - this.consumed);
        buffer.put_slice(&this.received[this.consumed..this.consumed + count]);
        this.consumed += count;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> TextPipe<S> {
    /// Sends the encoded text.
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.encoded.len() {
            let rest = &self.encoded[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        self.encoded.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TextPipe<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_drain(context))?;
        let count = bytes.len().min(MAX_LINE_BYTES);
        encode_line(&bytes[..count], &mut self.encoded);
        // Text that does not fit now is sent by the next write or flush.
        match self.poll_drain(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending | Poll::Ready(Ok(())) => Poll::Ready(Ok(count)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn encode_line(bytes: &[u8], text: &mut Vec<u8>) {
    for group in bytes.chunks(3) {
        let mut padded = [0; 4];
        padded[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(padded);
        for place in 0..4 {
            let symbol = ALPHABET[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= group.len() { symbol } else { b'=' });
        }
    }
    text.push(b'\n');
}

/// Decodes base64, in groups of four symbols.
#[derive(Debug, Default)]
struct Decoder {
    bits: u32,
    /// Symbols of the current group, padding included.
    symbols: usize,
    padding: usize,
}

impl Decoder {
    fn decode(&mut self, text: &[u8], bytes: &mut Vec<u8>) -> io::Result<()> {
        for symbol in text {
            let value = match symbol {
                b'\r' | b'\n' if self.symbols == 0 => continue,
                b'=' if self.symbols >= 2 => {
                    self.padding += 1;
                    0
                }
                b'A'..=b'Z' => symbol - b'A',
                b'a'..=b'z' => symbol - b'a' + 26,
                b'0'..=b'9' => symbol - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return Err(not_base64()),
            };
            if self.padding > 0 && *symbol != b'=' {
                return Err(not_base64());
            }
            self.bits = self.bits << 6 | u32::from(value);
            self.symbols += 1;
            if self.symbols == 4 {
                bytes.extend_from_slice(&self.bits.to_be_bytes()[1..4 - self.padding]);
                *self = Self::default();
            }
        }
        Ok(())
    }

    /// Fails if the input ended within a group.
    fn finish(&self) -> io::Result<()> {
        if self.symbols == 0 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

fn not_base64() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a line is not base64: with --text both ends must write base64 lines",
    )
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex, split};

    use super::*;

    fn encoded(bytes: &[u8]) -> String {
        let mut text = Vec::new();
        encode_line(bytes, &mut text);
        String::from_utf8(text).unwrap()
    }

    fn decoded(text: &str) -> io::Result<Vec<u8>> {
        let (mut decoder, mut bytes) = (Decoder::default(), Vec::new());
        decoder.decode(text.as_bytes(), &mut bytes)?;
        decoder.finish()?;
        Ok(bytes)
    }

    /// The examples of RFC 4648 §10.
    #[test]
    fn lines_are_encoded_and_decoded_as_base64() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ] {
            assert_eq!(encoded(bytes.as_bytes()), format!("{text}\n"));
            assert_eq!(decoded(text).unwrap(), bytes.as_bytes());
        }
        assert_eq!(decoded("Zg==\r\n\nZm8=\n").unwrap(), b"ffo", "line ends between groups are skipped");
        for text in ["Zg=", "Zg", "Z===", "=Zg=", "Zg=g", "Zm 9v", "Zm\n9v", "Zm-_", "é"] {
            assert!(decoded(text).is_err(), "{text:?}");
        }
    }

    #[tokio::test]
    async fn everything_passes_both_ways_through_a_tiny_pipe() {
        let (one, other) = duplex(7);
        let ((mut read_one, mut write_one), (mut read_other, mut write_other)) =
            (split(TextPipe::new(one)), split(TextPipe::new(other)));
        let sent: Vec<u8> = (0..200_000u32).map(|at| (at / 7) as u8).collect();
        let (mut here, mut there) = (vec![0; sent.len()], vec![0; sent.len()]);
        let send_one = async {
            write_one.write_all(&sent).await.unwrap();
            write_one.flush().await.unwrap();
        };
        let send_other = async {
            write_other.write_all(&sent).await.unwrap();
            write_other.flush().await.unwrap();
        };
        let (_, _, first, second) = tokio::join!(
            send_one,
            send_other,
            read_one.read_exact(&mut here),
            read_other.read_exact(&mut there)
        );
        first.and(second).unwrap();
        assert!(here == sent && there == sent);
    }
}
