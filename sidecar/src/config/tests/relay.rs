//! Tests of `[relay]` and `[admin]`: sockets, ports, and paths that must not lie in a directory that sandboxes can open.

use super::*;

const GRANT: &str = "unix-grant = 'dev'\n[grants.dev]\nservers = []\n";

#[test]
fn private_paths_in_the_relay_directory_are_refused() {
    let text = format!(
        "state-dir = '/r/relay/state'\nadmin.socket = '/r/admin/../relay/admin.sock'\nsecrets.s.file = '/r/relay/s'\n\
         secrets.t.exec = ['./t']\nservers.a.command = ['/r/relay/bin/a']\n\
         [relay]\nunix = '/r/relay/relay.sock'\n{GRANT}"
    );
    let problems = check_text_in(&text, Path::new("/r/relay/c.toml"), &environment()).unwrap_err();
    let lies_in_relay_directory = |what: &str| {
        format!(
            "/r/relay/c.toml:7: {what} lies in `/r/relay`, the relay's directory, which sandboxes can open\n  \
             hint: give `relay.unix` a directory of its own, one that holds nothing else"
        )
    };
    let expected = [
        "this configuration",
        "`state-dir`",
        "`admin.socket`",
        "`secrets.s.file`",
        "`secrets.t.exec`",
        "`servers.a.command`",
    ];
    let expected = expected.map(lies_in_relay_directory);
    assert_eq!(problems.to_string(), expected.join("\n"));
}

#[test]
fn private_paths_beside_or_above_the_relay_directory_are_allowed() {
    valid(&format!(
        "state-dir = '/r'\nadmin.socket = '/r/relay-admin/a.sock'\n[relay]\nunix = '/r/relay/relay.sock'\n{GRANT}"
    ));
}

#[test]
fn the_default_admin_socket_must_not_lie_in_the_relay_directory_either() {
    let text = format!("state-dir = '/r/state'\n[relay]\nunix = '/r/state/admin/relay.sock'\n{GRANT}");
    assert_problems(
        &text,
        "cofferdam.toml:3: `admin.socket` lies in `/r/state/admin`, the relay's directory, which sandboxes can open\n  \
         hint: give `relay.unix` a directory of its own, one that holds nothing else",
    );
}

#[test]
fn a_shared_directory_is_refused_for_the_relay() {
    assert_problems(
        &format!("[relay]\nunix = '/tmp/relay.sock'\n{GRANT}"),
        "cofferdam.toml:2: `relay.unix` lies in `/tmp`, which other programs use too\n  \
         hint: its directory is mounted into sandboxes: choose one that holds nothing else",
    );
}

#[test]
fn a_socket_path_has_at_most_107_bytes() {
    let of_length = |length: usize| format!("/{}/r.sock", "d".repeat(length - 8));
    valid(&format!("[relay]\nunix = '{}'\n{GRANT}", of_length(107)));
    assert_problems(
        &format!("admin.socket = '{}'\n[relay]\nunix = '{}'\n{GRANT}", of_length(120), of_length(108)),
        "cofferdam.toml:1: `admin.socket` is 120 bytes long; a socket's path has at most 107\n  \
         hint: choose a shorter directory\n\
         cofferdam.toml:3: `relay.unix` is 108 bytes long; a socket's path has at most 107\n  \
         hint: choose a shorter directory",
    );
    assert_problems(
        &format!("state-dir = '/{}'\n", "d".repeat(100)),
        "cofferdam.toml: `admin.socket` is 118 bytes long; a socket's path has at most 107\n  \
         hint: set `admin.socket` to a shorter path",
    );
}

#[test]
fn user_ids_are_valid_numbers() {
    let relay = |uids: &str| format!("[relay]\nunix = '/r/relay/s'\nunix-uids = {uids}\n{GRANT}");
    assert_eq!(valid(&relay("[0, 1000]")).relay.uids, Some(vec![0, 1000]));
    assert_problems(
        &relay("[-1, 4294967295]"),
        "cofferdam.toml:3: `relay.unix-uids` holds a number that is not a user id\n  \
         hint: write the number that `id -u` prints\n\
         cofferdam.toml:3: `relay.unix-uids` holds a number that is not a user id\n  \
         hint: write the number that `id -u` prints",
    );
    assert_problems(
        &relay("[]"),
        "cofferdam.toml:3: `relay.unix-uids` is empty: no client could connect\n  \
         hint: list the user ids that may connect, or leave it out for the sidecar's own user and root",
    );
}

#[test]
fn a_grant_for_the_socket_needs_the_socket() {
    assert_problems(
        "[relay]\nunix-grant = 'dev'\nunix-uids = [1]\n[grants.dev]\nservers = []",
        "cofferdam.toml:2: `relay.unix-grant` is set without `relay.unix`\n  \
         hint: set `relay.unix` to the path of the socket",
    );
}

#[test]
fn empty_paths_tildes_and_missing_defaults_are_reported() {
    assert_problems(
        "state-dir = '~/state'\nadmin.socket = ''\n",
        "cofferdam.toml:1: `state-dir` begins with `~`, which is not expanded\n  \
         hint: `~` is for shells: write the whole path\n\
         cofferdam.toml:2: `admin.socket` is not a path\n  hint: write an absolute path",
    );
    let without_home = Environment::new(1000, |_| None);
    let problems = check_text_in("", Path::new("/c.toml"), &without_home).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "/c.toml: `state-dir` has no default here: neither `XDG_STATE_HOME` nor `HOME` is an absolute path\n  \
         hint: set `state-dir` to a directory that only the sidecar's user can read"
    );
}

#[test]
fn user_ids_are_allowed_without_a_shared_socket() {
    assert_eq!(valid("[relay]\nunix-uids = [1000]\n").relay.uids, Some(vec![1000]));
}

#[test]
fn the_advertised_address_defaults_to_the_listen_address() {
    let advertised =
        |relay: &str| valid(&format!("[relay]\n{relay}\n")).relay.tls.unwrap().advertise.to_string();
    assert_eq!(advertised("tls = '192.0.2.7:7443'"), "tls://192.0.2.7:7443");
    assert_eq!(advertised("tls = 'relay.example.com:7443'"), "tls://relay.example.com:7443");
    assert_eq!(
        advertised("tls = '0.0.0.0:7443'\nadvertise = 'relay.example.com:443'"),
        "tls://relay.example.com:443"
    );
    assert_eq!(advertised("tls = '[::]:7443'\nadvertise = '[2001:db8::1]:443'"), "tls://[2001:db8::1]:443");
    assert_eq!(
        advertised("tls = '127.0.0.1:1'\nadvertise = 'wss://relay.example.com/x'"),
        "wss://relay.example.com/x"
    );
    assert_eq!(advertised("tls = '127.0.0.1:1'\nadvertise = 'tls://h:7443'"), "tls://h:7443");
}

#[test]
fn an_advertised_address_must_be_one_that_sandboxes_can_connect_to() {
    let dial = "hint: write HOST:PORT, or an address such as \"wss://relay.example.com/\"";
    for wrong in ["h", "h:0", "unix:/x", "vsock:2:1", "listen:h:1", "https://h/", "http://h:80/"] {
        assert_problems(
            &format!("[relay]\ntls = '127.0.0.1:1'\nadvertise = '{wrong}'\n"),
            &format!(
                "cofferdam.toml:3: `relay.advertise` is neither HOST:PORT nor an address that sandboxes can dial\n  {dial}"
            ),
        );
    }
    for wrong in ["0.0.0.0:7443", "[::]:7443", "wss://0.0.0.0/"] {
        assert_problems(
            &format!("[relay]\ntls = '127.0.0.1:1'\nadvertise = '{wrong}'\n"),
            "cofferdam.toml:3: `relay.advertise` is not an address that can be dialled\n  \
             hint: write the name or the address by which sandboxes reach this host",
        );
    }
    assert_problems(
        "[relay]\ntls = '[::]:7443'\n",
        "cofferdam.toml:2: `relay.tls` listens on every address, so the address for sandboxes is not known\n  \
         hint: set `relay.advertise` to the HOST:PORT by which sandboxes reach this host",
    );
    assert_problems(
        "[relay]\nadvertise = 'h:1'\n",
        "cofferdam.toml:2: `relay.advertise` is set without `relay.tls`\n  \
         hint: set `relay.tls` to the HOST:PORT to listen on",
    );
}

#[test]
fn the_admin_port_must_be_a_loopback_address() {
    assert!(valid("").admin.http.is_none());
    for loopback in ["127.0.0.1:7480", "[::1]:7480", "localhost:7480"] {
        assert_eq!(valid(&format!("admin.http = '{loopback}'\n")).admin.http.unwrap().to_string(), loopback);
    }
    for other in ["0.0.0.0:7480", "[::]:7480", "10.0.0.1:7480", "metrics.example.com:7480"] {
        assert_problems(
            &format!("admin.http = '{other}'\n"),
            "cofferdam.toml:1: `admin.http` must be a loopback address: it has no authentication\n  \
             hint: write \"127.0.0.1:7480\"; for remote clients put a proxy with authentication in front of it",
        );
    }
    assert_problems(
        "admin.http = '7480'\n",
        "cofferdam.toml:1: `admin.http` is not HOST:PORT\n  hint: write HOST:PORT, such as \"127.0.0.1:7480\"",
    );
}

#[test]
fn the_admin_api_over_tls_needs_a_certificate_and_its_key() {
    assert!(valid("").admin.tls.is_none());
    let text =
        "admin = { tls = '0.0.0.0:7481', cert-file = '/e/c', key-file = '/e/k', client-ca-file = '/e/ca' }\n";
    let tls = valid(text).admin.tls.unwrap();
    assert_eq!(tls.listen.to_string(), "0.0.0.0:7481");
    assert_eq!((tls.cert_file.as_path(), tls.key_file.as_path()), (Path::new("/e/c"), Path::new("/e/k")));
    assert_eq!(tls.client_ca_file.as_deref(), Some(Path::new("/e/ca")));
    let hint = "hint: set `admin.cert-file` and `admin.key-file` to PEM files with a certificate for this host and its key";
    assert_problems(
        "admin.tls = '0.0.0.0'\n",
        &format!(
            "cofferdam.toml:1: `admin.tls` is not HOST:PORT\n  \
             hint: write HOST:PORT, such as \"0.0.0.0:7481\" or \"[::]:7481\"\n\
             cofferdam.toml:1: `admin.tls` has no `admin.cert-file`\n  {hint}\n\
             cofferdam.toml:1: `admin.tls` has no `admin.key-file`\n  {hint}"
        ),
    );
    assert_problems(
        "[admin]\nkey-file = '/e/k'\nclient-ca-file = '/e/ca'\n",
        "cofferdam.toml:2: `admin.key-file` is set without `admin.tls`\n  \
         hint: set `admin.tls` to the HOST:PORT to listen on\n\
         cofferdam.toml:3: `admin.client-ca-file` is set without `admin.tls`\n  \
         hint: set `admin.tls` to the HOST:PORT to listen on",
    );
}

#[test]
fn the_files_of_the_admin_api_must_not_lie_in_the_relay_directory() {
    assert_problems(
        &format!(
            "[admin]\ntls = '127.0.0.1:7481'\ncert-file = '/e/c'\nkey-file = '/r/relay/k'\n[relay]\nunix = '/r/relay/relay.sock'\n{GRANT}"
        ),
        "cofferdam.toml:6: `admin.key-file` lies in `/r/relay`, the relay's directory, which sandboxes can open\n  \
         hint: give `relay.unix` a directory of its own, one that holds nothing else",
    );
}

#[test]
fn private_paths_in_the_vsock_directory_are_refused() {
    let relay = valid("state-dir = '/r/state'\n[relay]\nvsock-dir = '/r/vsock/../machines'\n").relay;
    assert_eq!(relay.vsock_dir.unwrap(), Path::new("/r/machines"));
    assert_problems(
        "state-dir = '/r/state'\n[relay]\nvsock-dir = '/r'\n",
        "cofferdam.toml:3: `state-dir` lies in `/r`, the relay's directory, which sandboxes can open\n  \
         hint: give `relay.vsock-dir` a directory of its own, one that holds nothing else\n\
         cofferdam.toml:3: `admin.socket` lies in `/r`, the relay's directory, which sandboxes can open\n  \
         hint: give `relay.vsock-dir` a directory of its own, one that holds nothing else",
    );
}
