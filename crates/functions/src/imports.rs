//! What a module may import: the host calls, which act on the subject of the call under way.
//!
//! Addresses and lengths are those of the module's memory; what lies outside it ends the call. Bytes
//! go straight between the stored value and that memory. `docs/functions.md` describes each call.

use crate::call_time::CallTime;
use headwater_base::functions::{Refused, Subject, World};
use scoped_tls_hkt::scoped_thread_local;
use wasmtime::{Caller, Engine, Error, Linker, Memory, ResourceLimiter, Trap};

/// The name that host calls are imported from.
pub(crate) const MODULE: &str = "headwater";
/// The host calls that a pure function may not use.
pub(crate) const IMPURE: &[&str] = &[
    NOW,
    "slot_len",
    "slot_read",
    "find",
    "find_range",
    "found_next",
    "found_key_len",
    "found_key_read",
    "found_len",
    "found_read",
    "put",
    "remove",
];
const NOW: &str = "now_ms";

scoped_thread_local!(
    /// What the call under way on this thread acts on.
    pub(crate) static mut SUBJECT: for<'a> &'a mut (dyn Subject + 'a)
);

/// More memory was wanted than may be had.
#[derive(Debug)]
pub(crate) struct MemoryDenied;

impl std::fmt::Display for MemoryDenied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("more memory than may be had")
    }
}

impl std::error::Error for MemoryDenied {}

/// What host calls know of the instance that makes them.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) memory: Option<Memory>,
    pub(crate) memory_bytes_max: usize,
    /// Chunks that host calls have written, as instrumented code marks them.
    pub(crate) marks: u64,
    /// Size of a chunk, as a power of two.
    pub(crate) shift: u32,
    /// How long the calls under way may go on.
    pub(crate) time: CallTime,
}

/// Most entries of a module's tables.
const TABLE_MAX: usize = 10_000;

impl ResourceLimiter for State {
    fn memory_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > self.memory_bytes_max { Err(Error::new(MemoryDenied)) } else { Ok(true) }
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_MAX)
    }
}

type Host<'a> = Caller<'a, State>;

/// Does something with the subject.
fn with<R>(act: impl FnOnce(&mut dyn Subject) -> R) -> Result<R, Error> {
    if !SUBJECT.is_set() {
        return Err(Error::msg("host calls are for calls, not for a module's start"));
    }
    Ok(SUBJECT.with(|subject| act(subject)))
}

/// As [`with`], for what may be refused.
fn try_with<R>(act: impl FnOnce(&mut dyn Subject) -> Result<R, Refused>) -> Result<R, Error> {
    with(act)?.map_err(Error::new)
}

fn memory(host: &Host<'_>) -> Result<Memory, Error> {
    host.data().memory.ok_or_else(|| Error::msg("the module has no memory"))
}

/// `len` bytes of the module's memory.
fn bytes<'h>(host: &'h Host<'_>, address: u32, len: u32) -> Result<&'h [u8], Error> {
    let memory = memory(host)?;
    let start = address as usize;
    memory.data(host).get(start..start + len as usize).ok_or_else(|| Trap::MemoryOutOfBounds.into())
}

/// Lets `fill` write to `len` bytes of the module's memory; it gives how many it has written.
fn fill(
    host: &mut Host<'_>,
    address: u32,
    len: u32,
    fill: impl FnOnce(&mut [u8]) -> Result<usize, Error>,
) -> Result<u32, Error> {
    let memory = memory(host)?;
    let (bytes, state) = memory.data_and_store_mut(host);
    let start = address as usize;
    let room = bytes
        .get_mut(start..start + len as usize)
        .ok_or_else(|| Error::from(Trap::MemoryOutOfBounds))?;
    let written = fill(room)?;
    if written > 0 {
        let last = (start + written - 1) >> state.shift;
        state.marks |=
            (u64::MAX << ((start >> state.shift) & 63)) & (u64::MAX >> (63 - (last & 63)));
    }
    Ok(written as u32)
}

/// Copies a part of `from` into the module's memory.
fn copy(
    host: &mut Host<'_>,
    offset: u32,
    address: u32,
    len: u32,
    from: fn(&dyn Subject) -> &[u8],
) -> Result<u32, Error> {
    fill(host, address, len, |room| {
        with(|subject| {
            let bytes = from(subject);
            let rest = bytes.get(offset as usize..).unwrap_or(&[]);
            let count = rest.len().min(room.len());
            room[..count].copy_from_slice(&rest[..count]);
            count
        })
    })
}

/// Every host call.
pub(crate) fn linker(engine: &Engine) -> Result<Linker<State>, Error> {
    let mut linker = Linker::new(engine);
    linker.func_wrap(MODULE, "value_len", |_: Host<'_>| {
        with(|subject| subject.len().map_or(-1, |len| len as i32))
    })?;
    linker.func_wrap(
        MODULE,
        "value_read",
        |mut host: Host<'_>, offset: u32, address: u32, len: u32| {
            fill(&mut host, address, len, |room| {
                with(|subject| subject.read(offset as usize, room))
            })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "value_write",
        |host: Host<'_>, offset: u32, address: u32, len: u32| {
            let bytes = bytes(&host, address, len)?;
            try_with(|subject| subject.write(offset as usize, bytes))
        },
    )?;
    linker.func_wrap(MODULE, "value_append", |host: Host<'_>, address: u32, len: u32| {
        let bytes = bytes(&host, address, len)?;
        try_with(|subject| subject.append(bytes))
    })?;
    linker.func_wrap(MODULE, "value_truncate", |_: Host<'_>, len: u32| {
        try_with(|subject| subject.truncate(len as usize))
    })?;
    linker.func_wrap(MODULE, "value_replace", |host: Host<'_>, address: u32, len: u32| {
        let bytes = bytes(&host, address, len)?;
        try_with(|subject| subject.replace(bytes))
    })?;
    linker.func_wrap(MODULE, "value_delete", |_: Host<'_>| try_with(|subject| subject.delete()))?;
    linker.func_wrap(MODULE, "reply", |host: Host<'_>, address: u32, len: u32| {
        let bytes = bytes(&host, address, len)?;
        try_with(|subject| subject.reply(bytes))
    })?;
    linker.func_wrap(MODULE, "reply_value", |_: Host<'_>, offset: u32, len: u32| {
        try_with(|subject| subject.reply_value(offset as usize, len as usize)).map(|len| len as u32)
    })?;
    linker
        .func_wrap(MODULE, "key_len", |_: Host<'_>| with(|subject| subject.key().len() as u32))?;
    linker.func_wrap(
        MODULE,
        "key_read",
        |mut host: Host<'_>, offset: u32, address: u32, len: u32| {
            copy(&mut host, offset, address, len, |subject| subject.key())
        },
    )?;
    linker.func_wrap(MODULE, "param_len", |_: Host<'_>| {
        with(|subject| subject.param().len() as u32)
    })?;
    linker.func_wrap(
        MODULE,
        "param_read",
        |mut host: Host<'_>, offset: u32, address: u32, len: u32| {
            copy(&mut host, offset, address, len, |subject| subject.param())
        },
    )?;
    linker
        .func_wrap(MODULE, NOW, |_: Host<'_>| try_with(|subject| subject.now()).map(|now| now.0))?;
    link_world(&mut linker)?;
    Ok(linker)
}

/// Does something with the keys besides the subject's own.
fn try_world<R>(act: impl FnOnce(&mut dyn World) -> Result<R, Refused>) -> Result<R, Error> {
    try_with(|subject| act(subject.world()?))
}

/// Copies a part of what `from` gives into the module's memory.
fn copy_of_world(
    host: &mut Host<'_>,
    offset: u32,
    address: u32,
    len: u32,
    from: impl FnOnce(&mut dyn World) -> Option<&[u8]>,
) -> Result<u32, Error> {
    fill(host, address, len, |room| {
        try_world(|world| {
            let rest = from(world).and_then(|bytes| bytes.get(offset as usize..)).unwrap_or(&[]);
            let count = rest.len().min(room.len());
            room[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        })
    })
}

/// A length, or -1 for nothing.
fn len_or_none(len: Option<usize>) -> i32 {
    len.map_or(-1, |len| len as i32)
}

/// The host calls that only functions have that flows call.
fn link_world(linker: &mut Linker<State>) -> Result<(), Error> {
    linker.func_wrap(MODULE, "slot_len", |_: Host<'_>, number: u32| {
        try_world(|world| Ok(len_or_none(world.slot(number as usize).map(<[u8]>::len))))
    })?;
    linker.func_wrap(
        MODULE,
        "slot_read",
        |mut host: Host<'_>, number: u32, offset: u32, address: u32, len: u32| {
            copy_of_world(&mut host, offset, address, len, |world| world.slot(number as usize))
        },
    )?;
    linker.func_wrap(MODULE, "find", |host: Host<'_>, address: u32, len: u32| {
        let key = bytes(&host, address, len)?;
        try_world(|world| world.find(key)).map(len_or_none)
    })?;
    linker.func_wrap(
        MODULE,
        "find_range",
        |host: Host<'_>, first: u32, first_len: u32, last: u32, last_len: u32, most: u32| {
            let (first, last) = (bytes(&host, first, first_len)?, bytes(&host, last, last_len)?);
            let found = try_world(|world| world.find_range(first, last, most as usize));
            found.map(|found| found as u32)
        },
    )?;
    linker.func_wrap(MODULE, "found_next", |_: Host<'_>| {
        try_world(|world| Ok(i32::from(world.next_found())))
    })?;
    linker.func_wrap(MODULE, "found_key_len", |_: Host<'_>| {
        try_world(|world| Ok(len_or_none(world.found().map(|(key, _)| key.len()))))
    })?;
    linker.func_wrap(
        MODULE,
        "found_key_read",
        |mut host: Host<'_>, offset: u32, address: u32, len: u32| {
            copy_of_world(&mut host, offset, address, len, |world| {
                world.found().map(|(key, _)| key)
            })
        },
    )?;
    linker.func_wrap(MODULE, "found_len", |_: Host<'_>| {
        try_world(|world| Ok(len_or_none(world.found().map(|(_, value)| value.len()))))
    })?;
    linker.func_wrap(
        MODULE,
        "found_read",
        |mut host: Host<'_>, offset: u32, address: u32, len: u32| {
            copy_of_world(&mut host, offset, address, len, |world| {
                world.found().map(|(_, value)| value)
            })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "put",
        |host: Host<'_>, key: u32, key_len: u32, value: u32, value_len: u32| {
            let (key, value) = (bytes(&host, key, key_len)?, bytes(&host, value, value_len)?);
            try_world(|world| world.put(key, value))
        },
    )?;
    linker.func_wrap(MODULE, "remove", |host: Host<'_>, key: u32, len: u32| {
        let key = bytes(&host, key, len)?;
        try_world(|world| world.remove(key))
    })?;
    Ok(())
}
