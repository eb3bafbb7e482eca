//! Keeps the cores from sleeping while something is measured.
//!
//! Waking a sleeping core takes as long as a small call, and how often that is needed depends on the contender. So the
//! benchmark tells the kernel, through `/dev/cpu_dma_latency`, to let no core sleep: idle cores then poll for work. Only
//! root may do that. Otherwise the cores sleep as usual, and the report says so.
//!
//! What must stay true: nothing of the benchmark runs on an idle core. A busy loop there, even in the idle scheduling
//! class, delays contenders: traces showed the scheduler running the loop, until the next wake-up, while a preempted
//! thread of a contender could run.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Whether the cores may sleep while something is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CoreSleep {
    Allowed,
    Prevented,
}

/// The request not to let a core sleep, if the kernel accepted it. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct AwakeCores {
    request: Option<File>,
}

impl AwakeCores {
    pub(crate) fn hold() -> Self {
        let request = request_at(Path::new(REQUESTS));
        if let Err(error) = &request {
            eprintln!("bench: the cores may sleep, so times include waking them: {REQUESTS}: {error}");
        }
        Self { request: request.ok() }
    }

    pub(crate) fn sleep(&self) -> CoreSleep {
        match self.request {
            Some(_) => CoreSleep::Prevented,
            None => CoreSleep::Allowed,
        }
    }
}

/// A request is a 32-bit number of microseconds in which a core must be awake; it holds while the file is open.
const REQUESTS: &str = "/dev/cpu_dma_latency";
const AT_ONCE: [u8; 4] = 0_i32.to_ne_bytes();

fn request_at(path: &Path) -> io::Result<File> {
    let mut request = OpenOptions::new().write(true).open(path)?;
    request.write_all(&AT_ONCE)?;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_no_microsecond_and_needs_the_kernels_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let request = request_at(file.path()).ok();
        assert_eq!(std::fs::read(file.path()).unwrap(), [0; 4]);
        assert_eq!(AwakeCores { request }.sleep(), CoreSleep::Prevented);
        let request = request_at(&file.path().join("missing")).ok();
        assert_eq!(AwakeCores { request }.sleep(), CoreSleep::Allowed);
    }
}
