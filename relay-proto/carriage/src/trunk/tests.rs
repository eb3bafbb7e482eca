//! Two ends of a trunk in one process.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::time::{Instant, timeout};

use super::*;

fn connected_ends() -> (Trunk<DuplexStream>, Trunk<DuplexStream>) {
    let (hub, sidecar) = duplex(1000);
    (Trunk::new(hub, Side::Hub), Trunk::new(sidecar, Side::Sidecar))
}

/// Drives a trunk on which the peer opens nothing.
async fn drive<S: Stream>(trunk: &mut Trunk<S>) -> TrunkError {
    match trunk.next().await {
        Ok(_) => panic!("the peer opened a substream"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_substream_carries_bytes_both_ways_and_ends() {
    let (mut hub, mut sidecar) = connected_ends();
    let mut here = hub.open().await.unwrap();
    let exchange = async {
        here.write_all(b"hello").await.unwrap();
        let mut received = Vec::new();
        here.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"and goodbye");
    };
    let other = async {
        let mut there = sidecar.next().await.unwrap();
        let respond = async {
            let mut buffer = [0; 5];
            there.read_exact(&mut buffer).await.unwrap();
            assert_eq!(&buffer, b"hello");
            there.write_all(b"and goodbye").await.unwrap();
            there.shutdown().await.unwrap();
            std::future::pending::<()>().await
        };
        tokio::select! { () = respond => {}, error = drive(&mut sidecar) => panic!("{error}") }
    };
    tokio::select! { () = exchange => {}, error = drive(&mut hub) => panic!("{error}"), () = other => {} }
}

#[tokio::test]
async fn an_unread_substream_blocks_only_itself() {
    let (mut hub, mut sidecar) = connected_ends();
    let (mut unread, mut other) = (hub.open().await.unwrap(), hub.open().await.unwrap());
    let flood = async {
        let mut sent = 0;
        while let Ok(count) = unread.write(&[7; 10_000]).await {
            sent += count;
            assert!(sent <= WINDOW, "{sent} bytes were sent to a peer that reads none");
        }
    };
    let exchange = async {
        for number in 0..200_000_u32 {
            other.write_all(&number.to_be_bytes()).await.unwrap();
        }
        other.shutdown().await.unwrap();
        std::future::pending::<()>().await
    };
    let reading = async {
        let (first, second) = (sidecar.next().await.unwrap(), sidecar.next().await.unwrap());
        let (mut first_byte, mut unread) = ([0], Vec::new());
        let read = async {
            // The order is not defined; the flood's bytes are sevens.
            for mut stream in [first, second] {
                stream.read_exact(&mut first_byte).await.unwrap();
                match first_byte {
                    [7] => unread.push(stream),
                    _ => {
                        let mut rest = Vec::new();
                        stream.read_to_end(&mut rest).await.unwrap();
                        assert_eq!(rest.len() + 1, 800_000);
                    }
                }
            }
        };
        tokio::select! { () = read => {}, error = drive(&mut sidecar) => panic!("{error}") }
    };
    let all = async {
        tokio::select! {
            () = flood => panic!("a write to the unread substream failed"),
            () = exchange => unreachable!(),
            () = reading => {}
            error = drive(&mut hub) => panic!("{error}"),
        }
    };
    timeout(Duration::from_secs(60), all).await.expect("the unread substream blocked the other one");
}

#[tokio::test]
async fn the_number_of_substreams_is_limited() {
    let (mut hub, _sidecar) = connected_ends();
    let mut open = Vec::new();
    for _ in 0..MAX_SUBSTREAMS {
        open.push(hub.open().await.unwrap());
    }
    assert!(matches!(hub.open().await, Err(TrunkError::Full)));
}

#[tokio::test]
async fn a_protocol_violation_ends_the_trunk() {
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64]] {
        let (mut pipe, sidecar) = duplex(1000);
        let mut sidecar = Trunk::new(sidecar, Side::Sidecar);
        pipe.write_all(garbage).await.unwrap();
        assert!(matches!(drive(&mut sidecar).await, TrunkError::Protocol(_)));
    }
    let (pipe, sidecar) = duplex(1000);
    drop(pipe);
    assert!(matches!(drive(&mut Trunk::new(sidecar, Side::Sidecar)).await, TrunkError::Closed));
}

#[tokio::test(start_paused = true)]
async fn heartbeats_keep_an_idle_pipe_open_and_detect_a_dead_one() {
    let heartbeat = Duration::from_secs(20);
    let (mut hub, mut sidecar) = connected_ends();
    let (sidecar_received, hub_received) = (sidecar.last_received(), hub.last_received());
    let start = Instant::now();
    let beats = send_heartbeats(sidecar.open().await.unwrap(), sidecar_received, heartbeat);
    let responsive_hub = async {
        let stream = hub.next().await.unwrap();
        tokio::select! {
            silence = echo_heartbeats(stream, hub_received, heartbeat) => panic!("{silence}"),
            error = drive(&mut hub) => panic!("{error}"),
            () = tokio::time::sleep(Duration::from_secs(3600)) => {}
        }
    };
    let mut beats = Box::pin(beats);
    tokio::select! {
        silence = &mut beats => panic!("{silence}"),
        error = drive(&mut sidecar) => panic!("{error}"),
        () = responsive_hub => {}
    }
    // From here on the hub's side is not polled, as if its process were stopped.
    let silence = tokio::select! {
        silence = &mut beats => silence,
        error = drive(&mut sidecar) => panic!("{error}"),
    };
    assert_eq!(silence, Silence(heartbeat * 3));
    assert!(start.elapsed() <= Duration::from_secs(3600) + heartbeat * 4);
}

#[tokio::test(start_paused = true)]
async fn a_hub_detects_a_sidecar_that_dies_before_or_after_its_interval_arrives() {
    let (interval, interval_timeout) = (Duration::from_secs(2), Duration::from_secs(7));
    let milliseconds = u32::try_from(interval.as_millis()).unwrap().to_be_bytes();
    for (sent, expected) in [(&milliseconds[..3], interval_timeout), (&milliseconds[..], interval * 3)] {
        let (mut hub, mut sidecar) = connected_ends();
        let (mut stream, received) = (sidecar.open().await.unwrap(), hub.last_received());
        stream.write_all(sent).await.unwrap();
        let there = tokio::select! {
            stream = hub.next() => stream.unwrap(),
            error = drive(&mut sidecar) => panic!("{error}"),
        };
        // From here on the sidecar's side is not polled, as if its process were stopped.
        let silence = tokio::select! {
            silence = echo_heartbeats(there, received, interval_timeout) => silence,
            error = drive(&mut hub) => panic!("{error}"),
        };
        assert_eq!(silence, Silence(expected));
    }
}
