//! What can be set for a source, and its names in the database.

use crate::terms::Terms;
use crate::url::Target;
use headwater_base::hash::stable_hash;
use std::time::Duration;

/// How a source goes about its work.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The source's name.
    pub name: String,
    /// Where the database is.
    pub target: Target,
    /// How changes are told.
    pub follow: Follow,
    /// The publication's name.
    pub publication: String,
    /// The slot's name, or what it begins with.
    pub slot: String,
    /// Whether the slot outlives a connection.
    pub slot_kind: SlotKind,
    /// The slot is dropped where it holds back more of the log than this.
    pub lag_bytes_max: u64,
    /// Whether alterations are told by an event trigger, where the user may create one.
    pub event_trigger: bool,
    /// How many connections load and check.
    pub connections: usize,
    /// How many connections write and ask for positions, at most.
    pub writers: usize,
    /// A server that says nothing for so long, though asked, is taken for one that is not there.
    pub silence: Duration,
    /// How long a load, a declaration, a question or a write may take.
    pub patience: Duration,
    /// A larger transaction is not applied: its tables are loaded again.
    pub transaction_bytes_max: usize,
    /// A load that gives more is refused.
    pub load_bytes_max: usize,
    /// Longer keys are left out.
    pub key_bytes_max: usize,
}

/// How changes are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follow {
    /// By the log where the database allows it, by triggers elsewhere.
    Auto,
    /// By logical replication.
    Log,
    /// By triggers that note them in a table.
    Triggers,
}

/// What becomes of the slot when the connection is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotKind {
    /// As `Kept` where the server bounds what slots hold back, as `Temporary` elsewhere.
    Auto,
    /// The server drops it with the connection.
    Temporary,
    /// It stays, and following goes on where it was.
    Kept,
}

/// The most bytes of a slot's name before a shard's number is put behind it. Names of triggers begin with both, and PostgreSQL cuts names at 63 bytes.
const BASE_BYTES_MAX: usize = 40;

/// A name that is no longer than that: of a longer one its beginning, and a hash of all of it.
fn shortened(name: &str) -> String {
    if name.len() <= BASE_BYTES_MAX {
        return name.to_owned();
    }
    let first: String = name.chars().take(BASE_BYTES_MAX - 9).collect();
    format!("{first}_{:08x}", stable_hash(0, name.as_bytes()) as u32)
}

impl Settings {
    /// Reads a source's URL and options, which are words and what they are set to; the URL's parameters may be some as
    /// well.
    ///
    /// # Errors
    /// A sentence that says which is wrong.
    pub fn read(name: &str, url: &str, options: &[(String, String)]) -> Result<Self, String> {
        Self::read_for(name, url, options, &Terms::default())
    }

    /// As [`Settings::read`], of somebody who may do what these terms say.
    ///
    /// # Errors
    /// A sentence that says which is wrong.
    pub fn read_for(
        name: &str,
        url: &str,
        options: &[(String, String)],
        terms: &Terms,
    ) -> Result<Self, String> {
        let plain = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
        // Slots have names of such characters only.
        let safe: String = name
            .to_ascii_lowercase()
            .chars()
            .map(|next| if plain(next) { next } else { '_' })
            .take(40)
            .collect();
        let mut settings = Self {
            name: name.to_owned(),
            target: Target::parse_for(url, terms)?,
            follow: Follow::Auto,
            publication: format!("headwater_{safe}"),
            slot: format!("headwater_{safe}"),
            slot_kind: SlotKind::Auto,
            lag_bytes_max: 1 << 30,
            event_trigger: true,
            connections: 4,
            writers: 16,
            silence: Duration::from_secs(5),
            // A little less than Headwater waits itself, so that a reason can be told.
            patience: Duration::from_millis(4500),
            transaction_bytes_max: 256 << 20,
            load_bytes_max: 1 << 30,
            key_bytes_max: headwater_base::Limits::default().key_bytes_max,
        };
        let given = std::mem::take(&mut settings.target.options);
        for (word, text) in given.iter().chain(options) {
            settings.set(&word.to_ascii_lowercase(), text.trim())?;
        }
        if let Some(shard) = terms.shard {
            settings.slot = format!("{}_shard{shard}", shortened(&settings.slot));
        }
        Ok(settings)
    }

    fn set(&mut self, word: &str, text: &str) -> Result<(), String> {
        let number = |least: usize| {
            let number = text.parse().ok().filter(|number: &usize| *number >= least);
            number.ok_or_else(|| format!("{word} is a number from {least} on, not `{text}`"))
        };
        match word {
            "publication" => text.clone_into(&mut self.publication),
            "slot-name" => {
                let fits =
                    |next: char| next.is_ascii_lowercase() || next.is_ascii_digit() || next == '_';
                if text.is_empty() || text.len() > 50 || !text.chars().all(fits) {
                    return Err("slot-name is 1 to 50 small letters, digits and `_`".to_owned());
                }
                text.clone_into(&mut self.slot);
            }
            "slot" => {
                self.slot_kind = match text.to_ascii_lowercase().as_str() {
                    "auto" => SlotKind::Auto,
                    "temporary" => SlotKind::Temporary,
                    "kept" => SlotKind::Kept,
                    other => {
                        return Err(format!("slot is auto, temporary or kept, not `{other}`"));
                    }
                };
            }
            "follow" => {
                self.follow = match text.to_ascii_lowercase().as_str() {
                    "auto" => Follow::Auto,
                    "log" => Follow::Log,
                    "triggers" => Follow::Triggers,
                    other => {
                        return Err(format!("follow is auto, log or triggers, not `{other}`"));
                    }
                };
            }
            "lag-bytes-max" => self.lag_bytes_max = number(1 << 20)? as u64,
            "event-trigger" => {
                self.event_trigger = match text.to_ascii_lowercase().as_str() {
                    "auto" => true,
                    "none" => false,
                    other => return Err(format!("event-trigger is auto or none, not `{other}`")),
                };
            }
            "connections" => self.connections = number(1)?.min(64),
            "writers" => self.writers = number(1)?.min(256),
            "silence-ms" => self.silence = Duration::from_millis(number(100)? as u64),
            "timeout-ms" => self.patience = Duration::from_millis(number(1)? as u64),
            "transaction-bytes-max" => self.transaction_bytes_max = number(1 << 10)?,
            "load-bytes-max" => self.load_bytes_max = number(1 << 10)?,
            other => return Err(format!("a source from PostgreSQL has no option `{other}`")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &[(&str, &str)]) -> Result<Settings, String> {
        let options: Vec<_> =
            options.iter().map(|(word, text)| ((*word).to_owned(), (*text).to_owned())).collect();
        Settings::read("My shop!", "postgres://ann@localhost/shop", &options)
    }

    #[test]
    fn a_shard_that_has_a_source_for_itself_has_its_own_slot() {
        let terms = Terms { shard: Some(2), ..Terms::default() };
        for (url, slot) in [
            ("postgres://ann@localhost/shop", "headwater_shop_shard2"),
            ("postgres://ann@localhost/shop?slot-name=mine", "mine_shard2"),
        ] {
            let settings = Settings::read_for("shop", url, &[], &terms).unwrap();
            assert_eq!((&*settings.slot, &*settings.publication), (slot, "headwater_shop"));
        }
        // Long names stay two.
        let long = ["a", "b"].map(|end| {
            let name = format!("a_name_of_so_many_bytes_that_it_is_cut_{end}");
            let url = format!("postgres://ann@localhost/shop?slot-name={name}");
            Settings::read_for("shop", &url, &[], &terms).unwrap().slot
        });
        assert!(long.iter().all(|slot| slot.len() == 47 && slot.ends_with("_shard2")), "{long:?}");
        assert_ne!(long[0], long[1]);
    }

    #[test]
    fn options() {
        let settings = read(&[("SLOT", "kept"), ("timeout-ms", "250")]).unwrap();
        assert_eq!(
            (&*settings.slot, &*settings.publication),
            ("headwater_my_shop_", "headwater_my_shop_")
        );
        assert_eq!(settings.slot_kind, SlotKind::Kept);
        assert_eq!(settings.patience, Duration::from_millis(250));
        for wrong in [
            ("slot", "for-ever"),
            ("slot-name", "My Slot"),
            ("follow", "rumours"),
            ("connections", "0"),
            ("lag-bytes-max", "1"),
            ("colour", "red"),
        ] {
            assert!(read(&[wrong]).is_err(), "{wrong:?}");
        }
        let given = |url| Settings::read("shop", url, &[]);
        let settings =
            given("postgres://ann@localhost/shop?slot=temporary&sslmode=disable").unwrap();
        assert_eq!(settings.slot_kind, SlotKind::Temporary);
        assert!(given("postgres://ann@localhost/shop?colour=red").is_err());
    }
}
