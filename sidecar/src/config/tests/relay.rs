//! The socket and what must not lie beside it.

use super::*;

const GRANT: &str = "unix-grant = 'dev'\n[grants.dev]\nservers = []\n";

#[test]
fn nothing_lies_in_the_directory_that_sandboxes_see() {
    let text = format!(
        "state-dir = '/r/relay/state'\nadmin.socket = '/r/admin/../relay/admin.sock'\nsecrets.s.file = '/r/relay/s'\n\
         secrets.t.exec = ['./t']\nservers.a.command = ['/r/relay/bin/a']\n\
         [relay]\nunix = '/r/relay/relay.sock'\n{GRANT}"
    );
    let problems = check_text_in(&text, Path::new("/r/relay/c.toml"), &environment()).unwrap_err();
    let lies = |what: &str| {
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
    let expected = expected.map(lies);
    assert_eq!(problems.to_string(), expected.join("\n"));
}

#[test]
fn neighbours_and_parents_are_fine() {
    good(&format!(
        "state-dir = '/r'\nadmin.socket = '/r/relay-admin/a.sock'\n[relay]\nunix = '/r/relay/relay.sock'\n{GRANT}"
    ));
}

#[test]
fn the_default_admin_socket_counts_too() {
    let text = format!("state-dir = '/r/state'\n[relay]\nunix = '/r/state/admin/relay.sock'\n{GRANT}");
    says(
        &text,
        "cofferdam.toml:3: `admin.socket` lies in `/r/state/admin`, the relay's directory, which sandboxes can open\n  \
         hint: give `relay.unix` a directory of its own, one that holds nothing else",
    );
}

#[test]
fn a_shared_directory_is_refused_for_the_relay() {
    says(
        &format!("[relay]\nunix = '/tmp/relay.sock'\n{GRANT}"),
        "cofferdam.toml:2: `relay.unix` lies in `/tmp`, which other programs use too\n  \
         hint: its directory is mounted into sandboxes: choose one that holds nothing else",
    );
}

#[test]
fn a_socket_path_fits_into_an_address() {
    let of_length = |length: usize| format!("/{}/r.sock", "d".repeat(length - 8));
    good(&format!("[relay]\nunix = '{}'\n{GRANT}", of_length(107)));
    says(
        &format!("admin.socket = '{}'\n[relay]\nunix = '{}'\n{GRANT}", of_length(120), of_length(108)),
        "cofferdam.toml:1: `admin.socket` is 120 bytes long; a socket's path has at most 107\n  \
         hint: choose a shorter directory\n\
         cofferdam.toml:3: `relay.unix` is 108 bytes long; a socket's path has at most 107\n  \
         hint: choose a shorter directory",
    );
    says(
        &format!("state-dir = '/{}'\n", "d".repeat(100)),
        "cofferdam.toml: `admin.socket` is 118 bytes long; a socket's path has at most 107\n  \
         hint: set `admin.socket` to a shorter path",
    );
}

#[test]
fn users_are_numbers_that_the_kernel_knows() {
    let relay = |uids: &str| format!("[relay]\nunix = '/r/relay/s'\nunix-uids = {uids}\n{GRANT}");
    assert_eq!(good(&relay("[0, 1000]")).relay.uids, Some(vec![0, 1000]));
    says(
        &relay("[-1, 4294967295]"),
        "cofferdam.toml:3: `relay.unix-uids` holds a number that is not a user id\n  \
         hint: write the number that `id -u` prints\n\
         cofferdam.toml:3: `relay.unix-uids` holds a number that is not a user id\n  \
         hint: write the number that `id -u` prints",
    );
    says(
        &relay("[]"),
        "cofferdam.toml:3: `relay.unix-uids` is empty: no client could connect\n  \
         hint: list the user ids that may connect, or leave it out for the sidecar's own user and root",
    );
}

#[test]
fn what_belongs_to_a_socket_needs_one() {
    says(
        "[relay]\nunix-grant = 'dev'\nunix-uids = [1]\n[grants.dev]\nservers = []",
        "cofferdam.toml:2: `relay.unix-grant` is set without `relay.unix`\n  \
         hint: set `relay.unix` to the path of the socket",
    );
}

#[test]
fn paths_that_lead_nowhere() {
    says(
        "state-dir = '~/state'\nadmin.socket = ''\n",
        "cofferdam.toml:1: `state-dir` begins with `~`, which is not expanded\n  \
         hint: `~` is for shells: write the whole path\n\
         cofferdam.toml:2: `admin.socket` is not a path\n  hint: write an absolute path",
    );
    let homeless = Environment::new(1000, |_| None);
    let problems = check_text_in("", Path::new("/c.toml"), &homeless).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "/c.toml: `state-dir` has no default here: neither `XDG_STATE_HOME` nor `HOME` is an absolute path\n  \
         hint: set `state-dir` to a directory that only the sidecar's user can read"
    );
}

#[test]
fn users_count_without_a_shared_socket_too() {
    assert_eq!(good("[relay]\nunix-uids = [1000]\n").relay.uids, Some(vec![1000]));
}

#[test]
fn a_port_is_advertised_as_it_is_or_as_it_is_written() {
    let advertised =
        |relay: &str| good(&format!("[relay]\n{relay}\n")).relay.tls.unwrap().advertise.to_string();
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
fn a_port_is_one_and_can_be_dialled() {
    let dial = "hint: write HOST:PORT, or a link such as \"wss://relay.example.com/\"";
    for wrong in ["h", "h:0", "unix:/x", "vsock:2:1", "listen:h:1", "https://h/", "http://h:80/"] {
        says(
            &format!("[relay]\ntls = '127.0.0.1:1'\nadvertise = '{wrong}'\n"),
            &format!(
                "cofferdam.toml:3: `relay.advertise` is neither HOST:PORT nor a link that sandboxes can dial\n  {dial}"
            ),
        );
    }
    for wrong in ["0.0.0.0:7443", "[::]:7443", "wss://0.0.0.0/"] {
        says(
            &format!("[relay]\ntls = '127.0.0.1:1'\nadvertise = '{wrong}'\n"),
            "cofferdam.toml:3: `relay.advertise` is not an address that can be dialled\n  \
             hint: write the name or the address by which sandboxes reach this host",
        );
    }
    says(
        "[relay]\ntls = '[::]:7443'\n",
        "cofferdam.toml:2: `relay.tls` listens on every address, and sandboxes must be told one\n  \
         hint: set `relay.advertise` to the HOST:PORT by which they reach this host",
    );
    says(
        "[relay]\nadvertise = 'h:1'\n",
        "cofferdam.toml:2: `relay.advertise` is set without `relay.tls`\n  \
         hint: set `relay.tls` to the HOST:PORT to listen on",
    );
}

#[test]
fn the_port_for_watchers_is_of_this_host() {
    assert!(good("").admin.http.is_none());
    for fine in ["127.0.0.1:7480", "[::1]:7480", "localhost:7480"] {
        assert_eq!(good(&format!("admin.http = '{fine}'\n")).admin.http.unwrap().to_string(), fine);
    }
    for far in ["0.0.0.0:7480", "[::]:7480", "10.0.0.1:7480", "metrics.example.com:7480"] {
        says(
            &format!("admin.http = '{far}'\n"),
            "cofferdam.toml:1: `admin.http` must be a loopback address: it has no authentication\n  \
             hint: write \"127.0.0.1:7480\"; for remote clients put a proxy with authentication in front of it",
        );
    }
    says(
        "admin.http = '7480'\n",
        "cofferdam.toml:1: `admin.http` is not HOST:PORT\n  hint: write HOST:PORT, such as \"127.0.0.1:7480\"",
    );
}

#[test]
fn machines_have_a_directory_that_holds_nothing_else() {
    let relay = good("state-dir = '/r/state'\n[relay]\nvsock-dir = '/r/vsock/../machines'\n").relay;
    assert_eq!(relay.vsock_dir.unwrap(), Path::new("/r/machines"));
    says(
        "state-dir = '/r/state'\n[relay]\nvsock-dir = '/r'\n",
        "cofferdam.toml:3: `state-dir` lies in `/r`, the relay's directory, which sandboxes can open\n  \
         hint: give `relay.vsock-dir` a directory of its own, one that holds nothing else\n\
         cofferdam.toml:3: `admin.socket` lies in `/r`, the relay's directory, which sandboxes can open\n  \
         hint: give `relay.vsock-dir` a directory of its own, one that holds nothing else",
    );
}
