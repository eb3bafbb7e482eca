//! Checks `package` of a server and the keys that belong to it.

use std::collections::BTreeMap;

use cofferdam_packages::{InstallScripts, PackageKind, PackageSource, PackageSpec, Store, lock_path};

use super::{Checker, span_of, written_keys};
use crate::config::raw::{RawInstallScripts, RawServer};
use crate::config::spanned::{Span, Spanned};

/// The keys that have no meaning without `package`.
pub(super) fn written_keys_of(raw: &RawServer) -> BTreeMap<&'static str, Span> {
    written_keys([
        ("args", span_of(&raw.args)),
        ("install-scripts", span_of(&raw.install_scripts)),
        ("program", span_of(&raw.program)),
    ])
}

/// The package and the arguments of its program.
pub(super) fn check_package(
    checker: &mut Checker<'_, '_>,
    table: &str,
    server: &str,
    raw: &mut RawServer,
) -> Option<(PackageSource, Spanned<Vec<String>>)> {
    let package = raw.package.take()?;
    let spec = match package.value.parse::<PackageSpec>() {
        Ok(spec) => Some(spec),
        Err(problem) => {
            checker.add(&package.span, format!("`{table}.package`: {problem}"), problem.hint());
            None
        }
    };
    let arguments =
        raw.args.take().unwrap_or_else(|| Spanned { value: Vec::new(), span: package.span.clone() });
    if arguments.value.iter().any(|argument| argument.contains('\0')) {
        let hint = "an argument cannot contain one: leave it out";
        checker.add(&arguments.span, format!("`{table}.args` holds a NUL character"), hint);
    }
    let scripts = raw.install_scripts.take();
    if let Some(Spanned { value: RawInstallScripts::Allow, span }) = &scripts
        && spec.as_ref().is_some_and(|spec| spec.kind() == PackageKind::PyPi)
    {
        let message = format!(
            "`{table}.install-scripts` has no effect for Python packages, which run nothing when installed"
        );
        checker.add(span, message, "leave it out; what needs a compiler cannot be installed");
    }
    let install_scripts = match scripts.map(|written| written.value) {
        Some(RawInstallScripts::Allow) => InstallScripts::Allow,
        Some(RawInstallScripts::Deny) | None => InstallScripts::Deny,
    };
    let source = PackageSource {
        server: server.to_owned(),
        spec: spec?,
        install_scripts,
        program: raw.program.take().map(|written| written.value),
        lock: lock_path(checker.context.file),
        store: Store::in_state(checker.state_dir.as_deref()?),
    };
    Some((source, arguments))
}
