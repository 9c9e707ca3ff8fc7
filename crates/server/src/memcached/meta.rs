//! The meta commands.

use super::items::NOT_NUMBER;
use super::{ItemUse, encoder};
use crate::resp::parts::Figures;
use crate::resp::{Flow, ShardService, Turn};
use headwater_command::items::{Counted, Fetch, Written};
use headwater_protocol::memcached::{KEY_BYTES_MAX, Meta};

/// The code word for what came of a write.
fn code(written: Written) -> &'static str {
    match written {
        Written::Done(_) => "HD",
        Written::Changed => "EX",
        Written::Missing => "NF",
        Written::Refused => "NS",
    }
}

impl ShardService {
    pub(super) fn meta_get(&mut self, meta: &Meta<'_>, work: &mut Turn<'_>) -> Flow {
        let read = meta.flags().and_then(|flags| meta.check_opaque().map(|()| flags));
        let flags = match read {
            Ok(flags) => flags,
            Err(line) => return self.figures.meta_refused(line, work),
        };
        let mut room = [0; KEY_BYTES_MAX];
        let key = meta.key(&flags, &mut room);
        let fetch = flags.fetch(key);
        if !flags.is_plain() && !self.has_room_for_item(key, 0) {
            return self.figures.meta_refused("SERVER_ERROR out of memory", work);
        }
        self.memcached.counts.metas += 1;
        let before = work.out.len();
        let mut out = encoder(work);
        let counts = &mut self.memcached.counts;
        let details = &mut self.memcached.details;
        let read = self.node.fetch(&fetch, |found| {
            details.count(key, ItemUse::Read { hit: found.is_some() });
            match found {
                Some(item) => {
                    counts.get_hits += 1;
                    out.meta_item(meta, &flags, item);
                }
                None => {
                    counts.get_misses += 1;
                    if !flags.quiet {
                        out.meta_code("EN", meta, &flags, None);
                    }
                }
            }
        });
        match read {
            Ok(()) => Flow::Next,
            Err(stop) => self.memcached_stopped(stop, false, before, work),
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
        let Some(value) = value else {
            return self.figures.meta_refused("CLIENT_ERROR bad data chunk", work);
        };
        self.memcached.counts.metas += 1;
        self.memcached.counts.sets += 1;
        if !self.has_room_for_item(key, value.len()) {
            return self.memcached_no_room(key, true, false, work);
        }
        match self.node.store(&store) {
            Ok(written) => {
                self.memcached.counts.stored(store.seen.is_some(), written);
                self.memcached.details.count(key, ItemUse::Write);
                let version = if let Written::Done(version) = written { version } else { 0 };
                if !(flags.quiet && code(written) == "HD") {
                    encoder(work).meta_code(code(written), meta, &flags, Some(version));
                }
                Flow::Next
            }
            Err(stop) => self.memcached_unanswered(stop, false, work),
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
        match self.node.remove(&flags.remove(key)) {
            Ok(written) => {
                self.memcached.counts.deleted(matches!(written, Written::Done(_)));
                self.memcached.details.count(key, ItemUse::Remove);
                if !(flags.quiet && code(written) == "HD") {
                    encoder(work).meta_code(code(written), meta, &flags, None);
                }
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
        if !self.has_room_for_item(count.key, 0) {
            return self.memcached_no_room(count.key, false, false, work);
        }
        match self.node.count(&count) {
            Ok(counted) => {
                self.memcached.counts.counted(count.down, &counted);
                let mut out = encoder(work);
                match counted {
                    Counted::Done { number, version, left_before, left, .. } => {
                        if !flags.quiet {
                            let left = (left_before, left);
                            out.meta_number(meta, &flags, (number, version), left);
                        }
                    }
                    Counted::NotNumber => out.line(NOT_NUMBER),
                    Counted::Changed => out.meta_code("EX", meta, &flags, None),
                    Counted::Missing => out.meta_code("NF", meta, &flags, None),
                }
                Flow::Next
            }
            Err(stop) => self.memcached_unanswered(stop, false, work),
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
        let fetch = Fetch { key, version: true, uses: true, untouched: true, ..Fetch::default() };
        let before = work.out.len();
        let mut out = encoder(work);
        let read = self.node.fetch(&fetch, |found| match found {
            Some(item) => out.meta_debug(meta, key.len() + item.value.len(), item),
            None => out.line("EN"),
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
