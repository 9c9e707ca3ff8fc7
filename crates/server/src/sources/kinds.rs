//! The kinds of sources that SOURCE.ADD knows.

use headwater_base::source::{Sink, Source};
use headwater_postgres::settings::Settings;
use headwater_postgres::terms::Terms;
use headwater_postgres::url::Target;
use std::sync::Arc;

/// Whether a source could be made, without making it.
///
/// # Errors
/// As for [`open`].
pub(super) fn check(kind: &str, name: &str, url: &str, terms: &Terms) -> Result<(), String> {
    match kind {
        "postgres" => Settings::read_for(name, url, &[], terms).map(|_| ()),
        #[cfg(test)]
        "scripted" => Ok(()),
        _ => Err(unknown(kind)),
    }
}

fn unknown(kind: &str) -> String {
    format!("'{kind}' is no kind of source; there is postgres")
}

/// Makes a source, which begins to connect, and gives its URL as it may be shown.
///
/// # Errors
/// There is no such kind, or it cannot accept the URL.
pub(super) fn open(
    kind: &str,
    name: &str,
    url: &str,
    terms: &Terms,
    sink: Arc<dyn Sink>,
) -> Result<(Box<dyn Source>, String), String> {
    match kind {
        "postgres" => {
            let shown = Target::parse_for(url, terms)?.shown();
            let source = headwater_postgres::connect_for(name, url, &[], terms, sink)?;
            Ok((Box::new(source), shown))
        }
        #[cfg(test)]
        "scripted" => Ok((Box::new(super::scripted::open(url, sink)), url.to_owned())),
        _ => Err(unknown(kind)),
    }
}
