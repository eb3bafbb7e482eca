//! The login task on paused time, with scripted responses. `tests/tests/vault_client` tests it against a real server.

use std::collections::VecDeque;

use super::backend::{GrantedToken, LoginBackend};
use super::*;
use crate::error::{Kind, VaultMessages};

/// A token and its lifetime in seconds, or a status.
type ScriptedResponse = Result<(&'static str, u64), u16>;

/// Stands in for Vault. The last response of each queue is repeated.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<ScriptState>>);

#[derive(Default)]
struct ScriptState {
    logins: VecDeque<ScriptedResponse>,
    renewals: VecDeque<ScriptedResponse>,
    verifications: VecDeque<ScriptedResponse>,
    requests: Vec<(&'static str, Instant)>,
    renewable: bool,
}

fn next(responses: &mut VecDeque<ScriptedResponse>) -> ScriptedResponse {
    match responses.len() {
        0 => Err(500),
        1 => responses[0],
        _ => responses.pop_front().expect("at least two"),
    }
}

fn granted(response: ScriptedResponse, renewable: bool) -> Result<GrantedToken, VaultError> {
    let (token, lifetime) = response.map_err(|status| {
        let retry_after = (status == 429).then_some(Duration::from_secs(20));
        login_error(Problem::Status { status, messages: VaultMessages::default(), retry_after })
    })?;
    let lifetime = Duration::from_secs(lifetime);
    Ok(GrantedToken {
        token: Arc::new(Token::read(token.as_bytes()).unwrap()),
        accessor: None,
        lifetime,
        expires: (!lifetime.is_zero()).then(|| Instant::now() + lifetime),
        renewable,
        policies: Vec::new(),
    })
}

impl Script {
    fn new(logins: &[ScriptedResponse], renewals: &[ScriptedResponse]) -> Self {
        let script = Self::default();
        let mut responses = script.0.lock().unwrap();
        responses.logins = logins.iter().copied().collect();
        responses.renewals = renewals.iter().copied().collect();
        responses.renewable = !renewals.is_empty();
        drop(responses);
        script
    }

    fn respond(&self, what: &'static str) -> (ScriptedResponse, bool) {
        let mut responses = self.0.lock().unwrap();
        responses.requests.push((what, Instant::now()));
        let response = match what {
            "login" => next(&mut responses.logins),
            "renew" => next(&mut responses.renewals),
            _ => next(&mut responses.verifications),
        };
        (response, responses.renewable)
    }

    fn start(&self) -> Arc<SharedLogin> {
        let shared = SharedLogin::new(CancellationToken::new());
        let tasks = TaskTracker::new();
        tasks.spawn(task::LoginTask::new(self.clone(), shared.clone()).run());
        shared
    }

    fn requests(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().requests.iter().map(|(what, _)| *what).collect()
    }

    fn times(&self, wanted: &str) -> Vec<Instant> {
        self.0
            .lock()
            .unwrap()
            .requests
            .iter()
            .filter(|(what, _)| *what == wanted)
            .map(|(_, at)| *at)
            .collect()
    }
}

impl LoginBackend for Script {
    async fn log_in(&mut self) -> Result<GrantedToken, VaultError> {
        let (response, renewable) = self.respond("login");
        granted(response, renewable)
    }

    async fn renew(&mut self, held: &LoginToken, _: Duration) -> Result<GrantedToken, VaultError> {
        let (response, renewable) = self.respond("renew");
        granted(response, renewable).map(|granted| GrantedToken { token: held.token.clone(), ..granted })
    }

    async fn verify(&mut self, _: &LoginToken) -> Result<(), VaultError> {
        granted(self.respond("verify").0, true).map(drop)
    }
}

/// Waits for the second token, at most a day of the paused clock.
async fn second_generation(shared: &SharedLogin) {
    let mut changed = shared.generation.subscribe();
    let second = changed.wait_for(|generation| *generation == 2);
    tokio::time::timeout(Duration::from_secs(24 * 3600), second)
        .await
        .expect("no second token within a day")
        .unwrap();
}

async fn sleep_seconds(time: u64) {
    tokio::time::sleep(Duration::from_secs(time)).await;
}

#[tokio::test(start_paused = true)]
async fn one_token_lasts_a_day_and_is_renewed_at_two_thirds_of_its_life() {
    let script = Script::new(&[Ok(("s.one", 3600))], &[Ok(("s.one", 3600))]);
    let shared = script.start();
    let start = Instant::now();
    sleep_seconds(24 * 3600).await;
    let renewals = script.times("renew");
    assert!((36..=40).contains(&renewals.len()), "{}", renewals.len());
    let first = renewals[0] - start;
    assert!((2160..=2400).contains(&first.as_secs()), "{first:?}");
    assert_eq!(script.times("login").len(), 1);
    assert_eq!(shared.current().await.unwrap().generation, 1);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_does_not_extend_causes_a_login_while_the_old_token_is_valid() {
    let script = Script::new(
        &[Ok(("s.one", 60)), Ok(("s.two", 60))],
        &[Ok(("s.one", 60)), Ok(("s.one", 20)), Ok(("s.two", 60))],
    );
    let shared = script.start();
    let first = shared.current().await.unwrap();
    second_generation(&shared).await;
    let second = shared.current().await.unwrap();
    assert_eq!(script.requests(), ["login", "renew", "renew", "login"]);
    assert_eq!((first.generation, second.generation), (1, 2));
    let old = shared.retired.lock().unwrap()[0].clone();
    assert!(
        old.token.is_same_as(&first.token) && old.is_live(),
        "the old token does not stay valid for its users"
    );
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_not_renewable_is_replaced_at_two_thirds() {
    let script = Script::new(&[Ok(("s.one", 90)), Ok(("s.two", 90)), Ok(("s.three", 90))], &[]);
    let shared = script.start();
    let start = Instant::now();
    sleep_seconds(61).await;
    assert_eq!(shared.current().await.unwrap().generation, 2);
    let second = script.times("login")[1] - start;
    assert!((54..=60).contains(&second.as_secs()), "{second:?}");
}

#[tokio::test(start_paused = true)]
async fn the_current_token_is_used_during_an_outage_until_it_expires() {
    let script = Script::new(&[Ok(("s.one", 3600)), Err(503)], &[Err(503)]);
    let shared = script.start();
    sleep_seconds(3500).await;
    assert_eq!(shared.current().await.unwrap().generation, 1, "a token that is still valid was replaced");
    assert_eq!(shared.state.borrow().failure.as_ref().unwrap().error.kind(), Kind::Sealed);
    sleep_seconds(101).await;
    let asked = Instant::now();
    assert_eq!(shared.current().await.unwrap_err().kind(), Kind::Sealed);
    assert!(asked.elapsed() < Duration::from_secs(10));
    script.0.lock().unwrap().logins = [Ok(("s.two", 3600))].into();
    assert_eq!(shared.current().await.unwrap().generation, 2, "the login did not recover");
    let attempts = script.requests().len();
    assert!(attempts < 100, "{attempts} attempts in twenty minutes of outage");
}

#[tokio::test(start_paused = true)]
async fn attempts_back_off_and_come_every_five_seconds_while_a_caller_waits() {
    let script = Script::new(&[Err(403)], &[]);
    let shared = script.start();
    sleep_seconds(3600).await;
    let idle = script.times("login").len();
    assert!((60..=90).contains(&idle), "{idle} attempts in an idle hour");
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(600) {
        let asked = Instant::now();
        assert_eq!(shared.current().await.unwrap_err().kind(), Kind::Denied);
        assert!(asked.elapsed() <= Duration::from_secs(9), "{:?}", asked.elapsed());
    }
    let awaited = script.times("login").len() - idle;
    assert!((118..=122).contains(&awaited), "{awaited} attempts in ten minutes of waiting");
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_obeyed() {
    let script = Script::new(&[Err(429), Ok(("s.one", 60))], &[]);
    let shared = script.start();
    let start = Instant::now();
    while shared.current().await.is_err() {}
    assert!(start.elapsed() >= Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(script.requests(), ["login", "login"]);
}

#[tokio::test(start_paused = true)]
async fn tokens_that_expire_after_a_second_do_not_cause_a_flood_of_requests() {
    let script = Script::new(&[Ok(("s.one", 1)), Ok(("s.two", 1))], &[Ok(("s.one", 0)), Err(403)]);
    script.0.lock().unwrap().renewals = [Err(403)].into();
    let _shared = script.start();
    sleep_seconds(100).await;
    let attempts = script.requests().len();
    assert!(attempts <= 201, "{attempts} requests in 100 s");
}

#[tokio::test(start_paused = true)]
async fn a_refused_token_is_verified_and_replaced_only_if_it_is_invalid() {
    let script = Script::new(&[Ok(("s.one", 3600)), Ok(("s.two", 3600))], &[Ok(("s.one", 3600))]);
    script.0.lock().unwrap().verifications = [Ok(("s.one", 3600))].into();
    let shared = script.start();
    shared.current().await.unwrap();
    let report_refusal = |generation| {
        shared.refused_generation.store(generation, Ordering::Release);
        shared.wake.notify_one();
    };
    // Many refusals by policy neither cause many requests nor delay the renewal.
    for _ in 0..26_000 {
        report_refusal(1);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let verifications = script.times("verify").len();
    assert!((1200..=1310).contains(&verifications), "{verifications}");
    assert_eq!(script.times("renew").len(), 1);
    assert_eq!(script.times("login").len(), 1);
    script.0.lock().unwrap().verifications = [Err(403)].into();
    report_refusal(1);
    second_generation(&shared).await;
    report_refusal(1);
    sleep_seconds(10).await;
    assert_eq!(script.times("login").len(), 2, "the refusal of an older token caused a login");
}

#[tokio::test(start_paused = true)]
async fn the_same_token_again_is_no_new_generation() {
    let script =
        Script::new(&[Ok(("s.one", 60)), Ok(("s.one", 20)), Ok(("s.one", 13)), Ok(("s.two", 60))], &[]);
    let shared = script.start();
    sleep_seconds(41).await;
    assert_eq!(shared.current().await.unwrap().generation, 1);
    sleep_seconds(18).await;
    assert_eq!(shared.current().await.unwrap().generation, 2);
    assert_eq!(script.times("login").len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_does_not_expire_is_not_renewed_and_a_stop_ends_every_wait() {
    let script = Script::new(&[Ok(("s.root", 0))], &[Ok(("s.root", 0))]);
    let shared = script.start();
    sleep_seconds(30 * 24 * 3600).await;
    assert_eq!(script.requests(), ["login"]);
    assert!(shared.current().await.unwrap().expires.is_none());
    shared.discard_current();
    shared.stop.cancel();
    assert_eq!(shared.current().await.unwrap_err().kind(), Kind::Stopped);
}
