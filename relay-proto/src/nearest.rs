//! "Did you mean …?" for names, options and commands.

/// The candidate that is most similar to `name`, if one is similar enough to be a likely typing mistake. `name` itself is none.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // At most a third of the characters may differ.
    let tolerance = name.chars().count() / 3;
    candidates
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| (1..=tolerance).contains(distance))
        .min()
        .map(|(_, candidate)| candidate)
}

/// The Damerau–Levenshtein distance: insertions, deletions, replacements and swaps of neighbouring characters.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for row in 1..=one.len() {
        let mut current = vec![row];
        for column in 1..=other.len() {
            let same = one[row - 1] == other[column - 1];
            let replaced = last[column - 1] + usize::from(!same);
            let mut best = replaced.min(last[column] + 1).min(current[column - 1] + 1);
            let swapped = row > 1
                && column > 1
                && one[row - 1] == other[column - 2]
                && one[row - 2] == other[column - 1];
            if swapped {
                best = best.min(before_last[column - 2] + 1);
            }
            current.push(best);
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_mistakes_get_a_suggestion() {
        let keys = ["command", "env", "files", "headers", "url"];
        assert_eq!(nearest("comand", keys), Some("command"));
        assert_eq!(nearest("evn", keys), Some("env"));
        assert_eq!(nearest("header", keys), Some("headers"));
        assert_eq!(nearest("password", keys), None);
        assert_eq!(nearest("", keys), None);
        assert_eq!(nearest("url", keys), None, "it is no mistake");
    }
}
