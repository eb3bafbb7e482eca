//! A real PostgreSQL whose users are created by a real OpenBao, and a real MCP server that queries it.

mod ends;
mod refusals;
mod support;
mod under_load;
