//! Names that shells, settings files and option parsers could misinterpret.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use cofferdam_tests::process::output_of;
use cofferdam_tests::sandboxes::PodmanEngine;
use cofferdam_tests::tools::Tool;

use super::{text, user};

/// Spaces, quotes, a dollar, a line end, an option's dash, a comma and a colon.
const ODD_NAMES: [&str; 7] =
    ["two words", "it's", "\"quoted\"", "$(touch oops) `touch oops`", "line\nend", "-rf", ",:="];

#[test]
fn a_working_directory_may_have_any_name() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    for name in ODD_NAMES {
        let project = user.home().join(name);
        std::fs::create_dir(&project).expect("the home is writable");
        let mut command = user.command(&["--", "sh", "-c", "pwd; touch ./-new"]);
        command.current_dir(&project);
        let output = output_of(command, "cofferdam run");
        assert!(output.status.success(), "{name:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), format!("{}\n", project.display()), "{name:?}");
        let written: Vec<_> = std::fs::read_dir(&project).into_iter().flatten().flatten().collect();
        assert_eq!(written.len(), 1, "{name:?}: {written:?}");
    }
    user.assert_nothing_left();
}

#[test]
fn mounts_may_have_any_name_and_arguments_arrive_unchanged() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    // A colon separates source and target, so a source cannot have one.
    for name in ODD_NAMES.into_iter().filter(|name| !name.contains(':')) {
        user.write(&format!("project/{name}/file"), name);
        let mount = format!("{name}:/data/{name}:ro");
        let script = "cat \"/data/$1/file\"; shift; printf '|%s' \"$@\"";
        let mount_option = format!("--mount={mount}");
        let mut arguments = vec![mount_option.as_str(), "--", "sh", "-c", script, "sh", name, ""];
        arguments.extend(ODD_NAMES);
        let output = user.output(&arguments);
        assert!(output.status.success(), "{name:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), format!("{name}||{}", ODD_NAMES.join("|")), "{name:?}");
    }
    assert!(!user.project().join("oops").exists());
    user.assert_nothing_left();
}

/// With srt the command is a shell command line, and the paths are in a settings file.
#[test]
fn with_srt_a_directory_and_arguments_may_have_any_name() {
    let (Some(node), Some(runtime)) = (Tool::Node.path(), Tool::SandboxRuntime.path()) else { return };
    let user = user();
    user.program("srt", &format!("#!/bin/sh\nexec {node:?} {runtime:?} \"$@\"\n"));
    let project = user.home().join("it's \"one\" $(touch oops)\nproject");
    std::fs::create_dir(&project).expect("the home is writable");
    let mut arguments = vec!["--sandbox", "srt", "--", "sh", "-c", "pwd; printf '|%s' \"$@\"", "sh"];
    arguments.extend(ODD_NAMES);
    let mut command = user.command(&arguments);
    command.env("PATH", user.search_path()).current_dir(&project);
    let output = output_of(command, "cofferdam run");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), format!("{}\n|{}", project.display(), ODD_NAMES.join("|")));
    assert!(!project.join("oops").exists());
    user.assert_nothing_left();
}

#[test]
fn names_that_podman_cannot_mount_are_refused_and_others_work() {
    let Some(podman) = PodmanEngine::open() else { return };
    let user = user();
    for name in ["a,b", "\"quoted\"", "line\nend"] {
        let project = user.home().join(name);
        std::fs::create_dir(&project).expect("the home is writable");
        let mut command = user.command(&["--sandbox", "podman", "--", "true"]);
        command.current_dir(&project);
        let output = output_of(command, "cofferdam run");
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{stderr}");
        assert!(
            stderr.contains("the path has a comma, a quote or a line end")
                && stderr.contains("--sandbox bwrap"),
            "{stderr}"
        );
    }
    let project = user.home().join("it's a $(touch oops) -project");
    std::fs::create_dir(&project).expect("the home is writable");
    let mut command =
        user.command(&["--sandbox", "podman", "--", "sh", "-c", "pwd; printf '|%s' \"$@\"", "sh"]);
    command.args(ODD_NAMES).current_dir(&project);
    podman.configure(&mut command);
    let output = output_of(command, "cofferdam run");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), format!("{}\n|{}", project.display(), ODD_NAMES.join("|")));
    assert_eq!(podman.containers(), "");
    user.assert_nothing_left();
}

/// The settings of gVisor and srt are JSON, which cannot contain such names.
#[test]
fn a_directory_whose_name_is_not_utf_8_works_with_bubblewrap_and_is_refused_with_gvisor() {
    if Tool::Bubblewrap.path().is_none() || Tool::Runsc.path().is_none() {
        return;
    }
    let user = user();
    let project = user.home().join(OsStr::from_bytes(b"not \xff text"));
    std::fs::create_dir(&project).expect("the home is writable");
    let run = |kind: &str| {
        let mut command = user.command(&["--sandbox", kind, "--", "touch", "new"]);
        command.current_dir(&project);
        output_of(command, "cofferdam run")
    };
    let output = run("bwrap");
    assert!(output.status.success() && project.join("new").exists(), "{}", text(&output.stderr));
    let output = run("gvisor");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{stderr}");
    assert!(stderr.contains("it is not UTF-8") && stderr.contains("--sandbox bwrap"), "{stderr}");
    user.assert_nothing_left();
}

#[test]
fn an_image_that_looks_like_an_option_is_refused() {
    let user = user();
    for image in ["--privileged", ""] {
        let option = format!("--image={image}");
        let output = user.output(&["--sandbox", "podman", &option, "--", "true"]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{stderr}");
        assert!(stderr.contains("is not the name of an image"), "{stderr}");
    }
}

/// The state directory may be anywhere, and may have any name.
#[test]
fn a_state_directory_elsewhere_is_used() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    let elsewhere = tempfile::tempdir().expect("a temporary directory can be made");
    let state = elsewhere.path().join("it's a state");
    let config = std::fs::read_to_string(&user.world.layout().config).expect("it was written");
    let written = format!("state-dir = {:?}", user.world.layout().state);
    assert!(config.contains(&written), "{config}");
    let config = config.replace(&written, &format!("state-dir = {state:?}"));
    let config = config.replace("confine = {", "confine = { home = \"keep\",");
    std::fs::write(&user.world.layout().config, config).expect("it is writable");
    let mut client = user.client(&[], "tools");
    client.initialize();
    client.close_stdin();
    assert!(client.wait_for_exit().success(), "{}", client.stderr());
    assert!(state.join("audit").is_dir() && state.join("servers/tools").is_dir());
    assert!(!user.world.layout().state.join("audit").exists());
    user.assert_nothing_left();
}
