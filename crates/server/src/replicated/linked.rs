//! A shard whose owner is this process, beside the owners of the other shards.

use super::{FORMATS, LinkEnd, ReplicaEnd};
use crate::log::event;
use crate::shards::links::{LinkSecurity, LinkSettings, Links, MayAnswer};
use crate::shards::{Shards, Transport};
use crate::tls::between_nodes;
use headwater_base::Shard;
use headwater_base::hash::stable_hash;
use headwater_config::{Config, ConfigError, link_port};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Another shard may write so much at once beside the longest answer: what it had for others of the same turn.
const BATCH_BESIDE: usize = 64 << 20;

/// One shard of a cluster of several.
pub(crate) struct LinkedShard {
    me: Shard,
    epoch: u64,
    transport: Arc<Transport>,
    end: LinkEnd,
    may_answer: MayAnswer,
}

impl LinkedShard {
    /// That of this node, which owns it.
    pub(crate) fn of(config: &Config, replica: &ReplicaEnd) -> Self {
        // What positions name: the same cluster, whoever owns its shards.
        let run = stable_hash(0, config.cluster.cluster_name.as_bytes());
        let me = Shard(config.cluster.shard());
        let asked = replica.clone();
        Self {
            may_answer: MayAnswer(Arc::new(move || asked.may_answer())),
            me,
            epoch: replica.epoch(),
            transport: Transport::apart(me, config.listen.shards.number(), run),
            end: replica.links.clone(),
        }
    }

    /// What it knows of the others when it begins.
    pub(crate) fn shards(&self) -> Box<Shards> {
        Shards::of_epoch(self.me, &self.transport, self.epoch)
    }

    /// Lets the owners of the others connect, and connects to them.
    ///
    /// # Errors
    /// The port for that is taken, or a certificate cannot be used.
    pub(crate) fn start(self, config: &Config) -> Result<Links, ConfigError> {
        let ip = config.listen.bind.first().copied().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let port = config.listen.port.number().and_then(link_port).unwrap_or(0);
        let bind = SocketAddr::new(ip, port);
        let longest = config.limits.value_bytes_max.max(config.clients.output_bytes_max);
        let security = match config.cluster.cluster_link_tls {
            true => {
                let (dials, accepts) = between_nodes(&config.cluster).map_err(ConfigError)?;
                Some(LinkSecurity { dials, accepts })
            }
            false => None,
        };
        let settings = LinkSettings {
            cluster: config.cluster.cluster_name.clone(),
            secret: self.end.secret,
            me: self.me,
            epoch: self.epoch,
            formats: FORMATS.links,
            bind,
            batch_bytes_max: longest + BATCH_BESIDE,
            security,
            may_answer: self.may_answer,
        };
        let (shard, epoch) = (self.me.0, self.epoch);
        let links = Links::start(settings, self.transport, self.end.owners).map_err(|why| {
            ConfigError(format!("cannot listen on {bind} for other shards: {why}"))
        })?;
        let address = links.address;
        event!(info, "shards", "linked", shard, epoch, %address, "other shards may connect");
        Ok(links)
    }
}
