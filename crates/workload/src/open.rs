//! Files that may be compressed, told by their names: `.gz`, `.zst`, or plain.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Opens a file for reading as a stream of what is in it, decompressed.
///
/// # Errors
/// It cannot be opened, or is not compressed as its name says.
pub(crate) fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    let file = File::open(path)?;
    Ok(match path.extension().and_then(|extension| extension.to_str()) {
        Some("gz") => Box::new(flate2::read::MultiGzDecoder::new(file)),
        Some("zst") => Box::new(
            ruzstd::decoding::StreamingDecoder::new(io::BufReader::new(file))
                .map_err(|error| io::Error::other(error.to_string()))?,
        ),
        _ => Box::new(file),
    })
}
