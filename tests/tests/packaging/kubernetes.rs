//! The manifests: against the schemas of Kubernetes, and against the configuration that they mount. No cluster runs them.

use std::path::{Path, PathBuf};

use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::tools::Tool;

const VARIANTS: [&str; 2] = ["node", "pod"];

fn folder(variant: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/kubernetes").join(variant)
}

fn files_with(variant: &str, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder(variant)).expect("the variant has a folder").flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    files.sort();
    files
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Also: every path that the configuration names is in a volume, so that the read-only file system does not matter.
#[test]
fn the_configurations_are_accepted_and_their_paths_are_mounted() {
    for variant in VARIANTS {
        let file = folder(variant).join("cofferdam.toml");
        let mut check = command(built("COFFERDAM_BIN", "cofferdam"));
        check.args(["check", "-c"]).arg(&file);
        let output = output_of(check, "cofferdam check");
        assert!(output.status.success(), "{variant}: {}", String::from_utf8_lossy(&output.stderr));
        let workload = ["daemon-set.yaml", "deployment.yaml"].map(|name| folder(variant).join(name));
        let workload = read(workload.iter().find(|file| file.exists()).expect("the variant has a workload"));
        let configuration = read(&file);
        let paths = configuration.split('"').filter(|text| text.starts_with('/'));
        for path in paths {
            let mounted = Path::new(path)
                .ancestors()
                .any(|path| workload.contains(&format!("mountPath: {}\n", path.display())));
            assert!(mounted, "{variant}: {path} is in no volume");
        }
    }
}

/// The sandbox gets the relay directory, read-only, and no other volume of the sidecar.
#[test]
fn a_sandbox_mounts_the_relay_directory_read_only_and_nothing_else() {
    let sandbox = read(&folder("node").join("sandbox.yaml"));
    let deployment = read(&folder("pod").join("deployment.yaml"));
    let agent = deployment.split("\n      containers:\n").nth(1).expect("the agent's container");
    let agent = agent.split("\n      volumes:\n").next().expect("the volumes follow");
    for (name, container) in [("node", sandbox.as_str()), ("pod", agent)] {
        assert_eq!(container.matches("mountPath:").count(), 1, "{name}");
        let mount = "mountPath: /run/cofferdam/relay\n";
        let (_, after) = container.split_once(mount).unwrap_or_else(|| panic!("{name}: no relay directory"));
        assert!(after.trim_start().starts_with("readOnly: true"), "{name}: the mount is writable");
    }
}

#[test]
fn kustomizations_name_every_manifest_of_their_folder() {
    for variant in VARIANTS {
        let kustomization = read(&folder(variant).join("kustomization.yaml"));
        for file in files_with(variant, "yaml") {
            let name = file.file_name().expect("a file has a name").to_string_lossy().into_owned();
            let is_example = ["kustomization.yaml", "sandbox.yaml"].contains(&&*name);
            assert_eq!(kustomization.contains(&format!("  - {name}\n")), !is_example, "{variant}: {name}");
        }
    }
}

#[test]
#[ignore = "needs the tools of tests/tools --dist: just slow"]
fn the_manifests_fit_the_schemas_of_kubernetes() {
    let Some(validate) = Tool::KubernetesValidate.path() else { return };
    for variant in VARIANTS {
        let mut files = files_with(variant, "yaml");
        files.retain(|file| !file.ends_with("kustomization.yaml"));
        for version in ["1.29", "1.37"] {
            let mut command = command(&validate);
            command.args(["--strict", "--kubernetes-version", version]).args(&files);
            let output = output_of(command, "kubernetes-validate");
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            assert!(output.status.success(), "{version}: {}{}", text(&output.stdout), text(&output.stderr));
        }
    }
    // A key that does not exist is found, so the schemas are really applied.
    let wrong = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    let daemon_set = read(&folder("node").join("daemon-set.yaml")).replace("hostPath:", "hostPaht:");
    std::fs::write(wrong.path(), daemon_set).expect("a temporary file is writable");
    let mut command = command(validate);
    command.args(["--strict"]).arg(wrong.path());
    assert!(!output_of(command, "kubernetes-validate").status.success(), "a wrong key passes");
}
