//! Checks the sources of secrets on this host, and that they have the fields that templates use.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_scrub::Guessable;
use cofferdam_secrets::{
    FieldError, MIN_VALUE_BYTES, Origin, SecretProblem, SecretSpec, SourceError, SourceLimits, Template,
    local_fields,
};
use cofferdam_servers::spec::{Scope, ServerKind, ServerSpec};
use relay_proto::name::Name;

use super::files;
use super::findings::Findings;
use crate::config::Config;

/// The fields of each secret that could be read.
type KnownFields<'a> = BTreeMap<&'a Name, BTreeSet<String>>;

pub(super) fn check(config: &Config, findings: &mut Findings<'_>) {
    let limits = SourceLimits::from(&config.limits);
    let mut known = KnownFields::new();
    for (name, secret) in config.secrets.iter() {
        if let Some(fields) = check_source(secret, limits, findings) {
            known.insert(name, fields);
        }
    }
    for server in config.servers.values() {
        check_server(server, &known, findings);
    }
    for (name, platform) in &config.platforms {
        check_template(&platform.api_key, &["platforms", name.as_str(), "api-key"], &known, findings);
    }
}

/// Checks one source. Returns the names of its fields if it could be read without side effects.
fn check_source(
    secret: &SecretSpec,
    limits: SourceLimits,
    findings: &mut Findings<'_>,
) -> Option<BTreeSet<String>> {
    let name = secret.name.as_str();
    let key = match &secret.origin {
        Origin::Env(_) => ["secrets", name, "env"],
        Origin::Exec { command, .. } => {
            files::check_program(command, &["secrets", name, "exec"], findings);
            return None;
        }
        Origin::File(path) => {
            let key = ["secrets", name, "file"];
            files::check_secrecy(path, &key, findings);
            key
        }
        Origin::Vault(_) => return None,
    };
    match local_fields(secret, limits) {
        Ok(fields) => fields.map(|fields| {
            if let Some(guessable) = fields.guessable {
                report_guessable(guessable, &key, findings);
            }
            fields.names
        }),
        Err(problem) => {
            let (message, hint) = describe(&problem, &key);
            findings.add(code_of(&problem), &key, message, hint);
            None
        }
    }
}

/// Reports a value that is not searched for everywhere. Its field is not named, for the same reason as in [`describe`].
fn report_guessable(guessable: Guessable, key: &[&str], findings: &mut Findings<'_>) {
    let (what, hint) = match guessable {
        Guessable::Value => (
            "a value",
            "use a longer one with more different characters, or list its field under `public` if it is no secret",
        ),
        Guessable::Part => (
            "a line of a value, or the text that its escapes stand for,",
            "use longer lines, or list the field under `public` if it is no secret",
        ),
    };
    let message = format!(
        "{what} in the source of `{}` could be found by guessing; it is removed only from what its own servers send",
        key.join(".")
    );
    findings.add("secret-guessable", key, message, hint);
}

/// What is wrong with a source, and what to do about it. Names neither its path nor its variable, nor a field that the source
/// has: if a file is not what it should be, its keys may be secret too.
fn describe(problem: &SecretProblem, key: &[&str]) -> (String, String) {
    let key = key.join(".");
    match problem {
        SecretProblem::Source(SourceError::Unset) => (
            format!("the environment variable of `{key}` is not set"),
            "set it where `cofferdam serve` runs; if it is set there and not here, this can be ignored"
                .to_owned(),
        ),
        SecretProblem::Source(SourceError::Read(error)) => files::describe_unreadable(error, &key),
        SecretProblem::Source(SourceError::NotAFile) => (
            format!("what `{key}` names is not a regular file"),
            "name a file that contains the value, or a JSON object of fields".to_owned(),
        ),
        SecretProblem::Source(SourceError::TooLarge { limit }) => (
            format!("the source of `{key}` has more than {limit} bytes"),
            "name a smaller source, or raise `limits.secret-bytes`".to_owned(),
        ),
        SecretProblem::Field(error) => {
            (format!("the source of `{key}` {}", describe_content(error)), problem.next_step_in(&key))
        }
        _ => (format!("the source of `{key}` cannot be used"), problem.next_step_in(&key)),
    }
}

fn code_of(problem: &SecretProblem) -> &'static str {
    match problem {
        SecretProblem::Source(SourceError::Unset) => "secret-unset",
        SecretProblem::Source(SourceError::Read(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            "secret-missing"
        }
        SecretProblem::Source(_) => "secret-unreadable",
        _ => "secret-invalid",
    }
}

fn describe_content(error: &FieldError) -> String {
    match error {
        FieldError::Empty => "is empty".to_owned(),
        FieldError::EmptyField { .. } => "has an empty field".to_owned(),
        FieldError::NotPlain { .. } => "has a field that is null, a list or an object".to_owned(),
        FieldError::Repeated { .. } => "has a field twice".to_owned(),
        FieldError::TooShort { .. } => {
            format!(
                "has a value of fewer than {MIN_VALUE_BYTES} bytes, and scrubbing it would destroy other text"
            )
        }
    }
}

fn check_server(server: &ServerSpec, known: &KnownFields<'_>, findings: &mut Findings<'_>) {
    let table = ["servers", server.name.as_str()];
    match &server.kind {
        ServerKind::Http(http) => {
            for (header, template) in &http.headers {
                check_template(template, &[table[0], table[1], "headers", header.as_str()], known, findings);
            }
        }
        ServerKind::Stdio(stdio) => {
            for template in &stdio.argument_templates {
                check_template(template, &[table[0], table[1], "command"], known, findings);
            }
            for (key, templates) in [("env", &stdio.env), ("files", &stdio.files)] {
                for (name, template) in templates {
                    check_template(template, &[table[0], table[1], key, name], known, findings);
                }
            }
        }
    }
    // The scopes of a server are an array, whose elements have no names. Each has the server's own templates too, except those
    // that it replaces, and these are checked above.
    let own: Vec<&Template> = server.templates().collect();
    let of_scopes = server.scopes.iter().flat_map(|scope| Scope::templates(scope));
    for template in of_scopes.filter(|template| !own.contains(template)) {
        check_template(template, &[table[0], table[1], "scopes"], known, findings);
    }
}

fn check_template(template: &Template, key: &[&str], known: &KnownFields<'_>, findings: &mut Findings<'_>) {
    for (secret, field) in template.fields() {
        if known.get(secret).is_some_and(|fields| !fields.contains(field)) {
            let message = format!(
                "`{}` uses `{{{secret}.{field}}}`, but that secret has no field `{field}`",
                key.join(".")
            );
            let hint = "correct the name, or add the field to the secret's source; a source that is no JSON object has one field, `value`";
            findings.add("secret-field-missing", key, message, hint);
        }
    }
}
