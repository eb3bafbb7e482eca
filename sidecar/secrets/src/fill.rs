//! Fills templates with the fields of secrets and the paths of injected files.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use http::HeaderValue;
use relay_proto::name::Name;
use zeroize::Zeroizing;

use super::exposed_values;
use super::fields::FieldError;
use super::material::Material;
use super::template::{Template, TemplatePart};
use super::value::Secret;
use cofferdam_process::Variable;

/// The secrets that a server may use, by name.
pub type Secrets = BTreeMap<Name, Arc<Material>>;

/// Errors name secrets and fields, and never contain values.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    #[error("the secret `{secret}`{} has no field `{field}`; it has {}", origin_clause(.origin), join_names(.has))]
    MissingField { secret: Name, origin: String, field: String, has: Vec<String> },
    #[error("no file `{name}` is injected: name it under the server's `files`")]
    MissingFile { name: String },
    #[error("the secret `{secret}` is not loaded")]
    MissingSecret { secret: Name },
    #[error("the value of a secret for an argument contains a NUL byte")]
    NulInArgument,
    #[error("the value for the environment variable `{name}` contains a NUL byte")]
    NulInVariable { name: String },
    #[error("the secret `{secret}`{} cannot be used here: {why}", origin_clause(.origin))]
    UnusableField { secret: Name, origin: String, why: FieldError },
    #[error("the value for the header contains a control character, such as a line end inside a secret")]
    UnfitForHeader,
}

/// Fills a template. The result is wiped when it is dropped.
pub fn fill(
    template: &Template,
    secrets: &Secrets,
    files: &BTreeMap<String, PathBuf>,
) -> Result<Zeroizing<Vec<u8>>, InjectError> {
    // The length is computed first: a buffer that grows leaves copies that are not wiped.
    let mut length = 0;
    for part in &template.parts {
        length += match part {
            TemplatePart::Field { secret, field, encoding } => {
                exposed_values::filled_length(find_field(secrets, secret, field)?, *encoding)
            }
            TemplatePart::File(name) => find_path(files, name)?.as_os_str().len(),
            TemplatePart::Literal(text) => text.len(),
        };
    }
    let mut filled = Zeroizing::new(Vec::with_capacity(length));
    for part in &template.parts {
        match part {
            TemplatePart::Field { secret, field, encoding } => {
                exposed_values::fill(find_field(secrets, secret, field)?, *encoding, &mut filled);
            }
            TemplatePart::File(name) => {
                filled.extend_from_slice(find_path(files, name)?.as_os_str().as_bytes())
            }
            TemplatePart::Literal(text) => filled.extend_from_slice(text.as_bytes()),
        }
    }
    debug_assert_eq!(filled.len(), length);
    Ok(filled)
}

/// The injected variables of a server; [`allowed_environment`](cofferdam_process::allowed_environment) adds the rest.
pub fn fill_environment(
    templates: &BTreeMap<String, Template>,
    secrets: &Secrets,
    files: &BTreeMap<String, PathBuf>,
) -> Result<Vec<Variable>, InjectError> {
    let variable = |(name, template): (&String, &Template)| {
        let value = fill(template, secrets, files)?;
        match value.contains(&0) {
            true => Err(InjectError::NulInVariable { name: name.clone() }),
            false => Ok((OsString::from(name), value)),
        }
    };
    templates.iter().map(variable).collect()
}

/// The arguments of a server's program. Other processes of the host can read them, so they are not wiped.
pub fn fill_arguments(
    templates: &[Template],
    secrets: &Secrets,
    files: &BTreeMap<String, PathBuf>,
) -> Result<Vec<OsString>, InjectError> {
    let argument = |template: &Template| {
        let value = fill(template, secrets, files)?;
        match value.contains(&0) {
            true => Err(InjectError::NulInArgument),
            false => Ok(OsString::from_vec(value.to_vec())),
        }
    };
    templates.iter().map(argument).collect()
}

/// A header of an HTTP server, marked as sensitive so that it is not printed.
pub fn fill_header(template: &Template, secrets: &Secrets) -> Result<HeaderValue, InjectError> {
    let filled = fill(template, secrets, &BTreeMap::new())?;
    let mut value = HeaderValue::from_bytes(&filled).map_err(|_| InjectError::UnfitForHeader)?;
    value.set_sensitive(true);
    Ok(value)
}

fn find_field<'a>(secrets: &'a Secrets, secret: &Name, field: &str) -> Result<&'a Secret, InjectError> {
    let material =
        secrets.get(secret).ok_or_else(|| InjectError::MissingSecret { secret: secret.clone() })?;
    material.fields.get(field).ok_or_else(|| {
        let (secret, origin) = (secret.clone(), material.origin.clone());
        match material.unusable.get(field) {
            Some(why) => InjectError::UnusableField { secret, origin, why: why.clone() },
            None => InjectError::MissingField {
                secret,
                origin,
                field: field.into(),
                has: material.fields.keys().cloned().collect(),
            },
        }
    })
}

impl InjectError {
    /// What a sandbox is told: no path, file name or variable of the host.
    pub fn for_sandbox(&self) -> String {
        match self {
            Self::MissingField { secret, field, .. } => {
                format!("the secret `{secret}` has no field `{field}`")
            }
            Self::UnusableField { secret, why, .. } => {
                format!("the secret `{secret}` cannot be used here: {why}")
            }
            Self::MissingFile { .. } => "a file that its configuration names is not injected".into(),
            Self::NulInVariable { .. } => "a value for its environment contains a NUL byte".into(),
            Self::MissingSecret { .. } | Self::NulInArgument | Self::UnfitForHeader => self.to_string(),
        }
    }
}

fn origin_clause(origin: &str) -> String {
    match origin.is_empty() {
        true => String::new(),
        false => format!(", which is from {origin},"),
    }
}

fn find_path<'a>(files: &'a BTreeMap<String, PathBuf>, name: &str) -> Result<&'a PathBuf, InjectError> {
    files.get(name).ok_or_else(|| InjectError::MissingFile { name: name.into() })
}

fn join_names(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::template::Encoding;
    use super::*;

    fn secrets() -> Secrets {
        let fields = [
            ("password", "p@ss w/ö-._~"),
            ("lines", "one\ntwo"),
            ("returned", "one\rtwo"),
            ("nul", "one\0two"),
            ("token", "abcdefgh"),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), Secret::new(Zeroizing::new(value.into()))));
        let material = Material::without_lease(fields.into());
        BTreeMap::from([("db".parse().unwrap(), Arc::new(material))])
    }

    fn field(field: &str, encoding: Encoding) -> TemplatePart {
        TemplatePart::Field { secret: "db".parse().unwrap(), field: field.into(), encoding }
    }

    fn filled(parts: Vec<TemplatePart>) -> Result<String, InjectError> {
        let files = BTreeMap::from([("ca.pem".to_owned(), PathBuf::from("/dev/shm/x/ca.pem"))]);
        let bytes = fill(&Template { parts }, &secrets(), &files)?;
        Ok(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[test]
    fn parts_are_filled_in_order() {
        let parts = vec![
            TemplatePart::Literal("db://{".into()),
            field("password", Encoding::Url),
            TemplatePart::Literal("}?ca=".into()),
            TemplatePart::File("ca.pem".into()),
            field("password", Encoding::Plain),
        ];
        assert_eq!(filled(parts).unwrap(), "db://{p%40ss%20w%2F%C3%B6-._~}?ca=/dev/shm/x/ca.pemp@ss w/ö-._~");
    }

    #[test]
    fn a_missing_field_secret_or_file_is_an_error_that_names_it() {
        let error = filled(vec![field("pasword", Encoding::Plain)]).unwrap_err().to_string();
        assert!(error.starts_with("the secret `db` has no field `pasword`; it has `lines`, "), "{error}");
        let secret = "gone".parse().unwrap();
        let other = TemplatePart::Field { secret, field: "token".into(), encoding: Encoding::Url };
        assert_eq!(filled(vec![other]).unwrap_err().to_string(), "the secret `gone` is not loaded");
        let error = filled(vec![TemplatePart::File("key.pem".into())]).unwrap_err();
        assert!(matches!(error, InjectError::MissingFile { name } if name == "key.pem"));
    }

    #[test]
    fn headers_are_sensitive_and_hold_no_line_end() {
        let header = |name: &str| {
            let parts = vec![TemplatePart::Literal("Bearer ".into()), field(name, Encoding::Plain)];
            fill_header(&Template { parts }, &secrets())
        };
        let value = header("token").unwrap();
        assert_eq!(value.as_bytes(), b"Bearer abcdefgh");
        assert!(value.is_sensitive());
        for name in ["lines", "returned", "nul"] {
            let error = header(name).unwrap_err();
            assert!(matches!(error, InjectError::UnfitForHeader), "{name}");
            assert!(!format!("{error:?}{error}").contains("one"));
        }
    }

    #[test]
    fn arguments_are_filled_and_hold_no_nul() {
        let argument = |name: &str| {
            let parts = vec![TemplatePart::Literal("--token=".into()), field(name, Encoding::Plain)];
            fill_arguments(&[Template { parts }], &secrets(), &BTreeMap::new())
        };
        assert_eq!(argument("token").unwrap(), ["--token=abcdefgh"]);
        assert!(matches!(argument("nul"), Err(InjectError::NulInArgument)));
    }

    #[test]
    fn variables_hold_no_nul() {
        let variable = |name: &str| {
            let template = Template { parts: vec![field(name, Encoding::Plain)] };
            fill_environment(&BTreeMap::from([("TOKEN".to_owned(), template)]), &secrets(), &BTreeMap::new())
        };
        let (name, value) = variable("lines").unwrap().remove(0);
        assert_eq!((name, &value[..]), ("TOKEN".into(), &b"one\ntwo"[..]));
        assert!(matches!(variable("nul"), Err(InjectError::NulInVariable { name }) if name == "TOKEN"));
    }
}
