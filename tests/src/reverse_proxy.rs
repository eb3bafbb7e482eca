//! Real reverse proxies of Debian's packages, in front of a sidecar's port.
//!
//! A site is written with the addresses and paths of `packaging/examples/proxies/`, which are replaced by those of the
//! test: so the tests run the examples that are shipped. Each program runs as one process in the foreground, is ended by
//! its process id when the test is over, and by the kernel if the test itself is killed.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::certificates::Authority;
use crate::deadline::{PATIENCE, holds_within};
use crate::openbao::killed_with_parent;
use crate::port::free_address;
use crate::process::{Running, into_file, read};
use crate::tools::Tool;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReverseProxyProgram {
    Caddy,
    Haproxy,
    Nginx,
}

/// A reverse proxy that terminates TLS, running unless it was stopped.
#[derive(Debug)]
pub struct ReverseProxy {
    program: ReverseProxyProgram,
    process: Option<Running>,
    directory: TempDir,
    /// Where it accepts TLS connections.
    pub listens_at: SocketAddr,
}

impl ReverseProxyProgram {
    pub const ALL: [Self; 3] = [Self::Caddy, Self::Haproxy, Self::Nginx];

    /// The site that is shipped for this program.
    pub fn example(self) -> &'static str {
        match self {
            Self::Caddy => include_str!("../../packaging/examples/proxies/Caddyfile"),
            Self::Haproxy => include_str!("../../packaging/examples/proxies/haproxy.cfg"),
            Self::Nginx => include_str!("../../packaging/examples/proxies/nginx.conf"),
        }
    }

    /// A site that terminates TLS and forwards everything, with no further setting.
    pub fn default_site(self) -> &'static str {
        match self {
            Self::Caddy => {
                "relay.example.com {\n\
                 \ttls /etc/ssl/relay.example.com.crt /etc/ssl/relay.example.com.key\n\
                 \treverse_proxy 127.0.0.1:7443\n}\n"
            }
            Self::Haproxy => {
                "listen cofferdam\n    mode http\n    bind :443 ssl crt /etc/haproxy/relay.example.com.pem\n    \
                 timeout connect 5s\n    timeout client 50s\n    timeout server 50s\n    server sidecar 127.0.0.1:7443\n"
            }
            Self::Nginx => {
                "server {\n    listen 443 ssl;\n    ssl_certificate /etc/ssl/relay.example.com.crt;\n    \
                 ssl_certificate_key /etc/ssl/relay.example.com.key;\n    \
                 location / {\n        proxy_pass http://127.0.0.1:7443;\n    }\n}\n"
            }
        }
    }

    fn tool(self) -> Tool {
        match self {
            Self::Caddy => Tool::Caddy,
            Self::Haproxy => Tool::Haproxy,
            Self::Nginx => Tool::Nginx,
        }
    }

    /// How a site names the address on which it accepts connections, and the same for this address.
    fn listen_directive(self, address: SocketAddr) -> (&'static str, String) {
        match self {
            Self::Caddy => ("relay.example.com {", format!("https://{address} {{")),
            Self::Haproxy => ("bind :443 ", format!("bind {address} ")),
            Self::Nginx => ("listen 443 ", format!("listen {address} ")),
        }
    }

    /// The site with what keeps the program in the foreground, within the test's directory and on its address.
    fn whole_configuration(self, site: &str, listens_at: SocketAddr, directory: &Path) -> String {
        let directory = directory.display();
        match self {
            // Without these options Caddy also listens on ports 80 and 2019, on every address and on UDP.
            Self::Caddy => format!(
                "{{\n\tadmin off\n\tauto_https off\n\tdefault_bind {}\n\tservers {{\n\t\tprotocols h1 h2\n\t}}\n}}\n{site}",
                listens_at.ip()
            ),
            Self::Haproxy => site.to_owned(),
            Self::Nginx => {
                let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                    .map(|kind| format!("{kind}_temp_path {directory}/{kind};\n"))
                    .concat();
                format!(
                    "daemon off;\nmaster_process off;\npid {directory}/pid;\nevents {{}}\n\
                     http {{\naccess_log off;\n{paths}{site}}}\n"
                )
            }
        }
    }
}

impl ReverseProxy {
    /// Starts the program with a site that forwards to `sidecar`; `None` where the program is missing.
    #[track_caller]
    pub fn start(program: ReverseProxyProgram, site: &str, sidecar: SocketAddr) -> Option<Self> {
        program.tool().path()?;
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let listens_at = free_address();
        let certified = Authority::new().server(&listens_at.ip().to_string());
        let (certificate, key) = certified.write(directory.path(), "server");
        let both = directory.path().join("server.pem");
        std::fs::write(&both, format!("{}{}", certified.certificate, certified.key))
            .expect("a temporary directory is writable");
        let (listen, listen_here) = program.listen_directive(listens_at);
        let site = site
            .replace(listen, &listen_here)
            .replace("/etc/ssl/relay.example.com.crt", &certificate.display().to_string())
            .replace("/etc/ssl/relay.example.com.key", &key.display().to_string())
            .replace("/etc/haproxy/relay.example.com.pem", &both.display().to_string())
            .replace("127.0.0.1:7443", &sidecar.to_string());
        std::fs::write(
            directory.path().join("configuration"),
            program.whole_configuration(&site, listens_at, directory.path()),
        )
        .expect("a temporary directory is writable");
        let mut proxy = Self { program, process: None, directory, listens_at };
        proxy.up();
        Some(proxy)
    }

    /// Starts the program and waits until it accepts connections.
    #[track_caller]
    pub fn up(&mut self) {
        let mut command = self.command();
        let log = self.directory.path().join("log");
        command.stdin(Stdio::null()).stdout(into_file(&log)).stderr(into_file(&log));
        let mut process = Running::spawn(command, &format!("{:?}", self.program));
        let accepts = holds_within(PATIENCE, || TcpStream::connect(self.listens_at).is_ok());
        assert!(
            accepts && process.is_running(),
            "{:?} does not accept connections:\n{}",
            self.program,
            self.log()
        );
        self.process = Some(process);
    }

    /// Ends the program and all its connections.
    #[track_caller]
    pub fn stop(&mut self) {
        let mut process = self.process.take().expect("the reverse proxy runs");
        process.signal(Signal::SIGTERM);
        process.wait(PATIENCE);
    }

    /// What the program printed.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&read(&self.directory.path().join("log"))).into_owned()
    }

    fn command(&self) -> Command {
        let program = self.program.tool().path().expect("the program was there when the proxy was made");
        let directory = self.directory.path();
        let configuration = directory.join("configuration");
        let mut command = killed_with_parent(&program);
        match self.program {
            ReverseProxyProgram::Caddy => {
                command.args(["run", "--adapter", "caddyfile", "--config"]).arg(configuration);
            }
            ReverseProxyProgram::Haproxy => {
                command.args(["-db", "-f"]).arg(configuration);
            }
            ReverseProxyProgram::Nginx => {
                command.args(["-e", "stderr", "-p"]).arg(directory).arg("-c").arg(configuration);
            }
        }
        // Libraries that the machine lacks are unpacked beside the programs.
        let unpacked = program.ancestors().nth(2).map(Path::to_owned).unwrap_or_default();
        let libraries = unpacked.join(format!("lib/{}-linux-gnu", std::env::consts::ARCH));
        command.env_clear().env("LD_LIBRARY_PATH", libraries).env("HOME", directory);
        command
    }
}

impl Drop for ReverseProxy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("=== log of {:?}\n{}", self.program, self.log());
        }
    }
}
