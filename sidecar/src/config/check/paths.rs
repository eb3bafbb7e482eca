//! Checks and resolves paths and commands.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::Checker;
use crate::config::spanned::{Span, Spanned};

/// `sun_path` of a Unix socket's address holds 108 bytes, the last of them a NUL.
const MAX_SOCKET_PATH_BYTES: usize = 107;

impl Checker<'_, '_> {
    /// Returns an absolute path without `.` and `..`. A relative path starts at the configuration's directory.
    pub(super) fn check_path(&mut self, key: &str, written: &Spanned<String>) -> Option<PathBuf> {
        let text = &written.value;
        if text.is_empty() || text.contains('\0') {
            self.add(&written.span, format!("`{key}` is not a path"), "write an absolute path");
            return None;
        }
        if text.starts_with('~') {
            let hint = "`~` is for shells: write the whole path";
            self.add(&written.span, format!("`{key}` begins with `~`, which is not expanded"), hint);
            return None;
        }
        Some(self.resolve(text))
    }

    pub(super) fn check_socket_path(&mut self, key: &str, written: &Spanned<String>) -> Option<PathBuf> {
        let path = self.check_path(key, written)?;
        self.fits_socket_address(key, &path, Some(&written.span)).then_some(path)
    }

    /// Checks the length of a socket's path. `span` is where the file sets the path; `None` for a default.
    pub(super) fn fits_socket_address(&mut self, key: &str, path: &Path, span: Option<&Span>) -> bool {
        let length = path.as_os_str().as_bytes().len();
        if length <= MAX_SOCKET_PATH_BYTES {
            return true;
        }
        let message =
            format!("`{key}` is {length} bytes long; a socket's path has at most {MAX_SOCKET_PATH_BYTES}");
        match span {
            Some(span) => self.add(span, message, "choose a shorter directory"),
            None => self.report.add_for_file(message, format!("set `{key}` to a shorter path")),
        }
        false
    }

    /// Checks a program and its arguments. A program with a slash in its name is resolved like other paths.
    pub(super) fn check_command(&mut self, key: &str, written: Spanned<Vec<String>>) -> Option<Vec<String>> {
        let Spanned { value: mut arguments, span } = written;
        if arguments.first().is_none_or(String::is_empty) {
            self.add(&span, format!("`{key}` is empty"), "write the program, then its arguments");
            return None;
        }
        if arguments.iter().any(|argument| argument.contains('\0')) {
            self.add(
                &span,
                format!("`{key}` holds a NUL character"),
                "an argument cannot contain one: leave it out",
            );
            return None;
        }
        if arguments[0].starts_with('~') {
            let program = Spanned { value: arguments[0].clone(), span };
            return self.check_path(key, &program).map(|_| arguments);
        }
        if arguments[0].contains('/') {
            let program = self.resolve(&arguments[0]);
            let Some(program) = program.to_str() else {
                let hint = "write an absolute path, or move the configuration";
                self.add(&span, format!("`{key}` leads to a path that is not UTF-8"), hint);
                return None;
            };
            arguments[0] = program.to_owned();
        }
        Some(arguments)
    }

    fn resolve(&self, text: &str) -> PathBuf {
        let directory = self.context.file.parent().unwrap_or(Path::new("/"));
        normalized(&directory.join(text))
    }
}

/// Removes `.` and `..` without following symbolic links, because the path may not exist yet.
pub(super) fn normalized(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut normal, component| {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(normal.pop()),
            Component::Normal(_) | Component::Prefix(_) | Component::RootDir => normal.push(component),
        }
        normal
    })
}
