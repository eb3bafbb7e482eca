//! The MCP server behind every contender. It does little work, so that mostly the path to it is measured.
//!
//! It supports the legacy handshake, `tools/list`, and two tools: `echo` returns its text, `big` the requested number of bytes.
//! `bench-server http PORT` serves the same over HTTP. Each response is one write, as in other servers.
//!
//! What must stay true: it exits when its stdin ends, also if its parent was killed, so that the benchmark leaves no
//! process running.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use serde::Deserialize;
use serde_json::value::RawValue;

mod http;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let served = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["http", port] => http::serve(port),
        _ => unbuffered_stdout().and_then(|output| serve(io::stdin().lock(), output)),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-server: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Initialize<'a> {
    #[serde(borrow, rename = "protocolVersion")]
    protocol_version: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    arguments: Arguments<'a>,
}

#[derive(Default, Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    bytes: Option<usize>,
}

/// The maximum length of an unfinished line; requests to this server are small.
const MAX_LINE: usize = 1 << 20;
/// The maximum result of `big`, in bytes.
const MAX_TEXT: usize = 16 << 20;
/// The default capacity of a pipe on Linux.
const CHUNK: usize = 64 * 1024;
const SUPPORTED_VERSIONS: &[&str] = &["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
const TOOLS: &str = r#"{"tools":[{"name":"echo","description":"Gives the text back","inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}},{"name":"big","description":"Gives that many bytes of text","inputSchema":{"type":"object","properties":{"bytes":{"type":"integer"}},"required":["bytes"]}}]}"#;

/// Standard output without the standard library's line buffer, which would split a write.
fn unbuffered_stdout() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

fn serve(mut input: impl Read, mut output: impl Write) -> io::Result<()> {
    let mut pending = Vec::new();
    let mut chunk = vec![0; CHUNK];
    let mut out = Vec::new();
    loop {
        let count = input.read(&mut chunk)?;
        if count == 0 {
            return Ok(());
        }
        pending.extend_from_slice(&chunk[..count]);
        let mut start = 0;
        while let Some(length) = pending[start..].iter().position(|byte| *byte == b'\n') {
            write_response(&pending[start..start + length], &mut out)?;
            output.write_all(&out)?;
            out.clear();
            start += length + 1;
        }
        pending.drain(..start);
        if pending.len() > MAX_LINE {
            return Err(io::Error::other("a line is too long"));
        }
    }
}

/// Writes the response to a request; nothing for a notification or a response.
fn write_response(line: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    if line.trim_ascii().is_empty() {
        return Ok(());
    }
    let request: Request = serde_json::from_slice(line)?;
    let (Some(id), Some(method)) = (request.id, request.method) else {
        return Ok(()); // a notification or a response
    };
    let params = request.params.map_or("{}", RawValue::get);
    match &*method {
        "initialize" => {
            let requested: Initialize = serde_json::from_str(params)?;
            let version = match SUPPORTED_VERSIONS.contains(&&*requested.protocol_version) {
                true => &*requested.protocol_version,
                false => "2025-11-25",
            };
            write_result(id, out, |out| {
                write!(
                    out,
                    r#"{{"protocolVersion":"{version}","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"bench-server","version":"1"}}}}"#
                )
            })
        }
        "ping" => write_result(id, out, |out| out.write_all(b"{}")),
        "tools/list" => write_result(id, out, |out| out.write_all(TOOLS.as_bytes())),
        "tools/call" => {
            let call: Call = serde_json::from_str(params)?;
            match (&*call.name, call.arguments) {
                ("echo", Arguments { text: Some(text), .. }) => write_result(id, out, |out| {
                    write_content(out, |out| serde_json::to_writer(out, &text).map_err(Into::into))
                }),
                ("big", Arguments { bytes: Some(bytes), .. }) if bytes <= MAX_TEXT => {
                    write_result(id, out, |out| write_content(out, |out| write_text(bytes, out)))
                }
                _ => write_error(id, -32602, "unknown tool or invalid arguments", out),
            }
        }
        _ => write_error(id, -32601, "no such method", out),
    }
}

type WriteResult = io::Result<()>;

fn write_result(
    id: &RawValue,
    out: &mut Vec<u8>,
    body: impl FnOnce(&mut Vec<u8>) -> WriteResult,
) -> WriteResult {
    write!(out, r#"{{"jsonrpc":"2.0","id":{},"result":"#, id.get())?;
    body(out)?;
    out.write_all(b"}\n")
}

fn write_content(out: &mut Vec<u8>, text: impl FnOnce(&mut Vec<u8>) -> WriteResult) -> WriteResult {
    out.write_all(br#"{"content":[{"type":"text","text":"#)?;
    text(out)?;
    out.write_all(b"}]}")
}

/// Writes text with a line break in every 80 characters, as in files and listings, so that it has JSON escapes.
fn write_text(bytes: usize, out: &mut Vec<u8>) -> WriteResult {
    const LINE: &[u8; 79] =
        b"A cofferdam keeps the water out so that people can work in the dry, all day....";
    out.reserve(bytes + bytes / 80 + 2);
    out.push(b'"');
    for _ in 0..bytes / 80 {
        out.extend_from_slice(LINE);
        out.extend_from_slice(br"\n");
    }
    out.extend_from_slice(&LINE[..bytes % 80]);
    out.push(b'"');
    Ok(())
}

fn write_error(id: &RawValue, code: i32, message: &str, out: &mut Vec<u8>) -> WriteResult {
    writeln!(out, r#"{{"jsonrpc":"2.0","id":{},"error":{{"code":{code},"message":"{message}"}}}}"#, id.get())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn request_response(line: &str) -> Value {
        let mut out = Vec::new();
        serve(format!("{line}\n").as_bytes(), &mut out).unwrap();
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn an_echo_has_the_id_with_the_escapes_of_the_request() {
        let line = r#"{"jsonrpc":"2.0","id":"a\u0062","method":"tools/call","params":{"name":"echo","arguments":{"text":"h\"i"}}}"#;
        let mut out = Vec::new();
        serve(format!("{line}\n").as_bytes(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains(r#""id":"a\u0062""#), "{text}");
        assert!(text.contains(r#""text":"h\"i""#), "{text}");
    }

    #[test]
    fn big_returns_the_requested_number_of_bytes() {
        for bytes in [0, 1, 79, 80, 81, 1 << 20] {
            let response = request_response(&format!(
                r#"{{"id":1,"method":"tools/call","params":{{"name":"big","arguments":{{"bytes":{bytes}}}}}}}"#
            ));
            let text = response["result"]["content"][0]["text"].as_str().unwrap();
            assert_eq!((text.len(), text.matches('\n').count()), (bytes, bytes / 80));
        }
    }

    #[test]
    fn a_supported_version_is_accepted_and_another_gets_the_newest() {
        let request_response = |version: &str| {
            request_response(&format!(
                r#"{{"id":1,"method":"initialize","params":{{"protocolVersion":"{version}"}}}}"#
            ))["result"]["protocolVersion"]
                .clone()
        };
        assert_eq!(request_response("2024-11-05"), "2024-11-05");
        assert_eq!(request_response("1999-01-01"), "2025-11-25");
    }

    #[test]
    fn a_notification_gets_no_response_and_an_unknown_method_an_error() {
        let mut out = Vec::new();
        serve(&b"{\"method\":\"notifications/initialized\"}\n\n"[..], &mut out).unwrap();
        assert!(out.is_empty());
        assert_eq!(request_response(r#"{"id":1,"method":"server/discover"}"#)["error"]["code"], -32601);
    }
}
