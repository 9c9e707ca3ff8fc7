//! A subject that is a plain vector, and modules from WebAssembly's text form.

use headwater_base::Millis;
use headwater_base::functions::{CallError, FunctionLimits, Functions, Refused, Source, Subject};
use headwater_base::hash::Secret;
use headwater_functions::Host;
use std::time::Duration;

/// One key with its value, changed at once.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Plain {
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) param: Vec<u8>,
    pub(crate) reply: Vec<u8>,
    /// How long the thread stands still when the length is asked for.
    pub(crate) stands_still: Duration,
}

/// Longest reply that a [`Plain`] takes.
pub(crate) const REPLY_MAX: usize = 1 << 16;

impl Subject for Plain {
    fn key(&self) -> &[u8] {
        b"key"
    }

    fn param(&self) -> &[u8] {
        &self.param
    }

    fn now(&self) -> Result<Millis, Refused> {
        Ok(Millis(1234))
    }

    fn len(&self) -> Option<usize> {
        std::thread::sleep(self.stands_still);
        self.value.as_ref().map(Vec::len)
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let bytes = self.value.as_deref().unwrap_or(&[]).get(offset..).unwrap_or(&[]);
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        len
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Refused> {
        let value = self.value.get_or_insert_default();
        if offset + bytes.len() > REPLY_MAX {
            return Err(Refused::ValueTooLong(REPLY_MAX));
        }
        value.resize(value.len().max(offset + bytes.len()), 0);
        value[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        self.write(self.value.as_ref().map_or(0, Vec::len), bytes)
    }

    fn truncate(&mut self, len: usize) -> Result<(), Refused> {
        self.value.as_mut().into_iter().for_each(|value| value.truncate(len));
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        self.value = Some(bytes.to_vec());
        Ok(())
    }

    fn delete(&mut self) -> Result<(), Refused> {
        self.value = None;
        Ok(())
    }

    fn reply(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        if self.reply.len() + bytes.len() > REPLY_MAX {
            return Err(Refused::ReplyTooLong(REPLY_MAX));
        }
        self.reply.extend_from_slice(bytes);
        Ok(())
    }

    fn reply_value(&mut self, offset: usize, len: usize) -> Result<usize, Refused> {
        let mut bytes = vec![0; len.min(REPLY_MAX)];
        let len = self.read(offset, &mut bytes);
        self.reply(&bytes[..len]).map(|()| len)
    }
}

/// Limits that hostile modules meet soon.
pub(crate) fn limits() -> FunctionLimits {
    FunctionLimits { memory_bytes_max: 1 << 20, ..FunctionLimits::default() }
}

/// A host without functions.
pub(crate) fn host() -> Host {
    Host::new(&limits(), None, Secret::fixed(7)).unwrap()
}

/// The bytes of a module in the text form, whose imports and memory are here already.
pub(crate) fn module(text: &str) -> Vec<u8> {
    wat::parse_str(format!(
        r#"(module
            (import "headwater" "value_len" (func $value_len (result i32)))
            (import "headwater" "value_read" (func $value_read (param i32 i32 i32) (result i32)))
            (import "headwater" "value_write" (func $value_write (param i32 i32 i32)))
            (import "headwater" "value_append" (func $value_append (param i32 i32)))
            (import "headwater" "value_truncate" (func $value_truncate (param i32)))
            (import "headwater" "value_replace" (func $value_replace (param i32 i32)))
            (import "headwater" "value_delete" (func $value_delete))
            (import "headwater" "reply" (func $reply (param i32 i32)))
            (import "headwater" "reply_value" (func $reply_value (param i32 i32) (result i32)))
            (import "headwater" "key_len" (func $key_len (result i32)))
            (import "headwater" "key_read" (func $key_read (param i32 i32 i32) (result i32)))
            (import "headwater" "param_len" (func $param_len (result i32)))
            (import "headwater" "param_read" (func $param_read (param i32 i32 i32) (result i32)))
            (import "headwater" "now_ms" (func $now_ms (result i64)))
            (memory 1)
            {text})"#
    ))
    .unwrap()
}

/// Loads a module in the text form.
pub(crate) fn load(host: &mut Host, name: &str, text: &str) {
    host.load_now(name, Source::Bytes(&module(text)), None, true).unwrap();
}

/// Calls a function for a value, and gives what it replied.
pub(crate) fn call(
    host: &mut Host,
    name: &str,
    value: &[u8],
    param: &[u8],
) -> Result<Plain, CallError> {
    let mut plain =
        Plain { value: Some(value.to_vec()), param: param.to_vec(), ..Plain::default() };
    host.call(name.as_bytes(), &mut plain).map(|()| plain)
}
