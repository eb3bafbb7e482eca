//! This host's clock, as the kernel knows it: whether a program keeps it right.
//!
//! What must stay true: where that cannot be told, this is said, so that no finding about the clock is not taken for a good one.

use std::io;

use cofferdam_process::{KernelClock, kernel_clock};

use super::finding::Findings;

const ABOUT: &str = "clock";

pub(super) fn probe(findings: &mut Findings) {
    report(kernel_clock(), findings);
}

fn report(state: io::Result<KernelClock>, findings: &mut Findings) {
    match state {
        Ok(KernelClock::Synchronised) => {
            findings.good("clock-ok", ABOUT, "the kernel says that it is synchronised");
        }
        Ok(KernelClock::NotSynchronised) => {
            let what = "the kernel says that no program synchronises it";
            let next = "`timedatectl set-ntp true`, then `timedatectl status`; in a container on its host. In a virtual machine whose clock the host of the machine sets, compare `date -u` with a clock that is right";
            findings.warning("clock-not-synchronised", ABOUT, what, next);
        }
        Err(error) => {
            let what = format!("not compared: the kernel does not tell whether it is synchronised ({error})");
            findings.good("clock-not-compared", ABOUT, what);
        }
    }
}
