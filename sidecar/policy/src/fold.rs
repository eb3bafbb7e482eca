//! Folds names, so that a server which ignores case, width or invisible characters cannot be called around a `deny` rule.
//!
//! What must stay true: folding a folded name changes nothing, and the work is linear in the name.

use std::borrow::Cow;

/// The first full-width form, `！`, and the last, `～`: each stands for the ASCII character [`FULL_WIDTH_OFFSET`] before it.
const FULL_WIDTH: std::ops::RangeInclusive<char> = '\u{ff01}'..='\u{ff5e}';
const FULL_WIDTH_OFFSET: u32 = 0xff01 - '!' as u32;

/// The name in lower case, without invisible characters and with ASCII for full-width forms. An ordinary name is borrowed.
pub(crate) fn fold(name: &str) -> Cow<'_, str> {
    if name.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase() && !byte.is_ascii_control()) {
        return Cow::Borrowed(name);
    }
    let visible = name.chars().filter(|character| !character.is_control() && !is_ignorable(*character));
    let narrow = visible.map(narrow);
    // To upper case and back, so that characters such as `ſ` become their ordinary letter.
    Cow::Owned(narrow.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect())
}

/// The ASCII character that a full-width form stands for; any other character itself.
pub(crate) fn narrow(character: char) -> char {
    match character {
        '\u{3000}' => ' ',
        wide if FULL_WIDTH.contains(&wide) => {
            char::from_u32(u32::from(wide) - FULL_WIDTH_OFFSET).unwrap_or(wide)
        }
        other => other,
    }
}

/// Whether Unicode lists the character as one that is ignored where it cannot be shown (`Default_Ignorable_Code_Point`).
pub(crate) fn is_ignorable(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn case_width_and_invisible_characters_are_folded() {
        for name in [
            "delete_all",
            "Delete_All",
            "DELETE_ALL",
            "ｄｅｌｅｔｅ＿ａｌｌ",
            "ＤＥＬＥＴＥ＿ＡＬＬ",
            "dele\u{200b}te_all",
            "delete\u{feff}_all",
            "delete_a\u{fe0f}ll",
            "delete_\u{e0061}all",
            "delete_al\u{202e}l",
        ] {
            assert_eq!(fold(name), "delete_all", "{name:?}");
        }
        assert_eq!(fold("liſt_Kelvin"), "list_kelvin");
        assert!(matches!(fold("get_issue-2.x"), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn folding_a_folded_name_changes_nothing(name in ".{0,12}") {
            let folded = fold(&name).into_owned();
            prop_assert_eq!(fold(&folded), folded.as_str());
        }
    }
}
