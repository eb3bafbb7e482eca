//! Real programs in the network of a confined server: what they reach, and that they reach nothing else.

#![expect(clippy::unwrap_used, reason = "a failed step of a test ends the test")]

#[path = "egress/hosts.rs"]
mod hosts;
#[path = "egress/support.rs"]
mod support;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_egress::{
    Ending, Event, LimitReached, Limits, Peer, Refusal, ServeError, ThroughPrivate, Traffic, serve,
};
use hosts::{Authority, Host};
use support::{End, Names, PUBLIC, Server, in_world, plan, python};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

/// `connect` and `fetch` return what they got, or the name of the error.
const CLIENT: &str = r"
def attempt(action):
    try:
        return action()
    except socket.gaierror as error:
        return {socket.EAI_NONAME: 'no such name', socket.EAI_AGAIN: 'try later'}.get(error.errno, str(error))
    except TimeoutError:
        return 'timed out'
    except OSError as error:
        return errno.errorcode[error.errno]
def connect(host, port):
    return attempt(lambda: socket.create_connection((host, port)).close() or 'connected')
def exchange(host, port, sent):
    with socket.create_connection((host, port)) as connection:
        connection.sendall(sent)
        received = b''
        while piece := connection.recv(1000): received += piece
        return received.decode().split('\r\n\r\n')[-1]
def fetch(host, port=80, sent=b'GET / HTTP/1.1\r\n\r\n'):
    return attempt(lambda: exchange(host, port, sent))
";

fn client(script: &str) -> String {
    format!("{CLIENT}{script}")
}

#[test]
fn curl_reaches_a_listed_name_over_tls() {
    in_world(async || {
        let authority = Authority::for_names(&["api.github.com"]);
        let _host = Host::https("93.184.215.14:443", &authority).await;
        let server = Server::start(&["api.github.com:443"], &Names::one("api.github.com", PUBLIC));
        let ca = authority.file();
        let fetched = server
            .run(&[
                "curl",
                "--silent",
                "--show-error",
                "--cacert",
                ca.to_str().unwrap(),
                "https://api.github.com/",
            ])
            .await;
        assert_eq!((fetched.code, fetched.stdout.as_str()), (0, "api.github.com"), "{fetched:?}");

        let peer = Peer { host: "api.github.com".into(), port: 443 };
        let closed = |event: &Event| match event {
            Event::Closed { peer, traffic, ending, .. } => Some((peer.clone(), *traffic, *ending)),
            _ => None,
        };
        let (closed, traffic, ending) = server.events.wait_for("closed", closed).await;
        assert_eq!((&closed, ending), (&peer, Ending::Finished));
        assert!(traffic.sent > 200 && traffic.received > 200, "{traffic:?}");
        assert_eq!(server.events.all()[0], Event::Opened(peer));
        let usage = server.usage();
        assert_eq!((usage.connections, usage.refusals, usage.traffic), (1, 0, traffic));
    });
}

#[test]
fn names_below_a_wildcard_are_looked_up_and_reached() {
    in_world(async || {
        let _exact = Host::http("93.184.215.14:80", "exact").await;
        let _below = Host::http("93.184.215.15:80", "below").await;
        let _address = Host::http("10.0.0.5:80", "address").await;
        let names =
            Names::new(&[("www.example.com", &[&[PUBLIC]]), ("a.b.example.com", &[&["93.184.215.15"]])]);
        // One listener serves them all: two cannot have the port.
        let server = Server::start(&["*.example.com:80", "www.example.com:80", "10.0.0.5:80"], &names);
        let fetched = server
            .python(&client(
                "
for host in 'www.example.com', 'A.b.Example.COM', '10.0.0.5':
    print(urllib.request.urlopen(f'http://{host}/').read().decode())
print(connect('example.com', 80))
print(sorted({each[4][0] for each in socket.getaddrinfo('a.b.example.com', 80)}))
print(fetch('127.0.0.1'))",
            ))
            .await;
        assert_eq!(fetched, "exact\nbelow\naddress\nno such name\n['29.18.0.2']\nECONNRESET");
        server.events.wait_for_refusal(Refusal::Name { name: "example.com".into() }).await;
        let refusal = Refusal::Address { address: [127, 0, 0, 1].into(), port: 80 };
        server.events.wait_for_refusal(refusal).await;
    });
}

#[test]
fn what_is_not_listed_is_refused_at_once() {
    in_world(async || {
        let host = Host::http("93.184.215.14:443", "reached").await;
        let other = Host::http("93.184.215.14:80", "reached").await;
        let metadata = Host::http("169.254.169.254:80", "reached").await;
        let loopback = Host::http("127.0.0.1:4444", "reached").await;
        let server = Server::start(&["api.github.com:443"], &Names::one("api.github.com", PUBLIC));
        let refused = server
            .python(&client(
                "
print(connect('api.github.com', 80))
print(connect('uploads.github.com', 443))
print(connect('127.0.0.1', 4444), connect('::1', 4444))
print(connect('93.184.215.14', 443), connect('169.254.169.254', 80), connect('2606:2800:21f::1', 443))
for port in 443, 53, 123:
    packet = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    packet.connect(('api.github.com', port))
    packet.send(b'hello')
    try:
        print(packet.recv(100))
    except OSError as error:
        print(errno.errorcode[error.errno])",
            ))
            .await;
        let expected = "ECONNREFUSED\nno such name\nECONNREFUSED ECONNREFUSED\n\
                        ENETUNREACH ENETUNREACH ENETUNREACH\nECONNREFUSED\nECONNREFUSED\nECONNREFUSED";
        assert_eq!(refused, expected);
        let refusal = Refusal::Name { name: "uploads.github.com".into() };
        assert_eq!(refusal.entry().as_deref(), Some("uploads.github.com:443"));
        server.events.wait_for_refusal(refusal).await;
        for host in [host, other, metadata, loopback] {
            assert_eq!(host.connections(), 0);
        }
    });
}

#[test]
fn look_ups_are_seen_also_without_a_listed_name() {
    in_world(async || {
        let server = Server::start_planned(plan(&[]).with_resolver(), &Names::default(), Limits::default());
        let printed =
            server.python(&client("print(connect('api.github.com', 443), connect('localhost', 1))")).await;
        assert_eq!(printed, "no such name ECONNREFUSED");
        server.events.wait_for_refusal(Refusal::Name { name: "api.github.com".into() }).await;

        let blind = Server::start(&[], &Names::default());
        assert_eq!(blind.python(&client("print(connect('api.github.com', 443))")).await, "try later");
    });
}

#[test]
fn a_host_may_speak_first_and_each_direction_ends_by_itself() {
    in_world(async || {
        let _banner = Host::start("93.184.215.14:22", async |mut socket| {
            socket.write_all(b"SSH-2.0-test\r\n").await?;
            socket.read_to_end(&mut Vec::new()).await.map(drop)
        })
        .await;
        let _echo = Host::echo("93.184.215.14:7").await;
        // Ends its own direction first, then reads.
        let (arrived, mut arrivals) = mpsc::channel(1);
        let _reading = Host::start("93.184.215.14:9", move |mut socket| {
            let arrived = arrived.clone();
            async move {
                socket.shutdown().await?;
                let mut all = Vec::new();
                socket.read_to_end(&mut all).await?;
                arrived.send(all).await.map_err(std::io::Error::other)
            }
        })
        .await;
        let server =
            Server::start(&["a.example:22", "a.example:7", "a.example:9"], &Names::one("a.example", PUBLIC));
        let printed = server
            .python(&client(
                "
print(socket.create_connection(('a.example', 22)).recv(100).decode().strip())
connection = socket.create_connection(('a.example', 7))
# A first byte of TLS, and no more: it is passed on at the end.
connection.sendall(b'\\x16')
connection.shutdown(socket.SHUT_WR)
print(connection.recv(100))
connection = socket.create_connection(('a.example', 9))
print(connection.recv(100))
connection.sendall(b'late')
connection.close()",
            ))
            .await;
        assert_eq!(printed, "SSH-2.0-test\nb'\\x16'\nb''");
        assert_eq!(arrivals.recv().await.as_deref(), Some(&b"late"[..]));
        let sent_late = |event: &Event| match event {
            Event::Closed { peer: Peer { port: 9, .. }, traffic, ending, .. } => Some((*traffic, *ending)),
            _ => None,
        };
        let closed = server.events.wait_for("closed", sent_late).await;
        assert_eq!(closed, (Traffic { sent: 4, received: 0 }, Ending::Finished));
    });
}

#[test]
fn a_hundred_megabytes_arrive_unchanged_in_each_direction() {
    const LENGTH: u64 = 100 * 1024 * 1024;
    in_world(async || {
        let _echo = Host::echo("93.184.215.14:7").await;
        let server = Server::start(&["a.example:7"], &Names::one("a.example", PUBLIC));
        let printed = server
            .python(
                "
import hashlib
block = os.urandom(1 << 20)
sent, received = hashlib.sha256(block * 100).hexdigest(), hashlib.sha256()
connection = socket.create_connection(('a.example', 7))
for _ in range(100): connection.sendall(block)
connection.shutdown(socket.SHUT_WR)
while piece := connection.recv(1 << 20): received.update(piece)
print(sent == received.hexdigest())",
            )
            .await;
        assert_eq!(printed, "True");
        assert_eq!(server.usage().traffic, Traffic { sent: LENGTH, received: LENGTH });
    });
}

#[test]
fn a_name_that_begins_to_resolve_to_a_private_address_is_refused() {
    in_world(async || {
        let _public = Host::http("93.184.215.14:80", "public").await;
        let private = Host::http("10.0.0.5:80", "private").await;
        let loopback = Host::http("127.0.0.1:80", "loopback").await;
        let metadata = Host::http("169.254.169.254:80", "metadata").await;
        let rebinding: &[&[&str]] = &[&[PUBLIC], &["10.0.0.5"], &["::ffff:10.0.0.5"], &["127.0.0.1"]];
        let names = Names::new(&[
            ("rebinding.example", rebinding),
            ("db.internal", &[&["10.0.0.5"], &["127.0.0.1"], &["169.254.169.254"]]),
        ]);
        let server = Server::start(&["rebinding.example:80", "private:db.internal:80"], &names);
        let printed = server
            .python(&client(
                "
print(*(fetch('rebinding.example') for _ in range(4)))
print(*(fetch('db.internal') for _ in range(3)))",
            ))
            .await;
        assert_eq!(printed, "public ECONNRESET ECONNRESET ECONNRESET\nprivate ECONNRESET ECONNRESET");
        assert_eq!((private.connections(), loopback.connections(), metadata.connections()), (1, 0, 0));
        for (host, address, through_private) in [
            ("rebinding.example", [10, 0, 0, 5], ThroughPrivate::Allowed),
            ("rebinding.example", [127, 0, 0, 1], ThroughPrivate::Never),
            ("db.internal", [127, 0, 0, 1], ThroughPrivate::Never),
            ("db.internal", [169, 254, 169, 254], ThroughPrivate::Never),
        ] {
            let (host, address) = (host.to_owned(), address.into());
            let refusal = Refusal::PrivateAddress { host, port: 80, address, through_private };
            server.events.wait_for_refusal(refusal).await;
        }
    });
}

#[test]
fn addresses_are_reached_if_they_are_listed() {
    in_world(async || {
        let _hosts = [
            Host::http("10.0.0.5:80", "private").await,
            Host::http("169.254.169.254:80", "metadata").await,
            Host::http("[2001:db8::1]:80", "IPv6").await,
            Host::http("127.0.0.1:5432", "localhost").await,
            Host::http("127.0.0.1:8080", "loopback").await,
            Host::http("[::1]:8081", "loopback, IPv6").await,
        ];
        let hosts = [
            "10.0.0.5:80",
            "169.254.169.254:80",
            "[2001:db8::1]:80",
            "localhost:5432",
            "127.0.0.1:8080",
            "[::1]:8081",
        ];
        let server = Server::start(&hosts, &Names::one("localhost", "127.0.0.1"));
        let urls = hosts.map(|host| format!("'http://{host}/'")).join(",");
        let printed = server
            .python(&format!("for url in {urls}: print(urllib.request.urlopen(url).read().decode())"))
            .await;
        assert_eq!(printed, "private\nmetadata\nIPv6\nlocalhost\nloopback\nloopback, IPv6");
    });
}

#[test]
fn a_tls_client_that_asks_for_another_host_is_refused() {
    in_world(async || {
        let authority = Authority::for_names(&["a.example.com", "evil.example"]);
        let host = Host::https("93.184.215.14:443", &authority).await;
        let server =
            Server::start(&["*.example.com:443", "127.0.0.1:443"], &Names::one("a.example.com", PUBLIC));
        let ca = authority.file();
        let curl = async |arguments: &[&str]| {
            let common = ["curl", "--silent", "--show-error", "--cacert", ca.to_str().unwrap()];
            server.run(&[&common, arguments].concat()).await
        };
        let fronted =
            curl(&["--connect-to", "evil.example:443:a.example.com:443", "https://evil.example/"]).await;
        // 35: the TLS handshake failed.
        assert_eq!((fronted.code, fronted.stdout.as_str()), (35, ""), "{fronted:?}");
        let refusal =
            Refusal::SniMismatch { asked: "a.example.com".into(), port: 443, sni: "evil.example".into() };
        server.events.wait_for_refusal(refusal).await;
        let sent = |event: &Event| match event {
            Event::Closed { traffic, ending, .. } => Some((traffic.sent, *ending)),
            _ => None,
        };
        let closed = server.events.wait_for("closed", sent).await;
        assert_eq!(closed, (0, Ending::Refused));
        assert_eq!(host.connections(), 1);

        // Another name of the same domain is another host, too.
        let sibling =
            curl(&["--connect-to", "b.example.com:443:a.example.com:443", "https://b.example.com/"]).await;
        assert_eq!(sibling.code, 35, "{sibling:?}");
        // The right name, and none.
        assert_eq!(curl(&["https://a.example.com/"]).await.stdout, "a.example.com");
        let address = server.python("print(socket.gethostbyname('a.example.com'))").await;
        let unnamed = curl(&["--insecure", &format!("https://{address}/")]).await;
        assert_eq!(unnamed.stdout, "no name", "{unnamed:?}");
    });
}

#[test]
fn packets_that_are_no_questions_do_not_disturb_the_resolver() {
    in_world(async || {
        let server = Server::start(&["a.example:80"], &Names::default());
        let printed = server
            .python(
                "
packet = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
packet.connect(('127.0.0.53', 53))
for noise in b'', b'x', os.urandom(4096), b'\\0' * 12, b'ab\\1\\0\\0\\1' + b'\\0' * 6 + b'\\xff' * 300, b'\\x80' * 100: packet.send(noise)
question = b'cd\\1\\0\\0\\1' + b'\\0' * 6 + b'\\1A\\7eXaMpLe\\0\\0\\1\\0\\1'
packet.send(question)
while not (answer := packet.recv(1000)).startswith(b'cd'): print(len(answer) <= 12)
print(answer[12:len(question)] == question[12:], answer[-4:], len(answer) - len(question))",
            )
            .await;
        assert!(printed.ends_with("True b'\\x1d\\x12\\x00\\x01' 16"), "{printed}");
        assert!(!printed.contains("False"), "{printed}");
    });
}

#[test]
fn connections_beyond_the_limits_are_reset() {
    in_world(async || {
        let host = Host::http("93.184.215.14:80", "fetched").await;
        let names = Names::one("a.example", PUBLIC);
        let limits = Limits { connections: 3, ..Limits::default() };
        let server = Server::start_with(&["a.example:80"], &names, limits);
        let printed = server
            .python(&client(
                "
connections = [socket.create_connection(('a.example', 80)) for _ in range(3)]
print(fetch('a.example'))
connections[0].close()
while (fetched := fetch('a.example')) == 'ECONNRESET': pass
print(fetched)",
            ))
            .await;
        assert_eq!(printed, "ECONNRESET\nfetched");
        server.events.wait_for_refusal(Refusal::Limit { limit: LimitReached::Connections }).await;
        assert_eq!(host.connections(), 4);

        let limits = Limits { connections_per_second: 2, ..Limits::default() };
        let server = Server::start_with(&["a.example:80"], &names, limits);
        let printed = server
            .python(&client(
                "
print(fetch('a.example'))
while (fetched := fetch('a.example')) == 'fetched': pass
print(fetched)",
            ))
            .await;
        assert_eq!(printed, "fetched\nECONNRESET");
        let refusal = Refusal::Limit { limit: LimitReached::ConnectionsPerSecond };
        server.events.wait_for_refusal(refusal).await;
    });
}

#[test]
fn idle_connections_and_those_beyond_the_bytes_are_reset() {
    in_world(async || {
        let _silent = Host::silent("93.184.215.14:80").await;
        let names = Names::one("a.example", PUBLIC);
        let limits = Limits { idle: Duration::from_millis(300), ..Limits::default() };
        let server = Server::start_with(&["a.example:80"], &names, limits);
        assert_eq!(server.python(&client("print(fetch('a.example', 80, b'hello'))")).await, "ECONNRESET");
        let ending = |event: &Event| match event {
            Event::Closed { ending, .. } => Some(*ending),
            _ => None,
        };
        assert_eq!(server.events.wait_for("closed", ending).await, Ending::Idle);

        let limits = Limits { bytes: Some(1000), ..Limits::default() };
        let server = Server::start_with(&["a.example:80"], &names, limits);
        let printed =
            server.python(&client("print(fetch('a.example', 80, b'x' * 1001), fetch('a.example'))")).await;
        assert_eq!(printed, "ECONNRESET ECONNRESET");
        assert_eq!(server.events.wait_for("closed", ending).await, Ending::Refused);
        server.events.wait_for_refusal(Refusal::Limit { limit: LimitReached::Bytes }).await;
    });
}

#[test]
fn a_host_that_cannot_be_reached_is_reported_and_the_client_is_told() {
    in_world(async || {
        let names = Names::one("closed.example", PUBLIC);
        let server = Server::start(&["closed.example:80", "gone.example:80"], &names);
        let printed = server.python(&client("print(fetch('closed.example'), fetch('gone.example'))")).await;
        assert_eq!(printed, "ECONNRESET ECONNRESET");
        for (host, part) in [("closed.example", "refused"), ("gone.example", "cannot be resolved")] {
            let failed = |event: &Event| match event {
                Event::Failed { peer, error } if peer.host == host => Some(error.clone()),
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
            .python(&client(
                "
print(fetch('a.example', 80, b'x'))
connection = socket.create_connection(('a.example', 81))
print(connection.recv(1))
connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
connection.close()",
            ))
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
