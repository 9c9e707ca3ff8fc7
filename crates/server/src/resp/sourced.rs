//! Commands about sources of base data, and what sources have to say.
//!
//! A session that asks a source something is parked as one that waits for data; its request is
//! run again when the answer is there.

use super::session::{Session, Waiting};
use super::{Flow, Resp, Turn, encoder};
use crate::config::{Config, ConfigError};
use crate::connection::ConnectionId;
use crate::connections::Connections;
use crate::sources::{Answer, Asked, Hub};
use headwater_base::KeyRange;
use headwater_base::source::{Change, FetchId, Health, Loaded, News};
use headwater_command::{
    Args, Data, Keys, Mapping, OwnedArgs, Ranges, Reply, SetCondition, SetExpiry, Sources, Spec,
    Strings, Tables,
};
use headwater_engine::{Engine, EngineError, Stop, TableOptions};
use headwater_node::Outcome;

/// Adds the sources and declares the tables of `config`.
///
/// # Errors
/// A source or a table cannot be accepted.
pub(super) fn begin(
    config: &Config,
    hub: &mut Hub,
    engine: &mut Engine,
) -> Result<(), ConfigError> {
    for source in &config.source_list {
        hub.add(&source.name, &source.kind, &source.url)
            .map_err(|error| ConfigError(format!("source '{}': {error}", source.name)))?;
    }
    for table in &config.tables {
        let refuse = |error: String| ConfigError(format!("table '{}': {error}", table.name));
        let options = TableOptions {
            boundary: Some(table.boundary),
            source: table.source.clone(),
            evict: table.evict,
            keep: table.keep,
        };
        engine
            .table_set(table.name.as_bytes(), &options)
            .map_err(|error| refuse(error.to_string()))?;
        let Some(source) = &table.source else { continue };
        let mut words = vec![(String::from("key"), table.key.join(", "))];
        words.extend(table.table.iter().map(|name| (String::from("table"), name.clone())));
        words.extend(table.value.iter().map(|value| (String::from("value"), value.clone())));
        let prefix = format!("{}|", table.name).into_bytes();
        hub.declare(source, None, 0, &prefix, &words).map_err(refuse)?;
        if table.write_through {
            hub.set_through(prefix, source);
        }
    }
    Ok(())
}

/// What a pair takes besides its bytes: its place in a page, and in indexes.
const PAIR_BYTES: usize = 64;

impl Resp {
    /// Until when something that is asked now may be waited for.
    pub(super) fn patience(&self) -> u64 {
        self.time.uptime + self.config.sources.source_milliseconds_max
    }

    /// Passes a load on to its source.
    pub(super) fn ask_load(&mut self, fetch: FetchId, source: &str, range: &KeyRange) {
        if let Err(text) = self.hub.load(source, fetch, range, self.patience()) {
            self.node.engine_mut().loaded(fetch, Err(text));
        }
    }

    /// Takes what sources have told since the last turn, and gives up what is late.
    pub(super) fn take_news(&mut self, connections: &mut Connections<Session>) {
        for (source, news) in self.hub.inbox.take() {
            let session = self.hub.settle(&source, &news);
            if let News::Written { request, answer } = &news
                && self.flow_wrote(*request, answer.clone().map(drop))
            {
                continue;
            }
            let engine = self.node.engine_mut();
            match news {
                News::Loaded { fetch, answer } => self.take_loaded(&source, fetch, answer),
                News::Changed { position, changes } => {
                    engine.make_room(bytes_of(&changes));
                    engine.changed(&source, position, &changes);
                }
                News::Reset { range } => engine.source_reset(&source, &range),
                News::Health(health) => engine.source_health(&source, health),
                News::Written { answer: Ok(position), .. } => {
                    // Whoever wrote is to see it: the answer waits for the change to come back.
                    if let (Some(id), Err(Stop::Wait(ticket))) =
                        (session, engine.await_position(&source, position))
                    {
                        self.tickets.insert(ticket, id);
                        self.hub.expect_reach(&source, id, self.patience());
                        continue;
                    }
                }
                News::Declared { .. } | News::Position { .. } | News::Written { .. } => {}
            }
            if let Some(id) = session {
                connections.wake(id);
            }
        }
        for late in self.hub.take_late(self.time.uptime) {
            let most = self.config.sources.source_milliseconds_max;
            let message = format!("no answer within {most} ms (source-milliseconds-max)");
            match late.asked {
                Asked::Load(fetch) => self.node.engine_mut().loaded(fetch, Err(message)),
                Asked::Request(request) => {
                    if self.flow_wrote(request, Err(message.clone())) {
                        continue;
                    }
                    if let Some(id) = self.hub.session_of(request) {
                        self.fail(&late.source, id, message, connections);
                    }
                }
                Asked::Reach(id) => {
                    let message = format!(
                        "the position is not reached within {most} ms (source-milliseconds-max)"
                    );
                    self.tickets.retain(|ticket, waiting| {
                        let waits = *waiting == id;
                        if waits {
                            self.node.engine_mut().forget_position(*ticket);
                        }
                        !waits
                    });
                    self.hub.take_answer(id);
                    self.fail(&late.source, id, message, connections);
                }
            }
        }
    }

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

    /// Passes a load's answer on. One that nobody waits for any more, or for which there is no room, leaves its range
    /// followed by the source, which is told that it need not be.
    fn take_loaded(&mut self, source: &str, fetch: FetchId, answer: Result<Loaded, String>) {
        let found = answer.is_ok();
        let load = self.hub.take_load(fetch);
        let waited = load.as_ref().is_none_or(|(_, waited)| *waited);
        let answer = if waited { self.with_room(answer) } else { Err(String::new()) };
        if let Some((range, _)) = load
            && found
            && answer.is_err()
        {
            self.hub.unfollow(source, &range);
        }
        if waited {
            self.node.engine_mut().loaded(fetch, answer);
        }
    }

    /// What was loaded, if there is room for it.
    fn with_room(&mut self, answer: Result<Loaded, String>) -> Result<Loaded, String> {
        let Ok(loaded) = &answer else { return answer };
        let bytes = loaded.pairs.iter().map(|pair| pair.key.len() + pair.value.len() + PAIR_BYTES);
        let bytes: usize = bytes.sum();
        if self.node.engine_mut().make_room(bytes) {
            return answer;
        }
        Err(format!("{bytes} bytes were loaded, for which 'maxmemory' leaves no room"))
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
            ) => self.hub.through(key).is_some(),
            Data::Strings(Strings::MSet { pairs }) => {
                pairs.pairs().any(|(key, _)| self.hub.through(key).is_some())
            }
            Data::Keys(Keys::Del { keys }) => {
                keys.iter().any(|key| self.hub.through(key).is_some())
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
            Data::Tables(Tables::Set {
                name,
                boundary,
                source: Some((source, mapping)),
                evict,
                ..
            }) => {
                let options = TableOptions {
                    boundary: *boundary,
                    source: Some((*source).to_owned()),
                    evict: *evict,
                    keep: None,
                };
                self.declare(name, &options, mapping, args, work)
            }
            Data::Ranges(Ranges::Range { read, .. } | Ranges::Prefix { read, .. }) => {
                let at = read.at.unwrap_or_default();
                let done = match self.reach(at, args, work) {
                    Ok(None) => match self.execute_data(spec, data, work) {
                        Outcome::Done => Ok(Flow::Next),
                        Outcome::Waiting(ticket) => Ok(self.park(ticket, args, work)),
                    },
                    Ok(Some(flow)) => Ok(flow),
                    Err(error) => Err(error),
                };
                if !matches!(done, Ok(Flow::Parked)) {
                    self.hub.forget_named(work.connection.id);
                }
                done
            }
            _ => self.write_through(data, args, work),
        };
        done.unwrap_or_else(|text| {
            self.stats.errors += 1;
            encoder(work).error("ERR", format_args!("{text}"));
            Flow::Next
        })
    }

    /// Lets the session wait for an answer of a source.
    fn await_answer(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Flow {
        work.connection.session.waiting = Some(Box::new(Waiting::Request(OwnedArgs::of(args))));
        Flow::Parked
    }

    /// TABLE.SET with a source.
    fn declare(
        &mut self,
        name: &[u8],
        options: &TableOptions,
        mapping: &Mapping<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Result<Flow, String> {
        let id = work.connection.id;
        let source = options.source.as_deref().unwrap_or_default();
        let prefix = [name, b"|"].concat();
        let Some(Answer::Declared(answer)) = self.hub.take_answer(id) else {
            if self.executing_queue {
                return Err(String::from("TABLE.SET with a source cannot be in a transaction"));
            }
            self.node.engine().check_table(name, options).map_err(|error| error.to_string())?;
            let words = mapping_words(mapping)?;
            self.hub.declare(source, Some(id), self.patience(), &prefix, &words)?;
            return Ok(self.await_answer(args, work));
        };
        let warnings = answer.map_err(|text| format!("source '{source}': {text}"))?;
        self.node.engine_mut().table_set(name, options).map_err(|error| error.to_string())?;
        if mapping.write_through {
            self.hub.set_through(prefix, source);
        }
        let mut reply = encoder(work);
        reply.map(1);
        reply.bulk(b"warnings");
        reply.array(warnings.len());
        for warning in &warnings {
            reply.bulk(warning.as_bytes());
        }
        Ok(Flow::Next)
    }

    /// Waits for a position; `None` where it is reached.
    fn reach(
        &mut self,
        at: &[u8],
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Result<Option<Flow>, String> {
        let (source, position) = self.hub.name_position(work.connection.id, at)?;
        match self.node.engine_mut().await_position(&source, position) {
            Ok(()) => {
                self.hub.take_answer(work.connection.id);
                Ok(None)
            }
            Err(Stop::Failed(error)) => Err(error.to_string()),
            Err(Stop::Wait(ticket)) => {
                self.hub.expect_reach(&source, work.connection.id, self.patience());
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
        let changes = changes_of(data)?;
        let mut names = changes.iter().map(|change| self.hub.through(&change.key));
        let source = names.next().flatten().unwrap_or_default().to_owned();
        if source.is_empty() || names.any(|name| name != Some(&source)) {
            return Err(String::from(
                "a command writes tables of one source, or none: one of these keys is elsewhere",
            ));
        }
        let Some(Answer::Written(answer)) = self.hub.take_answer(id) else {
            if self.executing_queue {
                return Err(format!(
                    "writes through to source '{source}' cannot be in a transaction"
                ));
            }
            for change in &changes {
                let length = change.value.as_ref().map_or(0, Vec::len);
                let engine = self.node.engine();
                engine.check_lengths(&change.key, length).map_err(|error| error.to_string())?;
            }
            self.hub.write(&source, id, self.patience(), &changes)?;
            return Ok(self.await_answer(args, work));
        };
        answer.map_err(|text| format!("source '{source}': {text}"))?;
        match data {
            Data::Keys(_) => encoder(work).integer(changes.len() as i64),
            _ => encoder(work).ok(),
        }
        Ok(Flow::Next)
    }

    /// SOURCE.ADD and its kin.
    pub(super) fn sources(
        &mut self,
        command: &Sources<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        let done = match *command {
            Sources::Add { name, kind, url } => self.hub.add(name, kind, url).map(|()| {
                encoder(work).ok();
                Flow::Next
            }),
            Sources::Drop { name } => self.drop_source(name).map(|()| {
                encoder(work).ok();
                Flow::Next
            }),
            Sources::List => {
                self.list_sources(work);
                Ok(Flow::Next)
            }
            Sources::Info { name } => self.source_info(name, work).map(|()| Flow::Next),
            Sources::Position { name } => self.source_position(name, args, work),
        };
        done.unwrap_or_else(|text| {
            self.stats.errors += 1;
            encoder(work).error("ERR", format_args!("{text}"));
            Flow::Next
        })
    }

    fn drop_source(&mut self, name: &str) -> Result<(), String> {
        let reports = self.node.engine().sources();
        if let Some(report) = reports.iter().find(|report| report.name == name) {
            let tables: Vec<_> =
                report.tables.iter().map(|t| t.escape_ascii().to_string()).collect();
            return Err(format!("source '{name}' keeps tables: {}", tables.join(", ")));
        }
        if !self.hub.drop_source(name) {
            return Err(format!("no source is named '{name}'"));
        }
        self.node.engine_mut().source_forget(name);
        Ok(())
    }

    fn list_sources(&mut self, work: &mut Turn<'_>) {
        let sources = self.hub.list();
        let mut reply = encoder(work);
        reply.array(sources.len());
        for source in sources {
            reply.map(4);
            let pairs = [
                ("name", source.name),
                ("kind", source.kind),
                ("url", source.url),
                ("state", state(source.health)),
            ];
            for (title, text) in pairs {
                reply.bulk(title.as_bytes());
                reply.bulk(text.as_bytes());
            }
        }
    }

    /// What is known of a source, as names and values.
    pub(super) fn source_facts(&self, name: &str) -> Option<Vec<(String, String)>> {
        let source = self.hub.list().find(|source| source.name == name)?;
        let mut facts: Vec<(String, String)> = Vec::new();
        let mut add = |title: &str, text: String| facts.push((title.to_owned(), text));
        add("name", source.name.to_owned());
        add("kind", source.kind.to_owned());
        add("url", source.url.to_owned());
        add("state", state(source.health).to_owned());
        if let Health::Down(reason) = source.health {
            add("reason", reason.clone());
        }
        let reports = self.node.engine().sources();
        let report = reports.into_iter().find(|report| report.name == name).unwrap_or_default();
        let tables = report.tables.iter().map(|table| table.escape_ascii().to_string());
        add("tables", tables.collect::<Vec<_>>().join(","));
        add("position", source.source.show_position(report.position));
        add("ranges-loaded", report.loaded.to_string());
        add("ranges-loading", report.loading.to_string());
        add("keys", report.keys.to_string());
        for (title, text) in source.source.facts() {
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
        let Some(Answer::Position(answer)) = self.hub.take_answer(id) else {
            self.hub.position(name, id, self.patience())?;
            return Ok(self.await_answer(args, work));
        };
        let position = answer.map_err(|text| format!("source '{name}': {text}"))?;
        let text = self.hub.show(name, position);
        encoder(work).bulk(text.as_bytes());
        Ok(Flow::Next)
    }
}

fn state(health: &Health) -> &'static str {
    match health {
        Health::Up => "up",
        Health::Down(_) => "down",
    }
}

fn bytes_of(changes: &[Change]) -> usize {
    let value = |change: &Change| change.value.as_ref().map_or(0, |value| value.len() + PAIR_BYTES);
    changes.iter().map(|change| change.key.len() + value(change)).sum()
}

/// The words of a mapping, as sources take them.
pub(super) fn mapping_words(mapping: &Mapping<'_>) -> Result<Vec<(String, String)>, String> {
    let text = |args: Args<'_>| -> Result<String, String> {
        let words: Result<Vec<&str>, _> = args.iter().map(str::from_utf8).collect();
        words
            .map(|words| words.join(" "))
            .map_err(|_| String::from("a column's name is UTF-8 text"))
    };
    let mut words = Vec::new();
    if let Some(table) = mapping.table {
        words.push((String::from("table"), table.to_owned()));
    }
    if let Some(key) = mapping.key {
        let key = text(key)?;
        let inner = key.strip_prefix('(').and_then(|key| key.strip_suffix(')'));
        words.push((String::from("key"), inner.unwrap_or(&key).trim().to_owned()));
    }
    if let Some(value) = mapping.value {
        words.push((String::from("value"), text(value)?));
    }
    Ok(words)
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
