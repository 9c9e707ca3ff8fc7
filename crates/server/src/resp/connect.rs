//! Commands about the connection itself: greeting, authentication, names.

use super::session::{Answering, Session};
use super::tracking::redirect_of;
use super::{Flow, ShardService, Turn, encoder};
use crate::connection::Connection;
use headwater_command::{Connection as Asked, Credentials, Reply, ReplyMode};
use headwater_protocol::resp::Version;

/// The version of Redis whose commands and replies these are.
pub(super) const REDIS_VERSION: &str = "7.0.15";

const WRONG_PASSWORD: &str = "invalid username-password pair or user is disabled.";
const HELLO_WITHOUT_PASSWORD: &str = "HELLO must be called with the client already authenticated, \
     otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client \
     and select the RESP protocol version at the same time";
const NO_PASSWORD_SET: &str = "AUTH <password> called without any password configured for the \
     default user. Are you sure your configuration is correct?";
const BAD_NAME: &str = "Client names cannot contain spaces, newlines or special characters.";

impl ShardService {
    /// Executes a command about the connection.
    pub(super) fn connection(&mut self, command: &Asked<'_>, work: &mut Turn<'_>) -> Flow {
        if self.refuse_login(command, work) {
            return Flow::Next;
        }
        match command {
            Asked::Hello { version, credentials, name } => {
                self.hello(*version, *credentials, *name, work);
            }
            Asked::Auth(credentials) => self.auth(credentials, work),
            Asked::Ping { message } => ping(*message, work),
            Asked::Echo { message } => encoder(work).bulk(message),
            Asked::Quit => {
                encoder(work).ok();
                return Flow::Close;
            }
            Asked::Reset => self.reset(work),
            Asked::Select => encoder(work).ok(),
            Asked::ClientId => {
                let number = work.connection.id.number;
                encoder(work).integer(number as i64);
            }
            Asked::ClientGetName => {
                let name = work.connection.session.name().to_vec();
                let mut out = encoder(work);
                if name.is_empty() { out.null() } else { out.bulk(&name) }
            }
            Asked::ClientSetName { name } => {
                if set_name(&mut work.connection.session, name) {
                    encoder(work).ok();
                } else {
                    encoder(work).error("ERR", format_args!("{BAD_NAME}"));
                }
            }
            Asked::ClientSetInfo { attribute, value } => set_info(attribute, value, work),
            Asked::ClientNoEvict { on } => {
                work.connection.session.no_evict = *on;
                encoder(work).ok();
            }
            Asked::ClientNoTouch { on } => {
                work.connection.session.no_touch = *on;
                encoder(work).ok();
            }
            Asked::ClientCapa { blob_errors } => {
                work.connection.session.blob_errors |= *blob_errors;
                encoder(work).ok();
            }
            Asked::ClientReply(mode) => set_answering(*mode, work),
            Asked::ClientList { kind, ids } => self.client_list(*kind, *ids, work),
            Asked::ClientInfo => self.client_info(work),
            Asked::ClientTracking(asked) => self.client_tracking(asked, work),
            Asked::ClientCaching { yes } => self.client_caching(*yes, work),
            Asked::ClientTrackingInfo => self.client_tracking_info(work),
            Asked::ClientGetRedir => {
                let number = redirect_of(work.connection.session.tracking.as_deref());
                encoder(work).integer(number);
            }
            Asked::ClientPause { millis, writes_alone } => {
                self.pause(*millis, *writes_alone);
                encoder(work).ok();
            }
            Asked::ClientUnpause => {
                self.waits.unpause(work);
                encoder(work).ok();
            }
            Asked::ClientUnblock { id, with_error } => {
                let count = self.unblock(*id, *with_error, work);
                encoder(work).integer(count);
            }
            Asked::ClientKill(filter) => return self.admission.client_kill(filter, work),
        }
        Flow::Next
    }

    fn hello(
        &mut self,
        version: Option<u8>,
        credentials: Option<Credentials<'_>>,
        name: Option<&[u8]>,
        work: &mut Turn<'_>,
    ) {
        if let Some(credentials) = credentials
            && !self.authenticate(&credentials, work.connection)
        {
            encoder(work).error("WRONGPASS", format_args!("{WRONG_PASSWORD}"));
            return;
        }
        if !work.connection.session.authenticated {
            encoder(work).error("NOAUTH", format_args!("{HELLO_WITHOUT_PASSWORD}"));
            return;
        }
        if let Some(name) = name
            && !set_name(&mut work.connection.session, name)
        {
            encoder(work).error("ERR", format_args!("{BAD_NAME}"));
            return;
        }
        match version {
            Some(3) => work.connection.session.version = Version::Resp3,
            Some(_) => work.connection.session.version = Version::Resp2,
            None => {}
        }
        let number = work.connection.id.number;
        let is_three = work.connection.session.version == Version::Resp3;
        let mut out = encoder(work);
        out.map(7);
        for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
            out.bulk(name.as_bytes());
            out.bulk(value.as_bytes());
        }
        out.bulk(b"proto");
        out.integer(if is_three { 3 } else { 2 });
        out.bulk(b"id");
        out.integer(number as i64);
        for (name, value) in [("mode", self.stores.mode()), ("role", "master")] {
            out.bulk(name.as_bytes());
            out.bulk(value.as_bytes());
        }
        out.bulk(b"modules");
        out.array(0);
    }

    fn auth(&mut self, credentials: &Credentials<'_>, work: &mut Turn<'_>) {
        if credentials.user.is_none() && !self.admission.needs_password() {
            encoder(work).error("ERR", format_args!("{NO_PASSWORD_SET}"));
        } else if self.authenticate(credentials, work.connection) {
            encoder(work).ok();
        } else {
            encoder(work).error("WRONGPASS", format_args!("{WRONG_PASSWORD}"));
        }
    }

    /// Logs a client in, if its name and password are right and its user may.
    pub(crate) fn authenticate(
        &mut self,
        credentials: &Credentials<'_>,
        connection: &mut Connection<Session>,
    ) -> bool {
        let known = self
            .admission
            .registry
            .lock()
            .users
            .authenticate(credentials.user, credentials.password);
        let right = known.is_some();
        match known {
            Some(user) => self.log_in(user, connection),
            None => self.note_wrong_password(credentials, connection),
        }
        right
    }

    fn reset(&mut self, work: &mut Turn<'_>) {
        self.unwatch_remote(work);
        let id = work.connection.id;
        let session = &mut work.connection.session;
        self.pushes.forget_subscriptions(id, session);
        self.forget_monitor(id, session);
        self.forget_backup(id, session);
        self.forget_range_watches(session);
        self.forget_watches(session);
        self.forget_tracking(id, session);
        // What the client's library said of itself stays true.
        let mut identity = session.identity.take();
        if let Some(identity) = &mut identity {
            identity.name.clear();
        }
        *session = Session {
            identity,
            certificate: session.certificate.take(),
            forwarded: session.forwarded.take(),
            login_from: self.time.uptime,
            last_command: session.last_command,
            commands: session.commands,
            // Other shards go on executing for it.
            across: core::mem::take(&mut session.across),
            positions: core::mem::take(&mut session.positions),
            ..Session::default()
        };
        self.admission.let_in(&mut work.connection.session);
        // It is who it was when it came.
        let peer = work.connection.peer;
        self.admission.log_in_certified(&mut work.connection.session, peer);
        encoder(work).simple("RESET");
    }
}

fn ping(message: Option<&[u8]>, work: &mut Turn<'_>) {
    let session = &work.connection.session;
    let listening = session.is_subscriber() && session.version == Version::Resp2;
    let mut out = encoder(work);
    match message {
        _ if listening => {
            out.array(2);
            out.bulk(b"pong");
            out.bulk(message.unwrap_or_default());
        }
        Some(message) => out.bulk(message),
        None => out.simple("PONG"),
    }
}

/// Names may only have printable characters, so that CLIENT LIST can be parsed.
fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

fn set_name(session: &mut Session, name: &[u8]) -> bool {
    if !is_plain(name) {
        return false;
    }
    session.identity_mut().name = name.to_vec();
    // Other shards know it by the name before.
    session.is_introduced = false;
    true
}

fn set_info(attribute: &[u8], value: &[u8], work: &mut Turn<'_>) {
    let is_name = attribute.eq_ignore_ascii_case(b"lib-name");
    if !is_name && !attribute.eq_ignore_ascii_case(b"lib-ver") {
        let shown = attribute.escape_ascii();
        encoder(work).error("ERR", format_args!("Unrecognized option '{shown}'"));
    } else if !is_plain(value) {
        let shown = if is_name { "lib-name" } else { "lib-ver" };
        encoder(work).error(
            "ERR",
            format_args!("{shown} cannot contain spaces, newlines or special characters."),
        );
    } else {
        let identity = work.connection.session.identity_mut();
        let slot = if is_name { &mut identity.library } else { &mut identity.library_version };
        *slot = value.to_vec();
        encoder(work).ok();
    }
}

fn set_answering(mode: ReplyMode, work: &mut Turn<'_>) {
    let answering = &mut work.connection.session.answering;
    match mode {
        ReplyMode::On => {
            *answering = Answering::On;
            encoder(work).ok();
        }
        ReplyMode::Off => *answering = Answering::Off,
        ReplyMode::Skip if *answering != Answering::Off => *answering = Answering::SkipNext,
        ReplyMode::Skip => {}
    }
}
