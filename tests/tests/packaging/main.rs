//! What is packaged and installed.
//!
//! | module | what it tests |
//! |---|---|
//! | [`debian`] | the Debian package under a booted systemd |
//! | [`dist`] | what `just dist` builds |
//! | [`embedded_shims`] | the shims inside the program |
//! | [`from_source`] | `cargo install` |
//! | [`hardening`] | how the built programs are protected against exploits |
//! | [`images`] | the OCI images |
//! | [`install`] | archives and `install.sh` |
//! | [`kubernetes`] | the manifests |
//! | [`packages`] | the wheel and the npm packages |
//! | [`published`] | the directory that `just dist` makes |
//! | [`service_manager`] | sockets that are passed to the sidecar, and what it reports |
//! | [`shell_files`] | completions and manual pages |
//! | [`units`] | the systemd units |
//! | [`walk`] | from `dist/` to the tools of an old `.mcp.json` in a sandbox |

mod debian;
mod dist;
mod embedded_shims;
mod from_source;
mod hardening;
mod images;
mod install;
mod kubernetes;
mod packages;
mod published;
mod service_manager;
mod shell_files;
mod units;
mod walk;

use std::collections::BTreeSet;

use cofferdam_tests::markdown::blocks;

const INSTALL: &str = include_str!("../../../packaging/guide/install.md");

/// The shell commands of one section of the guide's page, as they are written there.
#[track_caller]
fn commands_of_guide(heading: &str) -> Vec<String> {
    commands_of(INSTALL, heading)
}

/// The same of another page.
#[track_caller]
fn commands_of(page: &str, heading: &str) -> Vec<String> {
    let section = page.split("\n## ").find(|section| section.lines().next() == Some(heading));
    blocks(section.unwrap_or_else(|| panic!("the guide has no section `{heading}`")), "sh")
}

/// Tests that take minutes run them: this one finds a section that none of them runs.
#[test]
fn every_command_of_the_guide_is_in_a_section_that_a_test_runs() {
    let sections = INSTALL.split("\n## ").filter(|section| section.contains("```sh\n"));
    let with_commands: BTreeSet<&str> = sections.filter_map(|section| section.lines().next()).collect();
    let run = [
        &[debian::SECTION, from_source::SECTION, images::SECTION, walk::SECTION][..],
        &packages::SECTIONS[..],
    ]
    .concat();
    assert_eq!(with_commands, run.into_iter().collect());
}
