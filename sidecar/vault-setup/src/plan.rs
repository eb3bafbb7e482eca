//! What a run changes in Vault, and why it leaves something as it is.

use cofferdam_vault::VaultError;

use crate::objects::VaultObject;
use crate::operator::Operator;
use crate::record::{Record, fingerprint};

/// An object that should exist, and what has to be done for that.
#[derive(Debug)]
pub struct Step {
    pub object: VaultObject,
    /// The lines that the object should have.
    pub wanted: Vec<String>,
    pub change: Change,
}

#[derive(Debug, Eq, PartialEq)]
pub enum Change {
    Create,
    /// The object exists and stays as it is, although it differs.
    Keep {
        current: Vec<String>,
        reason: KeepReason,
    },
    /// The object is as it should be.
    Nothing,
    /// The object was made here, and the configuration needs something else now.
    Update {
        current: Vec<String>,
    },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeepReason {
    /// It was made here, but another party has changed it since.
    ChangedSince,
    NotMadeHere,
}

impl Step {
    /// Compares an object with what exists in Vault.
    pub async fn of(object: VaultObject, operator: &Operator, record: &Record) -> Result<Self, VaultError> {
        let current = operator.current(&object.id()).await?;
        Ok(Self::compare(object, current, record))
    }

    /// The step for an object that is known not to exist.
    pub fn creation(object: VaultObject, record: &Record) -> Self {
        Self::compare(object, None, record)
    }

    fn compare(object: VaultObject, current: Option<Vec<String>>, record: &Record) -> Self {
        let (id, wanted) = (object.id(), object.lines(record.mark()));
        let change = match current {
            None => Change::Create,
            Some(current) if current == wanted => Change::Nothing,
            Some(current) if record.recognises(&id, &fingerprint(&current)) => Change::Update { current },
            Some(current) => {
                let reason = match record.contains(&id) {
                    true => KeepReason::ChangedSince,
                    false => KeepReason::NotMadeHere,
                };
                Change::Keep { current, reason }
            }
        };
        Self { object, wanted, change }
    }

    pub fn changes_vault(&self) -> bool {
        matches!(self.change, Change::Create | Change::Update { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_here_and_not_changed_since_is_updated() {
        let directory = tempfile::tempdir().unwrap();
        let mut record = Record::open(directory.path(), "http://127.0.0.1:8200", "").unwrap();
        let object = VaultObject::Policy { name: "agent".into(), text: "# a\n\n".into() };
        let change = |current: Option<&str>, record: &Record| {
            let current = current.map(|text| vec![text.to_owned()]);
            Step::compare(object.clone(), current, record).change
        };
        assert_eq!(change(None, &record), Change::Create);
        assert_eq!(change(Some("# a"), &record), Change::Nothing);
        let keep = |reason| Change::Keep { current: vec!["# b".to_owned()], reason };
        assert_eq!(change(Some("# b"), &record), keep(KeepReason::NotMadeHere));
        record.intend(&object.id(), &fingerprint(&["# c".to_owned()])).unwrap();
        assert_eq!(change(Some("# b"), &record), keep(KeepReason::ChangedSince));
        record.intend(&object.id(), &fingerprint(&["# b".to_owned()])).unwrap();
        assert_eq!(change(Some("# b"), &record), Change::Update { current: vec!["# b".to_owned()] });
    }
}
