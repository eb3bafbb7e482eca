//! The capabilities that a token needs, whether it has them, and the policy lines that grant them.
//!
//! What must stay true: checking reads no secret and changes nothing; paths are those of Vault's API, relative to the
//! namespace of the policy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::api::Vault;
use crate::error::VaultError;
use crate::token::Token;

/// The capabilities of Vault's policies. The sidecar needs `read` and `update` only, an operator's commands the others too.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Capability {
    Create,
    Delete,
    List,
    Read,
    Sudo,
    Update,
}

/// A capability at a path.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Need {
    pub path: String,
    pub capability: Capability,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    Allowed,
    Missing,
}

impl Vault {
    /// Whether the token has each capability, in the order of `needs`.
    pub async fn verdicts(&self, token: &Token, needs: &[Need]) -> Result<Vec<Verdict>, VaultError> {
        let paths: Vec<&str> = needs.iter().map(|need| need.path.as_str()).collect();
        let found = self.capabilities_self(token, &paths).await?;
        Ok(needs.iter().zip(found).map(|(need, allowed)| need.capability.verdict(&allowed)).collect())
    }
}

impl Need {
    pub fn new(capability: Capability, path: impl Into<String>) -> Self {
        Self { path: path.into(), capability }
    }

    pub fn read(path: impl Into<String>) -> Self {
        Self::new(Capability::Read, path)
    }

    pub fn update(path: impl Into<String>) -> Self {
        Self::new(Capability::Update, path)
    }
}

impl Capability {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Delete => "delete",
            Self::List => "list",
            Self::Read => "read",
            Self::Sudo => "sudo",
            Self::Update => "update",
        }
    }

    fn verdict(self, allowed: &[String]) -> Verdict {
        match allowed.iter().any(|allowed| allowed == self.name() || allowed == "root") {
            true => Verdict::Allowed,
            false => Verdict::Missing,
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The policy lines that grant all of this. `within` is put before each path: the namespace, relative to the one that
/// the policy belongs to.
pub fn policy_lines<'a>(needs: impl IntoIterator<Item = &'a Need>, within: &str) -> String {
    let mut by_path: BTreeMap<&str, BTreeSet<Capability>> = BTreeMap::new();
    for need in needs {
        by_path.entry(&need.path).or_default().insert(need.capability);
    }
    let block = |(path, capabilities): (&str, BTreeSet<Capability>)| {
        let quoted: Vec<String> = capabilities.iter().map(|capability| format!("\"{capability}\"")).collect();
        // Paths of the configuration have no other character that is special inside quotes.
        let path = format!("{within}{path}").replace('"', "\\\"");
        format!("path \"{path}\" {{\n  capabilities = [{}]\n}}\n", quoted.join(", "))
    };
    by_path.into_iter().map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_block_with_all_its_capabilities() {
        let needs = [
            Need::update("pki/issue/agent"),
            Need::read("database/creds/readonly"),
            Need::read("pki/issue/agent"),
            Need::read("database/creds/readonly"),
        ];
        assert_eq!(
            policy_lines(&needs, ""),
            "path \"database/creds/readonly\" {\n  capabilities = [\"read\"]\n}\n\
             path \"pki/issue/agent\" {\n  capabilities = [\"read\", \"update\"]\n}\n"
        );
        assert_eq!(
            policy_lines(&[Need::read("kv/a \"b\"")], "team-a/"),
            "path \"team-a/kv/a \\\"b\\\"\" {\n  capabilities = [\"read\"]\n}\n"
        );
    }

    #[test]
    fn a_capability_that_is_not_listed_is_missing() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (allowed, read, update) in [
            (list(&["deny"]), Verdict::Missing, Verdict::Missing),
            (list(&["read", "list"]), Verdict::Allowed, Verdict::Missing),
            (list(&["create", "update"]), Verdict::Missing, Verdict::Allowed),
            (list(&["root"]), Verdict::Allowed, Verdict::Allowed),
            (list(&[]), Verdict::Missing, Verdict::Missing),
        ] {
            assert_eq!(Capability::Read.verdict(&allowed), read, "{allowed:?}");
            assert_eq!(Capability::Update.verdict(&allowed), update, "{allowed:?}");
        }
    }
}
