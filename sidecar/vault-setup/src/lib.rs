//! `cofferdam vault setup`: makes in Vault what a configuration needs, with the operator's own token, and undoes it.
//!
//! | module | what it is for |
//! |---|---|
//! | `objects` | what can be made: engines, policies, roles, login methods; each as lines that can be compared |
//! | `policy` | the text of a policy, from the capabilities that it has to grant |
//! | `requests` | the request that reads, writes or deletes an object: vaultrs' types, sent by our own client |
//! | `operator` | the operator's client: what exists in Vault now |
//! | `plan` | what a run changes, and why it leaves something as it is |
//! | `permissions` | which capabilities the operator's token needs for that |
//! | `credentials` | the files with the role-id and the secret-id of an AppRole |
//! | `record` | what was made, in the state directory |
//! | `apply` | carries out a plan |
//! | `remove` | undoes what is recorded |
//! | `difference` | the difference of two texts, line by line |
//! | `setup_text`, `bao_text`, `terraform_text` | the same as commands of `bao`, and as Terraform's configuration |
//!
//! What must stay true: what this crate did not make, or what another party changed since, is neither changed nor removed;
//! an object is recorded before it is made; the record, the requests' bodies and the printed texts have no secret in them.

#![forbid(unsafe_code)]

mod apply;
mod bao_text;
mod credentials;
mod difference;
mod objects;
mod operator;
mod permissions;
mod plan;
mod policy;
mod record;
mod remove;
mod requests;
mod setup_text;
mod terraform_text;

pub use apply::{ApplyError, apply_credentials, apply_step};
pub use bao_text::bao_text;
pub use credentials::{CredentialFiles, CredentialPlan, FileAction, SecretIdDelivery, WRAP_TTL};
pub use difference::{Line, difference};
pub use objects::{Binding, LoginRole, ObjectId, Setting, TokenRole, VaultObject};
pub use operator::{AuthMethods, Engine, Engines, Operator};
pub use permissions::{PermissionNeed, credential_needs, read_needs, removal_needs, write_needs};
pub use plan::{Change, KeepReason, Step};
pub use policy::{PolicyNeed, policy_text};
pub use record::{Record, RecordError, SetupLock};
pub use remove::{Removal, RemovalAction, RemoveError, removals, remove};
pub use setup_text::SetupText;
pub use terraform_text::terraform_text;
