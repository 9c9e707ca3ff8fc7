//! Modules from files, below one directory and nowhere else.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// The bytes of the file `name` below `directory`, of at most `most` bytes.
///
/// # Errors
/// The name leads out of the directory, by itself or through a link, or the file cannot be read;
/// the text says which.
pub(crate) fn read(directory: &Path, name: &str, most: usize) -> Result<Vec<u8>, String> {
    let path = Path::new(name);
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if name.is_empty() || !path.components().all(plain) {
        return Err(String::from("a file is named by a path below the directory of functions"));
    }
    let told = |error: std::io::Error| format!("file '{}': {error}", name.escape_debug());
    let directory = directory.canonicalize().map_err(told)?;
    let path: PathBuf = directory.join(path).canonicalize().map_err(told)?;
    if !path.starts_with(&directory) {
        return Err(String::from("a link leads out of the directory of functions"));
    }
    if !path.metadata().map_err(told)?.is_file() {
        return Err(format!("'{}' is no file", name.escape_debug()));
    }
    let file = std::fs::File::open(&path).map_err(told)?;
    let mut bytes = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(told)?;
    Ok(bytes)
}
