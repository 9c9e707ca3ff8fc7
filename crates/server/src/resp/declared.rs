//! Tables that get a source, or have one no more.
//!
//! A table is declared at its source first; when that has agreed, the table is this shard's, or every shard's
//! (`remote/sources.rs`).

use super::{Flow, ShardService, Turn, encoder};
use crate::sources::Answer;
use headwater_command::{Args, Mapping, Reply};
use headwater_engine::TableOptions;

impl ShardService {
    /// TABLE.SET with a source.
    pub(super) fn declare(
        &mut self,
        name: &[u8],
        options: &TableOptions,
        mapping: &Mapping<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Result<Flow, String> {
        let source = options.source.as_deref().unwrap_or_default();
        if source.is_empty() {
            self.end_source_of(name, options)?;
            encoder(work).ok();
            return Ok(Flow::Next);
        }
        let shares_sources = self.others.shards.is_some() && !self.others.are_apart();
        if shares_sources && !self.waits.executing_queue {
            // The client's shard has declared it, and asks all.
            self.have_declared(name, options, mapping)?;
            encoder(work).ok();
            return Ok(Flow::Next);
        }
        let Some(Answer::Declared(answer)) = self.stores.hub.take_answer(work.connection.id) else {
            return self.begin_to_declare(name, options, mapping, args, work);
        };
        let warnings = answer.map_err(|text| format!("source '{source}': {text}"))?;
        self.have_declared(name, options, mapping)?;
        write_warnings(&warnings, &mut encoder(work));
        Ok(Flow::Next)
    }

    /// Asks a source for a table, for a session that waits for it.
    pub(super) fn begin_to_declare(
        &mut self,
        name: &[u8],
        options: &TableOptions,
        mapping: &Mapping<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Result<Flow, String> {
        if self.waits.executing_queue {
            return Err(String::from("TABLE.SET with a source cannot be in a transaction"));
        }
        self.node.engine_mut().check_table(name, options).map_err(|error| error.to_string())?;
        let words = mapping_words(mapping)?;
        let source = options.source.as_deref().unwrap_or_default();
        let (id, prefix) = (work.connection.id, [name, b"|"].concat());
        self.stores.hub.declare(source, Some(id), self.patience(), &prefix, &words)?;
        Ok(self.await_answer(args, work))
    }

    /// Has a table that its source knows of.
    fn have_declared(
        &mut self,
        name: &[u8],
        options: &TableOptions,
        mapping: &Mapping<'_>,
    ) -> Result<(), String> {
        let source = options.source.as_deref().unwrap_or_default();
        let prefix = [name, b"|"].concat();
        let is_first = self.stores.hub.enter(source, &prefix)?;
        if let Err(error) = self.node.engine_mut().table_set(name, options) {
            if is_first {
                self.stores.hub.leave(source, &prefix);
            }
            return Err(error.to_string());
        }
        self.stores.hub.set_through(prefix, mapping.write_through.then_some(source));
        Ok(())
    }

    /// A table has no source any more.
    fn end_source_of(&mut self, name: &[u8], options: &TableOptions) -> Result<(), String> {
        let source = self.source_of(name);
        self.node.engine_mut().table_set(name, options).map_err(|error| error.to_string())?;
        if let Some(source) = source {
            self.stores.hub.leave(&source, &[name, b"|"].concat());
        }
        Ok(())
    }

    /// What a mapping would need at a source; nothing is changed.
    pub(super) fn source_check(
        &mut self,
        name: &str,
        mapping: &Mapping<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Result<Flow, String> {
        let id = work.connection.id;
        let Some(Answer::Declared(answer)) = self.stores.hub.take_answer(id) else {
            let words = mapping_words(mapping)?;
            self.stores.hub.examine(name, id, self.patience(), &words)?;
            return Ok(self.await_answer(args, work));
        };
        let findings = answer.map_err(|text| format!("source '{name}': {text}"))?;
        let mut reply = encoder(work);
        reply.array(findings.len());
        for finding in &findings {
            reply.bulk(finding.as_bytes());
        }
        Ok(Flow::Next)
    }

    /// The source of a table.
    pub(super) fn source_of(&self, name: &[u8]) -> Option<String> {
        let reports = self.node.engine().sources().into_iter();
        let mut of = reports.filter(|report| report.tables.iter().any(|table| table == name));
        of.next().map(|report| report.name).filter(|source| source != "data")
    }
}

/// The answer to a declaration.
pub(super) fn write_warnings(warnings: &[String], reply: &mut impl Reply) {
    reply.map(1);
    reply.bulk(b"warnings");
    reply.array(warnings.len());
    for warning in warnings {
        reply.bulk(warning.as_bytes());
    }
}

/// The words of a mapping, as sources take them.
pub(super) fn mapping_words(mapping: &Mapping<'_>) -> Result<Vec<(String, String)>, String> {
    let text = |args: Args<'_>| -> Result<String, String> {
        let words: Result<Vec<&str>, _> = args.iter().map(str::from_utf8).collect();
        words
            .map(|words| words.join(" "))
            .map_err(|_| String::from("a column's name is UTF-8 text"))
    };
    let mut words = Vec::new();
    if let Some(table) = mapping.table {
        words.push((String::from("table"), table.to_owned()));
    }
    if let Some(key) = mapping.key {
        let key = text(key)?;
        let inner = key.strip_prefix('(').and_then(|key| key.strip_suffix(')'));
        words.push((String::from("key"), inner.unwrap_or(&key).trim().to_owned()));
    }
    if let Some(value) = mapping.value {
        words.push((String::from("value"), text(value)?));
    }
    if let Some(filter) = mapping.filter {
        words.push((String::from("where"), filter.to_owned()));
    }
    Ok(words)
}
