//! What was measured, as a table and a picture in the form of the paper's figure.

use super::ExperimentResult;
use super::figures::{Figure, Presentation, Quantity};
use crate::measure::stats::Spread;
use crate::report::BASE;
use crate::report::plot::{self, BarChart, Chart, Series, XAxis};
use anyhow::{Context, Result};
use serde_json::Value;

/// A table and a picture.
#[derive(Debug)]
pub(super) struct Rendered {
    /// Rows of cells, the first of which is the head; none where the workload has printed its own.
    pub(super) table: Vec<Vec<String>>,
    /// What the workload has printed, where there is no table.
    pub(super) printed: String,
    /// SVG.
    pub(super) picture: String,
}

/// What `outcomes` say for a figure.
///
/// # Errors
/// A report lacks something.
pub(super) fn of(figure: &Figure, outcomes: &[ExperimentResult]) -> Result<Rendered> {
    match figure.presentation {
        Presentation::Systems(paper) => systems(outcomes, paper),
        Presentation::Over(across, measures) => over(&cases(outcomes), across, measures),
        Presentation::OverWhole(across, measures) => {
            let wholes = outcomes.iter().map(|it| (it.place.clone(), whole(&it.report)));
            over(&wholes.collect::<Vec<_>>(), across, measures)
        }
        Presentation::Steps => steps(outcomes),
        Presentation::Shards => shards(outcomes),
        Presentation::Printed => printed(outcomes),
    }
}

/// Each case of the reports, with its place along the bottom.
fn cases(outcomes: &[ExperimentResult]) -> Vec<(String, &Value)> {
    outcomes.iter().flat_map(cases_of).collect()
}

fn cases_of(ExperimentResult { place, report, .. }: &ExperimentResult) -> Vec<(String, &Value)> {
    match report["cases"].as_array() {
        None => vec![(place.clone(), report)],
        Some(cases) => cases.iter().map(|case| (place_of(case, cases), case)).collect(),
    }
}

/// What all phases of a workload took together, where it has several.
fn whole(report: &Value) -> &Value {
    let phases = report["phases"].as_array();
    phases.and_then(|all| all.iter().find(|phase| phase["name"] == "whole")).unwrap_or(report)
}

/// What sets a case apart among others: the size of its objects, or its name.
fn place_of(case: &Value, cases: &[Value]) -> String {
    let bytes = |case: &Value| case["params"]["value_bytes"].as_u64();
    let differ = cases.iter().any(|other| bytes(other) != bytes(case));
    match bytes(case) {
        Some(bytes) if differ => format!("{}", bytes as f64 / 1024.0),
        _ => case["name"].as_str().unwrap_or_default().to_owned(),
    }
}

/// The systems of a report, Headwater first, in the order in which they ran.
fn names(case: &Value) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for run in case["runs"].as_array().into_iter().flatten() {
        if let Some(name) = run["system"].as_str().filter(|name| !names.iter().any(|it| it == name))
        {
            names.push(name.to_owned());
        }
    }
    names
}

/// A median of a system.
fn median(case: &Value, system: &str, what: &str) -> Result<f64> {
    let found = case["median"][system][what].as_f64();
    found.with_context(|| format!("the report has no {what} of {system}"))
}

/// A median of a system, with its range.
fn spread(case: &Value, system: &str, what: &str) -> Result<Spread> {
    let range = |at: usize| case["median"][system]["range"][what][at].as_f64().unwrap_or_default();
    Ok(Spread { median: median(case, system, what)?, least: range(0), greatest: range(1) })
}

fn measured(case: &Value, system: &str, measure: Quantity) -> Result<f64> {
    let operations = median(case, system, "operations")?.max(1.0);
    Ok(match measure {
        Quantity::BothCpu => {
            let both =
                median(case, system, "server_cpu_s")? + median(case, system, "generator_cpu_s")?;
            both / operations * 1e6
        }
        Quantity::Rate => operations / median(case, system, "wall_s")?.max(1e-9),
    })
}

fn cells<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// Three digits, whatever the size.
fn digits(number: f64) -> String {
    match number.abs() {
        100.0.. => format!("{number:.0}"),
        10.0.. => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

fn systems(outcomes: &[ExperimentResult], paper: &[(&str, f64)]) -> Result<Rendered> {
    let report = whole(&outcomes.first().context("nothing was run")?.report);
    let head = [
        "system",
        "server CPU, s",
        "client CPU, s",
        "time, s",
        "memory, MB",
        "server CPU ÷ Headwater's",
        "time ÷ Headwater's",
        "time ÷ Pequod's, in the paper",
    ];
    let mut table = vec![cells(head)];
    let (mut bars, mut times) = (Vec::new(), Vec::new());
    for name in names(report) {
        let figure = |what| median(report, &name, what);
        let (server, wall) = (figure("server_cpu_s")?, figure("wall_s")?);
        let ratio = |what| Ok::<_, anyhow::Error>(figure(what)? / median(report, BASE, what)?);
        let then = paper.iter().find(|(system, _)| *system == name);
        table.push(vec![
            name.clone(),
            digits(server),
            digits(figure("generator_cpu_s")?),
            digits(wall),
            digits(figure("rss_bytes_max")? / 1e6),
            digits(ratio("server_cpu_s")?),
            digits(ratio("wall_s")?),
            then.map_or(String::from("–"), |(_, times)| digits(*times)),
        ]);
        bars.push((name.clone(), spread(report, &name, "server_cpu_s")?));
        times.push((name.clone(), spread(report, &name, "wall_s")?));
    }
    let chart = |title: &str, bars| BarChart {
        title: title.to_owned(),
        unit: "s",
        digits: 2,
        bars,
        base: BASE,
    };
    let charts = [chart("CPU of the server", bars), chart("time", times)];
    let picture = plot::bar_charts("Timelines: systems compared", &charts)?;
    Ok(Rendered { table, printed: String::new(), picture })
}

fn over(cases: &[(String, &Value)], across: &str, measures: &[Quantity]) -> Result<Rendered> {
    let (_, first) = cases.first().context("nothing was run")?;
    let systems = names(first);
    let (mut table, mut charts) = (Vec::new(), Vec::new());
    for &measure in measures {
        let title = if measures.len() == 1 { across } else { measure.title() };
        let mut head = vec![title.to_owned()];
        head.extend(systems.iter().cloned());
        table.push(head);
        let empty = |(place, name): (usize, &String)| Series {
            name: name.clone(),
            points: Vec::new(),
            place,
            is_thin: false,
        };
        let mut all: Vec<Series> = systems.iter().enumerate().map(empty).collect();
        for (at, (place, case)) in cases.iter().enumerate() {
            let mut row = vec![place.clone()];
            for (name, series) in systems.iter().zip(&mut all) {
                let figure = measured(case, name, measure)?;
                row.push(digits(figure));
                series.points.push((at as f64, figure));
            }
            table.push(row);
        }
        charts.push(Chart {
            title: measure.title().to_owned(),
            x: XAxis::Names(cases.iter().map(|(place, _)| place.clone()).collect()),
            x_title: across.to_owned(),
            is_logarithmic: true,
            series: all,
            marks: Vec::new(),
        });
    }
    Ok(Rendered { table, printed: String::new(), picture: plot::line_charts(&charts)? })
}

fn steps(outcomes: &[ExperimentResult]) -> Result<Rendered> {
    let cases = cases(outcomes);
    let (_, first) = cases.first().context("nothing was run")?;
    let holders = names(first);
    let mut head = cells(["step"]);
    head.extend(
        holders.iter().map(|name| {
            if name == BASE { String::from("pool, ns") } else { format!("{name}, ns") }
        }),
    );
    let (mut table, mut charts) = (vec![head], Vec::new());
    for (place, case) in &cases {
        let mut row = vec![place.clone()];
        let mut bars = Vec::new();
        for name in &holders {
            let operations = median(case, name, "operations")?.max(1.0);
            let each = spread(case, name, "wall_s")?.times(1e9 / operations);
            row.push(digits(each.median));
            bars.push((name.clone(), each));
        }
        table.push(row);
        charts.push(BarChart { title: place.clone(), unit: "ns", digits: 0, bars, base: BASE });
    }
    Ok(Rendered {
        table,
        printed: String::new(),
        picture: plot::bar_charts("Time of a step", &charts)?,
    })
}

fn shards(outcomes: &[ExperimentResult]) -> Result<Rendered> {
    let cases = cases(outcomes);
    let base_bytes = outcomes.first().map(|it| &it.report["params"]["base_bytes_before"]);
    let base_bytes = base_bytes.and_then(Value::as_f64).unwrap_or(1.0).max(1.0);
    let head = [
        "shards",
        "CPU, µs an operation",
        "÷ the first",
        "changes sent to other shards, an operation",
        "replicas ÷ base data",
    ];
    let mut table = vec![cells(head)];
    let (mut work, mut names, mut first) = (Vec::new(), Vec::new(), None);
    for (at, (_, case)) in cases.iter().enumerate() {
        let operations = median(case, BASE, "operations")?.max(1.0);
        let cpu = median(case, BASE, "server_cpu_s")? / operations * 1e6;
        let params = &case["params"];
        let number = |what: &str| params[what].as_f64().unwrap_or_default();
        let first = *first.get_or_insert(cpu);
        let count = format!("{:.0}", number("shards"));
        table.push(vec![
            count.clone(),
            digits(cpu),
            digits(cpu / first),
            format!("{:.3}", number("changes") / operations),
            digits(number("replica_bytes") / base_bytes),
        ]);
        names.push(count);
        work.push((at as f64, cpu));
    }
    let chart = Chart {
        title: String::from("CPU of all shards, µs an operation"),
        x: XAxis::Names(names),
        x_title: String::from("shards"),
        is_logarithmic: false,
        series: vec![Series { name: String::from(BASE), points: work, place: 0, is_thin: false }],
        marks: Vec::new(),
    };
    Ok(Rendered { table, printed: String::new(), picture: plot::line_charts(&[chart])? })
}

fn printed(outcomes: &[ExperimentResult]) -> Result<Rendered> {
    let outcome = outcomes.first().context("nothing was run")?;
    let printed = outcome.printed.trim_matches('\n').to_owned();
    Ok(Rendered { table: Vec::new(), printed, picture: outcome.picture.clone() })
}

#[cfg(test)]
mod tests {
    use super::super::figures::FIGURES;
    use super::*;
    use crate::report::tests::report;
    use crate::report::{Case, json};

    fn outcome(place: &str, report: Value) -> ExperimentResult {
        let [command, printed, picture] = ["", "", ""].map(String::from);
        ExperimentResult { place: place.to_owned(), command, report, printed, picture }
    }

    #[test]
    fn systems_stand_beside_the_papers_ratios() {
        let mut report = report();
        for run in report.cases[0].runs.iter_mut().filter(|run| run.system == "valkey") {
            run.wall_s = 7.0;
        }
        let shown = systems(&[outcome("", json::of(&report))], &[("valkey", 1.33)]).unwrap();
        assert_eq!(shown.table[1][0], "headwater");
        // A median of 7.5 s of CPU beside 1.5, and of 7 s beside 3.
        assert_eq!(shown.table[2][5..], ["5.00", "2.33", "1.33"]);
    }

    #[test]
    fn of_several_phases_the_whole_is_shown() {
        let mut report = report();
        let mut whole = report.cases[0].clone();
        whole.name = String::from("whole");
        whole.runs.iter_mut().for_each(|run| run.server_cpu_s *= 2.0);
        report.phases = vec![Case { name: String::from("load"), ..whole.clone() }, whole];
        let shown = systems(&[outcome("", json::of(&report))], &[]).unwrap();
        assert_eq!(shown.table[1][..2], ["headwater", "3.00"]);
    }

    #[test]
    fn each_experiment_is_a_place_along_the_bottom() {
        let outcomes = ["1", "10"].map(|place| outcome(place, json::of(&report())));
        let shown = over(&cases(&outcomes), "active", &[Quantity::BothCpu]).unwrap();
        assert_eq!(shown.table.len(), 3);
        assert_eq!(shown.table[0], ["active", "headwater", "valkey"]);
        // 1.5 s of the server and 1 of the client for a thousand operations.
        assert_eq!(shown.table[2], ["10", "2500", "8500"]);
    }

    #[test]
    fn sizes_of_one_report_are_places_as_well() {
        let mut report = report();
        let mut other = report.cases[0].clone();
        for (case, bytes) in [(&mut report.cases[0], 1024), (&mut other, 65_536)] {
            case.params.insert(String::from("value_bytes"), Value::from(bytes));
        }
        report.cases.push(other);
        let outcomes = [outcome("", json::of(&report))];
        let shown = over(&cases(&outcomes), "KiB", &[Quantity::Rate]).unwrap();
        assert_eq!([&shown.table[1][0], &shown.table[2][0]], ["1", "64"]);
    }

    #[test]
    fn more_shards_are_compared_with_the_first() {
        let mut report = report();
        report.cases[0].runs.retain(|run| run.system == BASE);
        report.params.insert(String::from("base_bytes_before"), Value::from(1000));
        let mut other = report.cases[0].clone();
        other.runs.iter_mut().for_each(|run| run.server_cpu_s *= 1.5);
        for (case, shards) in [(&mut report.cases[0], 12), (&mut other, 48)] {
            case.params.insert(String::from("shards"), Value::from(shards));
            case.params.insert(String::from("changes"), Value::from(250));
            case.params.insert(String::from("replica_bytes"), Value::from(500 * shards / 12));
        }
        report.cases.push(other);
        let shown = shards(&[outcome("", json::of(&report))]).unwrap();
        assert_eq!(shown.table[2], ["48", "2250", "1.50", "0.250", "2.00"]);
    }

    #[test]
    fn what_a_report_lacks_is_said() {
        let figure = FIGURES.iter().find(|it| it.name == "blocks").unwrap();
        let report = serde_json::json!({"runs": [{"system": "headwater"}]});
        let error = of(figure, &[outcome("", report)]).unwrap_err().to_string();
        assert_eq!(error, "the report has no operations of headwater");
    }
}
