//! The scanner: one pass, no recursion, tokens with their positions.

use super::nesting::{Container, Nesting};
use super::{Escapes, JsonError, Problem, Shape, Text, Token, Value, number, quick, string};

/// What the scanner requires beyond the grammar.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rules {
    /// The deepest nesting of objects and arrays.
    pub depth: usize,
    pub surrogates: Surrogates,
}

/// Whether escapes of unpaired surrogates are accepted: JSON allows them, but they are not valid text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Surrogates {
    Any,
    Paired,
}

/// Reads one JSON value, token by token.
///
/// After an error the scanner stays where it failed and returns an error again.
#[derive(Clone, Debug)]
pub struct Scanner<'a> {
    source: &'a str,
    at: usize,
    expect: Expect,
    nesting: Nesting,
    rules: Rules,
}

impl Rules {
    /// The grammar alone, without a limit of depth: for values that were checked before, or only to find an id.
    pub const LENIENT: Self = Self { depth: usize::MAX, surrogates: Surrogates::Any };
}

impl<'a> Scanner<'a> {
    pub fn new(bytes: &'a [u8], rules: Rules) -> Result<Self, JsonError> {
        match std::str::from_utf8(bytes) {
            Ok(source) => Ok(Self::over(source, rules)),
            Err(error) => Err(JsonError { offset: error.valid_up_to(), problem: Problem::InvalidUtf8 }),
        }
    }

    pub fn over(source: &'a str, rules: Rules) -> Self {
        Self { source, at: 0, expect: Expect::Value, nesting: Nesting::default(), rules }
    }

    /// The next token; `None` after the end of the value, if only white space follows.
    #[expect(clippy::should_implement_trait, reason = "an iterator of results would go on after an error")]
    pub fn next(&mut self) -> Result<Option<Token>, JsonError> {
        loop {
            let byte = self.skip_white_space();
            match (self.expect, byte) {
                (Expect::End, None) => return Ok(None),
                (Expect::End, Some(_)) => return Err(self.error(Problem::TrailingData)),
                (_, None) => return Err(self.error(Problem::UnexpectedEnd)),
                (Expect::ElementOrClose, Some(b']')) => {
                    self.close();
                    return Ok(Some(Token::ArrayEnd));
                }
                (Expect::KeyOrClose, Some(b'}')) => {
                    self.close();
                    return Ok(Some(Token::ObjectEnd));
                }
                (Expect::Key | Expect::KeyOrClose, Some(b'"')) => {
                    return self.read_key().map(|text| Some(Token::Key(text)));
                }
                (Expect::Key | Expect::KeyOrClose, Some(_)) => return Err(self.error(Problem::ExpectedKey)),
                (Expect::ElementOrClose | Expect::Value, Some(byte)) => {
                    return self.read_value(byte).map(Some);
                }
                (Expect::CommaOrClose, Some(byte)) => match (byte, self.nesting.innermost()) {
                    (b',', Some(Container::Array)) => self.consume_byte_then(Expect::Value),
                    (b',', Some(Container::Object)) => self.consume_byte_then(Expect::Key),
                    (b']', Some(Container::Array)) => {
                        self.close();
                        return Ok(Some(Token::ArrayEnd));
                    }
                    (b'}', Some(Container::Object)) => {
                        self.close();
                        return Ok(Some(Token::ObjectEnd));
                    }
                    _ => return Err(self.error(Problem::ExpectedCommaOrClose)),
                },
            }
        }
    }

    /// The next key of the current object; `None` at its end. Consumes the key and its colon, or the end.
    pub fn key(&mut self) -> Result<Option<Text>, JsonError> {
        // The usual cases first: another key after a comma, or the first one.
        let mut byte = self.skip_white_space();
        if matches!((self.expect, byte), (Expect::CommaOrClose, Some(b',')))
            && self.nesting.innermost() == Some(Container::Object)
        {
            self.consume_byte_then(Expect::Key);
            byte = self.skip_white_space();
        }
        if matches!((self.expect, byte), (Expect::Key | Expect::KeyOrClose, Some(b'"'))) {
            return self.read_key().map(Some);
        }
        match self.next()? {
            Some(Token::Key(text)) => Ok(Some(text)),
            Some(Token::ObjectEnd) => Ok(None),
            _ => Err(self.error(Problem::ExpectedKey)),
        }
    }

    /// Skips the next element of the current array; `None` at its end, which is consumed too.
    pub fn element(&mut self) -> Result<Option<Value>, JsonError> {
        match self.next()? {
            Some(Token::ArrayEnd) => Ok(None),
            Some(first) => self.rest_of_value(first, |_| ()).map(Some),
            None => Err(self.error(Problem::ExpectedValue)),
        }
    }

    /// Skips one whole value.
    pub fn value(&mut self) -> Result<Value, JsonError> {
        match self.quick_value() {
            Some(value) => Ok(value),
            None => self.value_with(|_| ()),
        }
    }

    /// Skips one whole value and calls `visit` with each of its tokens.
    pub fn value_with(&mut self, mut visit: impl FnMut(&Token)) -> Result<Value, JsonError> {
        let Some(first) = self.next()? else { return Err(self.error(Problem::ExpectedValue)) };
        visit(&first);
        self.rest_of_value(first, visit)
    }

    /// How many objects and arrays are open here.
    pub fn depth(&self) -> usize {
        self.nesting.depth
    }

    /// The position after the last token.
    pub fn position(&self) -> usize {
        self.at
    }

    /// The whole message.
    pub fn source(&self) -> &'a str {
        self.source
    }

    /// Skips the next value if the quick path can; otherwise changes nothing.
    fn quick_value(&mut self) -> Option<Value> {
        if !matches!(self.expect, Expect::Value) || self.rules.surrogates == Surrogates::Paired {
            return None;
        }
        let bytes = self.source.as_bytes();
        let start = quick::skip_space(bytes, self.at);
        let (shape, end) = quick::skip_value(bytes, start, self.rules.depth - self.nesting.depth)?;
        self.at = end;
        self.expect = self.after_value();
        Some(Value { shape, span: start..end })
    }

    /// Reads the rest of the value whose first token is `first`.
    fn rest_of_value(&mut self, first: Token, mut visit: impl FnMut(&Token)) -> Result<Value, JsonError> {
        let shape = match first {
            Token::ArrayStart => Shape::Array,
            Token::ObjectStart => Shape::Object,
            Token::Literal(span) => return Ok(Value { shape: Shape::Literal, span }),
            Token::Number(span) => return Ok(Value { shape: Shape::Number, span }),
            Token::String(text) => return Ok(Value { shape: Shape::String(text.escapes), span: text.span }),
            Token::ArrayEnd | Token::Key(_) | Token::ObjectEnd => {
                return Err(self.error(Problem::ExpectedValue));
            }
        };
        let (start, depth_outside) = (self.at - 1, self.nesting.depth - 1);
        while self.nesting.depth > depth_outside {
            if let Some(token) = self.next()? {
                visit(&token);
            }
        }
        Ok(Value { shape, span: start..self.at })
    }

    #[inline]
    fn read_key(&mut self) -> Result<Text, JsonError> {
        let text = self.read_string()?;
        if self.skip_white_space() != Some(b':') {
            return Err(self.error(Problem::ExpectedColon));
        }
        self.consume_byte_then(Expect::Value);
        Ok(text)
    }

    #[inline]
    fn read_value(&mut self, byte: u8) -> Result<Token, JsonError> {
        let token = match byte {
            b'{' => return self.open(Container::Object),
            b'[' => return self.open(Container::Array),
            b'"' => Token::String(self.read_string()?),
            b'-' | b'0'..=b'9' => {
                let start = self.at;
                let end = number::end(self.source.as_bytes(), start);
                self.at = end.ok_or_else(|| self.error(Problem::InvalidNumber))?;
                Token::Number(start..self.at)
            }
            _ => {
                let rest = &self.source.as_bytes()[self.at..];
                let literal =
                    [&b"true"[..], b"false", b"null"].into_iter().find(|literal| rest.starts_with(literal));
                let start = self.at;
                self.at += literal.ok_or_else(|| self.error(Problem::ExpectedValue))?.len();
                Token::Literal(start..self.at)
            }
        };
        self.expect = self.after_value();
        Ok(token)
    }

    #[inline]
    fn read_string(&mut self) -> Result<Text, JsonError> {
        let start = self.at;
        if let Some(quote) = string::short_string_end(self.source.as_bytes(), start + 1) {
            self.at = quote + 1;
            return Ok(Text { span: start..self.at, escapes: Escapes::None });
        }
        self.read_any_string()
    }

    #[inline(never)]
    fn read_any_string(&mut self) -> Result<Text, JsonError> {
        let start = self.at;
        let (quote, escapes) = string::scan(self.source.as_bytes(), start + 1, self.rules.surrogates)?;
        self.at = quote + 1;
        Ok(Text { span: start..self.at, escapes })
    }

    #[inline]
    fn open(&mut self, container: Container) -> Result<Token, JsonError> {
        if self.nesting.depth >= self.rules.depth {
            return Err(self.error(Problem::TooDeep));
        }
        self.nesting.push(container);
        let (token, expect) = match container {
            Container::Array => (Token::ArrayStart, Expect::ElementOrClose),
            Container::Object => (Token::ObjectStart, Expect::KeyOrClose),
        };
        self.consume_byte_then(expect);
        Ok(token)
    }

    #[inline]
    fn close(&mut self) {
        self.nesting.pop();
        self.consume_byte_then(self.after_value());
    }

    fn after_value(&self) -> Expect {
        if self.nesting.depth == 0 { Expect::End } else { Expect::CommaOrClose }
    }

    /// Consumes one structural byte; `expect` may come next.
    fn consume_byte_then(&mut self, expect: Expect) {
        self.at += 1;
        self.expect = expect;
    }

    #[inline]
    fn skip_white_space(&mut self) -> Option<u8> {
        loop {
            match self.source.as_bytes().get(self.at) {
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.at += 1,
                other => return other.copied(),
            }
        }
    }

    fn error(&self, problem: Problem) -> JsonError {
        JsonError { offset: self.at, problem }
    }
}

/// What may come next.
#[derive(Clone, Copy, Debug)]
enum Expect {
    CommaOrClose,
    ElementOrClose,
    End,
    Key,
    KeyOrClose,
    Value,
}
