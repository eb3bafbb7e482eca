//! Inspects a sandbox from outside, through `/proc`: its files, its networks, and whether a secret is anywhere in it.
//!
//! Memory is searched too, so that a secret which arrived without being shown to the harness is found.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::shim;
use crate::encodings::{assert_absent, contains};
use crate::process::{children_of, command_line, process_ids, read};

/// A process in a sandbox, named by the host's id.
#[derive(Clone, Copy, Debug)]
pub struct Inside {
    process: u32,
}

/// Kernel file systems, which hold no files of the sandbox.
const KERNEL_FILE_SYSTEMS: [&str; 3] = ["/dev", "/proc", "/sys"];
const EMPTY: [u8; 4096] = [0; 4096];
/// Larger regions are skipped: no process here has so much data in one region.
const LARGEST_REGION: u64 = 256 * 1024 * 1024;

impl Inside {
    pub fn of(process: u32) -> Self {
        Self { process }
    }

    /// Follows single children down to the last one, which is the shim if each launcher has one child.
    pub fn innermost(started: u32) -> Self {
        let mut process = started;
        while let [child] = children_of(process)[..] {
            process = child;
        }
        Self { process }
    }

    /// The shim, searched among all descendants, for launchers that have other children too.
    ///
    /// # Panics
    /// When no descendant is a shim.
    #[track_caller]
    pub fn shim_below(started: u32) -> Self {
        let mut pending = vec![started];
        while let Some(process) = pending.pop() {
            let program = std::fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
            if program.file_name() == shim().file_name() {
                return Self { process };
            }
            pending.extend(children_of(process));
        }
        panic!("there is no shim below process {started}")
    }

    /// The processes in the same mount namespace, including this one.
    pub fn companions(&self) -> Vec<u32> {
        let tree = |id: u32| std::fs::read_link(format!("/proc/{id}/ns/mnt")).ok();
        let Some(own_tree) = tree(self.process) else { return Vec::new() };
        process_ids().filter(|id| tree(*id).as_ref() == Some(&own_tree)).collect()
    }

    /// The path of every file that it can see, without directories and kernel file systems.
    pub fn files(&self) -> BTreeSet<String> {
        let root = PathBuf::from(format!("/proc/{}/root", self.process));
        let (mut found, mut pending) = (BTreeSet::new(), vec![root.clone()]);
        while let Some(directory) = pending.pop() {
            for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
                let path = entry.path();
                let inside = format!("/{}", path.strip_prefix(&root).expect("it is below").display());
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() && !KERNEL_FILE_SYSTEMS.contains(&inside.as_str()) => {
                        pending.push(path)
                    }
                    Ok(kind) if kind.is_dir() => {}
                    _ => _ = found.insert(inside),
                }
            }
        }
        found
    }

    /// The network interfaces of the process.
    pub fn interfaces(&self) -> BTreeSet<String> {
        let text = String::from_utf8_lossy(&self.proc("net/dev")).into_owned();
        text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
    }

    /// Asserts that no encoding of a secret is in its arguments, its environment or its memory.
    #[track_caller]
    pub fn assert_without(&self, secret: &str) {
        let name = command_line(self.process);
        assert_absent("the arguments", name.as_bytes(), secret);
        assert_absent("the environment", &self.proc("environ"), secret);
        let memory = self.memory();
        assert!(!memory.is_empty(), "the memory of {name} cannot be read");
        assert_absent(&format!("the memory of {name}"), &memory, secret);
    }

    /// Asserts the same about the content of every file that it can see. Only for a sandbox with its own file tree.
    #[track_caller]
    pub fn assert_files_without(&self, secret: &str) {
        for file in self.files() {
            let path = Path::new(&format!("/proc/{}/root", self.process)).join(&file[1..]);
            if path.metadata().is_ok_and(|metadata| metadata.is_file()) {
                assert_absent(&file, &read(&path), secret);
            }
        }
    }

    /// Whether a text is in its memory: a test checks with a known text that the search would find a secret.
    #[track_caller]
    pub fn memory_contains(&self, text: &str) -> bool {
        contains(&self.memory(), text.as_bytes())
    }

    /// All its readable memory, without program code, very large regions and empty pages.
    #[track_caller]
    fn memory(&self) -> Vec<u8> {
        let maps = String::from_utf8_lossy(&self.proc("maps")).into_owned();
        let memory = File::open(format!("/proc/{}/mem", self.process))
            .unwrap_or_else(|error| panic!("cannot read the memory of process {}: {error}", self.process));
        let mut all = Vec::new();
        for (begin, end) in maps.lines().filter_map(region) {
            let mut region = vec![0; usize::try_from(end - begin).expect("it is below the largest region")];
            // Some regions cannot be read, such as those of the kernel.
            if memory.read_exact_at(&mut region, begin).is_ok() {
                all.extend(region.chunks(EMPTY.len()).filter(|page| *page != EMPTY).flatten());
            }
        }
        all
    }

    fn proc(&self, file: &str) -> Vec<u8> {
        read(Path::new(&format!("/proc/{}/{file}", self.process)))
    }
}

/// The bounds of a region from its line in `maps`, if it can be read, is not too large, and is not program code.
fn region(line: &str) -> Option<(u64, u64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (begin, end) = words.first()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (begin, end) = (number(begin)?, number(end)?);
    let permissions = words.get(1)?;
    let is_program = !permissions.contains('w')
        && words.get(5).is_some_and(|path| path.starts_with('/') && !path.starts_with("/memfd"));
    let is_searched = permissions.starts_with('r') && end - begin <= LARGEST_REGION && !is_program;
    is_searched.then_some((begin, end))
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::process::Stdio;

    use super::*;
    use crate::process::{Running, command};

    #[test]
    fn a_secret_in_memory_is_found() {
        let secret = "stored-in-a-variable-of-the-shell";
        let mut shell = command("/bin/sh");
        shell.args(["-c", "read -r LINE; echo got it; read -r END"]);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = Running::spawn(shell, "sh");
        let inside = Inside::of(shell.id());
        inside.assert_without(secret);
        let mut input = shell.child.stdin.take().expect("it was asked for");
        std::io::Write::write_all(&mut input, format!("{secret}\n").as_bytes()).expect("it reads");
        let mut response = [0; 7];
        let output = shell.child.stdout.as_mut().expect("it was asked for");
        std::io::Read::read_exact(output, &mut response).expect("the shell responds");
        let search = catch_unwind(AssertUnwindSafe(|| inside.assert_without(secret)));
        assert!(search.is_err(), "the secret in memory was not found");
    }

    #[test]
    fn regions_are_read_from_maps() {
        assert_eq!(region("1000-3000 r--p 00000000 00:00 0    [heap]"), Some((0x1000, 0x3000)));
        assert_eq!(region("1000-3000 r--p 00000000 00:00 7    /memfd:runsc"), Some((0x1000, 0x3000)));
        assert_eq!(region("1000-3000 rw-p 00000000 00:00 7    /usr/bin/x"), Some((0x1000, 0x3000)));
        assert_eq!(region("1000-3000 r-xp 00000000 00:00 7    /usr/bin/x"), None);
        assert_eq!(region("1000-3000 ---p 00000000 00:00 0"), None);
        assert_eq!(region("0-ffffffffffff rw-p 00000000 00:00 0"), None);
    }
}
