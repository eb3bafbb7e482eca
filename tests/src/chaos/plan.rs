//! What happens to a connection, decided before it is made.

use std::time::Duration;

use super::random::Random;

/// One connection's fate, each direction for itself.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub towards_sidecar: Course,
    pub towards_shim: Course,
}

/// One direction's.
#[derive(Clone, Debug)]
pub struct Course {
    /// At the beginning of the stream bytes go in pieces of this size.
    pub piece: usize,
    /// Before each of those pieces.
    pub delay: Duration,
    pub end: Option<End>,
}

/// Where a direction ends, and how.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct End {
    pub at: Position,
    pub how: How,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Position {
    /// After so many bytes.
    Byte(usize),
    /// After so many bytes of the n-th `Message` frame; the first is 0.
    Message { number: usize, byte: usize },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum How {
    /// Both ends of both directions, at once; what was on the way is gone.
    Cut,
    /// The shim sees its connection end; the sidecar keeps the old one, hears the rest of it after the shim has come
    /// again and this pause is over, and only then sees it end. Only towards the sidecar.
    Late { pause: Duration },
    /// This direction ends, the other goes on until its reader has seen it.
    Truncate,
}

impl Default for Course {
    fn default() -> Self {
        Self { piece: usize::MAX, delay: Duration::ZERO, end: None }
    }
}

impl Plan {
    /// Nothing happens.
    pub fn kind() -> Self {
        Self::default()
    }

    pub fn cut_towards_sidecar(at: Position) -> Self {
        Self { towards_sidecar: Course::cut(at), ..Self::default() }
    }

    pub fn cut_towards_shim(at: Position) -> Self {
        Self { towards_shim: Course::cut(at), ..Self::default() }
    }

    pub(super) fn is_late(&self) -> bool {
        matches!(self.towards_sidecar.end, Some(End { how: How::Late { .. }, .. }))
    }

    /// Anything that can happen to a stream that is wrapped in others: mostly after their handshakes of so many bytes,
    /// or few connections would ever be of use.
    pub fn draw_past(opening: usize, random: &mut Random) -> Self {
        let mut plan = Self::draw(random);
        if random.percent(75) {
            for course in [&mut plan.towards_sidecar, &mut plan.towards_shim] {
                if let Some(End { at: Position::Byte(byte), .. }) = &mut course.end {
                    *byte += opening;
                }
            }
        }
        plan
    }

    /// Anything that can happen.
    pub fn draw(random: &mut Random) -> Self {
        let mut plan = Self { towards_sidecar: Course::draw(random), towards_shim: Course::draw(random) };
        let mut end = |how| Some(End { at: Position::Byte(offset(random)), how });
        (plan.towards_sidecar.end, plan.towards_shim.end) = (end(How::Cut), end(How::Cut));
        let pause = Duration::from_millis(random.within(0..=30));
        match random.within(0..=9) {
            0..=3 => {}
            4 => plan.towards_sidecar.end_with(How::Truncate),
            5..=6 => plan.towards_shim.end_with(How::Truncate),
            _ => {
                plan.towards_sidecar.end_with(How::Late { pause });
                plan.towards_shim.end = None;
            }
        }
        plan
    }
}

impl Course {
    fn end_with(&mut self, how: How) {
        if let Some(end) = &mut self.end {
            end.how = how;
        }
    }

    fn cut(at: Position) -> Self {
        Self { end: Some(End { at, how: How::Cut }), ..Self::default() }
    }

    fn draw(random: &mut Random) -> Self {
        let piece = match random.within(0..=9) {
            0..=1 => random.within(1..=3),
            2..=4 => random.within(4..=200),
            _ => u64::MAX,
        };
        let delay = if random.percent(20) { random.within(1..=15) } else { 0 };
        Self { piece: piece as usize, delay: Duration::from_millis(delay), end: None }
    }
}

/// Where a connection ends: in the preface, the handshake, the first frames' headers, bodies, or long messages.
fn offset(random: &mut Random) -> usize {
    let range = match random.within(0..=99) {
        0..=9 => 0..=18,
        10..=29 => 18..=500,
        30..=64 => 300..=3_000,
        65..=84 => 2_000..=20_000,
        85..=94 => 10_000..=140_000,
        _ => 100_000..=1_500_000,
    };
    random.within(range) as usize
}
