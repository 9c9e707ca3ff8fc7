//! Commands in which sources have a part, where there are several shards.
//!
//! The sources are the process's, so what is done once (declaring a table, a write of keys of several homes) is done by the
//! shard of the client. Shards in processes of their own have sources of their own, and each declares tables at its own. Then each shard does its part: it takes the table over, or waits until it has applied what the source
//! has told up to a position. From the answers the session knows where every shard stood then, and what it reads
//! next waits until that has come to wherever it is read, as it waits for the session's own writes.

use super::{pending_of, wait_for_answers};
use crate::resp::declared::write_warnings;
use crate::resp::session::Answering;
use crate::resp::{Flow, ShardService, Turn, encoder};
use crate::sources::Answer;
use headwater_base::Shard;
use headwater_command::{
    Args, Command, Data, Keys, Mapping, OwnedArgs, Ranges, Reply, Strings, Tables,
};
use headwater_engine::TableOptions;
use headwater_node::table_options;
use headwater_protocol::resp::find;
use headwater_router::{Ask, Kind, Merge, Scattered, answer_of};

impl ShardService {
    /// Executes a command in which sources have a part at all shards. `None`: it goes where its keys live.
    pub(super) fn sourced_remote(
        &mut self,
        command: &Command<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let Command::Data(data) = command else { return None };
        let done = match data {
            Data::Tables(set @ Tables::Set { name, source: Some((source, mapping)), .. })
                if !source.is_empty() =>
            {
                if self.others.are_apart() {
                    // Each has sources of its own, and declares it there as a single one does.
                    self.have_declared_by_each(name, Merge::Same, args, work);
                    return Some(wait_for_answers(None, work));
                }
                let options = TableOptions { keep: None, ..table_options(set) };
                self.declare_everywhere(name, &options, mapping, args, work)
            }
            Data::Ranges(Ranges::Range { read, .. } | Ranges::Prefix { read, .. }) => {
                let at = read.at.filter(|at| !self.is_of_shards(at))?;
                self.read_everywhere_at(at, args, work)
            }
            Data::Strings(Strings::MSet { .. }) | Data::Keys(Keys::Del { .. }) => {
                if !self.writes_through_several(data) {
                    return None;
                }
                self.write_through_several(data, args, work)
            }
            _ => return None,
        };
        Some(done.unwrap_or_else(|text| {
            encoder(work).error("ERR", format_args!("{text}"));
            Flow::Next
        }))
    }

    /// TABLE.SET with a source: declared there once, then every shard has it.
    fn declare_everywhere(
        &mut self,
        name: &[u8],
        options: &TableOptions,
        mapping: &Mapping<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Result<Flow, String> {
        let source = options.source.as_deref().unwrap_or_default();
        let Some(Answer::Declared(answer)) = self.stores.hub.take_answer(work.connection.id) else {
            if work.connection.session.expects() {
                return Ok(wait_for_answers(Some(args), work));
            }
            return self.begin_to_declare(name, options, mapping, args, work);
        };
        let warnings = answer.map_err(|text| format!("source '{source}': {text}"))?;
        let reply = answer_of(|out| write_warnings(&warnings, out));
        self.have_declared_by_each(name, Merge::Given(reply), args, work);
        Ok(wait_for_answers(None, work))
    }

    /// Has every shard execute a TABLE.SET with a source, and take it back where one refuses it: for keys of the table that it has, say.
    fn have_declared_by_each(
        &mut self,
        name: &[u8],
        merge: Merge,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) {
        let undo = self.source_of(name).is_none().then(|| {
            let words: [&[u8]; 4] = [b"TABLE.SET", name, b"SOURCE", b""];
            words.into_iter().collect::<OwnedArgs>()
        });
        self.ask_each(merge, args, undo, work);
    }

    /// A range as of a position of a source: once all shards have come so far, it is read as any range is.
    fn read_everywhere_at(
        &mut self,
        at: &[u8],
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Result<Flow, String> {
        let session = &mut work.connection.session;
        if session.expects() {
            return Ok(wait_for_answers(Some(args), work));
        }
        if core::mem::take(&mut session.reached) {
            if session.pending().is_some_and(|pending| core::mem::take(&mut pending.refused)) {
                // The refusal was the answer.
                return Ok(Flow::Next);
            }
            let rest = without_at(args);
            return match find(rest.args()) {
                Ok(spec) => Ok(self.execute(spec, rest.args(), work)),
                Err(_) => unreachable!("it is a command without its last option"),
            };
        }
        // What is no position is refused here.
        self.stores.hub.name_position(work.connection.id, at)?;
        self.stores.hub.forget_named(work.connection.id);
        self.reach_everywhere(Vec::new(), at, work);
        work.connection.session.reached = true;
        Ok(wait_for_answers(Some(args), work))
    }

    /// Whether a command writes keys of several homes, some of which go to a source.
    fn writes_through_several(&self, data: &Data<'_>) -> bool {
        let Some(placement) = self.node.engine().placement() else { return false };
        let of = |keys: &mut dyn Iterator<Item = &[u8]>| {
            let (mut first, mut several, mut through) = (None, false, false);
            for key in keys {
                several |= *first.get_or_insert(placement.home(key)) != placement.home(key);
                through |= self.stores.hub.through(key).is_some();
            }
            several && through
        };
        match data {
            _ if !self.stores.hub.has_through() => false,
            Data::Strings(Strings::MSet { pairs }) => of(&mut pairs.pairs().map(|(key, _)| key)),
            Data::Keys(Keys::Del { keys }) => of(&mut keys.iter()),
            _ => false,
        }
    }

    /// Writes of keys of several homes to one source: one transaction there, which is seen everywhere when it is answered.
    fn write_through_several(
        &mut self,
        data: &Data<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Result<Flow, String> {
        let (source, changes) = self.changes_through(data)?;
        let Some(Answer::Written(answer)) = self.stores.hub.take_answer(work.connection.id) else {
            if work.connection.session.expects() {
                return Ok(wait_for_answers(Some(args), work));
            }
            if let Some(at) = self.others.shards.as_ref().and_then(|it| it.outbox.lost_shard()) {
                // All of them are to have the change before it is answered.
                let at = at.0;
                encoder(work).error(
                    "CLUSTERDOWN",
                    format_args!(
                        "shard {at} has no owner that can be reached: nothing was executed"
                    ),
                );
                return Ok(Flow::Next);
            }
            self.stores.hub.write(&source, work.connection.id, self.patience(), &changes)?;
            return Ok(self.await_answer(args, work));
        };
        let written = answer.map_err(|text| format!("source '{source}': {text}"))?;
        let reply = answer_of(|out| match data {
            Data::Keys(_) => out.integer(written.removed as i64),
            _ => out.ok(),
        });
        let position = self.stores.hub.show(&source, written.position);
        self.reach_everywhere(reply, position.as_bytes(), work);
        Ok(wait_for_answers(None, work))
    }

    /// Has all shards wait until they have applied what a source has told up to a position; what is answered then.
    fn reach_everywhere(&mut self, reply: Vec<u8>, at: &[u8], work: &mut Turn<'_>) {
        let words: [&[u8]; 6] = [b"RANGE", b"a", b"a", b"COUNT", b"AT", at];
        let nothing: OwnedArgs = words.into_iter().collect();
        self.ask_each(Merge::Given(reply), nothing.args(), None, work);
    }

    /// Has every shard execute a request, this one included, by message.
    fn ask_each(
        &mut self,
        merge: Merge,
        args: Args<'_>,
        undo: Option<OwnedArgs>,
        work: &mut Turn<'_>,
    ) {
        let Some(shards) = &self.others.shards else { return };
        let Ok(spec) = find(args) else { return };
        let count = shards.outbox.shards();
        let session = &mut work.connection.session;
        let mut scattered = Scattered::new(merge, Kind::Plain);
        scattered.silent = session.answering != Answering::On;
        scattered.undo = undo;
        let pending = pending_of(session, shards);
        pending.refused = false;
        pending.expect_scattered(scattered);
        for at in (0..count).map(Shard) {
            self.ask_part(at, Kind::Plain, &Ask::Command(spec, args), work);
        }
    }
}

/// A RANGE or PREFIX without its AT and the position.
fn without_at(args: Args<'_>) -> OwnedArgs {
    let first = if args.at(0).eq_ignore_ascii_case(b"prefix") { 2 } else { 3 };
    let is_at = |at: &usize| args.at(*at).eq_ignore_ascii_case(b"at");
    let at = (first..args.len()).find(is_at).unwrap_or(args.len());
    let words = args.iter().enumerate();
    words.filter(|(place, _)| *place != at && *place != at + 1).map(|(_, word)| word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_goes_on_without_its_position() {
        let shown = |words: &[&str]| -> Vec<String> {
            let args: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
            let rest = without_at(args.args());
            rest.args().iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect()
        };
        assert_eq!(shown(&["PREFIX", "at", "AT", "db:7", "KEYS"]), ["PREFIX", "at", "KEYS"]);
        let range = ["range", "at", "at", "LIMIT", "7", "at", "db:7", "REV"];
        assert_eq!(shown(&range), ["range", "at", "at", "LIMIT", "7", "REV"]);
    }
}
