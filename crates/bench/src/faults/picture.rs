//! The picture: response times, and below them the throughput, over time.

use super::{Measured, within_times};
use crate::flows::picture::{COLOURS, HEIGHT, LEFT, WIDTH, line, scale, words};
use core::fmt::Write as _;

/// Points a second.
const POINTS: f64 = 2.0;

/// Where a moment is drawn, of so many seconds.
fn across(at: f64, seconds: f64) -> f64 {
    LEFT + (WIDTH - LEFT) * at / seconds
}

fn strikes(body: &mut String, times: [f64; 2], seconds: f64) {
    for (at, what) in times.into_iter().zip(["killed", "back"]) {
        let x = across(at, seconds);
        let _ = writeln!(
            body,
            "<line x1='{x:.1}' x2='{x:.1}' y1='30' y2='{:.1}' stroke='#bbb' stroke-dasharray='2 3'/>\
             <text x='{:.1}' y='40' fill='#777'>{what}</text>",
            HEIGHT - 30.0,
            x + 4.0
        );
    }
}

/// The posts of each half second, by when they were acknowledged.
fn steps(one: &Measured, seconds: f64) -> Vec<(f64, usize, f64)> {
    let count = (seconds * POINTS).ceil().max(1.0) as usize;
    let step = seconds / count as f64;
    let of = |at: usize| {
        let from = at as f64 * step;
        let (count, half, _) = within_times(&one.acknowledged, from, from + step);
        (from, count, half)
    };
    (0..count).map(of).collect()
}

/// Both, one below the other; the owner is killed, and back, at these times.
pub(super) fn picture(measured: &[Measured], times: [f64; 2], posted: f64) -> String {
    let last =
        measured.iter().flat_map(|it| &it.acknowledged).map(|it| it.at).fold(posted, f64::max);
    let (mut upper, mut lower) = (String::new(), String::new());
    scale(&mut upper);
    let all: Vec<_> = measured.iter().map(|it| steps(it, last)).collect();
    let step = 1.0 / POINTS;
    let most = all.iter().flatten().map(|(_, count, _)| *count).max().unwrap_or(1).max(1);
    for (at, (points, colour)) in all.iter().zip(COLOURS).enumerate() {
        let took: Vec<(f64, f64)> = points
            .iter()
            .filter(|(_, count, _)| *count > 0)
            .map(|(from, _, half)| (across(*from, last), *half))
            .collect();
        line(&mut upper, colour, "", &took);
        let high = |count: usize| 30.0 + (HEIGHT - 60.0) * (1.0 - count as f64 / most as f64);
        let path: Vec<String> = points
            .iter()
            .map(|(from, count, _)| format!("{:.1},{:.1}", across(*from, last), high(*count)))
            .collect();
        let _ = writeln!(
            lower,
            "<polyline fill='none' stroke='{colour}' stroke-width='2' points='{}'/>",
            path.join(" ")
        );
        let _ = writeln!(
            upper,
            "<text x='{:.1}' y='20' fill='{colour}'>{}</text>",
            LEFT + 140.0 * at as f64,
            measured[at].way.name()
        );
    }
    strikes(&mut upper, times, last);
    strikes(&mut lower, times, last);
    words(&mut upper, &format!("half of the acknowledgements take at most, ms, over {last:.0} s"));
    words(&mut lower, &format!("acknowledgements a second, at most {:.0}", most as f64 / step));
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {}' \
         font-family='sans-serif' font-size='12'>\n{upper}<g transform='translate(0 {HEIGHT})'>\n\
         {lower}</g>\n</svg>\n",
        2.0 * HEIGHT
    )
}
