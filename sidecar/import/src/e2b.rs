//! The servers of E2B's `mcp` object. A member `github/OWNER/REPOSITORY` has a shell command; any other name is one of a
//! catalogue and has parameters only, so that the program has to be known here.

/// A server of the catalogue: its name in E2B's SDKs, its program, and the variable for each of its parameters.
pub(crate) struct CatalogueServer {
    name: &'static str,
    pub(crate) command: &'static [&'static str],
    pub(crate) variables: &'static [(&'static str, &'static str)],
}

/// Each program and its variables were read in the program's package on npm; GitHub's is a program of its own.
const CATALOGUE: &[CatalogueServer] = &[
    CatalogueServer {
        name: "airtable",
        command: &["npx", "-y", "airtable-mcp-server"],
        variables: &[("airtableApiKey", "AIRTABLE_API_KEY"), ("nodeenv", "NODE_ENV")],
    },
    CatalogueServer {
        name: "brave",
        command: &["npx", "-y", "@brave/brave-search-mcp-server"],
        variables: &[("apiKey", "BRAVE_API_KEY")],
    },
    CatalogueServer {
        name: "browserbase",
        command: &["npx", "-y", "@browserbasehq/mcp-server-browserbase"],
        variables: &[
            ("apiKey", "BROWSERBASE_API_KEY"),
            ("geminiApiKey", "GEMINI_API_KEY"),
            ("projectId", "BROWSERBASE_PROJECT_ID"),
        ],
    },
    CatalogueServer {
        name: "circleci",
        command: &["npx", "-y", "@circleci/mcp-server-circleci"],
        variables: &[("token", "CIRCLECI_TOKEN"), ("url", "CIRCLECI_BASE_URL")],
    },
    CatalogueServer {
        name: "context7",
        command: &["npx", "-y", "@upstash/context7-mcp"],
        variables: &[("apiKey", "CONTEXT7_API_KEY")],
    },
    CatalogueServer {
        name: "exa",
        command: &["npx", "-y", "exa-mcp-server"],
        variables: &[("apiKey", "EXA_API_KEY")],
    },
    CatalogueServer {
        name: "firecrawl",
        command: &["npx", "-y", "firecrawl-mcp"],
        variables: &[("apiKey", "FIRECRAWL_API_KEY"), ("url", "FIRECRAWL_API_URL")],
    },
    CatalogueServer {
        name: "githubOfficial",
        command: &["github-mcp-server", "stdio"],
        variables: &[("githubPersonalAccessToken", "GITHUB_PERSONAL_ACCESS_TOKEN")],
    },
    CatalogueServer {
        name: "heroku",
        command: &["npx", "-y", "@heroku/mcp-server"],
        variables: &[("apiKey", "HEROKU_API_KEY")],
    },
    CatalogueServer {
        name: "hubspot",
        command: &["npx", "-y", "@hubspot/mcp-server"],
        variables: &[("apiKey", "PRIVATE_APP_ACCESS_TOKEN")],
    },
    CatalogueServer {
        name: "mongodb",
        command: &["npx", "-y", "mongodb-mcp-server"],
        variables: &[("mdbMcpConnectionString", "MDB_MCP_CONNECTION_STRING")],
    },
    CatalogueServer {
        name: "notion",
        command: &["npx", "-y", "@notionhq/notion-mcp-server"],
        variables: &[("internalIntegrationToken", "NOTION_TOKEN")],
    },
    CatalogueServer {
        name: "perplexityAsk",
        command: &["npx", "-y", "@perplexity-ai/mcp-server"],
        variables: &[("perplexityApiKey", "PERPLEXITY_API_KEY")],
    },
    CatalogueServer {
        name: "stripe",
        command: &["npx", "-y", "@stripe/mcp", "--tools=all"],
        variables: &[("secretKey", "STRIPE_SECRET_KEY")],
    },
    CatalogueServer {
        name: "supadata",
        command: &["npx", "-y", "@supadata/mcp"],
        variables: &[("apiKey", "SUPADATA_API_KEY")],
    },
    CatalogueServer {
        name: "tavily",
        command: &["npx", "-y", "tavily-mcp"],
        variables: &[("apiKey", "TAVILY_API_KEY")],
    },
];

pub(crate) fn is_catalogue_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

pub(crate) fn catalogue_server(name: &str) -> Option<&'static CatalogueServer> {
    CATALOGUE.iter().find(|server| server.name == name)
}

/// The words of a shell command; `None` if a shell would do more than to split it.
pub(crate) fn shell_words(command: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = command.chars();
    while let Some(character) = characters.next() {
        match character {
            ' ' | '\t' => words.extend(word.take()),
            '\'' | '"' => loop {
                let word = word.get_or_insert_default();
                match characters.next()? {
                    end if end == character => break,
                    '\\' | '$' | '`' if character == '"' => return None,
                    inside => word.push(inside),
                }
            },
            '|' | '&' | ';' | '<' | '>' | '(' | ')' | '$' | '`' | '\\' | '*' | '?' | '[' | '#' | '~'
            | '\n' => return None,
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    let is_assignment = words.first().is_some_and(|first: &String| first.contains('='));
    (!words.is_empty() && !is_assignment).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_names_every_server_that_is_imported() {
        let guide = include_str!("../../../packaging/guide/import.md");
        let names: Vec<String> = CATALOGUE.iter().map(|server| format!("`{}`", server.name)).collect();
        assert!(names.is_sorted(), "{names:?}");
        let (last, others) = names.split_last().unwrap();
        let list = format!("{} and {last}", others.join(", "));
        assert!(guide.replace('\n', " ").contains(&list), "{list}");
    }

    #[test]
    fn a_command_is_split_only_if_a_shell_would_do_no_more() {
        let words = |text| shell_words(text).map(|words| words.join("|"));
        assert_eq!(words("npx -y  'a b' \"c\"d ''"), Some("npx|-y|a b|cd|".to_owned()));
        for text in ["a && b", "A=1 b", "echo $HOME", "a 'b", "", "a > b", "\"$x\"", "ls *"] {
            assert_eq!(words(text), None, "{text}");
        }
    }
}
