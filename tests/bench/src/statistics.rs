//! The median of several measurements, and how certain it is.

/// The median of several values, with the range in which the true median lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) median: f64,
    /// The range that contains the true median with a probability of at least 95 %, whatever the distribution of the values
    /// is. `None` for fewer than six values: their whole range does not reach this probability.
    pub(crate) interval: Option<(f64, f64)>,
    /// The smallest and the largest value.
    pub(crate) spread: (f64, f64),
}

impl Estimate {
    /// `None` if there are no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let (&least, &most) = values.first().zip(values.last())?;
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        let excluded = excluded_values(values.len());
        let interval = excluded.map(|excluded| (values[excluded], values[values.len() - 1 - excluded]));
        Some(Self { median, interval, spread: (least, most) })
    }

    /// Whether the interval is known and contains `value`.
    pub(crate) fn may_be(self, value: f64) -> bool {
        self.interval.is_some_and(|(low, high)| low <= value && value <= high)
    }
}

/// How many of `count` sorted values may be left out at each end so that the range of the others still contains the median with
/// a probability of 95 %. A value is below the median with a probability of one half, so the number of values below it has a
/// binomial distribution.
fn excluded_values(count: usize) -> Option<usize> {
    const MAX_OUTSIDE: f64 = 0.025;
    let exponent = i32::try_from(count).ok()?;
    let mut probability = 0.5_f64.powi(exponent);
    let mut sum = 0.0;
    let mut excluded = None;
    for below in 0..count {
        sum += probability;
        if sum > MAX_OUTSIDE {
            break;
        }
        excluded = Some(below);
        probability *= (count - below) as f64 / (below + 1) as f64;
    }
    excluded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twelve_values_give_an_interval_from_the_third_to_the_tenth() {
        let estimate = Estimate::of((1..=12).rev().map(f64::from));
        let expected = Estimate { median: 6.5, interval: Some((3.0, 10.0)), spread: (1.0, 12.0) };
        assert_eq!(estimate, Some(expected));
    }

    #[test]
    fn five_values_have_a_spread_and_no_interval() {
        let estimate = Estimate::of([3.0, 1.0, 2.0, 5.0, 4.0]);
        assert_eq!(estimate, Some(Estimate { median: 3.0, interval: None, spread: (1.0, 5.0) }));
        assert!(estimate.is_some_and(|estimate| !estimate.may_be(3.0)));
        assert_eq!(Estimate::of([]), None);
    }

    #[test]
    fn six_values_need_all_of_them_and_the_interval_tells_whether_a_value_is_possible() {
        let estimate = Estimate::of([0.9, 0.95, 0.99, 1.01, 1.02, 1.1]);
        assert!(estimate.is_some_and(|estimate| estimate.interval == Some((0.9, 1.1))));
        assert!(estimate.is_some_and(|estimate| estimate.may_be(1.0) && !estimate.may_be(1.2)));
    }
}
