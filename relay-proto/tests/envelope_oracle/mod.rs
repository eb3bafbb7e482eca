//! An independent parser of messages: serde_json reads a message into a tree with every key, repeated ones included, and
//! the rules of [`Strictness`] are applied to that tree in the simplest way. No code is shared with the reader under test.
//!
//! Shared by the property test and the fuzz target.

mod generate;
mod tree;

use relay_proto::envelope::{Envelope, Kind, Malformed, MalformedReason, Outcome, Strictness, read_within};
use relay_proto::limits::{MAX_ID, MAX_METHOD, MAX_TOOL_NAME};

pub(crate) use generate::generate_message;
use tree::{Number, Tree};

/// Reads the message with both parsers and panics if they differ. Returns whether it could be read.
pub(crate) fn assert_parsers_agree(message: &[u8], strictness: Strictness, depth: usize) -> bool {
    let read = read_within(message, strictness, depth);
    let verdict = oracle_verdict(message, strictness, depth);
    let context = || format!("{strictness:?} within {depth}: {}", String::from_utf8_lossy(message));
    match (&read, verdict) {
        (_, OracleVerdict::Undecided) => {}
        (Ok(envelope), OracleVerdict::AcceptedAs(meaning)) => {
            assert_eq!(Meaning::of(message, envelope), meaning, "{}", context());
        }
        (Ok(envelope), OracleVerdict::Refused(why)) => {
            panic!("accepted as {envelope:?}, but {why}: {}", context())
        }
        // The tree does not contain the length of an id as raw JSON, so it cannot apply this limit.
        (Err(Malformed { reason: MalformedReason::IdTooLong { .. }, .. }), OracleVerdict::AcceptedAs(_))
            if message.len() > MAX_ID => {}
        (Err(Malformed { reason: MalformedReason::IdTooLong { .. }, .. }), OracleVerdict::Accepted) => {}
        (Err(malformed), OracleVerdict::AcceptedAs(meaning)) => {
            panic!("refused ({malformed}), but the oracle reads {meaning:?}: {}", context())
        }
        (Err(malformed), OracleVerdict::Accepted) => {
            panic!("refused ({malformed}), but the oracle accepts it: {}", context())
        }
        (Ok(_), OracleVerdict::Accepted) | (Err(_), OracleVerdict::Refused(_)) => {}
    }
    read.is_ok()
}

enum OracleVerdict {
    AcceptedAs(Meaning),
    /// It is accepted; its meaning has unpaired surrogates and is not compared.
    Accepted,
    Refused(&'static str),
    /// The tree is not exact enough to decide.
    Undecided,
}

/// The content of a message, independent of how its JSON is written.
#[derive(Debug, PartialEq)]
struct Meaning {
    kind: &'static str,
    id: Option<Tree>,
    method: Option<String>,
    body: Option<Tree>,
    /// The tool and its arguments, for a `tools/call` in [`Strictness::Whole`].
    call: Option<(Option<String>, Option<Tree>)>,
}

impl Meaning {
    fn of(message: &[u8], envelope: &Envelope<'_>) -> Self {
        let tree = |bytes: &[u8]| Tree::read(bytes).expect("a part of a message is JSON");
        let (kind, id, method) = match &envelope.kind {
            Kind::Notification { method } => ("notification", None, Some(method)),
            Kind::Request { id, method } => ("request", Some(id), Some(method)),
            Kind::Response { id, outcome: Outcome::Result } => ("result", id.as_ref(), None),
            Kind::Response { id, outcome: Outcome::Error } => ("error", id.as_ref(), None),
        };
        if let Some(id) = id {
            assert_eq!(&message[id.span.clone()], id.raw);
        }
        Self {
            kind,
            id: id.map(|id| tree(id.raw)),
            method: method.map(|method| method.clone().into_owned()),
            body: envelope.body.clone().map(|span| tree(&message[span])),
            call: envelope.call.as_ref().map(|call| {
                let tool = call.tool.as_ref().map(|tool| tool.clone().into_owned());
                (tool, call.arguments.clone().map(|span| tree(&message[span])))
            }),
        }
    }
}

fn oracle_verdict(message: &[u8], strictness: Strictness, depth: usize) -> OracleVerdict {
    let Ok(text) = str::from_utf8(message) else { return OracleVerdict::Refused("it is not UTF-8") };
    let tree = match (Tree::read(message), strictness) {
        (Ok(tree), _) => tree,
        (Err(error), _) if tree::is_parser_limit(&error) => return OracleVerdict::Undecided,
        (Err(_), Strictness::Whole) => return OracleVerdict::Refused("it is not JSON"),
        // Unpaired surrogates are allowed inside values; serde_json refuses them everywhere.
        (Err(_), Strictness::Envelope) => {
            match tree::replace_unpaired_surrogates(text).map(|text| Tree::read(text.as_bytes())) {
                Some(Ok(tree)) => tree,
                Some(Err(error)) if tree::is_parser_limit(&error) => return OracleVerdict::Undecided,
                Some(Err(_)) => return OracleVerdict::Refused("it is not JSON"),
                None => return OracleVerdict::Undecided,
            }
        }
    };
    match meaning_of(&tree, strictness, depth) {
        Ok(Some(_)) if Tree::read(message).is_err() => OracleVerdict::Accepted,
        Ok(Some(meaning)) => OracleVerdict::AcceptedAs(meaning),
        Ok(None) => OracleVerdict::Undecided,
        Err(why) => OracleVerdict::Refused(why),
    }
}

/// The meaning of the message; `None` if its id is an integer too large for the tree.
fn meaning_of(tree: &Tree, strictness: Strictness, depth: usize) -> Result<Option<Meaning>, &'static str> {
    let whole = strictness == Strictness::Whole;
    let Tree::Object(members) = tree else { return Err("it is not an object") };
    if tree.depth() > depth {
        return Err("it is too deep");
    }
    if whole && tree.repeats_a_key() {
        return Err("it has a key twice");
    }
    check_keys(members, &["error", "id", "jsonrpc", "method", "params", "result"], strictness)?;
    let member = |key: &str| tree.member(key);
    if whole && member("jsonrpc") != Some(&Tree::Text("2.0".into())) {
        return Err("its version is not 2.0");
    }
    let params = match member("params") {
        Some(Tree::Object(params)) => {
            if whole {
                check_keys(params, &["_meta", "arguments", "name", "requestId", "uri"], strictness)?;
            }
            member("params")
        }
        Some(_) if whole => return Err("params is not an object"),
        other => other,
    };
    let id_is_exact = !matches!(member("id"), Some(Tree::Number(Number::Huge)));
    let id = || match member("id") {
        Some(id @ Tree::Text(text))
            if text.len() + 2 <= MAX_ID && !text.contains(tree::SURROGATE_REPLACEMENT) =>
        {
            Ok(Some(id.clone()))
        }
        Some(id @ Tree::Number(Number::Integer(_) | Number::Huge)) => Ok(Some(id.clone())),
        None => Ok(None),
        Some(_) => Err("the id is invalid"),
    };
    let meaning = match (member("method"), member("result"), member("error")) {
        (Some(Tree::Text(method)), None, None) if !method.contains(tree::SURROGATE_REPLACEMENT) => {
            let tool = params.and_then(|params| params.member("name")).and_then(Tree::text);
            let is_call = whole && method == "tools/call";
            if whole && method.len() > MAX_METHOD {
                return Err("the method is too long");
            }
            if is_call && tool.is_some_and(|tool| tool.len() > MAX_TOOL_NAME) {
                return Err("the tool's name is too long");
            }
            let arguments = params.and_then(|params| params.member("arguments"));
            let id = id()?;
            Meaning {
                kind: if id.is_some() { "request" } else { "notification" },
                id,
                method: Some(method.clone()),
                body: params.cloned(),
                call: is_call.then(|| (tool.map(str::to_owned), arguments.cloned())),
            }
        }
        (None, Some(result), None) => {
            let id = Some(id()?.ok_or("no id")?);
            Meaning { kind: "result", id, method: None, body: Some(result.clone()), call: None }
        }
        (None, None, Some(error)) => {
            let id = match member("id") {
                None | Some(Tree::Null) if whole => return Err("no id"),
                None | Some(Tree::Null) => None,
                Some(_) => id()?,
            };
            Meaning { kind: "error", id, method: None, body: Some(error.clone()), call: None }
        }
        _ => return Err("it is neither a request, a notification nor a response, or more than one of them"),
    };
    Ok(id_is_exact.then_some(meaning))
}

/// Refuses keys that are equal when case is ignored; for [`Strictness::Envelope`], only those like a `known` one.
fn check_keys(
    members: &[(String, Tree)],
    known: &[&str],
    strictness: Strictness,
) -> Result<(), &'static str> {
    let fold =
        |key: &str| key.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect::<String>();
    let mut folded: Vec<String> = Vec::new();
    for (key, _) in members {
        let resembled = known.iter().find(|known| fold(known) == fold(key));
        if resembled.is_some_and(|known| known != key) {
            return Err("a key is misspelled");
        }
        if strictness == Strictness::Whole || resembled.is_some() {
            if folded.contains(&fold(key)) {
                return Err("two keys differ in case, or not at all");
            }
            folded.push(fold(key));
        }
    }
    Ok(())
}
