//! The page, in Markdown.

use super::PageEntry;
use super::figures::Paper;
use core::fmt::Write as _;

/// The whole page, which `command` makes.
pub(super) fn text(all: &[PageEntry], command: &str) -> String {
    let mut text = String::from("# The papers' figures, measured again\n\n");
    let _ = writeln!(
        text,
        "This page repeats the measurements of the four papers that Headwater grew from. `{command}` has made it; at `--scale 1` all of it takes hours. The command above \
         each figure repeats that figure alone and prints more. Ratios are what to look at: seconds are those of this machine.",
    );
    let mut last: Option<Paper> = None;
    for PageEntry { figure, missing, measured } in all {
        if last != Some(figure.paper) {
            let _ = writeln!(text, "\n## {}", figure.paper.title());
            last = Some(figure.paper);
        }
        let _ = writeln!(text, "\n### {}\n", figure.title);
        let _ = writeln!(text, "*The paper:* {}\n", squeezed(figure.shows));
        let _ = writeln!(text, "*Here:* {}", squeezed(figure.differs));
        for why in missing {
            let _ = writeln!(text, "\nNot measured: {why}.");
        }
        let Some(measured) = measured else { continue };
        text.push('\n');
        for command in &measured.commands {
            let _ = writeln!(text, "    {command}");
        }
        text.push('\n');
        table(&mut text, &measured.rendered.table);
        if !measured.rendered.printed.is_empty() {
            let _ = writeln!(text, "```\n{}\n```", measured.rendered.printed);
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
    use super::super::MeasuredFigure;
    use super::super::figures::FIGURES;
    use super::super::shown::Rendered;
    use super::*;

    #[test]
    fn each_figure_has_its_command_its_table_and_its_picture() {
        let cells = |words: [&str; 2]| words.map(String::from).to_vec();
        let rendered = Rendered {
            table: vec![cells(["active", "headwater"]), cells(["1", "2.00"])],
            printed: String::new(),
            picture: String::new(),
        };
        let measured = MeasuredFigure {
            commands: vec![String::from("headwater bench twip --active 1")],
            rendered,
            picture: String::from("papers-active.svg"),
        };
        let missing = vec![String::from("valkey is not installed")];
        let told = [
            PageEntry { figure: &FIGURES[1], missing: missing.clone(), measured: Some(measured) },
            PageEntry { figure: &FIGURES[2], missing, measured: None },
        ];
        let text = text(&told, "headwater bench papers --scale 0.5");
        for part in [
            "## Easy Freshness with Pequod Cache Joins (NSDI 2014)",
            "    headwater bench twip --active 1\n",
            "| active | headwater |\n| --- | --- |\n| 1 | 2.00 |\n",
            "](papers-active.svg)",
            "`headwater bench papers --scale 0.5` has made it",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.matches("Not measured: valkey is not installed.").count(), 2);
    }
}
