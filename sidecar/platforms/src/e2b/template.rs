//! Lines for an E2B template that contains the shim, so that it need not be uploaded.

use crate::ShimBinary;
use crate::install::{SHIM_PREFIX, TEMPLATE_DIRECTORY, TEMPLATE_LINK};

/// Lines for a template's Dockerfile; the shim is `cofferdam-shim` in the same directory.
pub(super) fn lines(shim: &ShimBinary) -> String {
    let file = format!("{TEMPLATE_DIRECTORY}/{SHIM_PREFIX}{}", shim.digest);
    format!(
        "# The cofferdam shim: copy it beside this Dockerfile as `cofferdam-shim`. Enrolment happens when it is attached; \
         nothing in the template is secret.\n\
         COPY cofferdam-shim {file}\n\
         RUN chmod 0755 {file} && ln -sf {file} {TEMPLATE_LINK}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_has_the_shim_under_its_digest_and_a_link() {
        let shim = ShimBinary { bytes: bytes::Bytes::new(), digest: "0123abcd".to_owned() };
        let lines = lines(&shim);
        assert!(
            lines.contains("COPY cofferdam-shim /usr/local/lib/cofferdam/cofferdam-shim-0123abcd\n"),
            "{lines}"
        );
        assert!(lines.contains(
            "ln -sf /usr/local/lib/cofferdam/cofferdam-shim-0123abcd /usr/local/bin/cofferdam-shim\n"
        ));
    }
}
