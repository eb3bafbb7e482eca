//! Generates messages from bytes: each byte is a choice, so that a message is usual in most respects, unusual in some,
//! and sometimes damaged.

/// Returns the depth limit to read the message with, and the message, which may be deeper.
pub(crate) fn generate_message(choices: &[u8]) -> (usize, Vec<u8>) {
    let mut generator = MessageGenerator { choices: choices.iter(), out: Vec::new(), syntax: Syntax::Valid };
    let depth = generator.one_of(&[128, 128, 128, 1024, 64, 65, 66, 63, 128, 1024, 128, 4, 3, 2, 1, 128]);
    generator.syntax = generator.one_of(&[Syntax::Valid, Syntax::Valid, Syntax::Valid, Syntax::Any]);
    let damages = generator.one_of(&[0, 0, 0, 0, 0, 1, 1, 3]);
    generator.message();
    (0..damages).for_each(|_| generator.damage());
    (depth, generator.out)
}

struct MessageGenerator<'a> {
    choices: std::slice::Iter<'a, u8>,
    out: Vec<u8>,
    syntax: Syntax,
}

/// Whether invalid JSON is generated too.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Syntax {
    Any,
    Valid,
}

/// Which containers a deeply nested value consists of.
#[derive(Clone, Copy)]
enum Nesting {
    Arrays,
    Objects,
    /// Every third level is an object, the others are arrays.
    Mixed,
}

/// String lengths around the reader's block sizes, where it switches from one loop to another.
const LENGTHS: [usize; 20] = [3, 0, 1, 6, 7, 8, 9, 14, 15, 16, 17, 63, 64, 65, 71, 72, 127, 129, 260, 1100];

impl MessageGenerator<'_> {
    /// A number below `count`; 0 when there are no choices left.
    fn pick(&mut self, count: usize) -> usize {
        self.choices.next().map_or(0, |choice| usize::from(*choice) % count)
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.pick(all.len())]
    }

    fn write(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    fn message(&mut self) {
        let mut members: Vec<&str> = match self.pick(8) {
            0..=3 => vec!["jsonrpc", "id", "method", "params"],
            4 => vec!["jsonrpc", "method", "params"],
            5 => vec!["jsonrpc", "id", "result"],
            6 => vec!["jsonrpc", "id", "error"],
            _ => vec!["jsonrpc", "method", "id", "params", "result", "error"],
        };
        for _ in 0..self.one_of(&[0, 0, 0, 0, 0, 0, 1, 2]) {
            let at = self.pick(members.len() + 1);
            match self.pick(4) {
                0 if at < members.len() => drop(members.remove(at)),
                1 => members.insert(at, "future"),
                2 => members.insert(at, "Future"),
                _ => members.insert(at, ["id", "method", "params", "jsonrpc", "result"][at % 5]),
            }
        }
        let rotation = self.pick(members.len().max(1));
        members.rotate_left(rotation);
        self.white_space();
        self.write("{");
        self.white_space();
        for (index, member) in members.into_iter().enumerate() {
            self.member(index, member, |generator| match (member, generator.pick(32)) {
                (_, 31) => generator.value(3),
                ("jsonrpc", _) => generator.write("\"2.0\""),
                ("id", _) => generator.id(),
                ("method", _) => {
                    let method = generator.one_of(&["tools/call", "tools/call", "ping", "tools\\/call"]);
                    generator.write(&format!("\"{method}\""));
                }
                ("params", _) => generator.params(),
                _ => generator.value(3),
            });
        }
        self.write("}");
        self.white_space();
    }

    fn params(&mut self) {
        self.write("{");
        self.white_space();
        for index in 0..self.one_of(&[2, 0, 1, 2, 3, 4]) {
            let known = ["name", "arguments", "_meta", "uri", "requestId", "x", "X", "name", "arguments"];
            let key = if self.pick(16) == 15 { self.one_of(&known) } else { known[index] };
            self.member(index, key, |generator| match (key, generator.pick(8)) {
                ("name", 0..7) => generator.text(),
                ("arguments", 0..7) => generator.object(2),
                _ => generator.value(2),
            });
        }
        self.write("}");
    }

    fn member(&mut self, index: usize, key: &str, value: impl FnOnce(&mut Self)) {
        if index > 0 {
            self.write(",");
            self.white_space();
        }
        self.key(key);
        self.white_space();
        self.write(":");
        self.white_space();
        value(self);
        self.white_space();
    }

    /// Writes the key, sometimes changed so that only some parsers treat it as the same key.
    fn key(&mut self, key: &str) {
        let at = self.pick(key.len().max(1));
        let other = match (self.pick(128), key.chars().nth(at)) {
            (31, Some(letter)) => letter.to_ascii_uppercase().to_string(),
            (30, Some(letter)) => format!("\\u{:04x}", u32::from(letter)),
            (29, Some('s')) => "ſ".into(),
            (29, Some('k')) => "\u{212a}".into(),
            (29, Some('i')) => "ı".into(),
            (28, Some(letter)) => format!("{letter}\u{301}"),
            (27, Some(letter)) => format!("{letter}\\ud800"),
            (_, letter) => letter.map(String::from).unwrap_or_default(),
        };
        let (before, after) = (key.get(..at), key.get(at + 1..));
        self.write(&format!("\"{}{other}{}\"", before.unwrap_or_default(), after.unwrap_or_default()));
    }

    fn id(&mut self) {
        let ids =
            ["7", "\"a\"", "-3", "null", "1.0", "-0", "1e3", "12345678901234567890", "\"\\u0061\"", "true"];
        match self.pick(64) {
            choice @ 0..10 => self.write(ids[choice]),
            10..16 => self.text(),
            16..20 => self.number(),
            _ => self.write("8"),
        }
    }

    fn value(&mut self, levels_left: usize) {
        match (self.pick(16), levels_left) {
            (0..=3, _) => self.text(),
            (4..=5, _) => self.number(),
            (6..=7, _) => self.literal(),
            (8..=10, 1..) => self.array(levels_left - 1),
            (11..=14, 1..) => self.object(levels_left - 1),
            (15, 2..) => self.deeply_nested(),
            _ => self.write("1"),
        }
    }

    fn array(&mut self, levels_left: usize) {
        self.write("[");
        self.white_space();
        for index in 0..self.one_of(&[0, 1, 2, 3]) {
            if index > 0 {
                self.write(",");
                self.white_space();
            }
            self.value(levels_left);
            self.white_space();
        }
        self.write("]");
    }

    fn object(&mut self, levels_left: usize) {
        const KEYS: [&str; 18] = [
            "a",
            "b",
            "c",
            "A",
            "name",
            "Name",
            "arguments",
            "ä",
            "Ä",
            "{",
            "12345678",
            "123456789012345",
            "1234567890123456",
            "12345678901234567",
            "d",
            "e",
            "",
            "\\n",
        ];
        self.write("{");
        self.white_space();
        let count = self.one_of(&[0, 1, 1, 2, 3, 13]);
        for (index, usual) in KEYS.iter().take(count).enumerate() {
            // In a large object most keys differ, so that it is not refused for a duplicate.
            let key = if count > 3 && self.pick(8) < 7 { usual } else { self.one_of(&KEYS) };
            self.member(index, key, |generator| generator.value(levels_left));
        }
        self.write("}");
    }

    /// Nesting around 64 levels, the limit of the quick path, and around the depth limit.
    fn deeply_nested(&mut self) {
        let levels = self.one_of(&[60, 61, 62, 63, 64, 65, 66, 67, 110, 124]);
        let (nesting, innermost) =
            self.one_of(&[(Nesting::Arrays, "1"), (Nesting::Objects, "\"\""), (Nesting::Mixed, "{}")]);
        let is_object = |level: usize| match nesting {
            Nesting::Arrays => false,
            Nesting::Objects => true,
            Nesting::Mixed => level.is_multiple_of(3),
        };
        for level in 0..levels {
            self.write(if is_object(level) { "{\"a\":" } else { "[" });
        }
        self.write(innermost);
        for level in (0..levels).rev() {
            self.write(if is_object(level) { "}" } else { "]" });
        }
    }

    fn text(&mut self) {
        const UNUSUAL: [&str; 18] = [
            "",
            "",
            "\\\"",
            "\\\\",
            "\\n",
            "\\u0041",
            "\\ud83d\\ude00",
            "{",
            "[",
            "ä",
            "😀",
            "\u{7f}",
            "\\\\u",
            "\\/",
            "\\\\\\\"",
            "\\ud800",
            "\\ude00\\ud83d",
            "\\uD83D\\u0041",
        ];
        const INVALID: [&str; 8] = ["\"", "\\", "\u{1f}", "\u{0}", "\n", "\\x", "\\u12", "\\ud83d\\u"];
        let length = self.one_of(&LENGTHS);
        let at = self.pick(length + 1);
        let unusual = match (self.syntax, self.pick(8)) {
            (Syntax::Any, 7) => self.one_of(&INVALID),
            _ => self.one_of(&UNUSUAL),
        };
        let (before, after) = ("x".repeat(at), "y".repeat(length - at));
        self.write(&format!("\"{before}{unusual}{after}\""));
    }

    fn number(&mut self) {
        const NUMBERS: [&str; 10] = [
            "0",
            "-1",
            "1.5",
            "1e3",
            "1E+2",
            "-0",
            "0.0",
            "18446744073709551615",
            "18446744073709551616",
            "1e400",
        ];
        const INVALID: [&str; 9] = ["01", "-", "1.", "+1", ".5", "1e", "0x1", "NaN", "1 2"];
        let number = match (self.syntax, self.pick(8)) {
            (Syntax::Any, 7) => self.one_of(&INVALID),
            _ => self.one_of(&NUMBERS),
        };
        self.write(number);
    }

    fn literal(&mut self) {
        let literal = match (self.syntax, self.pick(8)) {
            (Syntax::Any, 7) => self.one_of(&["tru", "True", "nulll", "undefined", ""]),
            _ => self.one_of(&["true", "false", "null"]),
        };
        self.write(literal);
    }

    fn white_space(&mut self) {
        let white = match (self.syntax, self.pick(16)) {
            (_, 0..12) => "",
            (Syntax::Any, 15) => self.one_of(&["\u{a0}", "\u{c}", "\u{feff}", "\u{b}", "/**/", ",", "\u{0}"]),
            _ => self.one_of(&[" ", "\n", "\t", "\r\n  "]),
        };
        self.write(white);
    }

    fn damage(&mut self) {
        const PIECES: [&[u8]; 20] = [
            b"",
            b"\"",
            b"\\",
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b" ",
            b"0",
            b"\xff",
            b"\xc3",
            b"\xed\xa0\x80",
            b"\0",
            br#","id":1"#,
            br#","ID":1"#,
            br#","name":"x""#,
            b"\\u00",
            b"\\ud8",
        ];
        let position = |generator: &mut Self| {
            (generator.pick(256) << 8 | generator.pick(256)) % (generator.out.len() + 1)
        };
        let at = position(self);
        let end = (at + self.pick(4)).min(self.out.len());
        let piece = match self.pick(8) {
            5..7 => {
                // Replaces the next bracket with a random one.
                let is_bracket = |byte: &u8| b"{}[]".contains(byte);
                let Some(at) = self.out[at..].iter().position(is_bracket).map(|found| at + found) else {
                    return;
                };
                self.out[at] = self.one_of(b"]}[{");
                return;
            }
            7 => {
                let from = position(self);
                let to = (from + self.pick(64)).min(self.out.len());
                self.out[from..to].to_vec()
            }
            _ => self.one_of(&PIECES).to_vec(),
        };
        self.out.splice(at..end, piece);
    }
}
