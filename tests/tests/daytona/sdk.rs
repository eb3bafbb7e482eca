//! The real Python SDK of Daytona works with the double, so the double behaves as the client may expect.

use cofferdam_tests::daytona_double::{API_KEY, DaytonaDouble, Speed};
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::tools::Tool;

#[test]
fn the_real_sdk_works_with_the_double() {
    let Some(python) = Tool::Python.path() else { return };
    let Some(double) = DaytonaDouble::start(Speed(1)) else { return };
    let home = tempfile::tempdir().unwrap();
    let mut script = command(python);
    script.arg("-c").arg(include_str!("sdk.py")).env_clear().current_dir(home.path());
    script.env("HOME", home.path()).env("PATH", "/usr/bin:/bin");
    script.env("DAYTONA_API_KEY", API_KEY).env("DAYTONA_API_URL", double.api_url());
    // Events arrive over Socket.IO, which the double does not support; the SDK polls instead.
    script.env("DAYTONA_USE_DEPRECATED_POLLING", "true");
    script.env("SANDBOX", double.sandbox_id()).env("PROXY", double.proxy_url());
    script.env("PORT", free_address().port().to_string());
    let output = output_of(script, "the Daytona SDK");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().last(), Some("all accepted"));
}
