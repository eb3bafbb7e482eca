//! The pipe to a hub: the bytes in it, the files in the sandbox, and how it ends.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_platforms::{Pipe, PlatformError, Progress, SandboxState, Suspension, WhenSuspended};
use cofferdam_tests::deadline::{PATIENCE, holds_within};
use cofferdam_tests::e2b_double::{API_KEY, AutoResume, CutEvery};
use cofferdam_tests::process::{Running, command, is_alive};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, split};
use tokio::time::timeout;

use crate::support::{ECHO, PIN, Scene, client, read, read_to_end, setup, sha256, write};

#[tokio::test(flavor = "multi_thread")]
async fn the_shim_is_uploaded_once_under_its_digest() {
    let Some(scene) = Scene::new() else { return };
    let mut pipe = scene.open(&setup(ECHO)).await.unwrap();
    read(&mut pipe, 6).await;
    let total = ECHO.len() as u64;
    assert_eq!(
        scene.steps(),
        [
            Progress::Finding,
            Progress::Uploading { sent: 0, total },
            Progress::Uploading { sent: total, total },
            Progress::StartingHub,
            Progress::Connecting,
        ]
    );
    let name = format!("/home/user/.local/lib/cofferdam/cofferdam-shim-{}", sha256(ECHO.as_bytes()));
    let file = scene.double.path(scene.box_id(), &name);
    assert_eq!(fs::read(&file).unwrap(), ECHO.as_bytes());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(shim_link(&scene), PathBuf::from(&name));
    let config = &scene.double.process_configs(scene.box_id())[0];
    assert_eq!(
        (config["cmd"].as_str(), &config["args"]),
        (Some(&*name), &serde_json::json!(["hub", "--pin", PIN]))
    );

    drop(pipe);
    let mut again = scene.open(&setup(ECHO)).await.unwrap();
    read(&mut again, 6).await;
    assert_eq!(scene.steps(), [Progress::Finding, Progress::StartingHub, Progress::Connecting]);

    let newer = format!("{ECHO}# newer\n");
    let mut updated = scene.open(&setup(newer.clone())).await.unwrap();
    read(&mut updated, 6).await;
    assert!(
        shim_link(&scene).to_string_lossy().ends_with(&sha256(newer.as_bytes())),
        "the link was not switched"
    );
    // Back to the older one, which is still there: only the link changes.
    let mut older = scene.open(&setup(ECHO)).await.unwrap();
    read(&mut older, 6).await;
    assert_eq!(shim_link(&scene), PathBuf::from(&name));
    assert_eq!(scene.uploads(), 2);
    let leftovers = fs::read_dir(file.parent().unwrap()).unwrap().flatten().count();
    assert_eq!(leftovers, 2, "a part of an upload is left");
    scene.assert_secrets_only_in_headers(&[scene.double.token(scene.box_id())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_binary_with_other_bytes_is_replaced_not_overwritten() {
    let Some(scene) = Scene::new() else { return };
    let name = format!("home/user/.local/lib/cofferdam/cofferdam-shim-{}", sha256(ECHO.as_bytes()));
    let file = scene.double.path(scene.box_id(), &name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::copy("/bin/sleep", &file).unwrap();
    let mut sleep = command(&file);
    sleep.arg("600");
    let mut running = Running::spawn(sleep, "a running shim");
    assert!(
        holds_within(PATIENCE, || fs::File::options().append(true).open(&file).is_err()),
        "the file can be written while it runs"
    );
    let mut pipe = scene.open(&setup(ECHO)).await.unwrap();
    assert_eq!(read(&mut pipe, 6).await, b"hello ");
    assert!(running.is_running());
    assert_eq!(fs::read(&file).unwrap(), ECHO.as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_disconnect_the_next_hub_replaces_the_old_one() {
    let Some(scene) = Scene::new() else { return };
    let mut pipe = scene.open(&setup(ECHO)).await.unwrap();
    read(&mut pipe, 6).await;
    let old = scene.double.processes(scene.box_id())[0];
    scene.double.cut(scene.box_id());
    assert_eq!(read_to_end(&mut pipe).await, b"");
    assert!(is_alive(old), "the disconnect has ended the process");
    let mut next = scene.open(&setup(ECHO)).await.unwrap();
    read(&mut next, 6).await;
    assert!(holds_within(PATIENCE, || !is_alive(old)));
    assert!(holds_within(PATIENCE, || scene.double.processes(scene.box_id()).len() == 1));
    assert_works(&mut next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sandbox_is_resumed_only_on_request() {
    let Some(scene) = Scene::new() else { return };
    let mut pipe = scene.open(&setup(ECHO)).await.unwrap();
    read(&mut pipe, 6).await;
    // After this both streams are open.
    assert_works(&mut pipe).await;
    let old = scene.double.token(scene.box_id());
    // From now on any request would resume the sandbox.
    scene.double.set_auto_resume(scene.box_id(), AutoResume::Yes);
    scene.double.pause(scene.box_id());
    assert_eq!(read_to_end(&mut pipe).await, b"");
    drop(pipe);
    assert_eq!(scene.client.state(&scene.id).await.unwrap(), SandboxState::Suspended(Suspension::Paused));
    let refused = scene.refused(&setup(ECHO)).await;
    assert!(matches!(refused, PlatformError::Suspended { .. }) && refused.may_succeed_later(), "{refused}");
    timeout(PATIENCE, scene.client.finish()).await.expect("nothing waits for a paused sandbox");
    assert!(scene.double.is_paused(scene.box_id()), "a request has resumed the sandbox");

    let again = client(&scene.double.api_url(), Some(&scene.double.sandbox_url()), API_KEY);
    scene.steps();
    let scene = Scene { client: again, ..scene };
    let mut pipe = scene.open_with(&setup(ECHO), WhenSuspended::Resume).await.unwrap();
    read(&mut pipe, 6).await;
    assert_eq!(scene.steps()[..2], [Progress::Finding, Progress::Resuming]);
    let new = scene.double.token(scene.box_id());
    assert_ne!(old, new);
    assert_works(&mut pipe).await;
    scene.assert_secrets_only_in_headers(&[old, new]);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_pipe_does_not_resume_a_paused_sandbox() {
    let Some(scene) = Scene::new() else { return };
    let mut pipe = scene.open(&setup(ECHO)).await.unwrap();
    read(&mut pipe, 6).await;
    // After this both streams are open.
    assert_works(&mut pipe).await;
    scene.double.set_auto_resume(scene.box_id(), AutoResume::Yes);
    // The client does not notice the pause: its streams stay open without data.
    scene.double.stall(scene.box_id());
    scene.double.pause_quietly(scene.box_id());
    drop(pipe);
    timeout(PATIENCE, scene.client.finish()).await.expect("nothing waits for a paused sandbox");
    assert!(scene.double.is_paused(scene.box_id()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_envd_ends_the_pipe_and_the_next_one_works() {
    let Some(scene) = Scene::new() else { return };
    let mut pipe = scene.open(&setup(ECHO)).await.unwrap();
    read(&mut pipe, 6).await;
    scene.double.restart_envd(scene.box_id());
    assert_eq!(read_to_end(&mut pipe).await, b"");
    let mut next = scene.open(&setup(ECHO)).await.unwrap();
    read(&mut next, 6).await;
    assert_works(&mut next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_stream_ends_the_pipe_and_keep_alives_keep_an_idle_pipe_open() {
    let Some(scene) = Scene::new() else { return };
    let mut pipe = scene.open(&setup(ECHO)).await.unwrap();
    read(&mut pipe, 6).await;
    // Longer than the limit for silence, which is three keep-alives of a second.
    let idle = timeout(Duration::from_secs(5), pipe.read_u8()).await;
    assert!(idle.is_err(), "the idle pipe was closed: {idle:?}");
    assert_works(&mut pipe).await;
    scene.double.stall(scene.box_id());
    assert_eq!(read_to_end(&mut pipe).await, b"");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_can_be_opened_again_after_repeated_disconnects() {
    let Some(scene) = Scene::new() else { return };
    for every in [CutEvery::Bytes(40_000), CutEvery::Time(Duration::from_millis(150))] {
        for _ in 0..3 {
            scene.double.cut_every(None);
            // Set after the upload, so that only the pipe is affected.
            drop(scene.open(&setup(ECHO)).await.unwrap());
            scene.double.cut_every(Some(every));
            let Ok(mut pipe) = scene.open(&setup(ECHO)).await else { continue };
            let (mut reader, mut writer) = split(&mut pipe);
            let flood = async { while writer.write_all(&[b'x'; 4096]).await.is_ok() {} };
            let mut received = Vec::new();
            let drained = async {
                tokio::select! { () = flood => {}, _ = reader.read_to_end(&mut received) => {} }
            };
            timeout(PATIENCE, drained).await.expect("a cut ends the pipe");
        }
    }
    scene.double.cut_every(None);
    let mut pipe = scene.open(&setup(ECHO)).await.unwrap();
    read(&mut pipe, 6).await;
    assert_works(&mut pipe).await;
    assert!(holds_within(PATIENCE, || scene.double.processes(scene.box_id()).len() == 1));
}

/// Asserts that the pipe echoes what is sent.
pub(crate) async fn assert_works(pipe: &mut Pipe) {
    write(pipe, b"ping").await;
    assert_eq!(read(pipe, 4).await, b"ping");
}

/// The target of the link to the shim in the user's home.
fn shim_link(scene: &Scene) -> PathBuf {
    fs::read_link(scene.double.path(scene.box_id(), "/home/user/.local/bin/cofferdam-shim"))
        .expect("the link is there")
}
