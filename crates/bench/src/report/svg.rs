//! The report as an SVG picture: one panel of horizontal bars per figure and case, all bars
//! of a panel on one scale from zero, the range over the pairs as a thin line.

use super::{Case, CaseMetrics, Report};
use crate::measure::stats::Spread;
use core::fmt::Write;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 120.0;
const RIGHT: f64 = 190.0;
const BAR: f64 = 18.0;
const STEP: f64 = 26.0;
const HEAD: f64 = 34.0;
const GAP: f64 = 18.0;
const BASE_COLOUR: &str = "#1f6f8b";
const PEER_COLOUR: &str = "#b8b8b0";

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
        figure: |figures| scaled(figures.server_cpu_s, 1e6 / figures.operations.median.max(1.0)),
    },
    Panel {
        title: "client CPU per operation",
        unit: "µs",
        digits: 3,
        figure: |figures| scaled(figures.generator_cpu_s, 1e6 / figures.operations.median.max(1.0)),
    },
    Panel {
        title: "peak memory",
        unit: "MB",
        digits: 1,
        figure: |figures| scaled(figures.rss_bytes_max, 1e-6),
    },
];

fn scaled(spread: Spread, by: f64) -> Spread {
    Spread { median: spread.median * by, least: spread.least * by, greatest: spread.greatest * by }
}

/// The whole report.
#[must_use]
pub fn of(report: &Report) -> String {
    let panels = if report.cases.len() == 1 { &PANELS[..] } else { &PANELS[..1] };
    let mut body = String::new();
    let mut y = 44.0;
    for case in &report.cases {
        for panel in panels {
            y = draw(&mut body, case, panel, y);
        }
    }
    let title = format!("headwater bench {}", report.workload);
    let mut text = String::new();
    let _ = write!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y}\" width=\"{WIDTH}\" \
         height=\"{y}\" font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"16\" y=\"28\" font-size=\"17\" font-weight=\"600\">{}</text>\n{body}</svg>\n",
        escaped(&title)
    );
    text
}

/// Draws one panel from `y` down and gives where the next one begins.
fn draw(body: &mut String, case: &Case, panel: &Panel, y: f64) -> f64 {
    let bars: Vec<(&str, Spread)> = case
        .systems()
        .into_iter()
        .filter_map(|system| Some((system, (panel.figure)(&case.figures(system)?))))
        .collect();
    let most = bars.iter().map(|(_, spread)| spread.greatest).fold(0.0, f64::max);
    let scale = if most > 0.0 { (WIDTH - LEFT - RIGHT) / most } else { 0.0 };
    let base = bars.iter().find(|(system, _)| *system == super::BASE).map(|(_, it)| it.median);
    let name = if case.name.is_empty() { String::new() } else { format!("{}: ", case.name) };
    let _ = writeln!(
        body,
        "<text x=\"16\" y=\"{}\" font-weight=\"600\">{}{} ({})</text>",
        y + 20.0,
        escaped(&name),
        panel.title,
        panel.unit
    );
    for (at, (system, spread)) in bars.iter().enumerate() {
        let top = y + HEAD + at as f64 * STEP;
        let middle = top + BAR / 2.0;
        let colour = if *system == super::BASE { BASE_COLOUR } else { PEER_COLOUR };
        let width = spread.median * scale;
        let times = match base {
            Some(base) if *system != super::BASE && base > 0.0 => {
                format!("  ({:.2} ×)", spread.median / base)
            }
            _ => String::new(),
        };
        let _ = writeln!(
            body,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{top}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"#222\"/>\
             <text x=\"{:.1}\" y=\"{}\">{:.*} {}{times}</text>",
            LEFT - 8.0,
            middle + 4.5,
            escaped(system),
            LEFT + spread.least * scale,
            LEFT + spread.greatest * scale,
            LEFT + spread.greatest * scale + 8.0,
            middle + 4.5,
            panel.digits,
            spread.median,
            panel.unit,
        );
    }
    y + HEAD + bars.len() as f64 * STEP + GAP
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    #[test]
    fn bars_are_to_scale() {
        let text = of(&report());
        // Valkey's median 7.5 of at most 8 on a scale of 450, Headwater's 1.5.
        assert!(text.contains("width=\"421.9\" height=\"18\""), "{text}");
        assert!(text.contains("width=\"84.4\" height=\"18\""), "{text}");
        assert!(text.contains("(5.00 ×)"), "{text}");
        assert_eq!(text.matches("<svg").count(), text.matches("</svg>").count());
    }

    #[test]
    fn names_cannot_break_the_markup() {
        let mut report = report();
        report.cases[0].name = String::from("a<b&c");
        assert!(of(&report).contains("a&lt;b&amp;c: "));
    }
}
