//! The golden scripts, told to the oracle: what they expect is right by a second implementation.
//!
//! Where the oracle has no words (it prints `…`), whatever the script expects from there to the
//! end of the step is left to the engine's own test.

use headwater_model::story::StoryOracle;
use headwater_script::story::{parse, print};

#[test]
fn the_oracle_agrees_with_every_story() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scripts");
    let (mut agreed, mut wrong) = (0, String::new());
    for entry in std::fs::read_dir(folder).expect("the folder of scripts") {
        let path = entry.expect("an entry").path();
        if path.ends_with("sources.txt") {
            continue; // The oracle has no sources.
        }
        let steps = parse(&std::fs::read_to_string(&path).expect("a script")).expect("a script");
        let printed = print(&steps, &|| Box::new(StoryOracle::default()));
        for (step, printed) in steps.iter().zip(printed) {
            // Warnings of an installation come first, and the oracle gives none.
            let expected: Vec<&String> =
                step.expected.iter().filter(|line| !line.starts_with("warning: ")).collect();
            let sure = printed.iter().position(|line| line == "…").unwrap_or(usize::MAX);
            let (told, whole) = (sure.min(printed.len()), sure > printed.len());
            let right = expected.len() >= told
                && (!whole || expected.len() == told)
                && expected.iter().zip(&printed[..told]).all(|(a, b)| *a == b);
            agreed += usize::from(right && told > 0);
            if !right {
                let (path, line) = (path.display(), step.commands.first());
                wrong += &format!("\n{path} {line:?}\n{}", printed.join("\n"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(agreed > 30, "the oracle has an opinion on {agreed} steps");
}
