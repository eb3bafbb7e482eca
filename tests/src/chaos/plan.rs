//! The plan of a connection: what happens to it, decided before it is opened.

use std::time::Duration;

use super::random::Random;

/// The plan of one connection, separately for each direction.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub towards_sidecar: DirectionPlan,
    pub towards_shim: DirectionPlan,
}

/// The plan of one direction.
#[derive(Clone, Debug)]
pub struct DirectionPlan {
    /// The size of the pieces in which the first bytes are sent.
    pub piece: usize,
    /// The delay before each of those pieces.
    pub delay: Duration,
    /// How the other bytes are sent.
    pub rest: Rest,
    pub end: Option<End>,
}

/// How the bytes after the first ones are sent.
#[derive(Clone, Debug)]
pub enum Rest {
    AsTheyCome,
    /// Split at random bytes, sometimes with a delay.
    Torn(Random),
}

/// Where a direction ends, and how.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct End {
    pub at: Position,
    pub how: How,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Position {
    /// After this many bytes.
    Byte(usize),
    /// After this many bytes of the n-th `Message` frame; the first is 0.
    Message { number: usize, byte: usize },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum How {
    /// Both directions are closed at once; bytes in transit are lost.
    Cut,
    /// The shim's side is closed at once. The sidecar's side stays open: it receives the remaining bytes after the shim
    /// has reconnected and this delay has passed, and is closed then. Only towards the sidecar.
    Late { pause: Duration },
    /// This direction ends; the other continues until the receiver closes it.
    Truncate,
}

/// Plans for the successive connections of one link.
///
/// A long message continues with its next part on the next connection, but a part must arrive complete. Many
/// connections in a row that are too short for one part would take too long, because each has a delay and a
/// handshake; so there are at most [`MAX_SHORT_IN_A_ROW`] of them in a row.
#[derive(Clone, Debug)]
pub struct Plans {
    sizes: LinkSizes,
    random: Random,
    short_in_a_row: usize,
}

/// Sizes by which the plans for a kind of link are drawn.
#[derive(Clone, Copy, Debug)]
pub struct LinkSizes {
    /// The approximate size of the handshakes below the relay protocol, in bytes per direction; larger where too few
    /// connections would get through.
    pub opening: usize,
    /// The minimum number of bytes per direction that a connection forwards if it has to be long.
    pub stretch: usize,
}

/// How many connections in a row may be too short for a part of a long message.
const MAX_SHORT_IN_A_ROW: usize = 6;
/// Enough for the handshakes and one part with its header.
const PART_BYTES: usize = 80_000;

impl Plans {
    pub fn new(sizes: LinkSizes, random: Random) -> Self {
        Self { sizes, random, short_in_a_row: 0 }
    }

    #[expect(clippy::should_implement_trait, reason = "not an iterator; each call draws a plan")]
    pub fn next(&mut self) -> Plan {
        let mut plan = Plan::draw_past(self.sizes.opening, &mut self.random);
        if self.short_in_a_row >= MAX_SHORT_IN_A_ROW {
            plan.shift(self.sizes.stretch);
        }
        self.short_in_a_row = if plan.lets_a_part_pass() { 0 } else { self.short_in_a_row + 1 };
        plan
    }
}

impl Default for DirectionPlan {
    fn default() -> Self {
        Self { piece: usize::MAX, delay: Duration::ZERO, rest: Rest::AsTheyCome, end: None }
    }
}

impl Plan {
    /// Forwards everything unchanged.
    pub fn undisturbed() -> Self {
        Self::default()
    }

    pub fn cut_towards_sidecar(at: Position) -> Self {
        Self { towards_sidecar: DirectionPlan::cut(at), ..Self::default() }
    }

    pub fn cut_towards_shim(at: Position) -> Self {
        Self { towards_shim: DirectionPlan::cut(at), ..Self::default() }
    }

    pub(super) fn is_late(&self) -> bool {
        matches!(self.towards_sidecar.end, Some(End { how: How::Late { .. }, .. }))
    }

    /// All bytes arrive, split and delayed.
    pub fn torn(random: &mut Random) -> Self {
        let mut direction =
            || DirectionPlan { rest: Rest::Torn(Random::new(random.next())), ..DirectionPlan::draw(random) };
        Self { towards_sidecar: direction(), towards_shim: direction() }
    }

    /// This plan, with a random kind of end after this many bytes in one direction.
    pub fn ending(mut self, after: usize, random: &mut Random) -> Self {
        let at = Position::Byte(after);
        let pause = Duration::from_millis(random.within(0..=30));
        let (direction, how) = match random.within(0..=4) {
            0 => (&mut self.towards_sidecar, How::Cut),
            1 => (&mut self.towards_shim, How::Cut),
            2 => (&mut self.towards_sidecar, How::Truncate),
            3 => (&mut self.towards_shim, How::Truncate),
            _ => (&mut self.towards_sidecar, How::Late { pause }),
        };
        direction.end = Some(End { at, how });
        self
    }

    /// A random plan for a stream inside TLS or a WebSocket. Most plans take effect after the outer handshakes, of
    /// `opening` bytes, because otherwise few connections would get through.
    fn draw_past(opening: usize, random: &mut Random) -> Self {
        let mut plan = Self::draw(random);
        if random.percent(75) {
            plan.shift(opening);
        }
        plan
    }

    /// Moves the ends of both directions by this many bytes.
    fn shift(&mut self, bytes: usize) {
        for direction in [&mut self.towards_sidecar, &mut self.towards_shim] {
            if let Some(End { at: Position::Byte(byte), .. }) = &mut direction.end {
                *byte += bytes;
            }
        }
    }

    /// Whether one part of a long message passes in each direction.
    fn lets_a_part_pass(&self) -> bool {
        [&self.towards_sidecar, &self.towards_shim]
            .iter()
            .all(|way| !matches!(way.end, Some(End { at: Position::Byte(byte), .. }) if byte < PART_BYTES))
    }

    /// A random plan.
    pub fn draw(random: &mut Random) -> Self {
        let mut plan =
            Self { towards_sidecar: DirectionPlan::draw(random), towards_shim: DirectionPlan::draw(random) };
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

impl DirectionPlan {
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
        Self { piece: piece as usize, delay: Duration::from_millis(delay), ..Self::default() }
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

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: LinkSizes = LinkSizes { opening: 3_000, stretch: 160_000 };

    #[test]
    fn one_of_every_few_plans_lets_a_long_message_pass() {
        let mut plans = Plans::new(SIZES, Random::new(7));
        let lets_a_part_pass: Vec<bool> = (0..1_000).map(|_| plans.next().lets_a_part_pass()).collect();
        assert!(lets_a_part_pass.windows(MAX_SHORT_IN_A_ROW + 1).all(|some| some.contains(&true)));
        assert!(
            lets_a_part_pass.iter().filter(|lets_a_part_pass| !**lets_a_part_pass).count() > 700,
            "most connections are cut early"
        );
    }

    #[test]
    fn the_same_seed_gives_the_same_plans() {
        let drawn = |seed| {
            let mut plans = Plans::new(SIZES, Random::new(seed));
            (0..20).map(|_| format!("{:?}", plans.next())).collect::<Vec<_>>()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }
}
