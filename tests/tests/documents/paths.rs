//! The files that ARCHITECTURE.md and CONTRIBUTING.md name exist.

use cofferdam_tests::markdown::{rows, spans};

use super::guide::section;
use super::{ARCHITECTURE, CONTRIBUTING, root};

/// A name without a folder is in the folder of the name before it.
#[test]
fn the_path_of_a_call_and_the_how_to_table_name_existing_files() {
    let mut named = 0;
    for section in [section(ARCHITECTURE, "## The path of a call"), section(CONTRIBUTING, "## How to add")] {
        for row in rows(section) {
            let mut folder = root();
            for path in spans(&row[1]).filter(|span| is_path(span)) {
                named += 1;
                let file = if path.contains('/') { root().join(&path) } else { folder.join(&path) };
                assert!(file.exists(), "`{path}` in the row {}: there is no {}", row[0], file.display());
                folder = if path.ends_with('/') {
                    file
                } else {
                    file.parent().expect("it is in the clone").into()
                };
            }
        }
    }
    assert!(named > 50, "{named}");
}

fn is_path(span: &str) -> bool {
    [".rs", ".md", "/"].into_iter().any(|end| span.ends_with(end))
}
