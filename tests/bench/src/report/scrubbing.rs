//! The report's section about the scrubber.

use std::fmt::Write;

use super::Measurement;
use super::units::{rounded, time};
use crate::scrubbing::{ScrubbedText, ScrubbingResults};

pub(super) fn section(trial: &Measurement<ScrubbingResults>, out: &mut String) {
    let Some(results) = trial.results() else { return };
    let Some(plain) = results.plain() else { return };
    out.push_str(
        "\n## Scrubbing a result of 1 MiB\n\n\
         | the result contains | one value | × prose in lines | 10,000 values | × one value |\n\
         |---|--:|--:|--:|--:|\n",
    );
    for ScrubbedText { what, one_value, many_values } in &results.texts {
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "| {what} | {} | {} | {} | {} |",
            time(*one_value),
            rounded(one_value.as_secs_f64() / plain.one_value.as_secs_f64()),
            time(*many_values),
            rounded(many_values.as_secs_f64() / one_value.as_secs_f64()),
        );
    }
}
