//! Plans an import: the new text of the configuration, and the secrets to store before it is written.
//!
//! What must stay true: nothing is written here. What the configuration has already is neither changed nor removed; a server
//! or secret that is there with the same definition is used as it is, so that a second import plans nothing. A name that
//! is in use for something else gets a number.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use relay_proto::name::Name;
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, value};
use zeroize::Zeroizing;

use crate::composer::field_name;
use crate::definition::{
    SecretNames, has_source, is_same_definition, mark_public, needs_argument_secrets, secret_table,
    server_table,
};
use crate::found::{FoundServer, ReferencedOrigin, ReferencedSource};

/// The fields of a secret.
pub type Fields = BTreeMap<String, Zeroizing<String>>;

/// Where the secrets of an import go.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Destination {
    /// Files in `secrets/` beside the configuration.
    Files,
    /// A key-value engine of Vault, below this path.
    Vault { prefix: String },
}

/// Where one secret is stored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StoredAt {
    /// A path relative to the directory of the configuration.
    File(String),
    Kv(String),
}

/// What is stored at a place already.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Held {
    Nothing,
    /// Other fields or values.
    Other,
    /// The same fields with the same values.
    Same,
}

/// Says what is stored at a place.
pub trait Stored {
    fn held(
        &self,
        place: &StoredAt,
        fields: &Fields,
    ) -> Result<Held, Box<dyn std::error::Error + Send + Sync>>;
}

/// What an import does to the configuration.
pub struct Plan {
    /// The new text of the configuration; equal to the old one if there is nothing to add.
    pub configuration: String,
    /// The secrets to store, first.
    pub secrets: Vec<PlannedSecret>,
    /// One for each server that was found, in their order.
    pub servers: Vec<PlannedServer>,
    pub grant: String,
    /// The names of the grants that the configuration had.
    pub grants_before: Vec<String>,
    /// Whether the grant has to get policies in Vault.
    pub needs_vault_policies: bool,
}

pub struct PlannedSecret {
    pub name: String,
    pub place: StoredAt,
    pub fields: Fields,
}

/// A server of the configuration, for one that was found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PlannedServer {
    /// Its name in the configuration.
    pub name: String,
    pub origin: ServerOrigin,
    /// Whether its command line has a secret in it, which other processes of the host can read.
    pub has_argument_secrets: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ServerOrigin {
    /// It is added.
    Added,
    /// The configuration, or an earlier file, has the same.
    Present,
}

#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("the configuration is not valid TOML, in line {line}")]
    Configuration { line: usize },
    #[error("`{0}` of the configuration is written in a form that cannot be added to")]
    Form(String),
    #[error("it is not known what {place} holds")]
    Held {
        place: StoredAt,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the configuration has several grants: {}", .0.join(", "))]
    SeveralGrants(Vec<String>),
}

/// What a plan is made of, besides the servers.
pub struct PlanInput<'a> {
    /// The text of the configuration; `None` if there is none yet.
    pub configuration: Option<&'a str>,
    pub destination: &'a Destination,
    pub grant: Option<&'a str>,
    pub stored: &'a dyn Stored,
}

const BYTE_ORDER_MARK: char = '\u{feff}';
const DEFAULT_GRANT: &str = "dev";
const NEW_CONFIGURATION: &str = "# Written by `cofferdam import`. `cofferdam check` lists problems; packaging/guide/configuration.md explains every key.\n";

/// `servers` are those to import, each with the settings file that it comes from.
pub fn plan(input: &PlanInput<'_>, servers: &[(&Path, &FoundServer)]) -> Result<Plan, PlanError> {
    let text = input.configuration.unwrap_or_default();
    // The parser accepts a byte order mark, and the writer leaves it out.
    let (mark, text) =
        text.split_at(if text.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len_utf8() } else { 0 });
    let document: DocumentMut =
        text.parse().map_err(|error: toml_edit::TomlError| PlanError::Configuration {
            line: crate::document::line_and_column(text, error.span().map_or(0, |span| span.start)).0,
        })?;
    let mut planner = Planner { input, document, secrets: Vec::new() };
    let planned = servers
        .iter()
        .map(|(file, server)| planner.add_server(file, server))
        .collect::<Result<Vec<_>, _>>()?;
    let grants_before = planner.table("grants")?.iter().map(|(name, _)| name.to_owned()).collect();
    let (grant, needs_vault_policies) = planner.grant(&planned)?;
    let is_unchanged = planner.secrets.is_empty() && planner.document.to_string() == text;
    let configuration = match (is_unchanged, input.configuration) {
        (true, Some(whole)) => whole.to_owned(),
        (_, Some(_)) => format!("{mark}{}", with_line_ends_of(text, planner.document.to_string())),
        (_, None) => format!("{NEW_CONFIGURATION}{}", planner.document),
    };
    Ok(Plan {
        configuration,
        secrets: planner.secrets,
        servers: planned,
        grant,
        grants_before,
        needs_vault_policies,
    })
}

struct Planner<'a> {
    input: &'a PlanInput<'a>,
    document: DocumentMut,
    secrets: Vec<PlannedSecret>,
}

/// Whether something has to be added, or is there already.
enum Candidate {
    Absent,
    InUse,
    Present,
}

impl Planner<'_> {
    fn add_server(&mut self, file: &Path, server: &FoundServer) -> Result<PlannedServer, PlanError> {
        let base = valid_name(&server.name, "server");
        let sources =
            server.sources.iter().map(|source| self.add_source(source)).collect::<Result<Vec<_>, _>>()?;
        let fields = accepted_fields(server);
        for name in numbered(&base) {
            let secret = match fields.is_empty() {
                true => None,
                false => Some(self.find_secret(&name, &fields)?),
            };
            let own = secret.as_ref().map_or("", |(name, _, _)| name);
            let table = server_table(server, &SecretNames { own, sources: &sources });
            let origin = match self.table("servers")?.get(&name).map(Item::as_table_like) {
                None => ServerOrigin::Added,
                Some(Some(present)) if is_same_definition(present, &table) => ServerOrigin::Present,
                Some(_) => continue,
            };
            if let Some((secret, place, Candidate::Absent)) = secret {
                self.add_secret(secret, place, fields)?;
            }
            if origin == ServerOrigin::Added {
                let comment =
                    format!("\n# `{}` of {}\n", visible(&server.name), visible(&file.display().to_string()));
                self.insert("servers", &name, table, &comment)?;
            }
            return Ok(PlannedServer { name, origin, has_argument_secrets: needs_argument_secrets(server) });
        }
        unreachable!("the numbers do not end")
    }

    /// A name for the secret of a server, and whether it has to be stored.
    fn find_secret(&self, server: &str, fields: &Fields) -> Result<(String, StoredAt, Candidate), PlanError> {
        for name in numbered(server) {
            let place = self.place(&name);
            let (key, source) = place.key_and_source();
            let is_configured = match self.table("secrets")?.get(&name) {
                Some(item) if !has_source(item, key, source) => continue,
                found => found.is_some(),
            };
            let held = match self.secrets.iter().find(|planned| planned.name == name) {
                Some(planned) if planned.fields == *fields => Held::Same,
                Some(_) => Held::Other,
                None => self
                    .input
                    .stored
                    .held(&place, fields)
                    .map_err(|source| PlanError::Held { place: place.clone(), source })?,
            };
            match (held, is_configured) {
                (Held::Same, true) => return Ok((name, place, Candidate::Present)),
                (Held::Same | Held::Nothing, _) => return Ok((name, place, Candidate::Absent)),
                (Held::Other, _) => {}
            }
        }
        unreachable!("the numbers do not end")
    }

    fn add_secret(&mut self, name: String, place: StoredAt, fields: Fields) -> Result<(), PlanError> {
        let (key, source) = place.key_and_source();
        let mut table = secret_table(key, source);
        if fields.values().any(|value| value.len() < cofferdam_secrets::MIN_VALUE_BYTES) {
            table.insert("short", value("allow"));
        }
        if self.table("secrets")?.get(&name).is_none() {
            self.insert("secrets", &name, table, "\n")?;
        }
        self.secrets.push(PlannedSecret { name, place, fields });
        Ok(())
    }

    /// The name of a secret for a value that the settings refer to.
    fn add_source(&mut self, source: &ReferencedSource) -> Result<String, PlanError> {
        let (base, key, origin) = match &source.origin {
            ReferencedOrigin::Variable(variable) => (variable.clone(), "env", variable.clone()),
            ReferencedOrigin::File(path) => {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                (stem, "file", path.display().to_string())
            }
        };
        for name in numbered(&valid_name(&field_name(&base), "value")) {
            let candidate = match self.table("secrets")?.get(&name) {
                None => Candidate::Absent,
                Some(item) if has_source(item, key, &origin) => Candidate::Present,
                Some(_) => Candidate::InUse,
            };
            match candidate {
                Candidate::InUse => {}
                Candidate::Present => return Ok(name),
                Candidate::Absent => {
                    let mut table = secret_table(key, &origin);
                    if source.is_public {
                        mark_public(&mut table);
                    }
                    self.insert("secrets", &name, table, "\n")?;
                    return Ok(name);
                }
            }
        }
        unreachable!("the numbers do not end")
    }

    fn place(&self, name: &str) -> StoredAt {
        match self.input.destination {
            Destination::Files => StoredAt::File(format!("secrets/{name}.json")),
            Destination::Vault { prefix } => StoredAt::Kv(format!("{prefix}/{name}")),
        }
    }

    /// A table of the configuration with named members, empty if it is absent.
    fn table(&self, key: &str) -> Result<&dyn TableLike, PlanError> {
        static EMPTY: std::sync::LazyLock<Table> = std::sync::LazyLock::new(Table::new);
        match self.document.get(key) {
            None => Ok(&*EMPTY),
            Some(item) => item.as_table_like().ok_or_else(|| PlanError::Form(key.to_owned())),
        }
    }

    fn insert(&mut self, key: &str, name: &str, mut table: Table, comment: &str) -> Result<(), PlanError> {
        let parent = self.document.entry(key).or_insert_with(|| {
            let mut parent = Table::new();
            parent.set_implicit(true);
            Item::Table(parent)
        });
        let parent = parent.as_table_mut().ok_or_else(|| PlanError::Form(key.to_owned()))?;
        table.decor_mut().set_prefix(comment);
        parent.insert(name, Item::Table(table));
        Ok(())
    }

    /// Adds the servers to the grant. Returns its name, and whether it got the name of a policy.
    fn grant(&mut self, servers: &[PlannedServer]) -> Result<(String, bool), PlanError> {
        let grants = self.table("grants")?;
        let present: Vec<String> = grants.iter().map(|(name, _)| name.to_owned()).collect();
        let shared = self.document.get("relay").and_then(|relay| relay.get("unix-grant")?.as_str());
        let name = match (self.input.grant, shared, present.as_slice()) {
            (Some(name), _, _) => name.to_owned(),
            (None, _, [only]) => only.clone(),
            (None, Some(shared), _) => shared.to_owned(),
            (None, None, []) => DEFAULT_GRANT.to_owned(),
            (None, None, _) => return Err(PlanError::SeveralGrants(present)),
        };
        if servers.is_empty() {
            return Ok((name, false));
        }
        let form = || PlanError::Form(format!("grants.{name}"));
        if grants.get(&name).is_none() {
            let mut grant = Table::new();
            grant.insert("servers", value(Array::new()));
            self.insert("grants", &name, grant, "\n")?;
        }
        let grant = self.document.get_mut("grants").and_then(|grants| grants.get_mut(&name));
        let grant = grant.and_then(Item::as_table_like_mut).ok_or_else(form)?;
        let list = grant.entry("servers").or_insert_with(|| value(Array::new())).as_array_mut();
        let list = list.ok_or_else(form)?;
        for server in servers {
            if !list.iter().any(|granted| granted.as_str() == Some(&server.name)) {
                list.push(&server.name);
            }
        }
        let uses_vault = self.secrets.iter().any(|secret| matches!(secret.place, StoredAt::Kv(_)));
        let needs_policies = uses_vault && grant.get("vault-policies").is_none();
        if needs_policies {
            grant.insert("vault-policies", value(Array::from_iter([format!("cofferdam-{name}")])));
        }
        Ok((name, needs_policies))
    }
}

impl StoredAt {
    pub(crate) fn key_and_source(&self) -> (&'static str, &str) {
        match self {
            Self::File(path) => ("file", path),
            Self::Kv(path) => ("kv", path),
        }
    }
}

impl fmt::Display for StoredAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "the file `{path}`"),
            Self::Kv(path) => write!(f, "Vault's `{path}`"),
        }
    }
}

fn accepted_fields(server: &FoundServer) -> Fields {
    let accepted = server.secrets.iter().filter(|secret| !secret.is_refused);
    accepted.map(|secret| (secret.field.clone(), secret.value.clone())).collect()
}

/// The name itself, then with numbers from 2.
fn numbered(base: &str) -> impl Iterator<Item = String> {
    let with_number = move |number: u32| {
        let suffix = format!("-{number}");
        let kept = base.len().min(MAX_NAME_BYTES - suffix.len());
        format!("{}{suffix}", &base[..kept])
    };
    std::iter::once(base.to_owned()).chain((2..).map(with_number))
}

const MAX_NAME_BYTES: usize = 64;

/// The nearest name that the configuration accepts.
fn valid_name(text: &str, fallback: &str) -> String {
    let mut name = String::new();
    for character in text.chars().flat_map(char::to_lowercase) {
        match character {
            'a'..='z' | '0'..='9' | '_' => name.push(character),
            _ if name.ends_with('-') => {}
            _ => name.push('-'),
        }
    }
    let name = name.trim_start_matches(['-', '_']);
    let name = name[..name.len().min(MAX_NAME_BYTES)].trim_end_matches('-');
    match name.parse::<Name>() {
        Ok(_) => name.to_owned(),
        Err(_) => fallback.to_owned(),
    }
}

/// A text for a comment of one line.
fn visible(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '\u{fffd}' } else { character }).collect()
}

/// The TOML writer ends lines with a line feed alone.
fn with_line_ends_of(before: &str, text: String) -> String {
    let lines = before.matches('\n').count();
    match lines > 0 && before.matches("\r\n").count() == lines {
        true => text.replace("\r\n", "\n").replace('\n', "\r\n"),
        false => text,
    }
}
