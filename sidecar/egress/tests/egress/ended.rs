//! Connections that end early, and the end of a whole network.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_egress::{Ending, Event, LimitReached, Limits, Refusal, ServeError, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::hosts::Host;
use crate::support::{self, End, Names, PUBLIC, Server, in_world, plan, python};

#[test]
fn idle_connections_and_those_beyond_the_bytes_are_reset() {
    in_world(async || {
        let silent = Host::silent("93.184.215.14:80").await;
        let names = Names::one("a.example", PUBLIC);
        let limits = Limits { idle: Duration::from_millis(300), ..Limits::default() };
        let server = Server::start_with(&["a.example:80"], &names, limits);
        assert_eq!(server.python("print(fetch('a.example', 80, b'hello'))").await, "ECONNRESET");
        let ending = |event: &Event| match event {
            Event::Closed { ending, .. } => Some(*ending),
            _ => None,
        };
        assert_eq!(server.events.wait_for("closed", ending).await, Ending::Idle);

        let limits = Limits { bytes: Some(1000), ..Limits::default() };
        let server = Server::start_with(&["a.example:80"], &names, limits);
        let printed = server.python("print(fetch('a.example', 80, b'x' * 1001), fetch('a.example'))").await;
        assert_eq!(printed, "ECONNRESET ECONNRESET");
        assert_eq!(server.events.wait_for("closed", ending).await, Ending::Refused);
        server.events.wait_for_refusal(Refusal::Limit { limit: LimitReached::Bytes }).await;
        // One of each server: the bytes were used up before the last one.
        assert_eq!(silent.connections(), 2);
    });
}

#[test]
fn a_host_that_cannot_be_reached_is_reported_and_the_client_is_told() {
    in_world(async || {
        let names = Names::one("closed.example", PUBLIC);
        let server = Server::start(&["closed.example:80", "gone.example:80"], &names);
        let printed = server.python("print(fetch('closed.example'), fetch('gone.example'))").await;
        assert_eq!(printed, "ECONNRESET ECONNRESET");
        for (host, part) in [("closed.example", "refused"), ("gone.example", "cannot be resolved")] {
            let failed = |event: &Event| match event {
                Event::Failed { peer, error, .. } if peer.host == host => Some(error.clone()),
                _ => None,
            };
            let error = server.events.wait_for(host, failed).await;
            assert!(error.contains(part), "{error}");
        }
    });
}

#[test]
fn a_connection_that_one_side_breaks_off_ends_on_the_other() {
    in_world(async || {
        let _resetting = Host::start("93.184.215.14:80", async |mut socket| {
            socket.read_u8().await?;
            socket.set_zero_linger()
        })
        .await;
        let _waiting = Host::start("93.184.215.14:81", async |mut socket| {
            socket.write_u8(b'x').await?;
            socket.read_to_end(&mut Vec::new()).await.map(drop)
        })
        .await;
        let server = Server::start(&["a.example:80", "a.example:81"], &Names::one("a.example", PUBLIC));
        let printed = server
            .python(
                "
print(fetch('a.example', 80, b'x'))
connection = socket.create_connection(('a.example', 81))
print(connection.recv(1))
connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
connection.close()",
            )
            .await;
        assert_eq!(printed, "ECONNRESET\nb'x'");
        for port in [80, 81] {
            let ending = |event: &Event| match event {
                Event::Closed { peer, ending, .. } if peer.port == port => Some(*ending),
                _ => None,
            };
            assert_eq!(server.events.wait_for("closed", ending).await, Ending::Reset, "{port}");
        }
    });
}

#[test]
fn at_the_end_no_socket_of_the_network_is_left() {
    in_world(async || {
        for end in [End::Awaited, End::Dropped] {
            let before = open_sockets();
            let host = Host::silent("93.184.215.14:80").await;
            let names = Names::one("a.example.com", PUBLIC);
            let mut server = Server::start(&["*.example.com:80", "b.example.com:81"], &names);
            let client = server.start_program(&[
                "python3",
                "-c",
                &python(
                    "
connections = [socket.create_connection(('a.example.com', 80)) for _ in range(2)]
try:
    print(connections[0].recv(1))
except ConnectionResetError:
    print(b'')",
                ),
            ]);
            support::wait_until("both are open", || server.usage().connections == 2).await;
            server.end(end).await;
            assert_eq!(client.await.unwrap().stdout, "b''\n");
            let ending = |event: &Event| match event {
                Event::Closed { ending, .. } => Some(*ending),
                _ => None,
            };
            assert_eq!(server.events.wait_for("closed", ending).await, Ending::NetworkEnded);
            assert_eq!(host.connections().min(1), 1);
            drop(host);
            // What is left is this test's connection to the process in the server's network.
            let left = || open_sockets().difference(&before).count();
            support::wait_until("the sockets are closed", || left() == 1).await;
        }
    });
}

#[tokio::test]
async fn sockets_that_are_not_those_of_the_plan_are_not_served() {
    let listeners = ["127.0.0.1:0", "127.0.0.1:0"].map(|address| TcpListener::bind(address).unwrap());
    let addresses = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let hosts = addresses.map(|address| address.to_string());
    let plan = plan(&[&hosts[0], &hosts[1]]);
    let serve = |sockets: &[&TcpListener]| {
        let sockets = sockets.iter().map(|socket| OwnedFd::from(socket.try_clone().unwrap())).collect();
        let observer = Arc::new(support::Recorder::default());
        serve(plan.clone(), sockets, Limits::default(), Arc::new(Names::default()), observer)
    };
    let [first, second] = &listeners;
    let (first, second) = if addresses[0] < addresses[1] { (first, second) } else { (second, first) };
    assert!(serve(&[first, second]).is_ok());
    let swapped = serve(&[second, first]).err();
    assert!(matches!(swapped, Some(ServeError::WrongAddress { .. })), "{swapped:?}");
    let missing = serve(&[first]).err();
    assert!(matches!(missing, Some(ServeError::Count { planned: 2, received: 1 })), "{missing:?}");
}

fn open_sockets() -> BTreeSet<String> {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = descriptors.filter_map(|each| std::fs::read_link(each.unwrap().path()).ok());
    targets
        .map(|target| target.display().to_string())
        .filter(|target| target.starts_with("socket:"))
        .collect()
}
