//! Notifications that originate in the shim or the sidecar: to a harness on behalf of a server that has exited, and to a
//! server on behalf of a harness.

use crate::code::json_string;

/// Cancels the request with this id, which is raw JSON.
pub fn cancelled(id: &[u8], reason: &str) -> Vec<u8> {
    let reason = json_string(reason);
    let head = br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"#;
    [head, id, br#","reason":"#, reason.as_bytes(), b"}}"].concat()
}

/// Completes the handshake with a server, if the harness has not sent its notification.
pub fn initialized() -> Vec<u8> {
    br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_vec()
}

/// Notifies a harness of the legacy era that the tools changed.
pub fn tools_changed() -> Vec<u8> {
    br#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#.to_vec()
}

/// Notifies a harness of the stateless era that the tools changed; `listener` is the id of its `subscriptions/listen`.
pub fn tools_changed_for(listener: &[u8]) -> Vec<u8> {
    let head = br#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"#;
    [head, listener, b"}}}"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::{Kind, Strictness, read};

    #[test]
    fn every_notice_is_a_notification() {
        let notices =
            [cancelled(br#""a""#, "why \"so\""), initialized(), tools_changed(), tools_changed_for(b"7")];
        for notice in notices {
            let read = read(&notice, Strictness::Whole).unwrap();
            assert!(matches!(read.kind, Kind::Notification { .. }), "{read:?}");
        }
        assert_eq!(
            String::from_utf8(cancelled(b"7", "gone")).unwrap(),
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7,"reason":"gone"}}"#
        );
    }
}
