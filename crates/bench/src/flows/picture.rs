//! The picture: acknowledgements through a burst, and over load. Both are on logarithmic scales.

use super::tell::{All, LOADS, Measured};
use crate::report::plot::{self, Chart, Series, XAxis};
use anyhow::Result;

/// The slowest acknowledgement of each half second of the burst: a line for each way.
fn burst(measured: &[Measured]) -> Chart {
    let ways = All(measured).ways();
    let first = measured.iter().map(|it| it.pair).min().unwrap_or(0);
    let burst = |way: &str| {
        let one = measured.iter().find(|it| it.way == way && it.pair == first)?;
        one.phases.iter().find(|phase| phase.name == "burst")
    };
    let answers = ways.iter().filter_map(|way| burst(way)).flat_map(|it| &it.answered.answers);
    let seconds = answers.map(|answer| answer.due).fold(1.0, f64::max);
    let one = |(place, way): (usize, &&str)| {
        let mut worst = vec![0.0_f64; (seconds * 2.0) as usize + 1];
        for answer in &burst(way)?.answered.answers {
            let at = &mut worst[(answer.due * 2.0) as usize];
            *at = at.max(answer.took);
        }
        let points = worst.iter().enumerate().filter(|(_, took)| **took > 0.0);
        let points = points.map(|(at, took)| (at as f64 / 2.0, *took)).collect();
        Some(Series { name: (*way).to_owned(), points, place, is_thin: false })
    };
    Chart {
        title: String::from("slowest acknowledgement of each half second, ms, with a burst"),
        x: XAxis::Numbers(0.0..seconds),
        x_title: String::from("seconds"),
        is_logarithmic: true,
        series: ways.iter().enumerate().filter_map(one).collect(),
        marks: Vec::new(),
    }
}

/// What half of the acknowledgements take at most (thin), and 99 % of them, over the load.
fn over_load(measured: &[Measured]) -> Chart {
    let all = All(measured);
    let mut series = Vec::new();
    for (place, way) in all.ways().into_iter().enumerate() {
        for (share, is_thin) in [(0.5, true), (0.99, false)] {
            let at = |(at, (_, load)): (usize, (u32, &str))| {
                let took = all.median(way, load, |phase| phase.answered.within(share))?;
                Some((at as f64, took))
            };
            let points = LOADS.into_iter().enumerate().filter_map(at).collect();
            series.push(Series { name: way.to_owned(), points, place, is_thin });
        }
    }
    Chart {
        title: String::from("acknowledgement, p50 (thin) and p99, ms"),
        x: XAxis::Names(LOADS.map(|(_, name)| name.to_owned()).to_vec()),
        x_title: String::from("load, of what the synchronous way can do"),
        is_logarithmic: true,
        series,
        marks: Vec::new(),
    }
}

/// Both, one below the other.
pub(super) fn picture(measured: &[Measured]) -> Result<String> {
    plot::line_charts(&[burst(measured), over_load(measured)])
}
