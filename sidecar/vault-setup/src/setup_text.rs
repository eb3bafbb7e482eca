//! What is printed as commands or as a Terraform configuration instead of being made.

use crate::credentials::CredentialFiles;
use crate::objects::VaultObject;

/// Everything that a configuration needs in a Vault of which nothing is known.
#[derive(Clone, Copy, Debug)]
pub struct SetupText<'a> {
    pub address: &'a str,
    pub namespace: Option<&'a str>,
    pub objects: &'a [VaultObject],
    /// The files of an AppRole, for a login with one.
    pub files: Option<CredentialFiles<'a>>,
    /// What has to be done in another way; printed as comments.
    pub remaining: &'a [String],
}

impl SetupText<'_> {
    /// Comments, each on one line.
    pub(crate) fn remaining_comments(&self) -> String {
        let comment = |text: &String| format!("# {}\n", text.replace('\n', " "));
        match self.remaining.is_empty() {
            true => String::new(),
            false => {
                let comments: String = self.remaining.iter().map(comment).collect();
                format!("\n# Left to you:\n{comments}")
            }
        }
    }
}
