//! The OCI images, loaded into a podman without a registry and run.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::markdown::blocks;
use cofferdam_tests::packaged::stripped_program;
use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::sandboxes::PodmanEngine;
use serde_json::Value;

use super::{INSTALL, commands_of_guide};

pub(crate) const SECTION: &str = "Containers";
const SIDECAR: &str = concat!("cofferdam:", env!("CARGO_PKG_VERSION"));
const SHIM: &str = concat!("cofferdam-shim:", env!("CARGO_PKG_VERSION"));

/// As the manifest sets it for the agent's container.
const RELAY: &str = "COFFERDAM_RELAY=unix:/run/cofferdam/relay/relay.sock";
const POD: &str = include_str!("../../../packaging/kubernetes/pod/cofferdam.toml");

struct Images {
    podman: PodmanEngine,
    directory: tempfile::TempDir,
}

impl Images {
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
        self.directory.path().join(out).join(format!("{name}-image-{}.tar", env!("CARGO_PKG_VERSION")))
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
}

#[test]
fn the_images_are_loaded_run_and_copied_from() {
    let Some(podman) = PodmanEngine::open() else { return };
    let images =
        Images { podman, directory: tempfile::tempdir().expect("a temporary directory can be made") };
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
/// read-only file system, no capabilities; and the shim's image as the sandbox beside it.
#[track_caller]
fn assert_serves_with_the_volumes_of_a_pod(images: &Images) {
    let volume = |name: &str, inside: &str| {
        let path = images.directory.path().join(name);
        std::fs::create_dir(&path).expect("a temporary directory is writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
        format!("--volume={}:{inside}", path.display())
    };
    let configuration = volume("configuration", "/etc/cofferdam:ro");
    let relay = volume("relay", "/run/cofferdam/relay");
    let admin = volume("admin", "/run/cofferdam/admin");
    let state = volume("state", "/var/lib/cofferdam");
    let (settings, _) = POD.split_once("[vault]").expect("the configuration uses Vault");
    let settings = format!("{settings}[grants.dev]\nservers = []\n");
    std::fs::write(images.directory.path().join("configuration/cofferdam.toml"), settings)
        .expect("it is writable");
    let confined = ["--network=none", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges"];
    let run = ["run", "--detach", "--name=sidecar", &configuration, &relay, &admin, &state];
    images.podman(&[&run[..], &confined[..], &[SIDECAR]].concat());
    // The probe of the manifests.
    let probe =
        ["exec", "sidecar", "/usr/local/bin/cofferdam", "sessions", "-c", "/etc/cofferdam/cofferdam.toml"];
    wait_until("the sidecar of the image is ready", || {
        let mut podman = images.podman.command();
        podman.args(probe);
        output_of(podman, "the probe").status.success()
    });
    let relay = format!("{relay}:ro");
    let shim = ["run", "--rm", "--user=1000:1000", "--env", RELAY, &relay];
    let status = images.podman(&[&shim[..], &confined[..], &[SHIM, "status"]].concat());
    assert!(status.contains("dev"), "{status}");
}

#[test]
fn the_same_input_gives_the_same_images() {
    let Some(podman) = PodmanEngine::open() else { return };
    let images =
        Images { podman, directory: tempfile::tempdir().expect("a temporary directory can be made") };
    let small = built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
    images.make("one", &small);
    images.make("two", &small);
    for name in ["cofferdam", "cofferdam-shim"] {
        let [one, two] =
            ["one", "two"].map(|out| std::fs::read(images.archive(out, name)).expect("it was made"));
        assert!(one == two, "{name}");
    }
}
