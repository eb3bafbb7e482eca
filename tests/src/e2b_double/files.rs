//! Upload and download of files, as `envd` and its proxy do it.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;
use serde_json::{Value, json};

use super::body::{Cut, HandlerResult, bytes, error, json_body};
use super::sandbox::{Sandbox, SandboxUser};
use super::server::Shared;

/// The directories of the sandbox itself; all others are the machine's, read-only.
const SANDBOX_DIRECTORIES: [&str; 5] = ["/home/", "/root/", "/run/", "/tmp/", "/usr/local/"];

pub(super) async fn handle(
    shared: &Arc<Shared>,
    sandbox: &Arc<Sandbox>,
    request: Request<Incoming>,
) -> HandlerResult {
    let (head, body) = request.into_parts();
    let query = |name: &str| query_parameter(head.uri.query().unwrap_or_default(), name);
    let name = query("username").unwrap_or_else(|| sandbox.user.name().to_owned());
    let Some(user) = SandboxUser::named(&name) else {
        return Ok(error(401, &format!("error looking up user '{name}': unknown user {name}")));
    };
    let path = query("path");
    shared.write_log(format!("File {} path={path:?} username={name}", head.method));
    if head.method == "GET" {
        return Ok(download(sandbox, user, &path.unwrap_or_default()));
    }
    let Some(content) = receive(sandbox, body).await? else { return Err(Cut) };
    let Some(files) = uploaded_files(&head, path, content) else {
        return Ok(error(400, "unsupported content type, or no path"));
    };
    let mut stored = Vec::new();
    for (path, content) in files {
        let path = Sandbox::resolve(user, &path);
        if let Err(failure) = store(sandbox.root(), &path, sandbox.stored_part(&content)) {
            return Ok(error(500, &format!("error opening file: {failure}")));
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        stored.push(json!({"name": name, "type": "file", "path": path}));
    }
    Ok(json_body(200, &Value::Array(stored)))
}

/// Reads the whole body; `None` if the sandbox is ended meanwhile, as the test planned.
async fn receive(sandbox: &Sandbox, mut body: Incoming) -> Result<Option<Bytes>, Cut> {
    let mut content = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|_| Cut)?.into_data() {
            content.extend_from_slice(&data);
        }
        if sandbox.dies_at_upload_size().is_some_and(|size| content.len() >= size) {
            sandbox.end();
            return Ok(None);
        }
    }
    Ok(Some(content.freeze()))
}

/// The files in a request: one that is the body, or several in the parts of a form.
fn uploaded_files(head: &Parts, path: Option<String>, content: Bytes) -> Option<Vec<(String, Bytes)>> {
    let kind = head.headers.get("content-type")?.to_str().ok()?;
    if kind.starts_with("application/octet-stream") {
        return Some(vec![(path?, content)]);
    }
    let boundary = kind.strip_prefix("multipart/form-data")?.split_once("boundary=")?.1;
    let boundary = format!("--{}", boundary.trim_matches('"'));
    let finder = memchr::memmem::Finder::new(boundary.as_bytes());
    let marks: Vec<usize> = finder.find_iter(&content).collect();
    let mut files = Vec::new();
    for pair in marks.windows(2) {
        let part = content.slice(pair[0] + boundary.len() + 2..pair[1] - 2);
        let length = memchr::memmem::find(&part, b"\r\n\r\n")?;
        let headers = String::from_utf8_lossy(&part[..length]).into_owned();
        if !headers.contains("name=\"file\"") {
            continue;
        }
        let named = headers.split_once("filename=\"").and_then(|(_, rest)| rest.split_once('"'));
        let path = path.clone().or_else(|| named.map(|(name, _)| name.to_owned()))?;
        files.push((path, part.slice(length + 4..)));
    }
    Some(files)
}

fn download(sandbox: &Sandbox, user: SandboxUser, path: &str) -> hyper::Response<super::body::Pieces> {
    let path = Sandbox::resolve(user, path);
    let mut content = Vec::new();
    let read = open(sandbox.root(), &path, OFlag::O_RDONLY);
    match read.and_then(|file| File::from(file).read_to_end(&mut content)) {
        Ok(_) => bytes(200, "application/octet-stream", content),
        Err(_) => error(404, &format!("path '{}' does not exist", path.display())),
    }
}

/// Writes a file, overwriting an existing one, as `envd` does.
fn store(root: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(root.join(directory.strip_prefix("/").unwrap_or(directory)))?;
    let file = open(root, path, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC)?;
    File::from(file).write_all(content)
}

/// Opens a file of the sandbox; symbolic links are resolved within the sandbox.
fn open(root: &Path, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    if !SANDBOX_DIRECTORIES.iter().any(|own| path.to_string_lossy().starts_with(own)) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mode = if flags.contains(OFlag::O_CREAT) { Mode::from_bits_truncate(0o644) } else { Mode::empty() };
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(ResolveFlag::RESOLVE_IN_ROOT);
    Ok(openat2(File::open(root)?, path, how)?)
}

/// A parameter of a URL's query, decoded.
fn query_parameter(query: &str, name: &str) -> Option<String> {
    let pair = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name)?;
    let mut decoded = Vec::new();
    let mut rest = pair.1.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                rest = &after[2..];
            }
            (first, _) => {
                decoded.push(if *first == b'+' { b' ' } else { *first });
                rest = after;
            }
        }
    }
    String::from_utf8(decoded).ok()
}
