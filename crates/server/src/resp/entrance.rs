//! Who comes in, as the service deals with it: certificates, wrong passwords, and what clients may have the server do besides what is about
//! their data.

use super::{Flow, Session, ShardService, Turn, encoder};
use crate::connection::Connection;
use crate::doors::{Failures, Renames};
use crate::log::event;
use crate::resp::parts::Admission;
use crate::resp::parts::InForce;
use crate::tls::{Arrivals, Certificates, Doorway};
use crate::wire_protocol::{WireProtocol, listen_at};
use headwater_base::connect::{Allowed, check_http_url, shown_place};
use headwater_command::{
    Args, Command, Connection as Asked, Data, FlowAction, Flows, OwnedArgs, Reply, Server, Spec,
};
use headwater_config::settings;
use headwater_config::{Config, ConfigError, DebugCommand};
use headwater_postgres::terms::Terms;
use headwater_protocol::resp::Refusal;
use headwater_webhook::place_of;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::Instant;

const PROTECTED: &[u8] = b"-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the \
default user. In this mode connections are only accepted from the loopback interface. Set a password (requirepass, requirepass-file), \
or, if whoever can reach this port may do everything here, protected-mode = false; CONFIG SET does either from the machine itself.\r\n";
const PROTECTED_MEMCACHED: &[u8] =
    b"SERVER_ERROR protected mode: no password is set, and only clients of this machine are let in\r\n";
const DEBUG_REFUSED: &str = "DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a \
local connection, otherwise you need to set this option in the configuration file, and then restart the server.";

/// What a client of another machine reads where there is no password, in what it speaks.
pub(crate) fn protected(door: WireProtocol) -> &'static [u8] {
    match door {
        WireProtocol::Resp => PROTECTED,
        WireProtocol::Memcached => PROTECTED_MEMCACHED,
    }
}

/// What all shards know of those who come in.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommonEntrance {
    certificates: Certificates,
    failures: Failures,
}

/// What a shard has of those who come in.
#[derive(Debug)]
pub(super) struct Entrance {
    common: CommonEntrance,
    /// Who is through with a handshake; at the first shard.
    pub(super) arrivals: Arrivals,
    pub(super) renames: Renames,
    /// The places that clients may name.
    allowed: Allowed,
}

impl Entrance {
    /// Loads certificates where TLS is spoken, if no shard before has done so.
    pub(super) fn begin(
        config: &Config,
        common: Option<&CommonEntrance>,
    ) -> Result<Self, ConfigError> {
        let common = common.cloned().unwrap_or_default();
        if config.tls.is_on() && common.certificates.current().is_none() {
            common.certificates.load(&config.tls).map_err(ConfigError)?;
        }
        Ok(Self {
            common,
            arrivals: Arrivals::default(),
            renames: Renames::parse(&config.doors.rename_command)?,
            allowed: config.connect.allowed()?,
        })
    }
}

/// What goes with the URL of a source: the administrator's, or one of a client that may name these places.
pub(super) fn terms(config: &Config, allowed: Option<Allowed>) -> Terms {
    Terms {
        allowed,
        clear_passwords: config.connect.source_clear_passwords,
        certificates: config.connect.source_certificates.clone(),
        shard: config.shard_apart(),
    }
}

impl ShardService {
    /// What goes with the URL of a source that a client names. Where the server connects to is for the settings to say, whoever the client
    /// is: what it adds is kept, and tried again when the user may long have lost its rights.
    pub(super) fn terms_of_clients(&self) -> Terms {
        terms(&self.settings.config, Some(self.admission.entrance.allowed.clone()))
    }

    /// Whether a client may have the server do what a command asks for besides what is about data; what is sources' is asked where
    /// they are added.
    pub(super) fn check_reach(
        &self,
        command: &Command<'_>,
        connection: &Connection<Session>,
    ) -> Result<(), String> {
        match command {
            Command::Data(Data::Flows(Flows::Add {
                action: FlowAction::Post { url, .. }, ..
            })) => self.admission.check_post(url),
            Command::Server(
                Server::DebugSleep { .. }
                | Server::DebugSetActiveExpire { .. }
                | Server::DebugProtocol { .. },
            ) => {
                // A client that another node passes on is of that one's machine.
                let local = connection.peer.ip().to_canonical().is_loopback()
                    && connection.session.forwarded.is_none();
                match self.settings.config.doors.enable_debug_command {
                    DebugCommand::Yes => Ok(()),
                    DebugCommand::Local if local => Ok(()),
                    // The shard of its client has looked.
                    DebugCommand::Local
                        if connection.is_remote() && !self.waits.executing_queue =>
                    {
                        Ok(())
                    }
                    DebugCommand::Local | DebugCommand::No => Err(String::from(DEBUG_REFUSED)),
                }
            }
            _ => Ok(()),
        }
    }

    /// How long this client's passwords are not looked at, in milliseconds.
    pub(crate) fn login_wait(&self, connection: &Connection<Session>) -> Option<u64> {
        let failures = &self.admission.entrance.common.failures;
        let wait =
            failures.wait(connection.peer.ip(), &self.settings.config.doors, Instant::now())?;
        Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1))
    }

    /// Refuses what would log a client in whose address has been wrong too often.
    pub(super) fn refuse_login(&mut self, command: &Asked<'_>, work: &mut Turn<'_>) -> bool {
        let tries = matches!(command, Asked::Auth(_))
            || matches!(command, Asked::Hello { credentials: Some(_), .. });
        let Some(wait) = tries.then(|| self.login_wait(work.connection)).flatten() else {
            return false;
        };
        encoder(work).error(
            "ERR",
            format_args!("too many wrong passwords from this address: try again in {wait} ms"),
        );
        true
    }

    /// A client has given a wrong password.
    pub(super) fn note_failure(&self, connection: &Connection<Session>) {
        let failures = &self.admission.entrance.common.failures;
        failures.note(connection.peer.ip(), &self.settings.config.doors, Instant::now());
    }

    /// What a client reads that is not let in because everybody would be.
    pub(super) fn is_protected_from(
        &self,
        peer: SocketAddr,
        door: WireProtocol,
    ) -> Option<&'static [u8]> {
        let protects =
            self.settings.config.doors.protected_mode && !self.admission.needs_password();
        if !protects || peer.ip().to_canonical().is_loopback() {
            return None;
        }
        event!(warn, "clients", "protected", %peer, "a client of another machine was refused: there is no password (protected-mode)");
        Some(protected(door))
    }

    /// How many clients there may be before this one is one too many.
    pub(super) fn clients_max_for(&self, peer: SocketAddr) -> usize {
        let most = self.settings.bounds.clients_max;
        if peer.ip().to_canonical().is_loopback() {
            return most;
        }
        most - self.settings.config.doors.clients_reserved.min(most / 2)
    }

    /// Executes a request whose command may have another name.
    #[cold]
    pub(super) fn request_renamed(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Flow {
        match args.get(0).and_then(|name| self.admission.entrance.renames.look(name)) {
            None => self.request_named(args, work),
            Some(None) => self.not_found(&Refusal::UnknownCommand(args), work),
            Some(Some(old)) => {
                let words = std::iter::once(old).chain(args.iter().skip(1));
                let request: OwnedArgs = words.collect();
                self.request_named(request.args(), work)
            }
        }
    }

    /// Listens where TLS is spoken, with the sockets that do so already, if some of these do; the first shard takes who comes.
    pub(crate) fn open_doorway(
        &self,
        open: &mut Vec<TcpListener>,
    ) -> Result<Option<Doorway>, ConfigError> {
        let tls = &self.settings.config.tls;
        if tls.tls_port.number().is_none() && tls.tls_memcached_port.number().is_none() {
            return Ok(None);
        }
        let (certificates, arrivals) = (
            self.admission.entrance.common.certificates.clone(),
            self.admission.entrance.arrivals.clone(),
        );
        let ring = self.stores.hub.inbox.bell();
        let doorway = Doorway::open(
            &self.settings.config,
            certificates,
            arrivals,
            ring,
            (open, &|listener| self.leave_open(listener)),
        );
        doorway.map(Some)
    }

    /// Speaks HTTP over TLS where the settings say so, with the sockets that listen there already, if some of these do.
    pub(crate) fn serve_https(
        &self,
        open: &mut Vec<TcpListener>,
    ) -> Result<Vec<SocketAddr>, ConfigError> {
        let Some(mut port) = self.settings.config.tls.tls_http_port.number() else {
            return Ok(Vec::new());
        };
        let mut addresses = Vec::new();
        for &address in &self.settings.config.listen.bind {
            let listener =
                listen_at((address, port).into(), open).map_err(|error| error.to_string());
            let proofs = (
                Some(self.admission.entrance.common.certificates.clone()),
                self.admission.registry.clone(),
            );
            let served = listener.and_then(|it| {
                let ways = (self.admission.entrance.arrivals.clone(), self.stores.hub.inbox.bell());
                self.leave_open(it.as_fd());
                let closes = self.closes();
                self.figures.probes.serve(it, &self.settings.config.http, proofs, ways, closes)
            });
            let served =
                served.map_err(|error| ConfigError(format!("tls-http-port {port}: {error}")))?;
            port = served.port();
            addresses.push(served);
        }
        Ok(addresses)
    }

    /// Loads the files that these settings name; those that were there stay if one cannot be used.
    pub(super) fn load_certificates(&self, config: &Config) -> Result<(), String> {
        self.admission.entrance.common.certificates.load(&config.tls)
    }

    /// Loads the files anew: SIGHUP. What cannot be read leaves what was there.
    pub(super) fn reload_certificates(&self) {
        if !self.settings.config.tls.is_on() {
            return;
        }
        self.admission.entrance.common.certificates.reload(&self.settings.config.tls);
    }
}

impl Admission {
    /// Whether commands have other names than in the table.
    #[inline]
    pub(crate) fn has_renames(&self) -> bool {
        !self.entrance.renames.is_empty()
    }

    /// Whether a command is not to be had by its name in the table.
    pub(crate) fn has_lost_its_name(&self, spec: &Spec) -> bool {
        let name = spec.full_name.split('|').next().unwrap_or_default();
        self.entrance.renames.look(name.as_bytes()) == Some(None)
    }

    /// Whether a client may have changes posted to this URL.
    fn check_post(&self, url: &str) -> Result<(), String> {
        check_http_url(url)?;
        let (host, port) = place_of(url).ok_or("the URL to post to is none")?;
        if self.entrance.allowed.names(&host, port) {
            return Ok(());
        }
        Err(format!("connect-allow does not name {}", shown_place(&host, port)))
    }

    /// Loads the files anew where `CONFIG SET` has named one of them, even by the name that it had. The log alone tells why one cannot be used:
    /// what files there are is nothing for clients.
    pub(super) fn change_certificates(
        &self,
        config: &Config,
        pairs: &[(String, String)],
    ) -> Result<(), String> {
        let mut named = pairs.iter().filter_map(|(name, _)| settings::find(name));
        if !named.any(|setting| setting.name.starts_with("tls-")) || !config.tls.is_on() {
            return Ok(());
        }
        self.entrance.common.certificates.load(&config.tls).map_err(|why| {
            event!(error, "server", "tls_reload_failed", why, "CONFIG SET: the certificates that were there stay");
            String::from(
                "CONFIG SET failed - Unable to update TLS configuration: the files cannot be used (the log says why)",
            )
        })
    }
}

impl InForce {
    /// Whether a client has said where a flow posts to: the configuration file does not say so.
    pub(super) fn is_posted_for_client(&self, flow: &str, url: &str) -> bool {
        let same = |known: &headwater_config::Flow| {
            known.name == flow && known.post.as_deref() == Some(url)
        };
        !self.config.flows.iter().any(same)
    }
}
