//! Every kind of link carries the same calls, and every kind of trouble on the way has a name and a next step.

mod bad_input;
mod dialled;
mod out;
mod support;
