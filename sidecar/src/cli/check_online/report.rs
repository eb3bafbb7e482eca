//! What is told: findings as they come, then the lines that policies lack.
//!
//! What must stay true: the same world gives the same text; the lines to add are HCL that can be pasted as they stand.

use std::process::ExitCode;

use cofferdam_vault::{Need, Verdict, policy_lines};

use crate::terminal;
use crate::terminal::failure::{Failure, Sysexit};

#[derive(Default)]
pub(super) struct Report {
    sections: Vec<Section>,
    lacks: usize,
    problems: usize,
    coverage: Coverage,
}

/// How much could be asked.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Coverage {
    #[default]
    Everything,
    Partial,
}

/// What one holder of policies lacks.
pub(super) struct Section {
    /// Whose policy it is, as a sentence has it.
    pub(super) whose: String,
    /// What stands before each path there: see [`policy_lines`].
    pub(super) within: String,
    lacks: Vec<Need>,
    /// Comments of the policy.
    comments: Vec<String>,
}

/// Something that has to be allowed.
pub(super) struct Wanted {
    pub(super) need: Need,
    pub(super) because: String,
}

impl Report {
    pub(super) fn say(&mut self, line: &str) {
        terminal::line(line);
    }

    /// Something to know that is no lack.
    pub(super) fn remark(&mut self, text: &str) {
        terminal::line(&format!("  note   {text}"));
    }

    /// Something that could not be asked, and why.
    pub(super) fn unasked(&mut self, text: &str) {
        self.coverage = Coverage::Partial;
        terminal::line(&format!("  NOT ASKED: {text}"));
    }

    /// Something wrong that no line of a policy mends.
    pub(super) fn problem(&mut self, what: &str, next: &str) {
        self.problems += 1;
        terminal::line(&format!("  WRONG  {what}"));
        terminal::line(&format!("         next: {next}"));
    }

    /// Whether something is allowed.
    pub(super) fn judge(&mut self, section: &mut Section, wanted: &Wanted, verdict: Verdict) {
        let Wanted { need, because } = wanted;
        let word = match verdict {
            Verdict::Allowed => "ok",
            Verdict::Lacks => "LACKS",
        };
        terminal::line(&format!("  {word:<6} {:<6} {}: {because}", need.capability, need.path));
        if verdict == Verdict::Lacks {
            self.lacks += 1;
            section.lacks.push(need.clone());
        }
    }

    pub(super) fn close(&mut self, section: Section) {
        if !section.lacks.is_empty() {
            self.sections.push(section);
        }
    }

    /// The lines to add, and how it ends.
    pub(super) fn finish(self) -> Result<ExitCode, Failure> {
        for section in &self.sections {
            terminal::line(&format!("\nadd to {}:\n", section.whose));
            terminal::line(section.lines().trim_end());
        }
        let (lacks, problems) = (self.lacks, self.problems);
        if lacks + problems == 0 {
            terminal::line(match self.coverage {
                Coverage::Everything => "nothing lacks",
                Coverage::Partial => "nothing lacks of what was asked",
            });
            return Ok(ExitCode::SUCCESS);
        }
        let what = format!("Vault is not ready for this configuration: {lacks} lacking, {problems} wrong");
        let hint = "add the lines to the policies and do what is said after `next`, then run this again";
        Err(Failure::new(Sysexit::NoPermission, what).hint(hint))
    }
}

impl Section {
    pub(super) fn new(whose: String, within: String) -> Self {
        Self { whose, within, lacks: Vec::new(), comments: Vec::new() }
    }

    pub(super) fn comment(&mut self, text: String) {
        self.comments.push(text);
    }

    fn lines(&self) -> String {
        let comments: String = self.comments.iter().map(|text| format!("# {text}\n")).collect();
        format!("{comments}{}", policy_lines(&self.lacks, &self.within))
    }
}

/// Names in backquotes.
pub(super) fn listed<T: AsRef<str>>(names: &[T]) -> String {
    names.iter().map(|name| format!("`{}`", name.as_ref())).collect::<Vec<_>>().join(", ")
}
