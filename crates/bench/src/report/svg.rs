//! The report as an SVG picture: one panel of horizontal bars per figure and case.

use super::plot::{self, BarChart};
use super::{BASE, Case, CaseMetrics, Report};
use crate::measure::stats::Spread;
use anyhow::Result;

/// A figure that is drawn: its title, its unit, and how to get it.
struct Panel {
    title: &'static str,
    unit: &'static str,
    digits: usize,
    figure: fn(&CaseMetrics) -> Spread,
}

/// The figures of a workload with one case; a matrix shows only the first.
const PANELS: [Panel; 3] = [
    Panel {
        title: "server CPU per operation",
        unit: "µs",
        digits: 3,
        figure: |figures| figures.server_cpu_s.times(1e6 / figures.operations.median.max(1.0)),
    },
    Panel {
        title: "client CPU per operation",
        unit: "µs",
        digits: 3,
        figure: |figures| figures.generator_cpu_s.times(1e6 / figures.operations.median.max(1.0)),
    },
    Panel {
        title: "peak memory",
        unit: "MB",
        digits: 1,
        figure: |figures| figures.rss_bytes_max.times(1e-6),
    },
];

/// The whole report.
///
/// # Errors
/// The library fails to draw.
pub fn of(report: &Report) -> Result<String> {
    let panels = if report.cases.len() == 1 { &PANELS[..] } else { &PANELS[..1] };
    let of_case = |case: &Case| panels.iter().map(|panel| bars(case, panel)).collect::<Vec<_>>();
    let all: Vec<BarChart> = report.cases.iter().flat_map(of_case).collect();
    plot::bar_charts(&format!("headwater bench {}", report.workload), &all)
}

fn bars(case: &Case, panel: &Panel) -> BarChart {
    let name = if case.name.is_empty() { String::new() } else { format!("{}: ", case.name) };
    let of =
        |system: &'static str| Some((system.to_owned(), (panel.figure)(&case.figures(system)?)));
    BarChart {
        title: format!("{name}{}", panel.title),
        unit: panel.unit,
        digits: panel.digits,
        bars: case.systems().into_iter().filter_map(of).collect(),
        base: BASE,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    #[test]
    fn each_case_has_its_panels() {
        let mut report = report();
        let text = of(&report).unwrap();
        assert_eq!(text.matches("(5.00 ×)").count(), 2, "CPU and memory: {text}");
        assert!(text.contains("peak memory"), "{text}");
        report.cases[0].name = String::from("small");
        report.cases.push(report.cases[0].clone());
        let text = of(&report).unwrap();
        assert_eq!(text.matches("small: server CPU").count(), 2, "{text}");
        assert!(!text.contains("peak memory"), "{text}");
    }
}
