//! Sandboxes with different processors, attached by one program that contains a shim for each.

use std::fs;

use cofferdam_tests::packaged::program_with_shims;
use ring::digest::{SHA256, digest};

use super::*;

/// The shim that is called that of the other processor is this machine's with more bytes at its end, so that it runs here.
#[test]
fn each_sandbox_gets_the_shim_for_its_processor_from_the_program() {
    let Some(platform) = E2bPlatform::start() else { return };
    if !platform.has_control_api() {
        return;
    }
    let own = std::env::consts::ARCH;
    let other = if own == "x86_64" { "aarch64" } else { "x86_64" };
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let other_shim = directory.path().join("other-shim");
    let own_bytes = fs::read(shim_binary()).expect("the shim was built");
    let other_bytes = [own_bytes.clone(), b"of another processor".to_vec()].concat();
    fs::write(&other_shim, &other_bytes).expect("a temporary directory is writable");
    let program = program_with_shims(directory.path(), &[(own, &shim_binary()), (other, &other_shim)]);

    let builder = builder_without_shim(platform.api_url(), platform.sandbox_url(), platform.api_key());
    let sandbox = platform.create();
    let setup = Anywhere { world: builder.program(program).start(), platform, sandbox };
    // This directory is first on the PATH in the sandbox.
    let other_processor = setup.platform.create();
    let uname = format!(
        "printf '#!/bin/sh\necho {other}\n' > /usr/local/bin/uname && chmod 0755 /usr/local/bin/uname"
    );
    setup.platform.run_as_root(&other_processor, &uname);

    let setup = setup.assert_gets(&own_bytes);
    let setup = Anywhere { sandbox: other_processor, ..setup };
    setup.assert_gets(&other_bytes);
}

impl Anywhere {
    /// Attaches the sandbox, looks at the shim that is in it then, and calls through it.
    #[track_caller]
    fn assert_gets(self, shim: &[u8]) -> Self {
        let attach = self.attach(&[]);
        let installed = self.platform.run(&self.sandbox, "sha256sum < ~/.local/bin/cofferdam-shim").stdout;
        let expected: String =
            digest(&SHA256, shim).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(installed.starts_with(&expected), "it has {installed}, not {expected}");
        self.assert_echoes("through the right shim");
        attach.stop();
        self.assert_nothing_left();
        self
    }
}
