//! Figures as Prometheus reads them (the OpenMetrics text format).

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;

/// The type of what [`encode`] writes.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How a figure behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// A figure, or several that labels tell apart.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    /// Labels and value of each.
    pub(crate) samples: Vec<(Vec<(&'static str, String)>, f64)>,
}

impl Metric {
    /// A single figure.
    pub(crate) fn one(name: &str, help: &'static str, kind: Kind, value: f64) -> Self {
        Self { name: name.to_owned(), help, kind, samples: vec![(Vec::new(), value)] }
    }
}

#[derive(Debug)]
struct All(Vec<Metric>);

impl Collector for All {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for metric in &self.0 {
            let figure: &dyn Fn(f64) -> Box<dyn EncodeMetric> = match metric.kind {
                Kind::Counter => &|value| Box::new(ConstCounter::new(value)),
                Kind::Gauge => &|value| Box::new(ConstGauge::new(value)),
            };
            let Some((_, first)) = metric.samples.first() else { continue };
            let kind = figure(*first).metric_type();
            let mut described = encoder.encode_descriptor(&metric.name, metric.help, None, kind)?;
            for (labels, value) in &metric.samples {
                let labels: Vec<(&str, &str)> =
                    labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
                if labels.is_empty() {
                    figure(*value).encode(described)?;
                    break;
                }
                figure(*value).encode(described.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// All figures as text.
pub(super) fn encode(metrics: Vec<Metric>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("headwater");
    registry.register_collector(Box::new(All(metrics)));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::{Kind, Metric, encode};

    #[test]
    fn figures_are_written_with_their_labels() {
        let by_table = Metric {
            name: String::from("table_keys"),
            help: "Keys of a table",
            kind: Kind::Gauge,
            samples: vec![
                (vec![("table", String::from("t"))], 3.0),
                (vec![("table", String::from("a\"b"))], 4.0),
            ],
        };
        let text = encode(vec![
            Metric::one("commands", "Commands executed", Kind::Counter, 7.0),
            by_table,
        ])
        .unwrap();
        for line in [
            "# TYPE headwater_commands counter",
            "headwater_commands_total 7.0",
            "# TYPE headwater_table_keys gauge",
            "headwater_table_keys{table=\"t\"} 3.0",
            "headwater_table_keys{table=\"a\\\"b\"} 4.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }
}
