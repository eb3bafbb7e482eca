//! Revocation of dropped tokens, of the tokens of an ended session, and of those that a stopped sidecar left.

use cofferdam_base::metrics;

use super::fake::{LOOK_UP_LEASE, LeaseRevocation, READ, REVOKE_ACCESSOR, REVOKE_SELF};
use super::*;
use crate::revoker::{Outcome, Revoked};
use crate::session::RemainingLinks;

const HOUR: Duration = Duration::from_secs(3600);

/// The last link leaves and the session ends, with the deadline that the end of a link has.
async fn end(session: &SessionVault) -> Revoked {
    assert_eq!(session.leave(), RemainingLinks::None);
    session.end(Instant::now() + Duration::from_millis(4500)).await.unwrap()
}

fn reason(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Pending { reason } => reason,
        Outcome::Revoked { .. } => panic!("it is reported as revoked"),
    }
}

fn is_revoked(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Revoked { .. })
}

#[tokio::test(start_paused = true)]
async fn an_accessor_is_on_disk_before_its_token_is_used_and_until_the_token_is_gone() {
    let sidecar = Sidecar::start();
    let session = sidecar.session(HOUR);
    sidecar.vault.delay(READ, Duration::from_secs(1));
    let reader = session.clone();
    let lease = sidecar.tasks.spawn(async move { read(&reader).await.unwrap() });
    until(|| sidecar.vault.requests(READ).received == 1).await;
    assert_eq!((sidecar.vault.leases(), sidecar.accessor_files()), (0, 1));
    let lease = lease.await.unwrap();
    sidecar.vault.fail(REVOKE_SELF, 500);
    drop(lease);
    sleep_seconds(60).await;
    assert_eq!((sidecar.vault.tokens(), sidecar.accessor_files()), (1, 1));
    sidecar.vault.recover();
    until(|| sidecar.vault.tokens() == 0).await;
    until(|| sidecar.accessor_files() == 0).await;
    sidecar.clean_up();
}

#[tokio::test(start_paused = true)]
async fn a_dropped_lease_is_revoked_with_its_token_and_looked_up_until_it_is_gone() {
    let sidecar = Sidecar::start();
    let session = sidecar.session(HOUR);
    let lease = read(&session).await.unwrap();
    assert_eq!((sidecar.vault.tokens(), sidecar.vault.leases()), (1, 1));
    sidecar.vault.fail(REVOKE_SELF, 500);
    drop(lease);
    sleep_seconds(60).await;
    let attempts = sidecar.vault.requests(REVOKE_SELF).received;
    assert!((6..=10).contains(&attempts), "{attempts} attempts in a minute");
    sidecar.vault.end_leases(LeaseRevocation::Later);
    sidecar.vault.recover();
    sleep_seconds(120).await;
    assert_eq!((sidecar.vault.tokens(), sidecar.vault.leases()), (0, 1));
    let lookups = sidecar.vault.requests(LOOK_UP_LEASE).received;
    assert!((3..=10).contains(&lookups), "{lookups} look-ups in two minutes");
    assert_eq!(sidecar.vault.requests(REVOKE_SELF).succeeded, 1);
    assert_eq!(sidecar.vault.requests(REVOKE_ACCESSOR).received, 0);
    sidecar.vault.end_leases(LeaseRevocation::WithItsToken);
    sleep_seconds(60).await;
    let lookups = sidecar.vault.requests(LOOK_UP_LEASE).received;
    sleep_seconds(600).await;
    assert_eq!(
        sidecar.vault.requests(LOOK_UP_LEASE).received,
        lookups,
        "a lease that is gone is still looked up"
    );
    assert_eq!(session.leave(), RemainingLinks::None);
    let nothing = session.end(Instant::now() + Duration::from_secs(1)).await;
    assert!(nothing.is_none(), "the session still lists it: {nothing:?}");
    sidecar.clean_up();
}

#[tokio::test(start_paused = true)]
async fn revocation_of_a_dropped_token_is_not_retried_after_its_expiry() {
    let sidecar = Sidecar::start();
    let session = sidecar.session(Duration::from_secs(300));
    let lease = read(&session).await.unwrap();
    sidecar.vault.fail(REVOKE_SELF, 500);
    drop(lease);
    sleep_seconds(290).await;
    let before = sidecar.vault.requests(REVOKE_SELF).received;
    assert!(before > 10, "{before} attempts while it lives");
    sleep_seconds(60).await;
    let after = sidecar.vault.requests(REVOKE_SELF).received;
    sleep_seconds(600).await;
    assert_eq!(sidecar.vault.requests(REVOKE_SELF).received, after);
    assert_eq!(session.leave(), RemainingLinks::None);
    assert!(session.end(Instant::now() + Duration::from_secs(1)).await.is_none());
    sidecar.clean_up();
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_session_takes_over_revocations_of_dropped_tokens() {
    let sidecar = Sidecar::start();
    let session = sidecar.session(HOUR);
    let lease = read(&session).await.unwrap();
    sidecar.vault.fail(REVOKE_SELF, 500);
    drop(lease);
    sleep_seconds(60).await;
    let revoked = end(&session).await;
    assert_eq!(revoked.leases.len(), 1);
    sleep_seconds(60).await;
    let before = sidecar.vault.requests(REVOKE_SELF).received;
    sleep_seconds(600).await;
    let attempts = sidecar.vault.requests(REVOKE_SELF).received - before;
    assert!((19..=21).contains(&attempts), "{attempts} attempts in ten minutes, one each 30 s expected");
    sidecar.vault.recover();
    until(|| sidecar.vault.tokens() == 0).await;
    sleep_seconds(60).await;
    assert_eq!(sidecar.vault.requests(REVOKE_SELF).succeeded, 1);
    sidecar.clean_up();
}

#[tokio::test(start_paused = true)]
async fn the_number_of_concurrent_revocations_is_bounded() {
    let sidecar = Sidecar::start();
    let (first, second) = (sidecar.session(HOUR), sidecar.session(HOUR));
    let mut leases = read_many(&first, 20).await;
    leases.extend(read_many(&second, 20).await);
    sidecar.vault.delay(REVOKE_SELF, Duration::from_secs(1));
    drop(leases);
    until(|| sidecar.vault.tokens() == 0).await;
    assert_eq!(sidecar.vault.requests(REVOKE_SELF).max_concurrent, 8);
    let third = sidecar.session(HOUR);
    let leases = read_many(&third, 40).await;
    assert_eq!(end(&third).await.leases.len(), 40);
    assert_eq!(sidecar.vault.requests(REVOKE_SELF).max_concurrent, 16);
    drop(leases);
    sidecar.clean_up();
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_reported_as_revoked_only_after_a_look_up_did_not_find_it() {
    let sidecar = Sidecar::start();
    let session = sidecar.session(HOUR);
    let _leases = read_many(&session, 2).await;
    sidecar.vault.end_leases(LeaseRevocation::Later);
    let revoked = end(&session).await;
    assert!(is_revoked(&revoked.token));
    assert_eq!(revoked.leases.len(), 2);
    for lease in &revoked.leases {
        assert_eq!(reason(&lease.outcome), "Vault is still revoking it");
    }
    let lookups = sidecar.vault.requests(LOOK_UP_LEASE).received;
    sleep_seconds(300).await;
    assert!(sidecar.vault.requests(LOOK_UP_LEASE).received > lookups + 10, "it is not looked up any more");
    sidecar.vault.end_leases(LeaseRevocation::WithItsToken);
    sleep_seconds(60).await;
    let lookups = sidecar.vault.requests(LOOK_UP_LEASE).received;
    sleep_seconds(600).await;
    assert_eq!(sidecar.vault.requests(LOOK_UP_LEASE).received, lookups);

    let session = sidecar.session(HOUR);
    let _leases = read_many(&session, 2).await;
    let revoked = end(&session).await;
    assert!(is_revoked(&revoked.token) && revoked.leases.iter().all(|lease| is_revoked(&lease.outcome)));
    assert_eq!(sidecar.vault.requests(LOOK_UP_LEASE).received, lookups + 2);

    let session = sidecar.session(HOUR);
    let _lease = read(&session).await.unwrap();
    sidecar.vault.fail(LOOK_UP_LEASE, 403);
    let revoked = end(&session).await;
    let why = reason(&revoked.leases[0].outcome);
    assert!(why.contains("cannot be looked up") && why.contains("HTTP 403"), "{why}");
    sidecar.clean_up();
}

#[tokio::test(start_paused = true)]
async fn at_the_deadline_the_report_says_what_is_pending_and_why() {
    let sidecar = Sidecar::start();
    let session = sidecar.session(HOUR);
    let _lease = read(&session).await.unwrap();
    sidecar.vault.delay(REVOKE_SELF, Duration::from_secs(4));
    sidecar.vault.fail(REVOKE_SELF, 503);
    let began = Instant::now();
    assert_eq!(session.leave(), RemainingLinks::None);
    let revoked = session.end(began + Duration::from_secs(3)).await.unwrap();
    assert_eq!(began.elapsed(), Duration::from_secs(3));
    assert_eq!(reason(&revoked.token), "Vault has not responded yet");
    assert_eq!(reason(&revoked.leases[0].outcome), "Vault has not responded yet");
    assert!(revoked.summary().contains("leases: 0 revoked, 1 pending"), "{}", revoked.summary());

    let other = sidecar.session(HOUR);
    let _lease = read(&other).await.unwrap();
    let revoked = end(&other).await;
    assert!(reason(&revoked.token).contains("HTTP 503"), "{revoked:?}");
    assert_eq!(reason(&revoked.leases[0].outcome), "its token is not revoked yet");
    assert_eq!(sidecar.vault.requests(LOOK_UP_LEASE).received, 0);
    sidecar.vault.recover();
    until(|| sidecar.vault.tokens() == 0).await;
    sidecar.clean_up();
}

#[tokio::test(start_paused = true)]
async fn revocation_for_an_ended_session_is_not_retried_after_the_expiry_of_its_tokens() {
    let sidecar = Sidecar::start();
    let session = sidecar.session(Duration::from_secs(300));
    let _lease = read(&session).await.unwrap();
    sidecar.vault.fail(REVOKE_SELF, 500);
    end(&session).await;
    sleep_seconds(280).await;
    let before = sidecar.vault.requests(REVOKE_SELF).received;
    assert!(before > 10, "{before} attempts while it lives");
    sleep_seconds(60).await;
    let after = sidecar.vault.requests(REVOKE_SELF).received;
    sleep_seconds(600).await;
    assert_eq!(sidecar.vault.requests(REVOKE_SELF).received, after);
    sidecar.clean_up();
}

/// The counter of tokens that expired before they could be revoked. Other tests of this process may add to it.
fn expired_tokens() -> usize {
    let text = metrics::render(metrics::Gauges { logged_in: Some(true), ..Default::default() });
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("cofferdam_vault_revocations_total{outcome=\"expired\"} "));
    line.expect("the counter is rendered").parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_token_that_expires_before_it_is_revoked_is_counted() {
    let sidecar = Sidecar::start();
    let session = sidecar.session(Duration::from_secs(300));
    let leases = read_many(&session, 8).await;
    sidecar.vault.fail(REVOKE_SELF, 500);
    let before = expired_tokens();
    end(&session).await;
    sleep_seconds(400).await;
    let counted = expired_tokens() - before;
    assert!(counted >= leases.len(), "{counted} of {} expired tokens are counted", leases.len());
    sidecar.clean_up();
}

#[tokio::test(start_paused = true)]
async fn a_token_that_may_not_revoke_itself_is_revoked_by_its_accessor() {
    let sidecar = Sidecar::start();
    let session = sidecar.session(HOUR);
    let _lease = read(&session).await.unwrap();
    sidecar.vault.fail(REVOKE_SELF, 403);
    assert!(is_revoked(&end(&session).await.token));
    assert_eq!((sidecar.vault.tokens(), sidecar.accessor_files()), (0, 0));
    assert_eq!(sidecar.vault.requests(REVOKE_ACCESSOR).succeeded, 1);
    sidecar.clean_up();
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_link_failed_is_revoked_without_a_caller() {
    let sidecar = Sidecar::start();
    let session = sidecar.session(HOUR);
    let _lease = read(&session).await.unwrap();
    session.enter();
    session.abandon();
    sleep_seconds(60).await;
    assert_eq!(sidecar.vault.tokens(), 1, "the token was revoked although another link remains");
    session.abandon();
    until(|| sidecar.vault.tokens() == 0).await;
    sidecar.clean_up();
}

#[tokio::test(start_paused = true)]
async fn tokens_that_a_sidecar_left_behind_are_revoked_by_the_next_one_with_backoff() {
    let sidecar = Sidecar::start();
    let session = sidecar.session(HOUR);
    let lease = read(&session).await.unwrap();
    let dropped = read(&session).await.unwrap();
    sidecar.vault.fail(REVOKE_SELF, 500);
    drop(dropped);
    end(&session).await;
    assert_eq!(sidecar.accessor_files(), 2);
    let (vault, directory) = sidecar.stop().await;
    drop((lease, session));
    assert_eq!(vault.tokens(), 2);

    vault.fail(REVOKE_ACCESSOR, 500);
    let sidecar = Sidecar::start_with(vault, directory);
    sleep_seconds(600).await;
    let attempts = sidecar.vault.requests(REVOKE_ACCESSOR).received;
    assert!((20..=40).contains(&attempts), "{attempts} attempts in ten minutes, for two tokens");
    assert_eq!(sidecar.accessor_files(), 2);
    sidecar.vault.recover();
    until(|| sidecar.accessor_files() == 0).await;
    assert_eq!((sidecar.vault.tokens(), sidecar.vault.leases()), (0, 0));
    sidecar.clean_up();
}

#[tokio::test(start_paused = true)]
async fn the_accessor_of_a_token_that_is_already_revoked_is_removed() {
    let sidecar = Sidecar::start();
    let session = sidecar.session(HOUR);
    let lease = read(&session).await.unwrap();
    sidecar.vault.fail(REVOKE_SELF, 500);
    end(&session).await;
    let (vault, directory) = sidecar.stop().await;
    drop((lease, session));
    vault.revoke_all();
    let sidecar = Sidecar::start_with(vault, directory);
    until(|| sidecar.accessor_files() == 0).await;
    assert_eq!(sidecar.vault.requests(REVOKE_ACCESSOR).received, 1);
    sidecar.clean_up();
}
