//! The picture: acknowledgements through a burst, and over load. Both are on the same logarithmic scale.

use super::tell::{All, LOADS, Measured};
use core::fmt::Write as _;

pub(crate) const WIDTH: f64 = 760.0;
/// Of each of the two.
pub(crate) const HEIGHT: f64 = 300.0;
pub(crate) const LEFT: f64 = 60.0;
pub(crate) const COLOURS: [&str; 4] = ["#b0433f", "#1f6f8b", "#8a8a80", "#c9a227"];

/// How far down a time is drawn: from 0.01 ms to 100 s.
pub(crate) fn height(took: f64) -> f64 {
    30.0 + (HEIGHT - 60.0) * (1.0 - (took.max(0.01).log10() + 2.0) / 7.0).clamp(0.0, 1.0)
}

pub(crate) fn scale(body: &mut String) {
    for power in -2..=5 {
        let (y, label) = (height(10f64.powi(power)), 10f64.powi(power));
        let _ = writeln!(
            body,
            "<line x1='{LEFT}' x2='{WIDTH}' y1='{y:.1}' y2='{y:.1}' stroke='#ddd'/>\
             <text x='{:.1}' y='{:.1}' text-anchor='end'>{label}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    }
}

pub(crate) fn line(body: &mut String, colour: &str, dashes: &str, points: &[(f64, f64)]) {
    let points: Vec<String> =
        points.iter().map(|(x, took)| format!("{x:.1},{:.1}", height(*took))).collect();
    let _ = writeln!(
        body,
        "<polyline fill='none' stroke='{colour}' stroke-width='2'{dashes} points='{}'/>",
        points.join(" ")
    );
}

pub(crate) fn words(body: &mut String, text: &str) {
    let _ = writeln!(body, "<text x='{LEFT}' y='{:.1}'>{text}</text>", HEIGHT - 8.0);
}

/// The slowest acknowledgement of each half second of the burst: a line for each way.
fn burst(body: &mut String, measured: &[Measured]) {
    let ways = All(measured).ways();
    let first = measured.iter().map(|it| it.pair).min().unwrap_or(0);
    let burst = |way: &str| {
        let one = measured.iter().find(|it| it.way == way && it.pair == first)?;
        one.phases.iter().find(|phase| phase.name == "burst")
    };
    let most = ways.iter().filter_map(|way| burst(way)).flat_map(|it| &it.answered.answers);
    let seconds = most.map(|answer| answer.due).fold(1.0, f64::max);
    scale(body);
    for (way, colour) in ways.iter().zip(COLOURS) {
        let Some(phase) = burst(way) else { continue };
        let mut worst = vec![0.0f64; (seconds * 2.0) as usize + 1];
        for answer in &phase.answered.answers {
            let at = &mut worst[(answer.due * 2.0) as usize];
            *at = at.max(answer.took);
        }
        let x = |at: usize| LEFT + (WIDTH - LEFT) * at as f64 / worst.len() as f64;
        let points = worst.iter().enumerate().filter(|(_, took)| **took > 0.0);
        let points: Vec<(f64, f64)> = points.map(|(at, took)| (x(at), *took)).collect();
        line(body, colour, "", &points);
    }
    for (at, (way, colour)) in ways.iter().zip(COLOURS).enumerate() {
        let _ = writeln!(
            body,
            "<text x='{:.1}' y='20' fill='{colour}'>{way}</text>",
            LEFT + 140.0 * at as f64
        );
    }
    let through = format!("through {seconds:.0} s with a burst");
    words(body, &format!("slowest acknowledgement of each half second, ms, {through}"));
}

/// What half of the acknowledgements take at most (dashed), and 99 % of them, over the load.
fn over_load(body: &mut String, measured: &[Measured]) {
    let all = All(measured);
    scale(body);
    let x = |percent: u32| LEFT + (WIDTH - LEFT) * f64::from(percent) / 100.0;
    for (percent, name) in LOADS {
        let _ = writeln!(
            body,
            "<text x='{:.1}' y='{:.1}' text-anchor='middle'>{name}</text>",
            x(percent),
            HEIGHT - 26.0
        );
    }
    for (way, colour) in all.ways().into_iter().zip(COLOURS) {
        for (share, dashes) in [(0.5, " stroke-dasharray='4 3'"), (0.99, "")] {
            let at = |(percent, load): (u32, &str)| {
                let took = all.median(way, load, |phase| phase.answered.within(share))?;
                Some((x(percent), took))
            };
            let points: Vec<(f64, f64)> = LOADS.into_iter().filter_map(at).collect();
            line(body, colour, dashes, &points);
        }
    }
    words(
        body,
        "acknowledgement, p50 (dashed) and p99, ms, over load as a share of what the synchronous way can do",
    );
}

/// Both, one below the other.
pub(super) fn picture(measured: &[Measured]) -> String {
    let (mut upper, mut lower) = (String::new(), String::new());
    burst(&mut upper, measured);
    over_load(&mut lower, measured);
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {}' \
         font-family='sans-serif' font-size='12'>\n{upper}<g transform='translate(0 {HEIGHT})'>\n\
         {lower}</g>\n</svg>\n",
        2.0 * HEIGHT
    )
}
