//! What one shard asks another about items, as bytes, and what comes of it, as an answer.
//!
//! A client's words for items are its session's: what crosses is what they mean ([`ItemCommand`]), and the outcome.
//!
//! | asked | answer |
//! | --- | --- |
//! | `Get` | an array: for each key nothing, or value, flags and version |
//! | `Fetch`, `Examine` | nothing, or an array of what an [`Item`] has |
//! | `Store`, `Remove` | an array: what came of it, and the version |
//! | `Count` | what came of it, or an array of number, version, both times that are left, and whether the key was made |
//! | `Touch` | whether the key is there |
//! | `Call` | nothing, or a byte string |
//! | `Flush`, `Register` | OK |
//! | `Statistics` | a map of names to numbers, which are added up, and texts; or an array of maps; or OK |

use crate::answer::{Answer, Form, Token};
use alloc::vec::Vec;
use headwater_base::wire::{WireReader, put_bytes, put_u32, put_u64};
use headwater_command::items::{
    Count, Counted, Fetch, Item, ItemCommand, Lease, Remove, Seen, Statistics, Store, StoreMode,
    Written,
};
use headwater_command::{Deadline, GetExpiry, Reply, SetExpiry};
use headwater_pool::Value;

mod kind {
    pub(super) const GET: u8 = 0;
    pub(super) const FETCH: u8 = 1;
    pub(super) const EXAMINE: u8 = 2;
    pub(super) const STORE: u8 = 3;
    pub(super) const REMOVE: u8 = 4;
    pub(super) const COUNT: u8 = 5;
    pub(super) const TOUCH: u8 = 6;
    pub(super) const CALL: u8 = 7;
    pub(super) const REGISTER: u8 = 8;
    pub(super) const FLUSH: u8 = 9;
    pub(super) const STATISTICS: u8 = 10;
}

mod expiry {
    pub(super) const KEEP: u8 = 0;
    pub(super) const NEVER: u8 = 1;
    pub(super) const AFTER: u8 = 2;
    pub(super) const AT: u8 = 3;
}

const STATISTICS: [Statistics; 9] = [
    Statistics::General,
    Statistics::Items,
    Statistics::Memory,
    Statistics::Sizes,
    Statistics::Connections,
    Statistics::Prefixes,
    Statistics::CountPrefixes(false),
    Statistics::CountPrefixes(true),
    Statistics::Reset,
];

const MODES: [StoreMode; 5] =
    [StoreMode::Set, StoreMode::Add, StoreMode::Replace, StoreMode::Append, StoreMode::Prepend];

fn place_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).unwrap_or(0) as u8
}

/// Yes and no, as bits from the lowest on.
fn bits(flags: &[bool]) -> u8 {
    flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag))
}

fn put_deadline(out: &mut Vec<u8>, deadline: Deadline) {
    let (kind, millis) = match deadline {
        Deadline::After(millis) => (expiry::AFTER, millis),
        Deadline::At(millis) => (expiry::AT, millis),
    };
    out.push(kind);
    put_u64(out, millis as u64);
}

fn put_set_expiry(out: &mut Vec<u8>, to: SetExpiry) {
    match to {
        SetExpiry::Keep => out.push(expiry::KEEP),
        SetExpiry::Never => out.push(expiry::NEVER),
        SetExpiry::Deadline(deadline) => put_deadline(out, deadline),
    }
}

fn put_get_expiry(out: &mut Vec<u8>, to: GetExpiry) {
    match to {
        GetExpiry::Keep => out.push(expiry::KEEP),
        GetExpiry::Persist => out.push(expiry::NEVER),
        GetExpiry::Deadline(deadline) => put_deadline(out, deadline),
    }
}

/// What may be missing, behind a byte that says whether it is there.
fn put_maybe<T>(out: &mut Vec<u8>, one: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    out.push(u8::from(one.is_some()));
    if let Some(one) = one {
        put(out, one);
    }
}

/// Writes what is asked.
pub(crate) fn put_item_command(out: &mut Vec<u8>, command: &ItemCommand<'_>) {
    match command {
        ItemCommand::Get { keys, versions, expiry } => {
            out.push(kind::GET);
            out.push(u8::from(*versions));
            put_get_expiry(out, *expiry);
            put_u32(out, keys.len());
            keys.iter().for_each(|key| put_bytes(out, key));
        }
        ItemCommand::Fetch { fetch, value } => {
            let Fetch { key, expiry, vivify, renew_within, version, uses, untouched, leases } =
                *fetch;
            out.push(kind::FETCH);
            out.push(bits(&[*value, version, uses, untouched, leases]));
            put_bytes(out, key);
            put_get_expiry(out, expiry);
            put_maybe(out, vivify, put_set_expiry);
            put_maybe(out, renew_within, |out, millis| put_u64(out, millis as u64));
        }
        ItemCommand::Examine { key } => {
            out.push(kind::EXAMINE);
            put_bytes(out, key);
        }
        ItemCommand::Store { store, or_forget } => {
            let Store { key, value, flags, expiry, mode, seen, vivify, give, version } = *store;
            out.push(kind::STORE);
            out.push(bits(&[*or_forget, version]));
            out.push(place_of(&MODES, &mode));
            put_bytes(out, key);
            put_bytes(out, value);
            put_u32(out, flags as usize);
            put_set_expiry(out, expiry);
            put_maybe(out, seen, |out, Seen { version, or_newer }| {
                put_u64(out, version);
                out.push(u8::from(or_newer));
            });
            put_maybe(out, vivify, put_set_expiry);
            put_maybe(out, give, put_u64);
        }
        ItemCommand::Remove(Remove { key, seen, stale, value_only, give }) => {
            out.push(kind::REMOVE);
            out.push(u8::from(*value_only));
            put_bytes(out, key);
            put_maybe(out, *seen, put_u64);
            put_maybe(out, *stale, put_get_expiry);
            put_maybe(out, *give, put_u64);
        }
        ItemCommand::Count(count) => {
            let Count { key, by, down, seen, expiry, vivify, give, version } = *count;
            out.push(kind::COUNT);
            out.push(bits(&[down, version]));
            put_bytes(out, key);
            put_u64(out, by);
            put_maybe(out, seen, put_u64);
            put_get_expiry(out, expiry);
            put_maybe(out, vivify, |out, (number, expiry)| {
                put_u64(out, number);
                put_set_expiry(out, expiry);
            });
            put_maybe(out, give, put_u64);
        }
        ItemCommand::Touch { key, expiry } => {
            out.push(kind::TOUCH);
            put_bytes(out, key);
            put_get_expiry(out, *expiry);
        }
        ItemCommand::Call { key, function, param, update, reply } => {
            out.push(kind::CALL);
            out.push(bits(&[*update, *reply]));
            [key, function, param].into_iter().for_each(|bytes| put_bytes(out, bytes));
        }
        ItemCommand::Register { name, file, export } => {
            out.push(kind::REGISTER);
            [name, file, export].into_iter().for_each(|text| put_bytes(out, text.as_bytes()));
        }
        ItemCommand::Flush { when } => {
            out.push(kind::FLUSH);
            put_set_expiry(out, *when);
        }
        ItemCommand::Statistics(which) => {
            out.push(kind::STATISTICS);
            out.push(place_of(&STATISTICS, which));
        }
    }
}

fn read_bits<const N: usize>(bytes: &mut WireReader<'_>) -> Option<[bool; N]> {
    let bits = bytes.u8()?;
    Some(core::array::from_fn(|at| bits >> at & 1 == 1))
}

fn read_set_expiry(bytes: &mut WireReader<'_>) -> Option<SetExpiry> {
    Some(match bytes.u8()? {
        expiry::KEEP => SetExpiry::Keep,
        expiry::NEVER => SetExpiry::Never,
        expiry::AFTER => SetExpiry::Deadline(Deadline::After(bytes.u64()? as i64)),
        expiry::AT => SetExpiry::Deadline(Deadline::At(bytes.u64()? as i64)),
        _ => return None,
    })
}

fn read_get_expiry(bytes: &mut WireReader<'_>) -> Option<GetExpiry> {
    Some(match read_set_expiry(bytes)? {
        SetExpiry::Keep => GetExpiry::Keep,
        SetExpiry::Never => GetExpiry::Persist,
        SetExpiry::Deadline(deadline) => GetExpiry::Deadline(deadline),
    })
}

fn maybe<'a, T>(
    bytes: &mut WireReader<'a>,
    read: impl FnOnce(&mut WireReader<'a>) -> Option<T>,
) -> Option<Option<T>> {
    if bytes.flag()? { read(bytes).map(Some) } else { Some(None) }
}

/// Reads what is asked; `None`: it is nothing that could be.
pub(crate) fn read_item_command<'a>(bytes: &mut WireReader<'a>) -> Option<ItemCommand<'a>> {
    Some(match bytes.u8()? {
        kind::GET => {
            let (versions, expiry) = (bytes.flag()?, read_get_expiry(bytes)?);
            // Each has a length of four bytes.
            ItemCommand::Get { versions, expiry, keys: bytes.list(4, WireReader::bytes)? }
        }
        kind::FETCH => {
            let [value, version, uses, untouched, leases] = read_bits(bytes)?;
            let (key, expiry) = (bytes.bytes()?, read_get_expiry(bytes)?);
            let vivify = maybe(bytes, read_set_expiry)?;
            let renew_within = maybe(bytes, WireReader::u64)?.map(|millis| millis as i64);
            let fetch =
                Fetch { key, expiry, vivify, renew_within, version, uses, untouched, leases };
            ItemCommand::Fetch { fetch, value }
        }
        kind::EXAMINE => ItemCommand::Examine { key: bytes.bytes()? },
        kind::STORE => {
            let [or_forget, version] = read_bits(bytes)?;
            let mode = *MODES.get(usize::from(bytes.u8()?))?;
            let (key, value, flags) = (bytes.bytes()?, bytes.bytes()?, bytes.u32()? as u32);
            let expiry = read_set_expiry(bytes)?;
            let seen = maybe(bytes, |bytes| {
                Some(Seen { version: bytes.u64()?, or_newer: bytes.flag()? })
            })?;
            let vivify = maybe(bytes, read_set_expiry)?;
            let give = maybe(bytes, WireReader::u64)?;
            let store = Store { key, value, flags, expiry, mode, seen, vivify, give, version };
            ItemCommand::Store { store, or_forget }
        }
        kind::REMOVE => {
            let (value_only, key) = (bytes.flag()?, bytes.bytes()?);
            let seen = maybe(bytes, WireReader::u64)?;
            let stale = maybe(bytes, read_get_expiry)?;
            let give = maybe(bytes, WireReader::u64)?;
            ItemCommand::Remove(Remove { key, seen, stale, value_only, give })
        }
        kind::COUNT => {
            let [down, version] = read_bits(bytes)?;
            let (key, by) = (bytes.bytes()?, bytes.u64()?);
            let seen = maybe(bytes, WireReader::u64)?;
            let expiry = read_get_expiry(bytes)?;
            let vivify = maybe(bytes, |bytes| Some((bytes.u64()?, read_set_expiry(bytes)?)))?;
            let give = maybe(bytes, WireReader::u64)?;
            ItemCommand::Count(Count { key, by, down, seen, expiry, vivify, give, version })
        }
        kind::TOUCH => ItemCommand::Touch { key: bytes.bytes()?, expiry: read_get_expiry(bytes)? },
        kind::CALL => {
            let [update, reply] = read_bits(bytes)?;
            let (key, function, param) = (bytes.bytes()?, bytes.bytes()?, bytes.bytes()?);
            ItemCommand::Call { key, function, param, update, reply }
        }
        kind::REGISTER => {
            let (name, file, export) = (bytes.text()?, bytes.text()?, bytes.text()?);
            ItemCommand::Register { name, file, export }
        }
        kind::FLUSH => ItemCommand::Flush { when: read_set_expiry(bytes)? },
        kind::STATISTICS => ItemCommand::Statistics(*STATISTICS.get(usize::from(bytes.u8()?))?),
        _ => return None,
    })
}

const FIELDS: usize = 9;
const LEASES: [Lease; 3] = [Lease::Free, Lease::Won, Lease::Taken];
/// What stands for no expiry.
const NEVER: i64 = -1;

fn write_left(out: &mut impl Reply, left: Option<u64>) {
    out.integer(left.map_or(NEVER, |millis| millis as i64));
}

fn next<'a>(rest: &mut &'a [u8]) -> Option<Token<'a>> {
    Token::read(rest)
}

fn integer(rest: &mut &[u8]) -> Option<i64> {
    match next(rest)? {
        Token::Integer(number) => Some(number),
        _ => None,
    }
}

fn boolean(rest: &mut &[u8]) -> Option<bool> {
    match next(rest)? {
        Token::Boolean(truth) => Some(truth),
        _ => None,
    }
}

fn left(rest: &mut &[u8]) -> Option<Option<u64>> {
    Some(u64::try_from(integer(rest)?).ok())
}

/// Writes what is known of an item; its value only if that is wanted.
pub fn write_item(item: &Item<'_>, value: bool, out: &mut impl Reply) {
    out.array(FIELDS);
    if value {
        out.value(&item.value);
    } else {
        out.integer(item.value.len() as i64);
    }
    out.integer(i64::from(item.flags));
    out.integer(item.version as i64);
    write_left(out, item.left_before);
    write_left(out, item.left);
    out.integer(i64::from(place_of(&LEASES, &item.lease)));
    out.boolean(item.stale);
    out.boolean(item.read);
    out.integer(i64::from(item.idle_seconds));
}

/// Reads what [`write_item`] has written: the item, whose value is empty where it was not wanted, and how many bytes that has.
#[must_use]
pub fn item_of(answer: Answer<'_>) -> Option<(Item<'_>, u64)> {
    let mut rest = answer.bytes();
    let rest = &mut rest;
    if next(rest)? != Token::Aggregate(Form::Array, FIELDS) {
        return None;
    }
    let (value, len) = match next(rest)? {
        Token::Bulk(bytes) => (bytes, bytes.len() as u64),
        Token::Integer(len) => (&b""[..], len as u64),
        _ => return None,
    };
    let item = Item {
        value: Value::of(value),
        flags: integer(rest)? as u32,
        version: integer(rest)? as u64,
        left_before: left(rest)?,
        left: left(rest)?,
        lease: *LEASES.get(usize::try_from(integer(rest)?).ok()?)?,
        stale: boolean(rest)?,
        read: boolean(rest)?,
        idle_seconds: integer(rest)? as u32,
    };
    Some((item, len))
}

/// Writes one value of several, with its flags and its version.
pub fn write_value(value: &Value<'_>, flags: u32, version: u64, out: &mut impl Reply) {
    out.array(3);
    out.value(value);
    out.integer(i64::from(flags));
    out.integer(version as i64);
}

/// Values with their flags and versions, as [`write_value`] writes them into an array; nothing, where a key is not there. Ends
/// where the array ends, or is none.
pub fn values(answer: Answer<'_>) -> impl Iterator<Item = Option<(&[u8], u32, u64)>> {
    let mut rest = answer.bytes();
    let count = match next(&mut rest) {
        Some(Token::Aggregate(Form::Array, count)) => count,
        _ => 0,
    };
    (0..count).map_while(move |_| match next(&mut rest)? {
        Token::Aggregate(Form::Array, 3) => {
            let Token::Bulk(value) = next(&mut rest)? else { return None };
            Some(Some((value, integer(&mut rest)? as u32, integer(&mut rest)? as u64)))
        }
        Token::Null => Some(None),
        _ => None,
    })
}

/// Writes what came of a write.
pub fn write_written(written: Written, out: &mut impl Reply) {
    let (what, version) = match written {
        Written::Done(version) => (0, version),
        Written::Changed => (1, 0),
        Written::Missing => (2, 0),
        Written::Refused => (3, 0),
    };
    out.array(2);
    out.integer(what);
    out.integer(version as i64);
}

/// Reads what [`write_written`] has written.
#[must_use]
pub fn written_of(answer: Answer<'_>) -> Option<Written> {
    let mut rest = answer.bytes();
    let Token::Aggregate(Form::Array, 2) = next(&mut rest)? else { return None };
    let (what, version) = (integer(&mut rest)?, integer(&mut rest)? as u64);
    Some(match what {
        0 => Written::Done(version),
        1 => Written::Changed,
        2 => Written::Missing,
        3 => Written::Refused,
        _ => return None,
    })
}

/// Writes what came of counting.
pub fn write_counted(counted: Counted, out: &mut impl Reply) {
    match counted {
        Counted::Done { number, version, left_before, left, made } => {
            out.array(5);
            out.integer(number as i64);
            out.integer(version as i64);
            write_left(out, left_before);
            write_left(out, left);
            out.boolean(made);
        }
        Counted::NotNumber => out.integer(0),
        Counted::Changed => out.integer(1),
        Counted::Missing => out.integer(2),
    }
}

/// Reads what [`write_counted`] has written.
#[must_use]
pub fn counted_of(answer: Answer<'_>) -> Option<Counted> {
    let mut rest = answer.bytes();
    let rest = &mut rest;
    Some(match next(rest)? {
        Token::Aggregate(Form::Array, 5) => Counted::Done {
            number: integer(rest)? as u64,
            version: integer(rest)? as u64,
            left_before: left(rest)?,
            left: left(rest)?,
            made: boolean(rest)?,
        },
        Token::Integer(0) => Counted::NotNumber,
        Token::Integer(1) => Counted::Changed,
        Token::Integer(2) => Counted::Missing,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::answer_of;

    fn commands() -> Vec<ItemCommand<'static>> {
        let after = SetExpiry::Deadline(Deadline::After(-5));
        let fetch = Fetch {
            key: b"k",
            expiry: GetExpiry::Deadline(Deadline::At(7)),
            vivify: Some(SetExpiry::Never),
            renew_within: Some(-1),
            version: true,
            uses: false,
            untouched: true,
            leases: false,
        };
        let store = Store {
            key: b"k",
            value: b"value",
            flags: u32::MAX,
            expiry: after,
            mode: StoreMode::Prepend,
            seen: Some(Seen { version: 3, or_newer: true }),
            vivify: Some(SetExpiry::Keep),
            give: Some(9),
            version: true,
        };
        let count = Count {
            key: b"k",
            by: u64::MAX,
            down: true,
            seen: Some(1),
            expiry: GetExpiry::Persist,
            vivify: Some((5, after)),
            give: None,
            version: false,
        };
        let remove = Remove {
            key: b"k",
            seen: None,
            stale: Some(GetExpiry::Keep),
            value_only: true,
            give: Some(2),
        };
        let mut all = alloc::vec![
            ItemCommand::Get {
                keys: alloc::vec![b"a", b"", b"c"],
                versions: true,
                expiry: GetExpiry::Keep
            },
            ItemCommand::Fetch { fetch, value: false },
            ItemCommand::Examine { key: b"k" },
            ItemCommand::Store { store, or_forget: true },
            ItemCommand::Remove(remove),
            ItemCommand::Count(count),
            ItemCommand::Touch { key: b"k", expiry: GetExpiry::Persist },
            ItemCommand::Call { key: b"k", function: b"f", param: b"", update: false, reply: true },
            ItemCommand::Register { name: "n", file: "f", export: "é" },
            ItemCommand::Flush { when: after },
        ];
        all.extend(STATISTICS.map(ItemCommand::Statistics));
        all
    }

    #[test]
    fn what_is_asked_arrives_and_what_is_cut_is_refused() {
        for command in commands() {
            let mut bytes = Vec::new();
            put_item_command(&mut bytes, &command);
            let mut reader = WireReader::of(&bytes);
            assert_eq!(read_item_command(&mut reader), Some(command));
            assert!(reader.rest().is_empty());
            for end in 0..bytes.len() {
                assert_eq!(
                    read_item_command(&mut WireReader::of(&bytes[..end])),
                    None,
                    "{bytes:?} {end}"
                );
            }
        }
    }

    #[test]
    fn what_comes_of_it_arrives() {
        let item = Item {
            value: Value::of(b"value"),
            flags: 7,
            version: u64::MAX,
            left_before: None,
            left: Some(60_000),
            lease: Lease::Taken,
            stale: true,
            read: false,
            idle_seconds: 3,
        };
        for wanted in [true, false] {
            let answer = answer_of(|out| write_item(&item, wanted, out));
            let (read, len) = item_of(Answer::whole(&answer).unwrap()).unwrap();
            let value = read.value.as_contiguous().unwrap();
            assert_eq!((value, len), (if wanted { &b"value"[..] } else { b"" }, 5));
            assert_eq!((read.flags, read.version), (7, u64::MAX));
            assert_eq!((read.left_before, read.left), (None, Some(60_000)));
            assert_eq!((read.lease, read.stale, read.read), (Lease::Taken, true, false));
            assert_eq!(read.idle_seconds, 3);
        }
        let many = answer_of(|out| {
            out.array(2);
            out.null();
            write_value(&Value::of(b"v"), 1, 2, out);
        });
        let many: Vec<_> = values(Answer::whole(&many).unwrap()).collect();
        assert_eq!(many, [None, Some((&b"v"[..], 1, 2))]);
        for written in [Written::Done(5), Written::Changed, Written::Missing, Written::Refused] {
            let answer = answer_of(|out| write_written(written, out));
            assert_eq!(written_of(Answer::whole(&answer).unwrap()), Some(written));
        }
        let done = Counted::Done {
            number: u64::MAX,
            version: 4,
            left_before: Some(1),
            left: None,
            made: true,
        };
        for counted in [done, Counted::NotNumber, Counted::Changed, Counted::Missing] {
            let answer = answer_of(|out| write_counted(counted, out));
            assert_eq!(counted_of(Answer::whole(&answer).unwrap()), Some(counted));
        }
    }

    #[test]
    fn an_answer_of_another_kind_is_none() {
        for answer in [answer_of(|out| out.ok()), answer_of(|out| out.array(0))] {
            let answer = Answer::whole(&answer).unwrap();
            assert!(item_of(answer).is_none());
            assert_eq!((written_of(answer), counted_of(answer)), (None, None));
            assert_eq!(values(answer).count(), 0);
        }
    }
}
