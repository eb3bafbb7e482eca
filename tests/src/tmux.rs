//! A command on a terminal of tmux, whose screen can be captured.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::deadline::{PATIENCE, holds_within};
use crate::process::{command, output_of};
use crate::tools::Tool;

/// What a captured screen contains.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Capture {
    Text,
    /// With the codes of colours.
    WithColours,
}

/// A tmux server of its own, with one window. On drop it is ended, and what runs in it.
pub struct Tmux {
    program: PathBuf,
    directory: TempDir,
}

impl Tmux {
    /// Runs the command in a window of this size, and keeps the window when the command ends. `None` if tmux is missing and may be.
    #[track_caller]
    pub fn run(rows: u16, columns: u16, run: &Command) -> Option<Self> {
        let program = Tool::Tmux.path()?;
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let tmux = Self { program, directory };
        let mut start = tmux.command();
        start.args(["new-session", "-d", "-x", &columns.to_string(), "-y", &rows.to_string()]);
        for (name, value) in run.get_envs() {
            if let Some(value) = value {
                let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
                start.arg("-e").arg(format!("{name}={value}"));
            }
        }
        if let Some(directory) = run.get_current_dir() {
            start.arg("-c").arg(directory);
        }
        // The shell keeps the window open.
        start.args(["sh", "-c", "\"$@\"; exec cat", "sh"]).arg(run.get_program()).args(run.get_args());
        succeed(start);
        Some(tmux)
    }

    /// Waits until the screen contains all these texts.
    #[track_caller]
    pub fn wait_for(&self, texts: &[&str]) {
        let is_shown = || texts.iter().all(|text| self.screen(Capture::Text).contains(text));
        if !holds_within(PATIENCE, is_shown) {
            panic!("{texts:?} are not on the screen:\n{}", self.screen(Capture::Text));
        }
    }

    /// The screen without empty lines at its end.
    #[track_caller]
    pub fn screen(&self, capture: Capture) -> String {
        let mut print = self.command();
        print.args(["capture-pane", "-p"]);
        if capture == Capture::WithColours {
            print.arg("-e");
        }
        let screen = succeed(print);
        let lines: Vec<&str> = screen.lines().map(str::trim_end).collect();
        lines.join("\n").trim_end().to_owned() + "\n"
    }

    pub fn press(&self, key: &str) {
        let mut send = self.command();
        send.args(["send-keys", key]);
        succeed(send);
    }

    pub fn resize(&self, rows: u16, columns: u16) {
        let mut resize = self.command();
        resize.args(["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
        succeed(resize);
    }

    fn command(&self) -> Command {
        let mut tmux = command(&self.program);
        let libraries = self.program.parent().and_then(|bin| bin.parent()).expect("it is in usr/bin");
        let libraries = libraries.join(format!("lib/{}-linux-gnu", std::env::consts::ARCH));
        tmux.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        tmux.env("LD_LIBRARY_PATH", libraries).env("LC_ALL", "C.UTF-8").env("TERM", "xterm-256color");
        tmux.arg("-S").arg(self.directory.path().join("socket")).args(["-f", "/dev/null", "-u"]);
        tmux
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let mut kill = self.command();
        kill.arg("kill-server");
        let _ = kill.output();
    }
}

#[track_caller]
fn succeed(tmux: Command) -> String {
    let output = output_of(tmux, "tmux");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
