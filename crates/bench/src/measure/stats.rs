//! Medians and ranges of a few runs.

/// The middle of the values and their extremes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The middle value; the mean of the two middle ones if their number is even.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Spread {
    /// All three so many times as large.
    #[must_use]
    pub fn times(self, by: f64) -> Self {
        let Self { median, least, greatest } = self;
        Self { median: median * by, least: least * by, greatest: greatest * by }
    }

    /// The median with its unit, and the range, with so many decimals: `1.62 s (1.60–1.71)`.
    #[must_use]
    pub fn shown(&self, decimals: usize, unit: &str) -> String {
        let Self { median, least, greatest } = self;
        format!("{median:.decimals$}{unit} ({least:.decimals$}–{greatest:.decimals$})")
    }
}

/// The spread of `values`; `None` where there are none.
#[must_use]
pub fn spread(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let (&least, &greatest) = (sorted.first()?, sorted.last()?);
    let middle = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    };
    Some(Spread { median, least, greatest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(spread([]), None);
        let odd = spread([9.0, 1.0, 4.0]).unwrap();
        assert_eq!((odd.median, odd.least, odd.greatest), (4.0, 1.0, 9.0));
        assert_eq!(spread([8.0, 1.0, 2.0, 4.0]).unwrap().median, 3.0);
        assert_eq!(spread([5.0]).unwrap().median, 5.0);
        assert_eq!(odd.shown(2, " s"), "4.00 s (1.00–9.00)");
    }
}
