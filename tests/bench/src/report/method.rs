//! How it is measured, in words. A change of a measurement changes these.

pub(super) const METHOD: &str = "
## How it is measured

The driver is a harness with raw MCP lines on a command's stdin and stdout, one write a request, and checks every answer.
A small call echoes 28 characters: one at a time for the percentiles, 32 in flight for the throughput. A large result is
1 MiB of text with a line break in every 80 characters. The start is timed from starting the client's end to the answer
to `tools/list`, with the host's end already listening. Resident memory is that of the process that the harness starts.
A slow contender makes fewer calls in the same time, a failing one is named with its reason.

Beside a hostile sandbox: one sidecar with its limits as they come, an honest shim on the shared socket that makes small
calls one at a time, and rounds in turn: with no other load, beside a process that only computes, and beside each
attack; the best round of each is compared. The attacks come from one process on the same socket, as fast as it can: either
connections that say nothing, half a Hello, garbage, an oversize frame or a Hello for a server that is not there, 500 of
them held at a time; or a link that sends messages of at most 36 bytes, and pings, up to its credit, and reads what comes
back. The attacker has the same priority and the same cores as everything else, where a sandbox would have a quota of its
own: what the process that only computes costs is the machine's part of the slowdown, not the sidecar's.

A thousand sessions are links that the driver holds itself, a thread each, without shims; the server is one process over
HTTP, so that none of them has a process of its own. The memory of an idle one is what the sidecar's resident memory grew by
from the first session to the thousand after it, all of them welcomed and none with a call yet, divided by a thousand. Then
each makes a small call a second, at even distances within the second. The 99th percentile of these calls is compared with
the median of one session alone on a sidecar and a server of its own that are configured alike, calling without a pause. A
single error fails the row.

Keeping leases is the scheduler alone on a paused clock, at a Vault that only counts and answers after 20 ms: of each session's
three leases one can be renewed for ever, one up to its maximum, and one not at all. What one action costs is the real time of
the whole run, its timers and tasks included, divided by the number of renewals, reads and looks.

Credentials of Vault's: two sidecars that differ in where the server's credential is, in a file or in a real OpenBao
in memory, are called in turn through a shim; the best round of each is compared. A third looks at its secret every second,
and the secret gets another value again and again: each time a new process takes over while the harness makes small calls
one at a time, without a pause. A call counts as one during a replacement if two processes of the server were there at its
beginning or its end, or others at its end than at its beginning. A single error fails the rows.

";
