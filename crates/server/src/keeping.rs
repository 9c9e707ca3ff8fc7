//! The embedded store, as the server has it: opened by the settings, told of definitions, asked how safe writes are.
//!
//! Definitions (joins, tables, sources, functions) that clients make are kept in the store as the text that the
//! configuration file would have for them, and modules of functions as their bytes; they are declared again at the next start behind those of the file. What the file
//! declares under the same name goes first: the kept one is left alone, and counts again when the file no
//! longer names it.
//!
//! With several shards each has a store of its own, in a folder of its own. All keep what is declared, since all execute what
//! declares it; what the first one has kept counts.

mod backup;
pub(crate) mod clock;
mod cluster;
mod definitions;
mod folders;
mod homes;
mod journal;
mod options;
mod records;
mod rights;

pub(crate) use backup::{restore_placement, restore_shard};
pub(crate) use cluster::{check_copy, copy_folder, open_copy, read_users};
pub(crate) use definitions::{digest_of, read_definitions};
pub(crate) use folders::divided_among;
pub(crate) use homes::Way;
pub(crate) use journal::KeptJournal;

use crate::replicated::ReplicaEnd;
use crate::service::DurableWrites;
use crate::sources::Inbox;
use definitions::DefinitionDigest;
use folders::folder_of;
use headwater_base::placement::Partition;
use headwater_base::stream_records::is_stream_record;
use headwater_base::{Placement, Shard};
use headwater_config::{Config, ConfigError, Join, KeptOwner, Module, Source, Table};
use headwater_keep::{Definition, Durability, Feed, Options, Store, StoreHandle, StoreStats};
use homes::{Homes, Unwritten};
use options::options;
use records::KeptRecords;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the embedded store is called among sources.
const NAME: &str = "data";
/// The end waits so long for the last writes to be safe.
const SETTLE: Duration = Duration::from_secs(60);

const JOIN: &str = "join";
const TABLE: &str = "table";
const SOURCE: &str = "source";
/// The rules of a user.
const USER: &str = "user";
/// Who defined a join, a flow or a module: `kind/name`, with the user as its text.
const OWNER: &str = "owner";
/// The words of FLOW.ADD, from the flow's name on.
const FLOW: &str = "flow";
/// A module from a file.
const MODULE: &str = "module";
/// A module that a client sent: the export that its name stands for, a zero byte, the module.
const FUNCTION: &str = "function";

/// A module of functions that a client sent.
#[derive(Clone)]
pub(crate) struct SentModule {
    pub(crate) name: String,
    pub(crate) export: Option<String>,
    pub(crate) bytes: Vec<u8>,
}

fn read_module(definition: &Definition) -> Option<SentModule> {
    let split = definition.text.iter().position(|&byte| byte == 0)?;
    let export = String::from_utf8(definition.text[..split].to_vec()).ok()?;
    Some(SentModule {
        name: String::from_utf8(definition.name.clone()).ok()?,
        export: (!export.is_empty()).then_some(export),
        bytes: definition.text[split + 1..].to_vec(),
    })
}

/// The store and what was declared.
pub(crate) struct EmbeddedStore {
    store: Store,
    keeper: StoreHandle,
    path: String,
    /// The log of the cluster, where this is a node of one: replies wait for it.
    replica: Option<ReplicaEnd>,
    /// Whether replies wait for their writes to be synced, and not only for the system to have them.
    always: bool,
    /// What is declared for each table.
    tables: BTreeMap<String, Table>,
    /// What is defined, to be compared with what other shards have.
    defined: DefinitionDigest,
    /// The modules that clients sent before the start.
    modules: Vec<SentModule>,
    /// The records of transactions over several shards; `None`: there is one shard.
    records: Option<KeptRecords>,
    /// By which placement keys of a partition are looked for.
    surveyed: Option<Placement>,
    /// The store has failed, no command can write any more, and a turn of the loop has begun since: nothing waits
    /// for what will never be safe.
    given_up: bool,
}

/// A flow, as the words of FLOW.ADD.
#[derive(Debug, Deserialize, Serialize)]
struct Flow {
    words: Vec<String>,
}

fn read<T: DeserializeOwned>(definition: &Definition) -> Result<T, ConfigError> {
    let text = String::from_utf8_lossy(&definition.text);
    toml::from_str(&text).map_err(|error| {
        let (kind, name) = (&definition.kind, definition.name.escape_ascii());
        ConfigError(format!("data-dir: the kept {kind} '{name}' is not understood: {error}"))
    })
}

impl EmbeddedStore {
    /// Opens the store that the settings name, if they name one, and adds to `config` what was declared there. Of
    /// several shards the first one says what was declared, and the others are given its `config`.
    ///
    /// # Errors
    /// The store cannot be opened; the text says why.
    pub(crate) fn open(
        config: &mut Config,
        inbox: &Inbox,
        me: Shard,
        replica: Option<ReplicaEnd>,
    ) -> Result<Option<Self>, ConfigError> {
        let data = &config.data;
        if data.data_dir.is_empty() {
            return Ok(None);
        }
        let path = data.data_dir.clone();
        let shards = config.listen.shards.number();
        let folder = folder_of(path.as_ref(), me, shards)
            .map_err(|why| ConfigError(format!("data-dir '{path}': {why}")))?;
        // In a cluster each process has the store of one shard only, so memory is not divided.
        let options = options(config, if replica.is_some() { 1 } else { shards });
        let (bell, sink) = (Box::new(inbox.bell()), inbox.sink(NAME));
        let feed = replica.as_ref().map_or(Feed::Own, |replica| Feed::Log(replica.turn_log()));
        let (store, definitions) = Store::open_with(&folder, options, feed, sink, bell)
            .map_err(|why| ConfigError(format!("data-dir '{path}': {why}")))?;
        if let Some(replica) = &replica {
            store.remember(replica.take_recent());
            replica.tells(store.acknowledger());
        }
        // Where one process has all shards, the first shard's store says what was declared. In a cluster each shard's log has every declaration.
        let tells = me == Shard(0) || replica.is_some();
        let definitions = if tells { definitions } else { Vec::new() };
        let modules = declare(config, &definitions)?;
        let defined = DefinitionDigest::of(&definitions);
        // The file goes first here as well.
        let named: HashSet<&[u8]> = config.flows.iter().map(|it| it.name.as_bytes()).collect();
        let declared = |definition: &&Definition| !named.contains(&*definition.name);
        let flows = definitions.iter().filter(|definition| definition.kind == FLOW);
        let flows = flows.filter(declared).map(read).collect::<Result<Vec<Flow>, _>>()?;
        config.kept_flows.extend(flows.into_iter().map(|flow| flow.words));
        let tables =
            config.tables.iter().map(|table| (table.name.clone(), table.clone())).collect();
        let always = options.durability == Durability::Always;
        Ok(Some(Self {
            keeper: store.keeper(),
            store,
            path,
            replica,
            always,
            tables,
            defined,
            modules,
            records: None,
            surveyed: None,
            given_up: false,
        }))
    }

    /// The shard's end.
    pub(crate) fn keeper(&self) -> StoreHandle {
        self.keeper.clone()
    }

    /// The homes of the partitions at start. Where a crash came into a move, what this shard has of a partition that lives
    /// elsewhere is erased first.
    ///
    /// # Errors
    /// They are not known, or the store cannot be read or written.
    pub(crate) fn placement(&mut self, me: Shard, shards: u16) -> Result<Placement, ConfigError> {
        self.find_placement(me, shards)
            .map_err(|why| ConfigError(format!("data-dir '{}': {why}", self.path)))
    }

    fn find_placement(&mut self, me: Shard, shards: u16) -> Result<Placement, String> {
        let known = homes::read(self.path.as_ref(), shards)?;
        let mut placement = match &known {
            // Partitions of a cluster stay where they are.
            _ if self.replica.is_some() => Placement::by_slots(shards),
            Some(homes) => Placement::of(shards, homes.placement.homes().to_vec())
                .ok_or("the homes are not those of all")?,
            None => Placement::even(shards),
        };
        if let Some((homes, partition)) = known.and_then(|it| it.stray(me).map(|stray| (it, stray)))
        {
            // By the boundaries that were in force when it moved.
            // Those of streams stay, which do not move.
            let strays =
                |key: &[u8]| !is_stream_record(key) && homes.placement.partition(key) == partition;
            self.keeper.remove_where(&strays)?;
            self.note_homes(&Homes { moving: None, ..homes }).map_err(|why| why.to_string())?;
        }
        for table in self.tables.values() {
            placement.set_boundary(table.name.as_bytes(), table.boundary.unwrap_or(0));
        }
        Ok(placement)
    }

    fn note_homes(&self, homes: &Homes) -> Result<(), Unwritten> {
        homes::write(self.path.as_ref(), homes)
    }

    /// Begins to look for the keys of a partition; `done` is called when they are found.
    pub(crate) fn survey(
        &mut self,
        partition: Partition,
        placement: Placement,
        done: Box<dyn Fn() + Send>,
    ) {
        let surveyed = placement.clone();
        let wanted = Arc::new(move |key: &[u8]| {
            !is_stream_record(key) && surveyed.partition(key) == partition
        });
        self.keeper.survey(wanted, done);
        self.surveyed = Some(placement);
    }

    /// Whether they are found, or cannot be: then they are looked for again when the partition moves.
    pub(crate) fn is_surveyed(&self) -> bool {
        self.keeper.is_surveyed()
    }

    /// Forgets what was found where keys are grouped otherwise now.
    pub(crate) fn check_survey(&mut self, placement: &Placement) {
        let before = self.surveyed.as_ref();
        if before.is_some_and(|before| !before.boundaries().eq(placement.boundaries())) {
            self.end_survey();
        }
    }

    /// Forgets what was found.
    pub(crate) fn end_survey(&mut self) {
        if self.surveyed.take().is_some() {
            self.keeper.end_survey();
        }
    }

    /// Notes that a partition begins to move.
    ///
    /// # Errors
    /// That cannot be, and nothing has begun.
    pub(crate) fn begin_move(&self, placement: &Placement, way: Way) -> Result<(), String> {
        let known = homes::read(self.path.as_ref(), placement.shards())?;
        if let Some(Way { partition, .. }) = known.and_then(|homes| homes.moving) {
            return Err(format!(
                "the move of partition {} could not be finished on disk: restart the server first",
                partition.0
            ));
        }
        let homes = Homes { placement: placement.clone(), moving: Some(way) };
        self.note_homes(&homes).map_err(|why| why.to_string())
    }

    /// Notes that a partition lives at its new home from now on.
    ///
    /// # Errors
    /// It lives where it did.
    ///
    /// # Panics
    /// Nobody knows where it lives before the next start.
    pub(crate) fn decide_move(&self, placement: &Placement, way: Way) -> Result<(), String> {
        let mut placement = placement.clone();
        placement.assign(way.partition, way.to);
        match self.note_homes(&Homes { placement, moving: Some(way) }) {
            Ok(()) => Ok(()),
            Err(why @ Unwritten::Before(_)) => Err(why.to_string()),
            // Served on, it could turn out at the next start to have lived elsewhere. Both have its keys now.
            Err(why @ Unwritten::Unsure(_)) => {
                panic!("data-dir '{}': {why}: the next start finishes the move", self.path)
            }
        }
    }

    /// Notes that no partition is moving: each key is at its home alone. Where that fails, the next start looks at both
    /// shards once more, and no partition moves until then.
    pub(crate) fn end_move(&self, placement: &Placement) {
        let _best_effort = self.note_homes(&Homes { placement: placement.clone(), moving: None });
    }

    /// Takes the modules that clients sent before the start.
    pub(crate) fn take_modules(&mut self) -> Vec<SentModule> {
        core::mem::take(&mut self.modules)
    }

    /// Where flows keep their records.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn journal(&self) -> Result<KeptJournal, ConfigError> {
        KeptJournal::open(self.store.notes())
            .map_err(|why| ConfigError(format!("data-dir '{}': {why}", self.path)))
    }

    /// A flow was added, by these words.
    pub(crate) fn flow_added(&mut self, name: &str, words: Vec<String>) {
        self.define(FLOW, name, &Flow { words });
    }

    /// A flow was dropped.
    pub(crate) fn flow_dropped(&mut self, name: &str) {
        self.undefine(FLOW, name.as_bytes());
    }

    /// The names of the tables that have keys.
    pub(crate) fn tables(&self) -> Vec<Vec<u8>> {
        let prefixes = self.store.tables();
        prefixes.iter().filter_map(|prefix| Some(prefix.strip_suffix(b"|")?.to_vec())).collect()
    }

    /// Which writes are safe.
    #[inline]
    pub(crate) fn durable_writes(&self) -> DurableWrites {
        let (last, durable) = (self.store.told().0, self.survives());
        let last = if self.given_up { durable } else { last };
        let withheld = self.replica.as_ref().is_some_and(|replica| !replica.may_answer());
        DurableWrites { last, durable, failed: self.given_up, withheld }
    }

    /// To be called when a turn begins. The store fails first and refuses writes a moment later: until it does, commands
    /// may write what will never be safe, so waiting goes on for that long.
    #[inline]
    pub(crate) fn look_for_failure(&mut self) {
        // What is safe in a log stays so, whatever becomes of the folder.
        self.given_up |=
            self.replica.is_none() && self.store.failed() && self.store.refusal().is_some();
    }

    /// Whether so much waits to be written that what can wait should.
    pub(crate) fn is_behind(&self) -> bool {
        self.store.is_behind()
    }

    /// The reply under way tells of what was noted until now: it waits until that is safe.
    pub(crate) fn count_notes(&self) {
        self.store.count_notes();
    }

    /// A transaction begins: nothing of it is handed over until it has ended.
    pub(crate) fn begin_transaction(&self) {
        self.store.begin_transaction();
    }

    /// It has ended.
    pub(crate) fn end_transaction(&self) {
        self.store.end_transaction();
    }

    /// Hands the writes of a turn over; gives the last operation told.
    #[inline]
    pub(crate) fn end_turn(&self) -> u64 {
        self.store.commit().0
    }

    /// The last operation that will survive: a crash of the process, or under `always` a failure of the machine.
    pub(crate) fn survives(&self) -> u64 {
        if self.always { self.store.durable().0 } else { self.store.survives().0 }
    }

    /// Waits until all that was written is safe, or will never be.
    pub(crate) fn settle(&self) {
        let begun = Instant::now();
        // The rest of a transaction that waits will not come.
        self.store.forget_transaction();
        self.store.ask_sync();
        let safe = || match self.replica {
            Some(_) => self.store.survives(),
            None => self.store.durable(),
        };
        while !self.store.failed() && safe() < self.store.told() && begun.elapsed() < SETTLE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Why writes are refused, if they are.
    #[inline]
    pub(crate) fn refusal(&self) -> Option<Arc<str>> {
        self.log_refusal().or_else(|| self.store.refusal())
    }

    /// Whether removals are taken though other writes are refused.
    pub(crate) fn takes_removals(&self) -> bool {
        // In the log a removal takes room as any write does.
        self.log_refusal().is_none() && self.store.takes_removals()
    }

    /// Bytes of a table of the store, and the most that its threads hold.
    pub(crate) fn bytes_taken(&self) -> (usize, usize) {
        let options = self.store.options();
        (options.table_bytes as usize, options.memory_bytes() as usize)
    }

    /// What is known of the store.
    pub(crate) fn facts(&self) -> (&str, Options, StoreStats) {
        let mut facts = self.store.facts();
        if self.replica.is_some() {
            facts.durable = self.survives();
        }
        (&self.path, self.store.options(), facts)
    }

    fn define(&mut self, kind: &str, name: &str, what: &impl Serialize) {
        // What is declared is made of texts, numbers and lists: there is TOML for all of it.
        let text = toml::to_string(what).unwrap_or_default();
        self.define_text(kind, name.as_bytes(), text.as_bytes());
    }

    fn define_text(&mut self, kind: &str, name: &[u8], text: &[u8]) {
        self.defined.define(kind, name, text);
        self.keeper.define(kind, name, text);
    }

    fn undefine(&mut self, kind: &str, name: &[u8]) {
        self.defined.undefine(kind, name);
        self.keeper.undefine(kind, name);
    }

    /// A join was installed.
    pub(crate) fn join_added(&mut self, name: &str, spec: &str) {
        let join = Join { name: name.to_owned(), spec: spec.to_owned() };
        self.define(JOIN, name, &join);
    }

    /// A join was dropped.
    pub(crate) fn join_dropped(&mut self, name: &str) {
        self.undefine(JOIN, name.as_bytes());
    }

    /// A source was added.
    pub(crate) fn source_added(&mut self, name: &str, kind: &str, url: &str) {
        let (name, kind, url) = (name.to_owned(), kind.to_owned(), url.to_owned());
        let source = Source { name, kind, url, by_client: true };
        self.define(SOURCE, &source.name, &source);
    }

    /// A source was dropped.
    pub(crate) fn source_dropped(&mut self, name: &str) {
        self.undefine(SOURCE, name.as_bytes());
    }

    /// A module was loaded, from its bytes or from a file.
    pub(crate) fn module_loaded(
        &mut self,
        name: &str,
        module: &[u8],
        file: bool,
        export: Option<&str>,
    ) {
        self.module_dropped(name);
        if file {
            let file = String::from_utf8_lossy(module).into_owned();
            let export = export.map(str::to_owned);
            self.define(MODULE, name, &Module { name: name.to_owned(), file, export });
        } else {
            let text = [export.unwrap_or_default().as_bytes(), module].join(&0);
            self.define_text(FUNCTION, name.as_bytes(), &text);
        }
    }

    /// A module was dropped.
    pub(crate) fn module_dropped(&mut self, name: &str) {
        self.undefine(MODULE, name.as_bytes());
        self.undefine(FUNCTION, name.as_bytes());
    }

    /// A table was declared, or some of its options changed.
    pub(crate) fn table_set(&mut self, name: &str, change: impl FnOnce(&mut Table)) {
        let mut table = self.tables.remove(name).unwrap_or_default();
        name.clone_into(&mut table.name);
        change(&mut table);
        self.define(TABLE, name, &table);
        self.tables.insert(name.to_owned(), table);
    }
}

/// What is declared of one kind, by the names: there may be as many as joins.
struct Declared<'a, T> {
    list: &'a mut Vec<T>,
    names: HashSet<String>,
    name: fn(&T) -> &String,
}

impl<'a, T> Declared<'a, T> {
    fn new(list: &'a mut Vec<T>, name: fn(&T) -> &String) -> Self {
        let names = list.iter().map(|it| name(it).clone()).collect();
        Self { list, names, name }
    }

    /// Declares something, unless something of that name is declared already.
    fn add(&mut self, new: T) {
        if self.names.insert((self.name)(&new).clone()) {
            self.list.push(new);
        }
    }
}

/// Adds what was declared before to what the file declares, which goes first; gives the modules that are in no file.
fn declare(
    config: &mut Config,
    definitions: &[Definition],
) -> Result<Vec<SentModule>, ConfigError> {
    let mut joins = Declared::new(&mut config.joins, |join: &Join| &join.name);
    let mut tables = Declared::new(&mut config.tables, |table: &Table| &table.name);
    let mut sources = Declared::new(&mut config.source_list, |source: &Source| &source.name);
    let mut files = Declared::new(&mut config.modules, |module: &Module| &module.name);
    let mut modules = Vec::new();
    // What the file declares has no owner.
    let (mut kept_users, mut owners) = (Vec::new(), Vec::new());
    let in_file: HashSet<(&str, String)> = (joins.names.iter().map(|name| ("join", name.clone())))
        .chain(files.names.iter().map(|name| ("module", name.clone())))
        .chain(config.flows.iter().map(|flow| ("flow", flow.name.clone())))
        .collect();
    let text_of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for definition in definitions {
        match definition.kind.as_str() {
            JOIN => joins.add(read(definition)?),
            TABLE => tables.add(read(definition)?),
            // It does not become the administrator's by a restart.
            SOURCE => sources.add(Source { by_client: true, ..read(definition)? }),
            MODULE => files.add(read(definition)?),
            FUNCTION => {
                let name = definition.name.escape_ascii();
                let unread =
                    || ConfigError(format!("data-dir: the kept function '{name}' is damaged"));
                let module = read_module(definition).ok_or_else(unread)?;
                if !files.names.contains(&module.name) {
                    modules.push(module);
                }
            }
            // They are added when everything else is there.
            FLOW => {}
            USER => {
                kept_users.push((definition.name.clone(), definition.text.clone()));
            }
            OWNER => {
                let of = text_of(&definition.name);
                let Some((kind, name)) = of.split_once('/') else { continue };
                let (kind, name) = (kind.to_owned(), name.to_owned());
                owners.push(KeptOwner { kind, name, owner: text_of(&definition.text) });
            }
            kind => {
                return Err(ConfigError(format!(
                    "data-dir: this server does not know what a '{kind}' is, which was declared there"
                )));
            }
        }
    }
    owners.retain(|owned| !in_file.contains(&(&*owned.kind, owned.name.clone())));
    (config.kept_users, config.kept_owners) = (kept_users, owners);
    Ok(modules)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(kind: &str, name: &str, text: &str) -> Definition {
        Definition { kind: kind.to_owned(), name: name.into(), text: text.into() }
    }

    #[test]
    fn the_file_goes_before_what_clients_declared() {
        let mut config = Config::parse("[[join]]\nname = \"a\"\nspec = \"file\"\n").unwrap();
        let definitions = [
            definition("join", "a", "name = \"a\"\nspec = \"kept\"\n"),
            definition("join", "b", "name = \"b\"\nspec = \"kept\"\n"),
            definition("table", "t", "name = \"t\"\nboundary = 2\n"),
            definition("module", "m", "name = \"m\"\nfile = \"m.wasm\"\n"),
            definition("function", "f", "run\0bytes\0more"),
        ];
        let modules = declare(&mut config, &definitions).unwrap();
        assert_eq!((modules.len(), &*modules[0].bytes), (1, &b"bytes\0more"[..]));
        assert_eq!(
            (modules[0].export.as_deref(), &*config.modules[0].file),
            (Some("run"), "m.wasm")
        );
        let joins: Vec<_> = config.joins.iter().map(|j| (&*j.name, &*j.spec)).collect();
        assert_eq!(joins, [("a", "file"), ("b", "kept")]);
        assert_eq!((config.tables[0].name.as_str(), config.tables[0].boundary), ("t", Some(2)));
        for (kind, text, told) in [("join", "name = 3", "not understood"), ("moon", "", "'moon'")] {
            let error = declare(&mut config, &[definition(kind, "x", text)]).err().unwrap();
            assert!(error.to_string().contains(told), "{error}");
        }
    }
}
