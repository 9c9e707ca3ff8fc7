//! The kinds of sources that SOURCE.ADD knows.

use headwater_base::source::{Sink, Source};
use std::sync::Arc;

/// Makes a source, which begins to connect, and gives its URL as it may be shown.
///
/// # Errors
/// There is no such kind, or it cannot accept the URL.
pub(super) fn open(
    kind: &str,
    _name: &str,
    _url: &str,
    _sink: Arc<dyn Sink>,
) -> Result<(Box<dyn Source>, String), String> {
    Err(format!("'{kind}' is no kind of source"))
}
