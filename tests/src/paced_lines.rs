//! The sidecar's log lines of which at most so many a second are written; the others are counted.

/// How many lines of this kind the log has, and how many it says were left out.
pub fn lines_and_left_out(log: &str, line: &str) -> (usize, usize) {
    let counts = log.lines().filter(|logged| logged.contains(line)).map(|logged| {
        let count = logged.split_once(" left_out=").expect("each line tells how many were left out").1;
        let count = count.split(' ').next().and_then(|count| count.parse::<usize>().ok());
        let is_line = !logged.contains("more lines like this were left out");
        (usize::from(is_line), count.expect("a number"))
    });
    counts.fold((0, 0), |(lines, left_out), (line, count)| (lines + line, left_out + count))
}
