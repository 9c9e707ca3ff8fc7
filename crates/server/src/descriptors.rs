//! How many files the process may have open: each connection is one.

use crate::tls::HANDSHAKES_MAX;
use headwater_config::{Clients, Config};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are no connections: listeners, the poll, standard streams, and a reserve.
const RESERVED: u64 = 64;

/// Raises the process's limit as far as `clients` needs it, and where the system allows less,
/// lowers the number of clients instead; the sentence that says so.
///
/// `others`: connections that are no clients yet.
pub(crate) fn provide(clients: &mut Clients, others: usize) -> Option<String> {
    provide_each(clients, 1, others)
}

/// The same for a node of a cluster that stands by: a client that is passed on is two connections, and one whose protocol ends here has the two ends of another one
/// in between.
pub(crate) fn provide_for_forwarding(config: &mut Config) -> Option<String> {
    let (each, handshakes) = if config.tls.is_on() { (4, HANDSHAKES_MAX) } else { (2, 0) };
    // Whose requests over HTTP are forwarded counts as a client, too.
    let others = handshakes + 2 * config.http.http_clients_max;
    let warning = provide_each(&mut config.clients, each, others);
    warning.map(|text| format!("{text}, of which a client that is forwarded takes {each}"))
}

/// The same, with so many descriptors for each client.
fn provide_each(clients: &mut Clients, each: u64, others: usize) -> Option<String> {
    let reserved = RESERVED + others as u64;
    let needed = clients.clients_max as u64 * each + reserved;
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
    // Not all that others may need is there at once.
    let left = got.saturating_sub(reserved).max(got / 2);
    clients.clients_max = ((left / each) as usize).max(1);
    Some(format!(
        "clients-max is {} instead of {asked}: the system allows {got} open files (ulimit -n)",
        clients.clients_max
    ))
}
