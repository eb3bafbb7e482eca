//! Requests of a server inside another message: the member `inputRequests` of a result, as the stateless era of MCP has
//! them instead of messages of their own.
//!
//! What must stay true: a request that some parser could find here is returned, or the message is refused.

use std::borrow::Cow;
use std::ops::Range;

use super::{MalformedReason, keys};
use crate::json::{self, Rules, Scanner, Token};
use crate::limits;

/// One request of a server to the harness, inside a message.
#[derive(Clone, Debug)]
pub struct InputRequest<'a> {
    pub method: Cow<'a, str>,
    /// The span of the request in the message.
    pub span: Range<usize>,
    /// The span of its `params` in the message.
    pub params: Option<Range<usize>>,
}

const INPUT_REQUESTS: &str = "inputRequests";

/// The requests in a result, or in the parameters of a notification, whose span in the message is `body`. `resultType`,
/// which says whether a result has requests, is not read: it could be read in several ways.
pub fn input_requests(message: &[u8], body: Range<usize>) -> Result<Vec<InputRequest<'_>>, MalformedReason> {
    let mut requests = Vec::new();
    let Some(all) = only_member(message, body, INPUT_REQUESTS)? else { return Ok(requests) };
    if &message[all.clone()] == b"null" {
        return Ok(requests);
    }
    let mut names = Vec::new();
    let mut scanner = object(message, all.clone())?.ok_or(MalformedReason::InputRequestsNotRequests)?;
    while let Some(name) = scanner.key()? {
        let span = inside(&all, scanner.value()?.span);
        names.push(name.decode(scanner.source()).unwrap_or(Cow::Borrowed("\u{fffd}")));
        requests.push(input_request(message, span)?);
    }
    keys::check_unique(&names)?;
    Ok(requests)
}

fn input_request(message: &[u8], span: Range<usize>) -> Result<InputRequest<'_>, MalformedReason> {
    if object(message, span.clone())?.is_none() {
        return Err(MalformedReason::InputRequestsNotRequests);
    }
    let method = only_member(message, span.clone(), "method")?;
    let method =
        method.and_then(|method| json::text(message, method)).ok_or(MalformedReason::MethodNotText)?;
    if method.len() > limits::MAX_METHOD {
        return Err(MalformedReason::MethodTooLong { limit: limits::MAX_METHOD });
    }
    let params = only_member(message, span.clone(), "params")?;
    Ok(InputRequest { method, span, params })
}

/// The span of the value of `known` in an object; none if the value at `span` is not an object.
fn only_member(
    message: &[u8],
    span: Range<usize>,
    known: &'static str,
) -> Result<Option<Range<usize>>, MalformedReason> {
    let Some(mut scanner) = object(message, span.clone())? else { return Ok(None) };
    let mut only = None;
    while let Some(spelled) = scanner.key()? {
        let value = scanner.value()?;
        let Some(key) = spelled.decode(scanner.source()) else { continue };
        if key != known {
            keys::check_not_read_as(&key, known)?;
        } else if only.replace(inside(&span, value.span)).is_some() {
            return Err(MalformedReason::DuplicateKey { key: known.into() });
        }
    }
    Ok(only)
}

/// A scanner after the beginning of the object at `span`; none if there is another value.
fn object(message: &[u8], span: Range<usize>) -> Result<Option<Scanner<'_>>, MalformedReason> {
    let mut scanner = Scanner::new(&message[span], Rules::LENIENT)?;
    Ok((scanner.next()? == Some(Token::ObjectStart)).then_some(scanner))
}

/// A span inside the value at `outer`, as a span of the message.
fn inside(outer: &Range<usize>, span: Range<usize>) -> Range<usize> {
    outer.start + span.start..outer.start + span.end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn methods(body: &str) -> Result<Vec<String>, MalformedReason> {
        let message = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{body}}}"#);
        let start = message.len() - 1 - body.len();
        let requests = input_requests(message.as_bytes(), start..message.len() - 1)?;
        for request in &requests {
            assert!(message[request.span.clone()].starts_with('{'), "{body}");
        }
        Ok(requests.into_iter().map(|request| request.method.into_owned()).collect())
    }

    #[test]
    fn requests_in_a_result_are_found() {
        let body = r#"{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"},"b":{"params":{"method":1},"method":"x\/y"}},"requestState":"s"}"#;
        assert_eq!(methods(body).unwrap(), ["roots/list", "x/y"]);
        // Whatever the result says that it is.
        assert_eq!(
            methods(r#"{"inputRequests":{"a":{"method":"m"}},"resultType":"complete"}"#).unwrap(),
            ["m"]
        );
        assert_eq!(methods(r#"{"\u0069nputRequests":{"a":{"\u006dethod":"\u006d"}}}"#).unwrap(), ["m"]);
        for without in [
            "{}",
            "[]",
            "null",
            r#""inputRequests""#,
            r#"{"inputRequests":null}"#,
            r#"{"inputRequests":{}}"#,
            r#"{"structuredContent":{"inputRequests":{"a":{"method":"m"}}}}"#,
            r#"{"inputRequest":{"a":{"method":"m"}},"\ud800":1}"#,
        ] {
            assert_eq!(methods(without).unwrap(), Vec::<String>::new(), "{without}");
        }
    }

    #[test]
    fn the_parameters_of_a_request_are_found() {
        let message = br#"{"inputRequests":{"a":{"params":{"x":1},"method":"m"},"b":{"method":"n"}}}"#;
        let requests = input_requests(message, 0..message.len()).unwrap();
        let params = requests.iter().map(|request| request.params.clone().map(|span| &message[span]));
        assert_eq!(params.collect::<Vec<_>>(), [Some(&br#"{"x":1}"#[..]), None]);
    }

    #[test]
    fn requests_that_parsers_read_differently_are_refused() {
        use MalformedReason as Reason;
        let misspelled = |key: &str, known| Reason::MisspelledKey { key: key.into(), known };
        let one = r#"{"a":{"method":"m"}}"#;
        let duplicate = |key: &str| Reason::DuplicateKey { key: key.into() };
        let table = [
            (format!(r#"{{"inputRequests":{one},"inputRequests":{one}}}"#), duplicate(INPUT_REQUESTS)),
            (format!(r#"{{"inputRequests":{{}},"input\u0052equests":{one}}}"#), duplicate(INPUT_REQUESTS)),
            (format!(r#"{{"inputrequests":{one}}}"#), misspelled("inputrequests", INPUT_REQUESTS)),
            (format!(r#"{{"INPUTREQUE\u0053TS":{one}}}"#), misspelled("INPUTREQUESTS", INPUT_REQUESTS)),
            (format!(r#"{{"inputReque\u017fts":{one}}}"#), misspelled("inputRequeſts", INPUT_REQUESTS)),
            (format!(r#"{{"ınputRequests":{one}}}"#), misspelled("ınputRequests", INPUT_REQUESTS)),
            (format!(r#"{{"inputRequeﬆs":{one}}}"#), misspelled("inputRequeﬆs", INPUT_REQUESTS)),
            (format!(r#"{{"input_requests":{one}}}"#), misspelled("input_requests", INPUT_REQUESTS)),
            (format!(r#"{{"input-Requests":{one}}}"#), misspelled("input-Requests", INPUT_REQUESTS)),
            (
                format!(r#"{{"inputRequests":{{}},"Input_Requests":{one}}}"#),
                misspelled("Input_Requests", INPUT_REQUESTS),
            ),
            (r#"{"inputRequests":[{"method":"m"}]}"#.into(), Reason::InputRequestsNotRequests),
            (r#"{"inputRequests":{"a":["method","m"]}}"#.into(), Reason::InputRequestsNotRequests),
            (r#"{"inputRequests":{"a":{}}}"#.into(), Reason::MethodNotText),
            (r#"{"inputRequests":{"a":{"method":1}}}"#.into(), Reason::MethodNotText),
            (r#"{"inputRequests":{"a":{"method":"\ud800"}}}"#.into(), Reason::MethodNotText),
            (r#"{"inputRequests":{"a":{"method":"m","method":"n"}}}"#.into(), duplicate("method")),
            (r#"{"inputRequests":{"a":{"method":"m","Method":"n"}}}"#.into(), misspelled("Method", "method")),
            (r#"{"inputRequests":{"a":{"method":"m","PARAMS":{}}}}"#.into(), misspelled("PARAMS", "params")),
            (r#"{"inputRequests":{"a":{"method":"m"},"\u0061":{"method":"n"}}}"#.into(), duplicate("a")),
            (
                format!(r#"{{"inputRequests":{{"a":{{"method":"{}"}}}}}}"#, "x".repeat(257)),
                Reason::MethodTooLong { limit: 256 },
            ),
        ];
        for (body, reason) in table {
            assert_eq!(methods(&body).unwrap_err(), reason, "{body}");
        }
    }
}
