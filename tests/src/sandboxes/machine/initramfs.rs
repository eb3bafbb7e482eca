//! The file tree that a machine starts with: a module loader, and a root that contains only the shim.
//!
//! The loader is busybox with a script. It switches to a second root that holds only the shim, so that programs
//! there have neither a shell nor a library; that root is writable, for the shim's state.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::super::{Guest, SHIM_INSIDE, shim};
use super::prepare;
use crate::process::command;

const INIT: &str = "\
#!/bin/busybox sh
busybox mount -t devtmpfs none /dev
for module in /modules/*.ko; do busybox insmod \"$module\"; done
busybox ip link set lo up
if busybox ip link set eth0 up 2>/dev/null; then busybox ip address add 10.0.2.15/24 dev eth0; fi
while [ ! -c /dev/vport0p1 ]; do busybox sleep 0.05; done
. /guest
";

/// Writes an initramfs with this guest in it.
#[track_caller]
pub(super) fn write(target: &Path, busybox: &Path, modules: &Path, guest: &Guest) {
    let tree = target.with_extension("tree");
    for directory in ["bin", "dev", "modules", "root/dev"] {
        std::fs::create_dir_all(tree.join(directory)).expect("a temporary directory is writable");
    }
    std::fs::copy(busybox, tree.join("bin/busybox")).expect("busybox can be copied");
    std::fs::copy(shim(), tree.join("root").join(&SHIM_INSIDE[1..])).expect("the shim can be copied");
    for module in std::fs::read_dir(modules).expect("the kernel has modules").flatten() {
        std::fs::copy(module.path(), tree.join("modules").join(module.file_name()))
            .expect("it can be copied");
    }
    std::fs::write(tree.join("guest"), script(guest)).expect("a temporary directory is writable");
    std::fs::write(tree.join("init"), INIT).expect("a temporary directory is writable");
    std::fs::set_permissions(tree.join("init"), PermissionsExt::from_mode(0o755)).expect("it is ours");
    let mut pack = command("/bin/sh");
    pack.args(["-c", r#"cd "$1" && find . | "$2" cpio -o -H newc >"$3""#, "sh"]);
    pack.arg(&tree).arg(busybox).arg(target);
    prepare(pack, "pack the initramfs");
}

/// The script that starts the shim: sets its environment, starts the program beside it, if any, then the shim with the
/// serial port as its stdio.
fn script(guest: &Guest) -> String {
    let quoted = |word: &str| format!("'{}'", word.replace('\'', r"'\''"));
    let line = |words: &[String]| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    let mut script = String::new();
    for (name, value) in &guest.environment {
        let _ = writeln!(script, "export {name}={}", quoted(value));
    }
    if let Some(beside) = &guest.beside {
        let _ =
            writeln!(script, "busybox chroot /root {SHIM_INSIDE} {} </dev/null >/dev/null &", line(beside));
    }
    let _ = writeln!(
        script,
        "exec busybox chroot /root {SHIM_INSIDE} {} <>/dev/vport0p1 >&0",
        line(&guest.arguments)
    );
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_for_the_shell() {
        let guest = Guest::new(&["--server", "it's"]).env("A", "b c");
        let script = script(&guest);
        assert!(script.starts_with("export A='b c'\n"), "{script}");
        assert!(script.contains(r"'--server' 'it'\''s' <>/dev/vport0p1"), "{script}");
        let script = self::script(&guest.beside(&["hub", "--pin", "k"]));
        assert!(script.contains("'hub' '--pin' 'k' </dev/null >/dev/null &\nexec "), "{script}");
    }
}
