//! Lines `key = value` in sections, as `.npmrc`, `pip.conf` and `entry_points.txt` have them.

/// The lines of a text, each as its section, key and value. Comments are left out.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let mut section = "";
    text.lines().filter_map(move |line| {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.trim();
            return None;
        }
        if line.starts_with(['#', ';']) {
            return None;
        }
        let (key, value) = line.split_once('=')?;
        Some((section, key.trim(), value.trim()))
    })
}
