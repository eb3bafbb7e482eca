//! The raw types of `[servers.NAME.confine]`, which is a table or the word `off`.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
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
    Profile(Box<RawProfile>),
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
    /// The most memory, such as `1GiB`: of all its processes together and its directories in memory where the sidecar has a
    /// control group to divide, otherwise of each process. Default: no limit.
    pub(super) memory: Option<Spanned<RawSize>>,
    /// The most processes and threads of it. Default: `limits.confined-processes`.
    pub(super) pids: Option<Spanned<RawCount>>,
    /// How many processors it may use, such as `0.5` or `2`. Needs a control group (cgroup v2) that is delegated to the sidecar.
    /// Default: all.
    pub(super) cpu: Option<Spanned<RawProcessors>>,
    /// The walls without which it does not start. `files`, `processes` and `network` always have to stand and must be named;
    /// further ones are `landlock` (the second wall around files), `limits` (a control group) and `user` (for a sidecar of root:
    /// a user of its own). Default: the first three.
    pub(super) require: Option<Spanned<Vec<RawWall>>>,
}

/// Thousandths of a processor.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct RawProcessors(pub(super) u32);

#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Wall")]
pub(super) enum RawWall {
    Files,
    Landlock,
    Limits,
    Network,
    Processes,
    User,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Home")]
pub(super) enum RawHome {
    Keep,
    Private,
}

impl fmt::Display for RawProcessors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / 1000.0)
    }
}

impl<'de> Deserialize<'de> for RawProcessors {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        // Out of range, or not a number: too small or too large for every check.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "`as` gives the nearest number in range, and 0 for what is none"
        )]
        Ok(Self((number * 1000.0).round() as u32))
    }
}

impl JsonSchema for RawProcessors {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Processors".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "exclusiveMinimum": 0, "examples": [0.5, 2] })
    }
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
                RawProfile::deserialize(MapAccessDeserializer::new(map))
                    .map(Box::new)
                    .map(RawConfine::Profile)
            }
        }

        deserializer.deserialize_any(Either)
    }
}
