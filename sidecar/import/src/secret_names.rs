//! Whether the name of a variable, header, flag or parameter says that its value is a secret.

/// Any of these words in a name means a secret, unless its last word is one of [`HARMLESS_LAST`].
const SECRET_WORDS: &[&str] = &[
    "APIKEY",
    "AUTH",
    "AUTHORIZATION",
    "AUTHTOKEN",
    "BEARER",
    "COOKIE",
    "CREDENTIAL",
    "CREDENTIALS",
    "JWT",
    "PASS",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PAT",
    "PWD",
    "SECRET",
    "SECRETKEY",
    "TOKEN",
];

/// A `KEY` after none of these words is a secret too.
const PUBLIC_KEYS: &[&str] = &["FOREIGN", "PARTITION", "PRIMARY", "PUBLIC", "PUBLISHABLE", "SORT", "SSH"];

/// What a secret's name does not end with: these say something about a secret, or where it is.
const HARMLESS_LAST: &[&str] = &[
    "ALGORITHM",
    "COUNT",
    "DIR",
    "DIRECTORY",
    "ENABLED",
    "ENDPOINT",
    "ENV",
    "EXPIRY",
    "FILE",
    "HEADER",
    "HOST",
    "LENGTH",
    "LIMIT",
    "METHOD",
    "MODE",
    "NAME",
    "PATH",
    "PREFIX",
    "PROVIDER",
    "REGION",
    "SCOPE",
    "SCOPES",
    "SIZE",
    "TIMEOUT",
    "TTL",
    "TYPE",
    "URI",
    "URL",
    "VERSION",
];

/// What a name of something public ends with, however random its value looks.
const PUBLIC_LAST: &[&str] = &[
    "ACCOUNT",
    "CLUSTER",
    "DIR",
    "DIRECTORY",
    "DOMAIN",
    "EMAIL",
    "ENDPOINT",
    "FILE",
    "HOST",
    "ID",
    "IDS",
    "IMAGE",
    "MODEL",
    "NAME",
    "ORG",
    "PATH",
    "PROJECT",
    "REGION",
    "SHA",
    "TENANT",
    "URI",
    "URL",
    "USER",
    "USERNAME",
    "VERSION",
    "WORKSPACE",
];

/// The words of a name in upper case, split at separators and at the humps of camel case.
fn words(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut previous_is_lower = false;
    for character in name.chars() {
        let starts_word = character.is_ascii_uppercase() && previous_is_lower;
        if (!character.is_ascii_alphanumeric() || starts_word) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if character.is_ascii_alphanumeric() {
            word.push(character.to_ascii_uppercase());
        }
        previous_is_lower = character.is_ascii_lowercase() || character.is_ascii_digit();
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

/// Whether a value with this name is a secret by its name alone.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let words = words(name);
    let Some(last) = words.last() else { return false };
    if HARMLESS_LAST.contains(&last.as_str()) || name == "PWD" || name == "OLDPWD" {
        return false;
    }
    // An id of a key or token is public, such as AWS_ACCESS_KEY_ID; some are secret by their shape.
    if last == "ID" {
        return false;
    }
    let is_key = |(index, word): (usize, &String)| {
        let before = index.checked_sub(1).map_or("", |before| words[before].as_str());
        word == "KEY" && index + 1 == words.len() && !PUBLIC_KEYS.contains(&before)
    };
    words.iter().any(|word| SECRET_WORDS.contains(&word.as_str()))
        && !words.iter().any(|word| word == "PUBLIC")
        || words.iter().enumerate().any(is_key)
}

/// Whether a value with this name is public, however random it looks.
pub(crate) fn is_public_name(name: &str) -> bool {
    words(name).last().is_some_and(|last| PUBLIC_LAST.contains(&last.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets() {
        for name in [
            "GITHUB_TOKEN",
            "GITHUB_PERSONAL_ACCESS_TOKEN",
            "OPENAI_API_KEY",
            "apiKey",
            "api_key",
            "--api-key",
            "X-Api-Key",
            "Authorization",
            "DB_PASSWORD",
            "PGPASSWORD2_PASSWORD",
            "SLACK_BOT_TOKEN",
            "secretKey",
            "JIRA_PAT",
            "AWS_SECRET_ACCESS_KEY",
            "STRIPE_KEY",
            "twMcpBearerToken",
            "key",
            "COOKIE",
            "client_secret",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in [
            "TOKEN_FILE",
            "GOOGLE_APPLICATION_CREDENTIALS_PATH",
            "AUTH_TYPE",
            "MAX_TOKENS",
            "TOKEN_LIMIT",
            "PWD",
            "SLACK_TEAM_ID",
            "AWS_ACCESS_KEY_ID",
            "AUTH_URL",
            "PUBLIC_KEY",
            "KEYBOARD",
            "PATH",
            "",
            "MONKEY",
            "AUTHOR",
            "STRIPE_PUBLISHABLE_KEY",
            "NODE_ENV",
            "COMPASS",
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn names_of_public_values() {
        assert!(is_public_name("BROWSERBASE_PROJECT_ID") && is_public_name("projectId"));
        assert!(!is_public_name("BROWSERBASE"));
    }
}
