//! The file with a recorded use: one request of MCP on each line.
//!
//! ```text
//! {"method": "tools/call", "params": {"name": "get_me", "arguments": {}}}
//! ```
//!
//! What must stay true: no more than [`MAX_BYTES`] is read; no part of the file is quoted, because arguments may be secret.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use cofferdam_servers::trial::{RecordedRequest, RecordedUse};
use relay_proto::mcp;
use serde::Deserialize;
use serde_json::Value;

use crate::terminal::failure::{Failure, Sysexit};

/// Enough for any use that was recorded by hand or by a script.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
const MAX_REQUESTS: usize = 10_000;

/// A line. Other members, such as the `id` of a request that was recorded whole, have no meaning here.
#[derive(Deserialize)]
struct Line {
    method: String,
    #[serde(default)]
    params: Option<serde_json::Map<String, Value>>,
}

/// Reads the use in a file; `limit` is for each of its requests.
pub(super) fn read(path: &Path, limit: Duration) -> Result<RecordedUse, Failure> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        Failure::new(Sysexit::NoInput, format!("cannot read the use `{shown}`: {error}"))
            .hint("name a file with one request as JSON on each line")
    };
    // Does not block on a pipe.
    let file =
        OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(unreadable(std::io::Error::other("it is not a regular file")));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(invalid(path, "it is larger than 16 MiB"));
    }
    let requests = parse(&bytes).map_err(|problem| invalid(path, &problem))?;
    Ok(RecordedUse { requests, limit })
}

fn invalid(path: &Path, problem: &str) -> Failure {
    let example =
        r#"write lines such as {"method": "tools/call", "params": {"name": "TOOL", "arguments": {}}}"#;
    Failure::new(Sysexit::Data, format!("`{}` is no recorded use: {problem}", path.display())).hint(example)
}

/// The handshake and notifications, which a whole recording has, are left out: the trial makes its own.
fn parse(bytes: &[u8]) -> Result<Vec<RecordedRequest>, String> {
    let mut requests = Vec::new();
    for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let number = index + 1;
        let Line { method, params } =
            serde_json::from_slice(line).map_err(|_| format!("line {number} is not a request"))?;
        if method == mcp::INITIALIZE || method.starts_with("notifications/") {
            continue;
        }
        if requests.len() == MAX_REQUESTS {
            return Err(format!("it has more than {MAX_REQUESTS} requests"));
        }
        requests.push(RecordedRequest { method, params: Value::Object(params.unwrap_or_default()) });
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_are_read_and_the_handshake_is_left_out() {
        let text = concat!(
            r#"{"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}"#,
            "\n\n",
            r#"{"jsonrpc": "2.0", "method": "notifications/initialized"}"#,
            "\n",
            r#"{"method": "tools/list"}"#,
            "\n",
            r#"{"id": 7, "method": "tools/call", "params": {"name": "x"}}"#,
        );
        let expected = [("tools/list", json!({})), ("tools/call", json!({"name": "x"}))];
        let expected = expected.map(|(method, params)| RecordedRequest { method: method.into(), params });
        assert_eq!(parse(text.as_bytes()), Ok(expected.to_vec()));
    }

    #[test]
    fn what_is_not_a_request_is_named_by_its_line_and_not_quoted() {
        let good = r#"{"method": "ping"}"#;
        for bad in [
            r#"{"method": "tools/c"#,
            "secret",
            "[]",
            r#"{"params": {}}"#,
            r#"{"method": "x", "params": [1]}"#,
        ] {
            assert_eq!(
                parse(format!("{good}\n{bad}\n").as_bytes()),
                Err("line 2 is not a request".into()),
                "{bad}"
            );
        }
        assert_eq!(parse(b"\xff"), Err("line 1 is not a request".into()));
        let many = format!("{good}\n").repeat(MAX_REQUESTS);
        assert_eq!(parse(many.as_bytes()).map(|requests| requests.len()), Ok(MAX_REQUESTS));
        let too_many = parse(format!("{many}{good}").as_bytes());
        assert_eq!(too_many, Err("it has more than 10000 requests".into()));
    }
}
