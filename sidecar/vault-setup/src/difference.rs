//! The difference of two texts, line by line.

/// A line of a difference.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Line<'a> {
    Added(&'a str),
    Removed(&'a str),
    Same(&'a str),
}

/// The table of a comparison has this many cells at most, which take as many 32-bit numbers; larger texts are shown as
/// replaced as a whole.
const MAX_CELLS: usize = 4_000_000;

/// The shortest list of lines that leads from `before` to `after`.
pub fn difference<'a>(before: &'a [String], after: &'a [String]) -> Vec<Line<'a>> {
    let columns = after.len() + 1;
    if (before.len() + 1).saturating_mul(columns) > MAX_CELLS {
        let removed = before.iter().map(|line| Line::Removed(line));
        return removed.chain(after.iter().map(|line| Line::Added(line))).collect();
    }
    // `common[i * columns + j]`: the number of common lines of `before[i..]` and `after[j..]`.
    let mut common = vec![0_u32; (before.len() + 1) * columns];
    for i in (0..before.len()).rev() {
        for j in (0..after.len()).rev() {
            common[i * columns + j] = match before[i] == after[j] {
                true => common[(i + 1) * columns + j + 1] + 1,
                false => common[(i + 1) * columns + j].max(common[i * columns + j + 1]),
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < before.len() || j < after.len() {
        if i < before.len() && j < after.len() && before[i] == after[j] {
            lines.push(Line::Same(&after[j]));
            (i, j) = (i + 1, j + 1);
        } else if j == after.len()
            || (i < before.len() && common[(i + 1) * columns + j] >= common[i * columns + j + 1])
        {
            lines.push(Line::Removed(&before[i]));
            i += 1;
        } else {
            lines.push(Line::Added(&after[j]));
            j += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.chars().map(String::from).collect()
    }

    #[test]
    fn common_lines_stay_and_the_rest_is_removed_or_added() {
        let (before, after) = (lines("abcd"), lines("axcde"));
        assert_eq!(
            difference(&before, &after),
            [
                Line::Same("a"),
                Line::Removed("b"),
                Line::Added("x"),
                Line::Same("c"),
                Line::Same("d"),
                Line::Added("e")
            ]
        );
        assert_eq!(difference(&[], &after).len(), 5);
        assert!(difference(&before, &[]).iter().all(|line| matches!(line, Line::Removed(_))));
    }

    #[test]
    fn texts_that_are_too_long_to_compare_are_replaced_as_a_whole() {
        let before = vec!["a".to_owned(); 3000];
        let shown = difference(&before, &before);
        assert_eq!(shown.len(), 6000);
        assert_eq!(shown[0], Line::Removed("a"));
    }
}
