//! Connects to a hub on a loopback port, for sandboxes in which Unix sockets are forbidden.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;

use relay_proto::hub::{HubFile, Key};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Connects to the hub that wrote this file: sends the key, and continues only if the hub replies with its own key. Has no
/// timeout of its own.
pub(crate) async fn connect(file: &Path) -> io::Result<OwnedFd> {
    let mut text = String::new();
    // The next hub will have another port and key, so the file is read each time.
    let opened = File::open(file).map_err(|error| {
        let why = format!("{error}: the hub writes this file when it is attached; is it running?");
        io::Error::new(error.kind(), why)
    })?;
    opened.take(HubFile::MAX_BYTES as u64 + 1).read_to_string(&mut text)?;
    let hub_file =
        HubFile::from_text(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, hub_file.port)).await?;
    stream.set_nodelay(true)?;
    stream.write_all(hub_file.shim_key.on_wire()).await?;
    let mut answer = [0; Key::WIRE_BYTES];
    let answered = stream.read_exact(&mut answer).await;
    if answered.is_err() || !hub_file.hub_key.matches(&answer) {
        let why = "the program at the hub's port did not send the hub's key: the hub has exited and its port was \
                   reused; start the hub again";
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, why));
    }
    Ok(stream.into_std()?.into())
}
