//! No secret is in any printable form of the client's types.

use std::time::Duration;

use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::vault::{certificate_authority, set_certificate_ttl};
use cofferdam_vault::login::{Method, SecretId};
use cofferdam_vault::{ChildToken, Mint};
use serde_json::json;

use crate::support::{client, create_app_role, explained, log_in, root, secret_id, value, write_file};

#[tokio::test(flavor = "multi_thread")]
async fn debug_output_contains_no_token_secret_or_lease() {
    let Some(server) = OpenBao::dev() else { return };
    let (vault, root) = (client(&server), root(&server));
    let role_id_file = create_app_role(&server, "60s", "1h");
    let secret = secret_id(&server);
    let secret_id = SecretId::Plain { file: write_file(&server, "secret-id", &secret) };
    let method = Method::AppRole { mount: "approle".into(), role_id_file, secret_id };
    server.write_secret("app", json!({"password": "CANARY-of-the-secret"}));
    certificate_authority(&server, "1h");
    set_certificate_ttl(&server, "10m");

    let mut printed = format!("{method:?} {vault:?} {root:?}");
    let test_login = log_in(vault.clone(), method);
    let held = test_login.login.current().await.unwrap();
    let wanted = ChildToken {
        policies: vec!["default".into()],
        ttl: Duration::from_secs(60),
        ..ChildToken::default()
    };
    let child = vault.create_child(&root, &wanted, Mint::Plain).await.unwrap();
    let read = vault.kv_read(&root, "secret/app").await.unwrap();
    let envelope = vault.read(&root, "secret/data/app").await.unwrap();
    let common_name = json!({"common_name": "a.internal"}).as_object().unwrap().clone();
    let issued = vault.write(&root, "pki/issue/agent", &common_name).await.unwrap();
    let lease = issued.lease_id.as_ref().unwrap();
    printed += &format!("{:?} {held:?} {child:#?} {read:?} {envelope:?} {issued:#?}", test_login.login);
    printed += &format!("{:?}", vault.lookup_self(&held.token).await.unwrap());
    printed += &explained(&vault.renew_lease(&root, lease, None).await.unwrap_err());
    printed += &explained(&vault.read(&held.token, "sys/mounts").await.unwrap_err());
    vault.revoke_self(&child.token).await.unwrap();
    printed += &explained(&vault.lookup_self(&child.token).await.unwrap_err());

    // A needle is what scrubbers search for: here the text of the lease id, which is hidden otherwise.
    let lease = String::from_utf8(lease.needle("lease").value.to_vec()).unwrap();
    let accessor = held.accessor.as_ref().unwrap().as_str().to_owned();
    let values =
        [value(&held.token), value(&child.token), secret, lease, accessor, "CANARY-of-the-secret".into()];
    for value in values {
        assert!(value.len() > 8 && !printed.contains(&value), "printed: {value}");
    }
    assert!(!printed.contains("BEGIN"), "a key is printed");
}
