//! Tests of decisions about tools and methods, with several sets of rules.

use super::*;

fn globs(patterns: &[&str]) -> Vec<Glob> {
    patterns.iter().map(|pattern| pattern.parse().unwrap()).collect()
}

fn github() -> Rules {
    Rules::new(
        Some(globs(&["get_*", "search_*", "create_*", "delete_draft"])),
        globs(&["create_*", "merge_*"]),
        globs(&["delete_*", "create_token"]),
        globs(&["x/custom", "vendor/*"]),
    )
}

fn deny_only() -> Rules {
    Rules::new(None, vec![], globs(&["delete_*"]), vec![])
}

#[track_caller]
fn assert_decision(rules: &Rules, request: Request<'_>, verdict: Verdict, rule: &str) {
    let decision = rules.decide(request);
    assert_eq!((decision.verdict, &*decision.rule), (verdict, rule), "{request:?}");
}

#[test]
fn rules_that_match_none_of_the_tools_are_named_in_the_order_of_the_lists() {
    let rules = Rules::new(
        Some(globs(&["read_*", "Echo", "none_*"])),
        globs(&["WRITE_*", "ask_none"]),
        globs(&["delete_*", "deny_none"]),
        Vec::new(),
    );
    let tools = ["read_file", "echo", "write_file", "Delete_All"];
    let expected = ["tools.allow Echo", "tools.allow none_*", "tools.ask ask_none", "tools.deny deny_none"];
    assert_eq!(rules.without_match(tools), expected);
    let all = ["read_x", "Echo", "none_x", "write_x", "ask_none", "delete_x", "deny_none"];
    assert!(rules.without_match(all).is_empty());
}

#[test]
fn deny_before_ask_before_allow() {
    use Verdict::{Allow, Ask, Deny};
    for (tool, verdict, rule) in [
        ("get_issue", Allow, "tools.allow get_*"),
        ("search_code", Allow, "tools.allow search_*"),
        ("create_issue", Ask, "tools.ask create_*"),
        ("merge_pull", Ask, "tools.ask merge_*"),
        ("create_token", Deny, "tools.deny create_token"),
        ("delete_draft", Deny, "tools.deny delete_*"),
        ("GET_issue", Deny, "tools: not in allow"),
        ("push", Deny, "tools: not in allow"),
        ("", Deny, "tools: not a plain name"),
        ("get_issue ", Deny, "tools: not a plain name"),
        ("get_\u{0}issue", Deny, "tools: not a plain name"),
    ] {
        assert_decision(&github(), Request::Tool(tool), verdict, rule);
        assert_eq!(github().shows(tool), verdict != Deny, "{tool}");
    }
}

#[test]
fn without_an_allow_list_every_tool_that_is_not_denied_passes() {
    assert_decision(&deny_only(), Request::Tool("get_issue"), Verdict::Allow, "tools: not in deny");
    assert_decision(&deny_only(), Request::Tool("delete_all"), Verdict::Deny, "tools.deny delete_*");
    assert_decision(&deny_only(), Request::Tool("\tdelete_all"), Verdict::Deny, "tools: not a plain name");
}

#[test]
fn without_rules_all_tools_are_offered() {
    let open = Rules::default();
    assert!(open.hides_nothing());
    assert_decision(&open, Request::Tool("anything at all "), Verdict::Allow, "tools: no rules");
}

#[test]
fn an_empty_allow_list_denies_every_tool() {
    let closed = Rules::new(Some(vec![]), vec![], vec![], vec![]);
    assert!(!closed.hides_nothing());
    assert_decision(&closed, Request::Tool("get_issue"), Verdict::Deny, "tools: not in allow");
    assert_ne!(closed.canonical(), Rules::default().canonical());
}

#[test]
fn known_methods_pass_with_any_rules() {
    for method in [
        "initialize",
        "server/discover",
        "tools/list",
        "subscriptions/listen",
        "tasks/result",
        "tasks/update",
        "notifications/cancelled",
        "notifications/initialized",
        "resources/templates/list",
    ] {
        for rules in [github(), deny_only(), Rules::default()] {
            assert_decision(&rules, Request::Method(method), Verdict::Allow, "method: known");
        }
    }
}

#[test]
fn unknown_methods_pass_if_listed_or_without_tool_rules() {
    let unknown = Request::Method("x/other");
    assert_decision(&github(), Request::Method("x/custom"), Verdict::Allow, "methods x/custom");
    assert_decision(&github(), Request::Method("vendor/thing"), Verdict::Allow, "methods vendor/*");
    assert_decision(&github(), unknown, Verdict::Deny, "method: not known, not in methods");
    assert_decision(&deny_only(), unknown, Verdict::Deny, "method: not known, not in methods");
    assert_decision(&Rules::default(), unknown, Verdict::Allow, "method: not known, no tool rules");
}

#[test]
fn a_disguised_tool_call_is_denied_with_any_rules() {
    let generous = Rules::new(None, vec![], vec![], globs(&["*"]));
    for disguise in ["Tools/Call", "tools/call ", "toolſ/call", "tools/call"] {
        for rules in [&generous, &Rules::default(), &github()] {
            assert_decision(rules, Request::Method(disguise), Verdict::Deny, "method: reads like tools/call");
        }
    }
}

#[test]
fn the_order_of_a_list_is_not_part_of_the_policy() {
    let one = Rules::new(None, globs(&["a", "b"]), vec![], globs(&["x"]));
    let other = Rules::new(None, globs(&["b", "a", "b"]), vec![], globs(&["x"]));
    assert_eq!(one.canonical(), other.canonical());
    assert_eq!(one.canonical(), ["methods x", "tools.ask a", "tools.ask b"]);
}

#[test]
fn a_server_that_the_grant_does_not_name_is_denied() {
    let decision = server_not_granted(&"github".parse().unwrap());
    assert_eq!((decision.verdict, &*decision.rule), (Verdict::Deny, "grant: server github not named"));
}

#[test]
fn the_text_of_a_rule_is_printed_and_compared_as_text() {
    let shared = RuleText::from(Arc::from("tools.allow get_*"));
    assert_eq!(shared, RuleText::from("tools.allow get_*"));
    assert_ne!(shared, RuleText::from("tools.allow get_"));
    assert_eq!(format!("{shared} {shared:?}"), r#"tools.allow get_* "tools.allow get_*""#);
}

#[test]
fn only_a_deny_list_hides_tools_by_name() {
    assert!(deny_only().hides_by_name() && github().hides_by_name());
    let without_deny =
        Rules::new(Some(globs(&["get_*"])), globs(&["create_*"]), vec![], globs(&["x/custom"]));
    assert!(!without_deny.hides_by_name() && !Rules::default().hides_by_name());
}

#[test]
fn methods_of_the_protocol_have_a_static_name() {
    assert_eq!(known_method("tools/call"), Some("tools/call"));
    assert_eq!(known_method("notifications/progress"), Some("notifications/progress"));
    assert_eq!(known_method("x/custom"), None);
}

#[test]
fn with_credentials_per_tool_an_unclear_tool_name_is_denied() {
    let rules = Rules::new(None, vec![], vec![], globs(&["x/custom"])).with_credentials_per_tool();
    assert_decision(&rules, Request::Tool("write_rows"), Verdict::Allow, "tools: not in deny");
    for tool in ["", " write_rows", "write_rows\n", "write_\u{0}rows"] {
        assert_decision(&rules, Request::Tool(tool), Verdict::Deny, "tools: not a plain name");
        assert!(!rules.shows(tool), "{tool:?}");
    }
    assert_decision(&rules, Request::Method("tools/list"), Verdict::Allow, "method: known");
    assert_decision(&rules, Request::Method("x/custom"), Verdict::Allow, "methods x/custom");
    assert_decision(&rules, Request::Method("x/other"), Verdict::Deny, "method: not known, not in methods");
}

#[test]
fn deny_and_ask_match_other_spellings_of_a_name_and_allow_does_not() {
    for tool in
        ["DELETE_draft", "Delete_Draft", "ｄｅｌｅｔｅ＿draft", "delete\u{200b}_draft", "delete\u{ad}_draft"]
    {
        assert_decision(&github(), Request::Tool(tool), Verdict::Deny, "tools.deny delete_*");
        assert_decision(&deny_only(), Request::Tool(tool), Verdict::Deny, "tools.deny delete_*");
        assert!(!deny_only().shows(tool), "{tool:?}");
    }
    for tool in ["Create_issue", "ｃreate_issue", "cre\u{2060}ate_issue"] {
        assert_decision(&github(), Request::Tool(tool), Verdict::Ask, "tools.ask create_*");
    }
    for tool in ["Get_issue", "ｇet_issue", "get\u{200b}_issue"] {
        assert_decision(&github(), Request::Tool(tool), Verdict::Deny, "tools: not in allow");
    }
    let upper_case = Rules::new(None, vec![], globs(&["DeleteAll"]), vec![]);
    assert_decision(&upper_case, Request::Tool("deleteall"), Verdict::Deny, "tools.deny DeleteAll");
}

#[test]
fn requests_to_the_harness_pass_unless_denied() {
    let rules = Rules::default().with_denied_to_harness(globs(&["sampling/*"]));
    let allowed = "methods-to-harness: not in deny";
    assert_decision(&rules, Request::ToHarness("roots/list"), Verdict::Allow, allowed);
    assert_decision(&Rules::default(), Request::ToHarness("x/custom"), Verdict::Allow, allowed);
    for method in ["sampling/createMessage", "Sampling/createMessage", "sampl\u{200b}ing/createMessage"] {
        let rule = "methods-to-harness.deny sampling/*";
        assert_decision(&rules, Request::ToHarness(method), Verdict::Deny, rule);
    }
    assert!(rules.hides_nothing(), "requests of the server are not tools");
    assert_ne!(rules.canonical(), Rules::default().canonical());
}
