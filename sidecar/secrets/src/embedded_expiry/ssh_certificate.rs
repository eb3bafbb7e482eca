//! Reads until when an OpenSSH certificate is valid from its line of text: `TYPE BASE64 [COMMENT]`.
//!
//! The base64 text encodes the layout of OpenSSH's `PROTOCOL.certkeys`: type, nonce, the strings of the key (how many
//! depends on the type), serial number, user or host, key id, principals, valid after, valid before, and five more
//! strings. A string is preceded by its length. The signature is not checked: the value comes from Vault.
//!
//! What must stay true: a certificate that does not parse to its last byte gives no expiry; no length is trusted beyond the
//! end of the data.

use base64ct::{Base64, Encoding as _};
use zeroize::Zeroizing;

/// How many strings the key of each type has.
const KEY_STRINGS: [(&[u8], usize); 8] = [
    (b"ecdsa-sha2-nistp256-cert-v01@openssh.com", 2),
    (b"ecdsa-sha2-nistp384-cert-v01@openssh.com", 2),
    (b"ecdsa-sha2-nistp521-cert-v01@openssh.com", 2),
    (b"sk-ecdsa-sha2-nistp256-cert-v01@openssh.com", 3),
    (b"sk-ssh-ed25519-cert-v01@openssh.com", 2),
    (b"ssh-dss-cert-v01@openssh.com", 4),
    (b"ssh-ed25519-cert-v01@openssh.com", 1),
    (b"ssh-rsa-cert-v01@openssh.com", 2),
];
/// Critical options, extensions, reserved, signature key, signature.
const STRINGS_AFTER_VALIDITY: usize = 5;

/// The end of the validity in seconds since 1970; `u64::MAX` means that the certificate does not expire.
pub(super) fn valid_before(text: &[u8]) -> Option<u64> {
    let mut parts = text.split(u8::is_ascii_whitespace).filter(|part| !part.is_empty());
    let (kind, body) = (parts.next()?, parts.next()?);
    if !kind.ends_with(b"-cert-v01@openssh.com") {
        return None;
    }
    let body = Zeroizing::new(Base64::decode_vec(str::from_utf8(body).ok()?).ok()?);
    let mut reader = CertificateReader(&body);
    let kind = reader.string()?;
    let (_, key_strings) = KEY_STRINGS.iter().find(|(name, _)| *name == kind)?;
    let _nonce = reader.string()?;
    reader.skip_strings(*key_strings)?;
    let _serial = reader.number()?;
    let _user_or_host = reader.bytes::<4>()?;
    let _key_id = reader.string()?;
    let _principals = reader.string()?;
    let (after, before) = (reader.number()?, reader.number()?);
    reader.skip_strings(STRINGS_AFTER_VALIDITY)?;
    // A certificate that is never valid gives no expiry.
    (reader.0.is_empty() && after < before).then_some(before)
}

/// The bytes that are not read yet.
struct CertificateReader<'a>(&'a [u8]);

impl<'a> CertificateReader<'a> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn number(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(u32::from_be_bytes(self.bytes()?)).ok()?;
        let (string, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(string)
    }

    fn skip_strings(&mut self, count: usize) -> Option<()> {
        (0..count).try_for_each(|_| self.string().map(drop))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Issued by OpenBao.
    pub(in crate::embedded_expiry) const CERTIFICATE: &str = "ssh-ed25519-cert-v01@openssh.com AAAAIHNzaC1lZDI1NTE5LWNlcnQtdjAxQG9wZW5zc2guY29tAAAAIOd45tiUuUSEzQonhOI5idiP5uEQa/cZU5GQxtMDwYruAAAAIAl1afZInVzhjjratVny6T7GE6JGdFZlJZZxYW4VbTa19fcC7xM6UYkAAAABAAAATHZhdWx0LXRva2VuLTgyNWI3NTc1NTM0MTUxNDMzZTk0ZmNmNzY4ZTAzMDBhZjIxZDk2NDIyYmIyMjVkOTg0OGZmZTIzODM2OGRiYTEAAAAJAAAABWFnZW50AAAAAGr7G3cAAAAAayVLlQAAAAAAAAAAAAAAAAAAADMAAAALc3NoLWVkMjU1MTkAAAAgpzv+yYxmnCUWg+8sq624LV9vs/9i9AgopuNxAQKdcocAAABTAAAAC3NzaC1lZDI1NTE5AAAAQKmU9L4BpL9xedYPVAmvZvKjvdafYo+LxwvduIeIQIIVKR+XPVYXdUjT2P+J5+HU14b/CmXx3NeaIGrxedLRHwk=";
    pub(in crate::embedded_expiry) const END: u64 = 0x6b25_4b95;

    /// Made by `ssh-keygen -V 20260101000000Z:20260101010000Z`, with the default extensions.
    const OTHERS: [&str; 2] = [
        "ssh-rsa-cert-v01@openssh.com AAAAHHNzaC1yc2EtY2VydC12MDFAb3BlbnNzaC5jb20AAAAgJmDHvIk+JYPojkqn2Y/5TMfD6PJpelDhb+EswD5uEpYAAAADAQABAAAAgQCpRmARVXXf4yy6dxVd9MVatpXxiyCyFjvs4/TYueRFJZicWMcof5iQefJNdjR+JpMUiGzWrLL1fVR66ZC0bxhOdQvyIsoPjPu0/WpaYYH2IBeDleA41fpuidv4Jy5+hXDGYIOxm1X5eHt0cp25XQSKLOFOWiNs0BvvoQzsjMtu0wAAAAAAAAAAAAAAAQAAAAJpZAAAAAkAAAAFYWdlbnQAAAAAaVW5AAAAAABpVccQAAAAAAAAAIIAAAAVcGVybWl0LVgxMS1mb3J3YXJkaW5nAAAAAAAAABdwZXJtaXQtYWdlbnQtZm9yd2FyZGluZwAAAAAAAAAWcGVybWl0LXBvcnQtZm9yd2FyZGluZwAAAAAAAAAKcGVybWl0LXB0eQAAAAAAAAAOcGVybWl0LXVzZXItcmMAAAAAAAAAAAAAADMAAAALc3NoLWVkMjU1MTkAAAAgSZIz0x3ZIgKJprXRHDJMZxeLyaLiwToMwlQHd5e8JhkAAABTAAAAC3NzaC1lZDI1NTE5AAAAQMTGFnhDqtodhHXxX7/lQnsWLdKk0MwHv9kvwMYwXLg8+hMcSvEO+ORl8R1ozxZ81gCenBZ190N7dw8Nlse0Hg8= x",
        "ecdsa-sha2-nistp256-cert-v01@openssh.com AAAAKGVjZHNhLXNoYTItbmlzdHAyNTYtY2VydC12MDFAb3BlbnNzaC5jb20AAAAgx+raNWpfQ7wXi+vDUt4ruO+jCzOFw7wB9VLVcUd5fLQAAAAIbmlzdHAyNTYAAABBBNulVpZvJul1m7ih55SAxRrrvqwwabCBdFIZXa9MjaNjCQrN06vQXAMtFIeaStN1y4GX9NFGBkOJOPcRcGsgyp8AAAAAAAAAAAAAAAEAAAACaWQAAAAJAAAABWFnZW50AAAAAGlVuQAAAAAAaVXHEAAAAAAAAACCAAAAFXBlcm1pdC1YMTEtZm9yd2FyZGluZwAAAAAAAAAXcGVybWl0LWFnZW50LWZvcndhcmRpbmcAAAAAAAAAFnBlcm1pdC1wb3J0LWZvcndhcmRpbmcAAAAAAAAACnBlcm1pdC1wdHkAAAAAAAAADnBlcm1pdC11c2VyLXJjAAAAAAAAAAAAAAAzAAAAC3NzaC1lZDI1NTE5AAAAIEmSM9Md2SICiaa10RwyTGcXi8mi4sE6DMJUB3eXvCYZAAAAUwAAAAtzc2gtZWQyNTUxOQAAAEC1TVYCFBnMMgERLPkC7NHOH8MtTm8POOHnFB4sNbXwRVQwDDTXCstlL3Jdb2IDzg2XdjXb/fexuXvWNo3W9noM x",
    ];

    fn body() -> Vec<u8> {
        let (_, body) = CERTIFICATE.split_once(' ').unwrap();
        Base64::decode_vec(body).unwrap()
    }

    fn end_of(body: &[u8]) -> Option<u64> {
        let text = format!("ssh-ed25519-cert-v01@openssh.com {}", Base64::encode_string(body));
        valid_before(text.as_bytes())
    }

    #[test]
    fn the_end_of_the_validity_is_read() {
        assert_eq!(valid_before(CERTIFICATE.as_bytes()), Some(END));
        assert_eq!(end_of(&body()), Some(END));
        for other in OTHERS {
            assert_eq!(valid_before(other.as_bytes()), Some(1_767_229_200), "{other}");
        }
    }

    #[test]
    fn certificates_of_every_type_are_read() {
        let text = |bytes: &[u8]| [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat();
        for (kind, parts) in KEY_STRINGS {
            let mut body = [text(kind), text(b"nonce")].concat();
            (0..parts).for_each(|_| body.extend(text(b"part of a key")));
            body.extend(
                [7_u64.to_be_bytes().as_slice(), &1_u32.to_be_bytes(), &text(b"id"), &text(b"")].concat(),
            );
            body.extend([5_u64.to_be_bytes(), 9_u64.to_be_bytes()].concat());
            (0..STRINGS_AFTER_VALIDITY).for_each(|_| body.extend(text(b"")));
            assert_eq!(end_of(&body), Some(9), "{}", kind.escape_ascii());
        }
    }

    #[test]
    fn truncated_and_malformed_certificates_give_no_expiry() {
        let whole = body();
        for length in 0..whole.len() {
            assert_eq!(end_of(&whole[..length]), None, "the first {length} bytes");
        }
        assert_eq!(end_of(&[whole.as_slice(), b"\0"].concat()), None);
        let kind = "ssh-ed25519-cert-v01@openssh.com";
        let (_, base64) = CERTIFICATE.split_once(' ').unwrap();
        for bad in ["", kind, base64, &format!("ssh-ed25519 {base64}"), &format!("{kind}\u{a0}{base64}")] {
            assert_eq!(valid_before(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_certificate_that_is_never_valid_gives_no_expiry_and_one_without_end_gives_the_maximum() {
        let before = END.to_be_bytes();
        let position = body().windows(8).position(|bytes| bytes == before).unwrap();
        let read_with_end = |end: u64| {
            let mut body = body();
            body[position..position + 8].copy_from_slice(&end.to_be_bytes());
            end_of(&body)
        };
        assert_eq!(
            (read_with_end(0), read_with_end(5), read_with_end(u64::MAX)),
            (None, None, Some(u64::MAX))
        );
    }

    proptest! {
        #[test]
        fn changed_certificates_cause_no_panic(at in 0_usize..1000, byte: u8, more in "\\PC*") {
            let mut changed = body();
            let at = at % changed.len();
            changed[at] = byte;
            end_of(&changed);
            valid_before(more.as_bytes());
            valid_before(format!("ssh-rsa-cert-v01@openssh.com {more}").as_bytes());
        }
    }
}
