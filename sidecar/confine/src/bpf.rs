//! Assembles classic BPF programs for the kernel's filter of system calls.
//!
//! seccompiler was tried: it checks each argument and each number with several instructions (515 instead of some 120, twice
//! the time to install), and cannot refuse a range of numbers, which the calls of the x32 ABI and of later kernels need.

use cofferdam_process::Instruction;
use nix::libc;

const LOAD_WORD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const JUMP_IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;
const JUMP_ALWAYS: u16 = 0x05;
const AND: u16 = 0x54;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// What the kernel does with a system call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Action {
    Allow,
    Fail(i32),
    Kill,
    /// The call waits until the process that has the filter's listener lets it go on.
    Notify,
}

/// A program under construction. Each of its checks ends in an action or goes on with the next one.
#[derive(Debug, Default)]
pub(crate) struct Program(Vec<Instruction>);

impl Program {
    /// The word that the following checks compare is the processor architecture.
    pub(crate) fn load_architecture(&mut self) {
        self.push(LOAD_WORD, 0, 0, ARCHITECTURE);
    }

    /// The word that the following checks compare is the system call's number.
    pub(crate) fn load_number(&mut self) {
        self.push(LOAD_WORD, 0, 0, NUMBER);
    }

    /// Acts unless the word is this value.
    pub(crate) fn unless_equal(&mut self, value: u32, action: Action) {
        self.push(JUMP_IF_EQUAL, 1, 0, value);
        self.end(action);
    }

    pub(crate) fn if_at_least(&mut self, value: u32, action: Action) {
        self.push(JUMP_IF_AT_LEAST, 0, 1, value);
        self.end(action);
    }

    /// Acts if the word is one of these values. At most 254.
    pub(crate) fn if_one_of(&mut self, values: &[u32], action: Action) {
        for (index, &value) in values.iter().enumerate() {
            let rest = u8::try_from(values.len() - index).expect("at most 254 values");
            // After the last comparison comes a jump over the action.
            self.push(JUMP_IF_EQUAL, rest, 0, value);
        }
        self.push(JUMP_ALWAYS, 0, 0, 1);
        self.end(action);
    }

    /// For one system call, acts by the low word of an argument. `decide` adds the checks of that word; the call is allowed if
    /// none of them acts. The number is loaded before and after.
    pub(crate) fn for_argument(&mut self, number: u32, argument: u32, decide: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        inner.push(LOAD_WORD, 0, 0, ARGUMENTS + 8 * argument);
        decide(&mut inner);
        inner.end(Action::Allow);
        let skipped = u8::try_from(inner.0.len()).expect("at most 255 instructions for one system call");
        self.push(JUMP_IF_EQUAL, 0, skipped, number);
        self.0.extend(inner.0);
    }

    /// Acts unless the word is one of these values.
    pub(crate) fn unless_one_of(&mut self, values: &[u32], action: Action) {
        for (index, &value) in values.iter().enumerate() {
            let rest = u8::try_from(values.len() - index).expect("at most 254 values");
            self.push(JUMP_IF_EQUAL, rest, 0, value);
        }
        self.end(action);
    }

    /// Runs the checks of `decide` only if the word is this value. They have to end in an action.
    pub(crate) fn skip_unless_equal(&mut self, value: u32, decide: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        decide(&mut inner);
        let skipped = u8::try_from(inner.0.len()).expect("at most 255 instructions");
        self.push(JUMP_IF_EQUAL, 0, skipped, value);
        self.0.extend(inner.0);
    }

    pub(crate) fn if_any_bit(&mut self, bits: u32, action: Action) {
        self.push(JUMP_IF_ANY_BIT, 0, 1, bits);
        self.end(action);
    }

    /// Loads an argument within [`Self::for_argument`].
    pub(crate) fn load_argument(&mut self, argument: u32, mask: u32) {
        self.push(LOAD_WORD, 0, 0, ARGUMENTS + 8 * argument);
        self.push(AND, 0, 0, mask);
    }

    pub(crate) fn end(&mut self, action: Action) {
        let value = match action {
            Action::Allow => libc::SECCOMP_RET_ALLOW,
            Action::Fail(errno) => libc::SECCOMP_RET_ERRNO | errno.cast_unsigned(),
            Action::Kill => libc::SECCOMP_RET_KILL_PROCESS,
            Action::Notify => libc::SECCOMP_RET_USER_NOTIF,
        };
        self.push(RETURN, 0, 0, value);
    }

    pub(crate) fn finish(self) -> Vec<Instruction> {
        self.0
    }

    fn push(&mut self, code: u16, jump_true: u8, jump_false: u8, value: u32) {
        self.0.push(Instruction(code, jump_true, jump_false, value));
    }
}
