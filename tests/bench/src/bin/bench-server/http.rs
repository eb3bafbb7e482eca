//! The benchmark's MCP server over streamable HTTP (`main.rs` serves stdio): keep-alive connections with a thread
//! each, and no MCP sessions.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// Listens on this loopback port until stdin is closed.
pub(crate) fn serve(port: &str) -> io::Result<()> {
    let port: u16 = port.parse().map_err(io::Error::other)?;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // If no thread can be started, the connection is closed and the client reports an error.
            let _ = thread::Builder::new().stack_size(STACK).spawn(move || {
                stream.set_nodelay(true)?;
                serve_connection(BufReader::new(stream.try_clone()?), stream)
            });
        }
    });
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    Ok(())
}

const STACK: usize = 128 * 1024;
const MAX_BODY: usize = 1 << 20;

/// Responds to requests until the client closes the connection.
fn serve_connection(mut reader: BufReader<TcpStream>, mut writer: TcpStream) -> io::Result<()> {
    let mut out = Vec::new();
    while respond(&mut reader, &mut out)? == Received::Request {
        writer.write_all(&out)?;
        out.clear();
    }
    Ok(())
}

#[derive(Debug, Eq, PartialEq)]
enum Received {
    EndOfStream,
    Request,
}

/// Reads a request and writes its response to `out`.
fn respond(reader: &mut impl BufRead, out: &mut Vec<u8>) -> io::Result<Received> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(Received::EndOfStream);
    }
    let mut length = 0;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 && !line.trim_end().is_empty() {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
        line.clear();
    }
    if length > MAX_BODY {
        return Err(io::Error::other("the request's body is too long"));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if !first.starts_with("POST ") {
        out.extend_from_slice(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n");
        return Ok(Received::Request);
    }
    let mut response = Vec::new();
    super::write_response(&body, &mut response)?;
    match response.len() {
        0 => out.extend_from_slice(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"),
        length => {
            write!(
                out,
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
            )?;
            out.extend_from_slice(&response);
        }
    }
    Ok(Received::Request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(request: &str) -> String {
        let mut out = Vec::new();
        assert_eq!(respond(&mut request.as_bytes(), &mut out).unwrap(), Received::Request);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_request_gets_a_result_a_notification_gets_202_and_a_get_405() {
        let post = |body: &str| format!("POST /mcp HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let response_text = response(&post(r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#));
        let (head, body) = response_text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 200") && head.ends_with(&body.len().to_string()),
            "{response_text}"
        );
        assert_eq!(body.trim_end(), r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
        assert!(response(&post(r#"{"method":"notifications/initialized"}"#)).starts_with("HTTP/1.1 202"));
        assert!(response("GET /mcp HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert_eq!(respond(&mut &b""[..], &mut Vec::new()).unwrap(), Received::EndOfStream);
    }
}
