//! From the harness to the server: read, decided, recorded, carried out. In that order, always.
//!
//! Messages that came together are taken through together, so that one write records all their decisions.

use std::sync::Arc;
use std::time::Duration;

use relay_proto::delivery::Received;
use relay_proto::envelope::{self, IdValue, Malformed, MalformedReason};
use relay_proto::frame::{MaybeRan, Origin};
use relay_proto::mcp;
use tokio::time::{Instant, timeout};

use super::hints::Repeat;
use super::link::Link;
use super::message::{Asked, Content, Ruling, Standing};
use super::outcomes::method_name;
use super::repeats::{Incoming, Past};
use super::used_secrets::{Held, secret_uses};
use crate::audit::{self, AuditError, DecisionRecord, FollowedBy, Left, Mac, Recorded, SecretUse};
use crate::config::{Config, Server};
use crate::policy::Glob;

/// One message on its way, with what was decided about it; nothing is decided about answers.
pub(super) struct Step<'a> {
    pub(super) received: &'a Received,
    pub(super) content: Content<'a>,
    pub(super) ruling: Option<Ruling>,
}

/// Whether the decision about a message is written down; if it is not, nothing follows from it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Written {
    No,
    /// It stands in the audit, but not as safely as was promised.
    Unsafely,
    Yes,
    /// And the call was passed to its process.
    YesAndPassed,
}

/// What a link may wait for one: it hears nothing else meanwhile, and its end is promised soon.
const SEARCH_TIME: Duration = Duration::from_secs(2);

impl Link {
    /// Messages that came together, with what is known of their past.
    pub(super) async fn arrived(&mut self, batch: Vec<Received>) {
        let batch = self.look_up(batch).await;
        self.requests(batch).await;
    }

    pub(super) async fn requests(&mut self, batch: Vec<Incoming>) {
        let config = self.session.context.config.load_full();
        let batch = self.hold_back(&config, batch);
        self.decide(batch).await;
        self.inquire(&config);
    }

    pub(super) async fn decide(&mut self, batch: Vec<Incoming>) {
        let config = self.session.context.config.load_full();
        let mut rest = batch.as_slice();
        while !rest.is_empty() {
            let mut steps = Vec::with_capacity(rest.len());
            for incoming in rest {
                steps.push(self.rule(&config, incoming, &steps));
                if steps.last().is_some_and(Step::frees_a_place) {
                    break;
                }
            }
            rest = &rest[steps.len()..];
            let held = self.held(&steps);
            let mut written = self.record_decisions(&config, &steps, &held).await;
            self.woke = Instant::now();
            self.send_ahead(&steps, &mut written);
            for (place, (mut step, written)) in steps.into_iter().zip(written).enumerate() {
                if let (Some(ruling), Written::Yes) = (&mut step.ruling, written) {
                    ruling.held = Some(held.of(place));
                }
                self.carry_out(&config, step, written);
            }
        }
    }

    /// Reads one message and decides about it, knowing what was decided about those `before` it.
    fn rule<'a>(&self, config: &Config, incoming: &'a Incoming, before: &[Step<'a>]) -> Step<'a> {
        let Incoming { received, past, deadline } = incoming;
        let mut content = Content::read(received, config.limits.message_depth);
        if let Content::Malformed(malformed) = &mut content {
            // An answer under an id that is in flight would end somebody else's request.
            malformed.id.take_if(|id| envelope::id_value(id).is_none_or(|id| self.is_in_flight(&id, before)));
        }
        if let Content::Call { value, .. } = &content
            && self.is_in_flight(value, before)
        {
            content = Content::Malformed(Malformed { id: None, reason: MalformedReason::IdInUse });
        }
        let ruling = match &content {
            Content::Response { .. } => None,
            Content::Malformed(_) => Some(Ruling::malformed()),
            Content::Notification(asked) => {
                let mut ruling = Ruling::of(config, &self.session.grant, &self.server, asked);
                ruling.deny_unasked_call(asked);
                Some(ruling)
            }
            Content::Call { asked, .. } => {
                let mut ruling = Ruling::of(config, &self.session.grant, &self.server, asked);
                ruling.follow(asked, &self.tasks);
                let in_flight = self.calls.len()
                    + self.repeats.len()
                    + before.iter().filter(|step| step.is_allowed_call()).count();
                let room = in_flight < config.limits.requests_in_flight;
                match (past, ruling.server.as_ref().filter(|_| ruling.allows())) {
                    (_, None) => {}
                    (Past::None, Some(_)) if room => {}
                    (Past::None, Some(_)) => {
                        ruling.deny(Standing::TooManyInFlight, "limits.requests-in-flight");
                    }
                    (Past::Once, Some(server)) => {
                        let in_time = deadline.is_none_or(|deadline| deadline > Instant::now());
                        match self.repeats.hints.repeat(server.retry, asked) {
                            Repeat::Yes(rule) if room && in_time => ruling.repeat(rule, *deadline),
                            _ => ruling.deny(Standing::MaybeRan, "maybe-ran"),
                        }
                    }
                    (Past::Twice, Some(_)) => ruling.deny(Standing::MaybeRan, "maybe-ran"),
                }
                Some(ruling)
            }
        };
        Step { received, content, ruling }
    }

    /// Whether this id may not be used now.
    pub(super) fn is_in_flight(&self, id: &IdValue, before: &[Step<'_>]) -> bool {
        self.calls.is_taken(id)
            || self.repeats.holds(id)
            || self.servers.memory().is_own(id)
            || before.iter().any(|step| step.calls(id))
    }

    /// What is known of messages that say they may have run. The audit is the witness; where it cannot tell, or would
    /// have to be asked too often, they did, and are not repeated.
    async fn look_up(&mut self, batch: Vec<Received>) -> Vec<Incoming> {
        let origins: Vec<Origin> = batch
            .iter()
            .filter_map(|received| match &received.maybe_ran {
                MaybeRan::Yes(origin) => Some(origin.clone()),
                MaybeRan::No => None,
            })
            .collect();
        let known = match origins.is_empty() {
            true => Vec::new(),
            false => self.witnessed(origins).await,
        };
        let past = |received: &Received| match &received.maybe_ran {
            MaybeRan::No => Past::None,
            MaybeRan::Yes(origin) => {
                known.iter().find(|(other, _)| other == origin).map_or(Past::Twice, |(_, past)| *past)
            }
        };
        batch
            .into_iter()
            .map(|received| {
                let past = past(&received);
                Incoming::new(received, past)
            })
            .collect()
    }

    /// What the audit says of those on the first one's link: an honest shim comes from one link at a time.
    async fn witnessed(&mut self, mut origins: Vec<Origin>) -> Vec<(Origin, Past)> {
        if self.searches == 0 {
            return Vec::new();
        }
        self.searches -= 1;
        let (audit, searches) = (self.session.context.audit.clone(), &self.session.context.searches);
        let own = Arc::clone(&self.session.searching);
        let search = async move {
            let place = searches.place(&own).await?;
            let found = tokio::task::spawn_blocking(move || {
                let _place = place;
                let link = origins.first()?.link.clone();
                origins.retain(|origin| origin.link == link);
                let numbers: Vec<u64> = origins.iter().map(|origin| origin.seq).collect();
                let decided = audit.decided(&link, &numbers).ok()?;
                let past = |origin: &Origin| match decided.get(&origin.seq) {
                    None => Past::None,
                    Some(Left::Once) => Past::Once,
                    Some(Left::Again) => Past::Twice,
                };
                Some(origins.into_iter().map(|origin| (origin.clone(), past(&origin))).collect())
            });
            found.await.ok()?
        };
        timeout(SEARCH_TIME, search).await.ok().flatten().unwrap_or_default()
    }

    /// Writes the decisions, all at once.
    async fn record_decisions(&mut self, config: &Config, steps: &[Step<'_>], held: &Held) -> Vec<Written> {
        let audit = &self.session.context.audit;
        let scrubber = self.session.credentials.scrubber();
        let secrets = config.servers.get(&self.server).map(|server| server.secrets()).unwrap_or_default();
        let secrets = secret_uses(secrets, &held.base);
        // What the sandbox wrote may repeat what a server told it.
        let names: Vec<_> = steps
            .iter()
            .enumerate()
            .map(|(place, step)| match step.asked() {
                Some(asked) => {
                    let held = held.in_scope(place);
                    let scope = step.ruling.as_ref().and_then(|ruling| ruling.scope.as_ref());
                    let mac = asked.arguments().map(|arguments| audit.arguments_mac(arguments));
                    (
                        method_name(&scrubber, &asked.method),
                        asked.tool.as_deref().map(|tool| scrubber.name(tool)),
                        mac,
                        scope.zip(held).map(|(scope, held)| secret_uses(scope.secrets(), held)),
                    )
                }
                None => ("".into(), None, None, None),
            })
            .collect();
        let records: Vec<_> = steps
            .iter()
            .zip(&names)
            .filter_map(|(step, (method, tool, mac, of_scope))| {
                let ruling = step.ruling.as_ref()?;
                let call =
                    audit::Call { of: &self.caller, seq: step.received.seq, method, tool: tool.as_deref() };
                let secrets = of_scope.as_ref().unwrap_or(&secrets);
                Some(step.record(call, ruling, mac.as_ref(), &config.policy_digest, secrets))
            })
            .collect();
        let recorded = match records.is_empty() {
            true => Ok(Vec::new()),
            false => {
                let waiting = self.outcomes.names(&scrubber);
                let outcomes = self.outcomes.records(&self.caller, &waiting);
                let recorded = audit.decisions_after(&self.session.budget, outcomes, &records).await;
                if let Err(error) = &recorded
                    && !matches!(error, AuditError::Sync { .. })
                {
                    self.outcomes_lost(error);
                }
                recorded
            }
        };
        let count = records.len();
        if count > 0 {
            self.outcomes.clear();
        }
        let mut recorded = match recorded {
            Ok(recorded) => recorded.into_iter().map(Written::from).collect::<Vec<_>>(),
            Err(error) => {
                tracing::error!(link = %self.id, session = %self.session.id, %error, "decisions not recorded: the calls are refused");
                let written = match error {
                    AuditError::Sync { .. } => Written::Unsafely,
                    _ => Written::No,
                };
                vec![written; count]
            }
        }
        .into_iter();
        steps
            .iter()
            .map(|step| match step.ruling {
                Some(_) => recorded.next().unwrap_or(Written::No),
                None => Written::Yes,
            })
            .collect()
    }
}

impl<'a> Step<'a> {
    fn asked(&self) -> Option<&Asked<'a>> {
        match &self.content {
            Content::Call { asked, .. } | Content::Notification(asked) => Some(asked),
            Content::Malformed(_) | Content::Response { .. } => None,
        }
    }

    /// Whether what follows must be decided after this was carried out: a cancellation makes room for a call.
    fn frees_a_place(&self) -> bool {
        matches!(&self.content, Content::Notification(asked) if asked.method == mcp::CANCELLED)
    }

    /// The server of an allowed call of a tool that is in no scope.
    pub(super) fn base_call(&self) -> Option<&Arc<Server>> {
        let Content::Call { asked, .. } = &self.content else { return None };
        let ruling = self.ruling.as_ref().filter(|ruling| ruling.allows() && ruling.scope.is_none())?;
        ruling.server.as_ref().filter(|_| asked.is_tool_call())
    }

    fn is_allowed_call(&self) -> bool {
        matches!(self.content, Content::Call { .. }) && self.ruling.as_ref().is_some_and(Ruling::allows)
    }

    /// Whether this message puts that id in flight.
    fn calls(&self, id: &IdValue) -> bool {
        self.is_allowed_call() && matches!(&self.content, Content::Call { value, .. } if value == id)
    }

    /// The pattern that puts it into a scope.
    fn scope(&self) -> Option<&str> {
        let scope = self.ruling.as_ref()?.scope.as_ref()?;
        scope.pattern(self.asked()?.tool.as_deref()?).map(Glob::as_str)
    }

    fn record<'r>(
        &'r self,
        call: audit::Call<'r>,
        ruling: &'r Ruling,
        arguments: Option<&'r Mac>,
        policy: &'r str,
        secrets: &'r [SecretUse<'r>],
    ) -> DecisionRecord<'r> {
        DecisionRecord {
            call,
            arguments,
            verdict: ruling.decision.verdict,
            rule: &ruling.decision.rule,
            policy,
            scope: self.scope(),
            secrets,
            bytes: self.received.bytes.len() as u64,
            followed_by: match self.is_allowed_call() {
                true => FollowedBy::Outcome,
                false => FollowedBy::Nothing,
            },
        }
    }
}

impl From<Recorded> for Written {
    fn from(recorded: Recorded) -> Self {
        match recorded {
            Recorded::OverBudget(_) => Self::No,
            Recorded::Yes => Self::Yes,
        }
    }
}
