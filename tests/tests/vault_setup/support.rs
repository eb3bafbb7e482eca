//! Shared by these tests: worlds whose Vault is set up by the command, and the state of an OpenBao, to compare.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::process::output_of;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use serde_json::{Value, json};

/// The value of `team/github`, field `token`.
pub(crate) const CANARY: &str = "ghp-CANARY-of-the-setup-0815";

/// What a run of the command printed, and its exit code.
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) printed: String,
    pub(crate) stderr: String,
}

impl Run {
    #[track_caller]
    pub(crate) fn assert_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}{}", self.printed, self.stderr);
        self
    }

    #[track_caller]
    pub(crate) fn assert_prints(self, text: &str) -> Self {
        assert!(self.printed.contains(text), "`{text}` is not in:\n{}{}", self.printed, self.stderr);
        self
    }

    #[track_caller]
    pub(crate) fn assert_fails_with(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "`{text}` is not in:\n{}", self.stderr);
        self
    }
}

/// Runs `cofferdam vault setup` with this token. No token and no credential may be printed.
#[track_caller]
pub(crate) fn set_up(world: &World, token: &str, arguments: &[&str]) -> Run {
    let mut command = world.cofferdam_command();
    command.env("VAULT_TOKEN", token).args(["vault", "setup"]).args(arguments);
    command.arg("-c").arg(&world.layout().config).stdin(std::process::Stdio::null());
    let output = output_of(command, "cofferdam vault setup");
    let [printed, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("the output is UTF-8"));
    let mut hidden: Vec<String> = ["role-id", "secret-id"]
        .iter()
        .filter_map(|file| fs::read_to_string(world.layout().root().join(file)).ok())
        .filter(|credential| !credential.is_empty())
        .collect();
    // The root token of a development server is a word that is printed as a policy.
    hidden.extend([token.to_owned()].into_iter().filter(|token| token != "root"));
    for hidden in &hidden {
        assert!(
            !printed.contains(hidden) && !stderr.contains(hidden),
            "a credential is printed: {printed}{stderr}"
        );
    }
    Run { code: output.status.code().expect("it ends by itself"), printed, stderr }
}

/// A world with one server, which needs a key-value secret of an engine that does not exist yet.
pub(crate) fn world(bao: &OpenBao) -> Builder {
    world_at(&bao.address())
}

/// Like [`world`], with another address of OpenBao.
pub(crate) fn world_at(address: &str) -> Builder {
    world_with_login(
        address,
        "auth = { method = \"approle\", role-id-file = \"role-id\", secret-id-file = \"secret-id\" }\ntoken-role = \"sessions\"",
    )
}

/// Like [`world`], with other lines of `[vault]`.
pub(crate) fn world_with_login(address: &str, lines: &str) -> Builder {
    World::new()
        .line(&format!("[vault]\naddress = \"{address}\"\n{lines}"))
        .grant("vault-policies = [\"agent-dev\"]")
        .secret("github", "kv = \"team/github\"")
        .server("tools", Server::fixture().env("TOKEN", "{github.token}").allow(&["*"]))
}

pub(crate) fn file(world: &World, name: &str) -> PathBuf {
    world.layout().root().join(name)
}

/// Writes the secret that [`world`] needs.
#[track_caller]
pub(crate) fn write_value(bao: &OpenBao) {
    let write = || {
        let body = json!({"data": {"token": CANARY}});
        bao.call("POST", "team/data/github", Some(&bao.root_token), &body).status == 200
    };
    cofferdam_tests::deadline::wait_until("the engine accepts secrets", write);
}

/// Everything in OpenBao that the command could change, by path.
#[track_caller]
pub(crate) fn state_of(bao: &OpenBao) -> BTreeMap<String, Value> {
    let mut state = BTreeMap::new();
    for path in ["sys/mounts", "sys/auth"] {
        state.insert(path.to_owned(), bao.api("GET", path, Value::Null)["data"].clone());
    }
    let methods = state["sys/auth"].as_object().expect("login methods are listed by path").clone();
    let mut lists = vec!["sys/policies/acl".to_owned(), "auth/token/roles".to_owned()];
    lists.extend(methods.keys().filter(|path| *path != "token/").map(|path| format!("auth/{path}role")));
    for path in lists {
        for name in names(bao, &path) {
            let path = format!("{path}/{name}");
            state.insert(path.clone(), bao.api("GET", &path, Value::Null)["data"].clone());
            let accessors = format!("{path}/secret-id");
            let accessors: Vec<String> = match path.starts_with("auth/approle/") {
                true => names(bao, &accessors),
                false => Vec::new(),
            };
            state.insert(format!("{path} secret-ids"), json!(accessors));
        }
    }
    state
}

#[track_caller]
fn names(bao: &OpenBao, path: &str) -> Vec<String> {
    let answer = bao.call("LIST", path, Some(&bao.root_token), &Value::Null);
    let keys = answer.body["data"]["keys"].as_array().cloned().unwrap_or_default();
    keys.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The requests in OpenBao's audit that changed something, from this line on.
pub(crate) fn changes_since(bao: &OpenBao, line: usize) -> Vec<String> {
    /// Requests that change nothing although they write.
    const HARMLESS: [&str; 3] = ["sys/capabilities-self", "secret-id/lookup", "sys/wrapping/lookup"];
    let audit = bao.audit();
    let requests = audit[line..].iter().filter(|line| line["type"] == "request");
    let changing = requests.filter(|line| {
        let operation = line["request"]["operation"].as_str().unwrap_or_default();
        let path = line["request"]["path"].as_str().unwrap_or_default();
        !matches!(operation, "read" | "list" | "help") && !HARMLESS.iter().any(|end| path.ends_with(end))
    });
    changing.map(|line| format!("{} {}", line["request"]["operation"], line["request"]["path"])).collect()
}

/// The files below a directory that contain a text.
pub(crate) fn files_with(directory: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files_with(&path, text)),
            Ok(kind) if kind.is_file() => {
                let content = fs::read(&path).unwrap_or_default();
                if String::from_utf8_lossy(&content).contains(text) {
                    found.push(path);
                }
            }
            _ => {}
        }
    }
    found
}
