//! A real OpenBao in memory, with one secret that the benchmark changes.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use crate::bench_error::BenchError;
use crate::contender::{Contender, Ready};
use crate::process::Running;
use crate::program_paths::ProgramPaths;

pub(super) struct OpenBao {
    _server: Running,
    /// `127.0.0.1:PORT`.
    host_port: String,
}

impl OpenBao {
    /// Starts OpenBao with a policy for sessions, and the secret.
    pub(super) fn start(dir: &Path, paths: &ProgramPaths) -> Result<Self, BenchError> {
        let prepared = SERVER.prepare(dir, paths)?;
        let argument = prepared.host.argv.last().and_then(|argument| argument.strip_prefix(LISTEN));
        let host_port = argument.unwrap_or_default().to_owned();
        let server = prepared.start_host()?.ok_or_else(|| BenchError::Missing("an OpenBao".into()))?;
        let bao = Self { _server: server, host_port };
        let policy = r#"{"policy":"path \"secret/data/bench\" { capabilities = [\"read\"] }"}"#;
        bao.write("sys/policies/acl/bench", policy)?;
        bao.change_secret(0)?;
        Ok(bao)
    }

    pub(super) fn address(&self) -> String {
        format!("http://{}", self.host_port)
    }

    /// Changes the value of the secret.
    pub(super) fn change_secret(&self, number: usize) -> Result<(), BenchError> {
        self.write(
            "secret/data/bench",
            &format!(r#"{{"data":{{"value":"credential-{number}-benchmark-only"}}}}"#),
        )
    }

    fn write(&self, path: &str, body: &str) -> Result<(), BenchError> {
        let exchanged = self.exchange(path, body);
        let response =
            exchanged.map_err(|source| BenchError::Read { what: "a response of OpenBao".into(), source })?;
        match response.split(' ').nth(1) {
            Some("200" | "204") => Ok(()),
            _ => Err(BenchError::UnexpectedResponse(response.chars().take(160).collect())),
        }
    }

    fn exchange(&self, path: &str, body: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(&self.host_port)?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        // With HTTP/1.0 the server closes the connection after its response.
        let head =
            format!("POST /v1/{path} HTTP/1.0\r\nHost: {}\r\nX-Vault-Token: {TOKEN}\r\n", self.host_port);
        stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        Ok(response)
    }
}

/// The root token. The server holds only the benchmark's secret.
pub(super) const TOKEN: &str = "root";

const LISTEN: &str = "-dev-listen-address=";
const SERVER: Contender = Contender {
    name: "openbao",
    about: "OpenBao in memory",
    directories: &[],
    files: &[],
    host: &[
        "{openbao}",
        "server",
        "-dev",
        "-dev-root-token-id=root",
        "-dev-no-store-token",
        "-dev-listen-address=127.0.0.1:{port}",
    ],
    ready: Ready::Port,
    enrol: &[],
    client: &[],
    env: &[("HOME", "{dir}")],
};
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
