//! The address of a platform's control API, and whether two tables of the configuration lead to the same platform, so that an
//! id names the same sandbox on both.
//!
//! What must stay true: two spellings of one address are the same platform, whichever API keys the tables have. Two names of
//! one host cannot be recognised, because names may resolve differently at each look-up.

use http::Uri;

use crate::{PlatformKind, PlatformSettings};

const PUBLIC_DAYTONA_API: &str = "https://app.daytona.io/api";
const PUBLIC_E2B_API: &str = "https://api.e2b.app";

/// An address without what different spellings of it may differ in.
#[derive(Debug, Eq, PartialEq)]
struct ComparableAddress {
    scheme: Option<String>,
    host: Option<String>,
    port: Option<u16>,
    path: String,
}

impl PlatformSettings {
    /// The address of the control API: the configured one, or else the platform's public one.
    pub(crate) fn effective_api_url(&self) -> Uri {
        self.api_url.clone().unwrap_or_else(|| match self.kind {
            PlatformKind::Daytona => Uri::from_static(PUBLIC_DAYTONA_API),
            PlatformKind::E2b => Uri::from_static(PUBLIC_E2B_API),
        })
    }

    /// Whether an id names the same sandbox on both platforms: they have the same control API, or the services in sandboxes
    /// are reached at the same configured address.
    pub fn is_same_platform(&self, other: &Self) -> bool {
        let same_api = || comparable(&self.effective_api_url()) == comparable(&other.effective_api_url());
        let same_sandbox_url = || match (&self.sandbox_url, &other.sandbox_url) {
            (Some(one), Some(another)) => comparable(one) == comparable(another),
            _ => false,
        };
        self.kind == other.kind && (same_api() || same_sandbox_url())
    }
}

fn comparable(address: &Uri) -> ComparableAddress {
    let scheme = address.scheme_str().map(str::to_ascii_lowercase);
    let default_port = match scheme.as_deref() {
        Some("http") => Some(80),
        Some("https") => Some(443),
        _ => None,
    };
    ComparableAddress {
        host: address.host().map(|host| host.trim_end_matches('.').to_ascii_lowercase()),
        port: address.port_u16().or(default_port),
        path: address.path().trim_end_matches('/').to_owned(),
        scheme,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(kind: PlatformKind, api: &str, sandbox: &str) -> PlatformSettings {
        let uri = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        PlatformSettings { kind, api_url: uri(api), sandbox_url: uri(sandbox) }
    }

    #[test]
    fn two_spellings_of_one_address_are_one_platform() {
        let e2b = |api: &str, sandbox: &str| settings(PlatformKind::E2b, api, sandbox);
        for api in ["", "https://api.e2b.app", "https://API.e2b.app:443/", "HTTPS://api.e2b.app./"] {
            let public = e2b("https://api.e2b.app/", "https://sandbox.example");
            assert!(e2b(api, "").is_same_platform(&public), "{api}");
        }
        assert!(e2b("", "").is_same_platform(&e2b("", "")));
        assert!(e2b("https://a", "https://box:1").is_same_platform(&e2b("https://b", "https://box:1/")));
        let daytona = settings(PlatformKind::Daytona, "", "");
        let written_out = settings(PlatformKind::Daytona, "https://app.daytona.io/api/", "");
        assert!(daytona.is_same_platform(&written_out));
    }

    #[test]
    fn another_kind_host_port_scheme_or_path_is_another_platform() {
        let here = settings(PlatformKind::E2b, "https://api.example:8443/e2b", "https://box.example");
        for other in [
            settings(PlatformKind::Daytona, "https://api.example:8443/e2b", "https://box.example"),
            settings(PlatformKind::E2b, "https://other.example:8443/e2b", ""),
            settings(PlatformKind::E2b, "https://api.example/e2b", ""),
            settings(PlatformKind::E2b, "http://api.example:8443/e2b", ""),
            settings(PlatformKind::E2b, "https://api.example:8443/E2b", ""),
            settings(PlatformKind::E2b, "", "https://other.example"),
        ] {
            assert!(!here.is_same_platform(&other), "{other:?}");
        }
    }
}
