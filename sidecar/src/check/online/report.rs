//! Prints findings as they occur, then the lines to add to policies; or collects them.
//!
//! What must stay true: the output depends only on the configuration and the state of Vault; the lines to add are valid
//! HCL that can be pasted.

use std::process::ExitCode;
use std::time::SystemTime;

use cofferdam_vault::{Need, Verdict, policy_lines};

use crate::check::vault_needs::Wanted;
use crate::terminal;
use crate::terminal::failure::{Failure, Sysexit};

#[derive(Default)]
pub(super) struct Report {
    output: Output,
    /// Without the lines that are only printed.
    pub(super) found: Vec<OnlineFinding>,
    /// Vault's clock, and this host's at that moment.
    pub(super) clocks: Option<Clocks>,
    sections: Vec<Section>,
    lacks: usize,
    problems: usize,
    coverage: Coverage,
}

/// Where findings go.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Output {
    Collect,
    #[default]
    Print,
}

/// What is wrong in Vault, or could not be checked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum OnlineFinding {
    /// A capability that a policy lacks.
    Lacking {
        need: String,
        reason: String,
        policy: String,
        lines: String,
    },
    NotChecked {
        what: String,
    },
    Problem {
        what: String,
        next: String,
    },
}

/// The time in Vault and on this host, at the same moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    pub(crate) vault: SystemTime,
    pub(crate) host: SystemTime,
}

/// Whether every check could be made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Coverage {
    #[default]
    Everything,
    Partial,
}

/// The capabilities that the policies of one token lack.
pub(super) struct Section {
    /// Which policy to change, as it is printed after "add to".
    pub(super) policy: String,
    /// The prefix of each path in that policy: see [`policy_lines`].
    pub(super) prefix: String,
    lacks: Vec<Need>,
    /// Comments above the lines to add.
    comments: Vec<String>,
}

impl Report {
    /// A report that prints nothing.
    pub(super) fn collecting() -> Self {
        Self { output: Output::Collect, ..Self::default() }
    }

    pub(super) fn print_line(&mut self, line: &str) {
        if self.output == Output::Print {
            terminal::print_line(line);
        }
    }

    /// Prints a remark that is not a problem.
    pub(super) fn remark(&mut self, text: &str) {
        self.print_line(&format!("  note    {text}"));
    }

    /// Prints what could not be checked, and why.
    pub(super) fn not_checked(&mut self, text: &str) {
        self.coverage = Coverage::Partial;
        self.found.push(OnlineFinding::NotChecked { what: text.to_owned() });
        self.print_line(&format!("  NOT CHECKED: {text}"));
    }

    /// Prints a problem that a policy line cannot solve.
    pub(super) fn problem(&mut self, what: &str, next: &str) {
        self.problems += 1;
        self.found.push(OnlineFinding::Problem { what: what.to_owned(), next: next.to_owned() });
        self.print_line(&format!("  WRONG   {what}"));
        self.print_line(&format!("          next: {next}"));
    }

    /// Prints whether a needed capability is allowed.
    pub(super) fn need(&mut self, section: &mut Section, wanted: &Wanted, verdict: Verdict) {
        let Wanted { need, reason } = wanted;
        let word = match verdict {
            Verdict::Allowed => "ok",
            Verdict::Missing => "MISSING",
        };
        self.print_line(&format!("  {word:<7} {:<6} {}: {reason}", need.capability, need.path));
        if verdict == Verdict::Missing {
            self.lacks += 1;
            section.lacks.push(need.clone());
            self.found.push(OnlineFinding::Lacking {
                need: format!("{} {}", need.capability, need.path),
                reason: reason.clone(),
                policy: section.policy.clone(),
                lines: policy_lines(std::slice::from_ref(need), &section.prefix),
            });
        }
    }

    pub(super) fn close(&mut self, section: Section) {
        if !section.lacks.is_empty() {
            self.sections.push(section);
        }
    }

    /// Prints the lines to add; fails if anything is missing or wrong.
    pub(super) fn finish(self) -> Result<ExitCode, Failure> {
        for section in &self.sections {
            terminal::print_line(&format!("\nadd to {}:\n", section.policy));
            terminal::print_line(section.lines().trim_end());
        }
        let (lacks, problems) = (self.lacks, self.problems);
        if lacks + problems == 0 {
            terminal::print_line(match self.coverage {
                Coverage::Everything => "nothing is missing",
                Coverage::Partial => "nothing is missing, as far as it was checked",
            });
            return Ok(ExitCode::SUCCESS);
        }
        let what = format!("Vault is not ready for this configuration: {lacks} missing, {problems} wrong");
        let hint = "add the lines to the policies, follow each `next`, then run this again";
        Err(Failure::new(Sysexit::NoPermission, what).hint(hint))
    }
}

impl Section {
    pub(super) fn new(policy: String, prefix: String) -> Self {
        Self { policy, prefix, lacks: Vec::new(), comments: Vec::new() }
    }

    pub(super) fn comment(&mut self, text: String) {
        self.comments.push(text);
    }

    fn lines(&self) -> String {
        let comments: String = self.comments.iter().map(|text| format!("# {text}\n")).collect();
        format!("{comments}{}", policy_lines(&self.lacks, &self.prefix))
    }
}
