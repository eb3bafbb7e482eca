//! A sandbox that connects to the sidecar by itself: the shim is installed, and is enrolled with an enrolment string.
//!
//! What must stay true: the enrolment string is a secret until it is used. It enters the sandbox as the content of a file that
//! only the sandbox's user can read, never as a parameter, an environment variable or a path, which platforms log; the shim
//! removes the file when it has read the string, and a script removes it in any case, also if the work is interrupted.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;
use zeroize::Zeroizing;

use crate::PlatformError;
use crate::guest::Guest;
use crate::install::{HOME_DIRECTORY, InstalledShim};
use crate::temporary_files::with_temporary_files;

/// A running sandbox in which the shim is installed, but not started.
pub struct PreparedSandbox {
    guest: Arc<dyn Enrolling>,
    shim: InstalledShim,
}

type BoxedResult<'a, T> = Pin<Box<dyn Future<Output = Result<T, PlatformError>> + Send + 'a>>;

/// [`Guest`] as a trait object: the steps of enrolling a sandbox of any platform.
trait Enrolling: Send + Sync {
    fn earlier_key<'a>(&'a self, shim: &'a InstalledShim) -> BoxedResult<'a, EarlierKey>;

    fn enrol<'a>(&'a self, shim: &'a InstalledShim, enrolment: Enrolment<'a>) -> BoxedResult<'a, ()>;
}

/// An enrolment string, and how it is used.
struct Enrolment<'a> {
    text: &'a str,
    /// The server for which the shim opens a link with the string.
    server: &'a str,
    is_used: &'a (dyn Fn() -> bool + Send + Sync),
}

const ACTION: &str = "enrol the sandbox";

/// How often it is checked whether the enrolment string was used.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Creates two empty files that only the sandbox's user can read, in a directory that only this user can read: the file for the
/// enrolment string, and `FILE.wait`, which exists while the shim is to stay connected. Parameter: the file.
const MAKE_PRIVATE_FILES: &str = r#"umask 077
mkdir -p "${1%/*}" && chmod 0700 "${1%/*}" && rm -f "$1" && : > "$1" && : > "$1.wait"
"#;

/// Connects to the sidecar with the enrolment string, which makes the sandbox's key valid, and stays connected while `FILE.wait`
/// exists, at most 10 seconds. Prints the last lines of the shim's stderr. Parameters: the file, the shim, a server.
const CONNECT: &str = r#"{ n=0; while [ -e "$1.wait" ] && [ "$n" -lt 10 ]; do sleep 1; n=$((n + 1)); done; } |
  COFFERDAM_ENROLL_FILE="$1" "$2" --server "$3" 2>&1 > /dev/null | tail -n 3
rm -f "$1" "$1.wait"
"#;

/// Prints `accepted` if the sandbox has a key that the sidecar accepts. Parameter: the shim.
const CHECK_KEY: &str = r#""$1" servers > /dev/null 2>&1 && echo accepted
exit 0
"#;

/// Lets the shim exit, and removes the enrolment string. Parameter: the file.
const FINISH: &str = r#"rm -f "$1.wait" "$1""#;

/// Whether the sandbox has a key from an earlier enrolment that the sidecar still accepts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EarlierKey {
    Accepted,
    None,
}

impl PreparedSandbox {
    pub(crate) fn new(guest: Arc<impl Guest + Send + 'static>, shim: InstalledShim) -> Self {
        Self { guest, shim }
    }

    pub async fn earlier_key(&self) -> Result<EarlierKey, PlatformError> {
        self.guest.earlier_key(&self.shim).await
    }

    /// Lets the shim in the sandbox connect with this enrolment string, and waits until `is_used` returns true, which the sidecar
    /// knows. After that, every shim of the same user connects with the key that this one has stored. The link is for `server`,
    /// of which no process is started.
    pub async fn enrol(
        &self,
        enrolment: &str,
        server: &str,
        is_used: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<(), PlatformError> {
        self.guest.enrol(&self.shim, Enrolment { text: enrolment, server, is_used }).await
    }
}

impl<G: Guest + Send> Enrolling for G {
    fn earlier_key<'a>(&'a self, shim: &'a InstalledShim) -> BoxedResult<'a, EarlierKey> {
        Box::pin(earlier_key(self, shim))
    }

    fn enrol<'a>(&'a self, shim: &'a InstalledShim, enrolment: Enrolment<'a>) -> BoxedResult<'a, ()> {
        Box::pin(enrol(self, shim, enrolment))
    }
}

async fn earlier_key(guest: &impl Guest, shim: &InstalledShim) -> Result<EarlierKey, PlatformError> {
    let output = guest.run(ACTION, CHECK_KEY, &[&shim.file]).await?.success(ACTION)?;
    match output.trim() {
        "accepted" => Ok(EarlierKey::Accepted),
        _ => Ok(EarlierKey::None),
    }
}

async fn enrol(
    guest: &impl Guest,
    shim: &InstalledShim,
    enrolment: Enrolment<'_>,
) -> Result<(), PlatformError> {
    let Enrolment { text, server, is_used } = enrolment;
    guest.redactor().add("enrolment", text.as_bytes());
    let file = format!("{}/{HOME_DIRECTORY}/private/enrolment", shim.home);
    let content = Bytes::from_owner(Zeroizing::new(text.as_bytes().to_vec()));
    let connected = async {
        guest.upload(ACTION, &file, content, &|_| {}).await?;
        let output = guest.run(ACTION, CONNECT, &[&file, &shim.file, server]).await?.success(ACTION)?;
        let stderr = guest.redactor().printable(output.trim());
        let why = format!(
            "the sandbox did not connect with its enrolment string within 10 s; check that it can reach the address in \
             `relay.advertise`. If it has the key of another enrolment, end that with `cofferdam kill`. The shim printed: {stderr}"
        );
        Err(PlatformError::Sandbox { action: ACTION, why })
    };
    let used = async {
        while !is_used() {
            sleep(POLL_INTERVAL).await;
        }
    };
    let use_string = async {
        guest.run(ACTION, MAKE_PRIVATE_FILES, &[&file]).await?.success(ACTION)?;
        tokio::select! {
            result = connected => if !is_used() { result? },
            () = used => {}
        }
        // This also lets the shim exit.
        guest.run(ACTION, FINISH, &[&file]).await?.success(ACTION)
    };
    with_temporary_files(guest, &[&file, &format!("{file}.wait")], use_string).await.map(drop)
}
