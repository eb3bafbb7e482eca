//! The arguments of `cofferdam run`, and their validation.

use std::ffi::OsString;
use std::path::PathBuf;

use relay_proto::name::Name;

use super::kinds::{Kind, Network};
use super::mount::Mount;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::progress::Output;

/// The arguments of `cofferdam run`.
#[derive(Clone, Debug)]
pub(crate) struct RunArguments {
    pub(crate) sandbox: Kind,
    pub(crate) image: Option<String>,
    pub(crate) grant: Option<String>,
    pub(crate) network: Option<NetworkArgument>,
    pub(crate) mounts: Vec<OsString>,
    pub(crate) variables: Vec<String>,
    pub(crate) shim: Option<PathBuf>,
    pub(crate) output: Output,
    pub(crate) mode: Mode,
    pub(crate) command: Vec<OsString>,
}

/// The value of `--network`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum NetworkArgument {
    /// No network
    None,
    /// The network of this machine, including services on its loopback address
    Host,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    DryRun,
    Run,
}

/// The validated arguments.
#[derive(Clone, Debug)]
pub(super) struct RunRequest {
    pub(super) kind: Kind,
    pub(super) image: Option<String>,
    pub(super) grant: Option<Name>,
    pub(super) network: Option<Network>,
    pub(super) mounts: Vec<Mount>,
    pub(super) variables: Vec<String>,
    pub(super) shim: Option<PathBuf>,
    pub(super) command: Vec<OsString>,
}

impl RunRequest {
    pub(super) fn parse(arguments: &RunArguments, directory: &std::path::Path) -> Result<Self, Failure> {
        let usage = |error: String| Failure::new(Sysexit::Usage, error);
        let mut mounts = Vec::new();
        for text in &arguments.mounts {
            let mount = Mount::parse(text, directory);
            mounts.push(mount.map_err(|error| {
                usage(format!("invalid --mount: {error}")).hint("write SRC, SRC:DST or SRC:DST:ro")
            })?);
        }
        if let Some(image) =
            arguments.image.as_deref().filter(|image| image.is_empty() || image.starts_with('-'))
        {
            return Err(
                usage(format!("`{image}` is not the name of an image")).hint("write NAME or NAME:TAG")
            );
        }
        let grant = arguments.grant.as_deref().map(str::parse).transpose();
        let grant = grant.map_err(|error| usage(format!("invalid --grant: {error}")))?;
        if let Some(name) =
            arguments.variables.iter().find(|name| name.is_empty() || name.contains(['=', '\0']))
        {
            return Err(usage(format!("`{name}` is not the name of a variable"))
                .hint("--env takes only a name; the value is read from this environment, so that it does not appear in process lists"));
        }
        Ok(Self {
            kind: arguments.sandbox,
            image: arguments.image.clone(),
            grant,
            network: arguments.network.map(|network| match network {
                NetworkArgument::None => Network::None,
                NetworkArgument::Host => Network::Host,
            }),
            mounts,
            variables: arguments.variables.clone(),
            shim: arguments.shim.clone(),
            command: arguments.command.clone(),
        })
    }
}
