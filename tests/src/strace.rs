//! strace, which shows the system calls of a program, and changes their results.

use std::path::PathBuf;
use std::process::Command;

use crate::process::command;
use crate::tools::{cannot_run, on_path};

/// strace without arguments. `None` if it cannot trace here.
#[track_caller]
pub fn strace() -> Option<Command> {
    let strace = on_path("strace");
    let works = |strace: &PathBuf| {
        let tried = command(strace).args(["-o", "/dev/null", "true"]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    let Some(strace) = strace.filter(works) else {
        cannot_run("strace is not installed, or may not trace here");
        return None;
    };
    Some(command(strace))
}
