//! Notes about tracking as bytes: what goes over a link between processes.

use super::{NOBODY, Note};
use crate::connection::ConnectionId;
use headwater_base::wire::{WireReader, put_bytes, put_u32, put_u64};

const PREFIX: u8 = 0;
const OFF: u8 = 1;
const FIND: u8 = 2;
const FOUND: u8 = 3;
const TELL: u8 = 4;
const UNTOLD: u8 = 5;

impl Note {
    /// Writes it behind what `out` has.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Prefix { prefix, on } => {
                out.push(PREFIX);
                out.push(u8::from(*on));
                put_bytes(out, prefix);
            }
            Self::Off => out.push(OFF),
            Self::Find { session, number } => {
                out.push(FIND);
                session.write(out);
                put_u64(out, *number);
            }
            Self::Found { session, number, id } => {
                out.push(FOUND);
                session.write(out);
                put_u64(out, *number);
                id.unwrap_or(NOBODY).write(out);
            }
            Self::Tell { session, to, keys } => {
                out.push(TELL);
                session.write(out);
                to.write(out);
                out.push(u8::from(keys.is_some()));
                if let Some(keys) = keys {
                    put_u32(out, keys.len());
                    keys.iter().for_each(|key| put_bytes(out, key));
                }
            }
            Self::Untold { session, number } => {
                out.push(UNTOLD);
                session.write(out);
                put_u64(out, *number);
            }
        }
    }

    /// Reads what [`Note::write`] has written; `None`: these bytes were not.
    pub(crate) fn read(bytes: &mut WireReader<'_>) -> Option<Self> {
        let kind = bytes.u8()?;
        Some(match kind {
            PREFIX => {
                let on = bytes.flag()?;
                Self::Prefix { prefix: bytes.bytes()?.to_vec(), on }
            }
            OFF => Self::Off,
            FIND => Self::Find { session: ConnectionId::read(bytes)?, number: bytes.u64()? },
            FOUND => {
                let (session, number) = (ConnectionId::read(bytes)?, bytes.u64()?);
                let id = Some(ConnectionId::read(bytes)?).filter(|id| *id != NOBODY);
                Self::Found { session, number, id }
            }
            TELL => {
                let (session, to) = (ConnectionId::read(bytes)?, ConnectionId::read(bytes)?);
                let keys = match bytes.flag()? {
                    true => Some(bytes.list(4, |bytes| bytes.bytes().map(<[u8]>::to_vec))?),
                    false => None,
                };
                Self::Tell { session, to, keys }
            }
            UNTOLD => Self::Untold { session: ConnectionId::read(bytes)?, number: bytes.u64()? },
            _ => return None,
        })
    }

    /// One of each kind.
    #[cfg(test)]
    pub(crate) fn examples() -> Vec<Self> {
        let session = ConnectionId { slot: 3, number: 1 << 40 };
        vec![
            Self::Prefix { prefix: b"t|".to_vec(), on: true },
            Self::Off,
            Self::Find { session, number: 7 },
            Self::Found { session, number: 7, id: Some(session) },
            Self::Found { session, number: 7, id: None },
            Self::Tell { session, to: session, keys: Some(vec![b"a".to_vec(), Vec::new()]) },
            Self::Tell { session, to: session, keys: None },
            Self::Untold { session, number: 8 },
        ]
    }
}
