//! The only module that reads the bytes of a [`Secret`]: to fill a template, to pass values to the scrubber, and
//! to compare values.
//!
//! What must stay true: every copy made here is in memory that is wiped when it is dropped.

#![expect(clippy::disallowed_methods, reason = "the only module that may call Secret::expose")]

use std::collections::BTreeMap;
use std::ffi::OsString;

use cofferdam_base::text::{is_unreserved, percent_encoded};
use cofferdam_process::Variable;
use relay_proto::name::Name;
use zeroize::Zeroizing;

use super::template::Encoding;
use super::value::Secret;
use cofferdam_scrub::Needle;

/// An environment variable with this value.
pub fn variable(name: OsString, secret: &Secret) -> Variable {
    (name, Zeroizing::new(secret.expose().to_vec()))
}

/// Whether a text contains this value as it is. An empty value is in no text.
pub fn occurs_in(secret: &Secret, text: &[u8]) -> bool {
    !secret.is_empty() && text.windows(secret.len()).any(|window| window == secret.expose())
}

/// The values of these fields, labelled `secret.field`, for the scrubber.
pub(super) fn needles<'a>(
    secret: &Name,
    fields: impl Iterator<Item = (&'a String, &'a Secret)>,
) -> Vec<Needle> {
    let to_needle = |(field, value): (&String, &Secret)| Needle {
        label: format!("{secret}.{field}").into(),
        value: Zeroizing::new(value.expose().to_vec()),
    };
    fields.map(to_needle).collect()
}

/// Whether these are the same values. The comparison need not take constant time: neither side is chosen by an attacker.
pub(super) fn are_equal(these: &BTreeMap<String, Secret>, those: &BTreeMap<String, Secret>) -> bool {
    let same = |((name, one), (other_name, other)): ((&String, &Secret), (&String, &Secret))| {
        name == other_name && one.expose() == other.expose()
    };
    these.len() == those.len() && these.iter().zip(those).all(same)
}

/// The length of a value once it is filled into a template.
pub(super) fn filled_length(secret: &Secret, encoding: Encoding) -> usize {
    match encoding {
        Encoding::Plain => secret.len(),
        Encoding::Url => secret.expose().iter().map(|&byte| if is_unreserved(byte) { 1 } else { 3 }).sum(),
    }
}

/// Appends a value. The caller has reserved the space: a buffer that grows leaves a copy that is not wiped.
pub(super) fn fill(secret: &Secret, encoding: Encoding, filled: &mut Zeroizing<Vec<u8>>) {
    match encoding {
        Encoding::Plain => filled.extend_from_slice(secret.expose()),
        Encoding::Url => {
            for &byte in secret.expose() {
                if is_unreserved(byte) {
                    filled.push(byte);
                } else {
                    filled.extend(percent_encoded(byte));
                }
            }
        }
    }
}
