//! The real nginx, HAProxy and Caddy between a sandbox and its sidecar: the shipped examples carry links, a restart of
//! the proxy or of the sidecar loses nothing, and a configuration that cannot carry links is reported with the next step.

use std::net::SocketAddr;

use cofferdam_tests::harness::text_of;
use cofferdam_tests::process::output_of;
use cofferdam_tests::reverse_proxy::{ReverseProxy, ReverseProxyProgram};
use serde_json::json;

use crate::support::{Sandbox, assert_link_works, with_a_port};

/// Asserts that every kind of call passes through a proxy with this site.
#[track_caller]
fn assert_site_carries_links(program: ReverseProxyProgram, site: &str) {
    let (world, sidecar) = with_a_port(|builder, _| builder);
    let Some(proxy) = ReverseProxy::start(program, site, sidecar) else { return };
    let relay = format!("wss://{}/relay", proxy.listens_at);
    assert_link_works(&world, Sandbox::enrolled(&world, "a").shim(&["--relay", &relay]));
}

/// What `cofferdam-shim status` reports about a relay that it cannot use.
#[track_caller]
fn reported_problem(sandbox: &Sandbox, scheme: &str, proxy: SocketAddr) -> String {
    let relay = format!("{scheme}://{proxy}{}", if scheme == "wss" { "/relay" } else { "" });
    let status = output_of(sandbox.status(&["--relay".to_owned(), relay]), "cofferdam-shim status");
    let printed = String::from_utf8_lossy(&status.stderr).into_owned();
    assert_eq!(status.status.code(), Some(69), "{printed}");
    printed
}

#[test]
fn each_example_of_a_reverse_proxy_carries_links() {
    for program in ReverseProxyProgram::ALL {
        assert_site_carries_links(program, program.example());
    }
}

#[test]
fn haproxy_and_caddy_carry_links_without_further_settings() {
    for program in [ReverseProxyProgram::Caddy, ReverseProxyProgram::Haproxy] {
        assert_site_carries_links(program, program.default_site());
    }
}

/// nginx forwards HTTP/1.0 without the upgrade unless it is told otherwise. The second site forwards the upgrade, but
/// still in HTTP/1.0, in which there are none.
#[test]
fn an_nginx_that_drops_upgrades_is_reported_with_the_lines_to_add() {
    let program = ReverseProxyProgram::Nginx;
    let without_version = program.example().replace("proxy_http_version 1.1;", "");
    for site in [program.default_site(), &without_version] {
        let (world, sidecar) = with_a_port(|builder, _| builder);
        let Some(proxy) = ReverseProxy::start(program, site, sidecar) else { return };
        let problem = reported_problem(&Sandbox::enrolled(&world, "a"), "wss", proxy.listens_at);
        for part in
            ["does not forward WebSocket upgrades (status 426)", "HTTP/1.1", "`Upgrade`", "`Connection`"]
        {
            assert!(problem.contains(part), "{part:?} in: {problem}");
        }
        let log = world.log();
        assert!(log.contains("HTTP/1.0") && log.contains("proxy_http_version 1.1"), "{log}");
    }
}

#[test]
fn a_tls_address_of_a_reverse_proxy_is_reported_with_the_right_scheme() {
    for program in ReverseProxyProgram::ALL {
        let (world, sidecar) = with_a_port(|builder, _| builder);
        let Some(proxy) = ReverseProxy::start(program, program.default_site(), sidecar) else { return };
        let problem = reported_problem(&Sandbox::enrolled(&world, "a"), "tls", proxy.listens_at);
        assert!(problem.contains("use a `wss://` address"), "{program:?}: {problem}");
    }
}

#[test]
fn a_restart_of_a_reverse_proxy_loses_and_repeats_nothing() {
    for program in ReverseProxyProgram::ALL {
        let (world, sidecar) = with_a_port(|builder, _| builder);
        let Some(mut proxy) = ReverseProxy::start(program, program.example(), sidecar) else { return };
        let relay = format!("wss://{}/relay", proxy.listens_at);
        let mut shim = Sandbox::enrolled(&world, "a").shim(&["--relay", &relay]);
        shim.initialize();
        let in_flight = shim.send_call("slow", json!({"ms": 2_000}));
        world.wait_until("the call runs", || world.times_executed("tools", "slow") == 1);
        proxy.stop();
        let meanwhile = shim.send_call("add", json!({"a": 1, "b": 2}));
        proxy.up();
        assert_eq!(text_of(&shim.answer_to(&meanwhile)), "3", "{program:?}");
        assert_eq!(text_of(&shim.answer_to(&in_flight)), "late", "{program:?}");
        let executed = |tool| world.times_executed("tools", tool);
        assert_eq!((executed("slow"), executed("add")), (1, 1), "{program:?}");
    }
}

#[test]
fn a_stopped_sidecar_behind_a_reverse_proxy_is_named_and_reconnected() {
    for program in ReverseProxyProgram::ALL {
        let (mut world, sidecar) = with_a_port(|builder, _| builder);
        let Some(proxy) = ReverseProxy::start(program, program.example(), sidecar) else { return };
        let relay = format!("wss://{}/relay", proxy.listens_at);
        let sandbox = Sandbox::enrolled(&world, "a");
        let mut shim = sandbox.shim(&["--relay", &relay]);
        shim.initialize();
        world.stop_sidecar();
        let problem = reported_problem(&sandbox, "wss", proxy.listens_at);
        for part in ["reverse proxy cannot reach the sidecar", "is `cofferdam serve` running", "`relay.tls`"]
        {
            assert!(problem.contains(part), "{program:?}: {part:?} in: {problem}");
        }
        world.start_sidecar();
        assert_eq!(shim.call_text("add", json!({"a": 3, "b": 4})), "7", "{program:?}");
    }
}

/// nginx also speaks no TLS newer than 1.2 to the servers behind it, unless it is told otherwise.
#[test]
fn tls_1_2_carries_links_on_both_sides_of_a_reverse_proxy() {
    let program = ReverseProxyProgram::Nginx;
    let in_front =
        program.example().replace("listen 443 ssl;", "listen 443 ssl;\n    ssl_protocols TLSv1.2;");
    let behind = program.example().replace("proxy_pass http://", "proxy_pass https://");
    assert_ne!(in_front, behind);
    for site in [in_front, behind] {
        assert_site_carries_links(program, &site);
    }
}

#[test]
fn a_reverse_proxy_with_tls_older_than_1_2_is_reported() {
    let program = ReverseProxyProgram::Nginx;
    let outdated = "listen 443 ssl;\n    ssl_protocols TLSv1.1;\n    ssl_ciphers ALL:@SECLEVEL=0;";
    let site = program.example().replace("listen 443 ssl;", outdated);
    let (world, sidecar) = with_a_port(|builder, _| builder);
    let Some(proxy) = ReverseProxy::start(program, &site, sidecar) else { return };
    let problem = reported_problem(&Sandbox::enrolled(&world, "a"), "wss", proxy.listens_at);
    for part in ["no TLS newer than 1.1", "enable TLS 1.2 or 1.3"] {
        assert!(problem.contains(part), "{part:?} in: {problem}");
    }
}
