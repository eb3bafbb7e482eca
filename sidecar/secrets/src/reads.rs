//! Which reads of Vault's a call was decided with, and which it was made with where those are others.
//!
//! What must stay true: a call that is made with what its decision names costs nothing more; none of the secrets
//! themselves is held, so that nothing is kept from being given back.

use std::collections::BTreeSet;
use std::sync::Arc;

use relay_proto::name::Name;

use super::fill::Secrets;
use super::material::Material;
use super::source::LeaseUse;

/// The reads that some secrets are from. What is from elsewhere than Vault, or was not read yet, has none.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reads(Vec<(Name, Arc<LeaseUse>)>);

impl Reads {
    /// Of those of these secrets that are held.
    pub fn of(names: BTreeSet<&Name>, held: &Secrets) -> Self {
        let read = |name: &Name| Some((name.clone(), Arc::clone(held.get(name)?.lease.as_ref()?)));
        Self(names.into_iter().filter_map(read).collect())
    }

    /// Those that something was made with instead of these; none where there is nothing else.
    pub fn others(&self, used: &Secrets) -> Option<Arc<Self>> {
        let other = |(name, material): (&Name, &Arc<Material>)| {
            let read = material.lease.as_ref()?;
            let known = self.0.iter().any(|(own, known)| own == name && known == read);
            (!known).then(|| (name.clone(), Arc::clone(read)))
        };
        let others: Vec<_> = used.iter().filter_map(other).collect();
        (!others.is_empty()).then(|| Arc::new(Self(others)))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Name, &LeaseUse)> {
        self.0.iter().map(|(name, read)| (name, &**read))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn read(request: &str) -> Arc<Material> {
        let lease = LeaseUse { hash: None, request_id: request.into() };
        let mut material = Material::of(BTreeMap::new());
        material.lease = Some(Arc::new(lease));
        Arc::new(material)
    }

    #[test]
    fn only_what_is_from_another_read_is_told() {
        let names: [Name; 3] = ["a", "b", "file"].map(|name| name.parse().unwrap());
        let file = Arc::new(Material::of(BTreeMap::new()));
        let held = |a: &str, b: &str| {
            let materials = [read(a), read(b), Arc::clone(&file)];
            names.iter().cloned().zip(materials).collect::<Secrets>()
        };
        let decided = Reads::of(names.iter().collect(), &held("1", "2"));
        assert_eq!(decided.others(&held("1", "2")), None);
        let told = |reads: &Reads| {
            let told = reads.iter().map(|(name, read)| format!("{name} {}", read.request_id));
            told.collect::<Vec<_>>()
        };
        assert_eq!(told(&decided.others(&held("1", "3")).unwrap()), ["b 3"]);
        // A call that waited for everything, and one that may not use all that the session has.
        assert_eq!(told(&Reads::default().others(&held("1", "2")).unwrap()), ["a 1", "b 2"]);
        assert_eq!(told(&Reads::of(BTreeSet::from([&names[1]]), &held("1", "2"))), ["b 2"]);
    }
}
