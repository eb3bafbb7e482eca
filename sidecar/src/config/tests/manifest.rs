//! Tests of `[servers.NAME] manifest`.

use cofferdam_confine::manifest::Permission;

use super::*;

/// Manifests that the configurations of these tests name.
pub(super) fn manifests(path: &Path) -> std::io::Result<Vec<u8>> {
    let text = match path.to_str() {
        Some("/m/cut.json") => r#"{"permissions": ["mcp.ac.filesystem.read""#,
        Some("/m/duplicate.json") => r#"{"permissions": ["mcp.ac.location", "mcp.ac.location"]}"#,
        Some("/m/everything.json") => {
            r#"{"permissions": ["mcp.ac.filesystem.read", "mcp.ac.filesystem.write", "mcp.ac.filesystem.delete",
                "mcp.ac.system.env.read", "mcp.ac.system.exec", "mcp.ac.network.client"]}"#
        }
        Some("/m/network.json") => r#"{"permissions": ["mcp.ac.network.client"]}"#,
        Some("/m/nothing.json") => r#"{"permissions": []}"#,
        Some("/m/secret.json") => r#"{"token": "ghp_secret"}"#,
        Some("/m/unknown.json") => r#"{"permissions": ["mcp.ac.network.clients", "x"]}"#,
        _ => return Err(std::io::ErrorKind::NotFound.into()),
    };
    Ok(text.as_bytes().to_vec())
}

#[test]
fn a_manifest_that_allows_what_is_given_is_kept() {
    let config = valid(
        "[servers.a]\ncommand = ['a']\nmanifest = '/m/everything.json'\ncwd = '/srv/a'\nenv = { A = 'b' }\n\
         confine = { read = ['/srv/b'], write = ['/srv/c'], hosts = ['a.example:443'], home = 'keep' }\n\
         [servers.b]\ncommand = ['b']\nmanifest = '/m/nothing.json'\nconfine = { exec = [] }\n",
    );
    let permissions = |name: &str| match &config.servers[&name.parse().expect("a name")].kind {
        ServerKind::Stdio(stdio) => {
            let confinement = stdio.confinement.as_ref().expect("it is confined");
            confinement.manifest.as_ref().expect("it has a manifest").permissions.clone()
        }
        ServerKind::Http(_) => panic!("it is a program"),
    };
    assert_eq!(permissions("a").len(), 6);
    assert!(permissions("a").contains(&Permission::FilesystemDelete));
    assert!(permissions("b").is_empty());
}

#[test]
fn each_key_that_goes_beyond_the_manifest_is_an_error_with_the_missing_word() {
    assert_problems(
        "[servers.a]\ncommand = ['a']\ncwd = '/srv/a'\nenv = { A = 'b' }\nmanifest = '/m/nothing.json'\n\
         [servers.a.confine]\nwrite = ['/usr/lib']\nhosts = ['a.example:443']\nexec = ['/usr/bin/true']\n\
         [servers.b]\ncommand = ['b']\nmanifest = '/m/network.json'\nconfine = { hosts = ['a.example:443'] }\n\
         [servers.c]\ncommand = ['c']\nmanifest = '/m/nothing.json'\nconfine = { exec = [] }\n\
         [[servers.c.scopes]]\ntools = ['x']\nenv = { A = 'b' }\n",
        "cofferdam.toml:5: `servers.a.confine.write` needs `mcp.ac.filesystem.read`, which the server's manifest lacks\n  \
         hint: give the server less, or add the word to the manifest if the server needs it\n\
         cofferdam.toml:5: `servers.a.confine.write` needs `mcp.ac.filesystem.write`, which the server's manifest lacks\n  \
         hint: give the server less, or add the word to the manifest if the server needs it\n\
         cofferdam.toml:5: `servers.a.confine.write` needs `mcp.ac.filesystem.delete`, which the server's manifest lacks\n  \
         hint: give the server less, or add the word to the manifest if the server needs it\n\
         cofferdam.toml:5: `servers.a.env` needs `mcp.ac.system.env.read`, which the server's manifest lacks\n  \
         hint: give the server less, or add the word to the manifest if the server needs it\n\
         cofferdam.toml:5: `servers.a.confine.exec` needs `mcp.ac.system.exec`, which the server's manifest lacks\n  \
         hint: give the server less, or add the word to the manifest if the server needs it\n\
         cofferdam.toml:5: `servers.a.confine.hosts` needs `mcp.ac.network.client`, which the server's manifest lacks\n  \
         hint: give the server less, or add the word to the manifest if the server needs it\n\
         cofferdam.toml:12: without `servers.b.confine.exec` the server may execute every program that it sees: `mcp.ac.system.exec`, which its manifest lacks\n  \
         hint: write `exec = []` into `confine`, or add the word to the manifest if the server needs it\n\
         cofferdam.toml:16: `servers.c.env` needs `mcp.ac.system.env.read`, which the server's manifest lacks\n  \
         hint: give the server less, or add the word to the manifest if the server needs it",
    );
}

#[test]
fn a_manifest_bounds_confined_programs_and_is_out_of_their_reach() {
    assert_problems(
        "[servers.a]\ncommand = ['a']\nmanifest = '/m/nothing.json'\nconfine = 'off'\n\
         [servers.b]\nurl = 'https://b'\nmanifest = '/m/nothing.json'\n\
         [servers.c]\ncommand = ['c']\nmanifest = '/m/everything.json'\nconfine = { write = ['/m'] }\n",
        "cofferdam.toml:3: `servers.a.manifest` bounds what the server may reach, but the server is not confined\n  \
         hint: confine it with `confine = {}`, or leave the manifest out\n\
         cofferdam.toml:7: `servers.b.manifest` is for servers with `command`\n  \
         hint: leave it out\n\
         cofferdam.toml:10: `servers.c.confine.write` contains the manifest, so the server could change it\n  \
         hint: keep the manifest where the server cannot write",
    );
}

#[test]
fn a_file_that_is_no_manifest_is_an_error_that_quotes_nothing_of_it() {
    let server = |name: &str| {
        format!("[servers.{name}]\ncommand = ['a']\nmanifest = '/m/{name}.json'\nconfine = {{}}\n")
    };
    let text: String = ["cut", "duplicate", "gone", "secret", "unknown"].map(server).concat();
    assert_problems(
        &text,
        "cofferdam.toml:3: the file of `servers.cut.manifest` cannot be used: it ends in the middle of its JSON\n  \
         hint: write or download it again\n\
         cofferdam.toml:7: the file of `servers.duplicate.manifest` cannot be used: its `permissions` name `mcp.ac.location` twice\n  \
         hint: name each permission once\n\
         cofferdam.toml:11: cannot read the file of `servers.gone.manifest`: entity not found\n  \
         hint: name a manifest's file; a relative path starts at the configuration's directory\n\
         cofferdam.toml:15: the file of `servers.secret.manifest` cannot be used: it is not a manifest: see line 1, column 23; it is an object with a list `permissions` of words\n  \
         hint: is this the manifest?\n\
         cofferdam.toml:19: the file of `servers.unknown.manifest` cannot be used: entry 1 of its `permissions` is not one of the 18 words of AgentManifest\n  \
         hint: did you mean `mcp.ac.network.client`?",
    );
}
