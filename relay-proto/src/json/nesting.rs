//! The stack of open objects and arrays.

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Container {
    Array,
    Object,
}

/// The open containers, one bit each: even a message of nothing but brackets needs only an eighth of its size in memory,
/// and usual nesting allocates nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Nesting {
    /// The innermost containers, up to 64, the innermost at the lowest bit; a bit is set for an object.
    objects: u64,
    /// The containers outside of these, 64 to a word, the outermost first.
    outer: Vec<u64>,
    pub(super) depth: usize,
}

impl Nesting {
    #[inline]
    pub(super) fn push(&mut self, container: Container) {
        if self.depth.is_multiple_of(64) && self.depth > 0 {
            self.outer.push(self.objects);
        }
        self.objects = self.objects << 1 | u64::from(container == Container::Object);
        self.depth += 1;
    }

    #[inline]
    pub(super) fn pop(&mut self) {
        self.depth -= 1;
        self.objects >>= 1;
        if self.depth.is_multiple_of(64) {
            self.objects = self.outer.pop().unwrap_or_default();
        }
    }

    #[inline]
    pub(super) fn innermost(&self) -> Option<Container> {
        match self.objects & 1 {
            _ if self.depth == 0 => None,
            0 => Some(Container::Array),
            _ => Some(Container::Object),
        }
    }
}
