//! What is packaged and installed.

mod embedded_shims;
mod install;
