//! What the live view shows, and how keys and news change it.
//!
//! What must stay true: everything that is kept is bounded by what the sidecar has now, and by [`KEPT_DECISIONS`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use cofferdam_audit::HumanRecord;
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::time::Instant;

use crate::cli::sessions::CallRates;
use crate::daemon::admin::AttachedSandbox;
use crate::daemon::attachments::status::AttachmentStatus;
use crate::link::command::Description;

/// The newest decisions, which can be scrolled through.
pub(super) const KEPT_DECISIONS: usize = 200;

/// What the sidecar said at one moment.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) sessions: Vec<Description>,
    pub(super) attached: Vec<AttachedSandbox>,
    pub(super) attachments: Vec<AttachmentStatus>,
}

/// News for the view.
pub(super) enum Update {
    Decisions(Vec<HumanRecord>),
    /// The audit cannot be read: why.
    NoDecisions(String),
    Input(Event),
    /// The sidecar does not answer: why.
    NoSample(String),
    Quit,
    Sample(Sample),
}

/// Which list the keys move through.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Pane {
    Decisions,
    Sessions,
}

/// Whether the view goes on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Next {
    GoOn,
    Quit,
}

pub(super) struct Model {
    pub(super) sample: Sample,
    pub(super) rates: CallRates,
    /// Why the sample is old.
    pub(super) problem: Option<String>,
    /// Oldest first.
    pub(super) decisions: VecDeque<HumanRecord>,
    /// Why there are no decisions.
    pub(super) decisions_problem: Option<String>,
    pub(super) pane: Pane,
    /// The selected row of the sessions.
    pub(super) selected: usize,
    /// How many of the newest decisions are below the list.
    pub(super) newer_decisions: usize,
}

/// The numbers of the first line.
#[derive(Debug, PartialEq)]
pub(super) struct Totals {
    pub(super) sandboxes: usize,
    pub(super) links: usize,
    pub(super) servers: usize,
    pub(super) calls_per_second: f64,
}

impl Sample {
    /// A link that was opened in between has its calls in this time.
    fn rates_since(&self, before: &Self) -> HashMap<String, f64> {
        let seconds =
            self.at.saturating_duration_since(before.at).as_secs_f64().max(MIN_INTERVAL.as_secs_f64());
        let earlier: HashMap<&str, u64> =
            before.sessions.iter().map(|session| (session.link.as_str(), session.calls)).collect();
        let rate = |session: &Description| {
            let calls = session.calls.saturating_sub(*earlier.get(session.link.as_str()).unwrap_or(&0));
            (session.link.clone(), calls as f64 / seconds)
        };
        self.sessions.iter().map(rate).collect()
    }

    /// The sessions as they are now: what expires counts down until the next sample.
    pub(super) fn sessions_at(&self, now: Instant) -> Vec<Description> {
        let elapsed = now.saturating_duration_since(self.at).as_secs();
        let mut sessions = self.sessions.clone();
        for session in &mut sessions {
            session.expires_in_seconds = session.expires_in_seconds.saturating_sub(elapsed);
            for credential in &mut session.credentials {
                for left in [&mut credential.expires_in_seconds, &mut credential.next_in_seconds] {
                    *left = left.map(|left| left.saturating_sub(elapsed));
                }
            }
        }
        sessions
    }

    fn rows(&self) -> usize {
        self.sessions.len() + self.attached.len() + self.attachments.len()
    }
}

/// Samples that are nearer to each other than this would give rates of chance.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

impl Model {
    pub(super) fn new(sample: Sample) -> Self {
        let rates = CallRates::ByLink(HashMap::new());
        Self {
            sample,
            rates,
            problem: None,
            decisions: VecDeque::new(),
            decisions_problem: None,
            pane: Pane::Sessions,
            selected: 0,
            newer_decisions: 0,
        }
    }

    pub(super) fn apply(&mut self, update: Update) -> Next {
        match update {
            Update::Decisions(records) => self.add_decisions(records),
            Update::NoDecisions(why) => self.decisions_problem = Some(why),
            Update::Input(event) => return self.input(&event),
            Update::NoSample(why) => self.problem = Some(why),
            Update::Quit => return Next::Quit,
            Update::Sample(sample) => {
                self.rates = CallRates::ByLink(sample.rates_since(&self.sample));
                self.sample = sample;
                self.problem = None;
                self.selected = self.selected.min(self.sample.rows().saturating_sub(1));
            }
        }
        Next::GoOn
    }

    fn add_decisions(&mut self, records: Vec<HumanRecord>) {
        if self.newer_decisions > 0 {
            // A list that was scrolled up stays where it is.
            self.newer_decisions += records.len();
        }
        self.decisions.extend(records);
        self.decisions.drain(..self.decisions.len().saturating_sub(KEPT_DECISIONS));
        self.newer_decisions = self.newer_decisions.min(self.decisions.len().saturating_sub(1));
        self.decisions_problem = None;
    }

    fn input(&mut self, event: &Event) -> Next {
        let Event::Key(key) = event else { return Next::GoOn };
        if key.kind == KeyEventKind::Release {
            return Next::GoOn;
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Next::Quit,
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Tab => {
                self.pane = match self.pane {
                    Pane::Decisions => Pane::Sessions,
                    Pane::Sessions => Pane::Decisions,
                };
            }
            KeyCode::Up | KeyCode::Char('k') => match self.pane {
                Pane::Decisions => {
                    let most = self.decisions.len().saturating_sub(1);
                    self.newer_decisions = (self.newer_decisions + 1).min(most);
                }
                Pane::Sessions => self.selected = self.selected.saturating_sub(1),
            },
            KeyCode::Down | KeyCode::Char('j') => match self.pane {
                Pane::Decisions => self.newer_decisions = self.newer_decisions.saturating_sub(1),
                Pane::Sessions => {
                    self.selected = (self.selected + 1).min(self.sample.rows().saturating_sub(1));
                }
            },
            _ => {}
        }
        Next::GoOn
    }

    pub(super) fn totals(&self) -> Totals {
        let Sample { sessions, attached, .. } = &self.sample;
        // Links of the shared socket belong to no sandbox that has a name: each is counted.
        let enrolled = sessions.iter().map(|session| session.enrolment.as_ref().unwrap_or(&session.session));
        let sandboxes: HashSet<&String> =
            enrolled.chain(attached.iter().map(|sandbox| &sandbox.enrolment)).collect();
        let servers: HashSet<&String> = sessions.iter().map(|session| &session.server).collect();
        let calls_per_second = match &self.rates {
            // The sum of no numbers would be -0.0.
            CallRates::ByLink(rates) => rates.values().fold(0.0, |sum, rate| sum + rate),
            CallRates::Unknown => 0.0,
        };
        Totals { sandboxes: sandboxes.len(), links: sessions.len(), servers: servers.len(), calls_per_second }
    }

    /// The name of the sandbox of a session, or the session's id.
    pub(super) fn sandbox_of<'a>(&'a self, session: &'a str) -> &'a str {
        let found = self.sample.sessions.iter().find(|known| known.session == session);
        found.and_then(|known| known.name.as_deref()).unwrap_or(session)
    }
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;
    use serde_json::json;

    use super::*;

    fn session(link: &str, calls: u64) -> Description {
        serde_json::from_value(json!({
            "session": format!("session-{link}"), "link": link, "grant": "dev", "server": "tools", "connected": true, "pid": 1,
            "in-flight": 0, "calls": calls, "refused": 0, "redactions": 0, "began": "T", "expires-in-seconds": 100, "secrets": [],
            "credentials": [{"secret": "s", "origin": "o", "lease": null, "expires-in-seconds": 20, "renewals": 0,
                "last-error": null, "next-in-seconds": 2}],
        }))
        .expect("it is a description")
    }

    fn sample(at: Instant, sessions: Vec<Description>) -> Sample {
        Sample { at, sessions, attached: Vec::new(), attachments: Vec::new() }
    }

    fn press(model: &mut Model, code: KeyCode) -> Next {
        model.apply(Update::Input(Event::Key(KeyEvent::from(code))))
    }

    fn decision(number: usize) -> HumanRecord {
        HumanRecord::of(
            &json!({"time": "T", "kind": "decision", "verdict": "allow", "seq": number}).to_string(),
        )
        .expect("it is a record")
    }

    #[test]
    fn rates_are_differences_of_calls_by_the_time_between_samples() {
        let start = Instant::now();
        let mut model = Model::new(sample(start, vec![session("a", 10), session("gone", 7)]));
        assert_eq!(format!("{:.1}", model.totals().calls_per_second), "0.0", "one sample gives no rate");
        let later = start + Duration::from_secs(2);
        let _ = model.apply(Update::Sample(sample(later, vec![session("a", 15), session("new", 3)])));
        let CallRates::ByLink(rates) = &model.rates else { panic!("rates are known") };
        assert_eq!((rates["a"], rates["new"], rates.len()), (2.5, 1.5, 2));
        assert_eq!(model.totals(), Totals { sandboxes: 2, links: 2, servers: 1, calls_per_second: 4.0 });
    }

    #[test]
    fn what_expires_counts_down_until_the_next_sample() {
        let start = Instant::now();
        let shown = sample(start, vec![session("a", 0)]).sessions_at(start + Duration::from_secs(5));
        let credential = &shown[0].credentials[0];
        assert_eq!(shown[0].expires_in_seconds, 95);
        assert_eq!((credential.expires_in_seconds, credential.next_in_seconds), (Some(15), Some(0)));
    }

    #[test]
    fn the_selection_stays_within_the_rows() {
        let start = Instant::now();
        let mut model = Model::new(sample(start, vec![session("a", 0), session("b", 0)]));
        let _ = press(&mut model, KeyCode::Up);
        assert_eq!(model.selected, 0);
        for _ in 0..3 {
            let _ = press(&mut model, KeyCode::Char('j'));
        }
        assert_eq!(model.selected, 1);
        let _ = model.apply(Update::Sample(sample(start, Vec::new())));
        let _ = press(&mut model, KeyCode::Down);
        assert_eq!(model.selected, 0);
        assert_eq!(press(&mut model, KeyCode::Char('x')), Next::GoOn);
        assert_eq!(press(&mut model, KeyCode::Char('q')), Next::Quit);
    }

    #[test]
    fn decisions_are_bounded_and_a_list_that_was_scrolled_up_stays_where_it_is() {
        let mut model = Model::new(sample(Instant::now(), Vec::new()));
        let _ = model.apply(Update::Decisions((0..10).map(decision).collect()));
        let _ = press(&mut model, KeyCode::Tab);
        let _ = press(&mut model, KeyCode::Up);
        let _ = model.apply(Update::Decisions((10..13).map(decision).collect()));
        assert_eq!((model.decisions.len(), model.newer_decisions), (13, 4));
        let _ = model.apply(Update::Decisions((13..1000).map(decision).collect()));
        assert_eq!((model.decisions.len(), model.newer_decisions), (KEPT_DECISIONS, KEPT_DECISIONS - 1));
        for _ in 0..KEPT_DECISIONS {
            let _ = press(&mut model, KeyCode::Down);
        }
        assert_eq!(model.newer_decisions, 0);
    }

    #[test]
    fn an_old_sample_has_its_reason_until_the_next() {
        let start = Instant::now();
        let mut model = Model::new(sample(start, vec![session("a", 0)]));
        let _ = model.apply(Update::NoSample("it is down".to_owned()));
        assert_eq!((model.problem.as_deref(), model.totals().links), (Some("it is down"), 1));
        let _ = model.apply(Update::Sample(sample(start, Vec::new())));
        assert_eq!((model.problem, model.sample.sessions.len()), (None, 0));
    }
}
