//! What pip would install: its report, and the requirements that are made of it.
//!
//! What must stay true: every package is a wheel with its SHA-256; a requirement is a name, a version and digests, and nothing that
//! pip reads as an option.

use serde::Deserialize;

use crate::lock::LockedPackage;
use crate::spec::{is_pypi_name, is_pypi_version};

const SHA256: &str = "sha256:";
const SHA256_HEX: usize = 64;

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ReportProblem {
    #[error("pip did not report what it would install in the format that was expected")]
    Format,
    #[error("`{0}` is not a wheel of the package index")]
    Foreign(String),
    #[error("the package index gives no SHA-256 for `{0}`")]
    Weak(String),
}

#[derive(Deserialize)]
struct Report {
    install: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    download_info: Download,
    metadata: Metadata,
    #[serde(default)]
    is_direct: bool,
}

#[derive(Deserialize)]
struct Download {
    url: String,
    archive_info: Option<Archive>,
}

#[derive(Deserialize)]
struct Archive {
    #[serde(default)]
    hashes: std::collections::BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    version: String,
}

/// The packages that pip would install.
pub(crate) fn packages(report: &[u8]) -> Result<Vec<LockedPackage>, ReportProblem> {
    let report: Report = serde_json::from_slice(report).map_err(|_| ReportProblem::Format)?;
    let mut packages = Vec::new();
    for Item { download_info, metadata: Metadata { name, version }, is_direct } in report.install {
        let path = download_info.url.split(['#', '?']).next().unwrap_or_default();
        if is_direct || !path.ends_with(".whl") || !is_pypi_name(&name) || !is_pypi_version(&version) {
            return Err(ReportProblem::Foreign(name));
        }
        let digest = download_info.archive_info.and_then(|archive| archive.hashes.get("sha256").cloned());
        match digest.filter(|digest| is_sha256(digest)) {
            Some(digest) => {
                packages.push(LockedPackage { name, version, integrity: format!("{SHA256}{digest}") })
            }
            None => return Err(ReportProblem::Weak(name)),
        }
    }
    match packages.is_empty() {
        true => Err(ReportProblem::Format),
        false => Ok(packages),
    }
}

/// A requirements file for exactly these packages. They may come from a lock, so they are checked again.
pub(crate) fn requirements(packages: &[LockedPackage]) -> Result<String, ReportProblem> {
    let line = |LockedPackage { name, version, integrity }: &LockedPackage| {
        let digest = integrity.strip_prefix(SHA256).filter(|digest| is_sha256(digest));
        match (is_pypi_name(name) && is_pypi_version(version), digest) {
            (true, Some(_)) => Ok(format!("{name}=={version} --hash={integrity}\n")),
            (true, None) => Err(ReportProblem::Weak(name.clone())),
            (false, _) => Err(ReportProblem::Foreign(name.clone())),
        }
    };
    packages.iter().map(line).collect()
}

/// One spelling of a name: `Server.Name` and `server-name` are the same package.
pub(crate) fn normalized(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '-' | '.' | '_' if text.ends_with('-') => {}
            '-' | '.' | '_' => text.push('-'),
            other => text.push(other.to_ascii_lowercase()),
        }
    }
    text
}

fn is_sha256(digest: &str) -> bool {
    digest.len() == SHA256_HEX && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn item(name: &str, url: &str) -> Value {
        json!({
            "download_info": {"url": url, "archive_info": {"hashes": {"sha256": "0".repeat(64)}}},
            "metadata": {"name": name, "version": "1.0", "metadata_version": "2.1"},
            "is_direct": false,
            "requested": true,
        })
    }

    fn read(items: &[Value]) -> Result<Vec<LockedPackage>, ReportProblem> {
        packages(json!({"version": "1", "pip_version": "23.0", "install": items}).to_string().as_bytes())
    }

    #[test]
    fn wheels_become_requirements_with_their_digests() {
        let packages =
            read(&[item("server", "https://index.example.com/server-1.0-py3-none-any.whl#sha256=00")])
                .unwrap();
        let expected = format!("server==1.0 --hash=sha256:{}\n", "0".repeat(64));
        assert_eq!(requirements(&packages), Ok(expected));
    }

    #[test]
    fn what_is_no_wheel_with_a_digest_is_refused() {
        let foreign = |name: &str| Err(ReportProblem::Foreign(name.into()));
        assert_eq!(read(&[item("server", "https://index.example.com/server-1.0.tar.gz")]), foreign("server"));
        assert_eq!(read(&[item("-r", "https://index.example.com/x.whl")]), foreign("-r"));
        let mut direct = item("server", "https://elsewhere.example/server-1.0-py3-none-any.whl");
        direct["is_direct"] = true.into();
        assert_eq!(read(&[direct]), foreign("server"));
        let mut weak = item("server", "https://index.example.com/x.whl");
        weak["download_info"]["archive_info"]["hashes"] = json!({"md5": "00"});
        assert_eq!(read(&[weak]), Err(ReportProblem::Weak("server".into())));
        assert_eq!(read(&[]), Err(ReportProblem::Format));
        assert_eq!(packages(b"{\"install\": "), Err(ReportProblem::Format));
    }

    #[test]
    fn a_name_has_one_spelling() {
        for name in ["Server.Name", "server--name", "SERVER_-name"] {
            assert_eq!(normalized(name), "server-name");
        }
    }

    proptest! {
        #[test]
        fn a_locked_package_never_becomes_an_option(name in "\\PC{0,12}", version in "\\PC{0,12}", digest in "(sha256:)?[0-9a-f -]{0,64}") {
            let package = LockedPackage { name, version, integrity: digest };
            if let Ok(text) = requirements(&[package]) {
                prop_assert_eq!(text.split_whitespace().count(), 2);
                prop_assert!(!text.starts_with('-') && text.lines().count() == 1);
            }
        }
    }
}
