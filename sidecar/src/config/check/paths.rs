//! Paths as written, and where they lead.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::Checker;
use crate::config::at::{At, Span};

/// `sun_path` of a Unix socket's address holds 108 bytes, the last of them a NUL.
const MAX_SOCKET_PATH_BYTES: usize = 107;

impl Checker<'_, '_> {
    /// An absolute path without `.` and `..`; a relative one starts at the configuration's directory.
    pub(super) fn path(&mut self, key: &str, written: &At<String>) -> Option<PathBuf> {
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

    pub(super) fn socket(&mut self, key: &str, written: &At<String>) -> Option<PathBuf> {
        let path = self.path(key, written)?;
        self.fits_socket_address(key, &path, Some(&written.span)).then_some(path)
    }

    /// `span` is where the path is written; `None` for a default.
    pub(super) fn fits_socket_address(&mut self, key: &str, path: &Path, span: Option<&Span>) -> bool {
        let length = path.as_os_str().as_bytes().len();
        if length <= MAX_SOCKET_PATH_BYTES {
            return true;
        }
        let message =
            format!("`{key}` is {length} bytes long; a socket's path has at most {MAX_SOCKET_PATH_BYTES}");
        match span {
            Some(span) => self.add(span, message, "choose a shorter directory"),
            None => self.report.add_anywhere(message, format!("set `{key}` to a shorter path")),
        }
        false
    }

    /// A program and its arguments. A program with a slash in its name is a path like any other.
    pub(super) fn arguments(&mut self, key: &str, written: At<Vec<String>>) -> Option<Vec<String>> {
        let At { value: mut arguments, span } = written;
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
            let program = At { value: arguments[0].clone(), span };
            return self.path(key, &program).map(|_| arguments);
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
        let directory = self.setting.file.parent().unwrap_or(Path::new("/"));
        normal(&directory.join(text))
    }
}

/// Lexically: symbolic links are not followed, because the path may not exist yet.
pub(super) fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut normal, component| {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(normal.pop()),
            Component::Normal(_) | Component::Prefix(_) | Component::RootDir => normal.push(component),
        }
        normal
    })
}
