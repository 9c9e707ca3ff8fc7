//! What a load asks of the database: its rows in one snapshot, as a whole or a page of them, and what the snapshot sees.
//!
//! A load is one round trip. The table is locked against being altered before the snapshot is taken: TRUNCATE and
//! rewriting a table are not to be seen in snapshots, and would make it look empty.

use crate::catalog::refusal;
use crate::loads::{Found, Query};
use crate::mapping::{Column, Mapping};
use crate::page::{PAGE_BYTES_MAX, Page, PageRows, pages, with_cells};
use crate::prepared::{OUTDATED_CODE, Statement};
use crate::range::{condition, narrowed};
use crate::room::{Full, Held};
use crate::signature::COMPARED_AGAIN;
use crate::snapshot::Snapshot;
use crate::source::position_of;
use crate::state::Shared;
use crate::wire::{Come, Connection, Error};
use headwater_base::source::{FetchId, Portion};
use headwater_base::{KeyRange, PackedPairs};
use std::time::Instant;

/// The statement that gives the rows of loads of one table.
pub(crate) fn rows_sql(queries: &[&Query]) -> String {
    let Some(first) = queries.first() else { return "SELECT".to_owned() };
    let mapping = &first.ready.mapping;
    let wanted = queries.iter().filter_map(|query| condition(mapping, &query.range));
    let wanted: Vec<_> = wanted.map(|condition| format!("({condition})")).collect();
    let wanted = if wanted.is_empty() { "false".to_owned() } else { wanted.join(" OR ") };
    rows_where(mapping, wanted)
}

/// The statement that gives the rows of a table for which a condition holds.
pub(crate) fn rows_where(mapping: &Mapping, wanted: String) -> String {
    // What is computed has a name of its own: ORDER BY would find that of its function, which a column may have as well.
    let name = |(at, column): (usize, &Column)| match column.case {
        Some(_) => format!("{} AS \"headwater computed {at}\"", column.sql("")),
        None => column.sql(""),
    };
    let names: Vec<_> = mapping.columns.iter().enumerate().map(name).collect();
    let wanted = restricted(mapping, wanted);
    format!("SELECT {} FROM {} WHERE {wanted}", names.join(", "), mapping.table)
}

/// A condition for rows, of those that are keys.
pub(crate) fn restricted(mapping: &Mapping, wanted: String) -> String {
    match &mapping.filter {
        Some(filter) => format!("({wanted}) AND {}", filter.sql()),
        None => wanted,
    }
}

/// Appends the key and the value of a row, if it has a key, and gives where the key ends.
pub(crate) fn write_pair(
    query: &Query,
    columns: &[Option<&str>],
    out: &mut Vec<u8>,
) -> Option<usize> {
    let mapping = &query.ready.mapping;
    with_cells(columns, |cells| {
        if mapping.keeps(cells) != Ok(true) || !mapping.write_key(cells, out) {
            return None;
        }
        let key_end = out.len();
        // No cell of a query is left out.
        mapping.write_value(cells, out).then_some(key_end)
    })
}

/// The key and the value of a row, in `room`, if it has a key.
pub(crate) fn pair_of<'a>(
    query: &Query,
    columns: &[Option<&str>],
    room: &'a mut Vec<u8>,
) -> Option<(&'a [u8], &'a [u8])> {
    room.clear();
    let key_end = write_pair(query, columns, room)?;
    room.split_at_checked(key_end)
}

/// The pairs of a load, as its rows come.
pub(crate) struct Pairs<'a> {
    query: &'a Query,
    bytes_max: usize,
    bytes: usize,
    pub(crate) pairs: PackedPairs,
}

impl<'a> Pairs<'a> {
    pub(crate) fn new(query: &'a Query, bytes_max: usize) -> Self {
        Self { query, bytes_max, bytes: 0, pairs: PackedPairs::default() }
    }

    /// Whether it takes a pair with this key.
    fn wants(&self, key: &[u8]) -> bool {
        !self.is_too_much() && self.query.range.contains(key)
    }

    /// Takes a pair if it is in the range. Gives `false` where there are too many: what was taken is given up.
    pub(crate) fn take(&mut self, key: &[u8], value: &[u8]) -> bool {
        if self.wants(key) {
            self.push(key, value);
        }
        !self.is_too_much()
    }

    /// Takes a pair that it wants.
    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes += key.len() + value.len();
        self.pairs.push(key, value);
        if self.is_too_much() {
            self.pairs = PackedPairs::default();
        }
    }

    fn is_too_much(&self) -> bool {
        self.bytes > self.bytes_max
    }

    /// All of them, in the order of their keys.
    ///
    /// # Errors
    /// They are too many.
    pub(crate) fn end(mut self) -> Result<PackedPairs, Error> {
        if self.is_too_much() {
            let message =
                format!("the range holds more than load-bytes-max, {} bytes", self.bytes_max);
            return Err(refusal(message));
        }
        self.pairs.sort();
        Ok(self.pairs)
    }
}

/// The code of a load that gives more than is taken: one of those that end a connection.
pub(crate) const TOO_MUCH_CODE: &str = "08HW1";
/// The code of a load that is only too much for such an answer.
pub(crate) const TOO_LARGE_CODE: &str = "08HW4";
/// The code of the same where nothing is under way.
const TOO_MUCH: &str = "HW000";
/// The code of a load that somebody else sees to now.
pub(crate) const UNWANTED: &str = "HW003";
/// Bytes of keys and values that are told of before the rest of a page has come.
const PART_BYTES: usize = 8 << 10;
/// The code of a load whose table has another signature than it was compared with.
pub(crate) const ALTERED_CODE: &str = "HW002";

/// A load that a connection of the pool asks for alone.
pub(crate) struct Alone<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) fetch: FetchId,
    pub(crate) query: &'a Query,
    pub(crate) deadline: Instant,
    /// Whether to look at the table's signature.
    pub(crate) looks: bool,
}

/// Asks for a page of a load; nothing where it is best answered as a whole.
pub(crate) fn load_pages(
    connection: &mut Connection,
    alone: &Alone<'_>,
) -> Result<Option<Found>, Error> {
    let Alone { shared, query, deadline, .. } = *alone;
    // What goes on where something ended is not to bring the rows before that again.
    let goes_on = query.portion != Portion::default() || query.in_pages;
    let part = narrowed(&query.ready.mapping, &query.range, query.portion.reverse);
    if let Some(part) = part.filter(|_| goes_on) {
        let query = Query { range: part.clone(), ..query.clone() };
        let found = load_pages(connection, &Alone { query: &query, ..*alone })?;
        return Ok(found.map(|found| Found { known: found.known.or(Some(part)), ..found }));
    }
    let (before, bytes_max) = (query.portion.bytes_before, shared.settings.load_bytes_max);
    // What was too much for one answer, or is the rest of something, may be too much again.
    let sorts = query.in_pages || before > 0 && shared.room.is_bounded();
    for page in pages(query, sorts) {
        let held = Held::new(&shared.room, shared.settings.connections, deadline);
        held.allows(before)
            .map_err(|full| Error { message: full.to_string(), code: TOO_MUCH.to_owned() })?;
        if before > bytes_max as u64 {
            let message = format!("the range holds more than load-bytes-max, {bytes_max} bytes");
            return Err(Error { message, code: TOO_MUCH.to_owned() });
        }
        let found = load_page(connection, &page, alone, held)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Asks for one page, and tells of its rows while others come. Nothing: what came says nothing of the range.
fn load_page(
    connection: &mut Connection,
    page: &Page,
    alone: &Alone<'_>,
    mut held: Held,
) -> Result<Option<Found>, Error> {
    let Alone { shared, query, looks, .. } = *alone;
    let bytes_max = shared.settings.load_bytes_max;
    let signature = if looks { &*query.ready.signature_sql } else { "NULL" };
    let (mut seen, mut altered) = (None, false);
    let (mut bytes, mut cut, mut full) = (0, false, None);
    let mut rows = PageRows::new(page, query);
    let (mut bytes_told, mut wanted) = (0, true);
    let rows_at = 3 + page.rows_at();
    let come = |come: Come<'_>| match come {
        Come::Row(2, [Some(snapshot), Some(at), signature]) => {
            seen = Snapshot::parse(snapshot).zip(position_of(at));
            altered = looks && *signature != Some(&*query.ready.signature);
            true
        }
        Come::Row(3, [Some(begun)]) if rows_at == 4 => {
            rows.is_begun_by_first = *begun == "t";
            true
        }
        Come::Row(at, columns) if at == rows_at => {
            let is_first = rows.pairs.is_empty();
            let length = rows.begin(columns);
            cut = !is_first
                && (held.is_full(length) || bytes + length > PAGE_BYTES_MAX.min(bytes_max));
            if cut {
                rows.give_up();
                return false;
            }
            full = held.add(length).err();
            bytes += length;
            rows.take(columns);
            full.is_none() && bytes <= bytes_max
        }
        Come::Pause if !altered && bytes - bytes_told >= PART_BYTES => {
            if let Some((snapshot, horizon)) = &seen
                && let Some((pairs, known)) = rows.take_part()
            {
                bytes_told = bytes;
                wanted = alone.found((snapshot, *horizon), pairs, known);
                shared.pass_on();
            }
            wanted
        }
        _ => true,
    };
    let done = ask(connection, page, query, signature, come);
    if !wanted {
        connection.abandon();
        return Err(Error {
            message: "the load was begun again".to_owned(),
            code: UNWANTED.to_owned(),
        });
    }
    if let Err(mut error) = done
        && !cut
    {
        if let Some(full) = full {
            let code = if full == Full::Beside { "" } else { TOO_MUCH_CODE };
            return Err(Error { message: full.to_string(), code: code.to_owned() });
        }
        if bytes > bytes_max {
            error.code = TOO_MUCH_CODE.to_owned();
            error.message = format!("the range holds more than load-bytes-max, {bytes_max} bytes");
            return Err(error);
        }
        if !error.is_broken() {
            connection.query("ROLLBACK; DEALLOCATE ALL", |_, _| {})?;
        }
        if error.code == OUTDATED_CODE {
            error.code = ALTERED_CODE.to_owned();
        }
        return Err(error);
    }
    if cut {
        // The rest is on its way: the next one to use the connection finds it closed.
        connection.abandon();
    }
    if altered {
        return Err(Error { message: COMPARED_AGAIN.to_owned(), code: ALTERED_CODE.to_owned() });
    }
    let (snapshot, horizon) =
        seen.ok_or_else(|| Error::broken("the database does not say what its query saw"))?;
    if let Some((pairs, known)) = rows.take_part() {
        bytes_told = bytes;
        alone.found((&snapshot, horizon), pairs, known);
    }
    let is_ordered = rows.is_ordered();
    let found = rows.end(cut).map(|(mut pairs, known)| {
        pairs.hold(held.told());
        Found { snapshot, horizon, pairs, known }
    });
    if bytes_told > 0 && (found.is_none() || !is_ordered) {
        // P2 was believed in vain, and so were the parts.
        shared.lock().reset(query.range.clone());
        let message = "the rows of a range did not come in the order of their keys".to_owned();
        return Err(Error { message, code: TOO_MUCH.to_owned() });
    }
    if cut && found.is_none() {
        // Another page is asked for on another connection.
        let message = "the first rows of a page say nothing of its range".to_owned();
        return Err(Error { message, code: TOO_LARGE_CODE.to_owned() });
    }
    Ok(found)
}

/// Sends the statements of a page, prepared ones where they may be, and reads what comes.
fn ask(
    connection: &mut Connection,
    page: &Page,
    query: &Query,
    signature: &str,
    come: impl FnMut(Come<'_>) -> bool,
) -> Result<(), Error> {
    if let Some((rows, parameters)) = page.prepared(query) {
        let [begin, lock, look, end] = around(query, signature);
        let rows = Statement { sql: &rows, parameters: &parameters };
        let all = [(&*begin).into(), (&*lock).into(), (&*look).into(), rows, (&*end).into()];
        if connection.prepares(&all) {
            return connection.query_prepared_while(&all, come);
        }
    }
    connection.query_while(&opening(query, signature, &page.sql(query)), come)
}

impl Alone<'_> {
    /// Has rows be told of that have come, and up to where they are all there are; whether others are wanted.
    fn found(
        &self,
        (snapshot, horizon): (&Snapshot, u64),
        pairs: PackedPairs,
        known: KeyRange,
    ) -> bool {
        let found = Found { snapshot: snapshot.clone(), horizon, pairs, known: Some(known) };
        self.shared.lock().found_part(self.fetch, self.query.attempt, found)
    }
}

/// The statements of a load: `rows` gives its rows, behind what says what they see.
fn opening(query: &Query, signature: &str, rows: &str) -> String {
    let [begin, lock, look, end] = around(query, signature);
    [&begin, &lock, &look, rows, &end].join("; ")
}

/// The statements before the rows of a load, and the one behind.
fn around(query: &Query, signature: &str) -> [String; 4] {
    [
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY".to_owned(),
        format!("LOCK TABLE {} IN ACCESS SHARE MODE", query.ready.mapping.table),
        format!("SELECT pg_current_snapshot(), pg_current_wal_insert_lsn(), {signature}"),
        "COMMIT".to_owned(),
    ]
}

/// Asks for the rows of loads of one table, in one snapshot. `looks`: whether to look at the table's signature there.
pub(crate) fn load_all(
    connection: &mut Connection,
    queries: &[(FetchId, Query)],
    bytes_max: usize,
    mut held: Held,
    looks: bool,
) -> Result<Vec<(FetchId, Found)>, Error> {
    let all: Vec<_> = queries.iter().map(|(_, query)| query).collect();
    let Some(first) = all.first() else { return Ok(Vec::new()) };
    let signature = if looks { &*first.ready.signature_sql } else { "NULL" };
    let sql = opening(first, signature, &rows_sql(&all));
    let (mut snapshot, mut horizon) = (None, None);
    let (mut altered, mut full) = (false, None);
    let mut pairs: Vec<_> = all.iter().map(|query| Pairs::new(query, bytes_max)).collect();
    let mut room = Vec::new();
    let done = connection.query_while(&sql, |come| match come {
        Come::Row(2, [Some(seen), Some(at), signature]) => {
            snapshot = Snapshot::parse(seen);
            horizon = position_of(at);
            altered = looks && *signature != Some(&*first.ready.signature);
            true
        }
        Come::Row(3, columns) => {
            let Some((key, value)) = pair_of(first, columns, &mut room) else { return true };
            let mut some = false;
            for pairs in &mut pairs {
                if pairs.wants(key) {
                    // Each has a copy of it.
                    if let Err(why) = held.add(key.len() + value.len()) {
                        full = Some(why);
                        return false;
                    }
                    pairs.push(key, value);
                }
                some |= !pairs.is_too_much();
            }
            some
        }
        _ => true,
    });
    if let Err(mut error) = done {
        // What is left of it is not read: the connection ends.
        if let Some(full) = full {
            let code = if full == Full::Beside { "" } else { TOO_LARGE_CODE };
            return Err(Error { message: full.to_string(), code: code.to_owned() });
        }
        if pairs.iter().all(Pairs::is_too_much) {
            error.code = TOO_MUCH_CODE.to_owned();
            error.message = format!("the range holds more than load-bytes-max, {bytes_max} bytes");
            return Err(error);
        }
        if !error.is_broken() {
            connection.query("ROLLBACK", |_, _| {})?;
        }
        return Err(error);
    }
    if altered {
        return Err(Error { message: COMPARED_AGAIN.to_owned(), code: ALTERED_CODE.to_owned() });
    }
    let (Some(snapshot), Some(horizon)) = (snapshot, horizon) else {
        return Err(Error::broken("the database does not say what its query saw"));
    };
    let fetches = queries.iter().map(|(fetch, _)| *fetch);
    let held = held.told();
    let found = fetches.zip(pairs).map(|(fetch, pairs)| {
        let mut pairs = pairs.end()?;
        pairs.hold(held.clone());
        Ok((fetch, Found { snapshot: snapshot.clone(), horizon, pairs, known: None }))
    });
    found.collect()
}
