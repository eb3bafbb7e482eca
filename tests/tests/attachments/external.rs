//! The tests in `anywhere` also run on a platform that is given by `COFFERDAM_E2B_URL`: here a double in another process.

use cofferdam_tests::e2b_platform::{ExternalAs, assert_tests_pass_externally};

#[test]
fn attachments_work_on_an_external_platform() {
    assert_tests_pass_externally("anywhere::", ExternalAs::Platform, 21);
}

#[test]
fn attachments_work_on_an_envd_without_a_platform() {
    assert_tests_pass_externally("anywhere::", ExternalAs::LoneEnvd, 21);
}
