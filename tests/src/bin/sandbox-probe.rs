//! Tries one way out of a sandbox and prints the result in one line.
//!
//!     sandbox-probe tcp HOST:PORT       connects
//!     sandbox-probe unix PATH           connects
//!     sandbox-probe proxy HOST:PORT     sends a CONNECT to the proxy in HTTPS_PROXY, with its user and password
//!     sandbox-probe read PATH           opens a file
//!
//! The line is `ok`, or the kind of error and its text; for a proxy, the first line of its response.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use cofferdam_tests::encodings::base64;

const TIMEOUT: Duration = Duration::from_secs(10);

#[expect(clippy::print_stdout, reason = "the result is the program's output")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [way, target] = &arguments[..] else {
        eprintln!("sandbox-probe tcp|unix|proxy|read TARGET");
        return ExitCode::from(64);
    };
    let result = match way.as_str() {
        "tcp" => tcp(target).map(|_| "ok".to_owned()),
        "unix" => UnixStream::connect(target).map(|_| "ok".to_owned()),
        "proxy" => proxy(target),
        "read" => std::fs::File::open(target).map(|_| "ok".to_owned()),
        other => Err(std::io::Error::other(format!("unknown way {other}"))),
    };
    println!("{}", result.unwrap_or_else(|error| format!("{:?}: {error}", error.kind())));
    ExitCode::SUCCESS
}

fn tcp(target: &str) -> std::io::Result<TcpStream> {
    let address = target.parse().map_err(std::io::Error::other)?;
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn proxy(target: &str) -> std::io::Result<String> {
    let missing = || std::io::Error::other("HTTPS_PROXY is not http://NAME:PASSWORD@HOST:PORT");
    let variable = std::env::var("HTTPS_PROXY").map_err(std::io::Error::other)?;
    let rest = variable.strip_prefix("http://").ok_or_else(missing)?;
    let (credentials, host) = rest.rsplit_once('@').ok_or_else(missing)?;
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let authorization = base64(&percent_decoded(credentials));
    let mut request = String::new();
    let _ = write!(
        request,
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {authorization}\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let (mut bytes, mut decoded) = (text.bytes(), Vec::new());
    while let Some(byte) = bytes.next() {
        let digits = || {
            let pair = [bytes.clone().next()?, bytes.clone().nth(1)?];
            u8::from_str_radix(std::str::from_utf8(&pair).ok()?, 16).ok()
        };
        match (byte, digits()) {
            (b'%', Some(value)) => {
                decoded.push(value);
                bytes.nth(1);
            }
            _ => decoded.push(byte),
        }
    }
    decoded
}
