use std::future::pending;

use super::*;
use crate::servers::generation::{Generation, Starting};

fn starting(start: Starting) -> Instance {
    let mut instance = Instance::default();
    instance.current.generation = Generation::starting(start, None);
    instance
}

#[tokio::test(start_paused = true)]
async fn a_start_that_does_not_end_is_not_waited_for_and_not_called_ended() {
    let began = Instant::now();
    assert_eq!(starting(Box::pin(pending())).end(Duration::from_secs(2)).await, Ended::NotYet);
    assert!(began.elapsed() <= END_TIME);
    assert_eq!(Instance::default().end(Duration::from_secs(2)).await, Ended::All);
}
