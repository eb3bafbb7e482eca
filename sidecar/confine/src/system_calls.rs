//! The filter of system calls: what no MCP server needs, and what has been a way out of namespaces.
//!
//! Most refused calls fail with EPERM, as they would for a process without privileges. Those of which a program tries an older
//! form when the newer one is missing fail with ENOSYS.

use cofferdam_process::Instruction;
use nix::libc;

use crate::bpf::{Action, Program};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Calls with this number or a higher one are of kernels later than 6.18, or of the x32 ABI; they are unknown to this list.
const FIRST_UNKNOWN: u32 = 470;

/// Calls that libc does not name yet. Their numbers are the same for every processor.
const OPEN_TREE_ATTR: i64 = 467;
const STATMOUNT: i64 = 457;
const LISTMOUNT: i64 = 458;
const LSM_SET_SELF_ATTR: i64 = 460;

/// The flags of `clone` that make namespaces.
const NEW_NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
const TIOCLINUX: u32 = 0x541c;
/// `personality` with this value only asks.
const PERSONALITY_QUERY: u32 = 0xffff_ffff;
/// The kind of a socket without its flags.
const SOCKET_TYPE_MASK: u32 = 0xf;

/// What builds another view of files, or leaves the one that was built.
const MOUNTS: &[i64] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    STATMOUNT,
    LISTMOUNT,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
];
/// What reads or changes another process.
const OTHER_PROCESSES: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
];
/// Large parts of the kernel that servers do not use, in which ways out have been found again and again.
const KERNEL_SURFACE: &[i64] = &[
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_vmsplice,
    libc::SYS_remap_file_pages,
    libc::SYS_mbind,
    libc::SYS_set_mempolicy,
    libc::SYS_set_mempolicy_home_node,
    libc::SYS_memfd_secret,
    libc::SYS_lookup_dcookie,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    LSM_SET_SELF_ATTR,
];
/// What administers the host.
const HOST: &[i64] = &[
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    libc::SYS_nfsservctl,
];
/// Calls of old programs on this processor only.
#[cfg(target_arch = "x86_64")]
const PROCESSOR: &[i64] = &[
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_sysfs,
    libc::SYS_ustat,
];
#[cfg(target_arch = "aarch64")]
const PROCESSOR: &[i64] = &[];

/// The filter for every confined server.
pub(crate) fn filter() -> Vec<Instruction> {
    let refused = [MOUNTS, OTHER_PROCESSES, KERNEL_SURFACE, HOST, PROCESSOR].concat();
    let refused: Vec<u32> = refused.into_iter().map(number).collect();
    let mut program = Program::default();
    program.load_architecture();
    // A 32-bit call (`int 0x80`) has other numbers.
    program.unless_equal(ARCHITECTURE, Action::Kill);
    program.load_number();
    program.if_at_least(FIRST_UNKNOWN, Action::Fail(libc::ENOSYS));
    // Its flags are in memory, where a filter cannot see them; libraries then use `clone`.
    program.if_one_of(&[number(libc::SYS_clone3)], Action::Fail(libc::ENOSYS));
    program.if_one_of(&refused, Action::Fail(libc::EPERM));
    program.for_argument(number(libc::SYS_clone), 0, |program| {
        program.if_any_bit(NEW_NAMESPACES.cast_unsigned(), Action::Fail(libc::EPERM));
    });
    program.for_argument(number(libc::SYS_socket), 0, |program| {
        // Families that a network namespace does not confine (AF_VSOCK), and those that only administration needs.
        let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
        program.unless_one_of(&families.map(i32::cast_unsigned), Action::Fail(libc::EAFNOSUPPORT));
        program.if_one_of(&[libc::AF_UNIX.cast_unsigned()], Action::Allow);
        program.skip_unless_equal(libc::AF_NETLINK.cast_unsigned(), |program| {
            program.load_argument(2, u32::MAX);
            program.unless_equal(libc::NETLINK_ROUTE.cast_unsigned(), Action::Fail(libc::EPERM));
            program.end(Action::Allow);
        });
        program.load_argument(1, SOCKET_TYPE_MASK);
        program.if_one_of(&[libc::SOCK_RAW.cast_unsigned()], Action::Fail(libc::EPERM));
    });
    program.for_argument(number(libc::SYS_ioctl), 1, |program| {
        // They put characters into the input of a terminal.
        let terminal_input = [u32::try_from(libc::TIOCSTI).unwrap_or(u32::MAX), TIOCLINUX];
        program.if_one_of(&terminal_input, Action::Fail(libc::EPERM));
    });
    program.for_argument(number(libc::SYS_personality), 0, |program| {
        program.unless_one_of(&[0, PERSONALITY_QUERY], Action::Fail(libc::EPERM));
    });
    program.end(Action::Allow);
    program.finish()
}

/// The filter that lets the calls wait which name a path, for a server that is observed. What the other filter refuses stays
/// refused.
pub fn observed_calls() -> Vec<Instruction> {
    let observed: Vec<u32> = cofferdam_process::observed_calls().into_iter().map(number).collect();
    let mut program = Program::default();
    program.load_architecture();
    program.unless_equal(ARCHITECTURE, Action::Allow);
    program.load_number();
    program.if_one_of(&observed, Action::Notify);
    program.end(Action::Allow);
    program.finish()
}

fn number(call: i64) -> u32 {
    u32::try_from(call).expect("system calls have small positive numbers")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;

    fn failing(errno: i32) -> u32 {
        libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()
    }

    /// What the filter says of a call, by the rules of the kernel's own interpreter.
    fn verdict(architecture: u32, number: i64, arguments: [u32; 3]) -> u32 {
        let program = filter();
        let load = |offset: u32| match offset {
            0 => u32::try_from(number).expect("a number of a call"),
            4 => architecture,
            _ => arguments[(offset as usize - 16) / 8],
        };
        let (mut word, mut next) = (0, 0);
        loop {
            let Instruction(code, jump_true, jump_false, value) = program[next];
            next += 1;
            let holds = match code {
                0x20 => {
                    word = load(value);
                    continue;
                }
                0x54 => {
                    word &= value;
                    continue;
                }
                0x05 => {
                    next += value as usize;
                    continue;
                }
                0x06 => return value,
                0x15 => word == value,
                0x35 => word >= value,
                0x45 => word & value != 0,
                other => panic!("an unknown instruction {other:#x}"),
            };
            next += usize::from(if holds { jump_true } else { jump_false });
        }
    }

    fn of(number: i64, arguments: [i32; 3]) -> u32 {
        verdict(ARCHITECTURE, number, arguments.map(i32::cast_unsigned))
    }

    #[test]
    fn every_listed_call_is_refused_and_all_others_are_not() {
        let listed: BTreeSet<i64> =
            [MOUNTS, OTHER_PROCESSES, KERNEL_SURFACE, HOST, PROCESSOR].concat().into_iter().collect();
        // An IPv4 stream socket, which the rules about arguments allow.
        let harmless = [libc::AF_INET, libc::SOCK_STREAM, 0];
        for number in 0..i64::from(FIRST_UNKNOWN) {
            let expected = match number {
                _ if listed.contains(&number) => failing(libc::EPERM),
                libc::SYS_clone3 => failing(libc::ENOSYS),
                libc::SYS_personality => failing(libc::EPERM),
                _ => ALLOWED,
            };
            assert_eq!(of(number, harmless), expected, "call {number}");
        }
    }

    #[test]
    fn calls_of_another_architecture_and_unknown_ones_do_not_pass() {
        assert_eq!(verdict(0x4000_0003, 1, [0; 3]), libc::SECCOMP_RET_KILL_PROCESS);
        for number in [i64::from(FIRST_UNKNOWN), 0x4000_0000 | libc::SYS_ptrace, 0xffff_ffff] {
            assert_eq!(verdict(ARCHITECTURE, number, [0; 3]), failing(libc::ENOSYS), "{number:#x}");
        }
    }

    #[test]
    fn namespaces_raw_sockets_and_terminal_input_are_refused_by_argument() {
        let refused = failing(libc::EPERM);
        assert_eq!(of(libc::SYS_clone, [libc::CLONE_NEWUSER | libc::SIGCHLD, 0, 0]), refused);
        assert_eq!(of(libc::SYS_clone, [libc::CLONE_VM | libc::CLONE_THREAD, 0, 0]), ALLOWED);
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        for (arguments, expected) in [
            ([libc::AF_INET, libc::SOCK_RAW | flags, libc::IPPROTO_ICMP], refused),
            ([libc::AF_INET6, libc::SOCK_RAW, 0], refused),
            ([libc::AF_INET6, libc::SOCK_DGRAM | flags, 0], ALLOWED),
            ([libc::AF_UNIX, libc::SOCK_STREAM | flags, 0], ALLOWED),
            ([libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE], ALLOWED),
            ([libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER], refused),
            ([libc::AF_VSOCK, libc::SOCK_STREAM, 0], failing(libc::EAFNOSUPPORT)),
            ([libc::AF_PACKET, libc::SOCK_RAW, 0], failing(libc::EAFNOSUPPORT)),
        ] {
            assert_eq!(of(libc::SYS_socket, arguments), expected, "{arguments:?}");
        }
        let put_input = i32::try_from(libc::TIOCSTI).expect("a small number");
        assert_eq!(of(libc::SYS_ioctl, [0, put_input, 0]), refused);
        assert_eq!(of(libc::SYS_personality, [-1, 0, 0]), ALLOWED);
    }
}
