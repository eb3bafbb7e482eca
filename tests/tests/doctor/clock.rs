//! This host's clock, as the kernel knows it. That is the same for the whole host, so strace gives the kernel's answers here.

use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::strace::strace;
use cofferdam_tests::tools::Tool;

use super::examined::{Examined, doctor, examine_with, prepared, sound};
use super::host::copy_environment;

/// The state of a clock that is synchronised, and of one that is not, as adjtimex(2) returns it.
const TIME_OK: &str = "retval=0";
const TIME_ERROR: &str = "retval=5";

/// `doctor` of a world without `[vault]`, for which adjtimex(2) ends like this.
#[track_caller]
fn examine_with_clock(answer: &str) -> Option<Examined> {
    let world = prepared(sound());
    let inner = doctor(&world);
    let mut through = strace()?;
    let inject = format!("inject=adjtimex,clock_adjtime:{answer}");
    through.args(["-f", "-o", "/dev/null", "-e", "trace=adjtimex,clock_adjtime", "-e", &inject]);
    through.arg(inner.get_program()).args(inner.get_args()).arg("--no-servers").env_clear();
    copy_environment(&inner, &mut through);
    Some(examine_with(&world, through))
}

#[test]
fn a_clock_that_nothing_synchronises_is_a_warning_also_without_vault() {
    let Some(examined) = examine_with_clock(TIME_ERROR) else { return };
    let next = "timedatectl set-ntp true";
    examined.assert_warning("clock-not-synchronised", "clock", "no program synchronises it", next);
    examined.assert_no_error();
    let Some(examined) = examine_with_clock(TIME_OK) else { return };
    examined.assert_good("clock-ok", "clock", "it is synchronised");
}

#[test]
fn a_clock_of_which_the_kernel_does_not_tell_is_said_not_to_be_compared() {
    let Some(examined) = examine_with_clock("error=EPERM") else { return };
    examined.assert_good("clock-not-compared", "clock", "not compared: the kernel does not tell");
    examined.assert_no_error();
}

/// Without strace in between: what is reported is what the kernel says to another program.
#[test]
fn the_state_of_the_clock_is_the_kernels_own() {
    let Some(python) = Tool::Python.path() else { return };
    let world = prepared(sound());
    // On 64-bit machines `struct timex` has 208 bytes, and its `status` begins at the 40th.
    let script = "import ctypes, struct\n\
                  timex = ctypes.create_string_buffer(256)\n\
                  state = ctypes.CDLL(None).adjtimex(timex)\n\
                  status, = struct.unpack_from('i', timex, 40)\n\
                  print('clock-not-synchronised' if state == 5 or status & 0x40 else 'clock-ok' if state >= 0 else 'clock-not-compared')";
    let mut python = command(python);
    python.args(["-c", script]);
    let output = output_of(python, "adjtimex(2) in Python");
    let expected = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let mut doctor = doctor(&world);
    doctor.arg("--no-servers");
    let examined = examine_with(&world, doctor);
    assert_eq!(examined.with_code(&expected).len(), 1, "{expected}: {:#}", examined.report);
}
