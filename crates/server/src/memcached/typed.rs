//! What is asked about items, done for the shard of a client: the answer is typed, and in nobody's words.

use super::items::{Undone, failure_line};
use super::take_back;
use crate::resp::{ShardService, Turn, encoder};
use headwater_command::Reply;
use headwater_command::items::ItemCommand;
use headwater_engine::{Stop, Ticket};
use headwater_router::AnswerWriter;
use headwater_router::items::{write_counted, write_item, write_written};

/// Refuses something with what a line says: a code word and a text.
fn refuse(line: &str, work: &mut Turn<'_>) {
    let (code, text) = line.split_once(' ').unwrap_or((line, ""));
    encoder(work).error(code, format_args!("{text}"));
}

impl ShardService {
    /// Does something about items, and answers.
    ///
    /// # Errors
    /// It must wait; nothing was answered.
    pub(super) fn carry_out_item(
        &mut self,
        command: &ItemCommand<'_>,
        work: &mut Turn<'_>,
    ) -> Result<(), Ticket> {
        self.look_if_due(work.peers.bytes());
        self.bound.gauge.begin_command();
        self.memcached.counts.requests += 1;
        if let Some(why) = self.stores.write_refusal()
            && command.writes()
            && !(command.removes() && self.stores.takes_removals())
        {
            self.figures.stats.errors += 1;
            encoder(work).error("SERVER_ERROR", format_args!("{why}"));
            return Ok(());
        }
        let before = work.out.len();
        // What functions call is not divided.
        let is_divided = !matches!(command, ItemCommand::Call { .. });
        if is_divided {
            self.node.engine_mut().begin_slice();
        }
        let done = self.do_item(command, work);
        if is_divided {
            self.node.engine_mut().end_slice();
        }
        let Err(undone) = done else { return Ok(()) };
        take_back(work, before);
        match undone {
            Undone::Stopped(Stop::Wait(ticket)) => return Err(ticket),
            Undone::Refused(line) => refuse(&line, work),
            Undone::Stopped(Stop::Failed(error)) => {
                self.figures.stats.errors += 1;
                match failure_line(&error) {
                    Some(line) => refuse(line, work),
                    None => encoder(work).error(error.code(), format_args!("{error}")),
                }
            }
        }
        Ok(())
    }

    fn do_item(&mut self, command: &ItemCommand<'_>, work: &mut Turn<'_>) -> Result<(), Undone> {
        match command {
            ItemCommand::Get { keys, versions, expiry } => {
                encoder(work).array(keys.len());
                self.get_items(keys.iter().copied(), *versions, *expiry, work)?;
            }
            ItemCommand::Fetch { fetch, value } => {
                let mut out = encoder(work);
                self.fetch_item(fetch, |found| match found {
                    Some(item) => write_item(item, *value, &mut out),
                    None => out.null(),
                })?;
            }
            ItemCommand::Examine { key } => {
                let mut out = encoder(work);
                self.examine_item(key, |found| match found {
                    Some(item) => write_item(item, false, &mut out),
                    None => out.null(),
                })?;
            }
            ItemCommand::Store { store, or_forget } => {
                let written = self.store_item(store, *or_forget)?;
                write_written(written, &mut encoder(work));
            }
            ItemCommand::Remove(remove) => {
                let written = self.remove_item(remove)?;
                write_written(written, &mut encoder(work));
            }
            ItemCommand::Count(count) => {
                let counted = self.count_item(count)?;
                write_counted(counted, &mut encoder(work));
            }
            ItemCommand::Touch { key, expiry } => {
                let there = self.touch_item(key, *expiry)?;
                encoder(work).boolean(there);
            }
            ItemCommand::Call { key, function, param, update, reply } => {
                let mut out = encoder(work);
                let called = (*key, *function, *param);
                self.call_next_to(called, (*update, *reply), |answer| match answer {
                    Some(bytes) => out.bulk(bytes),
                    None => out.null(),
                })?;
            }
            ItemCommand::Register { name, file, export } => {
                self.register_module((name, file, export), work)?;
                encoder(work).ok();
            }
            ItemCommand::Flush { when } => {
                self.memcached_flush_all(*when);
                encoder(work).ok();
            }
            ItemCommand::Statistics(which) => {
                let mut out = core::mem::take(work.out);
                self.statistics(*which, work, &mut AnswerWriter::new(&mut out));
                *work.out = out;
            }
        }
        Ok(())
    }
}
