//! Any sequence of sends, deliveries, acknowledgements and disconnects: every message arrives once, whole and in order.

#![no_main]

#[path = "../../tests/delivery_model/mod.rs"]
mod delivery_model;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u32, Vec<(u8, u16)>)| {
    let (window, mut operations) = input;
    operations.truncate(200);
    delivery_model::run(u64::from(window).max(1), &operations);
});
