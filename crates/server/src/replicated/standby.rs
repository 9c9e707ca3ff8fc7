//! What a node tells over HTTP of itself while it stands by: whether it lives, whether clients may be sent to it, and how far it follows its log.
//!
//! The thread that follows the log notes what it knows each time round; whoever asks is told what was noted last. So an answer costs that thread
//! nothing, and there is one while it waits for NATS servers or loads a snapshot, which may take long.

use super::encrypted::TlsTermination;
use super::monotonic;
use crate::http::{ForwardedClients, Kind, Metric, StandbyListener, StandbyVitals, Vitals};
use crate::keeping;
use crate::tls::Certificates;
use crate::users::UserRegistry;
use crate::wire_protocol::listen_at;
use headwater_config::{Config, ConfigError, OptionalPort, Tls};
use headwater_keep::{LogMark, Store};
use headwater_log::Monotonic;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A thread that has noted nothing for so long does not go on, in milliseconds. A disk that is slow takes its time.
const LIVES_MILLIS: u64 = 10_000;
/// A node is ready that has read its log so lately, in milliseconds, and lacks so few records of it.
const READ_MILLIS: u64 = 5_000;
const NEAR_RECORDS: u64 = 1_000;
/// How often it is looked whether users have changed, in milliseconds.
const USERS_LOOK: u64 = 5_000;

/// What the process is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StandbyStage {
    /// It waits for the NATS servers.
    Joins,
    /// It follows the log.
    Follows,
    /// It loads a snapshot, since the log begins behind what its folder had.
    Loads,
    /// It has the lease, and its server begins.
    Begins,
}

/// What the thread that follows the log knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct StandbyState {
    /// The epoch of the shard's owner, and since when its last renewal was seen; `None`: there is no owner.
    pub(super) owner: Option<(u64, Monotonic)>,
    /// Whether that is so lately that it owns the shard still.
    pub(super) owner_is_heard: bool,
    /// Whether there is somebody to whom clients can be forwarded.
    pub(super) forwards: bool,
    /// When the log was read last, and when its end was.
    pub(super) read: Option<Monotonic>,
    pub(super) at_end: Option<Monotonic>,
    /// Records that the log had then and the folder has not.
    pub(super) lag_records: u64,
    /// Whether the node's own writes to the bucket succeed.
    pub(super) writes: bool,
    /// Whether the node is drained.
    pub(super) drained: bool,
}

/// What was noted last.
#[derive(Debug)]
struct StandbyNote {
    stage: StandbyStage,
    facts: StandbyState,
    /// When the facts were noted last.
    noted: Monotonic,
    shard: u16,
    began: Monotonic,
}

impl StandbyNote {
    fn is_near_end(&self, now: Monotonic) -> bool {
        let facts = &self.facts;
        let reads = facts.read.is_some_and(|read| now.since(read) < READ_MILLIS);
        reads && facts.lag_records <= NEAR_RECORDS
    }

    /// Why clients should not be sent here, if they should not.
    fn unready(&self, now: Monotonic) -> Option<String> {
        let (facts, lag) = (&self.facts, self.facts.lag_records);
        let why = match self.stage {
            StandbyStage::Joins => "the node waits for the NATS servers",
            StandbyStage::Loads => "the node loads a snapshot",
            StandbyStage::Begins => "the node takes its shard over",
            StandbyStage::Follows if !facts.writes => {
                "the node's own writes at the NATS servers do not succeed, or have not yet"
            }
            StandbyStage::Follows if !self.is_near_end(now) => {
                return Some(format!(
                    "the node has not followed the log to its end: {lag} records are known that it lacks"
                ));
            }
            StandbyStage::Follows if !facts.forwards => {
                "no shard has an owner to whom the node could forward its clients"
            }
            StandbyStage::Follows => return None,
        };
        Some(why.to_owned())
    }

    fn metrics(&self, now: Monotonic) -> Vec<Metric> {
        use Kind::Gauge;
        let facts = &self.facts;
        let mut metrics = vec![owner_metric(self.shard, false)];
        let mut one = |name: &str, help, value: u64| {
            metrics.push(Metric::one(name, help, Gauge, value as f64));
        };
        one("uptime_seconds", "Since the start", now.since(self.began) / 1000);
        let epoch = facts.owner.map_or(0, |owner| owner.0);
        one("cluster_epoch", "The epoch of the shard's owner; 0: none is known", epoch);
        let known = u64::from(facts.owner_is_heard);
        one("cluster_owner_known", "Whether the shard has an owner that is heard", known);
        if let Some((_, renewed)) = facts.owner {
            one("cluster_lease_age_milliseconds", LEASE_AGE, now.since(renewed));
        }
        let followed = u64::from(self.stage == StandbyStage::Follows && self.is_near_end(now));
        one("cluster_standby_followed", "Whether it follows the log to near its end", followed);
        let help = "Records of the log that a node that stands by lacks, as far as it knows";
        one("cluster_standby_lag_records", help, facts.lag_records);
        let help = "Since a node that stands by was at the end of the log";
        let lag = now.since(facts.at_end.unwrap_or(self.began));
        one("cluster_standby_lag_milliseconds", help, lag);
        one("cluster_drained", "Whether the node is drained", u64::from(facts.drained));
        metrics
    }

    /// How the process does; `None`: its thread does not go on.
    fn vitals(&self, now: Monotonic) -> Option<Vitals> {
        let follows = self.stage == StandbyStage::Follows;
        if follows && now.since(self.noted) >= LIVES_MILLIS {
            return None;
        }
        Some(Vitals { metrics: self.metrics(now), unready: self.unready(now) })
    }
}

/// What is said of the age of a lease.
pub(crate) const LEASE_AGE: &str = "Since the owner's last renewal of its lease";

/// Says which shard this process is for, and whether it owns it.
pub(crate) fn owner_metric(shard: u16, owns: bool) -> Metric {
    Metric {
        name: String::from("cluster_owner"),
        help: "Whether this process owns its shard, and may answer",
        kind: Kind::Gauge,
        samples: vec![(vec![("shard", shard.to_string())], f64::from(u8::from(owns)))],
    }
}

/// What the threads of a node that stands by note, and where that is told.
#[derive(Clone, Debug)]
pub(crate) struct Standby {
    noted: Arc<Mutex<StandbyNote>>,
    listeners: Arc<Mutex<Vec<StandbyListener>>>,
    /// Where clients of the HTTP port are passed on.
    pub(super) door: ForwardedClients,
    /// Where HTTP is spoken, and where over TLS.
    http: Option<SocketAddr>,
    https: Vec<SocketAddr>,
    /// What TLS begins with, the users whom certificates name, and the settings that say so.
    certificates: Option<(Certificates, Arc<UserRegistry>, Arc<Tls>)>,
}

impl Standby {
    /// Listens where the settings have a server speak HTTP, with those of the `open` sockets that do so already. The second is what users are renewed by, where certificates may prove who asks.
    ///
    /// # Errors
    /// It cannot listen there, or a certificate cannot be used.
    pub(super) fn begin(
        config: &Config,
        open: &mut Vec<TcpListener>,
    ) -> Result<(Self, Option<StandbyUsers>), ConfigError> {
        let now = monotonic();
        let (stage, facts) = (StandbyStage::Joins, StandbyState::default());
        let shard = config.cluster.shard();
        let noted = StandbyNote { stage, facts, noted: now, shard, began: now };
        let mut standby = Self {
            noted: Arc::new(Mutex::new(noted)),
            listeners: Arc::default(),
            door: ForwardedClients::default(),
            http: None,
            https: Vec::new(),
            certificates: None,
        };
        let users = Arc::<UserRegistry>::default();
        if let Some(port) = config.listen.http_port.number() {
            users.begin(config)?;
            let listener = listen_at((Ipv4Addr::LOCALHOST, port).into(), open);
            let opened = standby.open(listener, config, (None, &users));
            let address =
                opened.map_err(|error| ConfigError(format!("http-port {port}: {error}")))?;
            standby.http = Some(address);
        }
        if !config.tls.is_on() {
            return Ok((standby, None));
        }
        users.begin(config)?;
        let certificates = Certificates::default();
        certificates.load(&config.tls).map_err(ConfigError)?;
        let mut port = config.tls.tls_http_port;
        for &ip in &config.listen.bind {
            let Some(at) = port.number() else { break };
            let proofs = (Some(certificates.clone()), &users);
            let opened = standby.open(listen_at((ip, at).into(), open), config, proofs);
            let address =
                opened.map_err(|error| ConfigError(format!("tls-http-port {at}: {error}")))?;
            port = OptionalPort::On(address.port());
            standby.https.push(address);
        }
        standby.certificates = Some((certificates, users.clone(), Arc::new(config.tls.clone())));
        Ok((standby, Some(StandbyUsers::new(config, users))))
    }

    fn open(
        &self,
        listener: std::io::Result<TcpListener>,
        config: &Config,
        (certificates, users): (Option<Certificates>, &Arc<UserRegistry>),
    ) -> Result<SocketAddr, String> {
        let listener = listener.map_err(|error| error.to_string())?;
        let noted = self.noted.clone();
        let vitals = StandbyVitals(Arc::new(move || lock(&noted).vitals(monotonic())));
        let proofs = (certificates, users.clone());
        let asks = (vitals, self.door.clone());
        let opened = StandbyListener::open(listener, &config.http, proofs, asks)?;
        let address = opened.address;
        lock(&self.listeners).push(opened);
        Ok(address)
    }

    /// Where HTTP is spoken.
    pub(super) fn http(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Where it is over TLS.
    pub(super) fn https(&self) -> &[SocketAddr] {
        &self.https
    }

    /// Has a server listen at the same ports, where the system has chosen them; `doors` are the addresses of [`Forwarding`](super::forward::Forwarding).
    pub(super) fn hand_on_ports(&self, config: &mut Config, doors: &[Vec<SocketAddr>; 4]) {
        let chosen = |port: OptionalPort, address: Option<&SocketAddr>| match address {
            Some(address) if port.number() == Some(0) => OptionalPort::On(address.port()),
            _ => port,
        };
        let (listen, tls) = (&mut config.listen, &mut config.tls);
        for (port, addresses) in [
            &mut listen.port,
            &mut listen.memcached_port,
            &mut tls.tls_port,
            &mut tls.tls_memcached_port,
        ]
        .into_iter()
        .zip(doors)
        {
            *port = chosen(*port, addresses.first());
        }
        config.listen.http_port = chosen(config.listen.http_port, self.http.as_ref());
        config.tls.tls_http_port = chosen(config.tls.tls_http_port, self.https.first());
    }

    /// The sockets of its ports, for a server that listens there from now on.
    pub(crate) fn let_go(&self) -> Vec<TcpListener> {
        let listeners = core::mem::take(&mut *lock(&self.listeners));
        listeners.into_iter().filter_map(|it| it.let_go().ok()).collect()
    }

    /// How hands are shaken with clients that speak TLS.
    pub(super) fn tls_door(&self, config: &Config) -> Option<TlsTermination> {
        let (certificates, users, _) = self.certificates.clone()?;
        Some(TlsTermination::new(config, certificates, users))
    }

    /// Loads certificates anew; those that cannot be used leave what was there.
    pub(super) fn reload_certificates(&self) {
        if let Some((certificates, _, settings)) = &self.certificates {
            certificates.reload(settings);
        }
    }

    /// Notes what the process is about from now on.
    pub(super) fn enter(&self, stage: StandbyStage) {
        lock(&self.noted).stage = stage;
    }

    /// Notes what the thread that follows the log knows now; why clients should not be sent here, if they should not.
    pub(super) fn note(&self, facts: StandbyState, now: Monotonic) -> Option<String> {
        let mut noted = lock(&self.noted);
        (noted.facts, noted.noted) = (facts, now);
        noted.unready(now)
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The users of a node that stands by: those that its server would have if it began now.
pub(super) struct StandbyUsers {
    registry: Arc<UserRegistry>,
    config: Box<Config>,
    /// When the folder was looked at last, and where it ended then.
    looked: Monotonic,
    ended: Option<LogMark>,
}

impl StandbyUsers {
    fn new(config: &Config, registry: Arc<UserRegistry>) -> Self {
        let config = Box::new(config.clone());
        Self { registry, config, looked: Monotonic(0), ended: None }
    }

    /// Looks for users in the folder, which ends here, if it has changed.
    pub(super) fn look(&mut self, store: &Store, ends: Option<LogMark>, now: Monotonic) {
        if now.since(self.looked) < USERS_LOOK || ends == self.ended {
            return;
        }
        self.looked = now;
        // What was applied a moment ago may not be there yet, and cannot be read then: the next look finds it.
        if keeping::read_users(store, &mut self.config).is_err() {
            return;
        }
        self.ended = store.log_mark().filter(|mark| Some(*mark) == ends);
        let renewed = UserRegistry::default();
        if renewed.begin(&self.config).is_ok() {
            let users = renewed.lock().users.clone();
            self.registry.replace(users);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted() -> StandbyNote {
        let facts = StandbyState {
            owner: Some((7, Monotonic(9_500))),
            owner_is_heard: true,
            forwards: true,
            read: Some(Monotonic(9_990)),
            at_end: Some(Monotonic(9_900)),
            lag_records: 3,
            writes: true,
            drained: false,
        };
        let stage = StandbyStage::Follows;
        StandbyNote { stage, facts, noted: Monotonic(9_990), shard: 2, began: Monotonic(1_000) }
    }

    #[test]
    fn a_node_is_ready_that_could_take_over_and_can_forward() {
        let now = Monotonic(10_000);
        assert_eq!(noted().unready(now), None);
        for (what, word) in [
            (&|it: &mut StandbyNote| it.stage = StandbyStage::Joins) as &dyn Fn(&mut StandbyNote),
            (&|it| it.stage = StandbyStage::Loads),
            (&|it| it.stage = StandbyStage::Begins),
            (&|it| it.facts.writes = false),
            (&|it| it.facts.forwards = false),
            (&|it| it.facts.read = None),
            (&|it| it.facts.read = Some(Monotonic(5_000))),
            (&|it| it.facts.lag_records = 1_001),
        ]
        .into_iter()
        .zip([
            "waits",
            "snapshot",
            "takes",
            "writes",
            "owner",
            "end",
            "end",
            "1001 records",
        ]) {
            let mut it = noted();
            what(&mut it);
            let why = it.unready(now).unwrap();
            assert!(why.contains(word), "{why}");
        }
        let mut drained = noted();
        drained.facts.drained = true;
        assert_eq!(drained.unready(now), None, "it forwards");
    }

    #[test]
    fn a_thread_that_does_not_go_on_is_no_life_unless_it_has_long_work() {
        let late = Monotonic(9_990 + LIVES_MILLIS);
        assert!(noted().vitals(Monotonic(late.0 - 1)).is_some());
        assert!(noted().vitals(late).is_none());
        for stage in [StandbyStage::Joins, StandbyStage::Loads, StandbyStage::Begins] {
            let it = StandbyNote { stage, ..noted() };
            assert!(it.vitals(late).is_some_and(|vitals| vitals.unready.is_some()));
        }
    }

    #[test]
    fn figures_say_how_far_it_follows() {
        let metrics = noted().metrics(Monotonic(10_000));
        let value = |name: &str| metrics.iter().find(|it| it.name == name).unwrap().samples[0].1;
        assert_eq!(metrics[0].samples[0], (vec![("shard", String::from("2"))], 0.0));
        for (name, expected) in [
            ("uptime_seconds", 9.0),
            ("cluster_epoch", 7.0),
            ("cluster_owner_known", 1.0),
            ("cluster_lease_age_milliseconds", 500.0),
            ("cluster_standby_followed", 1.0),
            ("cluster_standby_lag_records", 3.0),
            ("cluster_standby_lag_milliseconds", 100.0),
        ] {
            assert!((value(name) - expected).abs() < 0.001, "{name}: {}", value(name));
        }
        let mut new = noted();
        new.facts = StandbyState::default();
        let metrics = new.metrics(Monotonic(10_000));
        assert!(metrics.iter().all(|it| it.name != "cluster_lease_age_milliseconds"));
    }
}
