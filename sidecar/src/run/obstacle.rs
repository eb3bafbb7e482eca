//! What this machine forbids that a kind of sandbox needs: user namespaces, and for podman without root subordinate ids.
//!
//! What must stay true: these are looked for only after a trial has failed, and an obstacle names what was found on this
//! machine, not a guess.

use std::fs;
use std::path::Path;

use nix::unistd::{Uid, User, geteuid};

use super::executable;
use super::host::Host;
use super::kinds::Kind;

/// Why a sandbox cannot work, and what to do about it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Obstacle {
    pub(crate) why: String,
    pub(crate) remedy: String,
}

/// The bit of CAP_SYS_ADMIN. A process with this capability can create the other namespaces without a user namespace.
const CAP_SYS_ADMIN: u32 = 21;

/// Finds what prevents a kind from working for this user.
pub(super) fn find_obstacle(kind: Kind, host: &Host) -> Option<Obstacle> {
    if kind == Kind::Docker || has_capability(CAP_SYS_ADMIN) {
        // Docker's daemon creates the container.
        return None;
    }
    let user = geteuid();
    let refusal = cofferdam_process::try_user_namespace().err();
    namespace_obstacle(refusal.as_ref(), Path::new("/proc/sys"), user, kind).or_else(|| match kind {
        Kind::Podman => id_obstacle(Path::new("/etc"), user, host),
        Kind::Bwrap | Kind::Docker | Kind::Gvisor | Kind::Srt => None,
    })
}

/// `refusal` is the kernel's error for a new user namespace; `settings` is `/proc/sys`.
fn namespace_obstacle(
    refusal: Option<&std::io::Error>,
    settings: &Path,
    user: Uid,
    kind: Kind,
) -> Option<Obstacle> {
    let is_set_to = |name: &str, value: &str| {
        fs::read_to_string(settings.join(name)).is_ok_and(|content| content.trim() == value)
    };
    let not_permitted = |why: &str| format!("user namespaces are not permitted for user {user}: {why}");
    let obstacle = |why: String, remedy: String| Some(Obstacle { why, remedy });
    match refusal {
        Some(_) if is_set_to("user/max_user_namespaces", "0") => obstacle(
            not_permitted("the kernel's setting `user.max_user_namespaces` is 0"),
            "permit them with `sudo sysctl user.max_user_namespaces=15000`".to_owned(),
        ),
        Some(_) if is_set_to("kernel/unprivileged_userns_clone", "0") => obstacle(
            not_permitted("the kernel's setting `kernel.unprivileged_userns_clone` is 0"),
            "permit them with `sudo sysctl kernel.unprivileged_userns_clone=1`".to_owned(),
        ),
        Some(refusal) => obstacle(
            not_permitted(&format!(
                "the kernel refuses one ({refusal}), as in a container whose seccomp filter or security module forbids them"
            )),
            "run cofferdam outside of that container, or permit the container `unshare` and `clone` with CLONE_NEWUSER"
                .to_owned(),
        ),
        // AppArmor permits the namespace, but not its use.
        None if is_set_to("kernel/apparmor_restrict_unprivileged_userns", "1") => obstacle(
            not_permitted("AppArmor restricts them (`kernel.apparmor_restrict_unprivileged_userns` is 1)"),
            format!(
                "permit `userns` in an AppArmor profile for `{}`, or for all programs with \
                 `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`",
                kind.program()
            ),
        ),
        None => None,
    }
}

/// `directory` is `/etc`.
fn id_obstacle(directory: &Path, user: Uid, host: &Host) -> Option<Obstacle> {
    for program in ["newuidmap", "newgidmap"] {
        if executable::find(program.as_ref(), &host.search_path, &host.directory).is_none() {
            return Some(Obstacle {
                why: format!("`{program}` is not on the PATH, and podman without root needs it"),
                remedy: "install `uidmap` (in some distributions: `shadow-utils`)".to_owned(),
            });
        }
    }
    let account = User::from_uid(user).ok().flatten().map(|account| account.name);
    let id = user.to_string();
    let names_user = |line: &str| {
        let owner = line.split(':').next();
        owner == Some(id.as_str()) || owner == account.as_deref()
    };
    for file in ["subuid", "subgid"] {
        let path = directory.join(file);
        if !fs::read_to_string(&path).unwrap_or_default().lines().any(names_user) {
            let name = account.as_deref().unwrap_or(&id);
            return Some(Obstacle {
                why: format!("`{}` has no subordinate ids for user {user}", path.display()),
                remedy: format!(
                    "add them with `sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}`, then run \
                     `podman system migrate`"
                ),
            });
        }
    }
    None
}

/// Whether this process has a capability, by the number of its bit.
fn has_capability(bit: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    effective.is_some_and(|mask| mask & (1 << bit) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of `/proc/sys` with these settings, for user 1000.
    fn obstacle(settings: &[(&str, &str)], refusal: Option<i32>) -> Option<Obstacle> {
        let directory = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-settings-"));
        for (name, value) in settings {
            let file = directory.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, value).unwrap();
        }
        let refusal = refusal.map(std::io::Error::from_raw_os_error);
        let found = namespace_obstacle(refusal.as_ref(), &directory, Uid::from_raw(1000), Kind::Bwrap);
        let _ = fs::remove_dir_all(directory);
        found
    }

    #[test]
    fn an_obstacle_names_the_setting_that_forbids_user_namespaces() {
        let no_space = Some(nix::libc::ENOSPC);
        let denied = Some(nix::libc::EPERM);
        let cases = [
            (("user/max_user_namespaces", "0\n"), no_space, "user.max_user_namespaces"),
            (("kernel/unprivileged_userns_clone", "0\n"), denied, "kernel.unprivileged_userns_clone"),
            (
                ("kernel/apparmor_restrict_unprivileged_userns", "1\n"),
                None,
                "kernel.apparmor_restrict_unprivileged_userns",
            ),
        ];
        for (setting, refusal, name) in cases {
            let found = obstacle(&[setting], refusal).unwrap();
            assert!(found.why.starts_with("user namespaces are not permitted for user 1000: "), "{found:?}");
            assert!(found.why.contains(name) && found.remedy.contains(name), "{found:?}");
        }
        let found = obstacle(&[("user/max_user_namespaces", "1000\n")], denied).unwrap();
        assert!(found.why.contains("Operation not permitted"), "{found:?}");
    }

    #[test]
    fn where_user_namespaces_are_permitted_there_is_no_obstacle() {
        let permitted = [
            ("user/max_user_namespaces", "96365\n"),
            ("kernel/unprivileged_userns_clone", "1\n"),
            ("kernel/apparmor_restrict_unprivileged_userns", "0\n"),
        ];
        assert_eq!(obstacle(&permitted, None), None);
    }
}
