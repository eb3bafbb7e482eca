//! Reads outcomes of calls from the audit of a modelled link.

use std::collections::BTreeMap;

use serde_json::Value;

/// The tool calls whose number of outcomes differs from that of the decisions that allowed them.
pub(super) fn missing(audit: &str) -> Vec<String> {
    let mut balances: BTreeMap<(String, u64), (i64, String)> = BTreeMap::new();
    for record in records(audit) {
        let change = match record["kind"].as_str() {
            Some("decision") if record["verdict"] == "allow" => 1,
            Some("outcome") => -1,
            _ => continue,
        };
        if record["method"] == "tools/call" {
            let key = (text(&record, "link"), record["seq"].as_u64().expect("a call has a number"));
            let balance = balances.entry(key).or_default();
            balance.0 += change;
            balance.1 = text(&record, "tool");
        }
    }
    let wrong = balances.into_iter().filter(|(_, (balance, _))| *balance != 0);
    wrong.map(|(call, (balance, tool))| format!("{call:?} of `{tool}`: {balance} outcomes missing")).collect()
}

/// The results and codes of all outcomes of a tool, in order.
pub(super) fn of_tool(audit: &str, tool: &str) -> Vec<(String, String)> {
    let is_match = |record: &Value| record["kind"] == "outcome" && record["tool"] == tool;
    records(audit).filter(is_match).map(|record| (text(&record, "result"), text(&record, "code"))).collect()
}

fn records(audit: &str) -> impl Iterator<Item = Value> {
    audit.lines().map(|line| serde_json::from_str(line).expect("the audit is JSON"))
}

fn text(record: &Value, member: &str) -> String {
    record[member].as_str().unwrap_or_default().to_owned()
}
