//! What is not listed is refused at once, and reported with the entry that would allow it.

use cofferdam_egress::{Ending, Event, LimitReached, Limits, Refusal, ThroughPrivate};

use crate::hosts::{Authority, Host};
use crate::support::{Names, PUBLIC, Server, in_world, plan};

#[test]
fn what_is_not_listed_is_refused_at_once() {
    in_world(async || {
        let host = Host::http("93.184.215.14:443", "reached").await;
        let other = Host::http("93.184.215.14:80", "reached").await;
        let metadata = Host::http("169.254.169.254:80", "reached").await;
        let loopback = Host::http("127.0.0.1:4444", "reached").await;
        let server = Server::start(&["api.github.com:443"], &Names::one("api.github.com", PUBLIC));
        let refused = server
            .python(
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
            )
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
        let printed = server.python("print(connect('api.github.com', 443), connect('localhost', 1))").await;
        assert_eq!(printed, "no such name ECONNREFUSED");
        server.events.wait_for_refusal(Refusal::Name { name: "api.github.com".into() }).await;

        let blind = Server::start(&[], &Names::default());
        assert_eq!(blind.python("print(connect('api.github.com', 443))").await, "try later");
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
            .python(
                "
print(*(fetch('rebinding.example') for _ in range(4)))
print(*(fetch('db.internal') for _ in range(3)))",
            )
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
            .python(
                "
connections = [socket.create_connection(('a.example', 80)) for _ in range(3)]
print(fetch('a.example'))
connections[0].close()
while (fetched := fetch('a.example')) == 'ECONNRESET': pass
print(fetched)",
            )
            .await;
        assert_eq!(printed, "ECONNRESET\nfetched");
        server.events.wait_for_refusal(Refusal::Limit { limit: LimitReached::Connections }).await;
        assert_eq!(host.connections(), 4);

        let limits = Limits { connections_per_second: 2, ..Limits::default() };
        let server = Server::start_with(&["a.example:80"], &names, limits);
        let printed = server
            .python(
                "
print(fetch('a.example'))
while (fetched := fetch('a.example')) == 'fetched': pass
print(fetched)",
            )
            .await;
        assert_eq!(printed, "fetched\nECONNRESET");
        let refusal = Refusal::Limit { limit: LimitReached::ConnectionsPerSecond };
        server.events.wait_for_refusal(refusal).await;
    });
}
