//! One record as text for a terminal.
//!
//! What must stay true: text of a record is safe on a terminal: control and invisible characters are escaped.

use std::fmt::Write as _;

use cofferdam_base::text::is_invisible;
use serde::Deserialize;

/// The main fields of a record, each as text.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HumanRecord {
    /// `decision`, `outcome`, `event` or `admin`.
    pub kind: String,
    /// RFC 3339, in UTC.
    pub time: String,
    /// A verdict, a result, an event or an action.
    pub what: String,
    pub tone: Tone,
    pub details: Vec<String>,
    /// Session, link and number of the message, in the form that `audit show` accepts.
    pub ids: Option<String>,
}

/// How a record deserves an operator's attention.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tone {
    /// A call was denied or refused, or failed; an alert.
    Bad,
    /// A call was allowed, or succeeded.
    Good,
    /// What happens without a call: sessions, links, the sidecar, the admin API.
    Neutral,
    /// It is not known what happened, or a person was asked.
    Warning,
}

/// Formats the main fields of a record on one line. A line that is no record, such as a torn one, is shortened and marked.
///
/// Safe on a terminal: control and invisible characters are escaped.
pub fn human(line: &str) -> String {
    match HumanRecord::of(line) {
        Ok(HumanRecord { time, what, details, ids, .. }) => {
            let mut parts = vec![format!("{time}  {what:<15}")];
            parts.extend(details);
            parts.extend(ids);
            parts.join("  ")
        }
        Err(not_a_record) => not_a_record,
    }
}

impl HumanRecord {
    /// # Errors
    /// For a line that is no record: the text to show instead.
    pub fn of(line: &str) -> Result<Self, String> {
        let Ok(record) = serde_json::from_str::<Record>(line) else {
            let shown = &line[..line.floor_char_boundary(TORN_BYTES)];
            return Err(visible(&format!("(not a whole record) {shown}")));
        };
        Ok(Self {
            kind: visible(&record.kind),
            time: visible(&record.time),
            what: visible(record.what()),
            tone: record.tone(),
            details: record.details().iter().map(|part| visible(part)).collect(),
            ids: record.ids().map(|ids| visible(&ids)),
        })
    }
}

fn visible(text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    for character in text.chars() {
        match is_invisible(character) {
            true => visible.extend(character.escape_unicode()),
            false => visible.push(character),
        }
    }
    visible
}

/// How much of a torn line is shown.
const TORN_BYTES: usize = 120;

/// The fields of all kinds of records; those that a kind does not have are absent.
#[derive(Deserialize)]
struct Record {
    time: String,
    kind: String,
    session: Option<String>,
    link: Option<String>,
    seq: Option<u64>,
    to_harness: Option<u64>,
    server: Option<String>,
    method: Option<String>,
    tool: Option<String>,
    verdict: Option<String>,
    rule: Option<String>,
    result: Option<String>,
    code: Option<String>,
    bytes: Option<u64>,
    duration_us: Option<u64>,
    redactions: Option<u64>,
    event: Option<String>,
    detail: Option<String>,
    torn_bytes: Option<u64>,
    #[serde(flatten)]
    admin: AdminFields,
}

/// The fields of an action of the admin API.
#[derive(Deserialize)]
struct AdminFields {
    action: Option<String>,
    state: Option<String>,
    by: Option<String>,
    by_name: Option<String>,
    enrolment: Option<String>,
    sandbox: Option<String>,
    grant: Option<String>,
    token: Option<String>,
}

impl Record {
    fn what(&self) -> &str {
        let what = [&self.verdict, &self.result, &self.event, &self.admin.action];
        what.into_iter().find_map(Option::as_ref).unwrap_or(&self.kind)
    }

    fn tone(&self) -> Tone {
        match self.what() {
            "alert" | "budget_exhausted" | "deny" | "error" | "refused" => Tone::Bad,
            "allow" | "result" => Tone::Good,
            "ask" | "cancelled" | "outcome_unknown" | "torn" => Tone::Warning,
            _ => Tone::Neutral,
        }
    }

    fn details(&self) -> Vec<String> {
        let mut parts = self.admin.parts();
        parts.extend(self.server.clone());
        parts.extend(match (&self.method, &self.tool) {
            (Some(method), Some(tool)) => Some(format!("{method} {tool}")),
            (Some(method), None) => Some(method.clone()),
            (None, _) => None,
        });
        parts.extend(self.to_harness.map(|_| "to the harness".to_owned()));
        parts.extend(self.rule.as_ref().map(|rule| format!("[{rule}]")));
        parts.extend(self.code.clone());
        parts.extend(self.duration_us.map(duration));
        parts.extend(self.bytes.map(|bytes| format!("{bytes} B")));
        parts.extend(self.redactions.filter(|count| *count > 0).map(|count| format!("{count} redacted")));
        parts.extend(self.torn_bytes.map(|bytes| format!("a line of {bytes} B was not finished")));
        parts.extend(self.detail.clone());
        parts
    }

    /// In the form that `audit show` accepts.
    fn ids(&self) -> Option<String> {
        let mut ids = self.session.clone()?;
        if let Some(link) = &self.link {
            let _ = write!(ids, "/{link}");
            if let Some(seq) = self.seq {
                let _ = write!(ids, "/{seq}");
            }
        }
        Some(ids)
    }
}

impl AdminFields {
    fn parts(&self) -> Vec<String> {
        let mut parts: Vec<String> = self.state.iter().cloned().collect();
        parts.extend(self.by.as_ref().map(|by| match &self.by_name {
            Some(name) => format!("by {by} ({name})"),
            None => format!("by {by}"),
        }));
        let targets = [
            ("sandbox", &self.sandbox),
            ("enrolment", &self.enrolment),
            ("grant", &self.grant),
            ("token", &self.token),
        ];
        parts.extend(targets.iter().filter_map(|(what, id)| Some(format!("{what} {}", id.as_ref()?))));
        parts
    }
}

fn duration(microseconds: u64) -> String {
    match microseconds {
        0..1_000 => format!("{microseconds} µs"),
        1_000..1_000_000 => format!("{:.1} ms", microseconds as f64 / 1e3),
        _ => format!("{:.1} s", microseconds as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_shown_in_one_line() {
        assert_eq!(
            human(
                r#"{"number":1,"time":"T","kind":"decision","session":"s","link":"l","seq":7,"server":"github","method":"tools/call","tool":"get_me","verdict":"allow","rule":"tools.allow get_*","policy":"p","bytes":90,"chain":"c"}"#
            ),
            "T  allow            github  tools/call get_me  [tools.allow get_*]  90 B  s/l/7"
        );
        assert_eq!(
            human(
                r#"{"number":2,"time":"T","kind":"outcome","session":"s","link":"l","seq":7,"server":"github","method":"tools/call","tool":"get_me","result":"result","bytes":90,"duration_us":12345,"redactions":2,"chain":"c"}"#
            ),
            "T  result           github  tools/call get_me  12.3 ms  90 B  2 redacted  s/l/7"
        );
        assert_eq!(
            human(
                r#"{"number":3,"time":"T","kind":"event","event":"torn","torn_bytes":5,"torn_sha256":"h"}"#
            ),
            "T  torn             a line of 5 B was not finished"
        );
        assert_eq!(
            human(
                r#"{"number":4,"time":"T","kind":"admin","action":"enroll","state":"done","by":"token:t1","by_name":"ci","enrolment":"e1","sandbox":"box1","grant":"dev","chain":"c"}"#
            ),
            "T  enroll           done  by token:t1 (ci)  sandbox box1  enrolment e1  grant dev"
        );
    }

    #[test]
    fn what_was_refused_or_failed_has_another_tone_than_what_was_allowed() {
        let tone = |field: &str, what: &str| {
            let line = format!(r#"{{"time":"T","kind":"k","{field}":"{what}"}}"#);
            HumanRecord::of(&line).map(|record| record.tone)
        };
        for (field, what, expected) in [
            ("verdict", "allow", Tone::Good),
            ("verdict", "deny", Tone::Bad),
            ("verdict", "ask", Tone::Warning),
            ("result", "refused", Tone::Bad),
            ("result", "outcome_unknown", Tone::Warning),
            ("event", "session_start", Tone::Neutral),
            ("event", "alert", Tone::Bad),
            ("action", "kill", Tone::Neutral),
        ] {
            assert_eq!(tone(field, what), Ok(expected), "{what}");
        }
    }

    #[test]
    fn durations_have_a_suitable_unit_and_absent_redactions_are_not_shown() {
        let outcome = |duration_us: u64| {
            human(&format!(
                r#"{{"time":"T","kind":"outcome","session":"s","link":"l","result":"error","duration_us":{duration_us},"redactions":0}}"#
            ))
        };
        assert_eq!(outcome(999), "T  error            999 µs  s/l");
        assert_eq!(outcome(1_000), "T  error            1.0 ms  s/l");
        assert_eq!(outcome(1_000_000), "T  error            1.0 s  s/l");
    }

    #[test]
    fn a_hostile_name_cannot_act_on_the_terminal() {
        let line = r#"{"time":"T","kind":"decision","method":"\u001b[2J\u202ex"}"#;
        assert_eq!(human(line), "T  decision         \\u{1b}[2J\\u{202e}x");
        assert_eq!(human("{\"number\u{1b}"), "(not a whole record) {\"number\\u{1b}");
    }
}
