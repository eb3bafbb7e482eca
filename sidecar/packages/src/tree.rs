//! Whether the files of an installed package are those that were installed.
//!
//! A digest of all content proves it, but takes some time; a fingerprint of names, sizes and times is quick, and only a change of
//! the system's clock, or root, can make a changed file look unchanged. What must stay true: both cover every file, directory and
//! link, and nothing is left out.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_base::text::hex;
use ring::digest::{Context, SHA256};

/// A large server with all its modules has some twenty thousand.
const MAX_FILES: usize = 1_000_000;
const BUFFER_BYTES: usize = 64 * 1024;
const WRITABLE: u32 = 0o222;
const OWNER_MAY_WRITE: u32 = 0o200;

/// SHA-256 of every name, kind, permission to execute and content.
pub(crate) fn content_digest(root: &Path) -> io::Result<String> {
    digest_of(root, |context, path, metadata| {
        field(context, &[u8::from(metadata.mode() & 0o111 != 0)]);
        if metadata.is_file() {
            let mut file = File::open(path)?;
            let mut content = Context::new(&SHA256);
            let mut buffer = vec![0; BUFFER_BYTES];
            loop {
                match file.read(&mut buffer)? {
                    0 => break,
                    length => content.update(&buffer[..length]),
                }
            }
            field(context, content.finish().as_ref());
        }
        Ok(())
    })
}

/// SHA-256 of every name, kind, permission, owner, size and time.
pub(crate) fn fingerprint(root: &Path) -> io::Result<String> {
    digest_of(root, |context, _, metadata| {
        let numbers = [
            i64::from(metadata.mode()),
            i64::from(metadata.uid()),
            metadata.size().cast_signed(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec(),
            metadata.ino().cast_signed(),
        ];
        for number in numbers {
            context.update(&number.to_be_bytes());
        }
        Ok(())
    })
}

/// Takes the permission to write from everything, so that no server changes its own package by accident.
pub(crate) fn make_read_only(root: &Path) -> io::Result<()> {
    for path in entries(root)?.iter().map(PathBuf::as_path).chain([root]) {
        set_mode(path, |mode| mode & !WRITABLE)?;
    }
    Ok(())
}

/// Removes a directory of the store, which may be read-only.
pub(crate) fn remove(directory: &Path) -> io::Result<()> {
    // What cannot be made writable cannot be removed either, and that is reported.
    let _ = make_writable(directory);
    fs::remove_dir_all(directory)
}

fn make_writable(directory: &Path) -> io::Result<()> {
    set_mode(directory, |mode| mode | OWNER_MAY_WRITE)?;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if fs::symlink_metadata(&path)?.is_dir() {
            make_writable(&path)?;
        }
    }
    Ok(())
}

fn set_mode(path: &Path, change: impl FnOnce(u32) -> u32) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    // A link has no permissions of its own.
    match metadata.is_symlink() {
        true => Ok(()),
        false => fs::set_permissions(path, Permissions::from_mode(change(metadata.mode()) & 0o7777)),
    }
}

fn digest_of(
    root: &Path,
    mut add: impl FnMut(&mut Context, &Path, &Metadata) -> io::Result<()>,
) -> io::Result<String> {
    let mut context = Context::new(&SHA256);
    for path in entries(root)? {
        let metadata = fs::symlink_metadata(&path)?;
        let name = path.strip_prefix(root).unwrap_or(&path);
        field(&mut context, name.as_os_str().as_bytes());
        let kind = metadata.file_type();
        match (kind.is_dir(), kind.is_symlink(), kind.is_file()) {
            (true, _, _) => field(&mut context, b"directory"),
            (_, true, _) => {
                field(&mut context, b"link");
                field(&mut context, fs::read_link(&path)?.as_os_str().as_bytes());
            }
            (_, _, true) => field(&mut context, b"file"),
            _ => {
                return Err(io::Error::other(format!(
                    "`{}` is not a file, directory or link",
                    path.display()
                )));
            }
        }
        if !kind.is_symlink() {
            add(&mut context, &path, &metadata)?;
        }
    }
    Ok(hex(context.finish().as_ref()))
}

/// With its length before it, so that no two sequences of fields are the same bytes.
fn field(context: &mut Context, bytes: &[u8]) {
    context.update(&(bytes.len() as u64).to_be_bytes());
    context.update(bytes);
}

/// Everything below a directory, in one order. Links are not followed.
fn entries(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            }
            found.push(entry.path());
            if found.len() > MAX_FILES {
                return Err(io::Error::other(format!("it has more than {MAX_FILES} files")));
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn example() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("a/b")).unwrap();
        fs::write(directory.path().join("a/b/file"), "content").unwrap();
        symlink("b/file", directory.path().join("a/link")).unwrap();
        directory
    }

    /// Makes a change in a copy, and says whether the digest of the content saw it.
    fn is_seen(change: impl FnOnce(&Path)) -> bool {
        let directory = example();
        let (content, quick) =
            (content_digest(directory.path()).unwrap(), fingerprint(directory.path()).unwrap());
        assert_eq!(content, content_digest(directory.path()).unwrap());
        assert_eq!(quick, fingerprint(directory.path()).unwrap());
        change(directory.path());
        assert_ne!(quick, fingerprint(directory.path()).unwrap(), "every change has a new fingerprint");
        content != content_digest(directory.path()).unwrap()
    }

    #[test]
    fn every_change_of_the_content_is_seen() {
        let file = |root: &Path| root.join("a/b/file");
        assert!(is_seen(|root| fs::write(file(root), "CONTENT").unwrap()));
        assert!(is_seen(|root| fs::write(root.join("a/new"), "").unwrap()));
        assert!(is_seen(|root| fs::create_dir(root.join("a/new")).unwrap()));
        assert!(is_seen(|root| fs::remove_file(file(root)).unwrap()));
        assert!(is_seen(|root| fs::rename(file(root), root.join("a/file")).unwrap()));
        assert!(is_seen(|root| set_mode(&file(root), |mode| mode | 0o111).unwrap()));
        assert!(is_seen(|root| {
            fs::remove_file(root.join("a/link")).unwrap();
            symlink("/etc/passwd", root.join("a/link")).unwrap();
        }));
        assert!(!is_seen(|root| {
            fs::remove_file(file(root)).unwrap();
            fs::write(file(root), "content").unwrap();
        }));
    }

    #[test]
    fn a_read_only_tree_can_be_removed() {
        let directory = example();
        let tree = directory.path().join("a");
        make_read_only(&tree).unwrap();
        assert_eq!(fs::metadata(tree.join("b/file")).unwrap().mode() & WRITABLE, 0);
        assert_eq!(fs::metadata(&tree).unwrap().mode() & WRITABLE, 0);
        remove(&tree).unwrap();
        assert!(!tree.exists());
    }
}
