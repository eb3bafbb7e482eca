//! Every call, on a real server.

use std::collections::BTreeMap;
use std::time::Duration;

use cofferdam_tests::http::{Reply, listen};
use cofferdam_tests::openbao::{KvEngine, OpenBao};
use cofferdam_tests::vault::{certificate_authority, set_certificate_ttl, token_role};
use cofferdam_vault::{ChildToken, ClientSettings, Kind, KvVersion, Mint, Renewable, Vault};
use serde_json::{Value, json};
use vaultrs::kv2;

use crate::support::{client, eventually, root, token, value};

fn child(policies: &[&str], ttl: u64) -> ChildToken {
    ChildToken {
        policies: policies.iter().map(ToString::to_string).collect(),
        metadata: BTreeMap::from([("session".into(), "s-1".into())]),
        display_name: "cofferdam".into(),
        ttl: Duration::from_secs(ttl),
        explicit_max_ttl: Duration::ZERO,
        renewable: Renewable::Yes,
    }
}

fn object(value: Value) -> serde_json::Map<String, Value> {
    value.as_object().expect("an object").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_created_looked_up_renewed_and_revoked() {
    let Some(server) = OpenBao::dev() else { return };
    let (vault, root) = (client(&server), root(&server));
    let made = vault.create_child(&root, &child(&["default"], 60), Mint::Plain).await.unwrap();
    assert_eq!((made.lease_duration.as_secs(), made.renewable), (60, true));
    let facts = vault.lookup_self(&made.token).await.unwrap();
    assert_eq!(facts.policies, ["default"]);
    assert_eq!(facts.metadata["session"], "s-1");
    assert_eq!(facts.accessor, made.accessor);
    assert!(!facts.orphan && facts.renewable && facts.uses_left == 0);
    assert!((50..=60).contains(&facts.ttl.as_secs()), "{facts:?}");
    let renewed = vault.renew_self(&made.token, Some(Duration::from_secs(120))).await.unwrap();
    assert_eq!(renewed.lease_duration.as_secs(), 120);
    vault.revoke_accessor(&root, made.accessor.as_ref().unwrap()).await.unwrap();
    assert_eq!(vault.lookup_self(&made.token).await.unwrap_err().kind(), Kind::Denied);

    server.policy("agent", &[("secret/data/*", &["read"])]);
    server.token_role("cofferdam", token_role(&["agent"]).orphan(true));
    let made = vault.create_child(&root, &child(&["agent"], 60), Mint::Role("cofferdam")).await.unwrap();
    assert!(vault.lookup_self(&made.token).await.unwrap().orphan);
    vault.revoke_self(&made.token).await.unwrap();
    assert_eq!(vault.revoke_self(&made.token).await.unwrap_err().kind(), Kind::Denied);
    let refused =
        vault.create_child(&root, &child(&["root"], 60), Mint::Role("cofferdam")).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid, "{}", refused.explained());
    assert_eq!(vault.lookup_self(&root).await.unwrap().expires(), None, "a root token does not expire");
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_of_kv_are_detected() {
    let Some(server) = OpenBao::dev() else { return };
    let (vault, root) = (client(&server), root(&server));
    server.mount_kv("plain", KvEngine::V1);
    server.mount_kv("team/kv", KvEngine::V2);
    server.write_plain_secret("plain", "app", json!({"token": "one", "ttl": "30s"}));
    for (mount, path) in [("secret", "my app"), ("team/kv", "deep/app")] {
        for value in ["one", "two"] {
            let data = json!({"token": value});
            server.operator("write a secret", async |client| kv2::set(client, mount, path, &data).await);
        }
    }
    let plain = vault.kv_read(&root, "plain/app").await.unwrap();
    assert_eq!((plain.version, plain.refresh), (None, Some(Duration::from_secs(30))));
    for path in ["secret/my app", "team/kv/deep/app"] {
        let found = vault.kv_read(&root, path).await.unwrap();
        assert_eq!(found.version, Some(2));
        assert_eq!(found.data.as_bytes(), br#"{"token":"two"}"#);
        assert!(!found.request_id.is_empty());
    }
    let version = vault.kv_version(&root, "team/kv/deep/app").await.unwrap();
    assert_eq!(version, KvVersion::V2 { mount: "team/kv/".into() });
    server.operator("delete a secret", async |client| kv2::delete_latest(client, "secret", "my app").await);
    for path in ["secret/my app", "secret/none", "plain/none"] {
        assert_eq!(vault.kv_read(&root, path).await.unwrap_err().kind(), Kind::Missing, "{path}");
    }
    for path in ["no-mount/app", "sys/mounts", "secret/../sys/mounts", "secret"] {
        let refused = vault.kv_read(&root, path).await.unwrap_err();
        assert!(refused.explained().contains(path), "{}", refused.explained());
    }
    server.policy("few", &[("secret/data/open", &["read"])]);
    let few = vault.create_child(&root, &child(&["few"], 60), Mint::Plain).await.unwrap().token;
    server.write_secret("open", json!({"a": "b"}));
    assert_eq!(vault.kv_read(&few, "secret/open").await.unwrap().version, Some(1));
    assert_eq!(vault.kv_read(&few, "secret/closed").await.unwrap_err().kind(), Kind::Denied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_gives_a_lease_that_can_be_looked_up_until_it_is_revoked() {
    let Some(server) = OpenBao::dev() else { return };
    let (vault, root) = (client(&server), root(&server));
    certificate_authority(&server, "1h");
    set_certificate_ttl(&server, "10m");
    let wanted = object(json!({"common_name": "agent.internal", "ttl": "5m"}));
    let issued = vault.write(&root, "pki/issue/agent", &wanted).await.unwrap();
    let lease = issued.lease_id.as_ref().unwrap();
    assert!(!issued.renewable && issued.data.is_some() && issued.lease_duration.as_secs() > 200);
    let facts = vault.lookup_lease(&root, lease).await.unwrap();
    assert!(facts.ttl.as_secs() > 200 && !facts.renewable, "{facts:?}");
    assert_eq!(vault.renew_lease(&root, lease, None).await.unwrap_err().kind(), Kind::Invalid);
    server.api("PUT", "sys/leases/revoke-prefix/pki/issue", json!({"sync": true}));
    for gone in [
        vault.lookup_lease(&root, lease).await.unwrap_err(),
        vault.renew_lease(&root, lease, Some(Duration::from_secs(5))).await.unwrap_err(),
    ] {
        assert_eq!(gone.kind(), Kind::Gone, "{}", gone.explained());
    }
    let unknown = vault.write(&root, "pki/issue/unknown", &wanted).await.unwrap_err();
    assert_eq!(unknown.kind(), Kind::Invalid);
    assert!(unknown.explained().contains("POST `pki/issue/unknown`"), "{}", unknown.explained());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_up_to_its_maximum_and_dies_with_its_token() {
    let Some(server) = OpenBao::dev() else { return };
    let (vault, root) = (client(&server), root(&server));
    // A fake broker for the engine, which accepts every user.
    let broker = listen(|_| Reply::Status(204));
    server.mount("rabbitmq", "rabbitmq");
    let connection = json!({"connection_uri": format!("http://{broker}"), "username": "admin", "password": "admin-password", "verify_connection": false});
    server.api("POST", "rabbitmq/config/connection", connection);
    server.api("POST", "rabbitmq/config/lease", json!({"ttl": 60, "max_ttl": 90}));
    server.api("POST", "rabbitmq/roles/agent", json!({"vhosts": r#"{"/":{"read":".*"}}"#}));
    server.policy("broker", &[("rabbitmq/creds/agent", &["read"])]);
    let holder = vault.create_child(&root, &child(&["broker"], 30), Mint::Plain).await.unwrap();
    let given = vault.read(&holder.token, "rabbitmq/creds/agent").await.unwrap();
    let lease = given.lease_id.as_ref().unwrap();
    assert!(
        given.renewable && given.lease_duration.as_secs() == 60,
        "the lease is limited by the token's 30 s"
    );
    let minute = Some(Duration::from_secs(60));
    let renewed = vault.renew_lease(&holder.token, lease, minute).await.unwrap();
    assert_eq!(renewed.lease_duration.as_secs(), 60);
    let capped = vault.renew_lease(&holder.token, lease, Some(Duration::from_secs(3600))).await.unwrap();
    assert!((80..=90).contains(&capped.lease_duration.as_secs()), "{capped:?}");
    assert!(!capped.warnings.is_empty(), "Vault granted less than requested without a warning");
    assert!(vault.lookup_lease(&root, lease).await.unwrap().renewable);
    vault.revoke_self(&holder.token).await.unwrap();
    eventually("the lease died with its token", async || {
        vault.lookup_lease(&root, lease).await.is_err_and(|error| error.kind() == Kind::Gone)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn capabilities_and_health_are_read() {
    let Some(server) = OpenBao::dev() else { return };
    let (vault, root) = (client(&server), root(&server));
    server.policy("agent", &[("secret/data/*", &["read", "list"])]);
    let made = vault.create_child(&root, &child(&["agent"], 60), Mint::Plain).await.unwrap();
    let may = vault.capabilities_self(&made.token, &["secret/data/x", "database/creds/x"]).await.unwrap();
    assert_eq!(may, [vec!["list".to_owned(), "read".to_owned()], vec!["deny".to_owned()]]);
    let health = vault.health().await.unwrap();
    assert!(health.initialized && !health.sealed && !health.standby && health.status == 200, "{health:?}");
    assert!(health.version.starts_with("2."), "{health:?}");
    assert_eq!(vault.read(&token("s.unknown"), "secret/data/x").await.unwrap_err().kind(), Kind::Denied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_is_separate() {
    let Some(server) = OpenBao::dev() else { return };
    server.api("POST", "sys/namespaces/team", json!({}));
    server.api("POST", "team/sys/mounts/kv", json!({"type": "kv", "options": {"version": "1"}}));
    server.api("POST", "team/kv/app", json!({"token": "of the team"}));
    let settings = |namespace: &str| ClientSettings {
        address: server.address().parse().unwrap(),
        namespace: Some(namespace.to_owned()),
        ca_file: None,
    };
    let team = Vault::new(&settings("/team/")).unwrap();
    let found = team.kv_read(&root(&server), "kv/app").await.unwrap();
    assert_eq!(found.data.as_bytes(), br#"{"token":"of the team"}"#);
    assert!(client(&server).kv_read(&root(&server), "kv/app").await.is_err());
    let made = team.create_child(&root(&server), &child(&["default"], 60), Mint::Plain).await.unwrap();
    assert!(team.lookup_self(&made.token).await.is_ok(), "{}", value(&made.token).len());
    assert!(Vault::new(&settings("a\nb")).is_err());
}
