//! Tests of the routes, and of encoding and decoding requests.

use super::*;
use crate::daemon::admin::PipeVia;
use crate::daemon::attachments::request::{AttachmentRequest, Route as PipeRoute};
use crate::daemon::attachments::status::Kind;

fn every_request() -> Vec<AdminRequest> {
    vec![
        AdminRequest::Attach { grant: "dev".into(), name: "box".into(), ttl_ms: Some(5) },
        AdminRequest::Attachments,
        AdminRequest::AttachPlatform {
            attachment: AttachmentRequest {
                kind: Kind::Daytona,
                platform: None,
                sandbox: "x".into(),
                grant: "dev".into(),
                name: None,
                ttl_ms: None,
                resume: true,
                keep_awake: true,
                via: PipeRoute::Ssh,
                shim: None,
                harness: None,
            },
            detach: true,
        },
        AdminRequest::CreateToken { grants: vec!["dev".into()], name: None, ttl_ms: None },
        AdminRequest::EndAttachment { name: "box 1".into() },
        AdminRequest::EndEnrolment { enrolment: "a b/../%2f ü".into() },
        AdminRequest::Enroll {
            grant: "dev".into(),
            name: Some("box".into()),
            ttl_ms: None,
            ticket_ttl_ms: 7,
            socket: Some("/run/box".into()),
        },
        AdminRequest::Enrolments,
        AdminRequest::Kill { session: "s1".into() },
        AdminRequest::Pipe { enrolment: "e1".into(), via: PipeVia::Dial },
        AdminRequest::Reload,
        AdminRequest::RevokeToken { token: "t1".into() },
        AdminRequest::Sessions,
        AdminRequest::Tokens,
        AdminRequest::Watch,
    ]
}

#[test]
fn every_request_is_decoded_as_it_was_encoded_and_every_route_is_used() {
    let mut used = Vec::new();
    for request in every_request() {
        let EncodedRequest { route, path, body } = encode(&request);
        used.push(route.request);
        let read = find(&route.method, &path).unwrap().decode(&body);
        assert_eq!(read.unwrap(), request);
    }
    for route in &ROUTES {
        assert!(used.contains(&route.request), "no request uses the route of `{}`", route.request);
    }
}

#[test]
fn a_whole_number_is_accepted_however_it_is_written() {
    for text in ["2000", "2000.0", "2e3"] {
        let body = format!("{{\"grant\": \"dev\", \"ttl-ms\": {text}}}");
        let read = find(&Method::POST, "/v1/enrolments").unwrap().decode(body.as_bytes());
        assert!(matches!(read.unwrap(), AdminRequest::Enroll { ttl_ms: Some(2000), .. }), "{text}");
    }
    for text in ["2000.5", "-1", "1e300", "\"2000\""] {
        let body = format!("{{\"grant\": \"dev\", \"ttl-ms\": {text}}}");
        assert!(find(&Method::POST, "/v1/enrolments").unwrap().decode(body.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn unknown_paths_and_methods_are_refused() {
    for (method, path, status) in [
        (Method::GET, "/", 404),
        (Method::GET, "/v1/sessions/", 404),
        (Method::GET, "/v2/sessions", 404),
        (Method::DELETE, "/v1/enrolments/", 404),
        (Method::DELETE, "/v1/enrolments/%zz", 404),
        (Method::DELETE, "/v1/enrolments/%ff", 404),
        (Method::DELETE, "/v1/enrolments/a/b", 404),
        (Method::PUT, "/v1/enrolments", 405),
        (Method::GET, "/v1/kill", 405),
    ] {
        assert_eq!(
            find(&method, path).unwrap_err().into_response().status().as_u16(),
            status,
            "{method} {path}"
        );
    }
}

#[test]
fn unknown_and_misplaced_fields_are_refused() {
    for (method, path, body) in [
        (Method::POST, "/v1/kill", r#"{"session": "s", "force": true}"#),
        (Method::POST, "/v1/kill", r#"{"do": "reload", "session": "s"}"#),
        (Method::POST, "/v1/kill", r#"["s"]"#),
        (Method::POST, "/v1/kill", "{}"),
        (Method::POST, "/v1/reload", r#"{"now": true}"#),
        (Method::POST, "/v1/attach/e1/pipe", r#"{"enrolment": "e2"}"#),
        (Method::GET, "/v1/sessions", r#"{"all": true}"#),
    ] {
        let refused = find(&method, path).unwrap().decode(body.as_bytes()).unwrap_err();
        assert_eq!(refused.into_response().status(), StatusCode::BAD_REQUEST, "{path} {body}");
    }
}
