//! Pipes to a hub, on the double or on the real platform that `COFFERDAM_E2B_URL` names.

use std::fs;
use std::sync::Arc;

use cofferdam_platforms::{PlatformError, Progress};
use cofferdam_tests::attach::shim_binary;
use cofferdam_tests::deadline::{PATIENCE, wait_until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, split};
use tokio::time::timeout;

use crate::pipes::assert_works;
use crate::support::{AnywhereScene, ECHO, PIN, read, setup};

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
    // Not the hubs of earlier tests, if the platform has only one sandbox.
    let hub = format!(" hub --pin {PIN}");
    let is_upload = |step: &Progress| matches!(step, Progress::Uploading { .. });
    for uploads in [2, 0] {
        let mut pipe = scene.open(&setup(ECHO)).await.unwrap();
        read(&mut pipe, 6).await;
        assert_eq!(scene.steps().iter().filter(|step| is_upload(step)).count(), uploads);
        let runs_hub = || scene.platform.processes(&scene.sandbox).iter().any(|line| line.contains(&hub));
        assert!(runs_hub());
        drop(pipe);
        wait_until("the hub has ended", || !runs_hub());
    }
}
