//! Every kind of link carries the same calls, and every connection problem is reported with the next step.

mod bad_input;
mod dialled;
mod out;
mod reverse_proxies;
mod support;
