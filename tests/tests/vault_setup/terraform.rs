//! The set-up as text for Terraform, compared with the schema of the provider that would apply it: hashicorp/vault 5.6.0, pinned
//! in `tests/requirements-terraform.txt`. Terraform itself is not run.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_tests::encodings::base64url;
use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::tools::Tool;
use hcl::expr::TraversalOperator;
use hcl::{Block, Body, Expression};
use serde_json::{Value, json};

use super::support::world_with_login;

/// The attributes of each resource, by its type; the provider's own are under `provider`.
struct Schema(BTreeMap<String, BTreeMap<String, Value>>);

impl Schema {
    /// `None` if the classes are not installed.
    #[track_caller]
    fn of(resources: &BTreeSet<&str>) -> Option<Self> {
        let (python, classes) = (Tool::Python.path()?, Tool::TerraformSchema.path()?);
        let mut read = command(python);
        read.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vault_setup/terraform_schema.py"));
        read.arg(classes).args(resources);
        let output = output_of(read, "the provider's schema");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(Self(serde_json::from_slice(&output.stdout).expect("the schema is JSON")))
    }

    /// Asserts that the provider accepts the attributes of this block: their names, what is required, and kinds of values.
    #[track_caller]
    fn assert_accepts(&self, kind: &str, block: &Block, known: &BTreeSet<String>) {
        let schema = &self.0[kind];
        assert_eq!(block.body().blocks().count(), 0, "{kind} has a block");
        for attribute in block.body().attributes() {
            let name = attribute.key();
            let expected = schema.get(name).unwrap_or_else(|| panic!("{kind} has no attribute `{name}`"));
            assert_eq!(kind_of(attribute.expr(), known), expected["kind"], "{kind}.{name}");
        }
        for (name, _) in schema.iter().filter(|(_, attribute)| attribute["required"] == true) {
            let is_there = block.body().attributes().any(|attribute| attribute.key() == name);
            assert!(is_there, "{kind} lacks the required attribute `{name}`");
        }
    }
}

/// What the schema calls a value. `known` are the resources that a reference may name.
#[track_caller]
fn kind_of(value: &Expression, known: &BTreeSet<String>) -> &'static str {
    match value {
        Expression::Bool(_) => "bool",
        Expression::Number(_) => "number",
        Expression::String(_) | Expression::TemplateExpr(_) => "string",
        Expression::Object(_) => "map",
        Expression::Array(values) => {
            assert!(values.iter().all(|value| kind_of(value, known) == "string"), "{values:?}");
            "list"
        }
        Expression::Traversal(traversal) => {
            let steps = traversal.operators.iter().map(|step| match step {
                TraversalOperator::GetAttr(name) => name.as_str(),
                step => panic!("{step:?}"),
            });
            let steps: Vec<&str> = steps.collect();
            let [label, "name" | "path"] = steps.as_slice() else { panic!("{traversal:?}") };
            let resource = format!("{}.{label}", traversal.expr);
            assert!(known.contains(&resource), "a reference to {resource}, which is not made here");
            "string"
        }
        value => panic!("{value:?}"),
    }
}

/// The text for a configuration with this login.
#[track_caller]
fn terraform(lines: &str) -> Body {
    let world = world_with_login("https://vault.example.com:8200", lines).prepare();
    let claims = json!({
        "iss": "https://issuer.example.com", "sub": "system:serviceaccount:agents:cofferdam", "aud": ["vault"],
        "kubernetes.io": {"namespace": "agents", "serviceaccount": {"name": "cofferdam"}},
    });
    let token = ["{}".to_owned(), claims.to_string(), "signature".to_owned()];
    let token = token.map(|part| base64url(part.as_bytes())).join(".");
    std::fs::write(world.layout().root().join("jwt"), token).expect("the world is writable");
    let text = world.cofferdam_text(&["vault", "setup", "--print", "terraform"]);
    hcl::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn the_text_for_terraform_has_only_what_the_providers_schema_has() {
    let logins = [
        (
            "vault_approle_auth_backend_role",
            "namespace = \"team-a\"\nauth = { method = \"approle\", mount = \"teams/login\", role-id-file = \"role-id\", secret-id-file = \"secret-id\" }\ntoken-role = \"sessions\"",
        ),
        (
            "vault_jwt_auth_backend_role",
            "auth = { method = \"jwt\", role = \"sidecar\", jwt-file = \"jwt\" }\ntoken-role = \"sessions\"",
        ),
        (
            "vault_kubernetes_auth_backend_role",
            "auth = { method = \"kubernetes\", role = \"sidecar\", jwt-file = \"jwt\" }",
        ),
    ];
    for (role, lines) in logins {
        let body = terraform(lines);
        let blocks: Vec<&Block> = body.blocks().collect();
        let label = |block: &Block, index: usize| block.labels()[index].as_str().to_owned();
        let resources: Vec<(String, &Block)> = blocks
            .iter()
            .filter(|block| block.identifier() == "resource")
            .map(|block| (label(block, 0), *block))
            .collect();
        let kinds: BTreeSet<&str> = resources.iter().map(|(kind, _)| kind.as_str()).collect();
        for expected in [role, "vault_auth_backend", "vault_mount", "vault_policy"] {
            assert!(kinds.contains(expected), "{expected} is not in {kinds:?}");
        }
        let Some(schema) = Schema::of(&kinds.into_iter().chain(["provider"]).collect()) else { return };
        let names: Vec<String> =
            resources.iter().map(|(kind, block)| format!("{kind}.{}", label(block, 1))).collect();
        let known: BTreeSet<String> = names.iter().cloned().collect();
        assert_eq!(known.len(), names.len(), "a resource is there twice: {names:?}");
        for (kind, block) in &resources {
            schema.assert_accepts(kind, block, &known);
        }
        let provider = blocks.iter().find(|block| block.identifier() == "provider");
        schema.assert_accepts("provider", provider.expect("the provider is configured"), &known);
    }
}
