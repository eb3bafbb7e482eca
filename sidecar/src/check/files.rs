//! Checks programs, directories, certificates and keys that the configuration names.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cofferdam_base::text::error_chain;
use cofferdam_process::{LaunchError, program_path};
use cofferdam_servers::spec::ServerKind;
use cofferdam_vault::{AuthSettings, Settings};
use nix::unistd::{AccessFlags, access};

use super::findings::Findings;
use crate::config::{AdminTls, Config};
use crate::daemon::admin::tls_port::{self, AdminTlsError};

/// Whether the content of a file must not be read by other users.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Secrecy {
    Public,
    Secret,
}

const READABLE_BY_GROUP: u32 = 0o040;
const READABLE_BY_OTHERS: u32 = 0o004;
const WRITABLE_BY_OTHERS: u32 = 0o022;

pub(super) fn check(config: &Config, findings: &mut Findings<'_>) {
    for (name, server) in &config.servers {
        if let ServerKind::Stdio(stdio) = &server.kind {
            check_program(stdio.command.words(), &["servers", name.as_str(), "command"], findings);
            if let Some(directory) = &stdio.directory {
                check_directory(directory, &["servers", name.as_str(), "cwd"], findings);
            }
        }
    }
    for (name, platform) in &config.platforms {
        if let Some(shim) = &platform.shim {
            check_file(shim, Secrecy::Public, &["platforms", name.as_str(), "shim"], findings);
        }
    }
    if let Some(vault) = &config.vault {
        check_vault(vault, findings);
    }
    if let Some(tls) = &config.admin.tls {
        check_admin_tls(tls, findings);
    }
    check_creatable(&config.state_dir.join("audit"), &["state-dir"], findings);
    if let Some(directory) = config.admin.socket.parent() {
        check_creatable(directory, &["admin", "socket"], findings);
    }
    let relay = config.relay.unix.as_ref().and_then(|unix| unix.path.parent());
    for (directory, key) in [(relay, "unix"), (config.relay.vsock_dir.as_deref(), "vsock-dir")] {
        if let Some(directory) = directory {
            check_creatable(directory, &["relay", key], findings);
        }
    }
}

/// Checks that a command's program exists and can be executed. It is not run.
pub(super) fn check_program(command: &[String], key: &[&str], findings: &mut Findings<'_>) {
    let Some(program) = command.first() else { return };
    let named = key.join(".");
    match program_path(program.as_ref()) {
        Ok(_) => {}
        Err(LaunchError::NotExecutable { .. }) => {
            let message = format!("the program of `{named}` is not executable for this user");
            findings.add(
                "program-not-executable",
                key,
                message,
                "make it executable, or name another program",
            );
        }
        Err(_) if program.contains('/') => {
            let message = format!("the program of `{named}` does not exist");
            findings.add("program-missing", key, message, "install it, or correct the path");
        }
        Err(_) => {
            let message = format!("the program of `{named}` is not on the PATH");
            let hint =
                "install it, or write its full path; the sidecar searches the PATH of its own environment";
            findings.add("program-missing", key, message, hint);
        }
    }
}

/// Reports a file with a secret that other users can read or change. A file that does not exist is reported where it is read.
pub(super) fn check_secrecy(path: &Path, key: &[&str], findings: &mut Findings<'_>) {
    let Ok(metadata) = fs::metadata(path) else { return };
    let named = key.join(".");
    let (code, what) = match metadata.mode() {
        mode if mode & READABLE_BY_OTHERS != 0 => ("secret-exposed", "every user of this host can read"),
        mode if mode & WRITABLE_BY_OTHERS != 0 => ("secret-exposed", "other users can change"),
        mode if mode & READABLE_BY_GROUP != 0 => {
            ("secret-exposed-to-group", "the users of its group can read")
        }
        _ => return,
    };
    let hint = "run `chmod 600` on it, with the sidecar's user as its owner";
    findings.add(code, key, format!("{what} the file of `{named}`, which contains a secret"), hint);
}

/// Why a file cannot be read, and what to do about it.
pub(super) fn describe_unreadable(error: &io::Error, key: &str) -> (String, String) {
    match error.kind() {
        io::ErrorKind::NotFound => (
            format!("the file of `{key}` does not exist"),
            "create it with mode 0600, or correct the path; a relative path begins at the configuration's directory".to_owned(),
        ),
        io::ErrorKind::PermissionDenied => (
            format!("this user may not read the file of `{key}`"),
            "run the check as the sidecar's user, or make that user the owner of the file".to_owned(),
        ),
        _ => (format!("cannot read the file of `{key}`: {error}"), "check the file and its disk".to_owned()),
    }
}

/// Checks that a file can be opened and, if it is secret, by its owner only.
fn check_file(path: &Path, secrecy: Secrecy, key: &[&str], findings: &mut Findings<'_>) {
    let opened = fs::metadata(path).and_then(|metadata| match metadata.is_file() {
        true => File::open(path).map(drop),
        false => Err(io::Error::other("it is not a regular file")),
    });
    match opened {
        Ok(()) if secrecy == Secrecy::Secret => check_secrecy(path, key, findings),
        Ok(()) => {}
        Err(error) => {
            let (message, hint) = describe_unreadable(&error, &key.join("."));
            findings.add("file-unreadable", key, message, hint);
        }
    }
}

fn check_directory(path: &Path, key: &[&str], findings: &mut Findings<'_>) {
    let named = key.join(".");
    let message = match fs::metadata(path) {
        Ok(metadata) if !metadata.is_dir() => format!("what `{named}` names is not a directory"),
        Ok(_) if access(path, AccessFlags::X_OK).is_err() => {
            format!("this user may not enter the directory of `{named}`")
        }
        Ok(_) => return,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            format!("the directory of `{named}` does not exist")
        }
        Err(error) => format!("cannot inspect the directory of `{named}`: {error}"),
    };
    findings.add(
        "directory-missing",
        key,
        message,
        "create it, or correct the path; the server's process starts there",
    );
}

/// Checks that the sidecar can write to a directory, or create it in the nearest one that exists.
fn check_creatable(directory: &Path, key: &[&str], findings: &mut Findings<'_>) {
    let Some(existing) = directory.ancestors().find(|ancestor| fs::symlink_metadata(ancestor).is_ok()) else {
        return;
    };
    let named = key.join(".");
    let message = if !existing.is_dir() {
        format!("the directory of `{named}` cannot be created: a part of its path is not a directory")
    } else if access(existing, AccessFlags::W_OK | AccessFlags::X_OK).is_err() {
        format!("this user may not write to the directory of `{named}`, or may not create it")
    } else {
        return;
    };
    let hint = "create the directory for the sidecar's user, choose another, such as one in $XDG_RUNTIME_DIR for sockets, or \
                run the check as that user";
    findings.add("directory-not-writable", key, message, hint);
}

fn check_vault(vault: &Settings, findings: &mut Findings<'_>) {
    let public = match &vault.auth {
        // Kubernetes mounts its tokens with modes that only matter within the pod.
        AuthSettings::Kubernetes { .. } => &["jwt-file"][..],
        _ => &["cert-file", "role-id-file"],
    };
    for (key, path) in vault.auth.files() {
        let secrecy = match public.contains(&key) {
            true => Secrecy::Public,
            false => Secrecy::Secret,
        };
        check_file(path, secrecy, &["vault", "auth", key], findings);
    }
}

fn check_admin_tls(tls: &AdminTls, findings: &mut Findings<'_>) {
    let files = [
        ("cert-file", Some(&tls.cert_file), Secrecy::Public),
        ("key-file", Some(&tls.key_file), Secrecy::Secret),
        ("client-ca-file", tls.client_ca_file.as_ref(), Secrecy::Public),
    ];
    let mut can_open_all = true;
    for (key, path, secrecy) in files {
        if let Some(path) = path {
            check_file(path, secrecy, &["admin", key], findings);
            can_open_all &= File::open(path).is_ok();
        }
    }
    if can_open_all && let Err(error) = tls_port::check_files(tls) {
        let hint = "correct the files, or leave `admin.tls` out";
        match &error {
            AdminTlsError::Pem { setting, what, .. } => {
                let path: Vec<&str> = setting.split('.').collect();
                findings.add(
                    "admin-tls-invalid",
                    &path,
                    format!("the file of `{setting}` contains no {what} in PEM format"),
                    hint,
                );
            }
            error => findings.add("admin-tls-invalid", &["admin", "tls"], error_chain(error), hint),
        }
    }
}
