//! The OCI images, loaded into a podman without a registry and run.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::http_fixture::{Behaviour, HttpFixture};
use cofferdam_tests::markdown::blocks;
use cofferdam_tests::packaged::stripped_program;
use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::sandboxes::PodmanEngine;
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;
use serde_json::Value;

use super::published::Published;
use super::{INSTALL, commands_of_guide};

pub(crate) const SECTION: &str = "Containers";
const SIDECAR: &str = concat!("cofferdam:", env!("CARGO_PKG_VERSION"));
const SHIM: &str = concat!("cofferdam-shim:", env!("CARGO_PKG_VERSION"));

/// As the manifest sets it for the agent's container.
const RELAY: &str = "COFFERDAM_RELAY=unix:/run/cofferdam/relay/relay.sock";
const POD: &str = include_str!("../../../packaging/kubernetes/pod/cofferdam.toml");

/// What the sidecar's image can start: a program that needs no other file, and a server that is reached by HTTP.
const SERVERS: &str = r#"
[servers.static]
command = ["/etc/cofferdam/server"]
[servers.remote]
url = "@URL@"
private = true
[grants.dev]
servers = ["remote", "static"]
"#;

/// An MCP server with one tool, to be linked statically. The sidecar puts the id of a request at the end of its line or
/// before another member.
const STATIC_SERVER: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) {
  char *line = NULL;
  size_t size = 0;
  while (getline(&line, &size, stdin) > 0) {
    const char *id = strstr(line, "\"id\":");
    if (!id) continue;
    id += 5;
    const char *result = strstr(line, "\"tools/call\"") ? "{\"content\":[{\"type\":\"text\",\"text\":\"from a static program\"}]}"
      : strstr(line, "\"tools/list\"") ? "{\"tools\":[{\"name\":\"speak\",\"inputSchema\":{\"type\":\"object\"}}]}"
      : "{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{\"tools\":{}},\"serverInfo\":{\"name\":\"static\",\"version\":\"1\"}}";
    printf("{\"jsonrpc\":\"2.0\",\"id\":%.*s,\"result\":%s}\n", (int)strcspn(id, ",}"), id, result);
    fflush(stdout);
  }
}
"#;

/// A configuration for a server that runs in Node.
const NODE: &str = r#"
state-dir = "/state"
[relay]
unix = "/relay/relay.sock"
unix-grant = "dev"
[admin]
socket = "/admin/admin.sock"
[servers.everything]
command = ["/usr/local/bin/node", "/opt/node_modules/@modelcontextprotocol/server-everything/dist/index.js"]
[grants.dev]
servers = ["everything"]
"#;

struct Images {
    podman: PodmanEngine,
    directory: tempfile::TempDir,
}

impl Images {
    #[track_caller]
    fn open() -> Option<Self> {
        let podman = PodmanEngine::open()?;
        Some(Self { podman, directory: tempfile::tempdir().expect("a temporary directory can be made") })
    }

    /// Makes the images of this program and of the shim; the same shim stands for both processors.
    #[track_caller]
    fn make(&self, out: &str, program: &Path) {
        let shim = built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
        let mut make = command(Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/images/build"));
        make.arg(self.directory.path().join(out)).arg(program).env("SOURCE_DATE_EPOCH", "1750000000");
        for architecture in ["x86_64", "aarch64"] {
            make.arg(format!("{architecture}={}", shim.display()));
        }
        self.podman.configure(&mut make);
        let output = output_of(make, "packaging/images/build");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn archive(&self, out: &str, name: &str) -> std::path::PathBuf {
        self.directory.path().join(out).join(file_name(name))
    }

    /// A file of an archive, as JSON.
    #[track_caller]
    fn json(&self, archive: &Path, file: &str) -> Value {
        let mut tar = command("tar");
        tar.arg("-xOf").arg(archive).arg(file);
        serde_json::from_slice(&output_of(tar, "tar").stdout).expect("the file is JSON")
    }

    #[track_caller]
    fn podman(&self, arguments: &[&str]) -> String {
        let mut podman = self.podman.command();
        podman.args(arguments);
        let output = output_of(podman, &format!("podman {arguments:?}"));
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// An empty directory, and the option that mounts it there in a container, where every user can write to it.
    #[track_caller]
    fn volume(&self, name: &str, inside: &str) -> (PathBuf, String) {
        let path = self.directory.path().join(name);
        std::fs::create_dir(&path).expect("a temporary directory is writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
        let option = format!("--volume={}:{inside}", path.display());
        (path, option)
    }

    /// Waits until the sidecar in the container responds, by the probe of the manifests.
    #[track_caller]
    fn wait_until_ready(&self, container: &str) {
        let probe = ["exec", container, "/usr/local/bin/cofferdam", "sessions", "-c"];
        wait_until("the sidecar of the image is ready", || {
            let mut podman = self.podman.command();
            podman.args(probe).arg("/etc/cofferdam/cofferdam.toml");
            output_of(podman, "the probe").status.success()
        });
    }
}

fn file_name(image: &str) -> String {
    format!("{image}-image-{}.tar", env!("CARGO_PKG_VERSION"))
}

#[test]
fn the_images_are_loaded_run_and_copied_from() {
    let Some(images) = Images::open() else { return };
    images.make("dist", &stripped_program(images.directory.path()));

    // The index of the shim names both processors.
    let archive = images.archive("dist", "cofferdam-shim");
    let outer = images.json(&archive, "./index.json");
    let digest = outer["manifests"][0]["digest"].as_str().expect("the index is named").to_owned();
    let index = images.json(&archive, &format!("./blobs/{}", digest.replace(':', "/")));
    let mut architectures: Vec<&str> = index["manifests"]
        .as_array()
        .expect("the index lists images")
        .iter()
        .filter_map(|image| image["platform"]["architecture"].as_str())
        .collect();
    architectures.sort_unstable();
    assert_eq!(architectures, ["amd64", "arm64"], "{index}");

    // The commands of the guide, as they are written.
    let [commands] = &commands_of_guide(SECTION)[..] else { panic!("the guide has one block") };
    let mut shell = command("sh");
    shell.args(["-ec", commands]).current_dir(images.directory.path());
    images.podman.configure(&mut shell);
    let output = output_of(shell, "the guide's commands");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("\ncofferdam-shim ") && printed.contains("\ncofferdam "), "{printed}");

    // It runs as a user without rights, and can give its shim away.
    let size = built("COFFERDAM_SHIM_BIN", "cofferdam-shim").metadata().expect("it was built").len();
    let mut shim = images.podman.command();
    shim.args(["run", "--rm", "--network", "none", SIDECAR, "shim"]);
    assert_eq!(output_of(shim, "cofferdam shim").stdout.len() as u64, size);
    assert_eq!(images.podman(&["image", "inspect", "--format", "{{.User}}", SIDECAR]), "65532:65532");

    // The line of the guide, in the file of another image.
    let line = blocks(INSTALL, "dockerfile").remove(0);
    let file = format!("FROM scratch\n{line}ENTRYPOINT [\"/usr/local/bin/cofferdam-shim\"]\n");
    images.podman.build("agent", &file, &[]).expect("the shim can be copied");
    let version = images.podman(&["run", "--rm", "--network", "none", "agent", "--version"]);
    assert!(version.starts_with("cofferdam-shim "), "{version}");

    assert_serves_with_the_volumes_of_a_pod(&images);
}

/// The sidecar's image with what `packaging/kubernetes/pod` gives it: volumes of root's that every user can write to, a
/// read-only file system, no capabilities; and the shim's image as the sandbox beside it, which calls both kinds of servers
/// that this image can have. The sidecar is in this machine's network, where the HTTP server is.
#[track_caller]
fn assert_serves_with_the_volumes_of_a_pod(images: &Images) {
    let remote = HttpFixture::start(Behaviour::Json);
    let (configuration, mounted) = images.volume("configuration", "/etc/cofferdam:ro");
    let (_, relay) = images.volume("relay", "/run/cofferdam/relay");
    let (_, admin) = images.volume("admin", "/run/cofferdam/admin");
    let (_, state) = images.volume("state", "/var/lib/cofferdam");
    let (settings, _) = POD.split_once("[vault]").expect("the configuration uses Vault");
    let settings = format!("{settings}{}", SERVERS.replace("@URL@", &remote.url()));
    std::fs::write(configuration.join("cofferdam.toml"), settings).expect("it is writable");
    compile_static_server(&configuration.join("server"));
    let confined = ["--read-only", "--cap-drop=all", "--security-opt=no-new-privileges"];
    let run = ["run", "--detach", "--name=sidecar", "--network=host", &mounted, &relay, &admin, &state];
    images.podman(&[&run[..], &confined[..], &[SIDECAR]].concat());
    images.wait_until_ready("sidecar");
    let relay = format!("{relay}:ro");
    let shim = ["run", "--rm", "--network=none", "--user=1000:1000", "--env", RELAY, &relay];
    let in_sandbox =
        |arguments: &[&str]| images.podman(&[&shim[..], &confined[..], &[SHIM], arguments].concat());
    let status = in_sandbox(&["status"]);
    assert!(status.contains("dev"), "{status}");
    let called = in_sandbox(&["call", "remote", "headers", "{}"]);
    assert!(called.contains("content-type: application/json"), "{called}");
    assert_eq!(in_sandbox(&["call", "static", "speak", "{}"]), "from a static program");
}

#[track_caller]
fn compile_static_server(program: &Path) {
    let source = tempfile::Builder::new().suffix(".c").tempfile().expect("a temporary file can be made");
    std::fs::write(source.path(), STATIC_SERVER).expect("a temporary file is writable");
    let mut compile = command("musl-gcc");
    compile.args(["-static", "-o"]).arg(program).arg(source.path());
    let output = output_of(compile, "musl-gcc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Podman takes the entry for aarch64 out of the index, and an emulator runs its program, as on a machine with that processor.
#[test]
#[ignore = "needs what just dist makes: just slow"]
fn the_published_image_for_aarch64_has_a_shim_that_relays_a_call() {
    let (Some(images), Some(emulator)) = (Images::open(), Tool::QemuAarch64.path()) else { return };
    let Some(published) = Published::open() else { return };
    let index = format!("oci-archive:{}", published.file(&file_name("cofferdam-shim")).display());
    let image = images.podman(&["pull", "--quiet", "--arch=arm64", &index]);
    assert_eq!(images.podman(&["image", "inspect", "--format", "{{.Architecture}}", &image]), "arm64");
    let world = World::new().server("tools", Server::fixture()).start();
    let directory = world.layout().relay.parent().expect("the socket is in a directory");
    let relay = format!("--volume={}:/run/cofferdam/relay:ro", directory.display());
    let emulator = format!("--volume={}:/emulator:ro", emulator.display());
    let run = ["run", "--rm", "--platform=linux/arm64", "--network=none", "--env", RELAY, &relay, &emulator];
    let shim = ["--entrypoint=/emulator", &image, "/cofferdam-shim"];
    let call = ["call", "tools", "add", r#"{"a": 20, "b": 22}"#];
    assert_eq!(images.podman(&[&run[..], &shim[..], &call[..]].concat()), "42");
}

/// The libraries in the image are those of the same processor.
#[test]
#[ignore = "needs what just dist makes: just slow"]
fn the_published_image_of_the_sidecar_for_aarch64_runs() {
    let (Some(images), Some(emulator)) = (Images::open(), Tool::QemuAarch64.path()) else { return };
    let Some(published) = Published::open() else { return };
    let index = format!("oci-archive:{}", published.file(&file_name("cofferdam")).display());
    let image = images.podman(&["pull", "--quiet", "--arch=arm64", &index]);
    assert_eq!(images.podman(&["image", "inspect", "--format", "{{.Architecture}}", &image]), "arm64");
    let emulator = format!("--volume={}:/emulator:ro", emulator.display());
    let run =
        ["run", "--rm", "--platform=linux/arm64", "--network=none", &emulator, "--entrypoint=/emulator"];
    let version = [&image, "/usr/local/bin/cofferdam", "--version"];
    let version = images.podman(&[&run[..], &version[..]].concat());
    assert!(version.starts_with("cofferdam ") && version.contains("relay protocol"), "{version}");
}

/// The second file of the guide, as it is written. Its base is a Debian with Node that is made here: there is no registry.
#[test]
#[ignore = "needs what just dist makes: just slow"]
fn the_published_sidecar_starts_a_node_server_in_the_image_that_the_guide_builds() {
    let (Some(images), Some(debian)) = (Images::open(), Tool::DebianRoot.path()) else { return };
    let (Some(node), Some(modules)) = (Tool::Node.path(), Tool::NodeModules.path()) else { return };
    let Some(published) = Published::open() else { return };
    let file = blocks(INSTALL, "dockerfile").remove(1);
    let base = file.lines().find_map(|line| line.strip_prefix("FROM ")).expect("the file has a base");
    let debian_tar = images.directory.path().join("debian.tar");
    let mut tar = command("tar");
    tar.arg("-C").arg(debian).args(["--one-file-system", "-cf"]).arg(&debian_tar).arg(".");
    assert!(output_of(tar, "tar").status.success());
    images.podman(&["import", "--quiet", &debian_tar.display().to_string(), base]);
    images.podman(&[
        "load",
        "--quiet",
        "--input",
        &published.file(&file_name("cofferdam")).display().to_string(),
    ]);
    images.podman.build("with-node", &file, &["--pull=never"]).expect("the guide's file can be built");

    let (configuration, mounted) = images.volume("configuration", "/etc/cofferdam:ro");
    std::fs::write(configuration.join("cofferdam.toml"), NODE).expect("it is writable");
    let (relay_directory, relay) = images.volume("relay", "/relay");
    let (_, admin) = images.volume("admin", "/admin");
    let resolved = node.canonicalize().expect("Node is installed");
    let node = format!("--volume={}:/usr/local/bin/node:ro", resolved.display());
    let modules = modules.canonicalize().expect("the packages are installed");
    let modules = format!("--volume={}:/opt/node_modules:ro", modules.display());
    let run =
        ["run", "--detach", "--name=with-node", "--network=none", &mounted, &relay, &admin, &node, &modules];
    let serve = ["with-node", "/usr/local/bin/cofferdam", "serve", "-c", "/etc/cofferdam/cofferdam.toml"];
    images.podman(&[&run[..], &serve[..]].concat());
    images.wait_until_ready("with-node");
    let mut call = command(built("COFFERDAM_SHIM_BIN", "cofferdam-shim"));
    call.args(["call", "everything", "echo", r#"{"message": "from Node in a container"}"#]);
    call.env_clear().env("COFFERDAM_RELAY", format!("unix:{}", relay_directory.join("relay.sock").display()));
    let output = output_of(call, "cofferdam-shim call");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("from Node in a container"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_same_input_gives_the_same_images() {
    let Some(images) = Images::open() else { return };
    let small = built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
    images.make("one", &small);
    images.make("two", &small);
    for name in ["cofferdam", "cofferdam-shim"] {
        let [one, two] =
            ["one", "two"].map(|out| std::fs::read(images.archive(out, name)).expect("it was made"));
        assert!(one == two, "{name}");
    }
}
