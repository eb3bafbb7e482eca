//! Draws the live view: totals, sessions with their leases, the last decisions, and what the keys do.
//!
//! What must stay true: text from outside cannot control the terminal; no line is wider than the terminal.

use cofferdam_audit::HumanRecord;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use tokio::time::Instant;
use unicode_width::UnicodeWidthStr as _;

use super::model::{Model, Pane, Totals};
use crate::cli::{attachments, audit_lines, sessions};
use crate::terminal::colour::{Colours, Role};
use crate::terminal::table::{self, TableWidth, shortened};
use crate::terminal::wrap::wrapped;

/// Before the selected row, and as spaces before the others.
const MARK: &str = "> ";
const NO_MARK: &str = "  ";
/// A smaller terminal shows no decisions.
const MIN_ROWS_FOR_DECISIONS: u16 = 12;
const KEYS: &str = "q quits   Tab other list   up and down, or k and j, move";

pub(super) fn draw(frame: &mut Frame, model: &Model, now: Instant, colours: Colours) {
    let area = frame.area();
    let decisions_rows = match area.height {
        rows if rows < MIN_ROWS_FOR_DECISIONS => 0,
        rows => rows / 3,
    };
    let [head, list, decisions, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(1),
        Constraint::Length(decisions_rows),
        Constraint::Length(1),
    ])
    .areas(area);
    let painter = Painter { colours };
    frame.render_widget(Paragraph::new(painter.totals(&model.totals())), head);
    frame.render_widget(Paragraph::new(painter.sessions(model, now, list)), list);
    frame.render_widget(Paragraph::new(painter.decisions(model, decisions)), decisions);
    frame.render_widget(Paragraph::new(painter.foot(model, now, foot)), foot);
}

struct Painter {
    colours: Colours,
}

impl Painter {
    fn span(&self, role: Role, text: impl Into<String>) -> Span<'static> {
        Span::styled(text.into(), self.style(role))
    }

    fn style(&self, role: Role) -> Style {
        match (self.colours, role) {
            (Colours::Plain, _) | (_, Role::Normal) => Style::new(),
            (Colours::Ansi, Role::Bad) => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
            (Colours::Ansi, Role::Faint) => Style::new().add_modifier(Modifier::DIM),
            (Colours::Ansi, Role::Good) => Style::new().fg(Color::Green),
            (Colours::Ansi, Role::Heading) => Style::new().add_modifier(Modifier::BOLD),
            (Colours::Ansi, Role::Hint) => Style::new().fg(Color::Cyan),
            (Colours::Ansi, Role::Warning) => Style::new().fg(Color::Yellow),
        }
    }

    fn mark(&self, mark: &str) -> Span<'static> {
        self.span(if mark == MARK { Role::Hint } else { Role::Normal }, mark)
    }

    fn line(&self, mark: &str, line: &table::Line) -> Line<'static> {
        let mark = self.mark(mark);
        let spans = line.iter().map(|span| self.span(span.role, span.text.clone()));
        Line::from_iter(std::iter::once(mark).chain(spans))
    }

    fn totals(&self, totals: &Totals) -> Line<'static> {
        let Totals { sandboxes, links, servers, calls_per_second } = totals;
        let counted = |count: usize, noun: &str| match count {
            1 => format!("1 {noun}"),
            _ => format!("{count} {noun}s"),
        };
        let sandboxes = match *sandboxes {
            1 => "1 sandbox".to_owned(),
            count => format!("{count} sandboxes"),
        };
        let numbers = [
            sandboxes,
            counted(*links, "link"),
            counted(*servers, "server"),
            format!("{calls_per_second:.1} calls/s"),
        ];
        Line::from(vec![
            self.span(Role::Heading, "cofferdam"),
            self.span(Role::Normal, format!("   {}", numbers.join("   "))),
        ])
    }

    /// The titles, and as many rows as fit, the selected one among them.
    fn sessions(&self, model: &Model, now: Instant, area: Rect) -> Vec<Line<'static>> {
        let width = TableWidth::Columns(usize::from(area.width).saturating_sub(MARK.len()));
        let sample = &model.sample;
        let listed = sessions::sessions_table(&sample.sessions_at(now), &sample.attached, &model.rates);
        let table::TableLayout { titles, groups } = listed.lay_out(width);
        let attached = attachments::table(&sample.attachments).lay_out(width);
        if groups.is_empty() && attached.groups.is_empty() {
            return vec![self.line(NO_MARK, &vec![normal("no sessions")])];
        }
        let (mut lines, mut all) = (Vec::new(), Vec::new());
        let (mut first_line, mut last_line) = (0, 0);
        if !groups.is_empty() {
            lines.push(self.line(NO_MARK, &titles));
        }
        let rows = usize::from(area.height).saturating_sub(lines.len());
        let first_attachment = groups.len();
        for (index, group) in groups.iter().chain(&attached.groups).enumerate() {
            if index == first_attachment {
                let gap = if index > 0 { vec![Line::default()] } else { Vec::new() };
                all.extend(gap.into_iter().chain([self.line(NO_MARK, &attached.titles)]));
            }
            let is_selected = index == model.selected;
            let is_marked = is_selected && model.pane == Pane::Sessions;
            let start = all.len();
            all.push(self.line(if is_marked { MARK } else { NO_MARK }, &group.row));
            // The ids of the others would fill the screen.
            let below = group.below.iter().filter(|_| is_selected);
            all.extend(below.chain(&group.notes).map(|line| self.line(NO_MARK, line)));
            if is_selected {
                (first_line, last_line) = (start, all.len());
            }
        }
        // The list is moved only as far as the selected row needs, whose beginning matters most.
        let moved = last_line.saturating_sub(rows).min(first_line);
        let hidden = all.len().saturating_sub(moved + rows);
        lines.extend(all.into_iter().skip(moved).take(rows));
        if hidden > 0
            && let Some(last) = lines.last_mut()
        {
            *last = self.line(NO_MARK, &vec![faint(&format!("{} more lines below", hidden + 1))]);
        }
        lines
    }

    fn decisions(&self, model: &Model, area: Rect) -> Vec<Line<'static>> {
        let rows = usize::from(area.height).saturating_sub(2);
        let heading = match model.newer_decisions {
            0 => "LAST DECISIONS".to_owned(),
            newer => format!("LAST DECISIONS, {newer} newer below"),
        };
        let mut lines = vec![Line::default(), self.line(NO_MARK, &vec![heading_span(&heading)])];
        if let Some(why) = &model.decisions_problem {
            let room = TableWidth::Columns(usize::from(area.width));
            let text = wrapped(NO_MARK, why, room);
            lines.extend(text.into_iter().map(|line| Line::from(self.span(Role::Warning, line))));
            return lines;
        }
        if model.decisions.is_empty() {
            lines.push(self.line(NO_MARK, &vec![faint("none yet")]));
            return lines;
        }
        let end = model.decisions.len() - model.newer_decisions;
        let shown = model.decisions.range(end.saturating_sub(rows)..end);
        let last = end - 1;
        let first = end.saturating_sub(rows);
        for (index, record) in shown.enumerate() {
            let is_marked = model.pane == Pane::Decisions && first + index == last;
            lines.push(self.decision(if is_marked { MARK } else { NO_MARK }, model, record, area.width));
        }
        lines
    }

    /// `12:00:00  allow  box1  github  tools/call get_me  [tools.allow get_*]`, cut at the end of the line.
    fn decision(&self, mark: &str, model: &Model, record: &HumanRecord, width: u16) -> Line<'static> {
        let HumanRecord { time, what, tone, details, ids, .. } = record;
        let time = audit_lines::seconds(time);
        let time = time.rsplit(' ').next().unwrap_or_default();
        let session = ids.as_deref().and_then(|ids| ids.split('/').next()).unwrap_or_default();
        let rest = format!("{}  {}", model.sandbox_of(session), details.join("  "));
        let before = mark.len() + time.width() + 2 + what.width().max(DECISION_WIDTH) + 2;
        let rest = shortened(&rest, usize::from(width).saturating_sub(before));
        Line::from(vec![
            self.mark(mark),
            self.span(Role::Faint, format!("{time}  ")),
            self.span(audit_lines::role(*tone), format!("{what:<DECISION_WIDTH$}  ")),
            self.span(Role::Normal, rest),
        ])
    }

    /// What the keys do, or why the view is old.
    fn foot(&self, model: &Model, now: Instant, area: Rect) -> Line<'static> {
        let (role, text) = match &model.problem {
            Some(why) => {
                let seconds = now.saturating_duration_since(model.sample.at).as_secs();
                (Role::Bad, format!("no answer for {seconds} s: {why}"))
            }
            None => (Role::Faint, KEYS.to_owned()),
        };
        Line::from(self.span(role, shortened(&text, area.width.into())))
    }
}

/// The widest verdict is `allow`.
const DECISION_WIDTH: usize = 5;

fn normal(text: &str) -> table::Span {
    table::Span { role: Role::Normal, text: text.to_owned() }
}

fn faint(text: &str) -> table::Span {
    table::Span { role: Role::Faint, text: text.to_owned() }
}

fn heading_span(text: &str) -> table::Span {
    table::Span { role: Role::Heading, text: text.to_owned() }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;
    use crate::cli::watch::model::{Sample, Update};

    /// The lines that are drawn on a terminal of this size.
    fn drawn(model: &Model, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("it needs no terminal");
        let _ = terminal.draw(|frame| draw(frame, model, model.sample.at, Colours::Plain));
        let cells = terminal.backend().buffer().content();
        let lines = cells
            .chunks(columns.into())
            .map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>());
        lines.map(|line| line.trim_end().to_owned()).collect()
    }

    fn model(sessions: usize) -> Model {
        let session = |number: usize| {
            let session = json!({
                "session": format!("{number:016}"), "link": format!("{number:016}"), "grant": "dev", "server": "tools\u{1b}[2J",
                "connected": true, "pid": 1, "in-flight": 0, "calls": 1, "refused": 0, "redactions": 0, "began": "T",
                "expires-in-seconds": 100, "secrets": [],
            });
            serde_json::from_value(session).expect("it is a description")
        };
        let sessions = (0..sessions).map(session).collect();
        Model::new(Sample { at: Instant::now(), sessions, attached: Vec::new(), attachments: Vec::new() })
    }

    #[test]
    fn the_selected_row_is_shown_and_what_is_hidden_is_counted() {
        let mut model = model(20);
        let lines = drawn(&model, 80, 24);
        assert!(lines[3].starts_with("> dev") && lines[4].contains("session 0000000000000000"), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("session 0000000000000001")), "{lines:?}");
        assert!(lines.iter().any(|line| line.ends_with("more lines below")), "{lines:?}");
        model.selected = 19;
        let lines = drawn(&model, 80, 24);
        assert!(lines.iter().any(|line| line.contains("session 0000000000000019")), "{lines:?}");
        assert!(lines.iter().all(|line| !line.ends_with("more lines below")), "{lines:?}");
    }

    #[test]
    fn every_size_is_drawn_and_text_cannot_control_the_terminal() {
        let mut model = model(3);
        let record = json!({"time": "2026-11-18T12:00:00.000Z", "kind": "decision", "verdict": "deny", "tool": "\u{1b}[2J",
            "method": "tools/call", "server": "x".repeat(300), "session": format!("{:016}", 1)});
        let record = HumanRecord::of(&record.to_string()).expect("it is a record");
        let _ = model.apply(Update::Decisions(vec![record]));
        for (columns, rows) in [(1, 1), (10, 5), (80, 24), (300, 100)] {
            let lines = drawn(&model, columns, rows);
            assert!(lines.iter().all(|line| !line.contains('\u{1b}')), "{lines:?}");
        }
        let lines = drawn(&model, 80, 24);
        let decision = lines.iter().find(|line| line.contains("deny")).expect("it is shown");
        assert!(decision.ends_with('…') && decision.starts_with("  12:00:00  deny   "), "{decision}");
    }
}
