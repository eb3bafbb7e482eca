//! PROTOCOL.md: its frame kinds, limits and codes match the codec, its kinds of links match the shim's help.

use std::collections::BTreeMap;

use cofferdam_tests::markdown::{quantity, rows, spans};
use relay_carriage::{inbound, tls};
use relay_proto::code::Code;
use relay_proto::decoder::Decoder;
use relay_proto::frame::{DecodeError, PREFACE};
use relay_proto::limits;

use super::{PROTOCOL, run_shim};

#[test]
fn the_protocol_page_lists_the_kinds_of_frames() {
    let listed: BTreeMap<u8, String> = rows(PROTOCOL)
        .filter_map(|row| {
            let number = row[0].strip_prefix("`0x")?.strip_suffix('`')?;
            Some((u8::from_str_radix(number, 16).expect("a kind is a byte"), row[1].clone()))
        })
        .collect();
    let known: BTreeMap<u8, String> =
        (0..=u8::MAX).filter_map(|kind| Some((kind, kind_name(kind)?))).collect();
    assert_eq!(listed, known);
    let preface = String::from_utf8(PREFACE.to_vec()).unwrap().replace('\n', "\\n");
    assert!(
        PROTOCOL.contains(&format!("    {preface}\n"))
            && PROTOCOL.contains(&format!("these {} bytes", PREFACE.len()))
    );
}

#[test]
fn the_protocol_page_states_the_limits_of_the_wire() {
    let section = PROTOCOL.split("## 10. Limits").nth(1).expect("the page has limits");
    let section = section.split("\n## ").next().expect("a split has a first part");
    let stated: BTreeMap<String, u64> =
        rows(section).filter(|row| row[0] != "what").map(|row| (row[0].clone(), quantity(&row[1]))).collect();
    let known = [
        ("MCP bytes in one Message frame", limits::MAX_MESSAGE_PART as u64),
        ("JSON body", limits::MAX_CONTROL_BODY as u64),
        ("a link's id", limits::MAX_LINK_ID as u64),
        ("`message` of a Refusal or Goodbye, as text", limits::MAX_SENTENCE as u64),
        ("`code` of a Refusal or Goodbye", limits::MAX_CODE as u64),
        ("a message, by default", limits::MAX_MESSAGE as u64),
        ("window, at first", limits::DEFAULT_WINDOW),
        ("window, at most", limits::MAX_WINDOW),
    ];
    assert_eq!(stated, known.map(|(what, bytes)| (what.to_owned(), bytes)).into());
}

#[test]
fn the_protocol_page_names_the_links_codes_and_words_of_the_wire() {
    let section =
        |from: &str| PROTOCOL.split(from).nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let help = String::from_utf8(run_shim(&["--help"]).stdout).unwrap();
    let links: Vec<String> = rows(section("## 11. Carriage"))
        .filter(|row| row[0] != "address")
        .collect::<Vec<_>>()
        .iter()
        .flat_map(|row| spans(&row[0]).collect::<Vec<_>>())
        .collect();
    assert_eq!(links.len(), 8, "{links:?}");
    for link in links {
        assert!(help.contains(&link), "the shim's help does not mention {link}");
    }
    let codes: Vec<String> = rows(section("## 3. Opening a connection"))
        .filter_map(|row| Some(row[0].strip_prefix('`')?.strip_suffix('`')?.to_owned()))
        .filter(|word| word.contains('_'))
        .collect();
    assert!(codes.len() > 5, "{codes:?}");
    for code in codes {
        assert!(code.parse::<Code>().is_ok(), "{code}");
    }
    let send_preamble = String::from_utf8_lossy(inbound::PREAMBLE).replace('\n', "\\n");
    assert!(PROTOCOL.contains(&format!("the {} bytes `{send_preamble}`", inbound::PREAMBLE.len())));
    for name in [tls::ALPN, tls::HUB_ALPN] {
        assert!(PROTOCOL.contains(&format!("`{}`", String::from_utf8_lossy(name))));
    }
}

/// The codec's name for a kind of frame; `None` for an unknown kind.
fn kind_name(kind: u8) -> Option<String> {
    let mut decoder = Decoder::new();
    decoder.feed(PREFACE);
    decoder.feed(&[0, 0, 0, 3, kind, b'{', b'}']);
    match decoder.next() {
        Ok(Some(frame)) => Some(format!("{frame:?}").split(['(', ' ']).next().unwrap_or_default().to_owned()),
        Err(DecodeError::Body { kind, .. }) => Some(kind.to_owned()),
        Err(DecodeError::ShortMessage(_)) => Some("Message".to_owned()),
        Err(DecodeError::UnknownKind(_)) => None,
        other => panic!("kind {kind:#04x}: {other:?}"),
    }
}
