//! Every story under `tests/scripts`, told to the engine.
//!
//! With `HEADWATER_SCRIPTS=update` what the engine prints is written into the files; read the
//! difference before you keep it.

use headwater_script::story::{parse, rewritten, run};
use headwater_script::target::EngineTarget;
use std::path::PathBuf;

fn files() -> Vec<PathBuf> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scripts"));
    let entries = std::fs::read_dir(&folder).expect("the folder of scripts");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    assert!(files.len() > 3, "the scripts are in {}", folder.display());
    files
}

#[test]
fn the_engine_tells_every_story() {
    let update = std::env::var("HEADWATER_SCRIPTS").is_ok_and(|word| word == "update");
    let mut wrong = String::new();
    for path in files() {
        let text = std::fs::read_to_string(&path).expect("a readable script");
        let engine = || -> Box<dyn headwater_script::Target> { Box::new(EngineTarget::default()) };
        if update {
            let new = rewritten(&text, &engine).expect("a script");
            std::fs::write(&path, new).expect("a writable script");
        } else if let Err(error) = run(&text, &engine) {
            wrong += &format!("\n{}:{error}", path.display());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_story_says_what_it_is_about() {
    for path in files() {
        let text = std::fs::read_to_string(&path).expect("a readable script");
        for step in parse(&text).expect("a script") {
            for line in &step.comment {
                assert!(line.len() > 10 && line.starts_with("# "), "{}: {line}", path.display());
            }
        }
    }
}
