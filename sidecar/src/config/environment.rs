//! The inputs of a check besides the configuration file: environment variables, the user id, certificate files and manifests. They
//! are passed in, so that a check has no hidden inputs.

use std::ffi::OsString;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use cofferdam_confine::manifest;

const FILE_NAME: &str = "cofferdam.toml";

/// A bundle of all public CAs has about 250 KB. The limit protects against a device or a wrong file.
const MAX_CERTIFICATE_BYTES: u64 = 1024 * 1024;

pub struct Environment {
    lookup_variable: Box<LookupVariable>,
    user: u32,
    read_file: Box<ReadFile>,
    read_manifest: Box<ReadFile>,
}

type LookupVariable = dyn Fn(&str) -> Option<OsString> + Send + Sync;
type ReadFile = dyn Fn(&Path) -> io::Result<Vec<u8>> + Send + Sync;

#[derive(Debug, Eq, PartialEq, thiserror::Error)]
#[error("found no configuration; looked for {}", .searched.iter().map(|path| format!("`{}`", path.display())).collect::<Vec<_>>().join(", "))]
pub struct NoConfiguration {
    pub searched: Vec<PathBuf>,
}

impl NoConfiguration {
    pub fn hint(&self) -> &'static str {
        "name one with `-c FILE`, or run `cofferdam demo`, which needs none"
    }
}

/// Finds the configuration: the explicit path, or the first of the default paths that exists.
pub fn find(explicit: Option<&Path>, environment: &Environment) -> Result<PathBuf, NoConfiguration> {
    if let Some(path) = explicit {
        return Ok(path.to_owned());
    }
    let user = environment.xdg_directory("XDG_CONFIG_HOME", ".config");
    let directories =
        [Some(PathBuf::from(".")), user.map(|home| home.join("cofferdam")), Some("/etc/cofferdam".into())];
    let searched: Vec<PathBuf> =
        directories.into_iter().flatten().map(|directory| directory.join(FILE_NAME)).collect();
    match searched.iter().find(|path| path.exists()) {
        Some(path) => Ok(path.clone()),
        None => Err(NoConfiguration { searched }),
    }
}

impl Environment {
    /// An environment without files.
    pub fn new(user: u32, variable: impl Fn(&str) -> Option<OsString> + Send + Sync + 'static) -> Self {
        let file = |_: &Path| Err(io::ErrorKind::NotFound.into());
        Self {
            lookup_variable: Box::new(variable),
            user,
            read_file: Box::new(file),
            read_manifest: Box::new(file),
        }
    }

    #[must_use]
    pub fn with_files(self, file: impl Fn(&Path) -> io::Result<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self { read_file: Box::new(file), ..self }
    }

    #[must_use]
    pub fn with_manifests(self, file: impl Fn(&Path) -> io::Result<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self { read_manifest: Box::new(file), ..self }
    }

    /// The environment of this process.
    pub fn of_process() -> Self {
        Self::new(nix::unistd::getuid().as_raw(), |name| std::env::var_os(name))
            .with_files(read_certificates)
            .with_manifests(manifest::read_file)
    }

    pub(super) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        (self.read_file)(path)
    }

    pub(super) fn read_manifest(&self, path: &Path) -> io::Result<Vec<u8>> {
        (self.read_manifest)(path)
    }

    /// Where the configuration is created if there is none.
    pub(crate) fn user_configuration(&self) -> Option<PathBuf> {
        if self.user == 0 {
            return Some(Path::new("/etc/cofferdam").join(FILE_NAME));
        }
        Some(self.xdg_directory("XDG_CONFIG_HOME", ".config")?.join("cofferdam").join(FILE_NAME))
    }

    /// The directory for sockets of this user, if there is one.
    pub(crate) fn runtime_directory(&self) -> Option<PathBuf> {
        self.absolute_path("XDG_RUNTIME_DIR")
    }

    pub(super) fn default_state_dir(&self) -> Option<PathBuf> {
        if self.user == 0 {
            return Some("/var/lib/cofferdam".into());
        }
        self.xdg_directory("XDG_STATE_HOME", ".local/state").map(|state| state.join("cofferdam"))
    }

    pub(super) fn default_admin_socket(&self, state_dir: &Path) -> PathBuf {
        if self.user == 0 {
            return "/run/cofferdam/admin/admin.sock".into();
        }
        match self.absolute_path("XDG_RUNTIME_DIR") {
            Some(runtime) => runtime.join("cofferdam/admin/admin.sock"),
            None => state_dir.join("admin/admin.sock"),
        }
    }

    fn xdg_directory(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        self.absolute_path(variable).or_else(|| Some(self.absolute_path("HOME")?.join(below_home)))
    }

    /// The path in a variable; `None` if it is relative, as the XDG specification requires.
    fn absolute_path(&self, variable: &str) -> Option<PathBuf> {
        (self.lookup_variable)(variable).map(PathBuf::from).filter(|path| path.is_absolute())
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Reads a file of certificates. Follows symbolic links, because mounted certificates often are symbolic links. Does
/// not block on a pipe.
fn read_certificates(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_CERTIFICATE_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_CERTIFICATE_BYTES {
        true => Err(io::Error::other("it is larger than 1 MiB")),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_read_from_regular_files_of_bounded_size() {
        let error_of = |path: &str| read_certificates(Path::new(path)).unwrap_err().to_string();
        assert_eq!(error_of("/nonexistent/ca.pem"), "No such file or directory (os error 2)");
        assert_eq!(error_of("/dev/zero"), "it is not a regular file");
        assert_eq!(error_of("/tmp"), "it is not a regular file");
        let path = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-certificates-"));
        std::fs::write(&path, vec![b'x'; 1024 * 1024]).unwrap();
        assert_eq!(read_certificates(&path).unwrap().len(), 1024 * 1024);
        std::fs::write(&path, vec![b'x'; 1024 * 1024 + 1]).unwrap();
        let large = error_of(path.to_str().unwrap());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(large, "it is larger than 1 MiB");
    }

    fn user(variables: &'static [(&str, &str)]) -> Environment {
        let lookup =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        Environment::new(1000, lookup)
    }

    #[test]
    fn default_directories_differ_for_root() {
        let plain = user(&[("HOME", "/home/ada")]);
        assert_eq!(plain.default_state_dir().unwrap(), Path::new("/home/ada/.local/state/cofferdam"));
        assert_eq!(plain.default_admin_socket(Path::new("/state")), Path::new("/state/admin/admin.sock"));
        let xdg =
            user(&[("HOME", "/home/ada"), ("XDG_STATE_HOME", "/s"), ("XDG_RUNTIME_DIR", "/run/user/1000")]);
        assert_eq!(xdg.default_state_dir().unwrap(), Path::new("/s/cofferdam"));
        let socket = xdg.default_admin_socket(Path::new("/state"));
        assert_eq!(socket, Path::new("/run/user/1000/cofferdam/admin/admin.sock"));
        let root = Environment::new(0, |_| Some("/elsewhere".into()));
        assert_eq!(root.default_state_dir().unwrap(), Path::new("/var/lib/cofferdam"));
        assert_eq!(root.default_admin_socket(Path::new("/s")), Path::new("/run/cofferdam/admin/admin.sock"));
        assert_eq!(user(&[("XDG_STATE_HOME", "relative")]).default_state_dir(), None);
    }

    #[test]
    fn a_new_configuration_is_created_where_it_is_looked_for() {
        let path = |environment: Environment| environment.user_configuration();
        let of_user = path(user(&[("HOME", "/home/ada")])).unwrap();
        assert_eq!(of_user, Path::new("/home/ada/.config/cofferdam/cofferdam.toml"));
        let root = Environment::new(0, |name| (name == "HOME").then(|| "/root".into()));
        assert_eq!(path(root).unwrap(), Path::new("/etc/cofferdam/cofferdam.toml"));
        assert_eq!(path(user(&[])), None);
    }

    #[test]
    fn the_error_lists_the_searched_paths() {
        let nowhere = user(&[("XDG_CONFIG_HOME", "/nonexistent/config")]);
        let error = find(None, &nowhere).unwrap_err();
        assert_eq!(
            error.to_string(),
            "found no configuration; looked for `./cofferdam.toml`, \
             `/nonexistent/config/cofferdam/cofferdam.toml`, `/etc/cofferdam/cofferdam.toml`"
        );
        assert_eq!(find(Some(Path::new("named.toml")), &nowhere).unwrap(), Path::new("named.toml"));
    }
}
