//! `notify-keyspace-events`: which events are told on which channels, in Redis's letters.

use core::fmt::{self, Write};
use core::str::FromStr;
use headwater_base::EventKinds;

/// Which events are told, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EventChannels {
    /// On channels named by the key (`K`).
    pub by_key: bool,
    /// On channels named by the event (`E`).
    pub by_event: bool,
    kinds: u16,
}

/// The letters of kinds, in the order in which Redis tells them, and what they stand for here. Values of the other types are
/// not there, so neither are their events.
const KINDS: [(char, EventKinds); 11] = [
    ('g', EventKinds::GENERIC),
    ('$', EventKinds::STRINGS),
    ('l', EventKinds::NONE),
    ('s', EventKinds::NONE),
    ('h', EventKinds::NONE),
    ('z', EventKinds::NONE),
    ('x', EventKinds::EXPIRED),
    ('e', EventKinds::EVICTED),
    ('t', EventKinds::STREAMS),
    ('d', EventKinds::NONE),
    ('n', EventKinds::NEW),
];
/// `A` stands for all of them but the last.
const ALL: u16 = (1 << (KINDS.len() - 1)) - 1;

impl EventChannels {
    /// The kinds of events that the engine is to list: none, where nobody would be told.
    #[must_use]
    pub fn kinds(self) -> EventKinds {
        if !self.by_key && !self.by_event {
            return EventKinds::NONE;
        }
        let wanted = KINDS.iter().enumerate().filter(|(at, _)| self.kinds & 1 << at != 0);
        wanted.fold(EventKinds::NONE, |all, (_, (_, kinds))| all.and(*kinds))
    }
}

impl FromStr for EventChannels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut channels = Self::default();
        for letter in text.chars() {
            match letter {
                'K' => channels.by_key = true,
                'E' => channels.by_event = true,
                'A' => channels.kinds |= ALL,
                'm' => return Err(String::from("'m' is not offered: reads tell no misses")),
                letter => match KINDS.iter().position(|(known, _)| *known == letter) {
                    Some(at) => channels.kinds |= 1 << at,
                    None => {
                        return Err(format!(
                            "Invalid event class character. Use 'Ag$lshzxeKEtdn', not '{letter}'"
                        ));
                    }
                },
            }
        }
        Ok(channels)
    }
}

impl fmt::Display for EventChannels {
    /// The letters in Redis's order, `A` where it covers them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.kinds & ALL == ALL;
        if all {
            f.write_char('A')?;
        }
        for (at, (letter, _)) in KINDS.iter().enumerate() {
            if self.kinds & 1 << at != 0 && !(all && ALL & 1 << at != 0) {
                f.write_char(*letter)?;
            }
        }
        for (is, letter) in [(self.by_key, 'K'), (self.by_event, 'E')] {
            if is {
                f.write_char(letter)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::EventChannels;
    use headwater_base::EventKinds;

    #[test]
    fn letters_are_read_and_told_as_redis_tells_them() {
        let told = |text: &str| text.parse::<EventChannels>().map(|it| it.to_string());
        for (text, as_told) in [
            ("", ""),
            ("KEA", "AKE"),
            ("Ex", "xE"),
            ("$gK", "g$K"),
            ("KEg$lshzxetd", "AKE"),
            ("KEAn", "AnKE"),
            ("En", "nE"),
        ] {
            assert_eq!(told(text).as_deref(), Ok(as_told), "{text}");
        }
        assert!(told("KQ").unwrap_err().contains("not 'Q'"));
        assert!(told("KEAm").unwrap_err().contains("'m' is not offered"));
    }

    #[test]
    fn nothing_is_listed_that_nobody_would_be_told() {
        let kinds = |text: &str| text.parse::<EventChannels>().unwrap().kinds();
        assert_eq!(kinds("A"), EventKinds::NONE);
        assert_eq!(kinds("KE"), EventKinds::NONE);
        assert_eq!(kinds("Klshz"), EventKinds::NONE);
        assert_eq!(kinds("Ex"), EventKinds::EXPIRED);
        assert!(kinds("KA").has(EventKinds::GENERIC) && !kinds("KA").has(EventKinds::NEW));
    }
}
