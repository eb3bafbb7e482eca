//! What the configuration may know of the process around it: variables and the user. Passed in, so that reading
//! a configuration is a pure function.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

const FILE_NAME: &str = "cofferdam.toml";

pub struct Environment {
    variable: Box<Lookup>,
    user: u32,
}

type Lookup = dyn Fn(&str) -> Option<OsString> + Send + Sync;

#[derive(Debug, Eq, PartialEq, thiserror::Error)]
#[error("found no configuration; looked for {}", .looked.iter().map(|path| format!("`{}`", path.display())).collect::<Vec<_>>().join(", "))]
pub struct NoConfiguration {
    pub looked: Vec<PathBuf>,
}

impl NoConfiguration {
    pub fn hint(&self) -> &'static str {
        "name one with `-c FILE`, or run `cofferdam demo`, which needs none"
    }
}

/// Where the configuration is: what was named, or the first of the usual places that has one.
pub fn find(explicit: Option<&Path>, environment: &Environment) -> Result<PathBuf, NoConfiguration> {
    if let Some(path) = explicit {
        return Ok(path.to_owned());
    }
    let user = environment.directory("XDG_CONFIG_HOME", ".config");
    let places =
        [Some(PathBuf::from(".")), user.map(|home| home.join("cofferdam")), Some("/etc/cofferdam".into())];
    let looked: Vec<PathBuf> = places.into_iter().flatten().map(|place| place.join(FILE_NAME)).collect();
    match looked.iter().find(|path| path.exists()) {
        Some(path) => Ok(path.clone()),
        None => Err(NoConfiguration { looked }),
    }
}

impl Environment {
    pub fn new(user: u32, variable: impl Fn(&str) -> Option<OsString> + Send + Sync + 'static) -> Self {
        Self { variable: Box::new(variable), user }
    }

    /// This process's own.
    pub fn of_process() -> Self {
        Self::new(nix::unistd::getuid().as_raw(), |name| std::env::var_os(name))
    }

    pub(super) fn default_state_dir(&self) -> Option<PathBuf> {
        if self.user == 0 {
            return Some("/var/lib/cofferdam".into());
        }
        self.directory("XDG_STATE_HOME", ".local/state").map(|state| state.join("cofferdam"))
    }

    pub(super) fn default_admin_socket(&self, state_dir: &Path) -> PathBuf {
        if self.user == 0 {
            return "/run/cofferdam/admin/admin.sock".into();
        }
        match self.absolute("XDG_RUNTIME_DIR") {
            Some(runtime) => runtime.join("cofferdam/admin/admin.sock"),
            None => state_dir.join("admin/admin.sock"),
        }
    }

    fn directory(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        self.absolute(variable).or_else(|| Some(self.absolute("HOME")?.join(below_home)))
    }

    /// The XDG specification says to ignore relative paths.
    fn absolute(&self, variable: &str) -> Option<PathBuf> {
        (self.variable)(variable).map(PathBuf::from).filter(|path| path.is_absolute())
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").field("user", &self.user).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(variables: &'static [(&str, &str)]) -> Environment {
        let lookup =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        Environment::new(1000, lookup)
    }

    #[test]
    fn the_user_has_directories_and_root_has_others() {
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
    fn the_error_says_where_it_looked() {
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
