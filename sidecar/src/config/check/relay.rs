//! Checks `[relay]`, `[admin]` and `state-dir`, and that no private path lies in a directory that sandboxes can open.

use std::path::{Path, PathBuf};

use super::{Checker, Section, admin_tls, port, span_of};
use crate::config::raw::{RawAdmin, RawRelay};
use crate::config::spanned::Spanned;
use crate::config::{Admin, Relay, UnixRelay};

/// Directories that many programs use: mounted into a sandbox, they would expose the files of all these programs.
pub(crate) const SHARED_DIRECTORIES: [&str; 7] =
    ["/", "/dev/shm", "/run", "/tmp", "/var/lib", "/var/run", "/var/tmp"];

pub(super) fn check_state_dir(
    checker: &mut Checker<'_, '_>,
    written: Option<Spanned<String>>,
) -> Option<PathBuf> {
    if let Some(written) = written {
        return checker.check_path("state-dir", &written);
    }
    let default = checker.context.environment.default_state_dir();
    if default.is_none() && !checker.removed.affects(&[]) {
        checker.report.add_for_file(
            "`state-dir` has no default here: neither `XDG_STATE_HOME` nor `HOME` is an absolute path",
            "set `state-dir` to a directory that only the sidecar's user can read",
        );
    }
    default
}

pub(super) fn check_admin(
    checker: &mut Checker<'_, '_>,
    raw: RawAdmin,
    state_dir: Option<&Path>,
) -> Option<Admin> {
    let http = raw.http.as_ref().and_then(|written| port::check_admin_http(checker, written));
    let tls = admin_tls::check_admin_tls(checker, &raw);
    if let Some(written) = raw.socket {
        return checker.check_socket_path("admin.socket", &written).map(|socket| Admin { socket, http, tls });
    }
    let socket = checker.context.environment.default_admin_socket(state_dir?);
    checker.fits_socket_address("admin.socket", &socket, None).then_some(Admin { socket, http, tls })
}

pub(super) fn check_relay(checker: &mut Checker<'_, '_>, raw: RawRelay) -> Relay {
    let tls = port::check_tls(checker, raw.tls.as_ref(), raw.advertise.as_ref());
    let vsock_dir = raw.vsock_dir.as_ref().and_then(|written| checker.check_path("relay.vsock-dir", written));
    let uids = raw.unix_uids.as_ref().and_then(|written| check_uids(checker, written));
    let grant = raw.unix_grant.as_ref().and_then(|written| {
        checker.check_reference("relay.unix-grant", Section::Grants, &written.value, &written.span)
    });
    let unix = match &raw.unix {
        Some(written) => {
            if raw.unix_grant.is_none() && !checker.removed.affects(&["relay"]) {
                checker.add(
                    &written.span,
                    "`relay.unix` has no grant: its clients could use no server",
                    "set `relay.unix-grant` to the name of a grant",
                );
            }
            let path = checker.check_socket_path("relay.unix", written);
            path.filter(|path| is_in_own_directory(checker, path, written))
                .zip(grant)
                .map(|(path, grant)| UnixRelay { path, grant })
        }
        None => {
            // `unix-uids` alone is fine: it applies to the sockets of single sandboxes too.
            if let Some(span) = span_of(&raw.unix_grant)
                && !checker.removed.affects(&["relay"])
            {
                let message = "`relay.unix-grant` is set without `relay.unix`";
                checker.add(&span, message, "set `relay.unix` to the path of the socket");
            }
            None
        }
    };
    Relay {
        unix,
        uids,
        tls,
        vsock_dir,
        // Zero is allowed: a link then ends when its connection is lost.
        resume_grace: checker.check_duration("relay.resume-grace", raw.resume_grace, "2m", "0s"..="7d"),
        heartbeat: checker.check_duration("relay.heartbeat", raw.heartbeat, "20s", "100ms"..="10m"),
    }
}

/// Reports each private path inside the directory of `key`: sandboxes can read all files there, and perhaps replace them.
pub(super) fn check_relay_directory(
    checker: &mut Checker<'_, '_>,
    key: &str,
    directory: &Spanned<&Path>,
    private: &[(String, PathBuf)],
) {
    for (what, path) in private {
        if path.starts_with(directory.value) {
            checker.add(
                &directory.span,
                format!(
                    "{what} lies in `{}`, the relay's directory, which sandboxes can open",
                    directory.value.display()
                ),
                format!("give `{key}` a directory of its own, one that holds nothing else"),
            );
        }
    }
}

fn is_in_own_directory(checker: &mut Checker<'_, '_>, path: &Path, written: &Spanned<String>) -> bool {
    let Some(directory) = path
        .parent()
        .filter(|directory| SHARED_DIRECTORIES.iter().any(|shared| *directory == Path::new(shared)))
    else {
        return true;
    };
    checker.add(
        &written.span,
        format!("`relay.unix` lies in `{}`, which other programs use too", directory.display()),
        "its directory is mounted into sandboxes: choose one that holds nothing else",
    );
    false
}

fn check_uids(checker: &mut Checker<'_, '_>, written: &Spanned<Vec<Spanned<i64>>>) -> Option<Vec<u32>> {
    if written.value.is_empty() {
        let hint = "list the user ids that may connect, or leave it out for the sidecar's own user and root";
        checker.add(&written.span, "`relay.unix-uids` is empty: no client could connect", hint);
    }
    // The kernel reads `u32::MAX` as "no user".
    let valid = |uid: &Spanned<i64>| u32::try_from(uid.value).ok().filter(|uid| *uid != u32::MAX);
    let checked = written.value.iter().filter_map(|uid| {
        let number = valid(uid);
        if number.is_none() {
            let hint = "write the number that `id -u` prints";
            checker.add(&uid.span, "`relay.unix-uids` holds a number that is not a user id", hint);
        }
        number
    });
    Some(checked.collect())
}
