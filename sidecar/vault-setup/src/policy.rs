//! The text of a policy.

use std::collections::BTreeMap;

use cofferdam_vault::Need;

/// A capability that a policy has to grant, and what for.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct PolicyNeed {
    pub need: Need,
    pub reason: String,
}

/// A policy that grants exactly these capabilities, with a comment for each path. `title` says whose policy it is.
/// The paths must not contain `*` or `+`, which stand for other paths in a policy.
pub fn policy_text(title: &str, needs: &[PolicyNeed]) -> String {
    let mut by_path: BTreeMap<&str, Vec<&PolicyNeed>> = BTreeMap::new();
    for need in needs {
        by_path.entry(&need.need.path).or_default().push(need);
    }
    let block = |(path, needs): (&str, Vec<&PolicyNeed>)| {
        let unique = |texts: Vec<String>| {
            let mut unique: Vec<String> = Vec::new();
            texts.into_iter().for_each(|text| {
                if !unique.contains(&text) {
                    unique.push(text);
                }
            });
            unique
        };
        let comments = unique(needs.iter().map(|need| format!("# {}\n", need.reason)).collect()).concat();
        let mut capabilities =
            unique(needs.iter().map(|need| format!("\"{}\"", need.need.capability)).collect());
        capabilities.sort();
        let path = path.replace('\\', "\\\\").replace('"', "\\\"");
        format!("\n{comments}path \"{path}\" {{\n  capabilities = [{}]\n}}\n", capabilities.join(", "))
    };
    let blocks: String = by_path.into_iter().map(block).collect();
    format!("# {title} Made by `cofferdam vault setup`.\n{blocks}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_one_block_for_each_path_with_its_reasons() {
        let need = |need, reason: &str| PolicyNeed { need, reason: reason.to_owned() };
        let needs = [
            need(Need::update("pki/issue/agent"), "secret `cert`"),
            need(Need::read("kv/a \"b\""), "secret `a`"),
            need(Need::read("pki/issue/agent"), "secret `cert`"),
        ];
        assert_eq!(
            policy_text("What sessions may do.", &needs),
            "# What sessions may do. Made by `cofferdam vault setup`.\n\
             \n# secret `a`\npath \"kv/a \\\"b\\\"\" {\n  capabilities = [\"read\"]\n}\n\
             \n# secret `cert`\npath \"pki/issue/agent\" {\n  capabilities = [\"read\", \"update\"]\n}\n"
        );
    }
}
