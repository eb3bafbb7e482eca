//! Any script of pushes, deliveries, acknowledgements and cuts: everything arrives once, whole and in order.

#![no_main]

#[path = "../../tests/delivery_model/mod.rs"]
mod delivery_model;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u32, Vec<(u8, u16)>)| {
    let (window, mut script) = input;
    script.truncate(200);
    delivery_model::play(u64::from(window).max(1), &script);
});
