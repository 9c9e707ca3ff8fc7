//! What the embedded store means to commands: definitions that are kept, writes that are refused, INFO.

use super::declared::mapping_words;
use super::info::line;
use super::session::Answering;
use super::{ShardService, Turn, encoder};
use crate::keeping::EmbeddedStore;
use crate::resp::parts::Stores;
use headwater_base::Millis;
use headwater_command::{
    Args, Command, Data, Flags, Flows, Functions, Id, Joins, Reply, Sources, Spec, Tables,
};
use headwater_config::Table;
use headwater_protocol::resp::decode;
use std::sync::Arc;

impl ShardService {
    /// Whether a command may run: writes are refused while the store cannot take them, or has room for removals alone.
    #[inline]
    pub(super) fn may_write(
        &mut self,
        spec: &'static Spec,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> bool {
        let Some(why) = self.stores.write_refusal() else { return true };
        if self.others.is_redoing() {
            // It was taken before, and room is left for it.
            return true;
        }
        let now = self.node.engine().now();
        if !spec.flags.has(Flags::WRITE) || self.stores.takes_removals() && removes(spec, args, now)
        {
            return true;
        }
        let before = work.out.len();
        encoder(work).error(self.stores.refusal_code(), format_args!("{why}"));
        note_refusal(before, work);
        false
    }

    /// Notes what a command has declared, whose answer is no error.
    #[cold]
    pub(crate) fn defined(&mut self, command: &Command<'_>) {
        match command {
            Command::Data(Data::Flows(Flows::Drop { name })) => self.stores.forget_flow(name),
            Command::Data(Data::Tables(Tables::Set { boundary, source, .. })) => {
                if boundary.is_some() {
                    self.place_watches();
                }
                if source.is_some() {
                    self.pushes.keys_redefined();
                }
            }
            Command::Data(Data::Joins(Joins::Add { .. } | Joins::Drop { .. }))
            | Command::Sources(_) => self.pushes.keys_redefined(),
            _ => {}
        }
        self.stores.keep_definition(command);
    }

    /// What the section "cluster" of INFO says of a node that owns the shard. Clients of Redis Cluster take `cluster_enabled` for
    /// its slots, which there are none of.
    pub(super) fn write_node(&self, out: &mut String) {
        let Some(lease) = self.stores.keeping.as_ref().and_then(EmbeddedStore::lease) else {
            return;
        };
        line(out, "cluster_node", &self.settings.config.cluster.cluster_node);
        line(out, "cluster_epoch", lease.epoch);
        line(out, "cluster_lease_milliseconds", lease.answers_millis);
        line(out, "cluster_lease_age_milliseconds", lease.age_millis);
        line(out, "cluster_unacknowledged_bytes", lease.unacknowledged_bytes);
        line(out, "cluster_unacknowledged_records", lease.unacknowledged_records);
        line(out, "cluster_log_bytes", lease.log_bytes);
        line(out, "cluster_snapshots_taken", lease.snapshots_taken);
        line(out, "cluster_snapshots_failed", lease.snapshots_failed);
    }
}

impl Stores {
    /// Why writes are refused, if they are.
    #[inline]
    pub(crate) fn write_refusal(&self) -> Option<Arc<str>> {
        self.keeping.as_ref()?.refusal()
    }

    /// Whether a log of several machines takes nothing now: what comes by itself waits as well.
    #[inline]
    pub(crate) fn log_is_silent(&self) -> bool {
        self.keeping.as_ref().is_some_and(EmbeddedStore::log_is_silent)
    }

    /// What begins the error of a write that is refused.
    pub(crate) fn refusal_code(&self) -> &'static str {
        self.keeping.as_ref().map_or("MISCONF", EmbeddedStore::refusal_code)
    }

    /// Whether writes that remove alone are taken, though others are refused.
    pub(crate) fn takes_removals(&self) -> bool {
        self.keeping.as_ref().is_none_or(EmbeddedStore::takes_removals)
    }

    /// Keeps what a command has declared.
    fn keep_definition(&mut self, command: &Command<'_>) {
        let Some(keeping) = &mut self.keeping else { return };
        match command {
            Command::Data(Data::Joins(Joins::Add { name, spec, .. })) => {
                keeping.join_added(name, spec);
            }
            Command::Data(Data::Joins(Joins::Drop { name })) => keeping.join_dropped(name),
            Command::Data(Data::Tables(Tables::Set { name, boundary, source, evict, keep })) => {
                let change = |table: &mut Table| {
                    table.boundary = boundary.or(table.boundary);
                    table.evict = evict.or(table.evict);
                    table.keep = keep.or(table.keep);
                    let Some((source, mapping)) = source else { return };
                    if source.is_empty() {
                        (table.source, table.table, table.value) = (None, None, None);
                        table.filter = None;
                        (table.key, table.write_through) = (Vec::new(), false);
                        return;
                    }
                    table.source = Some((*source).to_owned());
                    table.write_through = mapping.write_through;
                    table.filter = None;
                    for (word, text) in mapping_words(mapping).unwrap_or_default() {
                        match word.as_str() {
                            "table" => table.table = Some(text),
                            "value" => table.value = Some(text),
                            "where" => table.filter = Some(text),
                            _ => table.key = text.split(", ").map(str::to_owned).collect(),
                        }
                    }
                };
                // Names of tables that are no text are declared for this run alone.
                if let Ok(name) = str::from_utf8(name) {
                    keeping.table_set(name, change);
                }
            }
            Command::Data(Data::Functions(Functions::Load {
                name, module, file, export, ..
            })) => {
                keeping.module_loaded(name, module, *file, *export);
            }
            Command::Data(Data::Functions(Functions::Drop { name })) => {
                keeping.module_dropped(name);
            }
            Command::Data(Data::Flows(Flows::Add { name, words, .. })) => {
                let words = words.iter().map(|word| String::from_utf8_lossy(word).into_owned());
                keeping.flow_added(name, words.collect());
            }
            Command::Data(Data::Flows(Flows::Drop { name })) => keeping.flow_dropped(name),
            Command::Sources(Sources::Add { name, kind, url }) => {
                keeping.source_added(name, kind, url);
            }
            Command::Sources(Sources::Drop { name }) => keeping.source_dropped(name),
            _ => {}
        }
    }

    /// The section "persistence" of INFO.
    pub(super) fn write_persistence(&self, out: &mut String) {
        out.push_str("# Persistence\r\n");
        line(out, "loading", 0);
        let Some(keeping) = &self.keeping else {
            line(out, "rdb_changes_since_last_save", 0);
            line(out, "rdb_bgsave_in_progress", 0);
            line(out, "rdb_last_bgsave_status", "ok");
            line(out, "aof_enabled", 0);
            line(out, "data_enabled", 0);
            return;
        };
        let (path, options, facts) = keeping.facts();
        let refusal = keeping.refusal();
        let status = if refusal.is_none() { "ok" } else { "err" };
        line(out, "rdb_changes_since_last_save", facts.position - facts.durable);
        line(out, "rdb_bgsave_in_progress", 0);
        line(out, "rdb_last_bgsave_status", status);
        line(out, "aof_enabled", 0);
        line(out, "data_enabled", 1);
        line(out, "data_dir", path);
        line(out, "data_durability", options.durability);
        line(out, "data_write_status", status);
        line(out, "data_write_refusal", refusal.as_deref().unwrap_or_default());
        line(out, "data_position", facts.position);
        line(out, "data_safe_position", facts.durable);
        line(out, "data_pending_bytes", facts.pending_bytes);
        line(out, "data_disk_bytes", facts.disk_bytes);
        line(out, "data_batches", facts.batches);
        line(out, "data_syncs", facts.syncs);
        line(out, "data_sync_usec_last", facts.sync_micros_last);
        line(out, "data_sync_usec_mean", facts.sync_micros / facts.syncs.max(1));
        line(out, "data_loads", facts.loads);
        line(out, "data_loads_failed", facts.loads_failed);
        line(out, "data_loaded_keys", facts.loaded_keys);
        line(out, "data_loaded_bytes", facts.loaded_bytes);
    }
}

/// Notes that all behind `before` is a refusal, which shows nothing of the data.
pub(crate) fn note_refusal(before: usize, work: &mut Turn<'_>) {
    let connection = &mut *work.connection;
    if connection.refused == before && connection.session.answering == Answering::On {
        connection.refused = work.out.len();
    }
}

/// Whether a request writes by removing alone: a disk that is nearly full has room for it.
pub(super) fn removes(spec: &'static Spec, args: Args<'_>, now: Millis) -> bool {
    let expires = matches!(spec.id, Id::Expire | Id::PExpire | Id::ExpireAt | Id::PExpireAt);
    spec.frees_room()
        || expires
            && matches!(decode(spec, args), Ok(Command::Data(Data::Expiry(it))) if it.removes(now))
}
