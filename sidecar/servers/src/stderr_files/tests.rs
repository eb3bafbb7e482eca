//! The files of stderr: what is written, rotated, dropped and read again.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use relay_proto::name::Name;

use super::queue::{MAX_WAITING_BYTES, Queue};
use super::record::Content;
use super::*;

/// A state directory of this test, removed with it.
struct State(PathBuf);

impl State {
    fn new() -> Self {
        Self(std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-stderr-")))
    }

    fn files(&self) -> [PathBuf; 2] {
        write::paths(&stderr_directory(&self.0), &server())
    }

    fn follower(&self) -> StderrFollower {
        StderrFollower::from_start(&stderr_directory(&self.0), &server()).unwrap()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Reached only if the writer is broken.
const TIMEOUT: Duration = Duration::from_secs(20);

fn server() -> Name {
    "github".parse().unwrap()
}

fn line(text: &str) -> StderrRecord {
    StderrRecord::line(Origin { session: "s1".into(), link: "l1".into(), process: 7 }, text, 0)
}

fn write(files: &StderrFiles, texts: impl IntoIterator<Item = String>) {
    for text in texts {
        files.write(&server(), line(&text));
    }
    files.finish(TIMEOUT);
}

fn texts(lines: impl IntoIterator<Item = String>) -> Vec<String> {
    let text = |line: String| match StderrRecord::parse(&line).map(|record| record.content) {
        Some(Content::Text { text, .. }) => text,
        Some(Content::Dropped { dropped, .. }) => format!("{dropped} dropped"),
        None => format!("not a record: {line}"),
    };
    lines.into_iter().map(text).collect()
}

fn numbered(range: std::ops::Range<u32>) -> impl Iterator<Item = String> {
    range.map(|number| format!("line {number:04}"))
}

#[test]
fn lines_are_written_with_their_origin_and_only_the_user_can_read_them() {
    let state = State::new();
    let files = StderrFiles::in_state(&state.0, 1024 * 1024);
    assert!(!state.0.exists(), "nothing is created before the first line");
    write(&files, ["one \u{1b}[2J\u{202e}".to_owned(), "two".to_owned()]);
    let [path, _] = state.files();
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text.contains(r#""session":"s1","link":"l1","process":7,"text":"one \\u{1b}[2J\\u{202e}"}"#),
        "{text}"
    );
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    let shown = StderrRecord::parse(text.lines().next().unwrap()).unwrap().human();
    assert!(shown.ends_with(r" s1/l1 7  one \u{1b}[2J\u{202e}"), "{shown}");
}

#[test]
fn a_file_that_others_could_read_is_protected_before_the_next_line() {
    let state = State::new();
    let [path, _] = state.files();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    write(&StderrFiles::in_state(&state.0, 1024 * 1024), numbered(0..1));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn a_flood_stays_within_the_limit_and_the_newest_lines_are_kept() {
    let state = State::new();
    let files = StderrFiles::in_state(&state.0, 8 * 1024);
    for start in (0..2000).step_by(100) {
        write(&files, numbered(start..start + 100));
        let bytes: u64 =
            state.files().iter().filter_map(|path| fs::metadata(path).ok()).map(|file| file.len()).sum();
        assert!(bytes <= 8 * 1024, "{bytes}");
    }
    let kept = texts(state.follower().last(10).unwrap());
    assert_eq!(kept, numbered(1990..2000).collect::<Vec<_>>());
    assert!(texts(state.follower().last(usize::MAX).unwrap()).len() > 30);
}

#[test]
fn a_follower_sees_each_line_once_across_rotations() {
    let state = State::new();
    let files = StderrFiles::in_state(&state.0, 8 * 1024);
    write(&files, numbered(0..1));
    let mut follower = state.follower();
    let mut seen = texts(follower.last(usize::MAX).unwrap());
    // About thirty lines are in a file, so every third or so of these batches rotates the files, some twice.
    for (start, end) in (1..600).step_by(13).map(|start| (start, start + 13)).chain([(599, 640)]) {
        let start = start.max(seen.len() as u32);
        write(&files, numbered(start..end.max(start)));
        seen.extend(texts(follower.last(usize::MAX).unwrap()));
    }
    assert_eq!(seen, numbered(0..640).collect::<Vec<_>>());
}

#[test]
fn a_follower_waits_for_the_first_line_and_for_the_end_of_a_line() {
    let state = State::new();
    let mut follower = state.follower();
    assert_eq!(follower.poll().unwrap(), Vec::<String>::new());
    let [path, _] = state.files();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "{\"half").unwrap();
    assert_eq!(follower.poll().unwrap(), Vec::<String>::new());
    fs::write(&path, "{\"half a line\n").unwrap();
    assert_eq!(follower.poll().unwrap(), ["{\"half a line"]);
}

#[test]
fn a_line_that_a_crash_cut_does_not_spoil_the_next_one() {
    let state = State::new();
    let [path, _] = state.files();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "{\"time\":\"2026").unwrap();
    write(&StderrFiles::in_state(&state.0, 1024 * 1024), numbered(0..1));
    let lines = texts(state.follower().last(9).unwrap());
    assert_eq!(lines, ["not a record: {\"time\":\"2026", "line 0000"]);
}

#[test]
fn lines_that_cannot_be_written_are_counted_in_the_file_as_soon_as_it_can_be() {
    let state = State::new();
    let directory = stderr_directory(&state.0);
    // Not a directory, like a disk that is gone.
    fs::create_dir_all(&state.0).unwrap();
    fs::write(&directory, "").unwrap();
    let files = StderrFiles::in_state(&state.0, 1024 * 1024);
    write(&files, numbered(0..3));
    fs::remove_file(&directory).unwrap();
    write(&files, numbered(3..4));
    assert_eq!(texts(state.follower().last(9).unwrap()), ["3 dropped", "line 0003"]);
}

#[test]
fn a_disk_that_hangs_blocks_no_server_and_what_waits_for_it_is_bounded() {
    // Nothing takes lines from this queue, as if the thread were in a write that hangs.
    let queue = Queue::default();
    let record = line(&"x".repeat(1000));
    let fits = MAX_WAITING_BYTES / record.size();
    for _ in 0..fits + 10 {
        queue.push(&server(), record.clone());
    }
    assert_eq!(queue.take_dropped(&server()), 10);
    assert_eq!(queue.wait().map(|lines| lines.len()), Some(fits));
    queue.push(&server(), record);
    assert_eq!(queue.take_dropped(&server()), 0, "there is room again");
}

#[test]
fn a_removed_file_is_made_again() {
    let state = State::new();
    let files = StderrFiles::in_state(&state.0, 1024 * 1024);
    write(&files, numbered(0..1));
    fs::remove_file(&state.files()[0]).unwrap();
    write(&files, numbered(1..2));
    assert_eq!(texts(state.follower().last(9).unwrap()), ["line 0001"]);
}

#[test]
fn a_symbolic_link_in_the_place_of_a_file_is_neither_written_nor_read() {
    let state = State::new();
    let [path, _] = state.files();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let target = state.0.join("target");
    fs::write(&target, "kept\n").unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    write(&StderrFiles::in_state(&state.0, 1024 * 1024), numbered(0..1));
    assert_eq!(fs::read_to_string(&target).unwrap(), "kept\n");
    assert!(StderrFollower::from_start(Path::new(path.parent().unwrap()), &server()).is_err());
}
