//! Support for end-to-end tests with real processes, servers and harnesses.
//!
//! A test builds a [`world::World`] (a sidecar with its servers), starts a [`harness::Harness`] (a shim and a scripted
//! MCP client) and checks responses, audit and processes. Every wait has a deadline, logs are shown when a test fails,
//! and every started process is ended by its id.
//!
//! | module | what it holds |
//! |---|---|
//! | [`admin`] | a client of the admin API |
//! | [`agents`] | one scripted turn of the real Claude Code and the real Codex |
//! | [`attach`] | `cofferdam attach`, and the hub that it reaches |
//! | [`booted_debian`] | a Debian without a compiler that is thrown away, booted with its own systemd |
//! | [`certificates`] | certificate authorities for tests, and what they sign |
//! | [`chaos`] | a network that delays, splits and cuts, and checks of what crosses it |
//! | [`claude_at_terminal`] | the real Claude Code at a terminal, and what a person types there |
//! | [`cuttable_tcp`] | TCP connections to the sidecar that a test can cut |
//! | [`database`] | a PostgreSQL whose users OpenBao creates |
//! | [`daytona_double`] | a double of Daytona, with real processes as its sandbox |
//! | [`deadline`] | waits for conditions; the only module that reads the clock |
//! | [`e2b_double`] | a double of E2B: control API, and `envd` with real processes |
//! | [`e2b_platform`] | that double, or the real platform that `COFFERDAM_E2B_URL` names |
//! | [`encodings`] | the encodings in which a secret could leak, and the search for them |
//! | [`fake_model`] | model APIs on loopback that drive a real Claude Code or Codex |
//! | [`fuse_directory`] | a FUSE file system that names any owner |
//! | [`harness`] | raw MCP lines over a child's stdio |
//! | [`http_fixture`] | an MCP server over HTTP that records its requests |
//! | [`http`] | a minimal HTTP server whose responses the caller supplies |
//! | [`installed_programs`] | both programs in one directory, as users install them |
//! | [`run_user`] | `cofferdam run` with a home and a project of its own |
//! | [`markdown`] | blocks, spans and tables of the project's documents |
//! | [`openbao`] | a real OpenBao server |
//! | [`other_user`] | copies of the programs for a user who is not root |
//! | [`own_socket`] | a sandbox with an enrolment and a socket of its own |
//! | [`packaged`] | the sidecar's program with the shim inside, as it is packaged |
//! | [`paced_lines`] | log lines of which at most so many a second are written |
//! | [`port`] | free loopback addresses to listen on |
//! | [`postgres`] | a real PostgreSQL |
//! | [`process_numbers`] | tells confined servers their process numbers on the host |
//! | [`process`] | starting and ending processes, the only place that does |
//! | [`proxy`] | a CONNECT proxy |
//! | [`recording_proxy`] | a proxy on the relay socket that records every byte towards the shim |
//! | [`relay`] | a relay connection that a test drives, for frames that a shim never sends |
//! | [`reverse_proxy`] | real nginx, HAProxy and Caddy in front of a sidecar |
//! | [`sandbox_files`] | the state directory and the enrolment string of a sandbox whose shims run on the host |
//! | [`sandboxes`] | real sandboxes (bubblewrap, containers, virtual machines and others) with the shim inside |
//! | [`server`] | the MCP servers that a world can have |
//! | [`shared_session`] | an enrolled sandbox whose links share one session, one of them to a server without a credential |
//! | [`strace`] | strace, which shows and changes system calls |
//! | [`terminal`] | a terminal with a command on it |
//! | [`tmux`] | a terminal of tmux, whose screen can be captured |
//! | [`tools`] | where installed tools are, and what happens when one is missing |
//! | [`vault_fault_proxy`] | a proxy in front of OpenBao that counts, delays, cuts and rewrites |
//! | [`vault_logins`] | what an OpenBao needs for each way to log in |
//! | [`vault`] | a sidecar that uses an OpenBao, and queries of its tokens and leases |
//! | [`world`] | a sidecar, its configuration, its audit and its log |

pub mod admin;
pub mod agents;
pub mod attach;
pub mod booted_debian;
pub mod certificates;
pub mod chaos;
pub mod claude_at_terminal;
pub mod cuttable_tcp;
pub mod database;
pub mod daytona_double;
pub mod deadline;
pub mod e2b_double;
pub mod e2b_platform;
pub mod encodings;
pub mod fake_model;
pub mod fuse_directory;
pub mod harness;
pub mod http;
pub mod http_fixture;
pub mod installed_programs;
pub mod markdown;
pub mod openbao;
pub mod other_user;
pub mod own_socket;
pub mod paced_lines;
pub mod packaged;
pub mod port;
pub mod postgres;
pub mod process;
pub mod process_numbers;
pub mod proxy;
pub mod recording_proxy;
pub mod relay;
pub mod reverse_proxy;
pub mod run_user;
pub mod sandbox_files;
pub mod sandboxes;
pub mod server;
pub mod shared_session;
pub mod strace;
pub mod terminal;
pub mod tmux;
pub mod tools;
pub mod vault;
pub mod vault_fault_proxy;
pub mod vault_logins;
pub mod world;
