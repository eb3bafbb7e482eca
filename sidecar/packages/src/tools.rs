//! The programs of this host that installations use: Node.js with npm, and Python.
//!
//! What must stay true: a version manager's wrapper is never used but the program that it chooses, because a wrapper chooses anew
//! at every run, by files that a server may write.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_process::{LaunchError, RunError, program_path, run_bounded};

const TIMEOUT: Duration = Duration::from_secs(20);
const MAX_OUTPUT: usize = 16 * 1024;
/// The pip of an older Python cannot report what it would install.
const OLDEST_PYTHON: (u32, u32) = (3, 11);

/// Node.js and its npm.
#[derive(Clone, Debug)]
pub(crate) struct NodeTools {
    /// With no link in its path.
    pub(crate) node: PathBuf,
    /// npm's own script.
    pub(crate) npm: PathBuf,
}

/// A Python that can make environments.
#[derive(Clone, Debug)]
pub(crate) struct PythonTools {
    /// With no link in its path.
    pub(crate) python: PathBuf,
    /// What its packages are built for, such as `cpython-311`.
    pub(crate) implementation: String,
    /// The pip that it puts into new environments.
    pub(crate) pip: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("there is no `{0}` on the PATH")]
    Missing(&'static str),
    #[error("`{0}` does not run")]
    Failed(&'static str, #[source] RunError),
    #[error("there is no npm beside Node.js at `{}`", .0.display())]
    NoNpm(PathBuf),
    #[error("`python3` cannot make virtual environments: its modules `venv` and `ensurepip` are missing")]
    NoVenv,
    #[error("`python3` is {}.{}, and packages need {}.{} or newer", found.0, found.1, OLDEST_PYTHON.0, OLDEST_PYTHON.1)]
    OldPython { found: (u32, u32) },
    #[error("`{0}` printed something else than what it was asked for")]
    Output(&'static str),
}

impl NodeTools {
    pub(crate) async fn find() -> Result<Self, ToolError> {
        let node = path("node")?;
        let output = run("node", &node, &["-p", "process.execPath"]).await?;
        let node = real("node", output.trim())?;
        let beside = node.parent().and_then(Path::parent).map(|prefix| {
            ["lib/node_modules/npm/bin/npm-cli.js", "share/nodejs/npm/bin/npm-cli.js"]
                .map(|path| prefix.join(path))
        });
        let on_path = path("npm").ok().and_then(|npm| npm.canonicalize().ok());
        let candidates = beside.into_iter().flatten().chain(on_path);
        let is_script = |path: &PathBuf| path.extension().is_some_and(|end| end == "js") && path.is_file();
        let npm = candidates.into_iter().find(is_script).ok_or_else(|| ToolError::NoNpm(node.clone()))?;
        Ok(Self { node, npm })
    }
}

impl PythonTools {
    pub(crate) async fn find() -> Result<Self, ToolError> {
        // An environment that is active at the moment is not the Python that it was made with. Debian keeps pip elsewhere.
        const SCRIPT: &str = "import glob, importlib.util, os, sys\n\
            print(os.path.realpath(getattr(sys, '_base_executable', sys.executable)))\n\
            print(*sys.version_info[:2], sys.implementation.cache_tag)\n\
            if all(importlib.util.find_spec(name) for name in ('venv', 'ensurepip')):\n \
            import ensurepip\n \
            bundled = os.path.join(os.path.dirname(ensurepip.__file__), '_bundled')\n \
            wheels = getattr(ensurepip, '_WHEEL_PKG_DIR', None) or bundled\n \
            print(*glob.glob(os.path.join(wheels, 'pip-*.whl'))[:1])";
        let python = path("python3")?;
        let output = run("python3", &python, &["-I", "-c", SCRIPT]).await?;
        let unclear = || ToolError::Output("python3");
        let mut lines = output.lines();
        let python = lines.next().ok_or_else(unclear)?;
        let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
        let [major, minor, implementation] = words[..] else { return Err(unclear()) };
        let number = |text: &str| text.parse::<u32>().map_err(|_| unclear());
        let found = (number(major)?, number(minor)?);
        if found < OLDEST_PYTHON {
            return Err(ToolError::OldPython { found });
        }
        let pip = lines.next().filter(|pip| !pip.is_empty()).ok_or(ToolError::NoVenv)?;
        Ok(Self {
            python: real("python3", python)?,
            implementation: implementation.to_owned(),
            pip: real("python3", pip)?,
        })
    }
}

impl ToolError {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Missing("node") | Self::NoNpm(_) => {
                "install Node.js with npm (on Debian and Ubuntu: `apt install npm`)"
            }
            Self::Missing(_) | Self::NoVenv => {
                "install Python with venv (on Debian and Ubuntu: `apt install python3-venv`)"
            }
            Self::OldPython { .. } => "put a newer `python3` first on the PATH",
            Self::Failed(..) | Self::Output(_) => "run it by hand, and correct its installation",
        }
    }
}

fn path(program: &'static str) -> Result<PathBuf, ToolError> {
    program_path(program.as_ref()).map_err(|error| match error {
        LaunchError::NotFound { .. } | LaunchError::NotExecutable { .. } => ToolError::Missing(program),
        other => ToolError::Failed(program, other.into()),
    })
}

async fn run(name: &'static str, program: &Path, arguments: &[&str]) -> Result<String, ToolError> {
    let program = program.to_str().ok_or(ToolError::Output(name))?;
    let command: Vec<String> = [program].iter().chain(arguments).map(|word| (*word).to_owned()).collect();
    let output =
        run_bounded(&command, TIMEOUT, MAX_OUTPUT).await.map_err(|error| ToolError::Failed(name, error))?;
    String::from_utf8(output.to_vec()).map_err(|_| ToolError::Output(name))
}

fn real(name: &'static str, path: &str) -> Result<PathBuf, ToolError> {
    let path = Path::new(path);
    match path.is_absolute() {
        true => path.canonicalize().map_err(|_| ToolError::Output(name)),
        false => Err(ToolError::Output(name)),
    }
}
