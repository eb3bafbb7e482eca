//! Events of sandboxes: within the budget, reserved, and alerts.

use cofferdam_base::clock;

use super::*;

/// The events that were recorded, and their details.
fn events(directory: &Directory) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let records = tail(&directory.audit_path(), 10_000).unwrap();
    let records = records.iter().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    records.map(|record| (text(&record["event"]), text(&record["detail"]))).collect()
}

#[tokio::test(start_paused = true)]
async fn events_of_a_sandbox_over_its_budget_are_left_out_and_counted() {
    let directory = Directory::new();
    let audit = directory.open();
    let limit = 20_000;
    let budget = budget(limit, u32::MAX);
    let attempt = || {
        for _ in 0..200 {
            audit.sandbox_event(&budget, &EventRecord::new(Event::ConnectionClosed)).unwrap();
        }
    };
    attempt();
    let count = |name: &str| events(&directory).iter().filter(|(event, _)| event == name).count();
    let (written, written_bytes) =
        (count("connection_closed"), fs::metadata(directory.file(1)).unwrap().len());
    assert!((50..150).contains(&written), "{written}");
    assert!((limit - 500..=limit + 500).contains(&written_bytes), "{written_bytes} of {limit} bytes");
    attempt();
    assert_eq!(fs::metadata(directory.file(1)).unwrap().len(), written_bytes, "the budget is used up");
    // A minute later the number of those that were left out after the first is recorded, with the next record.
    tokio::time::advance(Duration::from_secs(60)).await;
    attempt();
    let told = events(&directory);
    let told = told.iter().filter_map(|(_, detail)| detail.strip_prefix("events left out: "));
    let told: usize = told.map(|count| count.parse::<usize>().unwrap()).sum();
    assert!(told > 200, "{told}");
    assert!(told <= 600 - count("connection_closed"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn an_event_of_a_link_is_written_after_its_budget_is_used_up() {
    let directory = Directory::new();
    let audit = directory.open();
    let limit = 50_000;
    let budget = budget(limit, u32::MAX);
    let mut link = audit.reserve_events(&budget, "box1", 2).unwrap();
    let end = link.split(1);
    audit.reserved_event(&mut link, &EventRecord::new(Event::LinkStart)).unwrap();
    let used_up = || {
        for seq in 0.. {
            match record_decision(&audit, &budget, &decision(call("l-1", seq))) {
                Ok(()) => audit.outcome(&budget, &outcome(call("l-1", seq))).unwrap(),
                Err(_) => break,
            }
        }
    };
    used_up();
    let long = "x".repeat(FIELD_BYTES);
    let detail = Some(long.as_str());
    let mut end = end;
    audit.reserved_event(&mut end, &EventRecord { detail, ..EventRecord::new(Event::LinkEnd) }).unwrap();
    assert_eq!(events(&directory).last().unwrap(), &("link_end".to_owned(), long));
    let refused = || audit.reserve_events(&budget, "box1", 10).unwrap_err();
    assert_eq!(refused().limit, BudgetLimit::Bytes);
    let wait = refused().refilled_in;
    assert!((Duration::from_secs(1)..Duration::from_secs(86_400)).contains(&wait), "{wait:?}");
    let exhausted: Vec<_> =
        events(&directory).into_iter().filter(|(event, _)| event == "budget_exhausted").collect();
    assert_eq!(exhausted.len(), 1, "once a minute: {exhausted:?}");
    tokio::time::advance(wait).await;
    audit.reserve_events(&budget, "box1", 10).expect("the budget has refilled as announced");
    tokio::time::advance(Duration::from_secs(86_400)).await;
    drop((link, end));
    assert!(budget.is_untouched(Instant::now()), "what was reserved and not used is returned");
}

#[tokio::test(start_paused = true)]
async fn links_in_a_loop_use_no_more_than_the_room_and_leave_as_much_to_the_others() {
    let directory = Directory::new();
    let audit = Audit::open(Options { total_bytes: 100_000, ..directory.options() }).unwrap();
    let flooding = budget(1_000_000, u32::MAX);
    let refused = loop {
        match audit.reserve_events(&flooding, "box1", 2) {
            Ok(mut link) => {
                audit.reserved_event(&mut link, &EventRecord::new(Event::LinkStart)).unwrap();
                audit.reserved_event(&mut link, &EventRecord::new(Event::LinkEnd)).unwrap();
            }
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.limit, BudgetLimit::Total);
    let written = fs::metadata(directory.file(1)).unwrap().len();
    assert!((40_000..=50_000).contains(&written), "{written} of 100,000 bytes");
    assert!(events(&directory).last().unwrap().1.contains("no link was opened for box1"));
    let other = unlimited_budget();
    audit.reserve_events(&other, "box2", 2).expect("the others open links");
    record_decision(&audit, &other, &decision(call("l-2", 1))).expect("the others go on");
}

#[tokio::test(start_paused = true)]
async fn links_are_opened_again_after_records_were_removed_although_nothing_else_is_written() {
    let directory = Directory::new();
    let options = Options { total_bytes: 20_000, file_bytes: 1000, ..directory.options() };
    let audit = Audit::open(options).unwrap();
    let budget = unlimited_budget();
    while audit.reserve_events(&budget, "box1", 1).is_ok() {
        audit.event(&EventRecord::new(Event::Reload)).unwrap();
    }
    prune(&directory.audit_path(), Keep::Bytes(2000), clock::now()).unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(audit.reserve_events(&budget, "box1", 1).unwrap_err().limit, BudgetLimit::Total, "measures");
    audit.reserve_events(&budget, "box1", 1).expect("there is room again");
}

#[tokio::test(start_paused = true)]
async fn an_alert_is_written_over_the_budget_and_a_flood_of_them_is_not() {
    let directory = Directory::new();
    let audit = directory.open();
    let budget = budget(1000, u32::MAX);
    while audit.reserve_events(&budget, "box1", 1).is_ok() {
        audit.sandbox_event(&budget, &EventRecord::new(Event::Replacement)).unwrap();
    }
    for _ in 0..100 {
        audit.alert(&budget, &EventRecord::new(Event::Alert)).unwrap();
    }
    let alerts = events(&directory).iter().filter(|(event, _)| event == "alert").count();
    assert_eq!(alerts, 6);
}
