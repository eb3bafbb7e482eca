//! Which reads of Vault a call's credentials come from: those known when the call was decided, and those it was made with
//! if they differ.
//!
//! What must stay true: the usual call, made with the reads that its decision names, allocates nothing more; only ids are
//! held, so that no lease stays in use because of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use relay_proto::name::Name;

use super::fill::Secrets;
use super::material::Material;
use super::source::ReadId;

/// The reads that a set of secrets comes from. A secret that is not in Vault, or was not read yet, has none.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SecretReads(Vec<(Name, Arc<ReadId>)>);

impl SecretReads {
    /// The reads of the named secrets. A secret that is not in `held` is left out.
    pub fn of(names: BTreeSet<&Name>, held: &Secrets) -> Self {
        let read = |name: &Name| Some((name.clone(), Arc::clone(held.get(name)?.read_id.as_ref()?)));
        Self(names.into_iter().filter_map(read).collect())
    }

    /// The reads of the secrets in `used` that `self` does not contain; `None` if it contains all.
    pub fn reads_beyond(&self, used: &Secrets) -> Option<Arc<Self>> {
        let other = |(name, material): (&Name, &Arc<Material>)| {
            let read = material.read_id.as_ref()?;
            let known = self.0.iter().any(|(own, known)| own == name && known == read);
            (!known).then(|| (name.clone(), Arc::clone(read)))
        };
        let others: Vec<_> = used.iter().filter_map(other).collect();
        (!others.is_empty()).then(|| Arc::new(Self(others)))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Name, &ReadId)> {
        self.0.iter().map(|(name, read)| (name, &**read))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn read(request: &str) -> Arc<Material> {
        let read_id = ReadId { hash: None, request_id: request.into() };
        let mut material = Material::without_lease(BTreeMap::new());
        material.read_id = Some(Arc::new(read_id));
        Arc::new(material)
    }

    #[test]
    fn only_reads_that_the_decision_does_not_name_are_reported() {
        let names: [Name; 3] = ["a", "b", "file"].map(|name| name.parse().unwrap());
        let file = Arc::new(Material::without_lease(BTreeMap::new()));
        let held = |a: &str, b: &str| {
            let materials = [read(a), read(b), Arc::clone(&file)];
            names.iter().cloned().zip(materials).collect::<Secrets>()
        };
        let decided = SecretReads::of(names.iter().collect(), &held("1", "2"));
        assert_eq!(decided.reads_beyond(&held("1", "2")), None);
        let shown = |reads: &SecretReads| {
            let shown = reads.iter().map(|(name, read)| format!("{name} {}", read.request_id));
            shown.collect::<Vec<_>>()
        };
        assert_eq!(shown(&decided.reads_beyond(&held("1", "3")).unwrap()), ["b 3"]);
        // A call that was decided before anything was read, and one that may use only one secret.
        assert_eq!(shown(&SecretReads::default().reads_beyond(&held("1", "2")).unwrap()), ["a 1", "b 2"]);
        assert_eq!(shown(&SecretReads::of(BTreeSet::from([&names[1]]), &held("1", "2"))), ["b 2"]);
    }
}
