//! The report as a table for people.

use super::{BASE, Case, CaseMetrics, Report};
use crate::measure::stats::Spread;
use core::fmt::Write;

/// The whole report.
#[must_use]
pub fn of(report: &Report) -> String {
    let mut text = String::new();
    if report.cases.len() > 1 {
        let _ = writeln!(
            text,
            "\n{}: operations per second of server CPU, in thousands",
            report.workload
        );
        rows(&mut text, &matrix(report));
        return text;
    }
    // The run is the phase before the whole.
    let (before, whole) = report.phases.split_at(report.phases.len().saturating_sub(1));
    for case in before.iter().chain(&report.cases).chain(whole) {
        let name = if case.name.is_empty() { String::new() } else { format!(" {}", case.name) };
        let _ = writeln!(text, "\n{}{name}", report.workload);
        rows(&mut text, &grid(case));
    }
    text
}

/// One row for each case, one column for each system, and how Headwater compares with the
/// best of its peers and with each.
fn matrix(report: &Report) -> Vec<Vec<String>> {
    let mut systems: Vec<&str> = Vec::new();
    for system in report.cases.iter().flat_map(Case::systems) {
        if !systems.contains(&system) {
            systems.push(system);
        }
    }
    let peers: Vec<&str> = systems.iter().copied().filter(|system| *system != BASE).collect();
    let mut head = vec![String::from("case")];
    head.extend(systems.iter().map(|system| String::from(*system)));
    for peer in &peers {
        head.extend([format!("CPU {peer} ÷"), String::from("(range)")]);
    }
    head.push(String::from("verified"));
    let mut grid = vec![head];
    for case in &report.cases {
        let mut row = vec![case.name.clone()];
        for system in &systems {
            row.push(case.figures(system).map_or_else(String::new, |figures| {
                let per_second = figures.operations.median / figures.server_cpu_s.median;
                format!("{:.1}", per_second / 1e3)
            }));
        }
        for peer in &peers {
            row.extend(case.ratios(peer).map_or_else(Default::default, |ratios| {
                [format!("{:.2}", ratios.server_cpu.median), range(ratios.server_cpu, 2)]
            }));
        }
        let verified = case.runs.iter().all(|run| run.verified);
        row.push(String::from(if verified { "yes" } else { "NO" }));
        grid.push(row);
    }
    grid
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

fn costs(system: &str, figures: &CaseMetrics) -> Vec<String> {
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

    #[test]
    fn a_matrix_has_a_row_for_each_case() {
        let mut report = report();
        report.cases[0].name = String::from("get");
        report.cases.push(report.cases[0].clone());
        report.cases[1].name = String::from("set");
        report.cases[1].runs.retain(|run| run.system == BASE);
        let text = of(&report);
        let row = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().map(String::from).collect::<Vec<_>>()
        };
        assert_eq!(row("get"), ["get", "0.7", "0.1", "5.00", "4.00–6.00", "yes"], "{text}");
        assert_eq!(row("set"), ["set", "0.7", "yes"], "{text}");
    }
}
