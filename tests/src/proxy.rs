//! An HTTP CONNECT proxy on loopback, with the behaviours of real ones.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// What the proxy does with a connection.
#[derive(Clone, Copy, Debug)]
pub enum ProxyBehaviour {
    /// Reads the request, sends this text and closes.
    Answers(&'static str),
    /// Reads the request and closes.
    Closes,
    /// Connects every client that sends this `Proxy-Authorization` to the address `to`, whatever host it requested, as
    /// if every name resolved to that address.
    Connects { to: SocketAddr, authorization: &'static str },
    /// Reads and does not respond.
    Hangs,
}

/// A running proxy; it ends with the test's process.
#[derive(Debug)]
pub struct Proxy {
    pub address: SocketAddr,
    request_lines: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    pub fn start(behaviour: ProxyBehaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
        let address = listener.local_addr().expect("it was just bound");
        let request_lines = Arc::<Mutex<Vec<String>>>::default();
        let recorded = Arc::clone(&request_lines);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let request_lines = Arc::clone(&recorded);
                thread::spawn(move || serve(stream, behaviour, &request_lines));
            }
        });
        Self { address, request_lines }
    }

    /// The first lines of all requests.
    pub fn request_lines(&self) -> Vec<String> {
        self.request_lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(mut stream: TcpStream, behaviour: ProxyBehaviour, request_lines: &Mutex<Vec<String>>) {
    let Some(head) = read_head(&mut stream) else { return };
    request_lines
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(head.lines().next().unwrap_or_default().to_owned());
    match behaviour {
        ProxyBehaviour::Answers(text) => {
            let _ = stream.write_all(text.as_bytes());
        }
        ProxyBehaviour::Closes => {}
        ProxyBehaviour::Hangs => {
            let _ = stream.read_to_end(&mut Vec::new());
        }
        ProxyBehaviour::Connects { authorization, .. }
            if !head.contains(&format!("\r\nProxy-Authorization: {authorization}\r\n")) =>
        {
            let _ = stream.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n");
        }
        ProxyBehaviour::Connects { to, .. } => {
            let Ok(far) = TcpStream::connect(to) else { return };
            let _ = stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n");
            let (Ok(near_reader), Ok(far_reader)) = (stream.try_clone(), far.try_clone()) else { return };
            thread::spawn(move || copy(near_reader, far));
            copy(far_reader, stream);
        }
    }
}

fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < 8192 {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
