//! Reads one server of a settings file, in the dialect of its harness.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base64ct::{Base64, Encoding as _};
use cofferdam_net::is_reserved_header;
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use crate::composer::Composer;
use crate::dialect::Dialect;
use crate::e2b;
use crate::found::{
    Composed, FoundEntry, FoundKind, FoundServer, Part, Place, ReferencedOrigin, ReferencedSource,
};
use crate::needs::Needs;
use crate::recognise::Reason;
use crate::secret_names::is_secret_name;
use crate::shim_entry::read_shim;
use crate::surroundings::Surroundings;

const SSE: &str = "it uses the SSE transport, which streamable HTTP has replaced: enter the address of its streamable HTTP endpoint, often `/mcp`";

/// Why a server that its harness does not start is not imported.
pub(crate) const DISABLED: &str = "it is disabled in these settings, and a secret of it stays in them: enable it there to import it, or remove it";

/// Reads a member of an object with servers. `path` is the path of that object.
pub(crate) fn read_entry(
    name: &str,
    entry: &Value,
    path: &[String],
    dialect: Dialect,
    surroundings: &Surroundings<'_>,
) -> FoundEntry {
    let Value::Object(entry) = entry else {
        return FoundEntry::Skipped { name: name.to_owned(), why: "it is not an object".to_owned() };
    };
    if let Some(shim) = read_shim(name, entry, surroundings.is_configured) {
        return FoundEntry::Shim(shim);
    }
    if is_disabled(entry) {
        return FoundEntry::Skipped { name: name.to_owned(), why: DISABLED.to_owned() };
    }
    let mut composer = Composer::new(dialect, surroundings);
    match read_kind(name, entry, &mut composer) {
        Ok(mut kind) => {
            composer.replace_known(&mut kind);
            let needs = needs_of(&kind, surroundings);
            let Composer { secrets, sources, mut notes, .. } = composer;
            notes.extend(needs.notes.iter().cloned());
            let path = path.iter().cloned().chain([name.to_owned()]).collect();
            FoundEntry::Server(FoundServer {
                name: name.to_owned(),
                path,
                dialect,
                kind,
                secrets,
                sources,
                needs,
                notes,
            })
        }
        Err(why) => FoundEntry::Skipped { name: name.to_owned(), why },
    }
}

/// What the process of a server needs inside its walls.
fn needs_of(kind: &FoundKind, surroundings: &Surroundings<'_>) -> Needs {
    match kind {
        FoundKind::Command { command, env, directory } => {
            let command: Vec<String> = command.iter().map(Composed::with_gaps).collect();
            let variables: Vec<String> = env.values().map(Composed::with_gaps).collect();
            Needs::of(&command, variables.iter().map(String::as_str), directory.as_deref(), surroundings)
        }
        FoundKind::Url { .. } => Needs::default(),
    }
}

/// Whether the harness does not start the server: Codex and opencode have `enabled`, the others `disabled`.
fn is_disabled(entry: &Map<String, Value>) -> bool {
    let is = |key: &str, value: bool| entry.get(key).and_then(Value::as_bool) == Some(value);
    is("disabled", true) || is("enabled", false)
}

fn read_kind(
    name: &str,
    entry: &Map<String, Value>,
    composer: &mut Composer<'_>,
) -> Result<FoundKind, String> {
    if composer.dialect == Dialect::E2b {
        return read_e2b(name, entry, composer);
    }
    for (key, why) in [
        ("envFile", "it reads variables from `envFile`: name them in `env`"),
        ("headersHelper", "a program gives its headers: use a secret with `exec` in the configuration"),
        ("tcp", "it uses a transport that MCP does not have"),
    ] {
        if entry.contains_key(key) {
            return Err(why.to_owned());
        }
    }
    let address = ["url", "serverUrl", "httpUrl"].iter().find_map(|key| Some((*key, entry.get(*key)?)));
    match (entry.get("command"), address) {
        (Some(_), _) => read_command(entry, composer),
        (None, Some((key, address))) => {
            let address = address.as_str().ok_or_else(|| format!("its `{key}` is not a text"))?;
            let transport = ["type", "transport"].iter().find_map(|key| entry.get(*key)?.as_str());
            let is_sse = transport.is_some_and(|transport| transport.eq_ignore_ascii_case("sse"))
                || composer.dialect == Dialect::Gemini && key == "url" && transport.is_none()
                || transport.is_none() && address.trim_end_matches('/').ends_with("/sse");
            if is_sse {
                return Err(SSE.to_owned());
            }
            read_url(address, entry, composer)
        }
        (None, None) => Err("it has neither a command nor a URL".to_owned()),
    }
}

fn read_command(entry: &Map<String, Value>, composer: &mut Composer<'_>) -> Result<FoundKind, String> {
    let mut words = texts(entry.get("command"), "command")?;
    words.extend(texts(entry.get("args"), "args")?);
    let cwd = entry.get("cwd").and_then(Value::as_str);
    let env_key = if composer.dialect == Dialect::OpenCode { "environment" } else { "env" };
    let variables = members(entry.get(env_key), env_key)?;
    let inherited = texts(entry.get("env_vars"), "env_vars")?;
    command_kind(&words, cwd, &variables, &inherited, composer)
}

fn command_kind(
    words: &[String],
    cwd: Option<&str>,
    variables: &[(String, Zeroizing<String>)],
    inherited: &[String],
    composer: &mut Composer<'_>,
) -> Result<FoundKind, String> {
    let (program, arguments) = words.split_first().ok_or("its command is empty")?;
    let program = composer.plain(program).ok_or("its program has a reference that cannot be resolved")?;
    if program.trim().is_empty() {
        return Err("its command is empty".to_owned());
    }
    let mut directory = match cwd.filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => {
            let cwd = composer.plain(cwd).ok_or("its `cwd` has a reference that cannot be resolved")?;
            Some(composer.surroundings.absolute(&cwd))
        }
        None => None,
    };
    let project = composer.surroundings.project.clone();
    let names_file = |argument: &String| {
        let is_relative = !argument.starts_with(['-', '/', '~', '$', '{']) && !argument.is_empty();
        is_relative
            && project.as_ref().is_some_and(|project| (composer.surroundings.exists)(&project.join(argument)))
    };
    let program = match program.contains('/') && !program.starts_with('/') {
        true => {
            let surroundings = directory.clone().map(|directory| composer.surroundings.of_project(directory));
            let absolute = surroundings.as_ref().unwrap_or(composer.surroundings).absolute(&program);
            absolute.to_str().ok_or("the path of its program is not text")?.to_owned()
        }
        false => program,
    };
    if directory.is_none() && arguments.iter().any(names_file) {
        composer
            .notes
            .push("it starts in the project's directory, because an argument is a file there".to_owned());
        directory = project;
    }
    let mut command = vec![Composed(vec![Part::Literal(Zeroizing::new(program))])];
    for (index, argument) in arguments.iter().enumerate() {
        let flag = index.checked_sub(1).map(|before| arguments[before].as_str());
        let flag = flag.filter(|flag| flag.starts_with('-') && !flag.contains('='));
        let place = Place::Argument(index + 1);
        let home = argument.starts_with("~/").then(|| composer.surroundings.absolute(argument));
        let expanded = home.as_ref().and_then(|path| path.to_str()).unwrap_or(argument);
        command.push(composer.compose(flag.unwrap_or_default(), expanded, &place));
    }
    let mut env = BTreeMap::new();
    for (name, value) in variables {
        env.insert(name.clone(), composer.compose(name, value, &Place::Variable(name.clone())));
    }
    for name in inherited {
        let origin = ReferencedOrigin::Variable(name.clone());
        let source = ReferencedSource { origin, is_public: !is_secret_name(name) };
        composer.notes.push(format!("the variable {name} comes from the environment of the sidecar"));
        let part = composer.source(source);
        env.insert(name.clone(), Composed(vec![part]));
    }
    Ok(FoundKind::Command { command, env, directory })
}

fn read_url(
    address: &str,
    entry: &Map<String, Value>,
    composer: &mut Composer<'_>,
) -> Result<FoundKind, String> {
    let address = composer.plain(address).ok_or("its URL has a reference that cannot be resolved")?;
    let (scheme, rest) = address.split_once("://").ok_or("its URL has no scheme")?;
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (user, host) = match rest[..authority_end].rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, &rest[..authority_end]),
    };
    let mut headers = read_headers(entry, composer)?;
    if let Some(user) = user {
        if headers.keys().any(|name| name.eq_ignore_ascii_case("authorization")) {
            return Err(
                "its URL has a user or password, and it has the header `Authorization` too".to_owned()
            );
        }
        let plain = Zeroizing::new(percent_decoded(user));
        let plain = if plain.contains(':') { plain } else { Zeroizing::new(format!("{}:", plain.as_str())) };
        let encoded = Zeroizing::new(Base64::encode_string(plain.as_bytes()));
        let part = composer.secret("basic", encoded, Reason::Url, &Place::Url);
        headers.insert("Authorization".to_owned(), Composed(vec![literal("Basic "), part]));
        composer
            .notes
            .push("the user and the password of its URL become the header `Authorization`".to_owned());
    }
    let url = format!("{scheme}://{host}{}", rest[authority_end..].split('#').next().unwrap_or_default());
    let mut probe = Composer::new(composer.dialect, composer.surroundings);
    if !probe.compose("url", &url, &Place::Url).is_literal() {
        return Err("its URL has a credential in its path or query, for which the configuration has no place: use a header if the server accepts one".to_owned());
    }
    let name = host_name(host);
    let is_loopback = is_loopback(name);
    if !scheme.eq_ignore_ascii_case("https") && !headers.is_empty() && !is_loopback {
        return Err("its `http://` URL would carry its headers unencrypted".to_owned());
    }
    if headers.is_empty() && !is_loopback {
        let note = "it has no credential: if the harness logs in to it by OAuth, the sidecar cannot yet";
        composer.notes.push(note.to_owned());
    }
    Ok(FoundKind::Url { url, headers, is_private: is_loopback || is_private(name) })
}

fn read_headers(
    entry: &Map<String, Value>,
    composer: &mut Composer<'_>,
) -> Result<BTreeMap<String, Composed>, String> {
    let mut headers = BTreeMap::new();
    for key in ["headers", "http_headers"] {
        for (name, value) in members(entry.get(key), key)? {
            let parsed: http::HeaderName =
                name.parse().map_err(|_| format!("`{key}` has a name that is not one of a header"))?;
            if is_reserved_header(&parsed) {
                composer.notes.push(format!("the header `{name}` is left out: the sidecar sets it itself"));
                continue;
            }
            headers.insert(name.clone(), composer.compose(&name, &value, &Place::Header(name.clone())));
        }
    }
    for (name, variable) in members(entry.get("env_http_headers"), "env_http_headers")? {
        let part = variable_source(&variable, composer);
        headers.insert(name, Composed(vec![part]));
    }
    if let Some(variable) = entry.get("bearer_token_env_var").and_then(Value::as_str) {
        let part = variable_source(variable, composer);
        headers.insert("Authorization".to_owned(), Composed(vec![literal("Bearer "), part]));
    }
    Ok(headers)
}

fn variable_source(variable: &str, composer: &mut Composer<'_>) -> Part {
    composer.notes.push(format!("a header comes from the environment variable {variable} of the sidecar"));
    let origin = ReferencedOrigin::Variable(variable.to_owned());
    composer.source(ReferencedSource { origin, is_public: false })
}

fn read_e2b(
    name: &str,
    entry: &Map<String, Value>,
    composer: &mut Composer<'_>,
) -> Result<FoundKind, String> {
    if let Some(command) = entry.get("runCmd").and_then(Value::as_str) {
        if entry.get("installCmd").is_some() {
            return Err("`installCmd` prepares a copy of its repository: install it on this host, and enter its command".to_owned());
        }
        let words = e2b::shell_words(command)
            .ok_or("its `runCmd` needs a shell: enter its command as a program and arguments")?;
        return command_kind(&words, None, &members(entry.get("envs"), "envs")?, &[], composer);
    }
    let server = e2b::catalogue_server(name)
        .ok_or("it is a name in E2B's catalogue whose program is not known here: enter its command; its secrets stay where they are")?;
    let parameters = members(Some(&Value::Object(entry.clone())), "parameters")?;
    let mut variables = Vec::new();
    for (parameter, value) in parameters {
        match server.variables.iter().find(|(known, _)| *known == parameter) {
            Some((_, variable)) => variables.push(((*variable).to_owned(), value)),
            None => {
                composer.notes.push(format!("its parameter `{parameter}` is not known here and left out"))
            }
        }
    }
    let words: Vec<String> = server.command.iter().map(|&word| word.to_owned()).collect();
    command_kind(&words, None, &variables, &[], composer)
}

fn literal(text: &str) -> Part {
    Part::Literal(Zeroizing::new(text.to_owned()))
}

/// One text, or several.
fn texts(value: Option<&Value>, key: &str) -> Result<Vec<String>, String> {
    let not_texts = || format!("its `{key}` is not a text or a list of texts");
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(elements)) => {
            elements.iter().map(|element| scalar(element).ok_or_else(not_texts)).collect()
        }
        Some(value) => Ok(vec![value.as_str().ok_or_else(not_texts)?.to_owned()]),
    }
}

/// The members of an object, as texts.
fn members(value: Option<&Value>, key: &str) -> Result<Vec<(String, Zeroizing<String>)>, String> {
    let not_object = || format!("its `{key}` is not an object of texts");
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Object(members)) => {
            let member = |(name, value): (&String, &Value)| {
                let is_variable = !name.is_empty() && !name.contains(['=', '\0']);
                let value = scalar(value).filter(|value| is_variable && !value.contains('\0'));
                Ok((name.clone(), Zeroizing::new(value.ok_or_else(not_object)?)))
            };
            members.iter().map(member).collect()
        }
        Some(_) => Err(not_object()),
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(value) => Some(value.to_string()),
        Value::String(value) => Some(value.clone()),
        Value::Array(_) | Value::Null | Value::Object(_) => None,
    }
}

fn host_name(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    authority.split(':').next().unwrap_or_default()
}

/// Whether a host is this machine. A name such as `127.example.com` is another one.
fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

/// Whether a host is in a private network by its name or address.
fn is_private(host: &str) -> bool {
    match host.parse() {
        Ok(IpAddr::V4(address)) => address.is_private() || address.is_link_local(),
        Ok(IpAddr::V6(address)) => address.is_unique_local() || address.is_unicast_link_local(),
        Err(_) => {
            !host.contains('.')
                || [".local", ".internal", ".lan", ".home.arpa"].iter().any(|end| host.ends_with(end))
        }
    }
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = (*first == b'%').then(|| behind.get(..2)).flatten();
        let decoded =
            digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match decoded {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}
