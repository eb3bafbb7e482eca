//! Checks addresses: `relay.tls` (to listen on), `relay.advertise` (for sandboxes to connect to) and `admin.http`.

use relay_proto::address::{Address, Host, HostPort};

use super::Checker;
use crate::config::TlsRelay;
use crate::config::spanned::Spanned;

pub(super) fn check_tls(
    checker: &mut Checker<'_, '_>,
    tls: Option<&Spanned<String>>,
    advertise: Option<&Spanned<String>>,
) -> Option<TlsRelay> {
    let advertised = advertise.map(|written| check_advertise(checker, written));
    let Some(written) = tls else {
        if let Some(written) = advertise
            && !checker.removed.affects(&["relay"])
        {
            let message = "`relay.advertise` is set without `relay.tls`";
            checker.add(&written.span, message, "set `relay.tls` to the HOST:PORT to listen on");
        }
        return None;
    };
    let Ok(listen) = written.value.parse::<HostPort>() else {
        let hint = "write HOST:PORT, such as \"0.0.0.0:7443\" or \"[::]:7443\"";
        checker.add(&written.span, "`relay.tls` is not HOST:PORT", hint);
        return None;
    };
    let advertise = match advertised {
        Some(advertise) => advertise?,
        None if is_unspecified(&listen.host) => {
            if !checker.removed.affects(&["relay"]) {
                let message =
                    "`relay.tls` listens on every address, so the address for sandboxes is not known";
                let hint = "set `relay.advertise` to the HOST:PORT by which sandboxes reach this host";
                checker.add(&written.span, message, hint);
            }
            return None;
        }
        None => Address::Tls(listen.clone()),
    };
    Some(TlsRelay { listen, advertise })
}

/// Checks `admin.http`. This port has no authentication, so it must be on a loopback address.
pub(super) fn check_admin_http(checker: &mut Checker<'_, '_>, written: &Spanned<String>) -> Option<HostPort> {
    let Ok(address) = written.value.parse::<HostPort>() else {
        let hint = "write HOST:PORT, such as \"127.0.0.1:7480\"";
        checker.add(&written.span, "`admin.http` is not HOST:PORT", hint);
        return None;
    };
    let is_loopback = match &address.host {
        Host::Ip(ip) => ip.is_loopback(),
        Host::Name(name) => name.eq_ignore_ascii_case("localhost"),
    };
    if !is_loopback {
        let message = "`admin.http` must be a loopback address: it has no authentication";
        let hint =
            "write \"127.0.0.1:7480\"; for remote clients put a proxy with authentication in front of it";
        checker.add(&written.span, message, hint);
    }
    is_loopback.then_some(address)
}

/// Accepts `HOST:PORT`, or a `tls://` or `wss://` address.
fn check_advertise(checker: &mut Checker<'_, '_>, written: &Spanned<String>) -> Option<Address> {
    let address = match written.value.parse::<HostPort>() {
        Ok(address) => Some(Address::Tls(address)),
        Err(_) => written.value.parse().ok(),
    };
    let host = match &address {
        Some(Address::Tls(address)) => Some(&address.host),
        Some(Address::WebSocket(address)) => Some(&address.host),
        _ => None,
    };
    match host {
        Some(host) if !is_unspecified(host) => return address,
        Some(_) => {
            let hint = "write the name or the address by which sandboxes reach this host";
            checker.add(&written.span, "`relay.advertise` is not an address that can be dialled", hint);
        }
        None => {
            let hint = "write HOST:PORT, or an address such as \"wss://relay.example.com/\"";
            checker.add(
                &written.span,
                "`relay.advertise` is neither HOST:PORT nor an address that sandboxes can dial",
                hint,
            );
        }
    }
    None
}

/// `0.0.0.0` and `[::]` can be listened on but not connected to.
fn is_unspecified(host: &Host) -> bool {
    matches!(host, Host::Ip(address) if address.is_unspecified())
}
