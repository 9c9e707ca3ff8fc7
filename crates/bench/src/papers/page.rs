//! The page, in Markdown.

use super::Measured;
use super::figures::Paper;
use core::fmt::Write as _;

/// The whole page.
pub(crate) fn text(all: &[Measured], scale: f64, pairs: usize) -> String {
    let mut text = String::from("# The papers' figures, measured again\n\n");
    let _ = writeln!(
        text,
        "What the four systems that Headwater grew from have measured, and what Headwater shows on the same work. `headwater bench papers --scale \
         {scale} --pairs {pairs}` has made this page; at `--scale 1` all of it takes hours. Every figure is made by the command above it alone, which tells \
         more. Servers run on one core, the load comes from another, systems take turns, and figures are medians. Ratios are what to look \
         at: seconds are those of this machine.",
    );
    let mut last: Option<Paper> = None;
    for measured in all {
        let figure = measured.figure;
        if last != Some(figure.paper) {
            let _ = writeln!(text, "\n## {}", figure.paper.title());
            last = Some(figure.paper);
        }
        let _ = writeln!(text, "\n### {}\n", figure.title);
        let _ = writeln!(text, "*The paper:* {}\n", squeezed(figure.shows));
        let _ = writeln!(text, "*Here:* {}", squeezed(figure.differs));
        if !measured.missing.is_empty() {
            let _ = writeln!(
                text,
                "\nNot installed, so not compared: {}.",
                measured.missing.join(", ")
            );
        }
        text.push('\n');
        for command in &measured.commands {
            let _ = writeln!(text, "    {command}");
        }
        text.push('\n');
        table(&mut text, &measured.shown.table);
        if !measured.shown.printed.is_empty() {
            let _ = writeln!(text, "```\n{}\n```", measured.shown.printed);
        }
        let _ = writeln!(text, "\n![{}]({})", figure.title, measured.picture);
    }
    text
}

/// Without the line breaks of this program's own text.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn table(text: &mut String, rows: &[Vec<String>]) {
    for (at, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if at == 0 {
            let _ = writeln!(text, "|{}", " --- |".repeat(row.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::FIGURES;
    use super::super::shown::Shown;
    use super::*;

    #[test]
    fn each_figure_has_its_command_its_table_and_its_picture() {
        let cells = |words: [&str; 2]| words.map(String::from).to_vec();
        let shown = Shown {
            table: vec![cells(["active", "headwater"]), cells(["1", "2.00"])],
            printed: String::new(),
            picture: String::new(),
        };
        let measured = Measured {
            figure: &FIGURES[1],
            commands: vec![String::from("headwater bench twip --active 1")],
            shown,
            missing: vec!["valkey"],
            picture: String::from("papers-active.svg"),
        };
        let text = text(&[measured], 0.5, 3);
        for part in [
            "## Easy Freshness with Pequod Cache Joins (NSDI 2014)",
            "    headwater bench twip --active 1\n",
            "| active | headwater |\n| --- | --- |\n| 1 | 2.00 |\n",
            "](papers-active.svg)",
            "not compared: valkey",
            "--scale 0.5 --pairs 3",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
