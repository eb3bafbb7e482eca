//! The manifests: against the schemas of Kubernetes, and against the configuration that they mount. No cluster runs them.

use std::path::{Path, PathBuf};
use std::process::Output;

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

/// What `kubectl apply -k` sends, without a cluster: the files are checked as kustomize puts them together.
#[track_caller]
fn kustomized(kustomize: &Path, variant: &str) -> String {
    let mut build = command(kustomize);
    build.arg("build").arg(folder(variant));
    let output = output_of(build, "kustomize build");
    assert!(output.status.success(), "{variant}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("kustomize prints text")
}

/// Which kinds of objects a text in YAML describes.
fn kinds(manifests: &str) -> Vec<&str> {
    let mut kinds: Vec<&str> = manifests.lines().filter_map(|line| line.strip_prefix("kind: ")).collect();
    kinds.sort_unstable();
    kinds
}

#[track_caller]
fn validation(validate: &Path, version: &str, files: &[PathBuf]) -> Output {
    let mut command = command(validate);
    command.args(["--strict", "--kubernetes-version", version]).args(files);
    output_of(command, "kubernetes-validate")
}

#[test]
#[ignore = "needs the tools of tests/tools --dist: just slow"]
fn the_manifests_fit_the_schemas_of_kubernetes_before_and_after_kustomize() {
    let (Some(validate), Some(kustomize)) = (Tool::KubernetesValidate.path(), Tool::Kustomize.path()) else {
        return;
    };
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    for (variant, workload) in VARIANTS.into_iter().zip(["DaemonSet", "Deployment"]) {
        let mut files = files_with(variant, "yaml");
        files.retain(|file| !file.ends_with("kustomization.yaml"));
        let built = kustomized(&kustomize, variant);
        let expected = ["ConfigMap", workload, "Namespace", "NetworkPolicy", "ServiceAccount"];
        assert_eq!(kinds(&built), expected, "{variant}");
        let configuration = read(&folder(variant).join("cofferdam.toml"));
        let first = configuration.lines().next().expect("the configuration has lines");
        assert!(built.contains(first), "{variant}: the configuration is not in {built}");
        // Its name follows from its content, and the workload mounts the one with that name.
        let lines = built.lines().filter_map(|line| line.trim_start().strip_prefix("name: cofferdam-"));
        let names: Vec<&str> = lines.collect();
        assert!(matches!(names[..], [made, mounted] if made == mounted), "{variant}: {names:?}");
        let image = format!("image: cofferdam:{}\n", env!("CARGO_PKG_VERSION"));
        assert!(built.contains(&image), "{variant}: {built}");
        files.push(directory.path().join(format!("{variant}.yaml")));
        std::fs::write(&files[files.len() - 1], built).expect("a temporary directory is writable");
        for version in ["1.29", "1.37"] {
            let Output { status, stdout, stderr } = validation(&validate, version, &files);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            assert!(status.success(), "{version}: {}{}", text(&stdout), text(&stderr));
        }
    }
    // A key that does not exist is found, so the schemas are really applied.
    let wrong = directory.path().join("wrong.yaml");
    let daemon_set = read(&folder("node").join("daemon-set.yaml")).replace("hostPath:", "hostPaht:");
    std::fs::write(&wrong, daemon_set).expect("a temporary directory is writable");
    assert!(!validation(&validate, "1.37", &[wrong]).status.success(), "a wrong key passes");
}
