//! Tests of limits, durations and sizes: how they are written, and their ranges.

use super::*;

#[test]
fn limits_are_set_by_their_names() {
    let config = valid(
        "[limits]\nmessage-bytes = '1MiB'\naudit-field-bytes = 512\nlinks = 3\nstop-grace = '1s500ms'\n",
    );
    let expected = Limits {
        message_bytes: 1 << 20,
        audit_field_bytes: 512,
        links: 3,
        stop_grace: std::time::Duration::from_millis(1500),
        ..Limits::default()
    };
    assert_eq!(config.limits, expected);
}

#[test]
fn limits_out_of_range_are_refused() {
    assert_problems(
        "[limits]\nlinks = 0\nmessage-bytes = '1GiB'\nmessage-depth = 100000\nstop-grace = '1h'\nwindow-bytes = 0\nlinkz = 1\n",
        "cofferdam.toml:2: `limits.links` is too small\n  hint: use a value from 1 to 65536\n\
         cofferdam.toml:3: `limits.message-bytes` is too large\n  hint: use a value from 64KiB to 10239KiB\n\
         cofferdam.toml:4: `limits.message-depth` is too large\n  hint: use a value from 16 to 128\n\
         cofferdam.toml:5: `limits.stop-grace` is too large\n  hint: use a value from 10ms to 2s\n\
         cofferdam.toml:6: `limits.window-bytes` is too small\n  hint: use a value from 64KiB to 4MiB\n\
         cofferdam.toml:7: unknown key `limits.linkz`\n  hint: did you mean `links`?",
    );
}

#[test]
fn durations_need_units_and_a_range() {
    assert_problems(
        "[relay]\nheartbeat = 20\nresume-grace = '2 minutes'\n[servers.a]\ncommand = ['a']\ncall-timeout = '0s'\n",
        "cofferdam.toml:2: `relay.heartbeat` cannot be a number\n  \
         hint: write a duration such as \"500ms\", \"20s\" or \"2h30m\"\n\
         cofferdam.toml:3: `relay.resume-grace` cannot be read\n  \
         hint: write a duration such as \"500ms\", \"20s\" or \"2h30m\"\n\
         cofferdam.toml:6: `servers.a.call-timeout` is too small\n  hint: use a value from 100ms to 1d",
    );
    assert_eq!(valid("relay.resume-grace = '0s'").relay.resume_grace, std::time::Duration::ZERO);
}

#[test]
fn sizes_need_binary_units() {
    assert_problems(
        "[limits]\nmessage-bytes = '10MB'\nsecret-bytes = -1\n",
        "cofferdam.toml:2: `limits.message-bytes` cannot be read\n  \
         hint: write a size such as \"64KiB\" or \"10MiB\", or a number of bytes\n\
         cofferdam.toml:3: `limits.secret-bytes` cannot be read\n  \
         hint: write a size such as \"64KiB\" or \"10MiB\", or a number of bytes",
    );
}
