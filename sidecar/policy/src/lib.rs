//! Which requests may pass. With an `allow` list, a tool that no list names is denied; a request that cannot be decided
//! is always denied. Decisions depend on names only.
//!
//! What must stay true: a decision is a pure function of the rules and one name, in time linear in that name; a message
//! that a lenient parser could read as a tool call never passes without a decision about its tool.

#![forbid(unsafe_code)]

mod fold;
mod glob;
mod methods;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use relay_proto::name::Name;

use fold::fold;
use glob::FoldedGlob;

pub use glob::{Glob, InvalidGlob};

/// The rules of one server, from `tools`, `methods` and `methods-to-harness`.
///
/// `deny` wins over `ask`, and `ask` over `allow`. If `allow` is present, a tool that no list names is denied. `deny` and
/// `ask` also match a name that differs from the pattern by case, width or invisible characters only; `allow` does not.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    allow: Option<Vec<NamedGlob>>,
    ask: Vec<NamedGlob>,
    deny: Vec<NamedGlob>,
    methods: Vec<NamedGlob>,
    /// Requests of the server to the harness that are refused.
    denied_to_harness: Vec<NamedGlob>,
    credentials: ToolCredentials,
}

/// Whether all tools of a server run with the same credentials.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum ToolCredentials {
    PerTool,
    #[default]
    Shared,
}

/// The verdict and the rule that gave it, as the audit records them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Decision {
    pub verdict: Verdict,
    /// For instance `tools.allow get_*`, `tools: not in allow`, `grant: server github not named`.
    pub rule: RuleText,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    Allow,
    /// Needs the user's approval, which is not implemented: refused with `approval_required`.
    Ask,
    Deny,
}

/// What a message requests.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Any method but `tools/call`, of the harness.
    Method(&'a str),
    /// A request of the server, for instance `sampling/createMessage`.
    ToHarness(&'a str),
    /// `tools/call`, as a task or not.
    Tool(&'a str),
}

impl Rules {
    pub fn new(allow: Option<Vec<Glob>>, ask: Vec<Glob>, deny: Vec<Glob>, methods: Vec<Glob>) -> Self {
        Self {
            allow: allow.map(|globs| name_globs("tools.allow", globs)),
            ask: name_globs("tools.ask", ask),
            deny: name_globs("tools.deny", deny),
            methods: name_globs("methods", methods),
            denied_to_harness: Vec::new(),
            credentials: ToolCredentials::Shared,
        }
    }

    /// The same rules, with these requests of the server to the harness refused.
    pub fn with_denied_to_harness(self, methods: Vec<Glob>) -> Self {
        Self { denied_to_harness: name_globs("methods-to-harness.deny", methods), ..self }
    }

    /// The same rules for a server whose tools run with different credentials: a tool name that is not plain is denied
    /// even without lists.
    pub fn with_credentials_per_tool(self) -> Self {
        Self { credentials: ToolCredentials::PerTool, ..self }
    }

    pub fn decide(&self, request: Request<'_>) -> Decision {
        match request {
            Request::Method(method) => self.decide_method(method),
            Request::ToHarness(method) => self.decide_to_harness(method),
            Request::Tool(tool) => self.decide_tool(tool),
        }
    }

    /// Whether `tools/list` shows this tool: all but denied ones.
    pub fn shows(&self, tool: &str) -> bool {
        self.decide_tool(tool).verdict != Verdict::Deny
    }

    /// Whether there are no tool rules and all tools have the same credentials. Then every tool is shown, and unknown
    /// methods pass.
    pub fn hides_nothing(&self) -> bool {
        let lists_nothing = self.allow.is_none() && self.ask.is_empty() && self.deny.is_empty();
        lists_nothing && self.credentials == ToolCredentials::Shared
    }

    /// Whether some tools are hidden by their names. A call of a tool that does not exist must then be answered like a
    /// call of a hidden one.
    pub fn hides_by_name(&self) -> bool {
        !self.deny.is_empty()
    }

    /// Every rule as text, sorted: the order of a list does not change its decisions.
    pub fn canonical(&self) -> Vec<&str> {
        let allow_list = self.allow.as_ref().map(|_| "tools.allow");
        let allow = self.allow.as_deref().unwrap_or_default();
        let globs = [allow, &self.ask, &self.deny, &self.methods, &self.denied_to_harness];
        let mut lines: Vec<&str> =
            allow_list.into_iter().chain(globs.into_iter().flatten().map(|named| &*named.rule)).collect();
        lines.sort_unstable();
        lines.dedup();
        lines
    }

    /// The rules about tools that match none of these tools, as the audit names them, in the order of the lists.
    pub fn without_match<'a>(&'a self, tools: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
        let tools: Vec<_> = tools.into_iter().map(|tool| (tool, fold(tool))).collect();
        // `allow` does not match folded spellings.
        let allow = self
            .allow
            .iter()
            .flatten()
            .filter(|named| !tools.iter().any(|(tool, _)| named.glob.matches(tool)));
        let matches_none = |named: &&NamedGlob| {
            !tools.iter().any(|(tool, folded)| named.glob.matches(tool) || named.folded.matches(folded))
        };
        let others = self.ask.iter().chain(&self.deny).filter(matches_none);
        allow.chain(others).map(|named| &*named.rule).collect()
    }

    fn decide_tool(&self, tool: &str) -> Decision {
        if self.hides_nothing() {
            return Decision::new(Verdict::Allow, "tools: no rules");
        }
        // A server that trims the name or ignores such characters would run a tool other than the decided one.
        if tool.is_empty() || tool.trim() != tool || tool.chars().any(char::is_control) {
            return Decision::new(Verdict::Deny, "tools: not a plain name");
        }
        let folded = fold(tool);
        if let Some(rule) = first_folded_match(&self.deny, tool, &folded) {
            return Decision::new(Verdict::Deny, rule);
        }
        if let Some(rule) = first_folded_match(&self.ask, tool, &folded) {
            return Decision::new(Verdict::Ask, rule);
        }
        let Some(allow) = &self.allow else {
            return Decision::new(Verdict::Allow, "tools: not in deny");
        };
        match first_match(allow, tool) {
            Some(rule) => Decision::new(Verdict::Allow, rule),
            None => Decision::new(Verdict::Deny, "tools: not in allow"),
        }
    }

    fn decide_to_harness(&self, method: &str) -> Decision {
        match first_folded_match(&self.denied_to_harness, method, &fold(method)) {
            Some(rule) => Decision::new(Verdict::Deny, rule),
            None => Decision::new(Verdict::Allow, "methods-to-harness: not in deny"),
        }
    }

    fn decide_method(&self, method: &str) -> Decision {
        if methods::passes_without_rule(method) {
            return Decision::new(Verdict::Allow, "method: known");
        }
        if methods::reads_like_tool_call(method) {
            return Decision::new(Verdict::Deny, "method: reads like tools/call");
        }
        if let Some(rule) = first_match(&self.methods, method) {
            return Decision::new(Verdict::Allow, rule);
        }
        match self.hides_nothing() {
            true => Decision::new(Verdict::Allow, "method: not known, no tool rules"),
            false => Decision::new(Verdict::Deny, "method: not known, not in methods"),
        }
    }
}

/// The static name of a method of the protocol; `None` for any other text.
pub fn known_method(method: &str) -> Option<&'static str> {
    methods::static_name(method)
}

/// The refusal of a server that the grant does not name.
pub fn server_not_granted(server: &Name) -> Decision {
    Decision::new(Verdict::Deny, Arc::from(format!("grant: server {server} not named")))
}

impl Decision {
    fn new(verdict: Verdict, rule: impl Into<RuleText>) -> Self {
        Self { verdict, rule: rule.into() }
    }
}

/// The text of a rule. It is built once with the rule, so that a decision only copies a pointer.
#[derive(Clone)]
pub struct RuleText(TextStorage);

#[derive(Clone)]
enum TextStorage {
    Shared(Arc<str>),
    Static(&'static str),
}

impl Deref for RuleText {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            TextStorage::Shared(text) => text,
            TextStorage::Static(text) => text,
        }
    }
}

impl From<&'static str> for RuleText {
    fn from(text: &'static str) -> Self {
        Self(TextStorage::Static(text))
    }
}

impl From<Arc<str>> for RuleText {
    fn from(text: Arc<str>) -> Self {
        Self(TextStorage::Shared(text))
    }
}

impl PartialEq for RuleText {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for RuleText {}

impl fmt::Debug for RuleText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for RuleText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

#[derive(Clone, Debug)]
struct NamedGlob {
    glob: Glob,
    folded: FoldedGlob,
    rule: Arc<str>,
}

fn name_globs(list: &str, globs: Vec<Glob>) -> Vec<NamedGlob> {
    let named = |glob: Glob| NamedGlob { rule: format!("{list} {glob}").into(), folded: glob.folded(), glob };
    globs.into_iter().map(named).collect()
}

fn first_match(globs: &[NamedGlob], name: &str) -> Option<Arc<str>> {
    globs.iter().find(|named| named.glob.matches(name)).map(|named| Arc::clone(&named.rule))
}

/// The first rule that matches the name or its folded form.
fn first_folded_match(globs: &[NamedGlob], name: &str, folded: &str) -> Option<Arc<str>> {
    let matches = |named: &&NamedGlob| named.glob.matches(name) || named.folded.matches(folded);
    globs.iter().find(matches).map(|named| Arc::clone(&named.rule))
}
