//! The file tree that a machine starts with: a module loader, and a root that contains only the shim.
//!
//! The loader is busybox with a script. It switches to a second root that holds only the shim, so that programs
//! there have neither a shell nor a library; that root is writable, for the shim's state.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::super::{Guest, SHIM_INSIDE, shim, text_of_success};
use super::prepare;
use crate::process::command;

/// Modules are loaded twice, because some need others that come later: which ones changes with the kernel's version.
const INIT: &str = "\
#!/bin/busybox sh
busybox mount -t devtmpfs none /dev
for pass in 1 2; do for module in /modules/*.ko; do busybox insmod \"$module\" 2>/dev/null; done; done
busybox ip link set lo up
if busybox ip link set eth0 up 2>/dev/null; then busybox ip address add 10.0.2.15/24 dev eth0; fi
while [ ! -c /dev/vport0p1 ]; do busybox sleep 0.05; done
. /guest
";

/// A confined server enters a root of its own, which the kernel permits only where the present one is a mount.
const SWITCH_ROOT: &str = "\
busybox mkdir /new
busybox mount -t tmpfs -o size=75% none /new
busybox cp -a /root/. /new/
exec busybox switch_root /new /bin/busybox sh /script
";

/// Files besides the shim, by their paths in the machine, and what is run instead of the shim.
#[derive(Clone, Debug, Default)]
pub struct System {
    files: Vec<(PathBuf, String)>,
    programs: Vec<(PathBuf, String)>,
    script: String,
}

impl System {
    /// `script` runs in the second root, as root and with busybox as its shell. Its last command has the serial port
    /// `/dev/vport0p1` as its stdio, as the shim has.
    pub fn new(script: &str) -> Self {
        Self { script: script.to_owned(), ..Self::default() }
    }

    #[must_use]
    pub fn file(mut self, outside: &Path, inside: &str) -> Self {
        self.files.push((outside.to_owned(), inside.to_owned()));
        self
    }

    /// A program with the libraries that it is linked with.
    #[must_use]
    pub fn program(mut self, outside: &Path, inside: &str) -> Self {
        self.programs.push((outside.to_owned(), inside.to_owned()));
        self
    }

    fn copy(&self, root: &Path, busybox: &Path) {
        let libraries = self.programs.iter().flat_map(|(outside, _)| libraries(outside));
        let libraries = libraries.map(|path| (path.clone(), path.display().to_string()));
        let shell = [(busybox.to_owned(), "/bin/busybox".to_owned())];
        for (outside, inside) in
            self.files.iter().chain(&self.programs).cloned().chain(libraries).chain(shell)
        {
            let target = root.join(inside.trim_start_matches('/'));
            std::fs::create_dir_all(target.parent().expect("it is in a directory")).expect("it is ours");
            std::fs::copy(&outside, target).expect("it can be copied");
        }
        std::fs::write(root.join("script"), &self.script).expect("a temporary directory is writable");
    }
}

/// The libraries of a program, and its loader.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let mut list = command("ldd");
    list.arg(program);
    let text = text_of_success(list, "ldd");
    let paths = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    paths.map(PathBuf::from).collect()
}

/// Writes an initramfs with this guest in it.
#[track_caller]
pub(super) fn write(target: &Path, busybox: &Path, modules: &Path, guest: &Guest, system: Option<&System>) {
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
    let script = match system {
        Some(system) => {
            system.copy(&tree.join("root"), busybox);
            SWITCH_ROOT.to_owned()
        }
        None => script(guest),
    };
    std::fs::write(tree.join("guest"), script).expect("a temporary directory is writable");
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
