//! The output of `call`: the result as the server wrote it, or its content as readable text.

use std::fmt::Write as _;

use serde_json::Value;

use super::CommandOutput;
use super::conversation::is_error;
use crate::failure::EX_FAILED;
use crate::options::OutputFormat;

/// The text of a tool's error goes to stderr, so that a script does not take it for data.
pub(super) fn format_result(result: &[u8], format: OutputFormat) -> CommandOutput {
    let exit = if is_error(result) { EX_FAILED } else { 0 };
    match format {
        OutputFormat::Json => CommandOutput { stdout: [result, b"\n"].concat(), stderr: String::new(), exit },
        OutputFormat::Text => {
            let text = readable_text(result);
            match exit {
                0 => CommandOutput { stdout: text.into_bytes(), stderr: String::new(), exit },
                _ => CommandOutput {
                    stdout: Vec::new(),
                    stderr: format!("the tool failed: {}", text.trim_end()),
                    exit,
                },
            }
        }
    }
}

/// Each content item on lines of its own. Without content: the structured result, or else the whole result, unless that
/// has an empty list of content.
fn readable_text(result: &[u8]) -> String {
    let mut text = String::new();
    let Ok(value) = serde_json::from_slice::<Value>(result) else {
        return String::from_utf8_lossy(result).into_owned() + "\n";
    };
    for item in value["content"].as_array().into_iter().flatten() {
        push_line(&mut text, &format_content(item));
    }
    if text.is_empty() {
        let rest = value.get("structuredContent").unwrap_or(&value);
        if rest["content"].as_array().is_none_or(|content| !content.is_empty()) {
            push_line(&mut text, &format!("{rest:#}"));
        }
    }
    text
}

fn format_content(item: &Value) -> String {
    let string = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let decoded_len = |value: &Value, key: &str| value[key].as_str().map_or(0, |data| data.len() / 4 * 3);
    match item["type"].as_str() {
        Some("text") => string(item, "text"),
        Some(kind @ ("audio" | "image")) => {
            format!(
                "[{kind} {}, about {} bytes; --json prints it]",
                string(item, "mimeType"),
                decoded_len(item, "data")
            )
        }
        Some("resource_link") => format!("{} {}", string(item, "name"), string(item, "uri")),
        Some("resource") => match item["resource"]["text"].as_str() {
            Some(text) => text.to_owned(),
            None => {
                let (resource, mut line) = (&item["resource"], String::new());
                // Writing to a String cannot fail.
                let _ = write!(
                    line,
                    "[resource {} {}, about {} bytes; --json prints it]",
                    string(resource, "uri"),
                    string(resource, "mimeType"),
                    decoded_len(resource, "blob")
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
        let output = format_result(result.as_bytes(), format);
        assert_eq!((output.exit, output.stderr.as_str()), (0, ""));
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn content_is_printed_as_readable_text() {
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
    fn the_text_of_a_failed_tool_goes_to_stderr_and_its_json_to_stdout() {
        let result = br#"{"content":[{"type":"text","text":"no such file"}],"isError":true}"#;
        let text = format_result(result, OutputFormat::Text);
        assert_eq!(
            (text.exit, text.stdout.len(), text.stderr.as_str()),
            (1, 0, "the tool failed: no such file")
        );
        let json = format_result(result, OutputFormat::Json);
        assert_eq!((json.exit, json.stderr.as_str()), (1, ""));
        assert!(json.stdout.starts_with(result));
    }
}
