//! Checks `admin.tls` and its files, which are read when the sidecar starts.

use relay_proto::address::HostPort;

use super::{Checker, span_of};
use crate::config::AdminTls;
use crate::config::raw::RawAdmin;

pub(super) fn check_admin_tls(checker: &mut Checker<'_, '_>, raw: &RawAdmin) -> Option<AdminTls> {
    let files = [
        ("admin.cert-file", &raw.cert_file),
        ("admin.key-file", &raw.key_file),
        ("admin.client-ca-file", &raw.client_ca_file),
    ];
    let has_removed = checker.removed.affects(&["admin"]);
    let Some(written) = &raw.tls else {
        for (key, file) in files {
            if let Some(span) = span_of(file).filter(|_| !has_removed) {
                let hint = "set `admin.tls` to the HOST:PORT to listen on";
                checker.add(&span, format!("`{key}` is set without `admin.tls`"), hint);
            }
        }
        return None;
    };
    let listen = written.value.parse::<HostPort>().ok();
    if listen.is_none() {
        let hint = "write HOST:PORT, such as \"0.0.0.0:7481\" or \"[::]:7481\"";
        checker.add(&written.span, "`admin.tls` is not HOST:PORT", hint);
    }
    for (key, file) in &files[..2] {
        if file.is_none() && !has_removed {
            let hint = "set `admin.cert-file` and `admin.key-file` to PEM files with a certificate for this host and its key";
            checker.add(&written.span, format!("`admin.tls` has no `{key}`"), hint);
        }
    }
    let [cert_file, key_file, client_ca_file] =
        files.map(|(key, file)| file.as_ref().and_then(|written| checker.check_path(key, written)));
    Some(AdminTls { listen: listen?, cert_file: cert_file?, key_file: key_file?, client_ca_file })
}
