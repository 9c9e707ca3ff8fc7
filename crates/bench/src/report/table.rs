//! The report as a table for people.

use super::{BASE, Case, Figures, Report};
use crate::measure::stats::Spread;
use core::fmt::Write;

/// The whole report.
#[must_use]
pub fn of(report: &Report) -> String {
    let mut text = String::new();
    for case in &report.cases {
        let name = if case.name.is_empty() { String::new() } else { format!(" {}", case.name) };
        let _ = writeln!(text, "\n{}{name}", report.workload);
        rows(&mut text, &grid(case));
    }
    text
}

/// Writes rows with aligned columns, the first to the left and the others to the right.
pub fn rows(text: &mut String, rows: &[Vec<String>]) {
    let columns = rows.first().map_or(0, Vec::len);
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for (at, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        if at == 0 {
            let rule: usize = widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1);
            let _ = writeln!(text, "{}", "-".repeat(rule));
        }
    }
}

fn grid(case: &Case) -> Vec<Vec<String>> {
    let head = [
        "system",
        "server CPU s",
        "(range)",
        "client CPU s",
        "wall s",
        "memory MB",
        "operations",
        "µs CPU/op",
        "verified",
        "CPU ÷",
        "(range)",
        "both CPU ÷",
        "wall ÷",
        "memory ÷",
    ];
    let mut grid = vec![head.map(String::from).to_vec()];
    for system in case.systems() {
        let Some(figures) = case.figures(system) else { continue };
        let mut row = costs(system, &figures);
        match case.ratios(system) {
            Some(ratios) if system != BASE => row.extend([
                format!("{:.2}", ratios.server_cpu.median),
                range(ratios.server_cpu, 2),
                format!("{:.2}", ratios.total_cpu.median),
                format!("{:.2}", ratios.wall.median),
                format!("{:.2}", ratios.rss.median),
            ]),
            _ => row.extend(["1", "", "1", "1", "1"].map(String::from)),
        }
        grid.push(row);
    }
    grid
}

fn costs(system: &str, figures: &Figures) -> Vec<String> {
    let per_op = figures.server_cpu_s.median / figures.operations.median.max(1.0) * 1e6;
    vec![
        String::from(system),
        format!("{:.3}", figures.server_cpu_s.median),
        range(figures.server_cpu_s, 3),
        format!("{:.3}", figures.generator_cpu_s.median),
        format!("{:.3}", figures.wall_s.median),
        format!("{:.1}", figures.rss_bytes_max.median / 1e6),
        format!("{}", figures.operations.median as u64),
        format!("{per_op:.3}"),
        String::from(if figures.verified { "yes" } else { "NO" }),
    ]
}

fn range(spread: Spread, digits: usize) -> String {
    format!("{:.digits$}–{:.digits$}", spread.least, spread.greatest)
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    #[test]
    fn every_system_has_a_row_with_its_ratio() {
        let text = of(&report());
        let row = text.lines().find(|line| line.starts_with("valkey")).unwrap();
        assert!(row.contains(" 5.00  4.00–6.00 "), "{text}");
        assert!(text.lines().any(|line| line.starts_with("headwater")), "{text}");
    }
}
