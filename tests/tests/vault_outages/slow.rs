//! Vault is slow, or limits the rate of requests.

use std::time::Duration;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::shared_session::assert_logged_only;
use cofferdam_tests::vault::prepared;
use cofferdam_tests::vault_fault_proxy::Action;
use serde_json::{Value, json};

use crate::support::{Refusal, behind_proxy, next_try, refused, survives_behind_proxy};

#[test]
fn a_slow_vault_is_waited_for_and_a_very_slow_one_is_not() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let (proxy, world) = behind_proxy(&bao);
    proxy.rule("", Action::Delay(Duration::from_millis(800)));
    let mut late = world.shim("late");
    assert!(late.initialize().get("result").is_some());
    proxy.rule("", Action::Delay(Duration::from_secs(20)));
    let mut later = world.shim("late");
    let text = refused(&mut later, &["did not answer"]);
    assert_logged_only(&world, &text, &["it took longer than 5 s"]);
    assert!(late.call("echo", json!({"text": "x"})).get("result").is_some());
    proxy.clear_rules();
    wait_until("the server `late` starts", || later.initialize().get("result").is_some());
}

/// Sets a quota of one request per interval, and uses it up.
fn limit(bao: &OpenBao, interval: &str) {
    let quota = json!({"rate": 1, "interval": interval, "path": "pki/"});
    bao.api("POST", "sys/quotas/rate-limit/few", quota);
    let wanted = json!({"common_name": "other.internal"});
    wait_until("the quota is used up", || {
        bao.call("POST", "pki/issue/agent", Some(&bao.root_token), &wanted).status == 429
    });
}

#[test]
fn a_quota_without_retry_after_is_waited_out() {
    survives_behind_proxy(
        OpenBao::dev(),
        |bao, _| limit(bao, "1h"),
        Refusal {
            shown: &["too many requests", "HTTP 429", "raise the quota"],
            logged: &["POST `pki/issue/agent`"],
        },
        |bao, _| {
            bao.api("DELETE", "sys/quotas/rate-limit/few", Value::Null);
            // Revokes the operator's own leases too.
            bao.api("PUT", "sys/leases/revoke-prefix/pki/issue/agent", json!({}));
        },
    );
}

#[test]
fn retry_after_of_a_quota_is_respected() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    bao.api("POST", "sys/quotas/config", json!({"enable_rate_limit_response_headers": true}));
    let (proxy, world) = behind_proxy(&bao);
    limit(&bao, "24s");
    let mut late = world.shim("late");
    let refusal = refused(&mut late, &["too many requests"]);
    assert_logged_only(&world, &refusal, &["POST `pki/issue/agent`"]);
    let announced = next_try(&refusal);
    assert!((1..=25).contains(&announced), "{refusal}");
    let asked = proxy.count("pki/issue/agent");
    for _ in 0..10 {
        let again = next_try(&refused(&mut late, &["too many requests"]));
        assert!(again <= announced, "{again} s after {announced} s");
    }
    assert_eq!(proxy.count("pki/issue/agent"), asked, "a request was sent before the announced time");
    wait_until("the interval has passed", || late.initialize().get("result").is_some());
    // `Retry-After` is rounded, so one request may be early. A client that retries every five seconds would send more.
    let asked = proxy.count("pki/issue/agent") - asked;
    assert!(asked <= 2, "{asked} more requests, with a Retry-After of {announced} s");
}
