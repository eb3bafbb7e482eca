//! What every confined server sees of the operating system: programs, libraries, a few settings and devices.
//!
//! What must stay true: nothing here can hold a secret of the host. So it is never all of `/etc`, and directories of
//! certificates are named one by one, because private keys lie beside them.

use std::path::Path;

use cofferdam_process::{Access, Entry, EntryKind, Missing};

/// Programs and libraries. Every server may read and execute what is in these. Those of the x32 ABI are not among them: the
/// filter of system calls refuses its calls.
pub(crate) const PROGRAMS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store"];
const SETTINGS: [&str; 20] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
];
const DEVICES: [&str; 5] = ["/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"];
const LINKS: [(&str, &str); 4] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
];

/// The parts that this host has.
pub(crate) fn entries() -> Vec<Entry> {
    let shown = PROGRAMS.iter().chain(&SETTINGS).filter_map(|path| shown(path));
    let devices = DEVICES
        .iter()
        .filter(|path| Path::new(path).exists())
        .map(|path| Entry { path: (*path).into(), kind: EntryKind::Device { source: (*path).into() } });
    let links = LINKS.iter().map(|(path, target)| Entry {
        path: (*path).into(),
        kind: EntryKind::Link { target: (*target).into() },
    });
    shown.chain(devices).chain(links).collect()
}

/// A file or directory as it is on the host; a link stays a link, because its target is part of the system too.
fn shown(path: &str) -> Option<Entry> {
    let kind = match std::fs::read_link(path) {
        Ok(target) => EntryKind::Link { target: target.to_str()?.to_owned() },
        Err(_) if Path::new(path).exists() => {
            EntryKind::Bind { source: path.into(), access: Access::Read, missing: Missing::Skip }
        }
        Err(_) => return None,
    };
    Some(Entry { path: path.into(), kind })
}
