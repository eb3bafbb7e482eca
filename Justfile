# Everything a contributor runs. `just` alone lists it.

target := env("CARGO_TARGET_DIR", justfile_directory() / "target")

# What `--version` prints as the commit.
export COFFERDAM_COMMIT := env("COFFERDAM_COMMIT", `packaging/commit`)

_default:
    @just --list --unsorted

# the whole suite: installs what it needs, builds, tests
test *ARGS:
    tests/run {{ARGS}}

# unit tests and the thin path with debug builds: under a minute after a small change
quick *ARGS:
    cargo build --locked --workspace --bins
    tests/runner --workspace --lib --bins --test thin_path {{ARGS}}

# what must be green before a change lands
ci:
    .ci/run

# a tool call with a credential that the sandbox never sees
demo:
    cargo run --release -- demo

# the static shim, as it ships
shim:
    @shim/check-toolchain
    cargo build --locked --manifest-path shim/Cargo.toml --profile shim --target "$(uname -m)-unknown-linux-musl"

# the sidecar, as it ships
sidecar:
    cargo build --locked --profile dist

# an archive that packaging/install.sh installs: the sidecar with the shim inside, both as they ship, into dist/
archive: shim sidecar
    packaging/archive dist {{target}}/dist/cofferdam {{arch()}}={{target}}/{{arch()}}-unknown-linux-musl/shim/cofferdam-shim

# everything that is published, into dist/: both shims, the sidecar, archives, packages for Debian, PyPI and npm, images; PARTS builds some of it
dist *PARTS:
    tests/tools --dist packaging/dist dist {{PARTS}}

# the SDKs of the admin API, as they ship, into dist/
sdk:
    tests/tools bash -c 'PYTHON=$COFFERDAM_TEST_TOOLS/python/bin/python3 MODULES=$COFFERDAM_TEST_TOOLS/npm/node_modules exec packaging/sdk dist'

# side by side with the alternatives; without arguments five runs, about half an hour, and it writes packaging/BENCHMARKS.md (with the sizes of everything that `just dist` has put into dist/)
bench *ARGS: shim sidecar
    cargo build --release --locked -p cofferdam-bench
    cargo build --locked --manifest-path shim/Cargo.toml --profile shim --target "$(uname -m)-unknown-linux-musl" --no-default-features --target-dir {{target}}/small
    {{ if path_exists("dist/SHA256SUMS") == "true" { "COFFERDAM_DIST='" + justfile_directory() / "dist'" } else { "" } }} COFFERDAM_SMALL_SHIM_BIN={{target}}/small/{{arch()}}-unknown-linux-musl/shim/cofferdam-shim COFFERDAM_BIN={{target}}/dist/cofferdam COFFERDAM_SHIM_BIN={{target}}/{{arch()}}-unknown-linux-musl/shim/cofferdam-shim tests/tools --bench {{target}}/release/bench {{ if ARGS == "" { "--out packaging" } else { ARGS } }}

# each fuzz target for SECONDS, on the toolchain that builds the product
fuzz SECONDS="60":
    relay-proto/fuzz/run {{SECONDS}}

# CALLS over every kind of link while the network does its worst; COFFERDAM_CHAOS_SEED brings a failure back
chaos CALLS="10000":
    COFFERDAM_CHAOS_CALLS={{CALLS}} tests/run -p cofferdam-tests --test chaos -- --nocapture

# the tests that take minutes and are left out of `test`
slow:
    COFFERDAM_TEST_TIMEOUT=7200 tests/tools --dist --machines tests/run --workspace -- --ignored

# changes PART (policy, scrub, audit, delivery, envelope) in many small ways and lists those that no test of its crate notices
mutate PART *ARGS:
    tests/mutate {{PART}} {{ARGS}}

# format everything
fmt:
    cargo fmt --all

# lints, warnings denied
clippy:
    cargo clippy --workspace --all-targets -- -D warnings

# dependencies: bans, licences, sources
deny:
    tests/tools --deny cargo-deny --all-features --config .deny.toml check --hide-inclusion-graph bans licenses sources
