//! A sandbox that connects to the sidecar by itself: the shim is in it, and an enrolment string gives it a key.
//!
//! What must stay true: the enrolment string is a secret until it is used. It goes into the sandbox as the content of a file
//! that only the sandbox's user can read, never as a parameter, an environment variable or a path, which platforms log; the
//! shim removes the file when it has read the string, and a script removes it in any case.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;
use zeroize::Zeroizing;

use crate::PlatformError;
use crate::guest::Guest;
use crate::install::{HOME_DIRECTORY, InstalledShim};

/// A running sandbox with the shim in it, in which nothing was started.
pub struct PreparedSandbox {
    guest: Box<dyn Enrolling>,
    shim: InstalledShim,
}

type Working<'a, T> = Pin<Box<dyn Future<Output = Result<T, PlatformError>> + Send + 'a>>;

/// What is done in the sandbox of any platform.
trait Enrolling: Send + Sync {
    fn earlier_key<'a>(&'a self, shim: &'a InstalledShim) -> Working<'a, EarlierKey>;

    fn enrol<'a>(&'a self, shim: &'a InstalledShim, enrolment: Enrolment<'a>) -> Working<'a, ()>;
}

/// An enrolment string, and how it is used.
struct Enrolment<'a> {
    text: &'a str,
    /// The server of the link with which it is shown.
    server: &'a str,
    is_used: &'a (dyn Fn() -> bool + Send + Sync),
}

const DOING: &str = "enrol the sandbox";

/// Between looks whether the enrolment string was used.
const USE_POLL: Duration = Duration::from_millis(50);

/// Makes two empty files that only the sandbox's user can read, in a directory of the same kind: the one for the enrolment
/// string, and one that exists while the shim is to wait. Parameter: the file.
const MAKE_PRIVATE_FILES: &str = r#"umask 077
mkdir -p "${1%/*}" && chmod 0700 "${1%/*}" && rm -f "$1" && : > "$1" && : > "$1.wait"
"#;

/// Connects to the sidecar with the enrolment string, which makes the sandbox's key valid, and stays connected for as long as
/// it is to wait, at most 10 seconds. Prints the last error messages. Parameters: the file, the shim, a server.
const CONNECT: &str = r#"{ n=0; while [ -e "$1.wait" ] && [ "$n" -lt 10 ]; do sleep 1; n=$((n + 1)); done; } |
  COFFERDAM_ENROLL_FILE="$1" "$2" --server "$3" 2>&1 > /dev/null | tail -n 3
rm -f "$1" "$1.wait"
"#;

/// Succeeds if the sandbox has a key that the sidecar accepts. Parameter: the shim.
const CHECK_KEY: &str = r#""$1" servers > /dev/null 2>&1 && echo accepted
exit 0
"#;

/// Ends the wait. Parameter: the file.
const FINISH: &str = r#"rm -f "$1.wait" "$1""#;

/// Whether the sandbox has a key from an earlier enrolment that the sidecar still accepts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EarlierKey {
    Accepted,
    None,
}

impl PreparedSandbox {
    pub(crate) fn new(guest: impl Guest + Send + 'static, shim: InstalledShim) -> Self {
        Self { guest: Box::new(guest), shim }
    }

    pub async fn earlier_key(&self) -> Result<EarlierKey, PlatformError> {
        self.guest.earlier_key(&self.shim).await
    }

    /// Lets the shim in the sandbox connect with this enrolment string, until `is_used` holds: the sidecar knows when. From
    /// then on every shim of the same user connects with the key that this one has stored. The link is for `server`, of which
    /// no process is started.
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
    fn earlier_key<'a>(&'a self, shim: &'a InstalledShim) -> Working<'a, EarlierKey> {
        Box::pin(earlier_key(self, shim))
    }

    fn enrol<'a>(&'a self, shim: &'a InstalledShim, enrolment: Enrolment<'a>) -> Working<'a, ()> {
        Box::pin(enrol(self, shim, enrolment))
    }
}

async fn earlier_key(guest: &impl Guest, shim: &InstalledShim) -> Result<EarlierKey, PlatformError> {
    let output = guest.run(DOING, CHECK_KEY, &[&shim.file]).await?.success(DOING)?;
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
    guest.redactor().learn("enrolment", text.as_bytes());
    let file = format!("{}/{HOME_DIRECTORY}/private/enrolment", shim.home);
    guest.run(DOING, MAKE_PRIVATE_FILES, &[&file]).await?.success(DOING)?;
    let content = Bytes::from_owner(Zeroizing::new(text.as_bytes().to_vec()));
    let connected = async {
        guest.upload(DOING, &file, content, &|_| {}).await?;
        let output = guest.run(DOING, CONNECT, &[&file, &shim.file, server]).await?.success(DOING)?;
        let said = guest.redactor().printable(output.trim());
        let why = format!(
            "the sandbox did not connect with its enrolment string within 10 s; may it reach the link in `relay.advertise`? If it \
             has the key of another enrolment, end that with `cofferdam kill`. Its shim says: {said}"
        );
        Err(PlatformError::Sandbox { doing: DOING, why })
    };
    let used = async {
        while !is_used() {
            sleep(USE_POLL).await;
        }
    };
    let result = tokio::select! {
        result = connected => if is_used() { Ok(()) } else { result },
        () = used => Ok(()),
    };
    // The caller ends an enrolment that was not used, so a string that stays there is of no use.
    let _ = guest.run(DOING, FINISH, &[&file]).await;
    result
}
