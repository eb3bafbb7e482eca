//! Takes from a process what it does not need: capabilities, resources, files, system calls.
//!
//! What must stay true: everything here binds all descendants of the process and cannot be undone by them.

use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};
use nix::errno::Errno;
use nix::libc::sock_filter;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits, set_no_new_privs,
};

use super::{FileAccess, FileRule, Instruction, Limit};
use crate::os;

/// The newest version of Landlock whose rights are named here; an older kernel checks those that it knows.
const LANDLOCK: ABI = ABI::V6;

/// Drops every capability, also those that a program could have, and forbids the gain of new ones.
pub(super) fn drop_capabilities() -> Result<(), Errno> {
    let errno = |error: rustix::io::Errno| Errno::from_raw(error.raw_os_error());
    // The user `root` gets no capability by executing a program.
    let root_is_ordinary = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED;
    set_capabilities_secure_bits(root_is_ordinary).map_err(errno)?;
    for capability in CapabilitySet::all().iter() {
        match remove_capability_from_bounding_set(capability) {
            // An older kernel does not have it.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(errno(error)),
        }
    }
    clear_ambient_capability_set().map_err(errno)?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .map_err(errno)?;
    set_no_new_privs(true).map_err(errno)
}

pub(super) fn set_limits(limits: &[(Limit, u64)]) -> Result<(), Errno> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    for &(limit, value) in limits {
        let resource = match limit {
            Limit::Data => Resource::RLIMIT_DATA,
            Limit::Files => Resource::RLIMIT_NOFILE,
            Limit::LockedMemory => Resource::RLIMIT_MEMLOCK,
            Limit::Processes => Resource::RLIMIT_NPROC,
        };
        let (_, most) = nix::sys::resource::getrlimit(resource)?;
        let value = value.min(most);
        setrlimit(resource, value, value)?;
    }
    Ok(())
}

/// Restricts the process to these files, with what the kernel's version of Landlock can check. A path that does not exist is
/// left out.
pub(super) fn restrict_files(rules: &[FileRule]) -> Result<(), Errno> {
    if rules.is_empty() {
        return Ok(());
    }
    restrict(rules).map_err(|error| {
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(current) = cause {
            let code = current.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
            if let Some(code) = code {
                return Errno::from_raw(code);
            }
            cause = current.source();
        }
        Errno::EINVAL
    })
}

fn restrict(rules: &[FileRule]) -> Result<(), RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?;
    for rule in rules {
        let Ok(path) = PathFd::new(&rule.path) else { continue };
        ruleset = ruleset.add_rule(PathBeneath::new(path, rights(rule.access)))?;
    }
    ruleset.restrict_self()?;
    Ok(())
}

fn rights(access: FileAccess) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = AccessFs::from_all(LANDLOCK) & !AccessFs::Execute;
    match access {
        FileAccess::Read => read,
        FileAccess::ReadExecute => read | AccessFs::Execute,
        FileAccess::Write => write,
        FileAccess::WriteExecute => write | AccessFs::Execute,
    }
}

pub(super) fn filter_system_calls(instructions: &[Instruction]) -> Result<(), Errno> {
    if instructions.is_empty() {
        return Ok(());
    }
    os::install_filter(&program(instructions))
}

/// Lets system calls of this process and its descendants wait until the sidecar has seen them.
pub(super) fn report_system_calls(
    instructions: &[Instruction],
    sidecar: Option<&UnixStream>,
) -> Result<(), Errno> {
    if instructions.is_empty() {
        return Ok(());
    }
    let sidecar = sidecar.ok_or(Errno::ENOTCONN)?;
    let listener = os::install_notifying_filter(&program(instructions))?;
    let descriptors = [listener.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(sidecar.as_raw_fd(), &[IoSlice::new(&[0])], &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

fn program(instructions: &[Instruction]) -> Vec<sock_filter> {
    instructions.iter().map(|&Instruction(code, jt, jf, k)| sock_filter { code, jt, jf, k }).collect()
}
