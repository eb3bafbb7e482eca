//! The raw types of `[servers.NAME.confine]`, which is a table or the word `off`.

use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::quantities::{RawCount, RawSize};
use super::spanned::Spanned;

/// Whether a server is confined.
#[derive(Debug, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Confine")]
pub(super) enum RawConfine {
    Switch(RawSwitch),
    Profile(RawProfile),
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "ConfineSwitch")]
pub(super) enum RawSwitch {
    /// The process runs as the sidecar's user and can reach all that this user can.
    Off,
}

/// What a confined server may reach besides its own program, the operating system's programs and libraries, its injected files,
/// and a home and a temporary directory in memory. It has no network but what `hosts` names.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Profile")]
pub(super) struct RawProfile {
    /// Files and directories of this host that it may read. Nothing that contains the sidecar's own files. `{workspace}` is the
    /// directory that the sandbox's grant names.
    pub(super) read: Vec<Spanned<String>>,
    /// Directories, and files, of this host that it may read and change, also `{workspace}`.
    pub(super) write: Vec<Spanned<String>>,
    /// Programs that it may execute besides its own. Default: all that it sees.
    pub(super) exec: Option<Vec<Spanned<String>>>,
    /// The hosts that it may connect to, with their ports: `api.github.com:443`, `*.amazonaws.com:443`, `10.0.0.5:5432`,
    /// `localhost:8080`. A name leads to public addresses only, unless it is written `private:db.internal:5432`.
    pub(super) hosts: Vec<Spanned<String>>,
    /// `private`: an empty home directory in memory, for each process. `keep`: one that the server's processes share and that
    /// lasts, in `state-dir`. Default: `private`.
    pub(super) home: Option<RawHome>,
    /// The most memory of each of its processes, such as `1GiB`. Default: no limit.
    pub(super) memory: Option<Spanned<RawSize>>,
    /// The most processes and threads of it. Default: `limits.confined-processes`.
    pub(super) pids: Option<Spanned<RawCount>>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Home")]
pub(super) enum RawHome {
    Keep,
    Private,
}

/// Written by hand, because `untagged` would lose the positions in the file.
impl<'de> Deserialize<'de> for RawConfine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = RawConfine;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table, or `off`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                RawSwitch::deserialize(text.into_deserializer()).map(RawConfine::Switch)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                RawProfile::deserialize(MapAccessDeserializer::new(map)).map(RawConfine::Profile)
            }
        }

        deserializer.deserialize_any(Either)
    }
}
