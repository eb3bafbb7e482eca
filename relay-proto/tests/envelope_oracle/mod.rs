//! An independent check of messages: serde_json reads one into a tree that keeps every key, and the rules of
//! [`Strictness`] are applied to that tree in the simplest way. Nothing here is shared with the reader under test.
//!
//! Shared by the property test and the fuzz target.

mod spelling;
mod tree;

use relay_proto::envelope::{Envelope, Kind, Malformed, MalformedReason, Outcome, Strictness, read_within};
use relay_proto::limits::{MAX_ID, MAX_METHOD, MAX_TOOL_NAME};

pub(crate) use spelling::generate_message;
use tree::{Number, Tree};

/// Reads the message in both ways and panics where they differ. Returns whether it could be read.
pub(crate) fn agree(message: &[u8], strictness: Strictness, depth: usize) -> bool {
    let read = read_within(message, strictness, depth);
    let opinion = opinion(message, strictness, depth);
    let context = || format!("{strictness:?} within {depth}: {}", String::from_utf8_lossy(message));
    match (&read, opinion) {
        (_, Opinion::None) => {}
        (Ok(envelope), Opinion::Means(meaning)) => {
            assert_eq!(Meaning::of(message, envelope), meaning, "{}", context());
        }
        (Ok(envelope), Opinion::Refused(why)) => panic!("passed as {envelope:?}, but {why}: {}", context()),
        // The tree does not have the length of an id's raw JSON.
        (Err(Malformed { reason: MalformedReason::IdTooLong { .. }, .. }), Opinion::Means(_))
            if message.len() > MAX_ID => {}
        (Err(Malformed { reason: MalformedReason::IdTooLong { .. }, .. }), Opinion::Passes) => {}
        (Err(malformed), Opinion::Means(meaning)) => panic!("{malformed}, but {meaning:?}: {}", context()),
        (Err(malformed), Opinion::Passes) => panic!("{malformed}, but it passes: {}", context()),
        (Ok(_), Opinion::Passes) | (Err(_), Opinion::Refused(_)) => {}
    }
    read.is_ok()
}

enum Opinion {
    Means(Meaning),
    /// It passes; its meaning has unpaired surrogates and is not compared.
    Passes,
    Refused(&'static str),
    /// The tree cannot decide it.
    None,
}

/// What a message says, without its spelling.
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

fn opinion(message: &[u8], strictness: Strictness, depth: usize) -> Opinion {
    let Ok(text) = str::from_utf8(message) else { return Opinion::Refused("it is not UTF-8") };
    let tree = match (Tree::read(message), strictness) {
        (Ok(tree), _) => tree,
        (Err(error), _) if tree::is_parser_limit(&error) => return Opinion::None,
        (Err(_), Strictness::Whole) => return Opinion::Refused("it is not JSON"),
        // Unpaired surrogates are allowed inside values; serde_json refuses them everywhere.
        (Err(_), Strictness::Envelope) => {
            match tree::replace_unpaired_surrogates(text).map(|text| Tree::read(text.as_bytes())) {
                Some(Ok(tree)) => tree,
                Some(Err(error)) if tree::is_parser_limit(&error) => return Opinion::None,
                Some(Err(_)) => return Opinion::Refused("it is not JSON"),
                None => return Opinion::None,
            }
        }
    };
    match judge(&tree, strictness, depth) {
        Ok(Some(_)) if Tree::read(message).is_err() => Opinion::Passes,
        Ok(Some(meaning)) => Opinion::Means(meaning),
        Ok(None) => Opinion::None,
        Err(why) => Opinion::Refused(why),
    }
}

/// What the message means; `None` if its id is an integer too large for the tree.
fn judge(tree: &Tree, strictness: Strictness, depth: usize) -> Result<Option<Meaning>, &'static str> {
    let whole = strictness == Strictness::Whole;
    let Tree::Object(members) = tree else { return Err("it is not an object") };
    if tree.depth() > depth {
        return Err("it is too deep");
    }
    if whole && tree.repeats_a_key() {
        return Err("it has a key twice");
    }
    misspelled(members, &["error", "id", "jsonrpc", "method", "params", "result"], strictness)?;
    let member = |key: &str| tree.member(key);
    if whole && member("jsonrpc") != Some(&Tree::Text("2.0".into())) {
        return Err("it is another version");
    }
    let params = match member("params") {
        Some(Tree::Object(params)) => {
            if whole {
                misspelled(params, &["_meta", "arguments", "name", "requestId", "uri"], strictness)?;
            }
            member("params")
        }
        Some(_) if whole => return Err("params is not an object"),
        other => other,
    };
    let exact = !matches!(member("id"), Some(Tree::Number(Number::Huge)));
    let id = || match member("id") {
        Some(id @ Tree::Text(text)) if text.len() + 2 <= MAX_ID && !text.contains(tree::UNPAIRED) => {
            Ok(Some(id.clone()))
        }
        Some(id @ Tree::Number(Number::Integer(_) | Number::Huge)) => Ok(Some(id.clone())),
        None => Ok(None),
        Some(_) => Err("the id is invalid"),
    };
    let meaning = match (member("method"), member("result"), member("error")) {
        (Some(Tree::Text(method)), None, None) if !method.contains(tree::UNPAIRED) => {
            let tool = params.and_then(|params| params.member("name")).and_then(Tree::text);
            let calls = whole && method == "tools/call";
            if whole && method.len() > MAX_METHOD {
                return Err("the method is too long");
            }
            if calls && tool.is_some_and(|tool| tool.len() > MAX_TOOL_NAME) {
                return Err("the tool's name is too long");
            }
            let arguments = params.and_then(|params| params.member("arguments"));
            let id = id()?;
            Meaning {
                kind: if id.is_some() { "request" } else { "notification" },
                id,
                method: Some(method.clone()),
                body: params.cloned(),
                call: calls.then(|| (tool.map(str::to_owned), arguments.cloned())),
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
        _ => return Err("it is no kind of message, or two at once"),
    };
    Ok(exact.then_some(meaning))
}

/// Refuses keys that are equal when case is ignored; for [`Strictness::Envelope`], only those like a `known` one.
fn misspelled(
    members: &[(String, Tree)],
    known: &[&str],
    strictness: Strictness,
) -> Result<(), &'static str> {
    let fold =
        |key: &str| key.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect::<String>();
    let mut folded: Vec<String> = Vec::new();
    for (key, _) in members {
        let like = known.iter().find(|known| fold(known) == fold(key));
        if like.is_some_and(|known| known != key) {
            return Err("a key is misspelled");
        }
        if strictness == Strictness::Whole || like.is_some() {
            if folded.contains(&fold(key)) {
                return Err("two keys differ in case, or not at all");
            }
            folded.push(fold(key));
        }
    }
    Ok(())
}
