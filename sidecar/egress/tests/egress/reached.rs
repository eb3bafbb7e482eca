//! Ordinary clients reach what is listed.

use cofferdam_egress::{Ending, Event, Peer, Refusal, Traffic};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::hosts::{Authority, Host};
use crate::support::{Names, PUBLIC, Server, in_world};

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
fn node_with_its_own_resolver_reaches_a_listed_name() {
    in_world(async || {
        let authority = Authority::for_names(&["a.example.com"]);
        let _host = Host::https("93.184.215.14:443", &authority).await;
        let server = Server::start(&["*.example.com:443"], &Names::one("a.example.com", PUBLIC));
        let script = "
            const dns = require('node:dns').promises;
            (async () => {
                console.log(await (await fetch('https://a.example.com/')).text());
                console.log(await dns.resolve4('a.example.com'));
                console.log((await dns.resolve6('a.example.com').catch(error => error)).code);
                console.log((await dns.resolve4('b.example.org').catch(error => error)).code);
            })();";
        let ca = format!("NODE_EXTRA_CA_CERTS={}", authority.file().display());
        let printed = server.run(&["env", &ca, "node", "--eval", script]).await;
        assert_eq!(printed.stdout, "a.example.com\n[ '29.18.0.1' ]\nENODATA\nENOTFOUND\n", "{printed:?}");
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
            .python(
                "
for host in 'www.example.com', 'A.b.Example.COM', '10.0.0.5':
    print(urllib.request.urlopen(f'http://{host}/').read().decode())
print(connect('example.com', 80))
for flags in 0, socket.AI_ADDRCONFIG:
    print({each[4][0] for each in socket.getaddrinfo('a.b.example.com', 80, flags=flags)})
print(fetch('127.0.0.1'))",
            )
            .await;
        assert_eq!(fetched, "exact\nbelow\naddress\nno such name\n{'29.18.0.2'}\n{'29.18.0.2'}\nECONNRESET");
        server.events.wait_for_refusal(Refusal::Name { name: "example.com".into() }).await;
        let refusal = Refusal::Address { address: [127, 0, 0, 1].into(), port: 80 };
        server.events.wait_for_refusal(refusal).await;
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
            .python(
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
            )
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
