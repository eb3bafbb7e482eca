//! An HTTP proxy on loopback that takes CONNECT, in all the ways in which such proxies behave.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// What the proxy does with a connection.
#[derive(Clone, Copy, Debug)]
pub enum Manner {
    /// Says this and closes.
    Answers(&'static str),
    /// Reads and closes.
    Closes,
    /// Connects every client that sends this `Proxy-Authorization` to the same place, whatever was asked for: to the proxy
    /// every name is one.
    Connects { to: SocketAddr, authorization: &'static str },
    /// Reads and says nothing.
    Hangs,
}

/// A running proxy; it ends with the test's process.
#[derive(Debug)]
pub struct Proxy {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    pub fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
        let address = listener.local_addr().expect("it was just bound");
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let heard = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let heard = Arc::clone(&heard);
                thread::spawn(move || serve(stream, manner, &heard));
            }
        });
        Self { address, asked }
    }

    /// The first lines of the requests that came.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(mut stream: TcpStream, manner: Manner, heard: &Mutex<Vec<String>>) {
    let Some(head) = head(&mut stream) else { return };
    heard
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(head.lines().next().unwrap_or_default().to_owned());
    match manner {
        Manner::Answers(text) => {
            let _ = stream.write_all(text.as_bytes());
        }
        Manner::Closes => {}
        Manner::Hangs => {
            let _ = stream.read_to_end(&mut Vec::new());
        }
        Manner::Connects { authorization, .. }
            if !head.contains(&format!("\r\nProxy-Authorization: {authorization}\r\n")) =>
        {
            let _ = stream.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n");
        }
        Manner::Connects { to, .. } => {
            let Ok(far) = TcpStream::connect(to) else { return };
            let _ = stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n");
            let (Ok(near_reader), Ok(far_reader)) = (stream.try_clone(), far.try_clone()) else { return };
            thread::spawn(move || pour(near_reader, far));
            pour(far_reader, stream);
        }
    }
}

fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < 8192 {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

fn pour(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
