//! `cofferdam import` and `cofferdam harness`: the built program with settings files of every harness.

mod bad_input;
mod destinations;
mod end_to_end;
mod guide;
mod harness_entries;
mod interruptions;
mod other_shims;
mod projects;
mod questions;
mod secrecy;
mod support;
mod vault_operator;
