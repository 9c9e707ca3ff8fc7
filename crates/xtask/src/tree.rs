//! The repository's text files, as paths from its root.
//!
//! What version control does not keep (build folders, environments of other tools) is left out
//! by name; files that are not UTF-8 (compressed data, fuzz corpora) are no text.

use std::path::{Path, PathBuf};

/// Folders that hold nothing of the repository's own.
const SKIPPED: [&str; 8] =
    ["target", ".git", ".venv", "__pycache__", ".pytest_cache", "node_modules", "dist", "corpus"];

/// A text file of the repository.
#[derive(Clone, Debug)]
pub struct File {
    /// Path from the root, with `/` between its parts.
    pub path: String,
    /// What is in it.
    pub text: String,
}

impl File {
    /// Whether this is a Rust file.
    #[must_use]
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// The root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/xtask lies two folders below the root").to_path_buf()
}

/// Every text file under `root`, by path.
///
/// # Panics
/// A folder or file cannot be read.
#[must_use]
pub fn files(root: &Path) -> Vec<File> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).expect("a folder of the repository");
        for entry in entries {
            let entry = entry.expect("an entry of a folder");
            let path = entry.path();
            let name = entry.file_name();
            if entry.file_type().expect("the kind of an entry").is_dir() {
                if !SKIPPED.iter().any(|skipped| name == *skipped) {
                    folders.push(path);
                }
                continue;
            }
            let bytes = std::fs::read(&path).expect("a file of the repository");
            let Ok(text) = String::from_utf8(bytes) else { continue };
            let inner = path.strip_prefix(root).expect("a path below the root");
            found.push(File { path: inner.to_string_lossy().replace('\\', "/"), text });
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}
