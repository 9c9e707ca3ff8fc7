//! Commands about sources of base data, and what sources have to say.
//!
//! A session that asks a source something is parked as one that waits for data; its request is
//! run again when the answer is there.

use super::entrance::terms;
use super::loads::{Brought, PAIR_BYTES};
use super::session::{Session, Waiting};
use super::{Flow, ShardService, Turn, encoder};
use crate::connection::ConnectionId;
use crate::connections::Connections;
use crate::log::event;
use crate::resp::parts::Stores;
use crate::resp::parts::Waits;
use crate::sources::{Answer, Asked, Hub, Tag, Told};
use headwater_base::Shard;
use headwater_base::source::{Change, Health, News, Position, Written};
use headwater_command::{
    Args, Data, Keys, OwnedArgs, Ranges, Reply, SetCondition, SetExpiry, Sources, Spec, Strings,
    Tables,
};
use headwater_config::{Config, ConfigError, Table};
use headwater_engine::{Engine, EngineError, Stop, TableOptions};
use headwater_node::table_options;

/// What the settings declare of a table.
pub(super) fn declared_options(table: &Table) -> TableOptions {
    TableOptions {
        boundary: table.boundary,
        source: table.source.clone(),
        evict: table.evict,
        keep: table.keep,
    }
}

/// Adds the sources and declares the tables of `config`.
///
/// # Errors
/// A source or a table cannot be accepted.
pub(super) fn begin(
    config: &Config,
    hub: &mut Hub,
    engine: &mut Engine,
) -> Result<(), ConfigError> {
    // The first shard of the process does what is done once for all of it.
    let is_first = hub.is_first();
    // Before they connect: what a server sends is bounded by it.
    hub.set_memory_bound(config.memory.bound());
    for source in config.source_list.iter().filter(|_| is_first) {
        let allowed = source.by_client.then(|| config.connect.allowed()).transpose()?;
        hub.add(&source.name, &source.kind, &source.url, &terms(config, allowed))
            .map_err(|error| ConfigError(format!("source '{}': {error}", source.name)))?;
    }
    for table in &config.tables {
        let refuse = |error: String| ConfigError(format!("table '{}': {error}", table.name));
        engine
            .table_set(table.name.as_bytes(), &declared_options(table))
            .map_err(|error| refuse(error.to_string()))?;
        let Some(source) = &table.source else { continue };
        let mut words = vec![(String::from("key"), table.key.join(", "))];
        words.extend(table.table.iter().map(|name| (String::from("table"), name.clone())));
        words.extend(table.value.iter().map(|value| (String::from("value"), value.clone())));
        words.extend(table.filter.iter().map(|filter| (String::from("where"), filter.clone())));
        let prefix = format!("{}|", table.name).into_bytes();
        hub.enter(source, &prefix).map_err(refuse)?;
        if is_first {
            hub.declare(source, None, 0, &prefix, &words).map_err(refuse)?;
        }
        hub.set_through(prefix, table.write_through.then_some(source));
    }
    Ok(())
}

impl ShardService {
    /// Until when something that is asked now may be waited for.
    pub(super) fn patience(&self) -> u64 {
        self.time.uptime + self.source_patience()
    }

    /// How long a source may take, in milliseconds.
    pub(super) fn source_patience(&self) -> u64 {
        self.settings.config.sources.source_milliseconds_max
    }

    /// Takes what sources have told since the last turn, and gives up what is late.
    pub(super) fn take_news(&mut self, connections: &mut Connections<Session>) {
        for (tag, told) in self.stores.hub.inbox.take() {
            self.stores.hub.inbox.memory().end_answer(&told);
            if let Told::Taking { asked } = &told {
                asked.answer(self.make_room_beside());
                continue;
            }
            let source = &*tag.name;
            match self.stores.hub.recognize(&tag) {
                Some(true) => {
                    self.settle_late_loads(source);
                    self.node.engine_mut().source_forget(source);
                }
                Some(false) => {}
                None => continue,
            }
            let news = match told {
                Told::News(News::Changed { position, changes }) => {
                    self.take_changes_of(&tag, position, &changes);
                    continue;
                }
                Told::Changed { position, changes } => {
                    self.take_changes_of(&tag, position, &changes);
                    continue;
                }
                Told::News(news) => news,
                Told::Taking { .. } => continue,
            };
            let session = self.stores.hub.settle(source, &news);
            if let News::Written { request, answer } = &news
                && self.flow_wrote(*request, answer.clone().map(drop))
            {
                continue;
            }
            if matches!(news, News::Reset { .. }) {
                self.settle_late_loads(source);
            }
            let engine = self.node.engine_mut();
            match news {
                News::Loaded { fetch, answer } => {
                    self.take_loaded(source, fetch, Brought::Answer(answer));
                }
                News::LoadedPart { fetch, part } => {
                    self.take_loaded(source, fetch, Brought::Part(part));
                }
                News::Reset { range } => engine.source_reset(source, &range),
                News::Health(health) => engine.source_health(source, health),
                News::Written { answer: Ok(Written { position, .. }), .. } => {
                    // Whoever wrote is to see it: the answer waits for the change to come back.
                    if let (Some(id), Err(Stop::Wait(ticket))) =
                        (session, engine.await_position(source, position))
                    {
                        self.waits.tickets.insert(ticket, id);
                        self.stores.hub.expect_reach(source, id, self.patience());
                        continue;
                    }
                }
                News::Changed { .. }
                | News::Declared { .. }
                | News::Position { .. }
                | News::Written { .. } => {}
            }
            if let Some(id) = session {
                connections.wake(id);
            }
        }
        for late in self.stores.hub.take_late(self.time.uptime) {
            let most = self.settings.config.sources.source_milliseconds_max;
            let message = format!("no answer within {most} ms (source-milliseconds-max)");
            match late.asked {
                Asked::Load(fetch) => self.node.engine_mut().loaded(fetch, Err(message)),
                Asked::Request(request) => {
                    if self.flow_wrote(request, Err(message.clone())) {
                        continue;
                    }
                    if let Some(id) = self.stores.hub.session_of(request) {
                        self.waits.fail(&late.source, id, message, connections);
                    }
                }
                Asked::Reach(id) => {
                    let message = format!(
                        "the position is not reached within {most} ms (source-milliseconds-max)"
                    );
                    self.waits.tickets.retain(|ticket, waiting| {
                        let waits = *waiting == id;
                        if waits {
                            self.node.engine_mut().forget_position(*ticket);
                        }
                        !waits
                    });
                    self.stores.hub.take_answer(id);
                    self.waits.fail(&late.source, id, message, connections);
                }
            }
        }
    }

    /// A transaction at a source.
    fn take_changes_of(&mut self, tag: &Tag, position: Position, changes: &[Change]) {
        let engine = self.node.engine_mut();
        let own = changes.iter().filter(|change| engine.owns(&change.key));
        let bytes = own.map(bytes_of).sum();
        engine.make_room(bytes);
        engine.changed(&tag.name, position, changes);
        let me = self.others.shards.as_ref().map_or(Shard(0), |shards| shards.me);
        tag.reach(me, position);
    }

    /// Whether sources have a part in a command about data.
    #[inline]
    pub(super) fn concerns_sources(&self, data: &Data<'_>) -> bool {
        match data {
            Data::Tables(Tables::Set { source: Some(_), .. }) => true,
            Data::Ranges(Ranges::Range { read, .. } | Ranges::Prefix { read, .. }) => {
                read.at.is_some_and(|at| !self.is_of_shards(at))
            }
            Data::Strings(
                Strings::Set { key, .. } | Strings::SetNx { key, .. } | Strings::GetSet { key, .. },
            ) => self.stores.hub.through(key).is_some(),
            Data::Strings(Strings::MSet { pairs }) => {
                pairs.pairs().any(|(key, _)| self.stores.hub.through(key).is_some())
            }
            Data::Keys(Keys::Del { keys }) => {
                keys.iter().any(|key| self.stores.hub.through(key).is_some())
            }
            _ => false,
        }
    }

    /// Executes a command about data in which sources have a part.
    #[cold]
    pub(super) fn execute_sourced(
        &mut self,
        spec: &'static Spec,
        data: &Data<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        let done = match data {
            Data::Tables(set @ Tables::Set { name, source: Some((_, mapping)), .. }) => {
                let options = TableOptions { keep: None, ..table_options(set) };
                self.declare(name, &options, mapping, args, work)
            }
            Data::Ranges(Ranges::Range { read, .. } | Ranges::Prefix { read, .. }) => {
                let at = read.at.unwrap_or_default();
                let done = match self.reach(at, args, work) {
                    Ok(None) => {
                        if let Some(shards) = &mut self.others.shards {
                            // Who has asked knows from when on others show what came up to here.
                            let position = shards.peers.stamp();
                            work.connection.session.positions.reach(shards.me, position);
                        }
                        let outcome = self.execute_data(spec, data, work);
                        Ok(self.go_on_with(outcome, data, args, work))
                    }
                    Ok(Some(flow)) => Ok(flow),
                    Err(error) => Err(error),
                };
                if !matches!(done, Ok(Flow::Parked)) || work.connection.session.is_sending() {
                    self.stores.hub.forget_named(work.connection.id);
                }
                done
            }
            _ => self.write_through(data, args, work),
        };
        done.unwrap_or_else(|text| {
            encoder(work).error("ERR", format_args!("{text}"));
            Flow::Next
        })
    }

    /// Lets the session wait for an answer of a source.
    pub(super) fn await_answer(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Flow {
        work.connection.session.waiting = Some(Box::new(Waiting::Request(OwnedArgs::of(args))));
        Flow::Parked
    }

    /// Waits for a position; `None` where it is reached.
    fn reach(
        &mut self,
        at: &[u8],
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Result<Option<Flow>, String> {
        let (source, position) = self.stores.hub.name_position(work.connection.id, at)?;
        if self.stores.hub.is_another(&source) {
            self.node.engine_mut().source_forget(&source);
        }
        match self.node.engine_mut().await_position(&source, position) {
            Ok(()) => {
                self.stores.hub.take_answer(work.connection.id);
                Ok(None)
            }
            Err(Stop::Failed(error)) => Err(error.to_string()),
            Err(Stop::Wait(ticket)) => {
                self.stores.hub.expect_reach(&source, work.connection.id, self.patience());
                Ok(Some(self.park(ticket, args, work)))
            }
        }
    }

    /// A write to a table whose writes go to its source.
    fn write_through(
        &mut self,
        data: &Data<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Result<Flow, String> {
        let id = work.connection.id;
        let (source, changes) = self.changes_through(data)?;
        let Some(Answer::Written(answer)) = self.stores.hub.take_answer(id) else {
            if self.waits.executing_queue {
                return Err(format!(
                    "writes through to source '{source}' cannot be in a transaction"
                ));
            }
            self.stores.hub.write(&source, id, self.patience(), &changes)?;
            return Ok(self.await_answer(args, work));
        };
        let written = answer.map_err(|text| format!("source '{source}': {text}"))?;
        match data {
            Data::Keys(_) => encoder(work).integer(written.removed as i64),
            _ => encoder(work).ok(),
        }
        Ok(Flow::Next)
    }

    /// What a command changes at a source, and which one that is.
    pub(super) fn changes_through(&self, data: &Data<'_>) -> Result<(String, Vec<Change>), String> {
        let changes = changes_of(data)?;
        let mut names = changes.iter().map(|change| self.stores.hub.through(&change.key));
        let source = names.next().flatten().unwrap_or_default().to_owned();
        if source.is_empty() || names.any(|name| name != Some(&source)) {
            return Err(String::from(
                "a command writes tables of one source, or none: one of these keys is elsewhere",
            ));
        }
        for change in &changes {
            let length = change.value.as_ref().map_or(0, Vec::len);
            let engine = self.node.engine();
            engine.check_lengths(&change.key, length).map_err(|error| error.to_string())?;
        }
        Ok((source, changes))
    }

    /// SOURCE.ADD and its kin.
    pub(super) fn sources(
        &mut self,
        command: &Sources<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        let done = match *command {
            Sources::Add { name, kind, url } => {
                let terms = self.terms_of_clients();
                self.stores.hub.add(name, kind, url, &terms).map(|()| {
                    event!(
                        info,
                        "sources",
                        "source_added",
                        source = name,
                        kind,
                        "a source was added"
                    );
                    encoder(work).ok();
                    Flow::Next
                })
            }
            Sources::Drop { name } => self.stores.hub.drop_source(name).map(|()| {
                event!(info, "sources", "source_dropped", source = name, "a source was dropped");
                encoder(work).ok();
                Flow::Next
            }),
            Sources::List => {
                self.stores.list_sources(work);
                Ok(Flow::Next)
            }
            Sources::Info { name } => self.source_info(name, work).map(|()| Flow::Next),
            Sources::Position { name } => self.source_position(name, args, work),
            Sources::Check { name, mapping } => self.source_check(name, &mapping, args, work),
        };
        done.unwrap_or_else(|text| {
            encoder(work).error("ERR", format_args!("{text}"));
            Flow::Next
        })
    }

    /// What is known of a source, as names and values.
    pub(super) fn source_facts(&self, name: &str) -> Option<Vec<(String, String)>> {
        let source = self.stores.hub.list().into_iter().find(|source| source.name == name)?;
        let mut facts: Vec<(String, String)> = Vec::new();
        let mut add = |title: &str, text: String| facts.push((title.to_owned(), text));
        add("name", source.name);
        add("kind", source.kind);
        add("url", source.url);
        add("state", state(&source.health).to_owned());
        if let Health::Down(reason) = source.health {
            add("reason", reason);
        }
        let reports = self.node.engine().sources();
        let report = reports.into_iter().find(|report| report.name == name).unwrap_or_default();
        add("ranges-loaded", report.loaded.to_string());
        add("ranges-loading", report.loading.to_string());
        add("keys", report.keys.to_string());
        for (title, text) in self.stores.hub.facts(name) {
            add(title, text);
        }
        Some(facts)
    }

    fn source_info(&mut self, name: &str, work: &mut Turn<'_>) -> Result<(), String> {
        let facts =
            self.source_facts(name).ok_or_else(|| format!("no source is named '{name}'"))?;
        let mut reply = encoder(work);
        reply.map(facts.len());
        for (title, text) in facts {
            reply.bulk(title.as_bytes());
            reply.bulk(text.as_bytes());
        }
        Ok(())
    }

    fn source_position(
        &mut self,
        name: &str,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Result<Flow, String> {
        let id = work.connection.id;
        let Some(Answer::Position(answer)) = self.stores.hub.take_answer(id) else {
            self.stores.hub.position(name, id, self.patience())?;
            return Ok(self.await_answer(args, work));
        };
        let position = answer.map_err(|text| format!("source '{name}': {text}"))?;
        let text = self.stores.hub.show(name, position);
        encoder(work).bulk(text.as_bytes());
        Ok(Flow::Next)
    }
}

impl Waits {
    fn fail(
        &mut self,
        source: &str,
        id: ConnectionId,
        message: String,
        connections: &mut Connections<Session>,
    ) {
        let error = EngineError::SourceFailed { source: source.to_owned(), message };
        self.failures.insert(id, error);
        connections.wake(id);
    }
}

impl Stores {
    fn list_sources(&mut self, work: &mut Turn<'_>) {
        let sources = self.hub.list();
        let mut reply = encoder(work);
        reply.array(sources.len());
        for source in &sources {
            reply.map(4);
            let pairs = [
                ("name", &*source.name),
                ("kind", &source.kind),
                ("url", &source.url),
                ("state", state(&source.health)),
            ];
            for (title, text) in pairs {
                reply.bulk(title.as_bytes());
                reply.bulk(text.as_bytes());
            }
        }
    }
}

fn state(health: &Health) -> &'static str {
    match health {
        Health::Up => "up",
        Health::Down(_) => "down",
    }
}

fn bytes_of(change: &Change) -> usize {
    let value = change.value.as_ref().map_or(0, |value| value.len() + PAIR_BYTES);
    change.key.len() + value
}

/// What a command that writes through changes.
fn changes_of(data: &Data<'_>) -> Result<Vec<Change>, String> {
    let put = |key: &[u8], value: &[u8]| Change { key: key.to_vec(), value: Some(value.to_vec()) };
    match data {
        Data::Strings(Strings::Set {
            key,
            value,
            condition: SetCondition::Always,
            expiry: SetExpiry::Never,
            get: false,
        }) => Ok(vec![put(key, value)]),
        Data::Strings(Strings::MSet { pairs }) => {
            Ok(pairs.pairs().map(|(key, value)| put(key, value)).collect())
        }
        Data::Keys(Keys::Del { keys }) => {
            Ok(keys.iter().map(|key| Change { key: key.to_vec(), value: None }).collect())
        }
        _ => {
            Err(String::from("a table with WRITE THROUGH takes SET without options, MSET and DEL"))
        }
    }
}
