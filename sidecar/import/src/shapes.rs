//! The forms of known kinds of credentials, by their prefixes.

/// A prefix, the least length of the whole, and what it is.
const PREFIXES: &[(&str, usize, &str)] = &[
    ("ghp_", 30, "a GitHub token"),
    ("gho_", 30, "a GitHub token"),
    ("ghu_", 30, "a GitHub token"),
    ("ghs_", 30, "a GitHub token"),
    ("ghr_", 30, "a GitHub token"),
    ("github_pat_", 30, "a GitHub token"),
    ("glpat-", 20, "a GitLab token"),
    ("gldt-", 20, "a GitLab token"),
    ("sk-ant-", 20, "an Anthropic key"),
    ("sk-proj-", 20, "an OpenAI key"),
    ("sk-or-", 20, "an OpenRouter key"),
    ("sk-lf-", 20, "a Langfuse key"),
    ("sk-", 32, "an API key"),
    ("sk_live_", 16, "a Stripe key"),
    ("sk_test_", 16, "a Stripe key"),
    ("rk_live_", 16, "a Stripe key"),
    ("rk_test_", 16, "a Stripe key"),
    ("whsec_", 16, "a webhook secret"),
    ("xoxb-", 16, "a Slack token"),
    ("xoxp-", 16, "a Slack token"),
    ("xoxc-", 16, "a Slack token"),
    ("xoxd-", 16, "a Slack token"),
    ("xapp-", 16, "a Slack token"),
    ("AKIA", 20, "an AWS access key"),
    ("ASIA", 20, "an AWS access key"),
    ("AIza", 35, "a Google API key"),
    ("ya29.", 20, "a Google token"),
    ("GOCSPX-", 20, "a Google client secret"),
    ("hvs.", 20, "a Vault token"),
    ("hvb.", 20, "a Vault token"),
    ("npm_", 30, "an npm token"),
    ("pypi-", 30, "a PyPI token"),
    ("dop_v1_", 30, "a DigitalOcean token"),
    ("SG.", 40, "a SendGrid key"),
    ("lin_api_", 20, "a Linear key"),
    ("ntn_", 20, "a Notion token"),
    ("secret_", 30, "a Notion token"),
    ("figd_", 20, "a Figma token"),
    ("hf_", 30, "a Hugging Face token"),
    ("tvly-", 16, "a Tavily key"),
    ("fc-", 30, "a Firecrawl key"),
    ("e2b_", 30, "an E2B key"),
    ("gsk_", 30, "a Groq key"),
    ("pplx-", 30, "a Perplexity key"),
    ("xai-", 30, "an xAI key"),
    ("r8_", 30, "a Replicate token"),
    ("bb_live_", 16, "a Browserbase key"),
    ("apify_api_", 20, "an Apify token"),
    ("pat", 60, "an Airtable token"),
    ("ATATT3", 40, "an Atlassian token"),
    ("sbp_", 30, "a Supabase token"),
    ("dapi", 34, "a Databricks token"),
    ("shpat_", 30, "a Shopify token"),
    ("sntrys_", 30, "a Sentry token"),
    ("sntryu_", 30, "a Sentry token"),
    ("glsa_", 30, "a Grafana token"),
    ("NRAK-", 30, "a New Relic key"),
    ("dckr_pat_", 24, "a Docker token"),
    ("CFPAT-", 30, "a Contentful token"),
    ("phx_", 30, "a PostHog key"),
];

const JSON_WEB_TOKEN: &str = "a JSON Web Token";
const PRIVATE_KEY: &str = "a private key";

/// What kind of credential a word is by its form. The word has no characters but those of credentials.
pub(crate) fn shape_of(word: &str) -> Option<&'static str> {
    let is_of_key =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+' | b'=');
    if !word.bytes().all(is_of_key) {
        return None;
    }
    if word.starts_with("eyJ") && word.len() >= 40 && word.matches('.').count() == 2 {
        return Some(JSON_WEB_TOKEN);
    }
    let fits = |(prefix, least, _): &&(&str, usize, &str)| {
        word.len() >= *least && word.strip_prefix(prefix).is_some_and(is_random_rest)
    };
    PREFIXES.iter().find(fits).map(|(_, _, kind)| *kind)
}

/// The public prefix of a credential of a known kind, which may be shown.
pub(crate) fn public_prefix(word: &str) -> Option<&'static str> {
    let kind = shape_of(word)?;
    let fits = |(prefix, _, of): &&(&'static str, usize, &str)| *of == kind && word.starts_with(prefix);
    PREFIXES.iter().find(fits).map(|(prefix, _, _)| *prefix)
}

/// `Some` with the kind if the text is a private key in PEM format.
pub(crate) fn is_private_key(text: &str) -> Option<&'static str> {
    let starts = text.trim_start().starts_with("-----BEGIN ") && text.contains("PRIVATE KEY-----");
    starts.then_some(PRIVATE_KEY)
}

/// What follows a prefix in a credential has digits or both cases; in a word of another kind it has not.
fn is_random_rest(rest: &str) -> bool {
    let has = |test: fn(&u8) -> bool| rest.as_bytes().iter().any(test);
    has(u8::is_ascii_digit) || has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) || {
        let first = rest.bytes().next();
        rest.len() >= 20 && rest.bytes().all(|byte| Some(byte) == first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_have_shapes_and_words_have_none() {
        assert_eq!(shape_of("glpat-0123456789abcdefghij"), Some("a GitLab token"));
        assert_eq!(shape_of("AKIAIOSFODNN7EXAMPLE"), Some("an AWS access key"));
        assert_eq!(shape_of(&format!("eyJhbGciOiJIUzI1NiJ9.{}.abc", "e".repeat(30))), Some(JSON_WEB_TOKEN));
        assert_eq!(shape_of("secret_manager_of_the_whole_company"), None);
        assert_eq!(shape_of("sk-short"), None);
        assert_eq!(public_prefix("glpat-0123456789abcdefghij"), Some("glpat-"));
        assert!(is_private_key("-----BEGIN OPENSSH PRIVATE KEY-----\nx\n").is_some());
    }
}
