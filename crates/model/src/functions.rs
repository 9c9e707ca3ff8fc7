//! Functions for joins, in plain code: what `map:upper` and `map:long` of the histories make of a value.
//!
//! The engine calls them through the port that WebAssembly modules are called through; the oracle does
//! so too, with a subject of its own.

use headwater_base::Millis;
use headwater_base::functions::{CallError, Functions, Loading, Refused, Run, Source, Subject};

/// The functions that histories use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Function {
    /// The value in capitals, behind the output key's last byte.
    Upper,
    /// The value, if it has more than one byte; otherwise nothing.
    Long,
}

impl Function {
    /// Every function.
    pub const ALL: [Self; 2] = [Self::Upper, Self::Long];

    /// Its operator in the text of a join.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Upper => "map:upper",
            Self::Long => "map:long",
        }
    }

    fn act(self, subject: &mut dyn Subject) -> Result<(), Refused> {
        let mut value = vec![0; subject.len().unwrap_or(0)];
        subject.read(0, &mut value);
        match self {
            Self::Upper => {
                value.make_ascii_uppercase();
                let last = subject.key().last().copied();
                let bytes: Vec<u8> = last.into_iter().chain(value).collect();
                subject.reply(&bytes)
            }
            Self::Long if value.len() > 1 => subject.reply(&value),
            Self::Long => Ok(()),
        }
    }

    /// What it makes of a value, by the port.
    #[must_use]
    pub fn map(self, key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        let mut plain = Plain { key, value, reply: None };
        let name = self.word().strip_prefix("map:").unwrap_or_default();
        Doubles.call(name.as_bytes(), &mut plain).ok()?;
        plain.reply
    }
}

/// A key with a value that can only be read.
struct Plain<'a> {
    key: &'a [u8],
    value: &'a [u8],
    reply: Option<Vec<u8>>,
}

impl Subject for Plain<'_> {
    fn key(&self) -> &[u8] {
        self.key
    }

    fn param(&self) -> &[u8] {
        &[]
    }

    fn now(&self) -> Result<Millis, Refused> {
        Err(Refused::NotPure)
    }

    fn len(&self) -> Option<usize> {
        Some(self.value.len())
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let rest = self.value.get(offset..).unwrap_or_default();
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        len
    }

    fn write(&mut self, _offset: usize, _bytes: &[u8]) -> Result<(), Refused> {
        Err(Refused::ReadOnly)
    }

    fn append(&mut self, _bytes: &[u8]) -> Result<(), Refused> {
        Err(Refused::ReadOnly)
    }

    fn truncate(&mut self, _len: usize) -> Result<(), Refused> {
        Err(Refused::ReadOnly)
    }

    fn replace(&mut self, _bytes: &[u8]) -> Result<(), Refused> {
        Err(Refused::ReadOnly)
    }

    fn delete(&mut self) -> Result<(), Refused> {
        Err(Refused::ReadOnly)
    }

    fn reply(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        self.reply.get_or_insert_default().extend_from_slice(bytes);
        Ok(())
    }

    fn reply_value(&mut self, offset: usize, len: usize) -> Result<usize, Refused> {
        let rest = self.value.get(offset..).unwrap_or_default();
        let bytes = &rest[..len.min(rest.len())];
        self.reply(bytes).map(|()| bytes.len())
    }
}

/// A host that knows these functions and no other.
#[derive(Debug, Default)]
pub struct Doubles;

impl Doubles {
    fn find(name: &[u8]) -> Option<Function> {
        let is =
            |function: &Function| function.word().as_bytes().strip_prefix(b"map:") == Some(name);
        Function::ALL.into_iter().find(is)
    }
}

impl Functions for Doubles {
    fn load(&mut self, _: &str, _: Source<'_>, _: Option<&str>, _: bool) -> Loading {
        Loading::Failed(String::from("there are no modules here"))
    }

    fn is_pure(&self, name: &[u8]) -> Option<bool> {
        Self::find(name).map(|_| true)
    }

    fn call(&mut self, name: &[u8], subject: &mut dyn Subject) -> Result<(), CallError> {
        let function = Self::find(name).ok_or(CallError::NoSuchFunction)?;
        function.act(subject).map_err(CallError::Refused)
    }

    fn run(
        &mut self,
        _: &[u8],
        _: &mut dyn FnMut(&mut dyn Run) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        Err(CallError::NoSuchFunction)
    }
}
