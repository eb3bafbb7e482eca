//! The description of the measurements in the report. Change it together with a measurement.

pub(super) const METHOD: &str = "
## How it is measured

The driver acts as the harness: it starts a command, writes MCP messages to its stdin with one write per request, and
checks every response. A small call echoes 28 characters: one at a time for the percentiles, 32 in flight for the
throughput. A large result is 1 MiB of text with a line break in every 80 characters. The start-up time is from the
start of the program in the sandbox (for cofferdam, the shim) to the response to `tools/list`, while the program on the
host already listens. Resident memory is that of the process that the harness starts. A slow contender makes fewer
calls in the same time; a failed one is listed with the reason. While something is measured, the kernel is asked to
let no core sleep (`/dev/cpu_dma_latency`, for root only), because waking a core takes as long as a small call.

Beside a hostile sandbox: one sidecar with default limits (but for the audit's budget), an honest shim on the shared socket that makes small calls
one at a time, and rounds in turn: with no other load, beside a process that only computes, and beside each attack;
the ratio is the median of the ratios of all rounds, with its 95 % interval. If that contains 1, no difference was
seen. The attacks come from one process on the same socket, as fast as it can: either
connections that send nothing, half a Hello, garbage, an oversize frame or a Hello for a server that does not exist,
500 of them open at a time; or a link that sends messages of at most 36 bytes, and pings, up to its credit, and reads
the responses. The attacker has the same priority and the same cores as everything else, while a real sandbox would
have a quota. The process that only computes shows which part of the slowdown is due to the shared cores and not to
the sidecar.

A thousand sessions: the driver opens the links itself, each in a thread, without shims. The server is one process
over HTTP, so that no session starts a server process. The memory of an idle session is the growth of the sidecar's
resident memory while a thousand sessions are opened after a first one, divided by a thousand; none of them has made a
call yet. Then each session makes a small call a second, at even intervals within the second. The 99th percentile of
these calls is compared with the median of one session alone on a sidecar and a server of its own that are configured
alike, calling without a pause. A single error fails the row.

Keeping leases: the benchmark runs the renewal scheduler alone on a paused clock, with a Vault that only counts requests and responds
after 20 ms. Of each session's three leases one can be renewed for ever, one up to its maximum, and one not at all.
The time for each is the real time of the whole run, with timers and tasks, divided by the number of renewals,
reads and look-ups.

Credentials from Vault: two sidecars, one with the server's credential in a file and one with it in a real OpenBao in
memory, are called in turn through a shim; the ratio is the median of the ratios of all rounds, with its 95 %
interval. A third checks its secret every second, and the benchmark changes the secret repeatedly: each time a new process takes over while the harness makes small
calls one at a time, without a pause. A call counts as made during a replacement if the server had two processes when
the call began or ended, or if the process changed in between. A single error fails the rows.

Starting a local sandbox: the time from the start of a command to the response to `tools/list`. The server is started
alone; in the sandbox of `cofferdam run`, with the command line of bubblewrap that `--dry-run` prints; and behind
`cofferdam run -- cofferdam-shim --server …`, which starts a sidecar, or shares that of another run.

Into sandboxes on platforms: one sidecar attaches in turn a hub that is a local process (`attach exec`), a sandbox of
E2B over its exec stream and a sandbox of Daytona over its preview proxy. The platforms are the doubles of the tests:
they run in the driver and on the same cores, have no network in between, and start the hub in bubblewrap. The time of
an attachment is from the start of `cofferdam attach` over the start of a shim in the sandbox to the response to its
first call; the first attachment of a sandbox also uploads the shim. A message has at most 10 MiB, so 16 MiB are two
results of 8 MiB, one after the other.

Many attached sandboxes: the double of E2B has that many sandboxes, each with a real hub and the shim in its template.
They are added to the configuration of a sidecar that has attached one, and attached by one reload, all on the cores
of this machine. The memory is the growth of the sidecar's resident memory divided by their number. Then nothing is
called for 20 seconds: the processor time and the wake-ups are those of all threads of the sidecar, heartbeats
of the hubs and keep-alives of the platform's streams included.

Installing and importing: the best of at most five rounds. Each installs into a new directory, from a directory on the same
disk, and imports with a new home; the imported configuration is checked, as always. The demo uses bubblewrap.

Scrubbing: the scrubber alone, without sockets, with a message of 1 MiB by what its text contains. One and 10,000
values of 40 characters, none of which occurs, and a key of 32 random bytes as every sidecar has; the 10,000 are in three indexes of different sizes, as in a sidecar
that has been running. The best round of each.

";
