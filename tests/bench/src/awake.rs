//! Keeps the cores from sleeping while something is measured.
//!
//! Waking an idle core takes longer than a call, and would be added to the times of slow contenders. So each core has
//! one spinner: a busy loop in the idle scheduling class, which any other process preempts at once.

use std::process::Stdio;
use std::thread::available_parallelism;

use crate::bench_error::BenchError;
use crate::process::{Running, command, on_path};

/// The spinners, which end when this is dropped.
#[derive(Debug)]
pub(crate) struct Spinners {
    _spinners: Vec<Running>,
}

impl Spinners {
    pub(crate) fn start() -> Result<Self, BenchError> {
        let this_program = std::env::current_exe()
            .map_err(|source| BenchError::Start { what: "a spinner".into(), source })?;
        let spinner = || {
            let mut spinner = match on_path("chrt") {
                Some(chrt) => {
                    let mut spinner = command(chrt);
                    spinner.args(["--idle", "0"]);
                    spinner
                }
                None => {
                    let mut spinner = command("nice");
                    spinner.args(["-n", "19"]);
                    spinner
                }
            };
            spinner
                .arg(&this_program)
                .arg("spin")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            Running::spawn(spinner, "a spinner")
        };
        let cores = available_parallelism().map_or(1, usize::from);
        Ok(Self { _spinners: (0..cores).map(|_| spinner()).collect::<Result<_, _>>()? })
    }
}

/// Runs a busy loop until the parent process exits.
pub(crate) fn spin() {
    let parent = nix::unistd::getppid();
    while nix::unistd::getppid() == parent {
        for _ in 0..1_000_000 {
            std::hint::spin_loop();
        }
    }
}
