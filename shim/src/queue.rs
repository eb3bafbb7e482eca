//! Bytes that wait to be written.

use relay_proto::limits::MAX_IDLE_BUFFER;

/// A queue that is appended to at the back and consumed at the front. It frees its memory when it runs empty, except for
/// the buffer of a long line, which is retained for the next one until [`Self::free_spare`]: allocating it again costs more
/// than copying the line.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    bytes: Vec<u8>,
    /// How many of `bytes` were consumed.
    written: usize,
    /// Whether `bytes` began as a long line.
    began_long: bool,
    /// The buffer of the last long line.
    spare: Vec<u8>,
}

impl Queue {
    pub(crate) fn waiting(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.written == self.bytes.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// The buffer to append to.
    pub(crate) fn back(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a line and its end. A long line is not copied if the queue is empty.
    pub(crate) fn push_line(&mut self, mut line: Vec<u8>) {
        if self.is_empty() && line.len() > MAX_IDLE_BUFFER {
            line.push(b'\n');
            (self.bytes, self.written, self.began_long) = (line, 0, true);
            return;
        }
        self.bytes.reserve(line.len() + 1);
        self.bytes.extend_from_slice(&line);
        self.bytes.push(b'\n');
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.written += count;
        if self.is_empty() {
            self.clear();
        } else if self.written > MAX_IDLE_BUFFER && self.written > self.len() {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.written = 0;
        self.bytes.clear();
        let began_long = std::mem::take(&mut self.began_long);
        if self.bytes.capacity() > MAX_IDLE_BUFFER {
            let emptied = std::mem::take(&mut self.bytes);
            if began_long && emptied.capacity() <= MAX_SPARE {
                self.spare = emptied;
            }
        }
    }

    /// The buffer of the last long line, for reuse; its content does not matter.
    pub(crate) fn take_spare(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.spare)
    }

    /// Frees the spare buffer: there was no long line for a while.
    pub(crate) fn free_spare(&mut self) {
        self.spare = Vec::new();
    }
}

/// A larger buffer is freed at once.
const MAX_SPARE: usize = 2 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_and_memory_is_freed() {
        let mut queue = Queue::default();
        let bytes: Vec<u8> = (0..300_000u32).map(|at| at as u8).collect();
        queue.back().extend_from_slice(&bytes);
        let mut out = Vec::new();
        while !queue.is_empty() {
            let some = queue.waiting()[..queue.len().min(7000)].to_vec();
            out.extend_from_slice(&some);
            queue.consume(some.len());
        }
        assert_eq!(out, bytes);
        assert_eq!((queue.bytes.capacity(), queue.take_spare().capacity()), (0, 0));
    }

    #[test]
    fn a_long_line_is_copied_only_if_other_bytes_wait() {
        let mut queue = Queue::default();
        let mut long = vec![b'x'; 100_000];
        long.reserve(1);
        let location = long.as_ptr();
        queue.push_line(long.clone());
        queue.push_line(b"short".to_vec());
        assert_eq!(queue.waiting(), [long.as_slice(), b"\nshort\n"].concat());
        queue.consume(queue.len());
        queue.push_line(long);
        assert_eq!(queue.waiting().as_ptr(), location);
        assert_eq!(queue.waiting().last(), Some(&b'\n'));
        queue.consume(queue.len());
        assert_eq!(queue.bytes.capacity(), 0);
        let spare = queue.take_spare();
        assert_eq!(spare.as_ptr(), location, "the buffer can be reused");

        queue.push_line(vec![b'x'; MAX_SPARE + 1]);
        queue.consume(queue.len());
        assert_eq!(queue.take_spare().capacity(), 0, "a buffer of this size is freed");
    }
}
