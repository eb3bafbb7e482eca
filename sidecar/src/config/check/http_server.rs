//! Checks servers with a `url`: their address, and that credentials are not sent unencrypted.

use cofferdam_net::{AddressPolicy, Host, is_reserved_header};
use cofferdam_secrets::Template;
use cofferdam_servers::spec::HttpServer;
use http::{HeaderName, HeaderValue, Uri};

use super::servers::RawTemplates;
use super::{Checker, servers};
use crate::config::document::dotted;
use crate::config::spanned::Spanned;

pub(super) fn check_http(
    checker: &mut Checker<'_, '_>,
    table: &str,
    written: &Spanned<String>,
    raw_headers: RawTemplates,
    private: Option<Spanned<bool>>,
) -> Option<HttpServer> {
    let url = check_url(checker, &format!("{table}.url"), written);
    let headers = check_headers(checker, table, raw_headers, url.as_ref());
    let addresses = match private {
        Some(Spanned { value: true, .. }) => AddressPolicy::PrivateToo,
        Some(Spanned { value: false, .. }) | None => AddressPolicy::PublicOnly,
    };
    Some(HttpServer { url: url?, headers, addresses })
}

/// Checks the headers of a server or of one of its scopes; `table` is its path in the file.
pub(super) fn check_headers(
    checker: &mut Checker<'_, '_>,
    table: &str,
    raw_headers: RawTemplates,
    url: Option<&Uri>,
) -> Vec<(HeaderName, Template)> {
    if let Some(url) = url
        && url.scheme_str() == Some("http")
        && !is_loopback(url)
        && let Some(header) = raw_headers.keys().next()
    {
        let message = format!("`{table}.headers` would cross the network unencrypted");
        checker.add(
            &header.span,
            message,
            "use an `https://` URL; `http://` carries headers to loopback only",
        );
    }
    let mut headers: Vec<(HeaderName, Template)> = Vec::new();
    for (name, written) in raw_headers {
        let key = format!("{table}.headers.{}", dotted(&[&name.value]));
        let template = servers::check_template(checker, &key, &written, &[]);
        let is_sendable = |text: &str| HeaderValue::from_str(text).is_ok();
        if template.as_ref().is_some_and(|template| !template.literals().all(is_sendable)) {
            let hint = "a header holds visible ASCII and spaces, no line breaks";
            checker.add(&written.span, format!("`{key}` cannot be sent in a header"), hint);
        }
        let Some(header) = check_header(checker, &key, &name) else { continue };
        if headers.iter().any(|(earlier, _)| *earlier == header) {
            let hint = "case makes no difference in a header's name: keep one of them";
            checker.add(&name.span, format!("`{key}` is set twice"), hint);
        }
        headers.extend(template.map(|template| (header, template)));
    }
    headers
}

fn check_url(checker: &mut Checker<'_, '_>, key: &str, written: &Spanned<String>) -> Option<Uri> {
    let text = &written.value;
    let mut refuse = |message: &str, hint: &str| {
        checker.add(&written.span, format!("`{key}` {message}"), hint);
        None
    };
    if text.contains(['{', '}']) {
        return refuse(
            "holds a brace, but templates are not supported there",
            "pass credentials in `headers`",
        );
    }
    if text.contains('#') {
        return refuse("has a fragment, which is never sent", "leave out what begins with `#`");
    }
    let Ok(url) = text.parse::<Uri>() else {
        return refuse("is not a URL", "write one such as `https://mcp.example.com/mcp`");
    };
    if !matches!(url.scheme_str(), Some("http" | "https")) {
        return refuse(
            "is neither `https://` nor `http://`",
            "write one such as `https://mcp.example.com/mcp`",
        );
    }
    if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return refuse("holds a user or a password", "pass credentials in `headers`, from a secret");
    }
    Some(url)
}

fn check_header(checker: &mut Checker<'_, '_>, key: &str, written: &Spanned<String>) -> Option<HeaderName> {
    let Ok(header) = HeaderName::try_from(&written.value) else {
        checker.add(
            &written.span,
            format!("`{key}` is not the name of a header"),
            "use letters, digits and `-`",
        );
        return None;
    };
    if is_reserved_header(&header) {
        let hint = "leave it out: it is part of the HTTP or MCP protocol";
        checker.add(&written.span, format!("`{key}` is set by the sidecar itself"), hint);
        return None;
    }
    Some(header)
}

/// Whether the URL's host, as it is written, is a loopback address. The resolved address is checked at every connection.
pub(super) fn is_loopback(url: &Uri) -> bool {
    Host::parse(url.host().unwrap_or_default()).is_loopback()
}
