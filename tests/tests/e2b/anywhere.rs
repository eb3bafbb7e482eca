//! Pipes to a hub, on the double or on the real platform that `COFFERDAM_E2B_URL` names.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_platforms::e2b::E2b;
use cofferdam_platforms::{PlatformError, Progress, SandboxState, Suspension};
use cofferdam_tests::attach::shim_binary;
use cofferdam_tests::deadline::{PATIENCE, wait_until};
use cofferdam_tests::e2b_platform::TEST_DIRECTORY;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, split};
use tokio::time::timeout;

use crate::harness::{LineSettings, warning_of};
use crate::pipes::assert_works;
use crate::support::{AnywhereScene, ECHO, PIN, client, read, read_to_end, setup, sha256, write};

impl AnywhereScene {
    /// Whether a hub of this sidecar runs in the sandbox: not one of an earlier test, if the platform has only one sandbox.
    #[track_caller]
    fn runs_hub(&self) -> bool {
        let hub = format!(" hub --pin {PIN}");
        self.platform.processes(&self.sandbox).iter().any(|line| line.contains(&hub))
    }

    /// Attaches with these settings, and returns the warning.
    async fn warning(&self, settings: LineSettings) -> Option<String> {
        warning_of(settings, async |setup| self.open(setup).await).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_cross_the_pipe_unchanged() {
    let Some(scene) = AnywhereScene::new() else { return };
    let mut pipe = scene.open(&setup(ECHO)).await.unwrap();
    assert_eq!(read(&mut pipe, 6).await, b"hello ");
    let sent: Vec<u8> = (0..8 << 20).map(|index: u32| (index ^ (index >> 11)).to_le_bytes()[0]).collect();
    let (mut reader, mut writer) = split(pipe);
    let mut received = vec![0; sent.len()];
    let both = async { tokio::join!(writer.write_all(&sent), reader.read_exact(&mut received)) };
    let (written, got) = timeout(PATIENCE, both).await.expect("all of it crosses");
    assert!(written.is_ok() && got.is_ok());
    assert!(received == sent, "the bytes came back changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_hub_starts_and_begins_its_handshake() {
    let Some(scene) = AnywhereScene::new() else { return };
    let mut real = setup(fs::read(shim_binary()).unwrap());
    real.pin = relay_carriage::identity::Identity::generate().unwrap().public().to_string();
    let mut pipe = scene.open(&real).await.unwrap();
    let record = read(&mut pipe, 3).await;
    assert_eq!(record[..2], [0x16, 0x03], "the hub begins TLS: {record:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hubs_of_two_sidecars_work_side_by_side() {
    let Some(scene) = AnywhereScene::new() else { return };
    let mut first = scene.open(&setup(ECHO)).await.unwrap();
    read(&mut first, 6).await;
    let mut other = setup(ECHO);
    other.pin = "another-pin".to_owned();
    let mut second = scene.open(&other).await.unwrap();
    read(&mut second, 6).await;
    assert_works(&mut first).await;
    assert_works(&mut second).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_says_why_a_hub_does_not_start() {
    let Some(scene) = AnywhereScene::new() else { return };
    let refused = scene.refused(&setup("#!/bin/sh\necho 'hub: no such socket' >&2\nexit 75\n")).await;
    assert!(matches!(refused, PlatformError::Sandbox { .. }), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("hub: no such socket") && text.contains("exit status 75"), "{text}");
    let garbage = scene.refused(&setup(vec![0x7f, b'E', b'L', b'F', 0, 1, 2, 3])).await;
    assert!(matches!(garbage, PlatformError::Sandbox { .. }), "{garbage}");
    let mut none = setup(ECHO);
    none.shim = Arc::new(|_| Err("there is no static shim; build it with `just shim`".to_owned()));
    let missing = scene.refused(&none).await;
    assert!(missing.to_string().contains("just shim"), "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shim_is_uploaded_once_and_its_hub_ends_with_the_pipe() {
    let Some(scene) = AnywhereScene::new() else { return };
    for uploads in [2, 0] {
        let mut pipe = scene.open(&setup(ECHO)).await.unwrap();
        read(&mut pipe, 6).await;
        assert_eq!(scene.steps().iter().filter(|step| is_upload(step)).count(), uploads);
        assert!(scene.runs_hub());
        drop(pipe);
        wait_until("the hub has ended", || !scene.runs_hub());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_and_an_unknown_sandbox_are_different_errors() {
    let Some(scene) = AnywhereScene::new() else { return };
    let platform = &scene.platform;
    let stranger = client(platform.api_url(), platform.sandbox_url(), "e2b_wrong_key");
    let refused = stranger.state(&scene.id).await.unwrap_err();
    assert!(matches!(refused, PlatformError::Unauthorized { status: 401, .. }), "{refused}");
    assert!(!refused.may_succeed_later() && !refused.to_string().contains("e2b_wrong_key"));
    let unknown = scene.client.state(&"iunknown".parse().unwrap()).await.unwrap_err();
    assert!(
        matches!(&unknown, PlatformError::NoSandbox { sandbox, .. } if sandbox == "iunknown"),
        "{unknown}"
    );
    assert!(!unknown.may_succeed_later());
    assert_eq!(scene.client.state(&scene.id).await.unwrap(), SandboxState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_in_the_template_is_used() {
    let Some(scene) = AnywhereScene::new() else { return };
    if !scene.platform.has_control_api() {
        return;
    }
    let name = format!("/usr/local/lib/cofferdam/cofferdam-shim-{}", sha256(ECHO.as_bytes()));
    let shim = (setup(ECHO).shim)(cofferdam_platforms::Architecture::X86_64).unwrap();
    assert!(E2b::template(&shim).contains(&name), "the template has another path");
    scene.platform.run_as_root(
        &scene.sandbox,
        &format!(
            "mkdir -p /usr/local/lib/cofferdam && printf %s '{}' > {name} && chmod 0755 {name}",
            ECHO.replace('\'', "'\\''")
        ),
    );
    let mut pipe = scene.open(&setup(ECHO)).await.unwrap();
    read(&mut pipe, 6).await;
    assert!(!scene.steps().iter().any(is_upload));
    let processes = scene.platform.processes(&scene.sandbox);
    assert!(processes.iter().any(|line| line.starts_with(&name)), "{processes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_pipe_ends_the_hub() {
    let Some(scene) = AnywhereScene::new() else { return };
    // A hub that exits neither at the end of its input nor at SIGTERM.
    let stubborn = "#!/bin/bash\ntrap '' TERM\necho hello\nwhile :; do sleep 1; done\n";
    let mut pipe = scene.open(&setup(stubborn)).await.unwrap();
    read(&mut pipe, 6).await;
    assert!(scene.runs_hub());
    drop(pipe);
    timeout(PATIENCE, scene.client.finish()).await.expect("the client ends its hubs");
    wait_until("the hub has ended", || !scene.runs_hub());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_bytes_reach_the_hub_before_it_is_ended() {
    let Some(scene) = AnywhereScene::new() else { return };
    // The hub reads late, so that not everything fits into its input at once.
    let keeping = format!(
        "#!/bin/sh\nprintf hello\nmkdir -p ~/{TEST_DIRECTORY}\nsleep 0.3\nexec cat > ~/{TEST_DIRECTORY}/kept\n"
    );
    let mut pipe = scene.open(&setup(keeping)).await.unwrap();
    let last = vec![b'x'; 200 * 1024];
    write(&mut pipe, &last).await;
    drop(pipe);
    timeout(PATIENCE, scene.client.finish()).await.expect("the client ends its hubs");
    let kept = scene.platform.run(&scene.sandbox, &format!("sha256sum < ~/{TEST_DIRECTORY}/kept"));
    assert!(kept.stdout.starts_with(&sha256(&last)), "not all bytes arrived: {kept:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_names_a_processor_without_a_shim() {
    let Some(scene) = AnywhereScene::new() else { return };
    if !scene.platform.has_control_api() {
        return;
    }
    // This directory is first on the PATH in the sandbox.
    let report_processor = |processor: &str| {
        let script = format!("printf '#!/bin/sh\necho {processor}\n' > /usr/local/bin/uname");
        scene.platform.run_as_root(&scene.sandbox, &format!("{script} && chmod 0755 /usr/local/bin/uname"));
    };
    report_processor("aarch64");
    let mut only_x86 = setup(ECHO);
    only_x86.shim = Arc::new(|architecture| Err(format!("there is no shim for {}", architecture.as_str())));
    let refused = scene.refused(&only_x86).await;
    assert!(matches!(refused, PlatformError::Sandbox { .. }), "{refused}");
    assert!(refused.to_string().contains("there is no shim for aarch64"), "{refused}");
    report_processor("riscv64");
    let refused = scene.refused(&setup(ECHO)).await;
    assert!(refused.to_string().contains("`riscv64`; shims exist for x86_64 and aarch64 only"), "{refused}");
    assert!(!scene.steps().iter().any(is_upload));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_with_another_digest_is_removed() {
    let Some(scene) = AnywhereScene::new() else { return };
    let mut lying = setup(ECHO);
    let honest = Arc::clone(&lying.shim);
    lying.shim = Arc::new(move |architecture| {
        let mut shim = honest(architecture)?;
        shim.digest = "0".repeat(64);
        Ok(shim)
    });
    let refused = scene.refused(&lying).await;
    assert!(matches!(refused, PlatformError::Sandbox { .. }), "{refused}");
    assert!(refused.to_string().contains("the upload arrived with other bytes"), "{refused}");
    let left = scene.platform.run(&scene.sandbox, "ls ~/.local/lib/cofferdam");
    assert_eq!((left.code, left.stdout.as_str()), (0, ""), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settings_file_is_created_or_added_to_and_keeps_its_mode() {
    let Some(scene) = AnywhereScene::new() else { return };
    let directory = format!("{TEST_DIRECTORY}/my harness");
    let home = scene.platform.run(&scene.sandbox, "printf %s ~").stdout;
    let entry = format!("run {home}/.local/bin/cofferdam-shim\n");
    let run = |command: &str| {
        scene.platform.run(&scene.sandbox, &format!("cd ~/'{directory}' && {command}")).stdout
    };
    assert_eq!(scene.warning(LineSettings::of(&format!("{directory}/new"))).await, None);
    assert_eq!(run("cat new"), entry);
    assert_eq!(run("stat -c %a new"), "600\n");

    run("echo mine > own && chmod 640 own");
    assert_eq!(scene.warning(LineSettings::of(&format!("{directory}/own"))).await, None);
    assert_eq!(run("cat own"), format!("mine\n{entry}"));
    assert_eq!(run("stat -c %a own"), "640\n");
    assert_eq!(run("ls"), "new\nown\n", "an upload is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sandbox_is_not_resumed_without_a_request() {
    let Some(scene) = AnywhereScene::new() else { return };
    if !scene.platform.has_control_api() {
        return;
    }
    let mut pipe = scene.open(&setup(ECHO)).await.unwrap();
    read(&mut pipe, 6).await;
    // After this both streams are open.
    assert_works(&mut pipe).await;
    scene.platform.pause(&scene.sandbox);
    assert_eq!(read_to_end(&mut pipe).await, b"");
    drop(pipe);
    let refused = scene.refused(&setup(ECHO)).await;
    assert!(matches!(refused, PlatformError::Suspended { suspension: Suspension::Paused, .. }), "{refused}");
    timeout(PATIENCE, scene.client.finish()).await.expect("nothing waits for a paused sandbox");
    assert!(scene.platform.is_paused(&scene.sandbox), "a request has resumed the sandbox");
}

#[tokio::test(flavor = "multi_thread")]
async fn keep_alives_keep_an_idle_pipe_open() {
    let Some(scene) = AnywhereScene::new() else { return };
    let mut pipe = scene.open(&setup(ECHO)).await.unwrap();
    read(&mut pipe, 6).await;
    // Longer than the limit for silence, which is three keep-alives of a second.
    let idle = timeout(Duration::from_secs(5), pipe.read_u8()).await;
    assert!(idle.is_err(), "the idle pipe was closed: {idle:?}");
    assert_works(&mut pipe).await;
}

fn is_upload(step: &Progress) -> bool {
    matches!(step, Progress::Uploading { .. })
}
