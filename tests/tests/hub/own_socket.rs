//! The hub's own socket: stale sockets, sockets of other programs, second hubs, and obstacles in its directory.

use std::os::fd::OwnedFd;

use super::*;

#[test]
fn a_second_hub_on_one_socket_or_one_pipe_is_refused_with_the_next_step() {
    let scene = Scene::new();
    let attach = scene.attach();
    let place = scene.directory.path();
    let (here, _there) = UnixStream::pair().unwrap();
    let mut same_socket = hub_on(&here, &scene.socket(), &place.join("first"));
    assert_eq!(same_socket.wait(PATIENCE).code(), Some(75));
    let printed = String::from_utf8_lossy(&read(&place.join("first"))).into_owned();
    assert!(
        printed.contains(&format!("(process {})", attach.command_pid())) && printed.contains("--socket"),
        "{printed}"
    );
    assert_eq!(connected(&scene.relay(), "tools").call_text("add", json!({"a": 1, "b": 1})), "2");

    let (here, mut there) = UnixStream::pair().unwrap();
    let _first = hub_on(&here, &place.join("one.sock"), &place.join("second"));
    there.read_exact(&mut [0; 5]).unwrap();
    let mut same_pipe = hub_on(&here, &place.join("two.sock"), &place.join("third"));
    assert_eq!(same_pipe.wait(PATIENCE).code(), Some(75));
    let printed = String::from_utf8_lossy(&read(&place.join("third"))).into_owned();
    assert!(printed.contains("another hub uses this pipe") && printed.contains("start it once"), "{printed}");
}

#[test]
fn a_stale_socket_is_replaced_and_another_programs_is_left_alone() {
    let scene = Scene::new();
    std::fs::create_dir(scene.socket().parent().unwrap()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(scene.socket()).unwrap());
    assert!(scene.socket().exists());
    let attach = scene.attach();
    assert_eq!(scene.shim().call_text("add", json!({"a": 1, "b": 1})), "2");
    attach.stop();
    let _listener = std::os::unix::net::UnixListener::bind(scene.socket()).unwrap();
    let attach = Attach::start(&scene.world, &exec_hub(&scene.socket()));
    attach.wait_until_output_has("another program that is not a hub listens there");
    drop(attach);
    UnixStream::connect(scene.socket()).expect("the other program still listens");
}

/// A process in the sandbox that can write to the hub's directory neither redirects nor delays it.
#[test]
fn a_hub_follows_no_link_at_its_lock_and_does_not_wait_for_a_silent_socket() {
    let scene = Scene::new();
    let lock = scene.directory.path().join("box/relay.sock.lock");
    std::fs::create_dir(lock.parent().unwrap()).unwrap();
    let other = scene.directory.path().join("other");
    std::fs::write(&other, "another program's").unwrap();
    std::os::unix::fs::symlink(&other, &lock).unwrap();
    let attach = Attach::start(&scene.world, &exec_hub(&scene.socket()));
    attach.wait_until_output_has("the file there was not made by a hub");
    drop(attach);
    assert_eq!(read(&other), b"another program's");
    std::fs::remove_file(&lock).unwrap();
    nix::unistd::mkfifo(&lock, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let attach = Attach::start(&scene.world, &exec_hub(&scene.socket()));
    attach.wait_until_output_has("the file there was not made by a hub");
    drop(attach);
    std::fs::remove_file(&lock).unwrap();

    // A client that connects now would wait until the first ones are accepted.
    let _full = socket_with_full_backlog(&scene.socket());
    let attach = Attach::start(&scene.world, &exec_hub(&scene.socket()));
    attach.wait_until_output_has("another program that is not a hub listens there");
}

/// Starts a hub whose stdin and stdout are this pipe.
fn hub_on(pipe: &UnixStream, socket: &std::path::Path, stderr: &std::path::Path) -> Running {
    let end =
        || Stdio::from(std::os::fd::OwnedFd::from(pipe.try_clone().expect("a descriptor can be duplicated")));
    let mut hub = command(shim_binary());
    hub.env_clear().args(["hub", "--pin", &"1".repeat(64), "--socket"]).arg(socket);
    hub.stdin(end()).stdout(end()).stderr(into_file(stderr));
    Running::spawn(hub, "cofferdam-shim hub")
}

/// A listening socket whose backlog is full.
fn socket_with_full_backlog(path: &std::path::Path) -> (OwnedFd, Vec<OwnedFd>) {
    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
    };
    let new_socket =
        |flags| socket(AddressFamily::Unix, SockType::Stream, flags, None).expect("sockets work here");
    let (listener, address) =
        (new_socket(SockFlag::SOCK_CLOEXEC), UnixAddr::new(path).expect("sockets work here"));
    bind(std::os::fd::AsRawFd::as_raw_fd(&listener), &address).expect("sockets work here");
    listen(&listener, Backlog::new(0).expect("sockets work here")).expect("sockets work here");
    let mut waiting = Vec::new();
    loop {
        let stream = new_socket(SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK);
        match connect(std::os::fd::AsRawFd::as_raw_fd(&stream), &address) {
            Ok(()) => waiting.push(stream),
            Err(error) => {
                assert_eq!(error, nix::errno::Errno::EAGAIN);
                return (listener, waiting);
            }
        }
    }
}
