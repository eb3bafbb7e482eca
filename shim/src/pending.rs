//! The harness's requests that have no response yet.
//!
//! What must stay true: each request leaves this table exactly once, with its one response (or none, when the harness
//! cancelled it). A request's bytes are retained as long as it may have to be sent again, up to a limit.

use std::collections::HashMap;

use relay_proto::envelope::{Id, IdValue, ShortText};
use relay_proto::frame::{MaybeRan, Origin};
use relay_proto::mcp::ShimWait;
use tokio::time::Instant;

use crate::timing::Timing;

/// Requests that may wait at the same time: more than any harness sends, few enough to hold in memory.
pub(crate) const MAX_PENDING: usize = 4096;
/// Bytes of requests retained for sending again; a request beyond that is answered `outcome_unknown` if its link is lost.
const MAX_RETAINED_BYTES: usize = 16 * 1024 * 1024;
/// Buffers retained for reuse: as many as harnesses have requests in flight.
const MAX_SPARE: usize = 64;
/// The largest buffer that is reused: as long as a small call.
const SPARE_BYTES: usize = 512;

/// Requests by the value of their id.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    requests: HashMap<IdValue, Request>,
    /// Requests so far; numbers them in the order of arrival.
    arrivals: u64,
    retained_bytes: usize,
    /// Buffers of answered requests, for reuse: allocating one with every call costs more than everything else that is
    /// done for it.
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
pub(crate) struct Request {
    /// The id as the harness wrote it.
    pub(crate) id: ShortText,
    /// The whole line; `None` if it was sent and could not be retained.
    pub(crate) bytes: Option<Vec<u8>>,
    pub(crate) shim_wait: ShimWait,
    pub(crate) location: RequestLocation,
    /// Whether the request was handed out on a link that was not resumed.
    pub(crate) maybe_ran: MaybeRan,
    /// When the harness sent the request.
    pub(crate) since: Instant,
    arrival: u64,
}

/// Where a request is: still in the shim, or on its way to the sidecar.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RequestLocation {
    /// In the shim: the sidecar cannot have seen it on this link.
    Queued,
    /// In the outbox of this link; its frames have these sequence numbers.
    Sent { first: u64, last: u64 },
}

impl Pending {
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn contains(&self, id: &IdValue) -> bool {
        self.requests.contains_key(id)
    }

    /// Adds a request that is not in the table. `value` is its id as a key, `id` the same as the harness wrote it.
    pub(crate) fn insert(
        &mut self,
        value: IdValue,
        id: &Id<'_>,
        line: &[u8],
        shim_wait: ShimWait,
        location: RequestLocation,
        since: Instant,
    ) {
        self.arrivals += 1;
        let retains =
            location == RequestLocation::Queued || self.retained_bytes + line.len() <= MAX_RETAINED_BYTES;
        let bytes = retains.then(|| self.copy_of(line));
        self.retained_bytes += bytes.as_ref().map_or(0, Vec::len);
        let request = Request {
            id: id.as_json().into(),
            bytes,
            shim_wait,
            location,
            maybe_ran: MaybeRan::No,
            since,
            arrival: self.arrivals,
        };
        self.requests.insert(value, request);
    }

    pub(crate) fn request(&self, id: &IdValue) -> Option<&Request> {
        self.requests.get(id)
    }

    /// Records that the request is in the outbox now. Its bytes are retained for another link, unless too many are already.
    pub(crate) fn mark_sent(&mut self, id: &IdValue, first: u64, last: u64) {
        if let Some(request) = self.requests.get_mut(id) {
            request.location = RequestLocation::Sent { first, last };
            if self.retained_bytes > MAX_RETAINED_BYTES
                && let Some(bytes) = request.bytes.take()
            {
                self.retained_bytes -= bytes.len();
            }
        }
    }

    pub(crate) fn remove(&mut self, id: &IdValue) -> Option<Request> {
        let request = self.requests.remove(id)?;
        self.retained_bytes -= request.bytes.as_ref().map_or(0, Vec::len);
        Some(request)
    }

    /// Removes a request that has its response. Returns whether it was pending.
    pub(crate) fn remove_answered(&mut self, id: &IdValue) -> bool {
        let Some(request) = self.remove(id) else { return false };
        if let Some(bytes) = request.bytes
            && bytes.capacity() <= SPARE_BYTES
            && self.spare.len() < MAX_SPARE
        {
            self.spare.push(bytes);
        }
        true
    }

    /// The ids of the requests that `pick` chooses, oldest first.
    pub(crate) fn ids(&self, mut pick: impl FnMut(&Request) -> bool) -> Vec<IdValue> {
        let mut found: Vec<_> = self.requests.iter().filter(|(_, request)| pick(request)).collect();
        found.sort_by_key(|(_, request)| request.arrival);
        found.into_iter().map(|(id, _)| id.clone()).collect()
    }

    /// Queues the sent requests of a link that has ended. `handed_out` is the number of the last frame written. A call
    /// whose frames were all handed out is marked as possibly run; one that may have run on two links is not sent a
    /// third time: its bytes are dropped.
    pub(crate) fn requeue_sent(&mut self, link: &str, handed_out: u64) {
        for request in self.requests.values_mut() {
            let RequestLocation::Sent { first, last } =
                std::mem::replace(&mut request.location, RequestLocation::Queued)
            else {
                continue;
            };
            if last > handed_out || request.shim_wait != ShimWait::Call {
                continue;
            }
            match request.maybe_ran {
                MaybeRan::No => request.maybe_ran = MaybeRan::Yes(Origin { link: link.into(), seq: first }),
                MaybeRan::Yes(_) => {
                    self.retained_bytes -= request.bytes.take().map_or(0, |bytes| bytes.len())
                }
            }
        }
    }

    /// When the first request times out, if the connection to the sidecar was lost at `lost`.
    pub(crate) fn first_timeout(&self, lost: Instant, timing: &Timing) -> Option<Instant> {
        self.requests.values().map(|request| request.times_out_at(lost, timing)).min()
    }

    fn copy_of(&mut self, line: &[u8]) -> Vec<u8> {
        let mut bytes = match line.len() {
            ..=SPARE_BYTES => self.spare.pop().unwrap_or_default(),
            _ => Vec::new(),
        };
        bytes.clear();
        // Rounded up, so that the buffer also fits a call whose id has one more digit.
        bytes.reserve_exact(line.len().next_multiple_of(SPARE_BYTES / 8));
        bytes.extend_from_slice(line);
        bytes
    }
}

impl Request {
    pub(crate) fn times_out_at(&self, lost: Instant, timing: &Timing) -> Instant {
        self.since.max(lost) + timing.wait_for_sidecar(self.shim_wait)
    }

    /// Whether the server may have received it, or may still receive it.
    pub(crate) fn may_run(&self) -> bool {
        self.location != RequestLocation::Queued || self.maybe_ran != MaybeRan::No
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(pending: &mut Pending, id: &str, line: &[u8]) -> IdValue {
        let id = Id { raw: id.as_bytes(), span: 0..id.len() };
        pending.insert(id.value(), &id, line, ShimWait::Call, RequestLocation::Queued, Instant::now());
        id.value()
    }

    #[test]
    fn the_buffer_of_an_answered_request_is_reused() {
        let mut pending = Pending::default();
        let first = add(&mut pending, "9", b"a call");
        assert!(pending.remove_answered(&first));
        assert!(!pending.remove_answered(&first), "a request is removed only once");
        let location = pending.spare.first().expect("its buffer is retained").as_ptr();

        let second = add(&mut pending, "10", b"another call");
        let bytes = pending.request(&second).and_then(|request| request.bytes.as_deref());
        assert_eq!(bytes, Some(b"another call".as_slice()));
        assert_eq!(bytes.map(<[u8]>::as_ptr), Some(location));
        assert_eq!(pending.retained_bytes, b"another call".len());
    }

    #[test]
    fn retained_buffers_are_bounded() {
        let mut pending = Pending::default();
        let long = vec![b'x'; SPARE_BYTES + 1];
        let id = add(&mut pending, "1", &long);
        assert!(pending.remove_answered(&id) && pending.spare.is_empty(), "a long buffer is freed");
        let ids: Vec<IdValue> =
            (0..2 * MAX_SPARE).map(|number| add(&mut pending, &number.to_string(), &long[1..])).collect();
        assert!(ids.iter().all(|id| pending.remove_answered(id)));
        let capacity: usize = pending.spare.iter().map(Vec::capacity).sum();
        assert!(capacity <= MAX_SPARE * SPARE_BYTES, "{capacity}");
        assert_eq!((pending.spare.len(), pending.retained_bytes), (MAX_SPARE, 0));
    }
}
