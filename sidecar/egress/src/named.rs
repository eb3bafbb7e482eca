//! The hosts that a variable or an argument of a server names: those of URLs, and what is written as `HOST:PORT`.
//!
//! What must stay true: of a text no more is taken than the host and the port; user names, passwords and paths are credentials
//! as often as not.

use std::net::IpAddr;

use crate::host::AllowedHost;

/// The ports of URLs that name none.
const PORTS: [(&str, u16); 25] = [
    ("amqp", 5672),
    ("amqps", 5671),
    ("bolt", 7687),
    ("ftp", 21),
    ("http", 80),
    ("https", 443),
    ("imap", 143),
    ("imaps", 993),
    ("ldap", 389),
    ("ldaps", 636),
    ("mariadb", 3306),
    ("mongodb", 27017),
    ("mqtt", 1883),
    ("mqtts", 8883),
    ("mysql", 3306),
    ("nats", 4222),
    ("neo4j", 7687),
    ("postgres", 5432),
    ("postgresql", 5432),
    ("redis", 6379),
    ("rediss", 6379),
    ("sftp", 22),
    ("ssh", 22),
    ("ws", 80),
    ("wss", 443),
];
/// Names that are never public, so that they lead to private networks: RFC 6762, RFC 8375, and what ICANN and old habit keep
/// for private use.
const PRIVATE_ENDINGS: [&str; 5] = [".internal", ".local", ".lan", ".localdomain", ".home.arpa"];

/// The entries that let a server reach what a variable or an argument names. Texts that name a host only in part, because the rest
/// of it is filled in later, have a control character there, and then none is found.
pub fn named_hosts(text: &str) -> Vec<AllowedHost> {
    let mut found = Vec::new();
    let mut begin = 0;
    while let Some(colon) = text[begin..].find("://").map(|at| begin + at) {
        let scheme = text[..colon].rsplit(|c: char| !is_of_scheme(c)).next().unwrap_or_default();
        let rest = &text[colon + 3..];
        let authority = rest.split(['/', '?', '#', ' ', '"', '\'', '|', ';']).next().unwrap_or_default();
        let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
        let default =
            PORTS.iter().find(|(known, _)| known.eq_ignore_ascii_case(scheme)).map(|(_, port)| *port);
        found.extend(hosts.split(',').filter_map(|host| entry(host, default)));
        begin = colon + 3;
    }
    if begin == 0 {
        // Also the value of an option, as in `--host=db.example:5432`.
        let value = text.rsplit_once('=').map_or(text, |(_, value)| value);
        found.extend(entry(value, None).filter(|_| looks_like_a_host(value)));
    }
    found
}

fn is_of_scheme(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')
}

/// Without a scheme around it a text must look like a host: `image:16` is none.
fn looks_like_a_host(text: &str) -> bool {
    let name = text.rsplit_once(':').map_or(text, |(name, _)| name);
    name == "localhost" || name.contains('.') || name.starts_with('[')
}

/// The entry of `hosts` for a host with or without a port.
fn entry(host: &str, default: Option<u16>) -> Option<AllowedHost> {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let (name, port) = match has_port {
        true => host.rsplit_once(':')?,
        false => (host, ""),
    };
    let port = match port {
        "" => default?.to_string(),
        port => port.to_owned(),
    };
    let address: Option<IpAddr> = name.trim_matches(['[', ']']).parse().ok();
    let is_local = match address {
        Some(IpAddr::V4(address)) => address.is_loopback(),
        Some(IpAddr::V6(_)) => false,
        None => name.eq_ignore_ascii_case("localhost"),
    };
    let name_is_private = || {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        !name.contains('.') || PRIVATE_ENDINGS.iter().any(|ending| name.ends_with(ending))
    };
    let text = match address {
        _ if is_local => format!("localhost:{port}"),
        Some(_) => format!("{name}:{port}"),
        None if name_is_private() => format!("private:{name}:{port}"),
        None => format!("{name}:{port}"),
    };
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        named_hosts(text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn hosts_are_found_in_urls_and_as_host_and_port() {
        for (text, hosts) in [
            ("https://api.github.com/graphql", &["api.github.com:443"][..]),
            ("postgresql://\u{1a}:\u{1a}@db.example.com/wh?x=1", &["db.example.com:5432"]),
            ("postgresql://u@db.internal:6000/wh", &["private:db.internal:6000"]),
            (
                "mongodb://one.example.com:27017,two.example.com/x",
                &["one.example.com:27017", "two.example.com:27017"],
            ),
            ("jdbc:postgresql://10.0.0.5/x", &["10.0.0.5:5432"]),
            ("http://127.0.0.1:8080/mcp", &["localhost:8080"]),
            ("http://localhost", &["localhost:80"]),
            ("redis://cache", &["private:cache:6379"]),
            ("http://[2001:db8::1]:81/", &["[2001:db8::1]:81"]),
            ("--api=https://a.example:444", &["a.example:444"]),
            ("--host=db.example:5432", &["db.example:5432"]),
            ("db.example:5432", &["db.example:5432"]),
        ] {
            assert_eq!(found(text), hosts, "{text}");
        }
    }

    #[test]
    fn what_names_no_host_that_can_be_listed_is_left_out() {
        for text in [
            "\u{1a}",
            "postgresql://u:p@\u{1a}/x",
            "https://\u{1a}.example.com/",
            "postgres:16",
            "12:30",
            "unknown://host.example/",
            "file:///etc/hosts",
            "0.0.0.0:8080",
            "a.example:0",
            "http://",
            "://",
            "plain text",
            "",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
    }
}
