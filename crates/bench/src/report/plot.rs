//! Plots as SVG pictures: lines over an axis, and bars from zero. The library `plotters` draws them.

use crate::measure::stats::{Spread, spread};
use anyhow::{Result, anyhow};
use core::ops::Range;
use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, Circle, Color, DrawingArea, IntoDrawingArea, IntoFont, LineSeries, PathElement,
    RGBColor, Rectangle, SVGBackend, Text, TextStyle, WHITE,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Pixels across a picture.
const WIDTH: u32 = 760;
/// Pixels down one chart of lines.
const HEIGHT: u32 = 320;
/// Pixels down for the title of a chart, and the names of its series.
const NAMES: u32 = 46;
const FONT: &str = "sans-serif";
const BLACK: RGBColor = RGBColor(34, 34, 34);
const FAINT: RGBColor = RGBColor(187, 187, 187);
/// What is measured first, and what it is compared with.
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 111, 139),
    RGBColor(176, 67, 63),
    RGBColor(138, 138, 128),
    RGBColor(201, 162, 39),
    RGBColor(90, 140, 60),
    RGBColor(120, 80, 160),
    RGBColor(60, 60, 60),
    RGBColor(210, 120, 60),
];
const OTHERS: RGBColor = RGBColor(184, 184, 176);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What lies along the bottom of a chart.
#[derive(Clone, Debug)]
pub enum XAxis {
    /// Numbers from here to there.
    Numbers(Range<f64>),
    /// Places at equal distances, each with a name: points lie at 0, 1, 2 ….
    Names(Vec<String>),
}

/// Points that a line goes through, in the order in which they are given.
#[derive(Clone, Debug)]
pub struct Series {
    /// What it shows.
    pub name: String,
    /// Across and up.
    pub points: Vec<(f64, f64)>,
    /// Series of one place have one colour in all charts.
    pub place: usize,
    /// Whether its line is thin, since it belongs to another of its colour.
    pub is_thin: bool,
}

/// A chart of lines.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What is drawn, with its unit.
    pub title: String,
    /// What is along the bottom.
    pub x: XAxis,
    /// What the places along the bottom are.
    pub x_title: String,
    /// Whether each step up is ten times the one before.
    pub is_logarithmic: bool,
    /// What is drawn in it.
    pub series: Vec<Series>,
    /// Moments that are marked, with words.
    pub marks: Vec<(f64, &'static str)>,
}

/// The charts, one below the other.
///
/// # Errors
/// The library fails to draw.
pub fn line_charts(charts: &[Chart]) -> Result<String> {
    let mut text = String::new();
    {
        let size = (WIDTH, HEIGHT * charts.len().max(1) as u32);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        for (area, chart) in root.split_evenly((charts.len().max(1), 1)).iter().zip(charts) {
            draw(area, chart)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(text)
}

fn failed(error: impl core::fmt::Display) -> anyhow::Error {
    anyhow!("the picture cannot be drawn: {error}")
}

/// Where a figure is drawn; on a logarithmic scale there is no place for zero.
fn up(chart: &Chart, figure: f64) -> Option<f64> {
    let place = if chart.is_logarithmic { figure.log10() } else { figure };
    place.is_finite().then_some(place)
}

/// From the least to the greatest figure; whole powers of ten, where they are logarithmic.
fn heights(chart: &Chart) -> Range<f64> {
    let figures = chart.series.iter().flat_map(|series| &series.points);
    match spread(figures.filter_map(|&(_, figure)| up(chart, figure))) {
        None => 0.0..1.0,
        Some(Spread { least, greatest, .. }) if chart.is_logarithmic => {
            least.floor()..greatest.ceil().max(least.floor() + 1.0)
        }
        Some(Spread { greatest, .. }) => 0.0..(greatest * 1.05).max(1e-9),
    }
}

/// A number in as few digits as say it.
fn short(number: f64) -> String {
    let digits = match number.abs() {
        1000.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.001.. => 3,
        _ => 6,
    };
    let text = format!("{number:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn draw(area: &Area<'_>, chart: &Chart) -> Result<()> {
    let across = match &chart.x {
        XAxis::Numbers(range) => range.clone(),
        XAxis::Names(names) => -0.2..names.len().max(1) as f64 - 0.8,
    };
    let heights = heights(chart);
    let (top, below) = area.split_vertically(NAMES);
    top.draw(&Text::new(chart.title.as_str(), (16, 18), words(15, HPos::Left))).map_err(failed)?;
    for (at, series) in chart.series.iter().filter(|series| !series.is_thin).enumerate() {
        let style = words(13, HPos::Left).color(&COLOURS[series.place % COLOURS.len()]);
        let name = Text::new(series.name.as_str(), (LEFT / 2 + at as i32 * 130, 38), style);
        top.draw(&name).map_err(failed)?;
    }
    let mut drawing = ChartBuilder::on(&below)
        .margin(8)
        .margin_right(24)
        .x_label_area_size(38)
        .y_label_area_size(56)
        .build_cartesian_2d(across, heights.clone())
        .map_err(failed)?;
    let named = |place: &f64| match &chart.x {
        XAxis::Numbers(_) => short(*place),
        XAxis::Names(names) => {
            let is_there = (place - place.round()).abs() < 0.01 && *place >= 0.0;
            let name = is_there.then(|| names.get(place.round() as usize).cloned());
            name.flatten().unwrap_or_default()
        }
    };
    let figure =
        |height: &f64| short(if chart.is_logarithmic { 10f64.powf(*height) } else { *height });
    let places = match &chart.x {
        XAxis::Numbers(_) => 11,
        XAxis::Names(names) => 2 * names.len(),
    };
    let steps = if chart.is_logarithmic { heights.end - heights.start + 1.0 } else { 6.0 };
    drawing
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .bold_line_style(FAINT.mix(0.5))
        .label_style((FONT, 12).into_font().color(&BLACK))
        .x_desc(chart.x_title.as_str())
        .x_labels(places)
        .y_labels(steps as usize)
        .x_label_formatter(&named)
        .y_label_formatter(&figure)
        .draw()
        .map_err(failed)?;
    for &(at, words) in &chart.marks {
        let mark = PathElement::new([(at, heights.start), (at, heights.end)], FAINT);
        drawing.draw_series([mark]).map_err(failed)?;
        let style = (FONT, 12).into_font().color(&BLACK);
        drawing.draw_series([Text::new(words, (at, heights.end), style)]).map_err(failed)?;
    }
    for series in &chart.series {
        let colour = COLOURS[series.place % COLOURS.len()];
        let style = colour.stroke_width(if series.is_thin { 1 } else { 2 });
        let points = series.points.iter().filter_map(|&(at, it)| Some((at, up(chart, it)?)));
        let points: Vec<_> = points.collect();
        drawing.draw_series(LineSeries::new(points.clone(), style)).map_err(failed)?;
        if let XAxis::Names(_) = chart.x {
            let dots = points.iter().map(|&point| Circle::new(point, 3, colour.filled()));
            drawing.draw_series(dots).map_err(failed)?;
        }
    }
    Ok(())
}

/// Bars of one scale from zero, with their range as a thin line.
#[derive(Clone, Debug)]
pub struct BarChart {
    /// What is drawn.
    pub title: String,
    /// In which unit.
    pub unit: &'static str,
    /// Digits behind the point.
    pub digits: usize,
    /// Whose figure it is, and the figure.
    pub bars: Vec<(String, Spread)>,
    /// The one that the others are compared with.
    pub base: &'static str,
}

const LEFT: i32 = 130;
const RIGHT: i32 = 190;
const BAR: i32 = 18;
const STEP: i32 = 26;
const HEAD: i32 = 34;
const GAP: i32 = 18;
const TITLE: i32 = 44;

/// The charts, one below the other, under a title.
///
/// # Errors
/// The library fails to draw.
pub fn bar_charts(title: &str, charts: &[BarChart]) -> Result<String> {
    let mut text = String::new();
    let height = |chart: &BarChart| HEAD + chart.bars.len() as i32 * STEP + GAP;
    let all = TITLE + charts.iter().map(height).sum::<i32>();
    {
        let size = (WIDTH, all.unsigned_abs());
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        root.draw(&Text::new(title, (16, 14), words(17, HPos::Left))).map_err(failed)?;
        let mut top = TITLE;
        for chart in charts {
            draw_bars(&root, chart, top)?;
            top += height(chart);
        }
        root.present().map_err(failed)?;
    }
    Ok(text)
}

fn words(size: u32, from: HPos) -> TextStyle<'static> {
    (FONT, size).into_font().color(&BLACK).pos(Pos::new(from, VPos::Center))
}

fn draw_bars(root: &Area<'_>, chart: &BarChart, top: i32) -> Result<()> {
    let most = chart.bars.iter().map(|(_, spread)| spread.greatest).fold(0.0, f64::max);
    let room = f64::from(WIDTH as i32 - LEFT - RIGHT);
    let x = |figure: f64| LEFT + if most > 0.0 { (figure / most * room).round() as i32 } else { 0 };
    let base = chart.bars.iter().find(|(name, _)| name == chart.base).map(|(_, it)| it.median);
    let title = format!("{} ({})", chart.title, chart.unit);
    root.draw(&Text::new(title, (16, top + 16), words(14, HPos::Left))).map_err(failed)?;
    for (at, (name, spread)) in chart.bars.iter().enumerate() {
        let top = top + HEAD + at as i32 * STEP;
        let middle = top + BAR / 2;
        let colour = if name == chart.base { COLOURS[0] } else { OTHERS };
        let times = match base {
            Some(base) if name != chart.base && base > 0.0 => {
                format!("  ({:.2} ×)", spread.median / base)
            }
            _ => String::new(),
        };
        let told = format!("{:.*} {}{times}", chart.digits, spread.median, chart.unit);
        root.draw(&Text::new(name.clone(), (LEFT - 8, middle), words(13, HPos::Right)))
            .map_err(failed)?;
        let bar = Rectangle::new([(LEFT, top), (x(spread.median), top + BAR)], colour.filled());
        root.draw(&bar).map_err(failed)?;
        let range = [(x(spread.least), middle), (x(spread.greatest), middle)];
        root.draw(&PathElement::new(range, BLACK)).map_err(failed)?;
        let at = (x(spread.greatest) + 8, middle);
        root.draw(&Text::new(told, at, words(13, HPos::Left))).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(is_logarithmic: bool) -> Chart {
        let points = vec![(0.0, 0.02), (1.0, 20.0)];
        Chart {
            title: String::from("time, ms"),
            x: XAxis::Names(vec![String::from("a<b&c"), String::from("d")]),
            x_title: String::from("size"),
            is_logarithmic,
            series: vec![Series { name: String::from("one"), points, place: 0, is_thin: false }],
            marks: vec![(0.5, "killed")],
        }
    }

    #[test]
    fn names_of_places_and_whole_powers_of_ten_stand_at_their_axes() {
        let text = line_charts(&[chart(true), chart(false)]).unwrap();
        assert!(text.starts_with("<svg ") && text.contains("height=\"640\""), "{text}");
        for word in ["a&lt;b&amp;c", "killed", "one", "0.01", "100"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(!text.contains("a<b"), "names cannot break the markup");
    }

    #[test]
    fn bars_are_to_scale() {
        let spread = |median| Spread { median, least: median, greatest: median };
        let bars_of = [("headwater", 2.0), ("valkey", 8.0)];
        let bars_of = bars_of.map(|(name, median)| (name.to_owned(), spread(median))).to_vec();
        let chart = BarChart {
            title: String::from("CPU"),
            unit: "µs",
            digits: 1,
            bars: bars_of,
            base: "headwater",
        };
        let text = bar_charts("bench", &[chart]).unwrap();
        assert!(text.contains("width=\"440\" height=\"18\""), "{text}");
        assert!(text.contains("width=\"110\" height=\"18\""), "{text}");
        assert!(text.contains("(4.00 ×)"), "{text}");
    }
}
