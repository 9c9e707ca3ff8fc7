//! How many files the process may have open: each connection is one.

use headwater_config::Clients;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are no connections: listeners, the poll, standard streams, and a reserve.
const RESERVED: u64 = 64;

/// Raises the process's limit as far as `clients` needs it, and where the system allows less,
/// lowers the number of clients instead; the sentence that says so.
///
/// `others`: connections that are no clients yet.
pub(crate) fn provide(clients: &mut Clients, others: usize) -> Option<String> {
    let reserved = RESERVED + others as u64;
    let needed = clients.clients_max as u64 + reserved;
    let limit = getrlimit(Resource::Nofile);
    let allowed = limit.maximum.unwrap_or(u64::MAX);
    if limit.current.is_none_or(|current| current >= needed) {
        return None;
    }
    let wanted = Rlimit { current: Some(needed.min(allowed)), maximum: limit.maximum };
    let got = match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => needed.min(allowed),
        Err(_) => limit.current.unwrap_or(allowed),
    };
    if got >= needed {
        return None;
    }
    let asked = clients.clients_max;
    clients.clients_max = (got.saturating_sub(reserved) as usize).max(1);
    Some(format!(
        "clients-max is {} instead of {asked}: the system allows {got} open files (ulimit -n)",
        clients.clients_max
    ))
}
