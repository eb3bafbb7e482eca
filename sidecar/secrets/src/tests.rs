//! Tests of the parsing of fields. Sources that are files, variables and commands are tested in `sidecar/tests/secret.rs`.

use std::collections::{BTreeMap, BTreeSet};

use zeroize::Zeroizing;

use super::*;

fn parse(content: &str) -> Result<BTreeMap<String, String>, FieldError> {
    parse_with(content, &[], ShortValues::Refuse)
}

fn parse_with(
    content: &str,
    public: &[&str],
    short: ShortValues,
) -> Result<BTreeMap<String, String>, FieldError> {
    let public = public.iter().map(ToString::to_string).collect();
    let fields = fields::parse(content.as_bytes(), &public, short)?;
    let name = "s".parse().unwrap();
    let material = Material::without_lease(fields);
    let plain = material.needles(&name).into_iter().map(|needle| {
        let field = needle.label.strip_prefix("s.").unwrap().to_owned();
        (field, String::from_utf8(needle.value.to_vec()).unwrap())
    });
    Ok(plain.collect())
}

fn map(fields: &[(&str, &str)]) -> BTreeMap<String, String> {
    fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

#[test]
fn an_object_gives_its_fields() {
    let content = r#" {"user": "operator", "password": "p\u00e4ss\"word", "port": 123456789012345678901.50, "on": true}"#;
    let expected = map(&[
        ("user", "operator"),
        ("password", "päss\"word"),
        ("port", "123456789012345678901.50"),
        ("on", "true"),
    ]);
    assert_eq!(parse_with(content, &["on"], ShortValues::Refuse).unwrap(), expected);
}

#[test]
fn content_that_is_not_an_object_is_the_field_value() {
    assert_eq!(parse("ghp_0123456789\n").unwrap(), map(&[("value", "ghp_0123456789")]));
    assert_eq!(parse("ghp_0123456789\r\n").unwrap(), map(&[("value", "ghp_0123456789")]));
    assert_eq!(parse("two lines\nof it\n\n").unwrap(), map(&[("value", "two lines\nof it\n")]));
    assert_eq!(parse("[\"a\", \"list\"]").unwrap(), map(&[("value", "[\"a\", \"list\"]")]));
    assert_eq!(parse("\"a string\"").unwrap(), map(&[("value", "\"a string\"")]));
    assert_eq!(parse("{\"cut\": \"off").unwrap(), map(&[("value", "{\"cut\": \"off")]));
}

#[test]
fn empty_and_nested_values_are_refused() {
    for content in ["", "\n", "\r\n", "{}"] {
        assert_eq!(parse(content), Err(FieldError::Empty), "{content:?}");
    }
    let field = || "a".to_owned();
    for content in [r#"{"a": {"b": "long enough"}}"#, r#"{"a": ["long enough"]}"#, r#"{"a": null}"#] {
        assert_eq!(parse(content), Err(FieldError::NotPlain { field: field() }), "{content}");
    }
    assert_eq!(
        parse(r#"{"a": "long enough", "\u0061": "another one"}"#),
        Err(FieldError::Repeated { field: field() })
    );
    let empty = parse_with(r#"{"a": ""}"#, &["a"], ShortValues::Allow);
    assert_eq!(empty, Err(FieldError::EmptyField { field: field() }));
}

#[test]
fn short_values_need_permission() {
    let content = r#"{"user": "bob", "password": "long enough"}"#;
    assert_eq!(parse(content), Err(FieldError::TooShort { field: "user".into(), length: 3 }));
    assert!(parse_with(content, &["user"], ShortValues::Refuse).is_ok());
    assert!(parse_with(content, &[], ShortValues::Allow).is_ok());
    assert!(parse("1234567").is_err());
    assert!(parse("12345678").is_ok());
}

#[test]
fn a_secret_is_not_printed() {
    let secret = Secret::new(Zeroizing::new(b"hunter2hunter2".to_vec()));
    assert_eq!(format!("{secret:?}"), "Secret(…)");
    let material = Material::without_lease(BTreeMap::from([("f".into(), secret)]));
    assert!(!format!("{material:?}").contains("hunter2"));
}

#[test]
fn public_fields_are_not_scrubbed() {
    let secret = |value: &str| Secret::new(Zeroizing::new(value.into()));
    let fields =
        BTreeMap::from([("user".into(), secret("bob")), ("password".into(), secret("hunter2hunter2"))]);
    let mut material = Material::without_lease(fields);
    material.public = BTreeSet::from(["user".into()]);
    let needles = material.needles(&"warehouse".parse().unwrap());
    assert_eq!(needles.len(), 1);
    assert_eq!(&*needles[0].label, "warehouse.password");
    assert_eq!(&needles[0].value[..], b"hunter2hunter2");
}
