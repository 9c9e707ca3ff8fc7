//! The publication by which the database tells the changes of a table.

use crate::catalog::{Found, owned, refusal, text};
use crate::follow;
use crate::mapping::{Column, Mapping, literal, quoted_name};
use crate::settings::Settings;
use crate::snapshot::{Snapshot, widened};
use crate::wire::{Connection, Error};

/// What a publication has of a table.
enum Published {
    /// There is no such publication.
    Nothing,
    /// The table is not in it.
    Others,
    /// The changes of the table.
    Table,
}

/// What the publication has of the table.
///
/// # Errors
/// It leaves out what must be told.
fn published(
    connection: &mut Connection,
    settings: &Settings,
    found: &Found,
    mapping: &Mapping,
) -> Result<Published, Error> {
    let publication = literal(&settings.publication);
    let sql = format!(
        "SELECT p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate, p.pubviaroot, \
         t.tablename IS NOT NULL, to_jsonb(t)->>'rowfilter', \
         (SELECT string_agg(one, chr(1)) FROM jsonb_array_elements_text( \
          CASE jsonb_typeof(to_jsonb(t)->'attnames') WHEN 'array' THEN to_jsonb(t)->'attnames' END) one), \
         (SELECT string_agg(attname, chr(1)) FROM pg_attribute WHERE attrelid = {relation} AND attgenerated <> ''), \
         current_setting('server_version_num')::int >= 180000, \
         to_jsonb(p)->>'pubgencols' \
         FROM pg_publication p LEFT JOIN (pg_publication_tables t JOIN pg_class c ON c.oid = {relation} \
          JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = t.schemaname \
          AND c.relname = t.tablename) ON t.pubname = p.pubname \
         WHERE p.pubname = {publication}",
        relation = found.relation
    );
    let rows = connection.rows(&sql)?;
    let name = &settings.publication;
    let Some(row) = rows.first() else { return Ok(Published::Nothing) };
    let refuse = |why: String| Err(refusal(format!("the publication {name} {why}")));
    if text(row, 0) != "t" {
        return refuse(format!(
            "leaves changes out: ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')"
        ));
    }
    if found.kind == "p" && text(row, 1) != "t" {
        return refuse(format!(
            "tells the changes of partitions as their own: ALTER PUBLICATION {name} SET \
             (publish_via_partition_root = true)"
        ));
    }
    // Columns that are generated are told by newer servers alone, where that is asked for.
    let generated: Vec<_> = text(row, 5).split('\u{1}').collect();
    let is_told = |name: &str| match text(row, 2) {
        "t" => text(row, 4).split('\u{1}').any(|told| told == name),
        _ => text(row, 7) == "s",
    };
    let untold = |column: &&Column| generated.contains(&&*column.name) && !is_told(&column.name);
    if let Some(column) = mapping.columns.iter().find(untold) {
        let column = &column.name;
        return refuse(match text(row, 6) {
            "t" => format!(
                "does not tell the generated column {column} of {}: ALTER PUBLICATION {name} SET (publish_generated_columns = stored)",
                found.name
            ),
            _ => format!(
                "cannot tell the generated column {column} of {}: PostgreSQL 18 can, and so can triggers (follow=triggers)",
                found.name
            ),
        });
    }
    if text(row, 2) != "t" {
        return Ok(Published::Others);
    }
    if !text(row, 3).is_empty() {
        return refuse(format!("leaves rows of {} out, by its condition", found.name));
    }
    let told: Vec<_> = text(row, 4).split('\u{1}').collect();
    let lacks = |column: &&Column| !told.contains(&&*column.name);
    if let Some(column) = mapping.columns.iter().find(lacks).filter(|_| told != [""]) {
        return refuse(format!("leaves the column {} of {} out", column.name, found.name));
    }
    Ok(Published::Table)
}

/// The statement by which the publication gets the table.
fn addition(settings: &Settings, found: &Found) -> String {
    format!("ALTER PUBLICATION {} ADD TABLE {}", quoted_name(&settings.publication), found.name)
}

/// Sees to it that the publication has the table.
pub(crate) fn publish(
    connection: &mut Connection,
    settings: &Settings,
    found: &Found,
    mapping: &Mapping,
) -> Result<(), Error> {
    let mut state = published(connection, settings, found, mapping)?;
    if matches!(state, Published::Nothing) {
        // There is no such publication yet, or somebody has dropped it.
        follow::publish(settings, connection)?;
        state = published(connection, settings, found, mapping)?;
    }
    match state {
        Published::Table => return Ok(()),
        Published::Others => {}
        Published::Nothing => {
            let name = &settings.publication;
            return Err(Error::broken(format!("the publication {name} is gone")));
        }
    }
    let sql = addition(settings, found);
    match connection.query(&sql, |_, _| {}) {
        // Another Headwater, or another of our threads, was faster.
        Err(error) if matches!(&*error.code, "42710" | "23505") => {}
        Err(error) => {
            let message = format!("{}; whoever may do it has to: {sql}", error.message);
            return Err(Error { message, ..error });
        }
        Ok(()) => {}
    }
    Ok(())
}

/// What is within a transaction's reach that began while a publication was altered, in transactions: far more than are
/// begun while one statement runs.
const BESIDE: u64 = 1000;

/// The transaction that loads must see all before. Publishing a table does not wait for those who write it, and what they wrote
/// before that is not told.
pub(crate) fn published_since(
    connection: &mut Connection,
    settings: &Settings,
    relation: u32,
    namespaces: bool,
) -> Result<u64, Error> {
    let schemas = match namespaces {
        true => "UNION ALL SELECT s.xmin FROM pg_publication_namespace s WHERE s.pnpubid = p.oid",
        false => "",
    };
    let rows = connection.rows(&format!(
        "SELECT pg_current_snapshot(), (SELECT w.x FROM ( \
         SELECT p.xmin AS x UNION ALL SELECT m.xmin FROM pg_publication_rel m WHERE m.prpubid = p.oid AND \
         (m.prrelid = {relation} OR m.prrelid IN (SELECT relid FROM pg_partition_ancestors({relation})) \
          OR m.prrelid IN (SELECT relid FROM pg_partition_tree({relation}))) {schemas}) w \
         ORDER BY age(w.x) LIMIT 1) FROM pg_publication p WHERE p.pubname = {}",
        literal(&settings.publication)
    ))?;
    let row = rows.first().cloned().unwrap_or_default();
    let snapshot = Snapshot::parse(text(&row, 0)).ok_or_else(|| Error::broken("no snapshot"))?;
    let altered = text(&row, 1).parse().map_or(0, |xid| widened(xid, snapshot.next));
    Ok((altered + BESIDE).min(snapshot.next))
}

/// What is to be done for the publication to have the table.
///
/// # Errors
/// It leaves out what must be told, or the role may not do it.
pub(crate) fn additions(
    connection: &mut Connection,
    settings: &Settings,
    found: &Found,
    mapping: &Mapping,
) -> Result<Vec<String>, Error> {
    let (mut done, mut may) = (Vec::new(), owned(found.relation));
    match published(connection, settings, found, mapping)? {
        Published::Table => return Ok(done),
        Published::Nothing => {
            done.push(follow::publication(settings));
            may += " AND has_database_privilege(current_database(), 'CREATE')";
        }
        Published::Others => {
            let name = literal(&settings.publication);
            may += &format!(
                " AND (SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = {name})"
            );
        }
    }
    done.push(addition(settings, found));
    if connection.value(&may)? == "t" {
        return Ok(done);
    }
    Err(refusal(format!(
        "this role may not have the changes of {} told; whoever may do it has to: {}",
        found.name,
        done.join("; ")
    )))
}
