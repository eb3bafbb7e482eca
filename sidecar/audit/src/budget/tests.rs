//! Budgets on their own, on a paused clock.

use super::*;

const DAY: Duration = Duration::from_secs(86_400);

fn budget(bytes: u64, records_per_second: u32) -> Budget {
    Budget::new(BudgetLimits { bytes, refill_time: DAY, records_per_second })
}

#[test]
fn bytes_are_charged_all_or_nothing_and_can_be_refunded() {
    let budget = budget(100, 1000);
    budget.charge(Charge { bytes: 60, records: 1 }, u64::MAX, Instant::now()).unwrap();
    let refused = budget.charge(Charge { bytes: 41, records: 1 }, u64::MAX, Instant::now()).unwrap_err();
    assert_eq!(refused, Exhausted { limit: BudgetLimit::Bytes, report: Report::Due });
    let again = budget.charge(Charge { bytes: 41, records: 1 }, u64::MAX, Instant::now()).unwrap_err();
    assert_eq!(again.report, Report::Done);
    budget.charge(Charge { bytes: 40, records: 1 }, u64::MAX, Instant::now()).unwrap();
    budget.refund(5);
    budget.charge(Charge { bytes: 5, records: 1 }, u64::MAX, Instant::now()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn reserved_bytes_count_as_used_and_do_not_refill() {
    let budget = budget(100, 1000);
    let reserve = |bytes| budget.reserve(bytes, u64::MAX, Instant::now());
    reserve(60).unwrap();
    assert_eq!(reserve(41).unwrap_err().limit, BudgetLimit::Bytes);
    let one = Charge { bytes: 41, records: 1 };
    assert_eq!(budget.charge(one, u64::MAX, Instant::now()).unwrap_err().limit, BudgetLimit::Bytes);
    assert_eq!(budget.reserve(1, 60, Instant::now()).unwrap_err().limit, BudgetLimit::Total);
    tokio::time::advance(DAY).await;
    assert!(!budget.is_untouched(Instant::now()));
    reserve(41).unwrap_err();
    // A record that needs less than what was reserved for it returns the rest.
    budget.charge_reserved(50, 20, Instant::now());
    reserve(70).unwrap();
    reserve(1).unwrap_err();
    budget.release(80);
    reserve(80).unwrap();
    reserve(1).unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn the_time_until_a_reservation_succeeds_is_known() {
    let budget = budget(86_400, 1000);
    budget.reserve(86_400, u64::MAX, Instant::now()).unwrap();
    budget.charge_reserved(86_400, 86_400, Instant::now());
    assert_eq!(budget.time_to_refill(30, Instant::now()), Duration::from_secs(30));
    budget.reserve(30, u64::MAX, Instant::now()).unwrap_err();
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(budget.time_to_refill(30, Instant::now()), Duration::ZERO);
    budget.reserve(30, u64::MAX, Instant::now()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn alerts_are_admitted_over_the_budget_six_a_minute() {
    let budget = budget(100, 1000);
    budget.charge(Charge { bytes: 100, records: 1 }, u64::MAX, Instant::now()).unwrap();
    let alert = || budget.charge_alert(10, Instant::now());
    let admitted = (0..100).filter(|_| alert().is_ok()).count();
    assert_eq!(admitted, 6);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!([(); 2].map(|()| alert().is_ok()), [true, false]);
    tokio::time::advance(DAY).await;
    let admitted = (0..100).filter(|_| alert().is_ok()).count();
    assert_eq!(admitted, 6, "a quiet day permits no larger burst");
    assert!(!budget.is_untouched(Instant::now()));
    tokio::time::advance(2 * DAY).await;
    assert!(budget.is_untouched(Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn the_number_of_events_that_were_left_out_is_told_once_a_minute() {
    let budget = budget(100, 1000);
    let leave_out = |events| budget.leave_out(events, Instant::now());
    assert_eq!(leave_out(0), None);
    assert_eq!(leave_out(1), Some(1));
    assert_eq!(leave_out(7), None, "too soon");
    assert!(!budget.is_untouched(Instant::now()), "the count would be forgotten");
    tokio::time::advance(REPORT_INTERVAL).await;
    assert_eq!(leave_out(2), Some(9));
    assert_eq!(leave_out(0), None);
    // The record could not be written.
    budget.restore_left_out(9);
    tokio::time::advance(REPORT_INTERVAL).await;
    assert_eq!(leave_out(0), Some(9));
}

#[tokio::test(start_paused = true)]
async fn the_rate_has_a_burst_and_recovers_with_time() {
    let budget = budget(u64::MAX, 2);
    let one = Charge { bytes: 0, records: 1 };
    for _ in 0..20 {
        budget.charge(one, u64::MAX, Instant::now()).unwrap();
    }
    let refused = budget.charge(one, u64::MAX, Instant::now()).unwrap_err();
    assert_eq!(refused, Exhausted { limit: BudgetLimit::Rate, report: Report::Due });
    tokio::time::advance(Duration::from_millis(500)).await;
    budget.charge(one, u64::MAX, Instant::now()).unwrap();
    assert_eq!(budget.charge(one, u64::MAX, Instant::now()).unwrap_err().report, Report::Done);
    tokio::time::advance(Duration::from_secs(3600)).await;
    for _ in 0..20 {
        budget.charge(one, u64::MAX, Instant::now()).unwrap();
    }
    budget.charge(one, u64::MAX, Instant::now()).unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn bytes_come_back_with_time_and_a_new_handle_is_no_new_budget() {
    let budget = budget(86_400, 1000);
    let all = Charge { bytes: 86_400, records: 1 };
    budget.charge(all, u64::MAX, Instant::now()).unwrap();
    let other_session = budget.clone();
    let some = Charge { bytes: 100, records: 1 };
    let refused = other_session.charge(some, u64::MAX, Instant::now()).unwrap_err();
    assert_eq!(refused.limit, BudgetLimit::Bytes);
    tokio::time::advance(Duration::from_secs(99)).await;
    let again = other_session.charge(some, u64::MAX, Instant::now()).unwrap_err();
    assert_eq!(again, Exhausted { limit: BudgetLimit::Bytes, report: Report::Due }, "reported every minute");
    tokio::time::advance(Duration::from_secs(1)).await;
    other_session.charge(some, u64::MAX, Instant::now()).unwrap();
    assert!(!budget.is_untouched(Instant::now()));
    tokio::time::advance(DAY).await;
    assert!(budget.is_untouched(Instant::now()));
}

#[test]
fn a_sandbox_leaves_as_much_room_as_it_takes() {
    let (greedy, second, modest) = (budget(10_000, 1000), budget(10_000, 1000), budget(10_000, 1000));
    let mut room = 600;
    let mut fill = |budget: &Budget| {
        let mut taken = 0;
        while budget.charge(Charge { bytes: 1, records: 1 }, room, Instant::now()).is_ok() {
            (room, taken) = (room - 1, taken + 1);
        }
        taken
    };
    assert_eq!(fill(&greedy), 300);
    assert_eq!(fill(&second), 150, "half of what the first one left");
    let refused = greedy.charge(Charge { bytes: 1, records: 1 }, room, Instant::now()).unwrap_err();
    assert_eq!(refused.limit, BudgetLimit::Total);
    modest.charge(Charge { bytes: 100, records: 1 }, room, Instant::now()).expect("the others go on");
}

#[test]
fn a_sandbox_may_take_exactly_the_room_that_is_left() {
    let budget = budget(10_000, 1000);
    let refused = budget.charge(Charge { bytes: 101, records: 1 }, 100, Instant::now()).unwrap_err();
    assert_eq!(refused.limit, BudgetLimit::Total);
    budget.charge(Charge { bytes: 100, records: 1 }, 100, Instant::now()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn bytes_come_back_at_the_rate_of_the_configured_size_and_time() {
    let budget = budget(5 * 86_400, 1000);
    budget.charge(Charge { bytes: 5 * 86_400, records: 1 }, u64::MAX, Instant::now()).unwrap();
    tokio::time::advance(Duration::from_secs(10)).await;
    budget.charge(Charge { bytes: 51, records: 1 }, u64::MAX, Instant::now()).unwrap_err();
    budget.charge(Charge { bytes: 50, records: 1 }, u64::MAX, Instant::now()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_limit_is_reported_again_after_exactly_a_minute() {
    let budget = budget(100, 1000);
    let too_much = Charge { bytes: 1000, records: 1 };
    let report = || budget.charge(too_much, u64::MAX, Instant::now()).unwrap_err().report;
    assert_eq!(report(), Report::Due);
    tokio::time::advance(REPORT_INTERVAL - Duration::from_millis(1)).await;
    assert_eq!(report(), Report::Done);
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(report(), Report::Due);
}

#[tokio::test(start_paused = true)]
async fn reloaded_limits_apply_at_once_and_what_was_used_stays_used() {
    let budget = budget(1000, 2);
    let one = Charge { bytes: 0, records: 1 };
    budget.charge(Charge { bytes: 600, records: 1 }, u64::MAX, Instant::now()).unwrap();
    budget.set_limits(BudgetLimits { bytes: 700, refill_time: DAY, records_per_second: 1 });
    let refused = budget.charge(Charge { bytes: 101, records: 1 }, u64::MAX, Instant::now()).unwrap_err();
    assert_eq!(refused.limit, BudgetLimit::Bytes);
    budget.charge(Charge { bytes: 100, records: 1 }, u64::MAX, Instant::now()).unwrap();
    for _ in 0..9 {
        budget.charge(one, u64::MAX, Instant::now()).expect("the smaller burst has ten records");
    }
    budget.charge(one, u64::MAX, Instant::now()).unwrap_err();

    // Records of a larger burst come back with time, up to the new burst.
    budget.set_limits(BudgetLimits { bytes: 700, refill_time: DAY, records_per_second: 3 });
    budget.charge(one, u64::MAX, Instant::now()).unwrap_err();
    tokio::time::advance(Duration::from_secs(60)).await;
    for _ in 0..30 {
        budget.charge(one, u64::MAX, Instant::now()).unwrap();
    }
    budget.charge(one, u64::MAX, Instant::now()).unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_budget_is_untouched_only_if_neither_bytes_nor_records_are_used() {
    let used_bytes = budget(1000, 1000);
    used_bytes.charge_reserved(0, 100, Instant::now());
    assert!(!used_bytes.is_untouched(Instant::now()), "bytes are used");
    let used_records = budget(1000, 1000);
    used_records.charge(Charge { bytes: 0, records: 1 }, u64::MAX, Instant::now()).unwrap();
    assert!(!used_records.is_untouched(Instant::now()), "a record is used");
}

#[test]
fn a_budget_with_a_second_handle_is_shared() {
    let budget = budget(1000, 1000);
    assert!(budget.is_unshared());
    let session = budget.clone();
    assert!(!budget.is_unshared());
    drop(session);
    assert!(budget.is_unshared());
}

#[test]
fn records_that_are_written_in_any_case_count_too() {
    let budget = budget(100, 1000);
    budget.charge_reserved(0, 500, Instant::now());
    budget.charge(Charge { bytes: 1, records: 1 }, u64::MAX, Instant::now()).unwrap_err();
}
