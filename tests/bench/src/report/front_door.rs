//! The report's section about installing, importing and the sizes of what is published.

use std::fmt::Write;

use super::Measurement;
use super::units::{megabytes, time};
use crate::front_door::{FrontDoorResults, SERVERS};

pub(super) fn section(trial: &Measurement<FrontDoorResults>, out: &mut String) {
    let Some(found) = trial.results() else { return };
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "\n## Installing and importing\n\n| what | time |\n|---|--:|\n\
         | `install.sh` from a directory | {} |\n\
         | `install.sh` and `cofferdam demo` | {} |\n\
         | `cofferdam import` of a file with {SERVERS} servers, each with a token | {} |\n\n\
         | published file | size |\n|---|--:|\n",
        time(found.install),
        time(found.install_and_demo),
        time(found.import)
    );
    for (name, size) in &found.files {
        let _ = writeln!(out, "| `{name}` | {} |", megabytes(*size));
    }
}
