//! A real PostgreSQL whose users a real OpenBao makes, and a real MCP server that asks it.

mod ends;
mod refusals;
mod support;
mod under_load;
