//! Confined servers: attacks that work without walls and fail with them, and real servers that notice nothing of the walls.

mod attacks;
mod manifest;
mod network;
mod ordinary;
mod profile;
mod show;
mod test_command;
