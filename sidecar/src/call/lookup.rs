//! Searches of the audit for requests that may have run on an earlier link.
//!
//! What must stay true: a link causes few searches, and none blocks its loop; where a search fails or times out, the
//! request is treated as one that may have run.

use std::sync::Arc;

use cofferdam_audit::RecordedAttempts;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use relay_proto::frame::Origin;
use tokio::time::timeout;

use super::admit::PriorAttempts;
use super::parked::{LOOKUP_TIME, SearchNumber};
use crate::session::Session;

pub(crate) struct Lookups {
    /// How many searches this link may still cause.
    searches_left: usize,
    last: SearchNumber,
    running: FuturesUnordered<BoxFuture<'static, LookupResult>>,
}

/// The result of one search.
pub(crate) struct LookupResult {
    pub(super) search: SearchNumber,
    pub(super) known: Vec<(Origin, PriorAttempts)>,
}

/// Searches that one link may cause: an honest shim resends requests of one or two earlier links.
const MAX_SEARCHES: usize = 4;

impl Default for Lookups {
    fn default() -> Self {
        Self { searches_left: MAX_SEARCHES, last: SearchNumber::default(), running: FuturesUnordered::new() }
    }
}

impl Lookups {
    /// Starts a search for these messages; none where this link has used up its searches.
    pub(super) fn start(&mut self, session: &Arc<Session>, origins: Vec<Origin>) -> Option<SearchNumber> {
        self.searches_left = self.searches_left.checked_sub(1)?;
        self.last.0 += 1;
        let search = self.last;
        let session = Arc::clone(session);
        self.running.push(Box::pin(async move {
            let known = timeout(LOOKUP_TIME, search_audit(&session, origins)).await;
            LookupResult { search, known: known.ok().flatten().unwrap_or_default() }
        }));
        Some(search)
    }

    /// Waits for the next search to finish, for ever while none is running. Cancel-safe.
    pub(crate) async fn next(&mut self) -> LookupResult {
        match self.running.next().await {
            Some(found) => found,
            None => std::future::pending().await,
        }
    }
}

/// Searches the audit for the messages that came over the same link as the first one: an honest shim resends requests
/// of one link at a time.
async fn search_audit(session: &Session, mut origins: Vec<Origin>) -> Option<Vec<(Origin, PriorAttempts)>> {
    let permit = session.acquire_lookup_permit().await?;
    let audit = session.context.audit.clone();
    let search = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let link = origins.first()?.link.clone();
        origins.retain(|origin| origin.link == link);
        let numbers: Vec<u64> = origins.iter().map(|origin| origin.seq).collect();
        let decided = audit.decided(&link, &numbers).ok()?;
        let attempts = |origin: &Origin| match decided.get(&origin.seq) {
            None => PriorAttempts::None,
            Some(RecordedAttempts::One) => PriorAttempts::One,
            Some(RecordedAttempts::Repeated) => PriorAttempts::Repeated,
        };
        Some(origins.into_iter().map(|origin| (origin.clone(), attempts(&origin))).collect())
    });
    search.await.ok()?
}
