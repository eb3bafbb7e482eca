//! Looks up real addresses for one server, a few at a time.
//!
//! What must stay true: a look-up of the operating system occupies a thread until it ends, also when its connection has
//! given up. So the look-up itself, not the connection, counts against the limit, and a server whose names resolve slowly
//! waits for its own look-ups only.

use std::io;
use std::sync::Arc;

use cofferdam_net::{Resolve, Resolving};
use tokio::sync::Semaphore;

use crate::tasks::Tasks;

/// At once, for one server; the sidecar has some hundred threads for the look-ups of all.
const MAX_LOOKUPS: usize = 8;

pub(crate) struct BoundedLookups {
    resolver: Arc<dyn Resolve>,
    slots: Arc<Semaphore>,
    tasks: Tasks,
}

impl BoundedLookups {
    pub(crate) fn new(resolver: Arc<dyn Resolve>, tasks: Tasks) -> Self {
        Self { resolver, slots: Arc::new(Semaphore::new(MAX_LOOKUPS)), tasks }
    }
}

impl Resolve for BoundedLookups {
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> Resolving<'a> {
        Box::pin(async move {
            let slot = self.slots.clone().acquire_owned().await.map_err(io::Error::other)?;
            let (resolver, name) = (self.resolver.clone(), name.to_owned());
            let lookup = async move {
                let _slot = slot;
                resolver.resolve(&name, port).await
            };
            let found = self.tasks.spawn(lookup).await.map_err(io::Error::other)?;
            found.unwrap_or_else(|| Err(io::ErrorKind::Interrupted.into()))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// Look-ups of this resolver never end.
    #[derive(Default)]
    struct Silent(AtomicUsize);

    impl Resolve for Silent {
        fn resolve<'a>(&'a self, _: &'a str, _: u16) -> Resolving<'a> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn look_ups_that_were_given_up_still_count() {
        let (silent, tasks) = (Arc::new(Silent::default()), Tasks::default());
        let lookups = BoundedLookups::new(silent.clone(), tasks.clone());
        for _ in 0..2 * MAX_LOOKUPS {
            let given_up =
                tokio::time::timeout(Duration::from_secs(1), lookups.resolve("a.example", 443)).await;
            assert!(given_up.is_err());
        }
        assert_eq!(silent.0.load(Ordering::Relaxed), MAX_LOOKUPS);
        let ended = tokio::time::timeout(Duration::from_secs(1), tasks.end()).await;
        assert!(ended.is_ok(), "the look-ups go on");
    }
}
