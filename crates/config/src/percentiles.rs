//! `latency-tracking-info-percentiles`: which percentiles of commands' times are told.

use super::Observe;
use core::fmt;
use core::str::FromStr;

/// More are not told.
const PERCENTILES_MAX: usize = 32;

/// Percents, as they were given.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Percentiles(pub Vec<f64>);

impl FromStr for Percentiles {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percents = text.split_whitespace().map(|word| {
            let percent = word.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
            percent.ok_or_else(|| {
                format!("'{word}' is no percentile (allowed: numbers from 0 to 100)")
            })
        });
        let percents = percents.collect::<Result<Vec<f64>, _>>()?;
        if percents.len() > PERCENTILES_MAX {
            return Err(format!(
                "{} percentiles (allowed: up to {PERCENTILES_MAX})",
                percents.len()
            ));
        }
        Ok(Self(percents))
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join(" "))
    }
}

impl Observe {
    /// The percentiles that are told.
    #[must_use]
    pub fn percentiles(&self) -> Percentiles {
        // They were checked when they were set.
        self.latency_tracking_info_percentiles.parse().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::Percentiles;

    #[test]
    fn percentiles_are_numbers_from_0_to_100() {
        let told = |text: &str| text.parse::<Percentiles>().map(|it| it.to_string());
        assert_eq!(told("50 99.90 100.0").as_deref(), Ok("50 99.9 100"));
        assert_eq!(told("").as_deref(), Ok(""));
        for (text, why) in
            [("50 x", "'x' is no percentile"), ("101", "'101'"), ("-1", "'-1'"), ("nan", "'nan'")]
        {
            assert!(told(text).unwrap_err().contains(why), "{text}");
        }
        assert!(told(&"1 ".repeat(33)).unwrap_err().contains("allowed: up to 32"));
    }
}
