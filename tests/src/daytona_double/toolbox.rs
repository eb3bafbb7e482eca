//! The toolbox: commands, files and sessions in the sandbox.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::Platform;
use super::guest::{Guest, GuestCommand, HOME, wait_for_group_exit};
use super::preview::{SKIP_ACTIVITY, is_authentic};
use super::wire::{Request, Response};

/// A shell session and its commands.
pub(super) struct Session {
    id: String,
    commands: Vec<SessionCommand>,
}

struct SessionCommand {
    id: String,
    text: String,
    running: GuestCommand,
}

pub(super) fn handle(platform: &Platform, request: &Request) -> Response {
    let segments = request.segments();
    if segments.get(1) != Some(&platform.sandbox_id.as_str()) {
        return Response::error(400, "failed to get sandbox public status");
    }
    if !is_authentic(platform, request) {
        return Response::error(401, "authentication failed");
    }
    let Some(guest) = platform.guest() else {
        return Response::error(400, "failed to get runner info: sandbox is not running");
    };
    if request.header(SKIP_ACTIVITY) != Some("true") {
        platform.activity.fetch_add(1, Ordering::Relaxed);
    }
    match (request.method.as_str(), &segments[2..]) {
        ("GET", ["user-home-dir" | "work-dir"]) => Response::json(200, &json!({ "dir": HOME })),
        ("GET", ["version"]) => Response::json(200, &json!({ "version": "0.190.0" })),
        ("POST", ["files", "bulk-upload"]) => bulk_upload(&guest, request),
        ("GET", ["files", "download"]) => download(&guest, request),
        ("POST", ["files", "bulk-download"]) => bulk_download(&guest, request),
        ("POST", ["files", "permissions"]) => permissions(&guest, request),
        ("POST", ["process", "execute"]) => execute(platform, &guest, request),
        ("GET", ["process", "session"]) => {
            Response::json(200, &platform.lock().sessions.iter().map(Session::json).collect())
        }
        ("POST", ["process", "session"]) => create(platform, request),
        ("GET", ["process", "session", id]) => {
            with_session(platform, id, |session| Response::json(200, &session.json()))
        }
        ("DELETE", ["process", "session", id]) => delete(platform, &guest, id),
        ("POST", ["process", "session", id, "exec"]) => session_exec(platform, &guest, id, request),
        ("GET", ["process", "session", id, "command", command]) => {
            with_session(platform, id, |session| match session.command(command) {
                Some(command) => Response::json(200, &command.json()),
                None => Response::error(404, "command not found"),
            })
        }
        ("GET", ["process", "session", id, "command", command, "logs"]) => {
            with_session(platform, id, |session| match session.command(command) {
                Some(command) => {
                    let output = command.running.output();
                    Response::json(200, &json!({ "output": output, "stdout": output, "stderr": "" }))
                }
                None => Response::error(404, "command not found"),
            })
        }
        _ => Response::error(404, "page not found"),
    }
}

fn execute(platform: &Platform, guest: &Guest, request: &Request) -> Response {
    let body = request.json();
    let Some(script) = body["command"].as_str() else { return Response::error(400, "invalid request body") };
    let running = guest.run(platform.next_number(), script);
    match running.wait() {
        Some(code) => Response::json(200, &json!({ "exitCode": code, "result": running.output() })),
        None => Response::error(502, "the sandbox stopped"),
    }
}

fn create(platform: &Platform, request: &Request) -> Response {
    let body = request.json();
    let Some(id) = body["sessionId"].as_str() else { return Response::error(400, "invalid request body") };
    let mut state = platform.lock();
    if state.sessions.iter().any(|session| session.id == id) {
        return Response::error(409, "session already exists");
    }
    state.sessions.push(Session { id: id.to_owned(), commands: Vec::new() });
    Response::status(201)
}

fn session_exec(platform: &Platform, guest: &Guest, id: &str, request: &Request) -> Response {
    let body = request.json();
    let Some(text) = body["command"].as_str() else { return Response::error(400, "command cannot be empty") };
    let number = platform.next_number();
    let mut state = platform.lock();
    let Some(session) = state.sessions.iter_mut().find(|session| session.id == id) else {
        return Response::error(404, "session not found");
    };
    let running = guest.run(number, text);
    let command =
        SessionCommand { id: format!("command-{number}"), text: text.to_owned(), running: running.clone() };
    let command_id = command.id.clone();
    session.commands.push(command);
    drop(state);
    if body["runAsync"] == true {
        return Response::json(202, &json!({ "cmdId": command_id }));
    }
    match running.wait() {
        Some(code) => {
            let output = running.output();
            Response::json(
                200,
                &json!({ "cmdId": command_id, "output": output, "stdout": output, "stderr": "", "exitCode": code }),
            )
        }
        None => Response::error(502, "the sandbox stopped"),
    }
}

fn delete(platform: &Platform, guest: &Guest, id: &str) -> Response {
    let mut state = platform.lock();
    let Some(position) = state.sessions.iter().position(|session| session.id == id) else {
        return Response::error(404, "session not found");
    };
    let session = state.sessions.remove(position);
    drop(state);
    let groups: Vec<_> = session.commands.iter().filter_map(|command| command.running.group()).collect();
    for command in &session.commands {
        guest.end_command(&command.running);
    }
    groups.into_iter().for_each(wait_for_group_exit);
    Response::status(204)
}

fn with_session(platform: &Platform, id: &str, respond: impl Fn(&Session) -> Response) -> Response {
    let state = platform.lock();
    match state.sessions.iter().find(|session| session.id == id) {
        Some(session) => respond(session),
        None => Response::error(404, "session not found"),
    }
}

impl Session {
    fn command(&self, id: &str) -> Option<&SessionCommand> {
        self.commands.iter().find(|command| command.id == id)
    }

    fn json(&self) -> Value {
        let commands: Vec<Value> = self.commands.iter().map(SessionCommand::json).collect();
        json!({ "sessionId": self.id, "commands": commands })
    }
}

impl SessionCommand {
    fn json(&self) -> Value {
        match self.running.exit_code() {
            Some(code) => json!({ "id": self.id, "command": self.text, "exitCode": code }),
            None => json!({ "id": self.id, "command": self.text }),
        }
    }
}

fn download(guest: &Guest, request: &Request) -> Response {
    let path = request.query.get("path").and_then(|path| guest.on_host(path));
    match path.and_then(|path| std::fs::read(path).ok()) {
        Some(bytes) => Response::bytes(bytes),
        None => Response::error(404, "file not found"),
    }
}

fn permissions(guest: &Guest, request: &Request) -> Response {
    let path = request.query.get("path").and_then(|path| guest.on_host(path)).filter(|path| path.exists());
    let mode = request.query.get("mode").and_then(|mode| u32::from_str_radix(mode, 8).ok());
    match (path, mode) {
        (Some(path), Some(mode)) => {
            let set = std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
            Response::status(if set.is_ok() { 200 } else { 400 })
        }
        (None, _) => Response::error(404, "file not found"),
        (_, None) => Response::error(400, "invalid mode format"),
    }
}

fn bulk_upload(guest: &Guest, request: &Request) -> Response {
    let mut path = None;
    let (mut files, mut errors) = (Vec::new(), Vec::new());
    for (name, content) in parts(request) {
        if name.ends_with(".path") {
            path = Some(String::from_utf8_lossy(content).trim().to_owned());
        } else if let Some(path) = path.take() {
            let written = match guest.on_host(&path) {
                Some(file) => write(&file, content),
                None => Err("permission denied".to_owned()),
            };
            match written {
                Ok(()) => files.push(json!({ "path": path, "bytes": content.len() })),
                Err(error) => errors.push(format!("{path}: create: {error}")),
            }
        }
    }
    match errors.is_empty() {
        true => Response::json(200, &json!({ "files": files })),
        false => Response::json(400, &json!({ "errors": errors, "files": files })),
    }
}

/// Writes the received part of an upload, because the real toolbox writes a file while it receives it.
pub(super) fn write_partial_upload(platform: &Platform, request: &Request) {
    let cut = || {
        let (name, path) = parts(request).into_iter().next().filter(|(name, _)| name.ends_with(".path"))?;
        let path = String::from_utf8_lossy(path).into_owned();
        let content =
            memchr::memmem::find(&request.body, format!("{}.file", name.strip_suffix(".path")?).as_bytes())?;
        let start = content + memchr::memmem::find(&request.body[content..], b"\r\n\r\n")? + 4;
        write(&platform.guest()?.on_host(&path)?, &request.body[start..]).ok()
    };
    // `None` for a request that is not an upload.
    let _ = cut();
}

/// Writes a file. The kernel refuses that for a program that is being executed.
fn write(file: &std::path::Path, content: &[u8]) -> Result<(), String> {
    let directory = file.parent().ok_or("no directory")?;
    std::fs::create_dir_all(directory).map_err(|error| error.to_string())?;
    std::fs::write(file, content).map_err(|error| error.to_string())
}

/// Responds with one file only, in a multipart response.
fn bulk_download(guest: &Guest, request: &Request) -> Response {
    let body = request.json();
    let path = body["paths"][0].as_str().unwrap_or_default().to_owned();
    let content = guest.on_host(&path).and_then(|path| std::fs::read(path).ok());
    let Some(content) = content else { return Response::error(404, "file not found") };
    let boundary = "double-boundary";
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{path}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    let body = [head.as_bytes(), &content, format!("\r\n--{boundary}--\r\n").as_bytes()].concat();
    Response::multipart(boundary, body)
}

/// The names and contents of a multipart body.
fn parts(request: &Request) -> Vec<(String, &[u8])> {
    let boundary = request.header("content-type").and_then(|value| value.split_once("boundary="));
    let Some((_, boundary)) = boundary else { return Vec::new() };
    let mark = format!("--{}", boundary.trim_matches('"'));
    let starts: Vec<usize> = memchr::memmem::find_iter(&request.body, mark.as_bytes()).collect();
    let part = |range: &[usize]| {
        let body = request.body.get(range[0] + mark.len() + 2..range[1] - 2)?;
        let end = memchr::memmem::find(body, b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&body[..end]).into_owned();
        let (_, name) = head.split_once("name=\"")?;
        Some((name.split('"').next()?.to_owned(), &body[end + 4..]))
    };
    starts.windows(2).filter_map(part).collect()
}
