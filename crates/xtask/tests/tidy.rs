//! The repository keeps its habits. Each test reads the files once and lists every breach.

use xtask::tree::{File, files, root};
use xtask::{Finding, edges, modules, source, words};

fn all() -> Vec<File> {
    let files = files(&root());
    assert!(files.iter().any(|file| file.path == "Cargo.toml"), "no repository around this crate");
    files
}

fn assert_none(found: &[Finding]) {
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "\n{}", lines.join("\n"));
}

/// What `rule` finds in the files that `wanted` chooses, of which there must be some.
fn assert_kept(wanted: impl Fn(&File) -> bool, rule: impl Fn(&str, &str) -> Vec<Finding>) {
    let files: Vec<File> = all().into_iter().filter(wanted).collect();
    assert!(!files.is_empty(), "the rule looks at no file");
    let found: Vec<_> = files.iter().flat_map(|file| rule(&file.path, &file.text)).collect();
    assert_none(&found);
}

/// The folder under `crates` that a file lies in.
fn folder(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.split('/').next()
}

fn is_pure(file: &File) -> bool {
    file.is_rust() && folder(&file.path).and_then(edges::find).is_some_and(|room| room.pure)
}

#[test]
fn every_source_file_opens_with_what_it_is() {
    assert_kept(File::is_rust, source::opening);
}

#[test]
fn files_are_short() {
    assert_kept(File::is_rust, source::length);
}

#[test]
fn nothing_is_left_for_later() {
    assert_kept(File::is_rust, source::unfinished);
}

#[test]
fn names_say_something() {
    assert_kept(File::is_rust, words::empty_names);
    assert_kept(File::is_rust, words::private_names);
}

#[test]
fn pure_crates_are_pure() {
    assert_kept(|file| is_pure(file) && file.path.ends_with("/src/lib.rs"), source::pure_root);
    assert_kept(is_pure, source::pure_code);
}

#[test]
fn dependencies_point_one_way() {
    let files = all();
    let manifests = files.iter().filter_map(|file| {
        Some((file.path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?, &file.text))
    });
    let manifests: Vec<_> = manifests.collect();
    for room in edges::ROOMS {
        let known = manifests.iter().any(|(folder, _)| *folder == room.folder);
        assert!(known, "crates/{} has a row in the table but no manifest", room.folder);
    }
    let both = |(folder, text): &(&str, &String)| {
        [edges::check(folder, text), edges::unused(folder, text)].concat()
    };
    let found: Vec<_> = manifests.iter().flat_map(both).collect();
    assert_none(&found);
}

#[test]
fn modules_make_no_further_circles() {
    let files = all();
    let found: Vec<_> = modules::FOLDERS.iter().flat_map(|it| modules::check(it, &files)).collect();
    assert_none(&found);
}

#[test]
fn examples_in_documentation_are_tried() {
    let untried: Vec<String> = all()
        .iter()
        .filter(|file| file.text.contains("\ndoctest = false\n"))
        .filter_map(|file| {
            file.path.strip_suffix("Cargo.toml").map(|folder| format!("{folder}src/"))
        })
        .collect();
    let is_untried = |file: &File| untried.iter().any(|folder| file.path.starts_with(folder));
    assert_kept(|file| file.is_rust() && is_untried(file), source::examples);
}

#[test]
fn the_map_shows_the_rooms_as_they_are() {
    assert_kept(|file| file.path == "ARCHITECTURE.md", edges::check_map);
}

#[test]
fn texts_speak_of_the_software_alone() {
    assert_kept(|_| true, words::foreign);
}

#[test]
fn links_lead_somewhere() {
    let root = root();
    let read = |path: &str| {
        let path = root.join(path);
        if path.is_dir() { Some(String::new()) } else { std::fs::read_to_string(path).ok() }
    };
    let markdown = |file: &File| file.path.ends_with(".md");
    assert_kept(markdown, |path, text| words::dead_links(path, text, read));
}

#[test]
fn every_command_is_documented() {
    let page = std::fs::read_to_string(root().join("docs/commands.md")).expect("docs/commands.md");
    let missing: Vec<&str> = headwater_command::table::SPECS
        .iter()
        .map(|spec| spec.name)
        .filter(|name| !page.contains(&format!("`{}", name.to_uppercase())))
        .collect();
    assert!(missing.is_empty(), "docs/commands.md lacks {}", missing.join(", "));
}

/// The files that a source has in its program, from the root on.
fn included(file: &File) -> Vec<String> {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let names = ["include_bytes!(\"", "include_str!(\""].into_iter().flat_map(|word| {
        file.text.split(word).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0))
    });
    names.map(|name| words::resolved(folder, name)).collect()
}

#[test]
fn an_image_is_built_from_all_that_sources_include() {
    let ignored = std::fs::read_to_string(root().join(".dockerignore")).unwrap();
    let ignored: Vec<&str> = ignored.lines().filter_map(|line| line.strip_prefix('/')).collect();
    assert!(ignored.contains(&"target"), "{ignored:?}");
    let sources = all().into_iter().filter(|file| file.is_rust() && file.path.contains("/src/"));
    let included: Vec<String> = sources.flat_map(|file| included(&file)).collect();
    assert!(included.iter().any(|path| path.starts_with("data/")), "{included:?}");
    let lacks = |path: &&String| {
        ignored.iter().any(|folder| path.split('/').next() == Some(folder))
            || !root().join(path).exists()
    };
    let lacking: Vec<_> = included.iter().filter(lacks).collect();
    assert!(lacking.is_empty(), "an image is built without {lacking:?}");
}
