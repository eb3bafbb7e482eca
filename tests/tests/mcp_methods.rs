//! Compares the table of MCP methods with the official schemas of both eras, and with the methods of rmcp.
//!
//! A method that a revision adds is reported as missing in the table; every other difference is listed with its reason.

use std::collections::BTreeSet;

use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::tools::Tool;
use relay_proto::mcp::{Direction, Eras, METHODS, Method, MethodKind};
use rmcp::model::{ClientNotification, ClientRequest, ServerNotification, ServerRequest};
use schemars::schema_for;
use serde_json::Value;

const LEGACY: &str = "2025-11-25";
const STATELESS: &str = "2026-07-28";

/// The Python SDK's types are generated from the schema's JSON, one package per revision. In the stateless era a
/// server's requests are inside results, as `InputRequest`.
const READ_SCHEMAS: &str = r#"
import importlib, pkgutil, typing, mcp_types
unions = {"ClientRequest": "harness request", "ClientNotification": "harness notification", "InputRequest": "server request",
          "ServerRequest": "server request", "ServerNotification": "server notification"}
for package in pkgutil.iter_modules(mcp_types.__path__, "mcp_types."):
    if "._v" not in package.name:
        continue
    module = importlib.import_module(package.name)
    for union, role in unions.items():
        found = getattr(module, union, None)
        for model in typing.get_args(found) or ([found] if found else []):
            method, = typing.get_args(model.model_fields["method"].annotation)
            print(package.name.split("._v")[1].replace("_", "-"), role, method)
"#;

/// Methods of the table that the schema of the revision lacks, with the reason.
const NOT_IN_SCHEMA: [(&str, &str, &str, &str); 7] = [
    (
        STATELESS,
        "harness notification",
        "notifications/progress",
        "only servers report progress, and a harness that does is harmless",
    ),
    (STATELESS, "harness request", "tasks/cancel", "an extension"),
    (STATELESS, "harness request", "tasks/get", "an extension"),
    (STATELESS, "harness request", "tasks/update", "an extension"),
    (STATELESS, "server notification", "notifications/tasks", "an extension"),
    (STATELESS, "server request", "tasks/cancel", "tasks of a harness are of the legacy era"),
    (STATELESS, "server request", "tasks/get", "tasks of a harness are of the legacy era"),
];

/// Methods of the table that rmcp lacks: it dropped the tasks of 2025-11-25.
const NOT_IN_RMCP: [(&str, &str); 9] = [
    ("harness notification", "notifications/tasks/status"),
    ("harness request", "tasks/list"),
    ("harness request", "tasks/result"),
    ("server notification", "notifications/elicitation/complete"),
    ("server notification", "notifications/tasks/status"),
    ("server request", "tasks/cancel"),
    ("server request", "tasks/get"),
    ("server request", "tasks/list"),
    ("server request", "tasks/result"),
];

#[test]
fn the_official_schemas_have_no_method_that_the_table_lacks() {
    let Some(python) = Tool::Python.path() else { return };
    let mut script = command(python);
    script.args(["-c", READ_SCHEMAS]);
    let listed = String::from_utf8(output_of(script, "python").stdout).expect("Python writes UTF-8");
    let schema: BTreeSet<&str> = listed.lines().collect();
    let revisions: BTreeSet<&str> = schema.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(
        revisions,
        BTreeSet::from([LEGACY, STATELESS]),
        "the schemas have other revisions than the table"
    );

    let mut table = BTreeSet::new();
    for method in METHODS {
        for revision in revisions_of(method) {
            table.extend(roles(method).map(|role| format!("{revision} {role} {}", method.name)));
        }
    }
    let missing: Vec<_> = schema.iter().filter(|line| !table.contains(**line)).collect();
    assert!(missing.is_empty(), "in the schema, not in the table: {missing:#?}");
    let extra: BTreeSet<_> = table.iter().filter(|line| !schema.contains(line.as_str())).cloned().collect();
    let expected = NOT_IN_SCHEMA.iter().map(|(revision, role, name, _)| format!("{revision} {role} {name}"));
    assert_eq!(extra, expected.collect(), "in the table, not in the schema");
}

#[test]
fn rmcp_has_no_method_that_the_table_lacks() {
    let mut rmcp = BTreeSet::new();
    for (role, schema) in [
        ("harness request", schema_for!(ClientRequest)),
        ("harness notification", schema_for!(ClientNotification)),
        ("server request", schema_for!(ServerRequest)),
        ("server notification", schema_for!(ServerNotification)),
    ] {
        rmcp.extend(methods(schema.as_value()).map(|name| format!("{role} {name}")));
    }
    assert!(rmcp.contains("harness request tools/call"), "rmcp's schema has no `tools/call`: {rmcp:?}");

    let table: BTreeSet<String> = METHODS
        .iter()
        .flat_map(|method| roles(method).map(|role| format!("{role} {}", method.name)))
        .collect();
    let missing: Vec<_> = rmcp.difference(&table).collect();
    assert!(missing.is_empty(), "in rmcp, not in the table: {missing:#?}");
    let extra: BTreeSet<String> = table.difference(&rmcp).cloned().collect();
    let expected = NOT_IN_RMCP.iter().map(|(role, name)| format!("{role} {name}"));
    assert_eq!(extra, expected.collect(), "in the table, not in rmcp");
}

fn revisions_of(method: &Method) -> &'static [&'static str] {
    match method.eras {
        Eras::Both => &[LEGACY, STATELESS],
        Eras::Legacy => &[LEGACY],
        Eras::Stateless => &[STATELESS],
    }
}

/// The senders of a method, each with the kind of message.
fn roles(method: &Method) -> impl Iterator<Item = String> {
    let senders: &[&str] = match method.direction {
        Direction::Both => &["harness", "server"],
        Direction::ToHarness => &["server"],
        Direction::ToServer => &["harness"],
    };
    let kind = match method.kind {
        MethodKind::Notification => "notification",
        MethodKind::Request => "request",
    };
    senders.iter().map(move |sender| format!("{sender} {kind}"))
}

/// The methods of a union of messages: the constant that each variant's `method` is.
fn methods(schema: &Value) -> impl Iterator<Item = &str> {
    let variants = schema["anyOf"].as_array().expect("a union has variants");
    // `CustomRequest` and `CustomNotification` have any method.
    variants.iter().filter_map(move |variant| {
        let method = &resolve(schema, variant)["properties"]["method"];
        resolve(schema, method)["const"].as_str()
    })
}

fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => root.pointer(reference.trim_start_matches('#')).expect("a definition"),
        None => schema,
    }
}
