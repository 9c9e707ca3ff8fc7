//! What logical replication sends: the messages of the plugin `pgoutput`, protocol version 1.
//!
//! A transaction arrives whole once it has been committed: `Begin`, its changes in order, `Commit`. Before the first change
//! of a table, and again after the table was altered, `Relation` describes its columns.

use crate::mapping::Cell;

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A transaction begins.
    Begin {
        /// Its number, without its epoch.
        xid: u32,
    },
    /// It has ended.
    Commit {
        /// Where the log goes on behind it.
        end: u64,
    },
    /// What a table looks like from now on.
    Relation(Relation),
    /// A row is new.
    Insert {
        /// The table.
        relation: u32,
        /// The row.
        new: Tuple<'a>,
    },
    /// A row was changed.
    Update {
        /// The table.
        relation: u32,
        /// What identified it, where that was changed; all of it, where that is what the table says.
        old: Option<Old<'a>>,
        /// The row as it is now.
        new: Tuple<'a>,
    },
    /// A row is gone.
    Delete {
        /// The table.
        relation: u32,
        /// What identified it.
        old: Old<'a>,
    },
    /// All rows of these tables are gone.
    Truncate {
        /// The tables.
        relations: Vec<u32>,
    },
    /// Something that does not concern rows.
    Other,
}

/// What is known of a row before its change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Old<'a> {
    /// Whether it is the whole row, not just what identifies it.
    pub whole: bool,
    /// Its columns; those that are not told are NULL.
    pub tuple: Tuple<'a>,
}

/// The columns of a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tuple<'a>(pub Vec<Cell<'a>>);

/// A table as it was when its changes were made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Relation {
    /// Its object id.
    pub id: u32,
    /// Its schema and name, for people.
    pub name: String,
    /// How old rows are identified: `d`efault, `f`ull, by `i`ndex, or by `n`othing.
    pub identity: u8,
    /// Its columns.
    pub columns: Vec<RelationColumn>,
}

/// A column of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RelationColumn {
    /// Whether it identifies rows.
    pub identifies: bool,
    /// Its name.
    pub name: String,
    /// The object id of its type.
    pub type_id: u32,
}

/// Takes bytes from the front; `None` where there are too few.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn name(&mut self) -> Option<String> {
        let end = self.0.iter().position(|&byte| byte == 0)?;
        let name = String::from_utf8_lossy(&self.0[..end]).into_owned();
        self.0 = &self.0[end + 1..];
        Some(name)
    }

    fn tuple(&mut self) -> Option<Tuple<'a>> {
        let count = self.u16()?;
        let mut cells = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            cells.push(match self.byte()? {
                b'n' => Cell::Null,
                b'u' => Cell::Unchanged,
                b't' => {
                    let length = self.u32()? as usize;
                    let (text, rest) = self.0.split_at_checked(length)?;
                    self.0 = rest;
                    Cell::Text(std::str::from_utf8(text).ok()?)
                }
                _ => return None,
            });
        }
        Some(Tuple(cells))
    }

    fn relation(&mut self) -> Option<Relation> {
        let id = self.u32()?;
        let (schema, table) = (self.name()?, self.name()?);
        // The system's own schema is sent as nothing.
        let name = if schema.is_empty() { table } else { format!("{schema}.{table}") };
        let identity = self.byte()?;
        let mut columns = Vec::new();
        for _ in 0..self.u16()? {
            let identifies = self.byte()? & 1 != 0;
            let (name, type_id) = (self.name()?, self.u32()?);
            self.u32()?;
            columns.push(RelationColumn { identifies, name, type_id });
        }
        Some(Relation { id, name, identity, columns })
    }
}

/// The relation that a change is of, without reading the rest.
#[must_use]
pub fn relation_of(bytes: &[u8]) -> Option<u32> {
    let (tag, rest) = bytes.split_first()?;
    matches!(tag, b'I' | b'U' | b'D').then(|| Reader(rest).u32())?
}

/// What a logical message begins with, which says whose it is.
#[must_use]
pub fn message_prefix(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = Reader(bytes.strip_prefix(b"M")?);
    rest.byte()?;
    rest.u64()?;
    let end = rest.0.iter().position(|&byte| byte == 0)?;
    Some(&rest.0[..end])
}

/// Reads a message; `None` if it is none.
#[must_use]
pub fn message(bytes: &[u8]) -> Option<Message<'_>> {
    let (&tag, rest) = bytes.split_first()?;
    let mut rest = Reader(rest);
    Some(match tag {
        b'B' => {
            rest.u64()?;
            rest.u64()?;
            Message::Begin { xid: rest.u32()? }
        }
        b'C' => {
            rest.byte()?;
            rest.u64()?;
            Message::Commit { end: rest.u64()? }
        }
        b'R' => Message::Relation(rest.relation()?),
        b'I' => {
            let relation = rest.u32()?;
            (rest.byte()? == b'N').then_some(())?;
            Message::Insert { relation, new: rest.tuple()? }
        }
        b'U' => {
            let relation = rest.u32()?;
            let mut kind = rest.byte()?;
            let mut old = None;
            if kind != b'N' {
                old = Some(Old { whole: kind == b'O', tuple: rest.tuple()? });
                kind = rest.byte()?;
            }
            (kind == b'N').then_some(())?;
            Message::Update { relation, old, new: rest.tuple()? }
        }
        b'D' => {
            let relation = rest.u32()?;
            let whole = rest.byte()? == b'O';
            Message::Delete { relation, old: Old { whole, tuple: rest.tuple()? } }
        }
        b'T' => {
            let count = rest.u32()?;
            rest.byte()?;
            Message::Truncate { relations: (0..count).map(|_| rest.u32()).collect::<Option<_>>()? }
        }
        _ => Message::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    #[test]
    fn messages() {
        let begin = bytes(&[b"B", &[0; 16], &[0, 0, 2, 0xF1]]);
        assert_eq!(message(&begin), Some(Message::Begin { xid: 753 }));
        let commit = bytes(&[b"C\0", &[0; 8], &7_u64.to_be_bytes(), &[0; 8]]);
        assert_eq!(message(&commit), Some(Message::Commit { end: 7 }));
        let relation = bytes(&[
            b"R\0\0\0\x09public\0posts\0d\0\x02",
            b"\x01poster\0\0\0\0\x19\xff\xff\xff\xff",
            b"\0tweet\0\0\0\0\x19\xff\xff\xff\xff",
        ]);
        let column = |name: &str, identifies| RelationColumn {
            identifies,
            name: name.to_owned(),
            type_id: 25,
        };
        let expected = Relation {
            id: 9,
            name: "public.posts".to_owned(),
            identity: b'd',
            columns: vec![column("poster", true), column("tweet", false)],
        };
        assert_eq!(message(&relation), Some(Message::Relation(expected)));
        let insert = b"I\0\0\0\x09N\0\x02t\0\0\0\x03bobn";
        let new = Tuple(vec![Cell::Text("bob"), Cell::Null]);
        assert_eq!(message(insert), Some(Message::Insert { relation: 9, new: new.clone() }));
        assert_eq!(relation_of(insert), Some(9));
        let update = b"U\0\0\0\x09K\0\x02t\0\0\0\x03bobnN\0\x02t\0\0\0\x03annu";
        let moved = Tuple(vec![Cell::Text("ann"), Cell::Unchanged]);
        let old = Old { whole: false, tuple: new.clone() };
        let expected = Message::Update { relation: 9, old: Some(old.clone()), new: moved.clone() };
        assert_eq!(message(update), Some(expected));
        let update = b"U\0\0\0\x09N\0\x02t\0\0\0\x03annu";
        assert_eq!(message(update), Some(Message::Update { relation: 9, old: None, new: moved }));
        assert_eq!(
            message(b"D\0\0\0\x09K\0\x02t\0\0\0\x03bobn"),
            Some(Message::Delete { relation: 9, old })
        );
        assert_eq!(
            message(b"T\0\0\0\x02\0\0\0\0\x09\0\0\0\x0a"),
            Some(Message::Truncate { relations: vec![9, 10] })
        );
        assert_eq!(message(b"Osomewhere"), Some(Message::Other));
        assert_eq!(message_prefix(b"M\x01\0\0\0\0\0\0\0\x07mine\0\0\0\0\x01x"), Some(&b"mine"[..]));
        assert_eq!(message_prefix(b"M\x01\0\0\0\0\0\0\0\x07mine"), None);
    }

    #[test]
    fn messages_that_are_cut_are_none() {
        let whole = b"U\0\0\0\x09K\0\x02t\0\0\0\x03bobnN\0\x02t\0\0\0\x03annu";
        for end in 0..whole.len() {
            assert_eq!(message(&whole[..end]), None, "{end}");
        }
        assert_eq!(message(b"I\0\0\0\x09N\0\x01t\0\0\0\x01\xff"), None);
        assert_eq!(message(b"I\0\0\0\x09N\0\x01b\0\0\0\x01a"), None);
    }
}
