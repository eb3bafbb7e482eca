//! The output of `servers` and `tools`.

use std::fmt::Write as _;

use relay_proto::name::Name;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::CommandOutput;
use crate::failure::Failure;
use crate::options::OutputFormat;

/// The tools of one server, or why there are none.
pub(super) struct Listing {
    /// `None` if the name is not known: the link can be opened only once, and leads to the only granted server.
    pub(super) server: Option<Name>,
    pub(super) tools: Result<Vec<Box<RawValue>>, Failure>,
}

#[derive(Serialize)]
struct JsonServers<'a> {
    servers: &'a [Name],
}

#[derive(Serialize)]
struct JsonListings<'a> {
    servers: Vec<JsonListing<'a>>,
}

#[derive(Serialize)]
struct JsonListing<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<&'a Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a [Box<RawValue>]>,
    #[serde(rename = "trouble", skip_serializing_if = "Option::is_none")]
    error: Option<&'a Failure>,
}

pub(super) fn format_servers(servers: &[Name], format: OutputFormat) -> Vec<u8> {
    match format {
        OutputFormat::Json => json_line(&JsonServers { servers }),
        OutputFormat::Text => {
            servers.iter().map(|server| format!("{server}\n")).collect::<String>().into_bytes()
        }
    }
}

pub(super) fn format_tools(listings: &[Listing], format: OutputFormat) -> CommandOutput {
    let failures = listings.iter().filter_map(|listing| listing.tools.as_ref().err());
    let exit = failures.map(Failure::exit_code).next().unwrap_or_default();
    match format {
        OutputFormat::Json => {
            let servers = listings.iter().map(JsonListing::new).collect();
            CommandOutput { stdout: json_line(&JsonListings { servers }), stderr: String::new(), exit }
        }
        OutputFormat::Text => {
            let (mut stdout, mut stderr) = (String::new(), Vec::new());
            for listing in listings {
                match &listing.tools {
                    Ok(tools) => {
                        push_tools(&mut stdout, listing.server.as_ref().filter(|_| listings.len() > 1), tools)
                    }
                    Err(Failure { code, message, .. }) => {
                        let server =
                            listing.server.as_ref().map(|server| format!("{server}: ")).unwrap_or_default();
                        stderr.push(format!("{server}{code}: {message}"));
                    }
                }
            }
            CommandOutput { stdout: stdout.into_bytes(), stderr: stderr.join("\n"), exit }
        }
    }
}

impl<'a> JsonListing<'a> {
    fn new(listing: &'a Listing) -> Self {
        let (tools, error) = match &listing.tools {
            Ok(tools) => (Some(tools.as_slice()), None),
            Err(failure) => (None, Some(failure)),
        };
        Self { server: listing.server.as_ref(), tools, error }
    }
}

/// Appends one line for each tool: its signature, and the first line of its description.
fn push_tools(text: &mut String, heading: Option<&Name>, tools: &[Box<RawValue>]) {
    let indent = if heading.is_some() { "  " } else { "" };
    if let Some(server) = heading {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{server}");
    }
    let rows: Vec<(String, String)> = tools.iter().map(|tool| table_row(tool)).collect();
    let width = rows
        .iter()
        .map(|(signature, _)| signature.chars().count())
        .filter(|width| *width <= MAX_COLUMN)
        .max();
    let width = width.unwrap_or_default();
    for (signature, description) in rows {
        let line = format!("{indent}{signature:<width$}  {description}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

/// A longer signature does not widen the first column.
const MAX_COLUMN: usize = 48;

/// `name(required, [optional])`, and the first line of the description.
fn table_row(tool: &RawValue) -> (String, String) {
    let tool: Value = serde_json::from_str(tool.get()).unwrap_or_default();
    let schema = &tool["inputSchema"];
    let is_required = |name: &str| {
        schema["required"].as_array().is_some_and(|names| names.iter().any(|required| required == name))
    };
    let names =
        schema["properties"].as_object().into_iter().flat_map(|properties| properties.keys().cloned());
    let (required, optional): (Vec<String>, Vec<String>) = names.partition(|name| is_required(name));
    let optional = optional.into_iter().map(|name| format!("[{name}]"));
    let arguments = required.into_iter().chain(optional).collect::<Vec<_>>().join(", ");
    let description = tool["description"].as_str().or(tool["title"].as_str()).unwrap_or_default();
    let first_line = description.trim().lines().next().unwrap_or_default().to_owned();
    (format!("{}({arguments})", tool["name"].as_str().unwrap_or("?")), first_line)
}

fn json_line(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).expect("strings and raw JSON always serialise");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(server: &str, tools: &[&str]) -> Listing {
        let raw = |tool: &&str| RawValue::from_string((*tool).to_owned()).unwrap();
        Listing { server: server.parse().ok(), tools: Ok(tools.iter().map(raw).collect()) }
    }

    const READ: &str = r#"{"name":"read","description":"Reads a file.\nSlowly.","inputSchema":{"properties":{"path":{},"head":{}},"required":["path"]}}"#;
    const NOW: &str = r#"{"name":"now"}"#;

    #[test]
    fn tools_are_listed_with_their_arguments() {
        let one = format_tools(&[listing("files", &[READ, NOW])], OutputFormat::Text);
        assert_eq!(String::from_utf8(one.stdout).unwrap(), "read(path, [head])  Reads a file.\nnow()\n");
        assert_eq!((one.stderr.as_str(), one.exit), ("", 0));
        let two = format_tools(&[listing("files", &[READ]), listing("clock", &[NOW])], OutputFormat::Text);
        assert_eq!(
            String::from_utf8(two.stdout).unwrap(),
            "files\n  read(path, [head])  Reads a file.\nclock\n  now()\n"
        );
    }

    #[test]
    fn a_server_that_fails_does_not_hide_the_others() {
        let broken = || Listing {
            server: "broken".parse().ok(),
            tools: Err(Failure::new("server_unavailable", "it exited")),
        };
        let text = format_tools(&[broken(), listing("clock", &[NOW])], OutputFormat::Text);
        assert_eq!(String::from_utf8(text.stdout).unwrap(), "clock\n  now()\n");
        assert_eq!((text.stderr.as_str(), text.exit), ("broken: server_unavailable: it exited", 69));
        let json = format_tools(&[broken(), listing("clock", &[NOW])], OutputFormat::Json);
        assert_eq!(
            String::from_utf8(json.stdout).unwrap(),
            "{\"servers\":[{\"server\":\"broken\",\"trouble\":{\"code\":\"server_unavailable\",\"message\":\"it exited\"}},\
             {\"server\":\"clock\",\"tools\":[{\"name\":\"now\"}]}]}\n"
        );
    }

    #[test]
    fn servers_are_listed_one_per_line() {
        let names: Vec<Name> = ["a", "b"].map(|name| name.parse().unwrap()).into();
        assert_eq!(format_servers(&names, OutputFormat::Text), b"a\nb\n");
        assert_eq!(format_servers(&names, OutputFormat::Json), b"{\"servers\":[\"a\",\"b\"]}\n");
    }
}
