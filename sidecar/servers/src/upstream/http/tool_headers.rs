//! Tool arguments that a call repeats in headers: `x-mcp-header` in the input schema, `Mcp-Param-*` in the call.
//!
//! The annotations come from the server's `tools/list` responses. What must stay true: a tool with an invalid
//! annotation gets no such header at all, and the number of remembered tools is bounded.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use http::HeaderName;
use relay_proto::json;
use serde_json::Value;

use super::message::Outline;

const ANNOTATION: &str = "x-mcp-header";
/// Remembered tools with annotations; the rest are called without such headers.
const MAX_TOOLS: usize = 1024;
/// Headers of one tool: servers refuse long heads anyway.
const MAX_BINDINGS: usize = 32;
/// The nesting of the properties of a tool's arguments.
const MAX_PROPERTY_DEPTH: usize = 16;

/// Which argument of which tool goes into which header.
#[derive(Debug, Default)]
pub(super) struct ToolHeaders {
    tools: HashMap<String, Vec<Binding>>,
}

/// Which page of the list a `tools/list` request asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Page {
    First,
    Later,
}

#[derive(Debug)]
struct Binding {
    header: HeaderName,
    path: Vec<String>,
}

impl ToolHeaders {
    /// Remembers the annotated tools in a response to `tools/list`.
    pub(super) fn record(&mut self, response: &[u8], page: Page) {
        let Some(tools) = Outline::read(response).and_then(|outline| outline.at(&["tools"])) else { return };
        if page == Page::First {
            self.tools.clear();
        }
        for tool in json::elements(response, tools) {
            let name =
                json::member(response, tool.clone(), "name").and_then(|name| json::text(response, name));
            let (Some(name), Some(schema)) = (name, json::member(response, tool, "inputSchema")) else {
                continue;
            };
            self.tools.remove(name.as_ref());
            let schema = &response[schema];
            // Nearly all schemas have no annotation and need not be parsed.
            let annotated = schema.windows(ANNOTATION.len()).any(|window| window == ANNOTATION.as_bytes());
            if annotated
                && self.tools.len() < MAX_TOOLS
                && let Some(bindings) =
                    serde_json::from_slice(schema).ok().and_then(|schema| bindings(&schema))
            {
                self.tools.insert(name.into_owned(), bindings);
            }
        }
    }

    /// The headers of one call. Arguments that are absent or `null` have none.
    pub(super) fn headers(&self, tool: &str, call: &Outline<'_>) -> Vec<(HeaderName, String)> {
        let Some(bindings) = self.tools.get(tool) else { return Vec::new() };
        let Some(arguments) = call.at(&["arguments"]) else { return Vec::new() };
        bindings
            .iter()
            .filter_map(|binding| {
                let value = binding
                    .path
                    .iter()
                    .try_fold(arguments.clone(), |object, key| json::member(call.message, object, key))?;
                Some((binding.header.clone(), header_text(&call.message[value])?))
            })
            .collect()
    }
}

/// The annotations of a schema; `None` where one of them is invalid.
fn bindings(schema: &Value) -> Option<Vec<Binding>> {
    let mut found = Vec::new();
    collect(schema, &mut Vec::new(), &mut found)?;
    let distinct: HashSet<_> = found.iter().map(|binding: &Binding| &binding.header).collect();
    (distinct.len() == found.len() && found.len() <= MAX_BINDINGS).then_some(found)
}

fn collect(schema: &Value, path: &mut Vec<String>, found: &mut Vec<Binding>) -> Option<()> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return Some(()) };
    if path.len() >= MAX_PROPERTY_DEPTH {
        return None;
    }
    for (name, property) in properties {
        path.push(name.clone());
        if let Some(annotation) = property.get(ANNOTATION) {
            let name = annotation.as_str().filter(|name| !name.is_empty() && name.len() <= 128)?;
            let header = HeaderName::try_from(format!("mcp-param-{name}")).ok()?;
            matches!(property.get("type")?.as_str()?, "boolean" | "integer" | "string").then_some(())?;
            found.push(Binding { header, path: path.clone() });
        }
        collect(property, path, found)?;
        path.pop();
    }
    Some(())
}

fn header_text(value: &[u8]) -> Option<String> {
    let raw = std::str::from_utf8(value).ok()?;
    match value.first()? {
        b'"' => json::text(value, 0..value.len()).map(Cow::into_owned),
        b't' | b'f' => Some(raw.to_owned()),
        b'-' | b'0'..=b'9' => Some(match raw.parse::<f64>() {
            // `5.0` and `5e0` are the integer 5; digits are never rounded.
            Ok(number) if raw.contains(['.', 'e', 'E']) && number.fract() == 0.0 && number.abs() < 9e15 => {
                format!("{number:.0}")
            }
            _ => raw.to_owned(),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(schema: &str, arguments: &str) -> Vec<String> {
        let mut tool_headers = ToolHeaders::default();
        let response = format!(r#"{{"id":1,"result":{{"tools":[{{"name":"t","inputSchema":{schema}}}]}}}}"#);
        tool_headers.record(response.as_bytes(), Page::First);
        let call =
            format!(r#"{{"id":2,"method":"tools/call","params":{{"name":"t","arguments":{arguments}}}}}"#);
        let call = Outline::read(call.as_bytes()).unwrap();
        let mut lines: Vec<String> = tool_headers
            .headers("t", &call)
            .into_iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        lines.sort();
        lines
    }

    #[test]
    fn annotated_arguments_become_headers() {
        let schema = r#"{"properties":{
            "region":{"type":"string","x-mcp-header":"Region"},
            "dry":{"type":"boolean","x-mcp-header":"Dry"},
            "none":{"type":"string","x-mcp-header":"None"},
            "plain":{"type":"string"},
            "page":{"type":"object","properties":{"limit":{"type":"integer","x-mcp-header":"Limit"}}}}}"#;
        assert_eq!(
            headers(
                schema,
                r#"{"region":"\u0065u","dry":true,"none":null,"plain":"x","page":{"limit":5.0}}"#
            ),
            ["mcp-param-dry: true", "mcp-param-limit: 5", "mcp-param-region: eu"]
        );
    }

    #[test]
    fn a_tool_with_a_wrong_annotation_has_no_headers() {
        for annotation in [
            r#""x-mcp-header":"a b","type":"string""#,
            r#""x-mcp-header":"A","type":"object""#,
            r#""x-mcp-header":1,"type":"string""#,
        ] {
            let schema = format!(
                r#"{{"properties":{{"good":{{"type":"string","x-mcp-header":"Good"}},"bad":{{{annotation}}}}}}}"#
            );
            assert_eq!(headers(&schema, r#"{"good":"x","bad":"y"}"#), [""; 0], "{annotation}");
        }
        let twice = r#"{"properties":{"a":{"type":"string","x-mcp-header":"Same"},"b":{"type":"string","x-mcp-header":"same"}}}"#;
        assert_eq!(headers(twice, r#"{"a":"x","b":"y"}"#), [""; 0]);
    }

    #[test]
    fn a_first_page_replaces_the_tools_and_a_later_page_adds_some() {
        let list = |name: &str| {
            format!(
                r#"{{"id":1,"result":{{"tools":[{{"name":"{name}","inputSchema":{{"properties":{{"a":{{"type":"string","x-mcp-header":"A"}}}}}}}}]}}}}"#
            )
        };
        let mut tool_headers = ToolHeaders::default();
        tool_headers.record(list("one").as_bytes(), Page::First);
        tool_headers.record(list("two").as_bytes(), Page::Later);
        assert_eq!(tool_headers.tools.len(), 2);
        tool_headers.record(list("three").as_bytes(), Page::First);
        assert_eq!(tool_headers.tools.keys().collect::<Vec<_>>(), ["three"]);
    }
}
