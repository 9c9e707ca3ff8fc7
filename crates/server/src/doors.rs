//! Wrong passwords by the addresses that they came from, and commands by other names.
//!
//! An address may be wrong a few times; then what it tries is not looked at until some of that is forgotten, one time after
//! the other. Nothing waits for it, and who is logged in notices nothing.

use headwater_command::OwnedArgs;
use headwater_config::{ConfigError, Doors};
use headwater_protocol::resp::{Refusal, find};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Addresses that are remembered; all others count as one.
const ADDRESSES_MAX: usize = 4096;

/// What of an address counts: of the new ones the part that a network is given as a whole.
type Place = [u8; 8];

/// The wrong passwords of all shards.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures(Arc<Mutex<HashMap<Option<Place>, Record>>>);

#[derive(Clone, Copy, Debug)]
struct Record {
    count: u32,
    /// Since when nothing of it was forgotten.
    since: Instant,
}

fn place_of(address: IpAddr) -> Place {
    match address {
        IpAddr::V4(old) => u64::from(u32::from(old)).to_be_bytes(),
        IpAddr::V6(new) => match new.to_ipv4_mapped() {
            Some(old) => place_of(IpAddr::V4(old)),
            None => {
                let [a, b, c, d, e, f, g, h, ..] = new.octets();
                [a, b, c, d, e, f, g, h]
            }
        },
    }
}

impl Record {
    /// Forgets what is to be forgotten by now.
    fn forget(&mut self, each: Duration, now: Instant) {
        let each = each.max(Duration::from_millis(1));
        let passed = now.saturating_duration_since(self.since).as_millis() / each.as_millis();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        if passed >= self.count {
            self.count = 0;
        } else {
            self.count -= passed;
            self.since += each * passed;
        }
    }
}

impl Failures {
    /// How long a password from this address is not looked at; `None`: it is.
    pub(crate) fn wait(&self, address: IpAddr, settings: &Doors, now: Instant) -> Option<Duration> {
        let most = settings.login_failures_max;
        if most == 0 {
            return None;
        }
        let each = Duration::from_millis(settings.login_failure_milliseconds);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = Some(place_of(address));
        let key = if all.contains_key(&place) || all.len() < ADDRESSES_MAX { place } else { None };
        let record = all.get_mut(&key)?;
        record.forget(each, now);
        if record.count == 0 {
            all.remove(&key);
            return None;
        }
        let ends = record.since + each;
        (record.count >= most).then(|| ends.saturating_duration_since(now))
    }

    /// A password from this address was wrong.
    pub(crate) fn note(&self, address: IpAddr, settings: &Doors, now: Instant) {
        let each = Duration::from_millis(settings.login_failure_milliseconds);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = Some(place_of(address));
        if !all.contains_key(&place) && all.len() >= ADDRESSES_MAX {
            all.retain(|_, record| {
                record.forget(each, now);
                record.count > 0
            });
        }
        let key = if all.contains_key(&place) || all.len() < ADDRESSES_MAX { place } else { None };
        let record = all.entry(key).or_insert(Record { count: 0, since: now });
        record.forget(each, now);
        if record.count == 0 {
            record.since = now;
        }
        record.count = record.count.saturating_add(1).min(settings.login_failures_max.max(1));
    }
}

/// Commands that have other names, or none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Renames(HashMap<Vec<u8>, Option<Vec<u8>>>);

impl Renames {
    /// Reads the settings: `OLD NEW`, or `OLD` alone.
    pub(crate) fn parse(settings: &[String]) -> Result<Self, ConfigError> {
        let is_command = |name: &str| {
            let request: OwnedArgs = [name.as_bytes()].into_iter().collect();
            !matches!(find(request.args()), Err(Refusal::UnknownCommand(_)))
        };
        let mut names = HashMap::new();
        for text in settings {
            let refuse = |why: &str| Err(ConfigError(format!("rename-command '{text}': {why}")));
            let words: Vec<&str> = text.split_whitespace().collect();
            let (old, new) = match *words {
                [old] => (old, None),
                [old, new] => (old, Some(new)),
                _ => return refuse("it is no pair of names (allowed: OLD NEW, or OLD alone)"),
            };
            if !is_command(old) {
                return refuse("there is no such command");
            }
            if new.is_some_and(is_command) {
                return refuse("a command has the new name");
            }
            let lower = |name: &str| name.to_ascii_lowercase().into_bytes();
            let mut entry =
                |name: &str, is: Option<Vec<u8>>| names.insert(lower(name), is).is_some();
            if entry(old, None) || new.is_some_and(|new| entry(new, Some(lower(old)))) {
                return refuse("a name is given twice");
            }
        }
        Ok(Self(names))
    }

    /// Whether every command has its own name.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What a name stands for. `None`: itself; `Some(None)`: nothing.
    pub(crate) fn look(&self, name: &[u8]) -> Option<Option<&[u8]>> {
        self.0.get(&name.to_ascii_lowercase()).map(Option::as_deref)
    }
}

#[cfg(test)]
mod tests {
    use super::{ADDRESSES_MAX, Failures, Renames};
    use headwater_config::Doors;
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::{Duration, Instant};

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn who_is_wrong_too_often_waits_and_others_do_not() {
        let (failures, settings, now) = (Failures::default(), Doors::default(), Instant::now());
        let at = |millis| now + Duration::from_millis(millis);
        let (bad, good) = (address("10.0.0.1"), address("10.0.0.2"));
        for _ in 0..10 {
            assert_eq!(failures.wait(bad, &settings, now), None);
            failures.note(bad, &settings, now);
        }
        assert_eq!(failures.wait(bad, &settings, at(400)), Some(Duration::from_millis(600)));
        assert!(failures.wait(address("::ffff:10.0.0.1"), &settings, now).is_some());
        assert_eq!(failures.wait(good, &settings, now), None);
        // One is forgotten each second, and one more may be wrong.
        assert_eq!(failures.wait(bad, &settings, at(1000)), None);
        failures.note(bad, &settings, at(1000));
        assert!(failures.wait(bad, &settings, at(1999)).is_some());
        assert_eq!(failures.wait(bad, &settings, at(60_000)), None);
        let any = Doors { login_failures_max: 0, ..settings };
        failures.note(bad, &any, now);
        assert_eq!(failures.wait(bad, &any, now), None);
    }

    #[test]
    fn networks_count_as_one_and_a_flood_of_addresses_takes_no_memory() {
        let (failures, settings, now) = (Failures::default(), Doors::default(), Instant::now());
        for number in 0..20 {
            failures.note(address(&format!("2001:db8::{number:x}")), &settings, now);
        }
        assert!(failures.wait(address("2001:db8::ffff"), &settings, now).is_some());
        assert_eq!(failures.wait(address("2001:db8:0:1::1"), &settings, now), None);
        for number in 0..2 * ADDRESSES_MAX as u32 {
            failures.note(IpAddr::V4(Ipv4Addr::from(number)), &settings, now);
        }
        assert!(failures.0.lock().unwrap().len() <= ADDRESSES_MAX + 1);
        let new = address("172.16.0.1");
        assert!(failures.wait(new, &settings, now).is_some(), "those beyond count as one");
        assert_eq!(failures.wait(new, &settings, now + Duration::from_secs(60)), None);
    }

    #[test]
    fn commands_have_other_names_or_none() {
        let names = |texts: &[&str]| {
            Renames::parse(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
        };
        let renames = names(&["CONFIG admin-config", "flushall"]).unwrap();
        assert_eq!(renames.look(b"Config"), Some(None));
        assert_eq!(renames.look(b"ADMIN-config"), Some(Some(&b"config"[..])));
        assert_eq!((renames.look(b"FLUSHALL"), renames.look(b"get")), (Some(None), None));
        for (wrong, told) in [
            (&["nothing x"][..], "no such command"),
            (&["get set"], "has the new name"),
            (&["get x", "set x"], "twice"),
            (&["get x", "get y"], "twice"),
            (&["a b c"], "no pair"),
        ] {
            let error = names(wrong).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
