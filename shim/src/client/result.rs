//! What `call` prints: the result as the server wrote it, or its content for a person.

use std::fmt::Write as _;

use serde_json::Value;

use super::Printed;
use super::conversation::is_error;
use crate::failure::EX_FAILED;
use crate::options::OutputFormat;

/// The text of a tool's error goes to stderr, so that a script does not take it for data.
pub(super) fn printed(result: &[u8], format: OutputFormat) -> Printed {
    let exit = if is_error(result) { EX_FAILED } else { 0 };
    match format {
        OutputFormat::Json => Printed { stdout: [result, b"\n"].concat(), stderr: String::new(), exit },
        OutputFormat::Text => {
            let text = readable(result);
            match exit {
                0 => Printed { stdout: text.into_bytes(), stderr: String::new(), exit },
                _ => Printed {
                    stdout: Vec::new(),
                    stderr: format!("the tool failed: {}", text.trim_end()),
                    exit,
                },
            }
        }
    }
}

/// Each piece of content on lines of its own; without content, the structured result; else the whole result.
fn readable(result: &[u8]) -> String {
    let mut text = String::new();
    let Ok(value) = serde_json::from_slice::<Value>(result) else {
        return String::from_utf8_lossy(result).into_owned() + "\n";
    };
    for item in value["content"].as_array().into_iter().flatten() {
        push_line(&mut text, &content(item));
    }
    if text.is_empty() {
        let rest = value.get("structuredContent").unwrap_or(&value);
        if rest["content"].as_array().is_none_or(|content| !content.is_empty()) {
            push_line(&mut text, &format!("{rest:#}"));
        }
    }
    text
}

fn content(item: &Value) -> String {
    let word = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let bytes = |value: &Value, key: &str| value[key].as_str().map_or(0, |data| data.len() / 4 * 3);
    match item["type"].as_str() {
        Some("text") => word(item, "text"),
        Some(kind @ ("audio" | "image")) => {
            format!(
                "[{kind} {}, about {} bytes; --json prints it]",
                word(item, "mimeType"),
                bytes(item, "data")
            )
        }
        Some("resource_link") => format!("{} {}", word(item, "name"), word(item, "uri")),
        Some("resource") => match item["resource"]["text"].as_str() {
            Some(text) => text.to_owned(),
            None => {
                let (resource, mut line) = (&item["resource"], String::new());
                // Writing to a String cannot fail.
                let _ = write!(
                    line,
                    "[resource {} {}, about {} bytes; --json prints it]",
                    word(resource, "uri"),
                    word(resource, "mimeType"),
                    bytes(resource, "blob")
                );
                line
            }
        },
        _ => item.to_string(),
    }
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line);
    if !line.ends_with('\n') {
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stdout(result: &str, format: OutputFormat) -> String {
        let printed = printed(result.as_bytes(), format);
        assert_eq!((printed.exit, printed.stderr.as_str()), (0, ""));
        String::from_utf8(printed.stdout).unwrap()
    }

    #[test]
    fn content_is_printed_for_a_person() {
        let result = r#"{"content":[
            {"type":"text","text":"one\ntwo"},
            {"type":"image","mimeType":"image/png","data":"AAAAAAAA"},
            {"type":"resource_link","name":"notes","uri":"file:///n"},
            {"type":"resource","resource":{"uri":"file:///r","text":"inside\n"}},
            {"type":"resource","resource":{"uri":"file:///b","mimeType":"x/y","blob":"AAAA"}},
            {"type":"later","x":1}]}"#;
        assert_eq!(
            stdout(result, OutputFormat::Text),
            "one\ntwo\n[image image/png, about 6 bytes; --json prints it]\nnotes file:///n\ninside\n\
             [resource file:///b x/y, about 3 bytes; --json prints it]\n{\"type\":\"later\",\"x\":1}\n"
        );
    }

    #[test]
    fn without_content_the_structured_result_is_printed() {
        let structured = r#"{"content":[],"structuredContent":{"sum":42}}"#;
        assert_eq!(stdout(structured, OutputFormat::Text), "{\n  \"sum\": 42\n}\n");
        assert_eq!(stdout(r#"{"content":[]}"#, OutputFormat::Text), "");
        assert_eq!(
            stdout(r#"{"task":{"taskId":"7"}}"#, OutputFormat::Text),
            "{\n  \"task\": {\n    \"taskId\": \"7\"\n  }\n}\n"
        );
    }

    #[test]
    fn json_is_the_result_byte_for_byte() {
        let result = r#"{"content":[ ],"x": 12345678901234567890.0}"#;
        assert_eq!(stdout(result, OutputFormat::Json), format!("{result}\n"));
    }

    #[test]
    fn an_error_of_the_tool_is_no_data() {
        let result = br#"{"content":[{"type":"text","text":"no such file"}],"isError":true}"#;
        let text = printed(result, OutputFormat::Text);
        assert_eq!(
            (text.exit, text.stdout.len(), text.stderr.as_str()),
            (1, 0, "the tool failed: no such file")
        );
        let json = printed(result, OutputFormat::Json);
        assert_eq!((json.exit, json.stderr.as_str()), (1, ""));
        assert!(json.stdout.starts_with(result));
    }
}
