//! The table of routes, and the encoding of requests and responses in HTTP. Client, server and the OpenAPI document use it.
//!
//! What must stay true: each kind of request has one route; a field is either in the path or in the body, and unknown
//! fields are refused.

use std::fmt::Write as _;

use cofferdam_base::text::percent_encoded_text;
use http::{Method, StatusCode};
use serde_json::{Map, Value};

use super::error::{ApiError, ErrorBody};
use super::{AdminRequest, AdminResponse};

/// One route.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) method: Method,
    /// At most one segment is variable: `{FIELD}` stands for the value of this field of the request.
    pub(super) path: &'static str,
    /// The request's name in [`AdminRequest`].
    pub(super) request: &'static str,
    /// The response's name in [`AdminResponse`].
    pub(super) response: &'static str,
    pub(super) kind: RouteKind,
    pub(super) access: Access,
    pub(super) summary: &'static str,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RouteKind {
    Json,
    /// The response is a stream of server-sent events.
    Events,
    /// The connection becomes a stream of this protocol.
    Upgrade(&'static str),
}

/// Which callers may use a route.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Access {
    /// Not for tokens.
    Administrator,
    /// Also for tokens, within their grants.
    Grants,
}

/// The upgrade protocol of a connection that keeps a sandbox attached: each event is sent as a JSON line.
pub(super) const HOLD: &str = "cofferdam-hold";
/// The upgrade protocol of a connection that follows an attachment: each status is sent as a JSON line.
pub(super) const FOLLOW: &str = "cofferdam-attachment";
/// The upgrade protocol of a connection that is a pipe into a sandbox.
pub(super) const PIPE: &str = "cofferdam-pipe";
/// The path of the OpenAPI document.
pub(super) const DOCUMENT: &str = "/v1/openapi.json";

pub(super) static ROUTES: [Route; 15] = [
    Route {
        method: Method::POST,
        path: "/v1/attach",
        request: "attach",
        response: "attaching",
        kind: RouteKind::Upgrade(HOLD),
        access: Access::Grants,
        summary: "Keep a sandbox attached for as long as this connection is open",
    },
    Route {
        method: Method::POST,
        path: "/v1/attach/{enrolment}/pipe",
        request: "pipe",
        response: "piped",
        kind: RouteKind::Upgrade(PIPE),
        access: Access::Grants,
        summary: "Turn this connection into the pipe of an attached sandbox",
    },
    Route {
        method: Method::GET,
        path: "/v1/attachments",
        request: "attachments",
        response: "attachments",
        kind: RouteKind::Json,
        access: Access::Grants,
        summary: "List the attachments of sandboxes on platforms",
    },
    Route {
        method: Method::POST,
        path: "/v1/attachments",
        request: "attach-platform",
        response: "attachment",
        kind: RouteKind::Upgrade(FOLLOW),
        access: Access::Grants,
        summary: "Attach a sandbox of a platform and follow the attachment's status",
    },
    Route {
        method: Method::DELETE,
        path: "/v1/attachments/{name}",
        request: "end-attachment",
        response: "killed",
        kind: RouteKind::Json,
        access: Access::Grants,
        summary: "End an attachment with its session and enrolment",
    },
    Route {
        method: Method::GET,
        path: "/v1/enrolments",
        request: "enrolments",
        response: "enrolments",
        kind: RouteKind::Json,
        access: Access::Grants,
        summary: "List the enrolments: which sandboxes may connect",
    },
    Route {
        method: Method::POST,
        path: "/v1/enrolments",
        request: "enroll",
        response: "enrolled",
        kind: RouteKind::Json,
        access: Access::Grants,
        summary: "Enrol one sandbox",
    },
    Route {
        method: Method::DELETE,
        path: "/v1/enrolments/{enrolment}",
        request: "end-enrolment",
        response: "killed",
        kind: RouteKind::Json,
        access: Access::Grants,
        summary: "End an enrolment and its session: links, server processes and credentials",
    },
    Route {
        method: Method::GET,
        path: "/v1/events",
        request: "watch",
        response: "watching",
        kind: RouteKind::Events,
        access: Access::Grants,
        summary: "Watch enrolments, sessions, links and attached sandboxes",
    },
    Route {
        method: Method::POST,
        path: "/v1/kill",
        request: "kill",
        response: "killed",
        kind: RouteKind::Json,
        access: Access::Grants,
        summary: "End a session and its enrolment: links, server processes and credentials",
    },
    Route {
        method: Method::POST,
        path: "/v1/reload",
        request: "reload",
        response: "reloaded",
        kind: RouteKind::Json,
        access: Access::Administrator,
        summary: "Read the configuration again",
    },
    Route {
        method: Method::GET,
        path: "/v1/sessions",
        request: "sessions",
        response: "sessions",
        kind: RouteKind::Json,
        access: Access::Grants,
        summary: "List links with their sessions, and attached sandboxes without links",
    },
    Route {
        method: Method::GET,
        path: "/v1/tokens",
        request: "tokens",
        response: "tokens",
        kind: RouteKind::Json,
        access: Access::Administrator,
        summary: "List the bearer tokens of this API",
    },
    Route {
        method: Method::POST,
        path: "/v1/tokens",
        request: "create-token",
        response: "token-created",
        kind: RouteKind::Json,
        access: Access::Administrator,
        summary: "Create a bearer token for some grants",
    },
    Route {
        method: Method::DELETE,
        path: "/v1/tokens/{token}",
        request: "revoke-token",
        response: "token-revoked",
        kind: RouteKind::Json,
        access: Access::Administrator,
        summary: "Revoke a bearer token",
    },
];

/// A route that matches a path, with the value of its variable segment.
#[derive(Debug)]
pub(super) struct MatchedRoute {
    pub(super) route: &'static Route,
    variable: Option<(&'static str, String)>,
}

/// A request as the client sends it.
#[derive(Debug)]
pub(super) struct EncodedRequest {
    pub(super) route: &'static Route,
    pub(super) path: String,
    /// JSON; empty for a request without a body.
    pub(super) body: Vec<u8>,
}

impl Route {
    pub(super) fn has_body(&self) -> bool {
        self.method == Method::POST && self.request != "reload"
    }

    /// The field that is in the path.
    pub(super) fn variable(&self) -> Option<&'static str> {
        self.path.split('/').find_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
    }

    /// Matches a path against this route. Returns the field and value of the variable segment, `Some(None)` for a route
    /// without such a segment, `None` if the path does not match.
    fn matches(&self, path: &str) -> Option<Option<(&'static str, String)>> {
        let (mut ours, mut theirs) = (self.path.split('/'), path.split('/'));
        let mut variable = None;
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return Some(variable),
                (Some(our), Some(their)) => {
                    match our.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
                        Some(name) => variable = Some((name, percent_decoded(their)?)),
                        None if our == their => {}
                        None => return None,
                    }
                }
                _ => return None,
            }
        }
    }
}

/// Finds the route of a request.
pub(super) fn find(method: &Method, path: &str) -> Result<MatchedRoute, ApiError> {
    let mut allowed: Vec<&str> = Vec::new();
    for route in &ROUTES {
        if let Some(variable) = route.matches(path) {
            if route.method == *method {
                return Ok(MatchedRoute { route, variable });
            }
            allowed.push(route.method.as_str());
        }
    }
    match allowed.is_empty() {
        true => {
            Err(ApiError::not_found("there is no such path")
                .with_hint(format!("{DOCUMENT} describes all paths")))
        }
        false => Err(ApiError::method_not_allowed(&allowed.join(", "))),
    }
}

impl MatchedRoute {
    /// Decodes the request from its path and its body.
    pub(super) fn decode(self, body: &[u8]) -> Result<AdminRequest, ApiError> {
        let malformed = |why: String| {
            ApiError::new(
                StatusCode::BAD_REQUEST,
                "body_malformed",
                format!("cannot read the request's body: {why}"),
            )
            .with_hint(format!("{DOCUMENT} describes the body; do client and sidecar have the same version?"))
        };
        let mut fields = match body.is_empty() {
            true => Map::new(),
            false => serde_json::from_slice::<Map<String, Value>>(body)
                .map_err(|error| malformed(error.to_string()))?,
        };
        if !self.route.has_body() && !fields.is_empty() {
            return Err(malformed("this request has no fields".into()));
        }
        if fields.contains_key(REQUEST_TAG) {
            return Err(malformed(format!("there is no field `{REQUEST_TAG}`")));
        }
        fields.values_mut().for_each(normalize_integer);
        fields.insert(REQUEST_TAG.into(), self.route.request.into());
        if let Some((name, value)) = self.variable
            && fields.insert(name.into(), value.into()).is_some()
        {
            return Err(malformed(format!("the field `{name}` is in the path")));
        }
        serde_json::from_value(fields.into()).map_err(|error| malformed(error.to_string()))
    }
}

/// Encodes a request for its route.
pub(super) fn encode(request: &AdminRequest) -> EncodedRequest {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(request) else {
        unreachable!("a request is an object");
    };
    let tag = fields.remove(REQUEST_TAG);
    let route = ROUTES
        .iter()
        .find(|route| tag.as_ref().and_then(Value::as_str) == Some(route.request))
        .expect("every request has a route");
    let mut path = route.path.to_owned();
    if let Some(name) = route.variable() {
        let value = fields.remove(name);
        let value = value.as_ref().and_then(Value::as_str).unwrap_or_default();
        path = path.replace(&format!("{{{name}}}"), &percent_encoded_text(value, b""));
    }
    fields.retain(|_, value| !value.is_null());
    let body = match route.has_body() {
        true => serde_json::to_vec(&fields).expect("fields are plain data"),
        false => Vec::new(),
    };
    EncodedRequest { route, path, body }
}

/// Encodes the body of a successful response.
pub(super) fn encode_response(response: &AdminResponse) -> Vec<u8> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(response) else {
        unreachable!("a response is an object");
    };
    fields.remove(RESPONSE_TAG);
    serde_json::to_vec(&fields).expect("fields are plain data")
}

/// Decodes the response to a request of this route.
pub(super) fn decode_response(
    route: &Route,
    status: StatusCode,
    body: &[u8],
) -> Result<AdminResponse, serde_json::Error> {
    if !status.is_success() {
        let ErrorBody { error } = serde_json::from_slice(body)?;
        let mut why = error.message;
        if let Some(hint) = error.hint {
            // Writing to a String cannot fail.
            let _ = write!(why, "; {hint}");
        }
        return Ok(AdminResponse::Refused { why });
    }
    let mut fields: Map<String, Value> = serde_json::from_slice(body)?;
    fields.insert(RESPONSE_TAG.into(), route.response.into());
    serde_json::from_value(fields.into())
}

/// The tag of [`AdminRequest`].
pub(super) const REQUEST_TAG: &str = "do";
/// The tag of [`AdminResponse`].
pub(super) const RESPONSE_TAG: &str = "answer";

/// Converts a whole number to an integer, because JSON does not distinguish `2000.0` from `2000`.
fn normalize_integer(value: &mut Value) {
    const EXACT_BELOW: f64 = (1_u64 << 53) as f64;
    if let Some(number) =
        value.as_f64().filter(|number| (0.0..EXACT_BELOW).contains(number) && number.fract() == 0.0)
    {
        *value = (number as u64).into();
    }
}

/// `None` if the text is empty, not UTF-8 or wrongly percent-encoded.
fn percent_decoded(segment: &str) -> Option<String> {
    let mut bytes = segment.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
