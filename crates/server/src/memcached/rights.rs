//! What users may do over memcached's protocol: each request is judged as the command of Redis that does the same.
//!
//! | request | command | keys |
//! | --- | --- | --- |
//! | `get`, `gets`, `mg` | `GET` | read |
//! | `gat`, `gats`, `mg` with flags that change something | `GETEX` | read and write |
//! | `set`, `replace`, `cas`, `ms`; `add`; `append`, `prepend` | `SET`; `SETNX`; `APPEND` | write |
//! | `incr`, `decr`, `ma` | `INCRBY` | read and write |
//! | `delete`, `md`; `touch` | `DEL`; `EXPIRE` | write |
//! | `me` | `OBJECT ENCODING` | any |
//! | `flush_all` | `FLUSHALL` | write, all keys |
//! | `invoke`; `register` | `FN.CALL`; `FN.LOAD` | read, or read and write |
//! | `stats` | `INFO` | |
//! | `version`, `verbosity`, `mn` | `PING` | |

use crate::resp::parts::Admission;
use crate::resp::parts::Figures;
use crate::resp::{Flow, NotAllowed, ShardService, Turn};
use headwater_acl::{Access, Demand};
use headwater_base::KeyRange;
use headwater_command::items::StoreMode;
use headwater_command::table::spec_of;
use headwater_command::{GetExpiry, Id};
use headwater_protocol::memcached::{KEY_BYTES_MAX, Meta, Request};

/// A request as rights see it.
struct Judged {
    id: Id,
    access: Access,
    keys: Vec<Vec<u8>>,
    /// It says so itself if nothing is to be answered.
    noreply: bool,
}

impl Judged {
    fn new(id: Id, access: Access, key: &[u8], noreply: bool) -> Self {
        Self { id, access, keys: vec![key.to_vec()], noreply }
    }

    fn meta(id: Id, access: Access, meta: &Meta<'_>) -> Self {
        let mut room = [0; KEY_BYTES_MAX];
        // A key that cannot be read is refused by what executes it.
        let key = meta.key_flag().map_or(&[][..], |flags| meta.key(&flags, &mut room));
        Self::new(id, access, key, false)
    }

    fn of(request: &Request<'_>) -> Option<Self> {
        Some(match *request {
            Request::Get { keys, expiry, .. } => {
                let (id, access) = match expiry {
                    GetExpiry::Keep => (Id::Get, Access::READ),
                    GetExpiry::Persist | GetExpiry::Deadline(_) => (Id::GetEx, Access::ALL),
                };
                let keys = keys.into_iter().map(<[u8]>::to_vec).collect();
                Self { id, access, keys, noreply: false }
            }
            Request::Store { key, mode, noreply, .. } => {
                let id = match mode {
                    StoreMode::Add => Id::SetNx,
                    StoreMode::Append | StoreMode::Prepend => Id::Append,
                    _ => Id::Set,
                };
                Self::new(id, Access::WRITE, key, noreply)
            }
            Request::TooLarge { key, noreply, .. } => {
                Self::new(Id::Set, Access::WRITE, key, noreply)
            }
            Request::Count { key, noreply, .. } => Self::new(Id::IncrBy, Access::ALL, key, noreply),
            Request::Delete { key, noreply } => Self::new(Id::Del, Access::WRITE, key, noreply),
            Request::Touch { key, noreply, .. } => {
                Self::new(Id::Expire, Access::WRITE, key, noreply)
            }
            Request::MetaGet(ref meta) => match meta.flags() {
                Ok(flags) if !flags.changes() => Self::meta(Id::Get, Access::READ, meta),
                _ => Self::meta(Id::GetEx, Access::ALL, meta),
            },
            Request::MetaSet { ref meta, .. } => Self::meta(Id::Set, Access::WRITE, meta),
            Request::MetaDelete(ref meta) => Self::meta(Id::Del, Access::WRITE, meta),
            Request::MetaCount(ref meta) => Self::meta(Id::IncrBy, Access::ALL, meta),
            Request::MetaDebug(ref meta) => Self::meta(Id::ObjectEncoding, Access::NONE, meta),
            Request::Invoke { key, update, reply, .. } => {
                let access = if update { Access::ALL } else { Access::READ };
                Self::new(Id::FnCall, access, key, !reply)
            }
            Request::FlushAll { noreply, .. } => {
                Self { id: Id::FlushAll, access: Access::WRITE, keys: Vec::new(), noreply }
            }
            Request::Register { .. } => Self::of_server(Id::FnLoad),
            Request::Stats { .. } => Self::of_server(Id::Info),
            Request::Version | Request::MetaNoop => Self::of_server(Id::Ping),
            Request::Verbosity { noreply } => Self { noreply, ..Self::of_server(Id::Ping) },
            // They do nothing but to end, or to be told what is wrong with them.
            Request::Quit | Request::Refused { .. } | Request::Foreign | Request::Silent => {
                return None;
            }
        })
    }

    fn of_server(id: Id) -> Self {
        Self { id, access: Access::NONE, keys: Vec::new(), noreply: false }
    }

    fn demands(&self) -> Vec<Demand<'_>> {
        if self.id == Id::FlushAll {
            return vec![Demand::Range { range: KeyRange::all(), access: self.access }];
        }
        let of = |key| Demand::Key { key, access: self.access };
        self.keys.iter().map(|key| of(key)).collect()
    }
}

impl ShardService {
    /// Whether a request may be executed; if not, that is answered.
    #[cold]
    pub(super) fn memcached_is_allowed(
        &mut self,
        request: &Request<'_>,
        work: &mut Turn<'_>,
    ) -> Result<(), Flow> {
        let Some(user) = work.connection.session.user.clone() else { return Ok(()) };
        let Some(judged) = Judged::of(request) else { return Ok(()) };
        let Some(spec) = spec_of(judged.id as usize) else { return Ok(()) };
        let needs = judged.demands();
        let function = match request {
            Request::Invoke { function, .. } => Some(*function),
            _ => None,
        };
        let denied = user.check(spec, None, &needs).map_err(NotAllowed::from);
        let denied = denied.and_then(|()| {
            let lists = judged.id == Id::FlushAll && user.is_unrestricted();
            let among = (!lists).then(|| self.admission.suspended_among(&needs)).flatten();
            let why = among.or_else(|| self.admission.suspended_function(function?));
            why.map_or(Ok(()), |why| Err(NotAllowed::Suspended(why.to_owned())))
        });
        let Err(why) = denied else { return Ok(()) };
        self.figures.stats.errors += 1;
        let text = self.note_not_allowed(&why, spec.full_name, &user, work.connection);
        if !judged.noreply {
            super::encoder(work).line(&format!("CLIENT_ERROR NOPERM {text}"));
        }
        Err(Flow::Next)
    }
}

impl Admission {
    /// Whether the command of Redis that does the same has lost its name: it has none here by which it could be asked for.
    #[cold]
    pub(super) fn is_taken_away(&self, request: &Request<'_>) -> bool {
        let spec = Judged::of(request).and_then(|judged| spec_of(judged.id as usize));
        spec.is_some_and(|spec| self.has_lost_its_name(spec))
    }
}

impl Figures {
    /// Answers as to a command that is none.
    #[cold]
    pub(super) fn refuse_unknown(&mut self, request: &Request<'_>, work: &mut Turn<'_>) -> Flow {
        self.stats.errors += 1;
        if !Judged::of(request).is_some_and(|judged| judged.noreply) {
            super::encoder(work).line("ERROR");
        }
        Flow::Next
    }
}
