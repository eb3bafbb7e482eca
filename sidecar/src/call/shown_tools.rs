//! Removes denied tools from `tools/list` responses, and remembers which tools the harness was shown.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use cofferdam_policy::Rules;
use relay_proto::json;
use relay_proto::limits::MAX_TOOL_NAME;

/// The tools that this harness was shown. A denied call of a shown tool is refused as `tool_denied`; a denied call of
/// any other tool is refused as if the tool did not exist.
#[derive(Debug, Default)]
pub(crate) struct ShownTools {
    names: HashSet<Box<str>>,
}

/// Bounds the memory that a server can make a link use. Denied calls of tools beyond this are refused as if the tools
/// did not exist.
const MAX_NAMES: usize = 4096;

impl ShownTools {
    pub(crate) fn contains(&self, tool: &str) -> bool {
        self.names.contains(tool)
    }

    /// Removes the denied tools from the result at `result`, and remembers the others.
    pub(crate) fn filter<'a>(
        &mut self,
        message: &'a [u8],
        result: Range<usize>,
        rules: &Rules,
    ) -> Cow<'a, [u8]> {
        let Some(list) = json::member(message, result, "tools") else { return Cow::Borrowed(message) };
        json::remove_elements(message, list, |tool| {
            let name = json::member(message, tool, "name").and_then(|name| json::text(message, name));
            let shown = name.as_deref().is_some_and(|name| rules.shows(name));
            let is_remembered = |name: &Cow<'_, str>| shown && self.has_room_for(name);
            if let Some(name) = name.filter(is_remembered) {
                self.names.insert(name.into());
            }
            shown
        })
    }

    fn has_room_for(&self, name: &str) -> bool {
        self.names.len() < MAX_NAMES && name.len() <= MAX_TOOL_NAME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_too_long_is_shown_and_not_remembered() {
        let named = |length: usize| format!(r#"{{"name":"{}"}}"#, "n".repeat(length));
        let list = format!(r#"{{"tools":[{},{}]}}"#, named(MAX_TOOL_NAME), named(MAX_TOOL_NAME + 1));
        let mut tools = ShownTools::default();
        let shown = tools.filter(list.as_bytes(), 0..list.len(), &Rules::default());
        assert_eq!(&*shown, list.as_bytes());
        assert!(tools.contains(&"n".repeat(MAX_TOOL_NAME)));
        assert!(!tools.contains(&"n".repeat(MAX_TOOL_NAME + 1)));
    }
}
