//! The ways in which a server leaks its secret.

use std::fmt::Write as _;
use std::io::Write as _;

use cofferdam_tests::encodings::{
    base32, base64, base64url, entities, hex, hex_with, hexadecimal_entities, json_escaped, percent_all,
    percent_needed, utf16, wrapped,
};
use serde_json::json;

use super::message::{answer, refuse};
use super::output::Output;
use super::tools::{Call, text};

/// The secret that the configuration injected; a recognisable text where it injected none.
pub(crate) fn secret() -> String {
    std::env::var("SECRET").unwrap_or_else(|_| "no-SECRET-was-injected".to_owned())
}

/// Everything in the environment, one `NAME=value` per line.
pub(crate) fn environment() -> String {
    std::env::vars().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name}={value}");
        text
    })
}

/// Leaks the secret: argument `as` names the encoding, `in` the place in the response.
pub(crate) fn run(call: &Call<'_>, output: &Output) {
    let secret = secret();
    let encoded = encoded(&secret, call.argument("as").as_str().unwrap_or("plain"));
    let reply = |result| answer(call.mode, &call.request, call.era, result, output);
    match call.argument("in").as_str().unwrap_or("result") {
        "error" => refuse(call.mode, &call.request, -32000, &format!("login failed with {encoded}"), output),
        "error-data" => {
            let id = &call.request;
            output.message(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32000, "message": "no", "data": {"tried": encoded}}}));
        }
        "escapes" => {
            // Written with escapes in the line itself, which no JSON library would do.
            let (id, escaped) = (&call.request, json_escaped(&secret));
            output.line(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"{escaped}"}}]}}}}"#
            ));
        }
        "key" => {
            let mut result = text("a key");
            result["structuredContent"] = json!({ encoded: "value" });
            reply(result);
        }
        "log" => {
            let params = json!({"level": "info", "data": {"message": encoded}});
            output.message(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params}));
            reply(text("logged"));
        }
        "progress" => {
            let token = call.progress_token();
            let params = json!({"progressToken": token, "progress": 1, "message": encoded});
            output.message(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}));
            reply(text("progressed"));
        }
        "stderr" => {
            // In two writes, so that a reader may receive the halves separately.
            let (head, tail) = encoded.split_at(encoded.len() / 2);
            let mut stderr = std::io::stderr();
            let _ = write!(stderr, "using {head}").and_then(|()| stderr.flush());
            std::thread::sleep(std::time::Duration::from_millis(30));
            let _ = writeln!(stderr, "{tail} now");
            reply(text("written to stderr"));
        }
        _ => reply(text(&format!("the secret is <{encoded}>"))),
    }
}

fn encoded(secret: &str, encoding: &str) -> String {
    let bytes = secret.as_bytes();
    match encoding {
        "base64" => base64(bytes),
        "base64+1" => base64(&[b"x", bytes].concat()),
        "base64+2" => base64(&[b"xy", bytes, b"z"].concat()),
        "base64url" => base64url(bytes),
        "base64url+1" => base64url(&[b"x", bytes].concat()),
        "base64url+2" => base64url(&[b"xy", bytes, b"z"].concat()),
        "hex" => hex(bytes),
        "HEX" => hex(bytes).to_uppercase(),
        "json" => json!({"inner": secret, "quoted": json!({"again": secret}).to_string()}).to_string(),
        "percent" => percent_needed(bytes),
        "percent-all" => percent_all(bytes),
        "percent-lower" => percent_all(bytes).to_lowercase(),
        "base64-in-lines" => wrapped(&base64(&[b"x", bytes].concat()), 20, "\n"),
        "base64-in-indented-lines" => wrapped(&base64(bytes), 10, "\r\n    "),
        "base32" => base32(bytes),
        "base32+3" => base32(&[b"xyz", bytes].concat()).to_lowercase(),
        "base32-in-lines" => wrapped(&base32(bytes), 16, "\n"),
        "hex-in-lines" => wrapped(&hex(bytes), 32, "\n  "),
        "hex-with-spaces" => hex_with(bytes, " "),
        "hex-with-colons" => hex_with(bytes, ":"),
        "HEX-with-colons" => hex_with(bytes, ":").to_uppercase(),
        "hex-with-0x" => format!("0x{}", hex_with(bytes, ", 0x")),
        "entities" => entities(secret),
        "hexadecimal-entities" => hexadecimal_entities(secret),
        "utf-16" => utf16(secret),
        "lines" => secret.lines().collect::<Vec<_>>().join(" / "),
        _ => secret.to_owned(),
    }
}
