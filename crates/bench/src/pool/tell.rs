//! The table of a comparison: what an operation takes in each step, and how that compares.

use crate::measure::stats::spread;
use crate::report::{BASE, Case, Report, table};

/// One row for each step: nanoseconds an operation, medians with their range, then peer ÷ pool with the range
/// over the pairs.
#[must_use]
pub fn table(report: &Report) -> String {
    let systems = report.cases.first().map(Case::systems).unwrap_or_default();
    let peers: Vec<&str> = systems.iter().copied().filter(|system| *system != BASE).collect();
    let mut head = vec![String::from("step")];
    for system in &systems {
        let name = if *system == BASE { "pool (headwater)" } else { system };
        head.extend([format!("{name} ns"), String::from("(range)")]);
    }
    for peer in peers.iter().filter(|_| systems.contains(&BASE)) {
        head.extend([format!("{peer} ÷"), String::from("(range)")]);
    }
    head.push(String::from("verified"));
    let mut grid = vec![head];
    for case in &report.cases {
        let mut row = vec![case.name.clone()];
        for system in &systems {
            let runs = case.runs.iter().filter(|run| run.system == *system);
            row.extend(match spread(runs.map(|run| run.wall_s / run.operations as f64 * 1e9)) {
                Some(ns) => {
                    [format!("{:.0}", ns.median), format!("{:.0}–{:.0}", ns.least, ns.greatest)]
                }
                None => Default::default(),
            });
        }
        for peer in peers.iter().filter(|_| systems.contains(&BASE)) {
            row.extend(case.ratios(peer).map_or_else(Default::default, |ratios| {
                let wall = ratios.wall;
                [format!("{:.2}", wall.median), format!("{:.2}–{:.2}", wall.least, wall.greatest)]
            }));
        }
        let verified = case.runs.iter().all(|run| run.verified);
        row.push(String::from(if verified { "yes" } else { "NO" }));
        grid.push(row);
    }
    let mut text = String::from("\npool: wall time per operation\n");
    table::rows(&mut text, &grid);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;
    use serde_json::Map;

    #[test]
    fn a_step_is_told_with_its_ratio() {
        let (mut ours, mut theirs) = (run(BASE, 1, 1.0), run("hashmap", 1, 1.0));
        (ours.wall_s, ours.operations) = (0.001, 1000);
        (theirs.wall_s, theirs.operations) = (0.0025, 1000);
        let (name, params) = (String::from("delete"), Map::new());
        let cases = vec![Case { name, params, runs: vec![ours, theirs] }];
        let text = table(&Report::new("pool", Map::new(), cases));
        let row = text.lines().find(|line| line.starts_with("delete")).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        let expected =
            ["delete", "1000", "1000–1000", "2500", "2500–2500", "2.50", "2.50–2.50", "yes"];
        assert_eq!(words, expected, "{text}");
    }
}
