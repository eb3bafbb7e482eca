//! A registry on loopback: npm's and Python's, with a small server for each, whose files a test can change.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use base64ct::{Base64, Encoding as _};
use cofferdam_tests::http::{Reply, Request, listen};
use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::tools::Tool;
use serde_json::{Value, json};

/// Answers MCP with one tool, which returns what its dependency exports.
const NPM_SERVER: &str = r#"#!/usr/bin/env node
const answer = require("answer");
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  const result = {
    initialize: () => ({ protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: "fixture", version: "1" } }),
    "tools/list": () => ({ tools: [{ name: "answer", inputSchema: { type: "object" } }] }),
    "tools/call": () => ({ content: [{ type: "text", text: answer + " " + process.argv.slice(2).join(" ") }] }),
  }[method]?.() ?? {};
  console.log(JSON.stringify({ jsonrpc: "2.0", id, result }));
});
"#;

/// What the install script of the dependency finds: the registry, and its token in the environment.
const INSTALL_SCRIPT: &str = r#"
const found = { token: JSON.stringify(process.env).includes("4711") };
require("http").get(process.env.npm_package_config_registry, () => { found.network = true; done(); })
  .on("error", (error) => { found.network = error.code; done(); });
function done() { require("fs").writeFileSync("ran.json", JSON.stringify(found)); }
"#;

const PYTHON_SERVER: &str = r#"
import json, sys
def main():
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        text = "python " + " ".join(sys.argv[1:])
        result = {
            "initialize": {"protocolVersion": message.get("params", {}).get("protocolVersion"), "capabilities": {"tools": {}},
                           "serverInfo": {"name": "fixture", "version": "1"}},
            "tools/list": {"tools": [{"name": "answer", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": text}]},
        }.get(message["method"], {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

/// Makes a wheel: its path, and its files from standard names.
const MAKE_WHEEL: &str = r#"
import sys, zipfile
wheel, source = sys.argv[1:]
information = "fixture_server-1.0.dist-info"
files = {
    "fixture_server.py": open(source).read(),
    information + "/METADATA": "Metadata-Version: 2.1\nName: fixture-server\nVersion: 1.0\n",
    information + "/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    information + "/entry_points.txt": "[console_scripts]\nfixture-server = fixture_server:main\n",
}
files[information + "/RECORD"] = "".join(name + ",,\n" for name in files) + information + "/RECORD,,\n"
with zipfile.ZipFile(wheel, "w") as archive:
    for name, content in files.items():
        archive.writestr(name, content)
"#;

pub(crate) struct Registry {
    address: SocketAddr,
    files: Arc<Mutex<BTreeMap<String, Reply>>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Registry {
    /// Starts a registry that has nothing.
    pub(crate) fn start() -> Self {
        let files: Arc<Mutex<BTreeMap<String, Reply>>> = Arc::default();
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (served, record) = (Arc::clone(&files), Arc::clone(&requests));
        let address = listen(move |request| {
            let reply = served.lock().expect("no test panics here").get(&request.path).cloned();
            record.lock().expect("no test panics here").push(request);
            reply.unwrap_or(Reply::Status(404))
        });
        Self { address, files, requests }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address for npm.
    pub(crate) fn npm(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// The address for pip.
    pub(crate) fn index(&self) -> String {
        format!("http://{}/simple", self.address)
    }

    pub(crate) fn set(&self, path: &str, reply: Reply) {
        self.files.lock().expect("no test panics here").insert(path.to_owned(), reply);
    }

    pub(crate) fn remove(&self, path: &str) {
        self.files.lock().expect("no test panics here").remove(path);
    }

    /// What was asked for so far; forgets it.
    pub(crate) fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut *self.requests.lock().expect("no test panics here"))
    }

    /// Publishes `@fixture/server` 1.0.0 and `answer` 1.0.0, on which it depends.
    pub(crate) fn publish_npm(&self) {
        let server = json!({
            "name": "@fixture/server", "version": "1.0.0", "bin": {"fixture-server": "index.js"},
            "dependencies": {"answer": "^1.0.0"},
        });
        let versions = [self.npm_version(&server, &[("index.js", NPM_SERVER)])];
        self.set("/@fixture%2fserver", packument("@fixture/server", &versions));
        self.publish_answers(&["1.0.0"]);
    }

    /// Publishes these versions of the dependency. The last is the newest.
    pub(crate) fn publish_answers(&self, versions: &[&str]) {
        let publish = |version: &&str| {
            let manifest = json!({
                "name": "answer", "version": version, "config": {"registry": self.npm()},
                "scripts": {"postinstall": "node install.js"},
            });
            let index = format!("module.exports = 'answer of {version}';\n");
            self.npm_version(&manifest, &[("index.js", &index), ("install.js", INSTALL_SCRIPT)])
        };
        let versions: Vec<Value> = versions.iter().map(publish).collect();
        self.set("/answer", packument("answer", &versions));
    }

    /// Publishes `fixture-server` 1.0 as a wheel.
    pub(crate) fn publish_python(&self) {
        let wheel = wheel(PYTHON_SERVER);
        let digest = ring::digest::digest(&ring::digest::SHA256, &wheel);
        let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let name = "fixture_server-1.0-py3-none-any.whl";
        self.set(&format!("/files/{name}"), Reply::Bytes(wheel));
        self.set(
            "/simple/fixture-server/",
            Reply::Page(format!("<a href=\"/files/{name}#sha256={hex}\">{name}</a>")),
        );
    }

    /// Packs one version as `npm publish` does, and returns what the registry says of it.
    fn npm_version(&self, manifest: &Value, files: &[(&str, &str)]) -> Value {
        let directory = tempfile::tempdir().expect("make a directory");
        let package = directory.path().join("package");
        std::fs::create_dir(&package).expect("make a directory");
        std::fs::write(package.join("package.json"), manifest.to_string()).expect("write a file");
        for (name, content) in files {
            std::fs::write(package.join(name), content).expect("write a file");
        }
        let mut tar = command("tar");
        tar.args(["-czf", "-", "-C"]).arg(directory.path()).arg("package");
        let archive = output_of(tar, "tar").stdout;
        let digest = Base64::encode_string(ring::digest::digest(&ring::digest::SHA512, &archive).as_ref());
        let name = manifest["name"].as_str().expect("a name");
        let file = format!(
            "/files/{}-{}.tgz",
            name.replace(['@', '/'], ""),
            manifest["version"].as_str().expect("a version")
        );
        self.set(&file, Reply::Bytes(archive));
        let mut version = manifest.clone();
        version["dist"] = json!({"tarball": format!("http://{}{file}", self.address), "integrity": format!("sha512-{digest}")});
        version["hasInstallScript"] = manifest["scripts"]["postinstall"].is_string().into();
        version
    }
}

/// A wheel of `fixture-server` 1.0 with this source.
pub(crate) fn wheel(source: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("make a directory");
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("source.py"), source).expect("write a file");
    let mut python = command(Tool::Python.path().unwrap_or_else(|| Path::new("python3").to_owned()));
    python.args(["-c", MAKE_WHEEL]).arg(path("x.whl")).arg(path("source.py"));
    let made = output_of(python, "python3");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::read(path("x.whl")).expect("the wheel was made")
}

fn packument(name: &str, versions: &[Value]) -> Reply {
    let of = |value: &Value| (value["version"].as_str().expect("a version").to_owned(), value.clone());
    let newest = versions.last().expect("a version")["version"].clone();
    let versions: serde_json::Map<String, Value> = versions.iter().map(of).collect();
    Reply::Json(json!({"name": name, "dist-tags": {"latest": newest}, "versions": versions}))
}
