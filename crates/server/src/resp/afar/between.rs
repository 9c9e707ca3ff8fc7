//! What shards ask one another that no client can ask: the steps of commands over several shards
//! ([`crate::shards::Program`]), and whether watched keys have changed.
//!
//! They are sent as requests of the client that is led, so that they wait for data, are gated until writes are safe, and
//! tell positions, as its other requests do. Their words are no commands: from a client they are unknown.

use crate::resp::bound::KEY_BYTES;
use crate::resp::session::{Afar, Waiting};
use crate::resp::{Flow, Resp, Turn, encoder};
use crate::shards::{is_between_shards, words};
use headwater_base::Millis;
use headwater_command::{Args, Command, Data, Joins, OwnedArgs, Reply, Tables, number};
use headwater_engine::{EngineError, Stop};
use headwater_node::{Carried, table_options};
use headwater_protocol::resp::{decode, find};

impl Resp {
    /// Executes what another shard asks, or this one of itself. `None`: it is not of that kind.
    #[cold]
    pub(in crate::resp) fn between_shards(
        &mut self,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        if !matches!(work.connection.session.afar, Afar::Back(_)) || !is_between_shards(args) {
            return None;
        }
        if let Some(key) = args.get(1)
            && self.node.engine().may_derive(key)
            && let Some(shards) = &mut self.shards
            && let Some(wait) =
                shards.peers.wait(self.node.engine(), &work.connection.session.positions)
        {
            shards.waits.insert(wait, work.connection.id);
            let waiting = Waiting::Shards(OwnedArgs::of(args), wait, None);
            work.connection.session.waiting = Some(Box::new(waiting));
            return Some(Flow::Parked);
        }
        let done = match args.get(0)? {
            words::CARRY => self.carry(args.get(1)?, args.get(2)? == b"1", work),
            words::PUT => self.put_carried(args, work),
            words::TAKEN => self.look_whether_taken(args.get(1)?, args.get(2)?, work),
            words::CHANGED => self.have_watched_changed(work),
            words::MAY => self.look_whether_declared(args.from(1), work),
            words::MAY_NOT => {
                let name = String::from_utf8_lossy(args.get(1)?);
                self.node.engine_mut().join_unprepare(&name);
                encoder(work).ok();
                Ok(())
            }
            _ => return None,
        };
        Some(match done {
            Ok(()) => Flow::Next,
            Err(Stop::Wait(ticket)) => self.park(ticket, args, work),
            Err(Stop::Failed(error)) => {
                self.stats.errors += 1;
                encoder(work).error(error.code(), format_args!("{error}"));
                Flow::Next
            }
        })
    }

    fn carry(&mut self, key: &[u8], leaves: bool, work: &mut Turn<'_>) -> Result<(), Stop> {
        let Some(Carried { value, expires, flags }) = self.node.carried(key, leaves)? else {
            encoder(work).null();
            return Ok(());
        };
        let mut out = encoder(work);
        out.array(3);
        out.bulk(&value);
        out.integer(expires.map_or(-1, |at| i64::try_from(at.0).unwrap_or(i64::MAX)));
        out.integer(i64::from(flags));
        Ok(())
    }

    fn put_carried(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Result<(), Stop> {
        let word = |at: usize| args.get(at).unwrap_or_default();
        let (key, value) = (word(1), word(2));
        let expires = number::parse_u64(word(3)).map(Millis);
        let flags = number::parse_u64(word(4)).and_then(|flags| u32::try_from(flags).ok());
        let carried = Carried { value: value.to_vec(), expires, flags: flags.unwrap_or(0) };
        self.look_if_due(work.peers.bytes());
        self.gauge.begin_command();
        if !self.has_room_to_write(key.len() + KEY_BYTES, value.len()) {
            return Err(EngineError::OutOfMemory.into());
        }
        if !self.node.put_carried(key, &carried, word(5) == b"1")? {
            encoder(work).integer(0);
            return Ok(());
        }
        if let Some(shards) = &mut self.shards {
            let position = shards.peers.stamp();
            work.connection.session.positions.reach(shards.me, position);
        }
        // Whoever tracks keys takes it for a SET of the client's.
        let set: OwnedArgs = [b"SET", key, value].into_iter().collect();
        if self.tracking.is_on()
            && let Ok(spec) = find(set.args())
        {
            self.track(spec, set.args(), true, work);
        }
        encoder(work).ok();
        Ok(())
    }

    fn look_whether_taken(
        &mut self,
        key: &[u8],
        bytes: &[u8],
        work: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        let bytes = number::parse_u64(bytes).unwrap_or(0) as usize;
        let taken = self.node.is_taken(key, bytes)?;
        if !taken && !self.has_room_to_write(key.len() + KEY_BYTES, bytes) {
            return Err(EngineError::OutOfMemory.into());
        }
        encoder(work).integer(i64::from(taken));
        Ok(())
    }

    /// Whether a request that declares something would be executed; a join is as good as installed then.
    fn look_whether_declared(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Result<(), Stop> {
        // It was found, and read, where the client is.
        let Ok(spec) = find(args) else { return Ok(()) };
        let Ok(command) = decode(spec, args) else { return Ok(()) };
        if !self.admits(spec, args, &command, work) || !self.may_write(spec, work) {
            return Ok(());
        }
        let engine = self.node.engine_mut();
        match command {
            Command::Data(Data::Joins(Joins::Add { name, spec, replace })) => {
                engine.know_outputs(spec)?;
                engine.join_prepare(name, spec, replace)?;
            }
            Command::Data(Data::Flows(flows)) => self.node.may_declare_flow(&flows)?,
            Command::Data(Data::Tables(set @ Tables::Set { name, .. })) => {
                engine.check_table(name, &table_options(&set))?;
                // Its keys get other homes, which would not know what is still to be done.
                let is_of = |key: &[u8]| {
                    key.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&b'|'))
                };
                if self.node.flows_pending(&is_of) {
                    let text = "flows have tasks of the table: try again when they are done";
                    let text = String::from(text);
                    return Err(EngineError::Busy { text, may_wait: false }.into());
                }
            }
            _ => {}
        }
        encoder(work).ok();
        Ok(())
    }

    /// Whether a key that is watched for a client has changed; its watches end.
    fn have_watched_changed(&mut self, work: &mut Turn<'_>) -> Result<(), Stop> {
        let mut changed = false;
        for (key, count) in &work.connection.session.watched {
            changed |= self.node.engine_mut().watched(key)? != *count;
        }
        self.forget_watches(&mut work.connection.session);
        encoder(work).integer(i64::from(changed));
        Ok(())
    }
}
