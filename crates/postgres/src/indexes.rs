//! Which ranges of keys a table's indexes serve, and which index would serve others.
//!
//! An index compares texts by a collation. A column that is equal to something is found by an index of the column's own collation. Texts
//! between bounds, and rows in the order of keys, are found where bytes are compared: by the column's own collation where that does so, by an
//! index with `COLLATE "C"` elsewhere. An index of another collation that compares bytes, such as `POSIX`, does not serve what asks for `"C"`.

use crate::catalog::{Row, ident, text};
use crate::mapping::{Mapping, literal, quoted_name};
use crate::range::condition;
use crate::text::Kind;
use crate::wire::{Connection, Error};
use headwater_base::{KeyRange, prefix_end};

/// A column of an index.
struct IndexColumn {
    name: String,
    /// The collation is the column's own.
    is_own: bool,
    /// The collation is `"C"`.
    is_c: bool,
}

/// What separates columns, and what is said of one.
const BETWEEN: [char; 2] = ['\u{1}', '\u{2}'];

/// The columns of each index that may serve ranges. Plans are of the table as it is now, and a table with few rows may have others.
fn indexes(connection: &mut Connection, mapping: &Mapping) -> Result<Vec<Vec<IndexColumn>>, Error> {
    // Other classes of operators, such as `text_pattern_ops`, serve neither `<` nor `ORDER BY`. The collation "C" has the number 950.
    let rows = connection.rows(&format!(
        "SELECT (SELECT string_agg(concat_ws(chr(2), coalesce(a.attname, ''), \
          x.indcollation[k.at - 1] = a.attcollation AND NOT o.opcname LIKE '%pattern_ops', \
          x.indcollation[k.at - 1] = 950 AND NOT o.opcname LIKE '%pattern_ops'), chr(1) ORDER BY k.at) \
          FROM unnest(x.indkey[0:x.indnkeyatts - 1]) WITH ORDINALITY k(attnum, at) \
          JOIN pg_opclass o ON o.oid = x.indclass[k.at - 1] \
          LEFT JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.attnum) \
         FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_am m ON m.oid = i.relam \
         WHERE x.indrelid = to_regclass({}) AND x.indisvalid AND x.indpred IS NULL AND m.amname = 'btree'",
        literal(&mapping.table)
    ))?;
    let column = |part: &str| {
        let mut parts = part.split(BETWEEN[1]);
        let name = parts.next().unwrap_or_default().to_owned();
        let mut is = || parts.next() == Some("t");
        IndexColumn { name, is_own: is(), is_c: is() }
    };
    let columns = |row: &Row| text(row, 0).split(BETWEEN[0]).map(column).collect();
    Ok(rows.iter().map(columns).collect())
}

/// Whether a text is compared otherwise than by its bytes.
fn is_collated(kind: &Kind) -> bool {
    matches!(kind, Kind::Text { bytewise: false })
}

/// Whether an index gives the rows that are equal in the key's columns before `fixed` in the order of the others, texts by their bytes.
fn is_in_order(mapping: &Mapping, index: &[IndexColumn], fixed: usize) -> bool {
    let key = mapping.columns.iter().zip(&mapping.kinds).enumerate();
    let mut stands = key.map(|(at, (column, kind))| {
        let is_c = at >= fixed && is_collated(kind);
        index.get(at).is_some_and(|there| {
            there.name == column.name && if is_c { there.is_c } else { there.is_own }
        })
    });
    stands.all(|stands| stands)
}

/// Whether an index finds the rows that are equal in all of the key's columns but the last, and there within bounds.
fn serves(mapping: &Mapping, index: &[IndexColumn]) -> bool {
    let key = &mapping.columns[..mapping.kinds.len()];
    let Some((last, before)) = key.split_last() else { return false };
    let Some(first) = index.get(..before.len()) else { return false };
    let own = |there: &IndexColumn, name: &str| there.is_own && there.name == name;
    // Bounds on a text are served where bytes are compared; points and what lies above are served elsewhere.
    let bounded =
        !matches!(mapping.kinds.last(), Some(Kind::Text { bytewise: false } | Kind::Plain));
    before.iter().all(|column| first.iter().any(|there| own(there, &column.name)))
        && (!bounded || index.get(before.len()).is_some_and(|there| own(there, &last.name)))
}

/// Warns where ranges of keys are not found by an index. Gives what is in order by one, for each number of the key's first columns that are
/// equal to something.
pub(crate) fn indexed(
    connection: &mut Connection,
    mapping: &Mapping,
    warnings: &mut Vec<String>,
) -> Result<Vec<bool>, Error> {
    let indexes = indexes(connection, mapping)?;
    if !indexes.iter().any(|index| serves(mapping, index)) {
        by_plan(connection, mapping, warnings)?;
    }
    let in_order = |fixed| indexes.iter().any(|index| is_in_order(mapping, index, fixed));
    let in_order: Vec<_> = (0..mapping.kinds.len()).map(in_order).collect();
    let first = mapping.kinds.iter().position(is_collated);
    if let Some(first) = first.filter(|&first| !in_order[first]) {
        let key = mapping.columns.iter().zip(&mapping.kinds).enumerate();
        let terms = key.map(|(at, (column, kind))| {
            let collation = if at >= first && is_collated(kind) { " COLLATE \"C\"" } else { "" };
            format!("{}{collation}", ident(&column.name))
        });
        let terms = terms.collect::<Vec<_>>().join(", ");
        warnings.push(format!(
            "no index has {} in the order of bytes, so ranges that hold several of its texts are found by reading more than they give: \
             CREATE INDEX CONCURRENTLY ON {} ({terms})",
            ident(&mapping.columns[first].name),
            mapping.table
        ));
    }
    Ok(in_order)
}

/// Warns where the database would not seek a range of keys by the columns that tell it.
fn by_plan(
    connection: &mut Connection,
    mapping: &Mapping,
    warnings: &mut Vec<String>,
) -> Result<(), Error> {
    let mut lead = mapping.prefix.clone();
    for kind in &mapping.kinds[..mapping.kinds.len() - 1] {
        lead.extend_from_slice(kind.sample().as_bytes());
        lead.push(b'|');
    }
    let last = mapping.kinds.last().map_or(String::new(), Kind::sample);
    let first = [&*lead, last.as_bytes()].concat();
    // Ranges within a text that is not compared bytewise are rare, and few indexes serve them.
    let by_index = !mapping.kinds.last().is_some_and(is_collated);
    let from = if by_index { first.clone() } else { lead.clone() };
    let range = KeyRange { first: from, last: prefix_end(&lead) };
    let sample = condition(mapping, &range).filter(|condition| condition != "true");
    let sample = sample.or_else(|| condition(mapping, &KeyRange::point(&first)));
    let Some(sample) = sample else { return Ok(()) };
    // Small tables are best read as a whole; it is the larger ones that matter.
    let sql = format!(
        "BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_partition_pruning = off; \
         EXPLAIN SELECT 1 FROM {} WHERE {sample}",
        mapping.table
    );
    let plan = connection.rows(&sql);
    connection.query("ROLLBACK", |_, _| {})?;
    let plan: Vec<_> = plan?.iter().map(|row| text(row, 0).to_owned()).collect();
    let found: Vec<_> = plan.iter().filter(|line| line.contains("Index Cond:")).collect();
    let key = &mapping.columns[..mapping.kinds.len()];
    let columns: Vec<_> = key.iter().map(|column| ident(&column.name)).collect();
    let statement =
        format!("CREATE INDEX CONCURRENTLY ON {} ({})", mapping.table, columns.join(", "));
    // All columns that the condition speaks of are to be sought, not only some.
    let sought = key.iter().filter(|column| sample.contains(&quoted_name(&column.name)));
    let missing: Vec<_> = sought
        .filter(|column| !found.iter().any(|line| line.contains(&*column.name)))
        .map(|column| column.name.clone())
        .collect();
    if !missing.is_empty() {
        warnings.push(format!(
            "no index serves ranges of keys by {}, so loads read more than they give: {statement}",
            missing.join(", ")
        ));
    }
    Ok(())
}
