//! What a token refresh may change in the login file of a harness. Everything else that the sandbox has changed is refused.
//!
//! The sandbox is not trusted, and the file in its home is its word. So the user's file gets the values of the listed fields
//! and nothing else, and gets those only if the file in the sandbox can be the same login after a refresh:
//!
//! - every other field of the user's login (account, organisation, scopes, kind of login, API keys, addresses, and fields that
//!   this version does not know) is equal; fields that the sandbox added are never copied;
//! - the access token had expired or was about to expire, because a harness does not refresh a token before that;
//! - a token that names its account (a JSON Web Token) names the same account as before. Its signature is not verified: the
//!   provider refuses a forged token;
//! - tokens are short printable text, and the new expiry is later than the old one and not far in the future.
//!
//! What remains: where both tokens are opaque, as those of Claude Code, a sandbox in which a refresh was due can return the
//! tokens of another account. No check on this machine can find that out; `--login discard` avoids it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::value::RawValue;
use zeroize::Zeroizing;

use super::token_claims::Identity;

/// The entries of a JSON object, with the text of each value unchanged.
pub(super) type Entries<'a> = BTreeMap<String, &'a RawValue>;

/// Which fields of a login file a refresh changes.
#[derive(Debug, Eq, PartialEq)]
pub(in crate::run) struct RefreshRule {
    /// The path of each field from the root of the file. [`ANY`] stands for every name.
    fields: &'static [(&'static [&'static str], RefreshedField)],
    /// How long before the expiry of its access token the harness may refresh it.
    lead: Duration,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RefreshedField {
    AccessToken,
    /// A refresh token or an identity token.
    OtherToken,
    /// When the access token beside it expires, in milliseconds since 1970.
    AccessTokenExpiry,
    /// The time of the refresh, as text.
    Date,
    /// The harness may change it at any time; the user's value stays.
    Bookkeeping,
}
use RefreshedField::{AccessToken, AccessTokenExpiry, Bookkeeping, Date, OtherToken};

/// What has become of a login in the sandbox.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Comparison {
    Same,
    Refreshed,
}

/// Why the login in the sandbox cannot be the user's login after a refresh. Names only fields of the user's own file.
#[derive(Debug, Eq, PartialEq, thiserror::Error)]
pub(in crate::run) enum NotARefresh {
    #[error("its `{0}` differs, which a refresh does not change")]
    OtherValue(String),
    #[error("its `{0}` is not a token of the same form")]
    NotAToken(String),
    #[error("its `{0}` names another account, client or scope")]
    OtherAccount(String),
    #[error("its `{0}` is not a plausible time")]
    NotATime(String),
    #[error("its access token is the old one with another expiry")]
    OnlyExpiry,
    #[error("its tokens changed although no refresh was due")]
    NotDue,
}

/// Stands for every name at its place in a path.
const ANY: &str = "*";
const MAX_TOKEN_BYTES: usize = 16 * 1024;
const MAX_DATE_BYTES: usize = 40;
/// Harnesses refresh a few minutes before the expiry; clocks may differ.
const SHORT_LEAD: Duration = Duration::from_secs(15 * 60);
/// Codex has refreshed tokens with a life of ten days after eight days.
const CODEX_LEAD: Duration = Duration::from_secs(3 * 24 * 60 * 60);
/// No access token lives longer.
const MAX_LIFE: Duration = Duration::from_secs(400 * 24 * 60 * 60);

pub(super) static CLAUDE_CODE: RefreshRule = RefreshRule {
    fields: &[
        (&["claudeAiOauth", "accessToken"], AccessToken),
        (&["claudeAiOauth", "refreshToken"], OtherToken),
        (&["claudeAiOauth", "expiresAt"], AccessTokenExpiry),
        (&["claudeAiOauth", "refreshTokenExpiresAt"], Bookkeeping),
        // How and when Claude Code last learned the plan; the plan itself must not change.
        (&["claudeAiOauth", "subscriptionTypeSource"], Bookkeeping),
        (&["claudeAiOauth", "subscriptionTypeVerifiedAt"], Bookkeeping),
    ],
    lead: SHORT_LEAD,
};

pub(super) static CODEX: RefreshRule = RefreshRule {
    fields: &[
        (&["tokens", "access_token"], AccessToken),
        (&["tokens", "id_token"], OtherToken),
        (&["tokens", "refresh_token"], OtherToken),
        (&["last_refresh"], Date),
    ],
    lead: CODEX_LEAD,
};

pub(super) static OPENCODE: RefreshRule = RefreshRule {
    fields: &[
        (&[ANY, "access"], AccessToken),
        (&[ANY, "refresh"], OtherToken),
        (&[ANY, "expires"], AccessTokenExpiry),
    ],
    lead: SHORT_LEAD,
};

impl RefreshRule {
    /// Checks that `after` is the login `before`, or can be that login after a refresh. `now` is the time since 1970.
    pub(super) fn check(
        &self,
        before: &Entries<'_>,
        after: &Entries<'_>,
        now: Duration,
    ) -> Result<Comparison, NotARefresh> {
        self.check_object(&[], before, after, now)
    }

    fn check_object(
        &self,
        path: &[&str],
        before: &Entries<'_>,
        after: &Entries<'_>,
        now: Duration,
    ) -> Result<Comparison, NotARefresh> {
        let mut below = Comparison::Same;
        let mut changed = Vec::new();
        for (name, old) in before {
            let path = [path, &[name]].concat();
            let new = after.get(name).copied();
            match self.field(&path) {
                Some(Bookkeeping) => {}
                Some(_) if new.is_some_and(|new| is_equal(old, new)) => {}
                Some(field) => {
                    check_field(field, &path.join("."), old, new, now)?;
                    changed.push(field);
                }
                None => match (entries(old), new.and_then(entries)) {
                    (Some(old), Some(new)) if self.has_fields_below(&path) => {
                        below = below.max(self.check_object(&path, &old, &new, now)?);
                    }
                    // Harnesses write an absent value as `null`, or leave it out.
                    _ if is_null(old) && new.is_none_or(is_null) => {}
                    _ if new.is_some_and(|new| is_equal(old, new)) => {}
                    _ => return Err(NotARefresh::OtherValue(path.join("."))),
                },
            }
        }
        if changed.contains(&AccessTokenExpiry) && !changed.contains(&AccessToken) {
            return Err(NotARefresh::OnlyExpiry);
        }
        let has_new_token = changed.iter().any(|field| matches!(field, AccessToken | OtherToken));
        if has_new_token && !self.is_due(path, before, now) {
            return Err(NotARefresh::NotDue);
        }
        Ok(if changed.is_empty() { below } else { Comparison::Refreshed })
    }

    /// Whether the access token of this object has expired or is about to. One without an expiry is never refreshed.
    fn is_due(&self, path: &[&str], object: &Entries<'_>, now: Duration) -> bool {
        let find = |wanted| {
            let mut values = object.iter();
            let found = values.find(|(name, _)| self.field(&[path, &[name]].concat()) == Some(wanted));
            found.map(|(_, value)| *value)
        };
        let stated = || milliseconds(find(AccessTokenExpiry)?);
        let claimed = || Identity::of(&text(find(AccessToken)?)?)?.expires;
        let expiry = stated().or_else(claimed).filter(|expiry| !expiry.is_zero());
        expiry.is_some_and(|expiry| expiry <= now + self.lead)
    }

    /// Returns the user's file with the refreshed values of `after`. [`RefreshRule::check`] must have succeeded before.
    pub(super) fn merge(&self, user: &Entries<'_>, after: &Entries<'_>) -> Zeroizing<Vec<u8>> {
        // Allocated at once, because a growing buffer leaves copies that are not wiped.
        let mut file = Zeroizing::new(Vec::with_capacity(length(user) + length(after)));
        self.merge_object(&[], user, after, &mut file);
        file
    }

    fn merge_object(&self, path: &[&str], user: &Entries<'_>, after: &Entries<'_>, file: &mut Vec<u8>) {
        file.push(b'{');
        for (index, (name, old)) in user.iter().enumerate() {
            let path = [path, &[name]].concat();
            if index > 0 {
                file.push(b',');
            }
            serde_json::to_writer(&mut *file, name).expect("writing to memory cannot fail");
            file.push(b':');
            let new = after.get(name).copied();
            match (self.field(&path), entries(old), new.and_then(entries)) {
                (Some(AccessToken | OtherToken | AccessTokenExpiry | Date), _, _) => {
                    file.extend_from_slice(new.unwrap_or(old).get().as_bytes());
                }
                (None, Some(old), Some(new)) if self.has_fields_below(&path) => {
                    self.merge_object(&path, &old, &new, file);
                }
                _ => file.extend_from_slice(old.get().as_bytes()),
            }
        }
        file.push(b'}');
    }

    fn field(&self, path: &[&str]) -> Option<RefreshedField> {
        let mut fields = self.fields.iter();
        fields.find(|(field, _)| field.len() == path.len() && starts_with(field, path)).map(|found| found.1)
    }

    fn has_fields_below(&self, path: &[&str]) -> bool {
        self.fields.iter().any(|(field, _)| field.len() > path.len() && starts_with(field, path))
    }
}

/// Whether the path of a field starts with this path.
fn starts_with(field: &[&str], path: &[&str]) -> bool {
    field.len() >= path.len()
        && field.iter().zip(path).all(|(expected, name)| *expected == ANY || expected == name)
}

/// Checks a changed value of a field that a refresh changes.
fn check_field(
    field: RefreshedField,
    path: &str,
    old: &RawValue,
    new: Option<&RawValue>,
    now: Duration,
) -> Result<(), NotARefresh> {
    let not_a_token = || NotARefresh::NotAToken(path.to_owned());
    let not_a_time = || NotARefresh::NotATime(path.to_owned());
    match field {
        Bookkeeping => Ok(()),
        AccessToken | OtherToken => {
            let old = text(old).ok_or_else(not_a_token)?;
            let new = new.and_then(text).ok_or_else(not_a_token)?;
            let is_printable = new.bytes().all(|byte| byte.is_ascii_graphic());
            if new.is_empty() || new.len() > MAX_TOKEN_BYTES || !is_printable {
                return Err(not_a_token());
            }
            match (Identity::of(&old), Identity::of(&new)) {
                (None, None) => Ok(()),
                (Some(old), Some(new)) if old.account == new.account => Ok(()),
                (Some(_), Some(_)) => Err(NotARefresh::OtherAccount(path.to_owned())),
                _ => Err(not_a_token()),
            }
        }
        AccessTokenExpiry => {
            let old = milliseconds(old).ok_or_else(not_a_time)?;
            let new = new.and_then(milliseconds).ok_or_else(not_a_time)?;
            if new > old && new <= now + MAX_LIFE { Ok(()) } else { Err(not_a_time()) }
        }
        Date => {
            let new = new.and_then(text).ok_or_else(not_a_time)?;
            let is_of_date = |byte: u8| byte.is_ascii_digit() || b"TZ:.+-".contains(&byte);
            let is_date = !new.is_empty() && new.len() <= MAX_DATE_BYTES && new.bytes().all(is_of_date);
            if is_date { Ok(()) } else { Err(not_a_time()) }
        }
    }
}

/// Whether two JSON values mean the same, whatever the order of an object's names and of a list of texts.
fn is_equal(left: &RawValue, right: &RawValue) -> bool {
    if left.get() == right.get() {
        return true;
    }
    if let (Some(left), Some(right)) = (entries(left), entries(right)) {
        let mut pairs = left.iter().zip(&right);
        return left.len() == right.len() && pairs.all(|(a, b)| a.0 == b.0 && is_equal(a.1, b.1));
    }
    if let (Some(left), Some(right)) = (sorted_texts(left), sorted_texts(right)) {
        return left == right;
    }
    if let (Some(left), Some(right)) = (list(left), list(right)) {
        return left.len() == right.len() && left.iter().zip(&right).all(|(a, b)| is_equal(a, b));
    }
    matches!((text(left), text(right)), (Some(left), Some(right)) if left == right)
}

/// The entries of a JSON object; `None` if the value is none.
fn entries(value: &RawValue) -> Option<Entries<'_>> {
    serde_json::from_str(value.get()).ok()
}

fn list(value: &RawValue) -> Option<Vec<&RawValue>> {
    serde_json::from_str(value.get()).ok()
}

/// The texts of a list of texts, such as scopes.
fn sorted_texts(value: &RawValue) -> Option<Vec<String>> {
    let mut texts: Vec<String> = serde_json::from_str(value.get()).ok()?;
    texts.sort();
    Some(texts)
}

fn text(value: &RawValue) -> Option<Zeroizing<String>> {
    serde_json::from_str(value.get()).ok().map(Zeroizing::new)
}

fn milliseconds(value: &RawValue) -> Option<Duration> {
    serde_json::from_str(value.get()).ok().map(Duration::from_millis)
}

fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

/// At least the length of the object as text.
fn length(entries: &Entries<'_>) -> usize {
    let entries = entries.iter().map(|(name, value)| 6 * name.len() + value.get().len() + 8);
    entries.sum::<usize>() + 8
}

#[cfg(test)]
mod tests {
    use super::super::token_claims::tests::token;
    use super::*;
    use serde_json::{Value, json};

    const NOW: Duration = Duration::from_secs(1_800_000_000);
    const EXPIRED: u64 = 1_799_999_000_000;
    const LATER: u64 = 1_800_030_000_000;

    /// The user's file after the refresh, or why there was none.
    fn refresh(rule: &RefreshRule, before: &Value, after: &Value) -> Result<Value, NotARefresh> {
        let (before, after) = (before.to_string(), after.to_string());
        let before: Entries<'_> = serde_json::from_str(&before).unwrap();
        let after: Entries<'_> = serde_json::from_str(&after).unwrap();
        assert_eq!(rule.check(&before, &before, NOW), Ok(Comparison::Same));
        assert_eq!(rule.check(&before, &after, NOW)?, Comparison::Refreshed);
        Ok(serde_json::from_slice(&rule.merge(&before, &after)).unwrap())
    }

    /// Sets the value at a path such as `/tokens/access_token`; parents must exist.
    fn with(mut file: Value, path: &str, value: Value) -> Value {
        let (parent, name) = path.rsplit_once('/').unwrap();
        file.pointer_mut(parent).unwrap()[name] = value;
        file
    }

    fn claude() -> Value {
        json!({"claudeAiOauth": {"accessToken": "old", "refreshToken": "old-r", "expiresAt": EXPIRED, "scopes": ["a", "b"],
            "subscriptionType": "max", "rateLimitTier": null, "added-later": {"x": 1}}, "organizationUuid": "o1"})
    }

    fn refreshed_claude() -> Value {
        let file = with(claude(), "/claudeAiOauth/accessToken", json!("new"));
        let file = with(file, "/claudeAiOauth/refreshToken", json!("new-r"));
        with(file, "/claudeAiOauth/expiresAt", json!(LATER))
    }

    #[test]
    fn a_refresh_of_claude_code_changes_tokens_and_expiry_only() {
        assert_eq!(refresh(&CLAUDE_CODE, &claude(), &refreshed_claude()), Ok(refreshed_claude()));
        // Claude Code may have verified the plan too, and may write the scopes in another order.
        let noted = with(refreshed_claude(), "/claudeAiOauth/subscriptionTypeVerifiedAt", json!(1));
        let noted = with(noted, "/claudeAiOauth/scopes", json!(["b", "a"]));
        assert_eq!(refresh(&CLAUDE_CODE, &claude(), &noted), Ok(refreshed_claude()));
    }

    #[test]
    fn a_login_with_another_plan_scope_organisation_or_unknown_value_is_refused() {
        for (path, value) in [
            ("/claudeAiOauth/scopes", json!(["a", "b", "c"])),
            ("/claudeAiOauth/subscriptionType", json!("team")),
            ("/claudeAiOauth/rateLimitTier", json!("large")),
            ("/claudeAiOauth/added-later", json!({"x": 2})),
            ("/claudeAiOauth/added-later", Value::Null),
            ("/organizationUuid", json!("o2")),
        ] {
            let planted = with(refreshed_claude(), path, value);
            let refused = refresh(&CLAUDE_CODE, &claude(), &planted);
            let named = path[1..].replace('/', ".");
            assert_eq!(refused, Err(NotARefresh::OtherValue(named)));
        }
    }

    #[test]
    fn values_that_no_refresh_writes_are_refused() {
        let long = "x".repeat(MAX_TOKEN_BYTES + 1);
        for (path, value) in [
            ("/claudeAiOauth/accessToken", json!(long)),
            ("/claudeAiOauth/accessToken", json!("")),
            ("/claudeAiOauth/accessToken", json!("two words")),
            ("/claudeAiOauth/accessToken", json!({"a": 1})),
            ("/claudeAiOauth/refreshToken", Value::Null),
            ("/claudeAiOauth/expiresAt", json!("soon")),
            ("/claudeAiOauth/expiresAt", json!(EXPIRED - 1)),
            ("/claudeAiOauth/expiresAt", json!(u64::MAX)),
        ] {
            let refused = refresh(&CLAUDE_CODE, &claude(), &with(refreshed_claude(), path, value.clone()));
            assert!(refused.is_err(), "{path} {value}");
        }
        let only_expiry = with(claude(), "/claudeAiOauth/expiresAt", json!(LATER));
        assert_eq!(refresh(&CLAUDE_CODE, &claude(), &only_expiry), Err(NotARefresh::OnlyExpiry));
    }

    #[test]
    fn tokens_that_were_not_due_for_a_refresh_are_refused() {
        let hour = 3_600_000;
        let valid = |login| with(login, "/claudeAiOauth/expiresAt", json!(NOW.as_millis() as u64 + hour));
        let after = with(refreshed_claude(), "/claudeAiOauth/expiresAt", json!(LATER));
        assert_eq!(refresh(&CLAUDE_CODE, &valid(claude()), &after), Err(NotARefresh::NotDue));
        let unlimited = |login| with(login, "/claudeAiOauth/expiresAt", json!(0));
        let refused = refresh(&CLAUDE_CODE, &unlimited(claude()), &after);
        assert_eq!(refused, Err(NotARefresh::NotDue));
    }

    fn codex(subject: &str, account: &str, expires: u64) -> Value {
        let claims = json!({"iss": "https://auth.openai.com", "sub": subject, "exp": expires, "jti": expires,
            "https://api.openai.com/auth": {"chatgpt_account_id": account, "chatgpt_plan_type": "plus"}});
        json!({"OPENAI_API_KEY": null, "auth_mode": "chatgpt", "last_refresh": "2026-11-01T00:00:00.5Z", "tokens": {
            "access_token": token(&claims), "id_token": token(&claims), "refresh_token": format!("r{expires}"),
            "account_id": "a1"}})
    }

    #[test]
    fn a_refresh_of_codex_must_be_of_the_same_account() {
        let (due, later) = (NOW.as_secs() - 10, NOW.as_secs() + 864_000);
        let before = codex("user-1", "a1", due);
        let after = codex("user-1", "a1", later);
        assert_eq!(refresh(&CODEX, &before, &after), Ok(after.clone()));
        let account = || NotARefresh::OtherAccount("tokens.access_token".into());
        assert_eq!(refresh(&CODEX, &before, &codex("user-2", "a1", later)), Err(account()));
        assert_eq!(refresh(&CODEX, &before, &codex("user-1", "a2", later)), Err(account()));
        let opaque = with(after.clone(), "/tokens/id_token", json!("opaque"));
        assert_eq!(refresh(&CODEX, &before, &opaque), Err(NotARefresh::NotAToken("tokens.id_token".into())));
        let key = with(after.clone(), "/OPENAI_API_KEY", json!("sk-planted"));
        assert_eq!(refresh(&CODEX, &before, &key), Err(NotARefresh::OtherValue("OPENAI_API_KEY".into())));
        let account_id = with(after.clone(), "/tokens/account_id", json!("a2"));
        let refused = refresh(&CODEX, &before, &account_id);
        assert_eq!(refused, Err(NotARefresh::OtherValue("tokens.account_id".into())));
        let date = with(after.clone(), "/last_refresh", json!("a date\u{1b}[2J"));
        assert_eq!(refresh(&CODEX, &before, &date), Err(NotARefresh::NotATime("last_refresh".into())));
        let early = codex("user-1", "a1", NOW.as_secs() + 5 * 86_400);
        assert_eq!(refresh(&CODEX, &early, &after), Err(NotARefresh::NotDue));
    }

    #[test]
    fn a_refresh_of_opencode_changes_neither_keys_nor_providers() {
        let before = json!({"openai": {"type": "oauth", "access": "old", "refresh": "old-r", "expires": EXPIRED,
            "accountId": "a1"}, "zen": {"type": "api", "key": "k"}});
        let after = with(before.clone(), "/openai/access", json!("new"));
        let after = with(after, "/openai/refresh", json!("new-r"));
        let after = with(after, "/openai/expires", json!(LATER));
        assert_eq!(refresh(&OPENCODE, &before, &after), Ok(after.clone()));
        let added = with(after.clone(), "/planted", json!({"type": "api", "key": "k2"}));
        assert_eq!(refresh(&OPENCODE, &before, &added), Ok(after.clone()), "what was added is not copied");
        for (path, value) in [
            ("/zen/key", json!("planted")),
            ("/zen", json!({"type": "oauth", "access": "planted", "refresh": "planted", "expires": LATER})),
            ("/openai/accountId", json!("a2")),
            ("/openai/type", json!("api")),
            ("/zen", Value::Null),
        ] {
            let refused = refresh(&OPENCODE, &before, &with(after.clone(), path, value));
            assert!(matches!(refused, Err(NotARefresh::OtherValue(_))), "{path}: {refused:?}");
        }
    }
}
