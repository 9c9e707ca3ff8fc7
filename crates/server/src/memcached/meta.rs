//! The meta commands.

use super::items::{NOT_NUMBER, Undone};
use super::{ItemUse, encoder};
use crate::resp::parts::Figures;
use crate::resp::{Flow, ShardService, Turn};
use headwater_command::items::{Counted, Fetch, Item, Written};
use headwater_engine::Stop;
use headwater_protocol::memcached::{Encoder, KEY_BYTES_MAX, Meta, MetaFlags};

/// The code word for what came of a write.
fn code(written: Written) -> &'static str {
    match written {
        Written::Done(_) => "HD",
        Written::Changed => "EX",
        Written::Missing => "NF",
        Written::Refused => "NS",
    }
}

/// Writes what `mg` answers: an item, whose value has so many bytes, or that there is none.
pub(super) fn write_found(
    meta: &Meta<'_>,
    flags: &MetaFlags,
    found: Option<(&Item<'_>, u64)>,
    out: &mut Encoder<'_>,
) {
    match found {
        Some((item, length)) => out.meta_item(meta, flags, item, length),
        None if flags.quiet => {}
        None => out.meta_code("EN", meta, flags, None),
    }
}

/// Writes what `ms` and `md` answer; `gives_version`: that of what was written may be wanted.
pub(super) fn write_written(
    meta: &Meta<'_>,
    flags: &MetaFlags,
    written: Written,
    gives_version: bool,
    out: &mut Encoder<'_>,
) {
    let version = if let Written::Done(version) = written { version } else { 0 };
    if !(flags.quiet && matches!(written, Written::Done(_))) {
        out.meta_code(code(written), meta, flags, gives_version.then_some(version));
    }
}

/// Writes what `ma` answers.
pub(super) fn write_counted(
    meta: &Meta<'_>,
    flags: &MetaFlags,
    counted: Counted,
    out: &mut Encoder<'_>,
) {
    match counted {
        Counted::Done { .. } if flags.quiet => {}
        Counted::Done { number, version, left_before, left, .. } => {
            out.meta_number(meta, flags, (number, version), (left_before, left));
        }
        Counted::NotNumber => out.line(NOT_NUMBER),
        Counted::Changed => out.meta_code("EX", meta, flags, None),
        Counted::Missing => out.meta_code("NF", meta, flags, None),
    }
}

/// Writes what `me` answers: an item, whose key and value have so many bytes, or that there is none.
pub(super) fn write_examined(
    meta: &Meta<'_>,
    found: Option<(&Item<'_>, usize)>,
    out: &mut Encoder<'_>,
) {
    match found {
        Some((item, size)) => out.meta_debug(meta, size, item),
        None => out.line("EN"),
    }
}

impl ShardService {
    /// Reads an item, with what is known of it.
    pub(super) fn fetch_item(
        &mut self,
        fetch: &Fetch<'_>,
        answer: impl FnOnce(Option<&Item<'_>>),
    ) -> Result<(), Undone> {
        if !fetch.is_plain() && !self.has_room_for_item(fetch.key, 0) {
            self.figures.stats.errors += 1;
            return Err(Undone::Refused("SERVER_ERROR out of memory".into()));
        }
        let counts = &mut self.memcached.counts;
        let details = &mut self.memcached.details;
        self.node.fetch(fetch, |found| {
            details.count(fetch.key, ItemUse::Read { hit: found.is_some() });
            let counter =
                if found.is_some() { &mut counts.get_hits } else { &mut counts.get_misses };
            *counter += 1;
            answer(found);
        })?;
        Ok(())
    }

    /// Reads what is known of an item, which is no use of it.
    pub(super) fn examine_item(
        &mut self,
        key: &[u8],
        answer: impl FnOnce(Option<&Item<'_>>),
    ) -> Result<(), Stop> {
        let fetch = Fetch { key, version: true, uses: true, untouched: true, ..Fetch::default() };
        self.node.fetch(&fetch, answer)
    }

    pub(super) fn meta_get(&mut self, meta: &Meta<'_>, work: &mut Turn<'_>) -> Flow {
        let read = meta.flags().and_then(|flags| meta.check_opaque().map(|()| flags));
        let flags = match read {
            Ok(flags) => flags,
            Err(line) => return self.figures.meta_refused(line, work),
        };
        let mut room = [0; KEY_BYTES_MAX];
        let fetch = flags.fetch(meta.key(&flags, &mut room));
        self.memcached.counts.metas += 1;
        let before = work.out.len();
        let mut out = encoder(work);
        let read = self.fetch_item(&fetch, |found| {
            let found = found.map(|item| (item, item.value.len() as u64));
            write_found(meta, &flags, found, &mut out);
        });
        match read {
            Ok(()) => Flow::Next,
            Err(Undone::Stopped(stop)) => self.memcached_stopped(stop, false, before, work),
            Err(undone) => self.memcached_undone(undone, false, work),
        }
    }

    pub(super) fn meta_set(
        &mut self,
        meta: &Meta<'_>,
        value: Option<&[u8]>,
        work: &mut Turn<'_>,
    ) -> Flow {
        let read = meta.flags().and_then(|flags| meta.check_opaque().map(|()| flags));
        let flags = match read {
            Ok(flags) => flags,
            Err(line) => return self.figures.meta_refused(line, work),
        };
        let mut room = [0; KEY_BYTES_MAX];
        let key = meta.key(&flags, &mut room);
        let store = match flags.store(key, value.unwrap_or_default()) {
            Ok(store) => store,
            Err(line) => return self.figures.meta_refused(line, work),
        };
        if value.is_none() {
            return self.figures.meta_refused("CLIENT_ERROR bad data chunk", work);
        }
        self.memcached.counts.metas += 1;
        match self.store_item(&store, true) {
            Ok(written) => {
                write_written(meta, &flags, written, true, &mut encoder(work));
                Flow::Next
            }
            Err(undone) => self.memcached_undone(undone, false, work),
        }
    }

    pub(super) fn meta_delete(&mut self, meta: &Meta<'_>, work: &mut Turn<'_>) -> Flow {
        let read = meta.plain_flags().and_then(|flags| meta.check_opaque().map(|()| flags));
        let flags = match read {
            Ok(flags) => flags,
            Err(line) => return self.figures.meta_refused(line, work),
        };
        let mut room = [0; KEY_BYTES_MAX];
        let key = meta.key(&flags, &mut room);
        self.memcached.counts.metas += 1;
        match self.remove_item(&flags.remove(key)) {
            Ok(written) => {
                write_written(meta, &flags, written, false, &mut encoder(work));
                Flow::Next
            }
            Err(stop) => self.memcached_unanswered(stop, false, work),
        }
    }

    pub(super) fn meta_count(&mut self, meta: &Meta<'_>, work: &mut Turn<'_>) -> Flow {
        let read = meta.plain_flags().and_then(|flags| meta.check_opaque().map(|()| flags));
        let flags = match read {
            Ok(flags) => flags,
            Err(line) => return self.figures.meta_refused(line, work),
        };
        let mut room = [0; KEY_BYTES_MAX];
        let count = match flags.count(meta.key(&flags, &mut room)) {
            Ok(count) => count,
            Err(line) => return self.figures.meta_refused(line, work),
        };
        self.memcached.counts.metas += 1;
        match self.count_item(&count) {
            Ok(counted) => {
                write_counted(meta, &flags, counted, &mut encoder(work));
                Flow::Next
            }
            Err(undone) => self.memcached_undone(undone, false, work),
        }
    }

    /// `me`: of its flags only `b` means something.
    pub(super) fn meta_debug(&mut self, meta: &Meta<'_>, work: &mut Turn<'_>) -> Flow {
        let flags = match meta.key_flag() {
            Ok(flags) => flags,
            Err(line) => return self.figures.meta_refused(line, work),
        };
        let mut room = [0; KEY_BYTES_MAX];
        let key = meta.key(&flags, &mut room);
        let before = work.out.len();
        let mut out = encoder(work);
        let read = self.examine_item(key, |found| {
            let found = found.map(|item| (item, key.len() + item.value.len()));
            write_examined(meta, found, &mut out);
        });
        match read {
            Ok(()) => Flow::Next,
            Err(stop) => self.memcached_stopped(stop, false, before, work),
        }
    }
}

impl Figures {
    /// Refuses a meta command.
    fn meta_refused(&mut self, line: &str, work: &mut Turn<'_>) -> Flow {
        self.memcached_refused(line, work);
        Flow::Next
    }
}
