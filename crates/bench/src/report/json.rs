//! The report as JSON.
//!
//! One case: `{"workload", "params", "runs": [{"system", "pair", "server_cpu_s",
//! "generator_cpu_s", "wall_s", "rss_bytes_max", "operations", "verified"}], "median":
//! {system: {…}}, "ratios": {peer: {"server_cpu", "wall", "rss", "total_cpu", "range"}}}`.
//! A workload of several phases has `"phases"`, an array of such objects with a `"name"`: `"load"`, `"warm"`, `"whole"`.
//! A matrix has `"cases"`, an array of such objects, beside `"workload"` and `"params"`; cases that have names have `"name"`.

use super::{BASE, Case, Report};
use crate::measure::Run;
use crate::measure::stats::Spread;
use serde_json::{Map, Value, json};

/// The whole report.
#[must_use]
pub fn of(report: &Report) -> Value {
    match report.cases.as_slice() {
        [case] => {
            let mut told = object(report.workload, &report.params, case);
            if !report.phases.is_empty() {
                let phase = |phase| object(report.workload, &Map::new(), phase);
                told["phases"] = report.phases.iter().map(phase).collect();
            }
            told
        }
        cases => {
            let cases: Vec<Value> =
                cases.iter().map(|case| object(report.workload, &Map::new(), case)).collect();
            json!({"workload": report.workload, "params": report.params, "cases": cases})
        }
    }
}

fn object(workload: &str, params: &Map<String, Value>, case: &Case) -> Value {
    let mut all = params.clone();
    all.extend(case.params.clone());
    let mut median = Map::new();
    let mut ratios = Map::new();
    for system in case.systems() {
        if let Some(figures) = case.figures(system) {
            median.insert(
                String::from(system),
                json!({
                    "server_cpu_s": rounded(figures.server_cpu_s.median),
                    "generator_cpu_s": rounded(figures.generator_cpu_s.median),
                    "wall_s": rounded(figures.wall_s.median),
                    "rss_bytes_max": figures.rss_bytes_max.median as u64,
                    "operations": figures.operations.median as u64,
                    "range": {
                        "server_cpu_s": range(figures.server_cpu_s),
                        "generator_cpu_s": range(figures.generator_cpu_s),
                        "wall_s": range(figures.wall_s),
                    },
                }),
            );
        }
        if let (true, Some(found)) = (system != BASE, case.ratios(system)) {
            ratios.insert(
                String::from(system),
                json!({
                    "server_cpu": rounded(found.server_cpu.median),
                    "wall": rounded(found.wall.median),
                    "rss": rounded(found.rss.median),
                    "total_cpu": rounded(found.total_cpu.median),
                    "range": {
                        "server_cpu": range(found.server_cpu),
                        "wall": range(found.wall),
                        "rss": range(found.rss),
                        "total_cpu": range(found.total_cpu),
                    },
                }),
            );
        }
    }
    let runs: Vec<Value> = case.runs.iter().map(run).collect();
    let mut object = json!({
        "workload": workload,
        "params": all,
        "runs": runs,
        "median": median,
        "ratios": ratios,
    });
    if !case.name.is_empty() {
        object["name"] = json!(case.name);
    }
    object
}

fn run(run: &Run) -> Value {
    json!({
        "system": run.system,
        "pair": run.pair,
        "server_cpu_s": rounded(run.server_cpu_s),
        "generator_cpu_s": rounded(run.generator_cpu_s),
        "wall_s": rounded(run.wall_s),
        "rss_bytes_max": run.rss_bytes_max,
        "operations": run.operations,
        "verified": run.verified,
    })
}

fn range(spread: Spread) -> Value {
    json!([rounded(spread.least), rounded(spread.greatest)])
}

/// Microseconds, or four digits behind the point of a ratio and more, are below the noise.
fn rounded(number: f64) -> Value {
    json!((number * 1e6).round() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    fn keys(value: &Value) -> Vec<&str> {
        let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn one_case_has_the_agreed_shape() {
        let value = of(&report());
        assert_eq!(keys(&value), ["median", "params", "ratios", "runs", "workload"]);
        let run = [
            "generator_cpu_s",
            "operations",
            "pair",
            "rss_bytes_max",
            "server_cpu_s",
            "system",
            "verified",
            "wall_s",
        ];
        assert_eq!(keys(&value["runs"][0]), run);
        assert_eq!(value["runs"].as_array().unwrap().len(), 6);
        assert_eq!(keys(&value["median"]), ["headwater", "valkey"]);
        assert_eq!(value["median"]["headwater"]["server_cpu_s"], json!(1.5));
        assert_eq!(keys(&value["ratios"]), ["valkey"]);
        assert_eq!(value["ratios"]["valkey"]["server_cpu"], json!(5.0));
        for name in ["wall", "rss"] {
            assert!(value["ratios"]["valkey"][name].is_number(), "{name}");
        }
        assert_eq!(value["params"]["seed"], json!(1));
    }

    #[test]
    fn a_matrix_is_an_array_of_that_shape() {
        let mut report = report();
        report.cases.push(report.cases[0].clone());
        let value = of(&report);
        assert_eq!(value["cases"].as_array().unwrap().len(), 2);
        assert_eq!(keys(&value["cases"][1]), ["median", "params", "ratios", "runs", "workload"]);
    }
}
