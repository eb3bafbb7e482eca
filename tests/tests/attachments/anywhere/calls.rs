//! Calls of a program in the sandbox while the sandbox is paused and resumed: no call is lost, and none runs twice.

use cofferdam_tests::e2b_platform::TEST_DIRECTORY;

use super::*;

/// Makes one call after the other until the file `stop` exists. Each prints its result, or why it failed, as one line.
const CALLS: &str = r#"number=0
while [ ! -e stop ]; do
  ~/.local/bin/cofferdam-shim call tools echo "{\"text\": \"call $number\"}" || echo "call $number failed"
  number=$((number + 1))
done > lines 2>&1
touch done"#;

impl Anywhere {
    /// Runs a shell command in the directory of the test.
    #[track_caller]
    fn run_in_directory(&self, command: &str) -> String {
        self.platform.run(&self.sandbox, &format!("cd ~/{TEST_DIRECTORY} && {command}")).stdout
    }

    /// The results of the calls so far.
    #[track_caller]
    fn results(&self) -> Vec<String> {
        self.run_in_directory("cat lines").lines().map(str::to_owned).collect()
    }
}

#[test]
fn calls_in_the_sandbox_survive_pauses() {
    let Some(setup) = Anywhere::with_control_api(|builder, _| builder) else { return };
    let attach = setup.attach(&[]);
    setup.platform.run(&setup.sandbox, &format!("mkdir -p ~/{TEST_DIRECTORY}"));
    setup.platform.start_in_background(&setup.sandbox, &format!("cd ~/{TEST_DIRECTORY} && {CALLS}"));
    for pauses in 1..=3 {
        let before = setup.results().len();
        wait_until("some calls are answered", || setup.results().len() > before + 5);
        setup.platform.pause(&setup.sandbox);
        wait_until("the pause is noticed", || {
            attach.printed().matches("the sandbox is suspended").count() >= pauses
        });
        setup.platform.resume(&setup.sandbox);
        attach.wait_until_attached(pauses + 1);
    }
    setup.run_in_directory("touch stop");
    wait_until("the last call is answered", || setup.run_in_directory("ls").contains("done"));
    let results = setup.results();
    let expected: Vec<String> = (0..results.len()).map(|number| format!("call {number}")).collect();
    assert_eq!(results, expected);
    assert_eq!(setup.world.times_executed("tools", "echo"), results.len(), "a call ran twice");
    attach.stop();
    setup.assert_nothing_left();
}
