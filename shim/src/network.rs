//! Options for links over a network, from the command line and the environment.

#[cfg(feature = "tls")]
use relay_carriage::proxy::{InvalidProxy, Proxies};
use relay_proto::address::{Address, HostPort, ListenAddress};
#[cfg(feature = "tls")]
use relay_proto::key::{InvalidKey, PublicKey};

/// The options for links over a network.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Network {
    #[cfg(feature = "tls")]
    pub proxies: Proxies,
    /// The key of the sidecar that may dial in.
    #[cfg(feature = "tls")]
    pub pin: Option<PublicKey>,
}

/// Whether a port may be opened that other machines can reach.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Expose {
    No,
    Yes,
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkUsageError {
    #[error(
        "listen on {0}: other machines could connect there; give a loopback address, or add --expose if the \
         platform forwards connections to this address"
    )]
    Exposed(HostPort),
    #[cfg(feature = "tls")]
    #[error("invalid {origin}: {source}; use the key that `cofferdam key` prints on the host")]
    InvalidPin { origin: &'static str, source: InvalidKey },
    #[cfg(feature = "tls")]
    #[error("invalid --proxy: {0}")]
    InvalidProxy(#[from] InvalidProxy),
    #[cfg(feature = "tls")]
    #[error(
        "listen for the sidecar: any program could dial in; give the sidecar's key with --pin KEY or COFFERDAM_PIN, as \
         `cofferdam key` prints it on the host"
    )]
    Unpinned,
}

/// The options before they are checked.
#[derive(Debug)]
pub(crate) struct RawNetworkOptions<'a> {
    pub(crate) relay: Option<&'a Address>,
    pub(crate) proxy: Option<String>,
    /// The flag or variable that holds the pin, and its text.
    pub(crate) pin: Option<(&'static str, String)>,
    pub(crate) expose: Expose,
}

impl Network {
    pub(crate) fn read(
        raw: RawNetworkOptions<'_>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, NetworkUsageError> {
        let RawNetworkOptions { relay, proxy, pin, expose } = raw;
        // A machine's vsock can be reached only by its host and the machine itself.
        if let Some(Address::Listen(ListenAddress::Tcp(endpoint))) = relay
            && !endpoint.host.is_loopback()
            && expose == Expose::No
        {
            return Err(NetworkUsageError::Exposed(endpoint.clone()));
        }
        #[cfg(not(feature = "tls"))]
        return {
            let _ = (proxy, pin, variable);
            Ok(Self {})
        };
        #[cfg(feature = "tls")]
        {
            let proxies = match proxy {
                Some(url) => Proxies::Always(url.parse()?),
                None => Proxies::from_environment(variable),
            };
            let pin = match pin {
                Some((origin, text)) => {
                    let key =
                        text.parse().map_err(|source| NetworkUsageError::InvalidPin { origin, source })?;
                    Some(key)
                }
                None => None,
            };
            if matches!(relay, Some(Address::Listen(_))) && pin.is_none() {
                return Err(NetworkUsageError::Unpinned);
            }
            Ok(Self { proxies, pin })
        }
    }
}
