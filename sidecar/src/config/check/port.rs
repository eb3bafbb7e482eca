//! Addresses to listen on: `relay.tls` with `relay.advertise`, the address that sandboxes are told, and `admin.http`.

use relay_proto::address::{Address, Host, HostPort};

use super::Checker;
use crate::config::TlsRelay;
use crate::config::at::At;

pub(super) fn check_tls(
    checker: &mut Checker<'_, '_>,
    tls: Option<&At<String>>,
    advertise: Option<&At<String>>,
) -> Option<TlsRelay> {
    let advertised = advertise.map(|written| check_advertise(checker, written));
    let Some(written) = tls else {
        if let Some(written) = advertise
            && !checker.damage.touches(&["relay"])
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
            if !checker.damage.touches(&["relay"]) {
                let message = "`relay.tls` listens on every address, and sandboxes must be told one";
                let hint = "set `relay.advertise` to the HOST:PORT by which they reach this host";
                checker.add(&written.span, message, hint);
            }
            return None;
        }
        None => Address::Tls(listen.clone()),
    };
    Some(TlsRelay { listen, advertise })
}

/// It has no authentication, so it is for this host alone.
pub(super) fn check_admin_http(checker: &mut Checker<'_, '_>, written: &At<String>) -> Option<HostPort> {
    let Ok(place) = written.value.parse::<HostPort>() else {
        let hint = "write HOST:PORT, such as \"127.0.0.1:7480\"";
        checker.add(&written.span, "`admin.http` is not HOST:PORT", hint);
        return None;
    };
    let is_loopback = match &place.host {
        Host::Ip(address) => address.is_loopback(),
        Host::Name(name) => name.eq_ignore_ascii_case("localhost"),
    };
    if !is_loopback {
        let message = "`admin.http` must be a loopback address: it has no authentication";
        let hint =
            "write \"127.0.0.1:7480\"; for remote clients put a proxy with authentication in front of it";
        checker.add(&written.span, message, hint);
    }
    is_loopback.then_some(place)
}

/// `HOST:PORT`, or a whole link that a sandbox can dial.
fn check_advertise(checker: &mut Checker<'_, '_>, written: &At<String>) -> Option<Address> {
    let link = match written.value.parse::<HostPort>() {
        Ok(place) => Some(Address::Tls(place)),
        Err(_) => written.value.parse().ok(),
    };
    let host = match &link {
        Some(Address::Tls(place)) => Some(&place.host),
        Some(Address::WebSocket(place)) => Some(&place.host),
        _ => None,
    };
    match host {
        Some(host) if !is_unspecified(host) => return link,
        Some(_) => {
            let hint = "write the name or the address by which sandboxes reach this host";
            checker.add(&written.span, "`relay.advertise` is not an address that can be dialled", hint);
        }
        None => {
            let hint = "write HOST:PORT, or a link such as \"wss://relay.example.com/\"";
            checker.add(
                &written.span,
                "`relay.advertise` is neither HOST:PORT nor a link that sandboxes can dial",
                hint,
            );
        }
    }
    None
}

/// `0.0.0.0` and `[::]` are for listening only.
fn is_unspecified(host: &Host) -> bool {
    matches!(host, Host::Ip(address) if address.is_unspecified())
}
