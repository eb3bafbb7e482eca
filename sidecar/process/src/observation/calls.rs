//! The system calls that name a path, and where in their arguments.

use std::io;

use nix::libc;

use super::Wanted;

/// A path among the arguments of a call.
pub(super) struct Place {
    /// The argument with the directory that a relative path starts at; `None`: the working directory.
    pub(super) directory: Option<usize>,
    pub(super) path: usize,
    pub(super) wanted: WantedBy,
}

/// How a call says what it wants.
#[derive(Clone, Copy)]
pub(super) enum WantedBy {
    Call(Wanted),
    /// By the mode of `access` in this argument.
    Mode(usize),
    /// By the flags of `open` in this argument.
    Flags(usize),
    /// By the flags of `open` at the address in this argument.
    FlagsAt(usize),
}

use Wanted::{Execute, Read, Write};
use WantedBy::{Call, Flags, FlagsAt, Mode};

/// A call with one path that starts at the directory in the first argument.
const fn at(wanted: WantedBy) -> Place {
    Place { directory: Some(0), path: 1, wanted }
}

/// A call with a path in this argument, which starts at the working directory.
const fn plain(path: usize, wanted: WantedBy) -> Place {
    Place { directory: None, path, wanted }
}

const CALLS: &[(i64, &[Place])] = &[
    (libc::SYS_chdir, &[plain(0, Call(Read))]),
    (libc::SYS_execve, &[plain(0, Call(Execute))]),
    (libc::SYS_execveat, &[at(Call(Execute))]),
    (libc::SYS_faccessat, &[at(Mode(2))]),
    (libc::SYS_faccessat2, &[at(Mode(2))]),
    (libc::SYS_linkat, &[Place { directory: Some(2), path: 3, wanted: Call(Write) }]),
    (libc::SYS_mkdirat, &[at(Call(Write))]),
    (libc::SYS_newfstatat, &[at(Call(Read))]),
    (libc::SYS_openat, &[at(Flags(2))]),
    (libc::SYS_openat2, &[at(FlagsAt(2))]),
    (libc::SYS_renameat, &[at(Call(Write)), Place { directory: Some(2), path: 3, wanted: Call(Write) }]),
    (libc::SYS_renameat2, &[at(Call(Write)), Place { directory: Some(2), path: 3, wanted: Call(Write) }]),
    (libc::SYS_statx, &[at(Call(Read))]),
    (libc::SYS_symlinkat, &[Place { directory: Some(1), path: 2, wanted: Call(Write) }]),
    (libc::SYS_truncate, &[plain(0, Call(Write))]),
    (libc::SYS_unlinkat, &[at(Call(Write))]),
];
/// Older forms, which later processors do not have.
#[cfg(target_arch = "x86_64")]
const OLDER_CALLS: &[(i64, &[Place])] = &[
    (libc::SYS_access, &[plain(0, Mode(1))]),
    (libc::SYS_creat, &[plain(0, Call(Write))]),
    (libc::SYS_link, &[plain(1, Call(Write))]),
    (libc::SYS_lstat, &[plain(0, Call(Read))]),
    (libc::SYS_mkdir, &[plain(0, Call(Write))]),
    (libc::SYS_open, &[plain(0, Flags(1))]),
    (libc::SYS_rename, &[plain(0, Call(Write)), plain(1, Call(Write))]),
    (libc::SYS_rmdir, &[plain(0, Call(Write))]),
    (libc::SYS_stat, &[plain(0, Call(Read))]),
    (libc::SYS_symlink, &[plain(1, Call(Write))]),
    (libc::SYS_unlink, &[plain(0, Call(Write))]),
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_CALLS: &[(i64, &[Place])] = &[];

/// The numbers of the calls that are observed, for the filter.
pub fn observed_calls() -> Vec<i64> {
    CALLS.iter().chain(OLDER_CALLS).map(|(number, _)| *number).collect()
}

pub(super) fn places(number: i64) -> &'static [Place] {
    let found = CALLS.iter().chain(OLDER_CALLS).find(|(other, _)| *other == number);
    found.map_or(&[], |(_, places)| places)
}

impl WantedBy {
    /// `argument` gives the arguments of the call, and `read` a number at an address of its process.
    pub(super) fn of(
        self,
        argument: impl Fn(usize) -> u64,
        read: impl FnOnce(u64) -> io::Result<u64>,
    ) -> io::Result<Wanted> {
        let flags = match self {
            Call(wanted) => return Ok(wanted),
            Mode(index) => {
                return Ok(match argument(index) & libc::W_OK as u64 {
                    0 => Read,
                    _ => Write,
                });
            }
            Flags(index) => argument(index),
            FlagsAt(index) => read(argument(index))?,
        };
        let writing = (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) as u64;
        Ok(match flags & writing {
            0 => Read,
            _ => Write,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_decide_what_an_open_wants() {
        let wanted = |wanted: WantedBy, value: i32| {
            let value = u64::try_from(value).unwrap();
            wanted.of(|_| value, |_| Ok(value)).unwrap()
        };
        for by in [Flags(2), FlagsAt(2)] {
            assert_eq!(wanted(by, libc::O_RDONLY | libc::O_CLOEXEC | libc::O_DIRECTORY), Read);
            for flag in [libc::O_WRONLY, libc::O_RDWR, libc::O_CREAT, libc::O_TRUNC] {
                assert_eq!(wanted(by, flag), Write);
            }
        }
        assert_eq!((wanted(Mode(1), libc::F_OK), wanted(Mode(1), libc::R_OK | libc::W_OK)), (Read, Write));
        assert_eq!(wanted(Call(Execute), 0), Execute);
    }

    #[test]
    fn each_call_is_in_the_table_once() {
        let numbers = observed_calls();
        for (index, number) in numbers.iter().enumerate() {
            assert!(!numbers[..index].contains(number), "{number}");
            assert!(!places(*number).is_empty());
        }
    }
}
