//! Comparing a mapping with what the database has: before a table is loaded, and again when it was altered.
//!
//! A table is refused where its changes could not be told exactly; where it would only be slow, there is a warning with the
//! statement that mends it.

use crate::case::ascii_probe;
use crate::catalog::{Found, Row, ident, refusal, text};
use crate::filter::FilterType;
use crate::indexes::indexed;
use crate::mapping::{
    Column, Item, JSON, JSONB, Mapping, TEXT, VARCHAR, ValueWords, Words, literal, quoted_name,
};
use crate::number::Number;
use crate::publication::{additions, publish, published_since};
use crate::queue;
use crate::settings::Settings;
use crate::signature;
use crate::state::{Ready, Way};
use crate::text::Kind;
use crate::wire::{Connection, Error};

/// A column there.
struct There {
    name: String,
    type_id: u32,
    base_id: u32,
    type_name: String,
    /// What stands behind the type's name, such as the scale of a `numeric`, as a number.
    modifier: i32,
    /// Computed by the database: when it is written, or when it is read.
    generated: Generated,
    bytewise: bool,
    /// Equal where its bytes are: an enum, or a text of a deterministic collation.
    is_text: bool,
}

/// Whether a column's values are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Generated {
    No,
    Stored,
    Virtual,
}

impl There {
    /// What a filter may ask of it.
    fn filter_type(&self) -> FilterType {
        match &*self.type_name {
            "int2" | "int4" | "int8" => FilterType::Integer,
            "bool" => FilterType::Boolean,
            "uuid" => FilterType::Uuid,
            _ if self.is_text => FilterType::Text,
            _ => FilterType::Other,
        }
    }
}

/// A unique index: whether rows are identified by it, and its columns.
struct Unique {
    primary: bool,
    identifies: bool,
    columns: Vec<String>,
}

/// A mapping as the database has it at one moment.
#[derive(PartialEq, Eq)]
struct Seen {
    found: Found,
    mapping: Mapping,
    /// The types of its columns, and those within them, that are not built in.
    types: String,
}

/// How often a table is looked at that is altered meanwhile.
const LOOKS: usize = 5;

/// Compares a table's words with the database, and publishes the table if need be.
///
/// # Errors
/// The connection is broken, or (with a code) the table cannot be kept here.
pub(crate) fn check(
    connection: &mut Connection,
    settings: &Settings,
    way: Way,
    prefix: &[u8],
    words: &Words,
) -> Result<(Ready, Vec<String>), Error> {
    // In PostgreSQL 14 publications have no schemas.
    let namespaces = "SELECT to_regclass('pg_catalog.pg_publication_namespace') IS NOT NULL";
    let namespaces = connection.value(namespaces)? == "t";
    let mut seen = see(connection, settings, prefix, words)?;
    for _ in 0..LOOKS {
        identity(connection, &seen.found, &seen.mapping, way)?;
        match way {
            Way::Log => publish(connection, settings, &seen.found, &seen.mapping)?,
            // Making a trigger waits for all who write.
            Way::Queue => queue::install(connection, settings, &seen.mapping)?,
        }
        let Seen { mapping, types, .. } = &seen;
        let sql = signature::expression(settings, words, mapping, types, namespaces);
        let before = connection.value(&format!("SELECT {sql}"))?;
        // What was found is what the signature is of only if that has not changed while it was looked for.
        let now = see(connection, settings, prefix, words)?;
        if now != seen {
            seen = now;
            continue;
        }
        identity(connection, &seen.found, &seen.mapping, way)?;
        let since = match way {
            Way::Log => {
                publish(connection, settings, &seen.found, &seen.mapping)?;
                published_since(connection, settings, seen.found.relation, namespaces)?
            }
            Way::Queue => 0,
        };
        let mut warnings = Vec::new();
        judged(connection, &seen.mapping)?;
        let in_order = indexed(connection, &seen.mapping, &mut warnings)?;
        let signature = connection.value(&format!("SELECT {sql}"))?;
        if signature == before {
            let ready = Ready {
                relation: seen.found.relation,
                mapping: seen.mapping,
                since,
                in_order,
                signature,
                signature_sql: sql,
            };
            return Ok((ready, warnings));
        }
    }
    Err(refusal(format!("the table {} is being altered again and again", words.table)))
}

/// Has the database say whether it can read the values of a filter.
fn judged(connection: &mut Connection, mapping: &Mapping) -> Result<(), Error> {
    let Some(filter) = &mapping.filter else { return Ok(()) };
    let sql = format!("SELECT 1 FROM {} WHERE {} LIMIT 0", mapping.table, filter.sql());
    connection.rows(&sql).map(drop)
}

/// Compares a table's words with the database and changes nothing: what there is to say, a sentence each.
///
/// # Errors
/// The connection is broken.
pub(crate) fn examine(
    connection: &mut Connection,
    settings: &Settings,
    way: Way,
    words: &Words,
) -> Result<Vec<String>, Error> {
    let mut findings = Vec::new();
    let mut note = |kind: &str, told: Result<Vec<String>, Error>| match told {
        Ok(told) => {
            findings.extend(told.into_iter().map(|finding| format!("{kind}: {finding}")));
            Ok(())
        }
        Err(error) if error.is_broken() => Err(error),
        Err(error) => {
            findings.push(format!("refused: {}", error.message));
            Ok(())
        }
    };
    match see(connection, settings, b"", words) {
        Err(error) => note("refused", Err(error))?,
        Ok(Seen { found, mapping, .. }) => {
            let identified = identity(connection, &found, &mapping, way);
            note("refused", identified.map(|()| Vec::new()))?;
            let done = match way {
                Way::Log => additions(connection, settings, &found, &mapping),
                Way::Queue => queue::needs(connection, found.relation, &found.name),
            };
            note("done", done)?;
            note("refused", judged(connection, &mapping).map(|()| Vec::new()))?;
            let mut warnings = Vec::new();
            let looked = indexed(connection, &mapping, &mut warnings);
            note("warning", looked.map(|_| warnings))?;
        }
    }
    Ok(findings)
}

/// How often something that is not as it should be is looked at again: a table that takes the place of another may have been
/// seen in part.
const LOOKS_AGAIN: usize = 2;

fn see(
    connection: &mut Connection,
    settings: &Settings,
    prefix: &[u8],
    words: &Words,
) -> Result<Seen, Error> {
    let mut again = 0;
    loop {
        match see_once(connection, settings, prefix, words) {
            Err(error) if !error.is_broken() && again < LOOKS_AGAIN => {
                again += 1;
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

fn see_once(
    connection: &mut Connection,
    settings: &Settings,
    prefix: &[u8],
    words: &Words,
) -> Result<Seen, Error> {
    let found = find(connection, &words.table)?;
    let columns = columns(connection, found.relation)?;
    let mut mapping = mapping(settings, prefix, words, &found, &columns)?;
    for column in &mut mapping.columns {
        if let Some((case, maps_ascii)) = &mut column.case {
            let sql = ascii_probe(*case, &mapping.table, &quoted_name(&column.name));
            *maps_ascii = connection.value(&sql)? == "t";
        }
    }
    let names: Vec<_> = mapping.columns.iter().map(|column| literal(&column.name)).collect();
    // Elements of arrays, fields of records, what domains and ranges are of. Those below 16384 came with the server.
    let types = connection.value(&format!(
        "WITH RECURSIVE t(id) AS (SELECT atttypid FROM pg_attribute WHERE attrelid = {} AND attnum > 0 \
         AND NOT attisdropped AND attname IN ({}) UNION \
         SELECT u.id FROM t JOIN pg_type y ON y.oid = t.id, LATERAL ( \
          SELECT y.typbasetype UNION SELECT y.typelem UNION \
          SELECT rngsubtype FROM pg_range WHERE rngtypid = y.oid UNION \
          SELECT atttypid FROM pg_attribute WHERE y.typrelid <> 0 AND attrelid = y.typrelid AND attnum > 0) u(id) \
         WHERE u.id <> 0) SELECT string_agg(id::text, ', ' ORDER BY id) FROM t WHERE id >= 16384",
        found.relation,
        names.join(", ")
    ))?;
    Ok(Seen { found, mapping, types })
}

fn find(connection: &mut Connection, name: &str) -> Result<Found, Error> {
    let sql = format!(
        "SELECT c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname), c.relkind, c.relpersistence, \
         c.relreplident, row_security_active(c.oid), \
         has_table_privilege(c.oid, 'SELECT'), quote_ident(current_user), \
         (SELECT string_agg(format('ALTER TABLE %s NO INHERIT %s.%s', i.inhrelid::regclass, quote_ident(n.nspname), quote_ident(c.relname)), '; ') \
          FROM pg_inherits i WHERE i.inhparent = c.oid) \
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass({})",
        literal(name)
    );
    let rows = connection.rows(&sql)?;
    let row = rows.first().ok_or_else(|| refusal(format!("there is no table {name}")))?;
    let (qualified, kind) = (text(row, 1), text(row, 2));
    let (role, heirs) = (text(row, 7), text(row, 8));
    let refuse = |why: &str| Err(refusal(format!("{qualified} {why}")));
    match kind {
        "r" if !heirs.is_empty() => {
            return refuse(&format!(
                "has tables that inherit from it, whose changes are not told as its own: {heirs}"
            ));
        }
        "r" | "p" => {}
        "v" | "m" => return refuse("is a view; only tables tell their changes"),
        _ => return refuse("is no table"),
    }
    if text(row, 3) != "p" {
        return match text(row, 3) {
            "u" => refuse(&format!(
                "is unlogged, so its changes are not in the log: ALTER TABLE {qualified} SET LOGGED"
            )),
            _ => refuse("is temporary, so its changes are not in the log"),
        };
    }
    if text(row, 5) == "t" {
        return refuse(&format!(
            "has row security, so loads would not see all of its rows: \
             ALTER ROLE {role} BYPASSRLS, or ALTER TABLE {qualified} DISABLE ROW LEVEL SECURITY"
        ));
    }
    if text(row, 6) != "t" {
        return refuse(&format!("must not be read: GRANT SELECT ON {qualified} TO {role}"));
    }
    Ok(Found {
        relation: text(row, 0).parse().unwrap_or_default(),
        name: qualified.to_owned(),
        kind: kind.to_owned(),
        identity: text(row, 4).to_owned(),
    })
}

fn columns(connection: &mut Connection, relation: u32) -> Result<Vec<There>, Error> {
    // A collation compares bytes where it is C or POSIX of the C library, or PostgreSQL's own.
    let sql = format!(
        "SELECT a.attname, a.atttypid, t.typname, a.attgenerated, \
         coalesce(CASE WHEN c.collprovider = 'd' \
          THEN d.datcollate IN ('C', 'POSIX') AND coalesce(to_jsonb(d)->>'datlocprovider', 'c') = 'c' \
          ELSE c.collprovider = 'c' AND c.collcollate IN ('C', 'POSIX') OR c.collprovider = 'b' END, false), t.oid, \
         t.typtype = 'e' OR t.typname IN ('text', 'varchar', 'name') AND coalesce(c.collisdeterministic, true), base.modifier \
         FROM pg_attribute a JOIN LATERAL (WITH RECURSIVE b(id, modifier) AS (SELECT a.atttypid, a.atttypmod UNION ALL \
          SELECT d.typbasetype, greatest(b.modifier, d.typtypmod) FROM b JOIN pg_type d ON d.oid = b.id AND d.typtype = 'd') \
          SELECT b.id, b.modifier FROM b JOIN pg_type d ON d.oid = b.id AND d.typtype <> 'd') base ON true \
         JOIN pg_type t ON t.oid = base.id \
         LEFT JOIN pg_collation c ON c.oid = a.attcollation \
         JOIN pg_database d ON d.datname = current_database() \
         WHERE a.attrelid = {relation} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
    );
    let rows = connection.rows(&sql)?;
    let column = |row: &Row| There {
        name: text(row, 0).to_owned(),
        type_id: text(row, 1).parse().unwrap_or_default(),
        type_name: text(row, 2).to_owned(),
        generated: match text(row, 3) {
            "" => Generated::No,
            "s" => Generated::Stored,
            _ => Generated::Virtual,
        },
        bytewise: text(row, 4) == "t",
        base_id: text(row, 5).parse().unwrap_or_default(),
        is_text: text(row, 6) == "t",
        modifier: text(row, 7).parse().unwrap_or(-1),
    };
    Ok(rows.iter().map(column).collect())
}

fn mapping(
    settings: &Settings,
    prefix: &[u8],
    words: &Words,
    found: &Found,
    columns: &[There],
) -> Result<Mapping, Error> {
    let named = |name: &str| {
        let there = columns.iter().find(|column| column.name == name);
        let there = there
            .ok_or_else(|| refusal(format!("the table {} has no column {name}", found.name)))?;
        match there.generated {
            Generated::No => Ok(there),
            Generated::Stored => {
                Err(refusal(format!("the column {name} is generated, and can be in values alone")))
            }
            Generated::Virtual => Err(refusal(format!(
                "the column {name} is computed when it is read, and changes do not tell those: let it be GENERATED … STORED"
            ))),
        }
    };
    let stored = |name: &str| {
        let there = columns.iter().find(|column| column.name == name);
        there.filter(|there| there.generated == Generated::Stored)
    };
    let column = |there: &There| Column {
        name: there.name.clone(),
        type_id: there.type_id,
        base_id: there.base_id,
        case: None,
    };
    let (mut used, mut kinds) = (Vec::new(), Vec::new());
    for (name, option) in &words.key {
        let there = named(name)?;
        let kind = Kind::of(&there.type_name, option.as_deref(), there.bytewise)
            .map_err(|why| refusal(format!("the key column {name}: {why}")))?;
        let number = Number::of(&there.type_name, there.modifier);
        kinds.push(number.map_or(kind, Kind::Number));
        used.push(column(there));
    }
    let items: &[Item] = match &words.value {
        ValueWords::Empty => &[],
        ValueWords::Column(item) => std::slice::from_ref(item),
        ValueWords::Json(items) => items,
    };
    for item in items {
        let name = &item.column;
        // Whether changes tell it is for the publication to say.
        let there = stored(name).map_or_else(|| named(name), Ok)?;
        if item.path.is_some() && !matches!(there.base_id, JSON | JSONB) {
            return Err(refusal(format!(
                "`->` and `->>` look into json and jsonb, and the column {name} is of type {}",
                there.type_name
            )));
        }
        if let Some(case) = item.case
            && !matches!(there.base_id, TEXT | VARCHAR)
        {
            return Err(refusal(format!(
                "{}() is for text and varchar, and the column {name} is of type {}",
                case.name(),
                there.type_name
            )));
        }
        used.push(Column { case: item.case.map(|case| (case, false)), ..column(there) });
    }
    let is_whole =
        |item: &Item| item.path.is_none() && (item.name == item.column || item.name.is_empty());
    let items = if items.iter().all(is_whole) { Vec::new() } else { items.to_vec() };
    let values = used.len() - kinds.len();
    let mut filter = words.filter.clone();
    if let Some(filter) = &mut filter {
        for name in filter.columns() {
            let there = named(name)?;
            let is_it = |column: &Column| column.name == name && column.case.is_none();
            if !used.iter().any(is_it) {
                used.push(column(there));
            }
        }
        let type_of = |name: &str| {
            let there = columns.iter().find(|column| column.name == name);
            there.map_or(FilterType::Other, There::filter_type)
        };
        filter.settle(&type_of).map_err(refusal)?;
    }
    Ok(Mapping {
        prefix: prefix.to_vec(),
        table: found.name.clone(),
        columns: used,
        values,
        filter,
        kinds,
        items,
        json: matches!(words.value, ValueWords::Json(_)),
        key_bytes_max: settings.key_bytes_max,
    })
}

/// Checks that a key is one row's, and that changes tell the old key.
fn identity(
    connection: &mut Connection,
    found: &Found,
    mapping: &Mapping,
    way: Way,
) -> Result<(), Error> {
    let sql = format!(
        "SELECT i.indisprimary, i.indisreplident, \
         (SELECT string_agg(a.attname, chr(1)) FROM pg_attribute a \
          WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])), \
         0 = ANY (i.indkey[0:i.indnkeyatts - 1]) \
         FROM pg_index i WHERE i.indrelid = {} AND i.indisunique AND i.indimmediate AND i.indisvalid \
         AND i.indpred IS NULL",
        found.relation
    );
    let rows = connection.rows(&sql)?;
    let plain = rows.iter().filter(|row| text(row, 3) != "t");
    let split = |text: &str| text.split('\u{1}').map(str::to_owned).collect();
    let uniques: Vec<_> = plain
        .map(|row| Unique {
            primary: text(row, 0) == "t",
            identifies: text(row, 1) == "t",
            columns: split(text(row, 2)),
        })
        .collect();
    let key = &mapping.columns[..mapping.kinds.len()];
    let key: Vec<_> = key.iter().map(|column| column.name.clone()).collect();
    let listed = key.iter().map(|name| ident(name)).collect::<Vec<_>>().join(", ");
    let table = &found.name;
    if !uniques.iter().any(|unique| unique.columns.iter().all(|name| key.contains(name))) {
        return Err(refusal(format!(
            "several rows of {table} could have the same key: CREATE UNIQUE INDEX CONCURRENTLY ON {table} ({listed})"
        )));
    }
    let tells = |unique: &&Unique| key.iter().all(|name| unique.columns.contains(name));
    let told = match &*found.identity {
        // Triggers are given the whole old row.
        _ if way == Way::Queue => true,
        "f" => true,
        "d" => uniques.iter().filter(|unique| unique.primary).any(|unique| tells(&unique)),
        "i" => uniques.iter().filter(|unique| unique.identifies).any(|unique| tells(&unique)),
        _ => false,
    };
    if !told {
        return Err(refusal(format!(
            "changes of {table} do not tell the key that a row had: ALTER TABLE {table} REPLICA IDENTITY FULL, or \
             REPLICA IDENTITY USING INDEX a unique index on ({listed})"
        )));
    }
    Ok(())
}
