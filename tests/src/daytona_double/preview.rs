//! The proxy in front of the sandbox's ports.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::wire::{Request, Response};
use super::{API_KEY, Platform};
use crate::deadline::Deadline;

/// Seconds without traffic after which a connection is closed.
const IDLE_SECONDS: u32 = 70;
/// How often an open connection counts as activity of the sandbox.
const ACTIVITY_SECONDS: u32 = 50;
const TICK: Duration = Duration::from_millis(20);

pub(super) const TOKEN: &str = "x-daytona-preview-token";
pub(super) const SKIP_ACTIVITY: &str = "x-daytona-skip-last-activity-update";

/// Whether a request has the sandbox's current token or the account's API key.
pub(super) fn is_authentic(platform: &Platform, request: &Request) -> bool {
    let token = platform.lock().preview_token.clone();
    let query = request.query.get("DAYTONA_SANDBOX_AUTH_KEY").map(String::as_str);
    let bearer = request.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    request.header(TOKEN) == Some(&token) || query == Some(&token) || bearer == Some(API_KEY)
}

pub(super) fn serve(platform: &Arc<Platform>, request: Request) {
    let host = request.header("host").unwrap_or_default().to_owned();
    let named = host.split('.').next().and_then(|label| label.split_once('-'));
    let Some((port, id)) = named.and_then(|(port, id)| Some((port.parse::<u16>().ok()?, id))) else {
        return request.respond(&Response::error(404, "not found"));
    };
    if id != platform.sandbox_id {
        return request.respond(&Response::error(400, "failed to get sandbox public status"));
    }
    if !is_authentic(platform, &request) {
        return request.respond(&Response::status(307).location("https://auth.daytona.test/login"));
    }
    if platform.guest().is_none() {
        return request.respond(&Response::error(400, "failed to get runner info"));
    }
    let Ok(sandbox) = TcpStream::connect(("127.0.0.1", port)) else {
        return request.respond(&Response::error(502, "Bad Gateway"));
    };
    let counts_as_activity = request.header(SKIP_ACTIVITY) != Some("true");
    if counts_as_activity {
        platform.activity.fetch_add(1, Ordering::Relaxed);
    }
    splice(platform, request, sandbox, counts_as_activity);
}

/// Copies both ways until one side closes, the sandbox restarts, the test closes all connections, or the connection is idle for
/// too long.
fn splice(platform: &Arc<Platform>, mut request: Request, sandbox: TcpStream, counts_as_activity: bool) {
    let _ = sandbox.set_nodelay(true);
    let mut head = format!("{} HTTP/1.1\r\n", request.line);
    let is_not_secret = |line: &&String| {
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        name != TOKEN && name != "authorization"
    };
    head.extend(request.head.iter().filter(is_not_secret).map(|line| format!("{line}\r\n")));
    head += "\r\n";
    let moved = Arc::new(AtomicU64::new(0));
    let early = request.reader.buffer().to_vec();
    let client = request.reader.get_mut();
    let copies = || {
        Some([
            client.try_clone().ok()?,
            sandbox.try_clone().ok()?,
            client.try_clone().ok()?,
            sandbox.try_clone().ok()?,
        ])
    };
    let Some([from_client, mut to_sandbox, to_client, from_sandbox]) = copies() else { return };
    if to_sandbox.write_all(head.as_bytes()).and_then(|()| to_sandbox.write_all(&early)).is_err() {
        return;
    }
    let token_at_start = platform.lock().preview_token.clone();
    let cuts = platform.cuts.load(Ordering::Relaxed);
    let is_open =
        || platform.cuts.load(Ordering::Relaxed) == cuts && platform.lock().preview_token == token_at_start;
    let ended = Arc::new(AtomicU64::new(0));
    for (from, to) in [(from_client, to_sandbox), (from_sandbox, to_client)] {
        let (moved, ended) = (Arc::clone(&moved), Arc::clone(&ended));
        std::thread::spawn(move || {
            copy(from, to, &moved);
            ended.fetch_add(1, Ordering::Relaxed);
        });
    }
    let (mut seen, mut idle) = (0, Deadline::after(platform.time(IDLE_SECONDS)));
    let mut activity = Deadline::after(platform.time(ACTIVITY_SECONDS));
    while ended.load(Ordering::Relaxed) == 0 && !idle.is_over() && is_open() {
        std::thread::sleep(TICK);
        let now = moved.load(Ordering::Relaxed);
        if now != seen {
            (seen, idle) = (now, Deadline::after(platform.time(IDLE_SECONDS)));
        }
        if counts_as_activity && activity.is_over() {
            platform.activity.fetch_add(1, Ordering::Relaxed);
            activity = Deadline::after(platform.time(ACTIVITY_SECONDS));
        }
    }
    for stream in [&*client, &sandbox] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, moved: &AtomicU64) {
    let _ = from.set_read_timeout(None);
    let mut buffer = [0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        moved.fetch_add(count as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}
