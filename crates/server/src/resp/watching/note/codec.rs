//! Notes about watches as bytes: what goes over a link between processes.

#[cfg(test)]
use super::key_change;
use super::{Asked, Begun, Missed, Note, Since};
use headwater_base::wire::{WireReader, put_bytes, put_u32, put_u64};
use headwater_base::{KeyRange, ShardRefusal};

const BEGIN: u8 = 0;
const BEGUN: u8 = 1;
const REFUSED: u8 = 2;
const END: u8 = 3;
const RESYNC: u8 = 4;

/// What a client knows, in the byte before a number.
const KNOWS_NOTHING_OF: u8 = 0;
const KNOWS_UP_TO: u8 = 1;
const COMES_NEW: u8 = 2;

impl Note {
    /// Writes it behind what `out` has.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Begin(Asked { watch, feed, range, from }) => {
                out.push(BEGIN);
                put_u32(out, *watch as usize);
                put_u32(out, *feed as usize);
                put_bytes(out, &range.first);
                put_bytes(out, &range.last);
                let (known, number) = match from {
                    None => (COMES_NEW, 0),
                    Some(Since::Number(number)) => (KNOWS_UP_TO, *number),
                    Some(Since::Unknown) => (KNOWS_NOTHING_OF, 0),
                };
                out.push(known);
                put_u64(out, number);
            }
            Self::Answer(watch, Ok(Begun { number, missed })) => {
                out.push(BEGUN);
                put_u32(out, *watch as usize);
                put_u64(out, *number);
                out.push(u8::from(missed.is_some()));
                put_bytes(out, missed.as_ref().map_or(&[], |missed| &missed.bytes));
            }
            Self::Answer(watch, Err(ShardRefusal { code, text })) => {
                out.push(REFUSED);
                put_u32(out, *watch as usize);
                put_bytes(out, code.as_bytes());
                put_bytes(out, text.as_bytes());
            }
            Self::End { watch, feed } => {
                out.push(END);
                put_u32(out, *watch as usize);
                put_u32(out, *feed as usize);
            }
            Self::Resync { feed } => {
                out.push(RESYNC);
                put_u32(out, *feed as usize);
            }
        }
    }

    /// Reads what [`Note::write`] has written; `None`: these bytes were not.
    pub(crate) fn read(bytes: &mut WireReader<'_>) -> Option<Self> {
        let (kind, number) = (bytes.u8()?, bytes.u32()? as u32);
        Some(match kind {
            BEGIN => {
                let feed = bytes.u32()? as u32;
                let first = bytes.bytes()?;
                let range = KeyRange::new(first, bytes.bytes()?);
                let (known, upto) = (bytes.u8()?, bytes.u64()?);
                let from = match known {
                    COMES_NEW => None,
                    KNOWS_UP_TO => Some(Since::Number(upto)),
                    KNOWS_NOTHING_OF => Some(Since::Unknown),
                    _ => return None,
                };
                Self::Begin(Asked { watch: number, feed, range, from })
            }
            BEGUN => {
                let (upto, is_known, missed) = (bytes.u64()?, bytes.flag()?, bytes.bytes()?);
                let missed = if is_known { Some(Missed::read(missed)?) } else { None };
                Self::Answer(number, Ok(Begun { number: upto, missed }))
            }
            REFUSED => {
                let (code, text) = (bytes.text()?.to_owned(), bytes.text()?.to_owned());
                Self::Answer(number, Err(ShardRefusal { code, text }))
            }
            END => Self::End { watch: number, feed: bytes.u32()? as u32 },
            RESYNC => Self::Resync { feed: number },
            _ => return None,
        })
    }

    /// One of each kind.
    #[cfg(test)]
    pub(crate) fn examples() -> Vec<Self> {
        let asked =
            |from| Self::Begin(Asked { watch: 1, feed: 2, range: KeyRange::new(b"a", b"b"), from });
        let mut missed = Missed::default();
        missed.add(5, &key_change(b"a", None));
        let refusal = ShardRefusal { code: String::from("ERR"), text: String::from("no") };
        vec![
            asked(None),
            asked(Some(Since::Number(1 << 40))),
            asked(Some(Since::Unknown)),
            Self::Answer(3, Ok(Begun { number: 9, missed: Some(missed) })),
            Self::Answer(3, Ok(Begun { number: 9, missed: None })),
            Self::Answer(3, Err(refusal)),
            Self::End { watch: 1, feed: u32::MAX },
            Self::Resync { feed: 7 },
        ]
    }
}
