//! The picture: response times, and below them the throughput, over time.

use super::{Measured, within_times};
use crate::report::plot::{self, Chart, Series, XAxis};
use anyhow::Result;

/// About how many points are drawn for a second.
const POINTS: f64 = 2.0;

/// The posts of about half a second.
struct Step {
    /// When it begins.
    from: f64,
    /// How many were acknowledged in it, in a second.
    rate: f64,
    /// What half of the acknowledgements took at most, in milliseconds.
    half: f64,
}

/// The posts of each half second, by when they were acknowledged.
fn steps(one: &Measured, seconds: f64) -> Vec<Step> {
    let count = (seconds * POINTS).ceil().max(1.0) as usize;
    let step = seconds / count as f64;
    let of = |at: usize| {
        let from = at as f64 * step;
        let (count, half, _) = within_times(&one.acknowledged, from, from + step);
        Step { from, rate: count as f64 / step, half }
    };
    (0..count).map(of).collect()
}

/// Both, one below the other; the owner is killed, and back, at these times.
pub(super) fn picture(measured: &[Measured], times: [f64; 2], posted: f64) -> Result<String> {
    let moments = measured.iter().flat_map(|it| &it.acknowledged).map(|it| it.at);
    let last = moments.fold(posted, f64::max);
    let all: Vec<_> = measured.iter().map(|it| steps(it, last)).collect();
    let series = |figure: fn(&Step) -> Option<f64>| -> Vec<Series> {
        let one = |(place, steps): (usize, &Vec<Step>)| Series {
            name: measured[place].way.name().to_owned(),
            points: steps.iter().filter_map(|it| Some((it.from, figure(it)?))).collect(),
            place,
            is_thin: false,
        };
        all.iter().enumerate().map(one).collect()
    };
    let chart = |title: &str, is_logarithmic, series| Chart {
        title: title.to_owned(),
        x: XAxis::Numbers(0.0..last),
        x_title: String::from("seconds"),
        is_logarithmic,
        series,
        marks: vec![(times[0], "killed"), (times[1], "back")],
    };
    let took = series(|step| (step.rate > 0.0).then_some(step.half));
    let rate = series(|step| Some(step.rate));
    plot::line_charts(&[
        chart("half of the acknowledgements take at most, ms", true, took),
        chart("acknowledgements a second", false, rate),
    ])
}
