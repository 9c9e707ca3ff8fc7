//! One set of rights: commands, keys and channels that are allowed together.

use crate::demand::{Access, Demand, Denied};
use crate::error::RuleError;
use crate::keys::KeyPattern;
use crate::places::Places;
use alloc::borrow::ToOwned;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_command::describe::{CATEGORIES, in_category};
use headwater_command::table::{NUMBERS, SPECS, lookup, lookup_subcommand};
use headwater_command::{Flags, Id, Spec, glob};

const WORDS: usize = NUMBERS.div_ceil(64);

/// The command, or `container|subcommand`, of this name.
#[must_use]
pub fn command_of(name: &[u8]) -> Option<&'static Spec> {
    match name.iter().position(|&byte| byte == b'|') {
        None => lookup(name),
        Some(at) => lookup_subcommand(lookup(&name[..at])?, &name[at + 1..]),
    }
}

/// A command with its subcommands.
fn family(spec: &'static Spec) -> impl Iterator<Item = &'static Spec> {
    [spec].into_iter().chain(spec.subcommands)
}

/// One set of rights. A request is allowed where one selector of its user allows all of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selector {
    /// The commands, by the numbers of their ids.
    commands: [u64; WORDS],
    /// The last rule about all commands allowed them: so are those of later versions.
    pub(crate) future: bool,
    /// The rules for commands behind that one.
    pub(crate) rules: Vec<String>,
    /// The names in these rules, and perhaps some that were.
    ruled: BTreeSet<String>,
    /// Commands, by the numbers of their ids, that are allowed with one of these first arguments.
    first_arguments: BTreeSet<(u16, Vec<u8>)>,
    pub(crate) all_keys: bool,
    pub(crate) keys: Vec<KeyPattern>,
    key_places: Places<Vec<u8>>,
    pub(crate) all_channels: bool,
    pub(crate) channels: Vec<Vec<u8>>,
    channel_places: Places<Vec<u8>>,
}

impl Selector {
    fn bit(number: u16) -> (usize, u64) {
        (usize::from(number / 64), 1 << (number % 64))
    }

    fn allows_number(&self, number: u16) -> bool {
        let (word, bit) = Self::bit(number);
        self.commands[word] & bit != 0
    }

    /// Whether a command is allowed, whatever its arguments.
    #[inline]
    #[must_use]
    pub fn allows(&self, id: Id) -> bool {
        self.allows_number(id as u16)
    }

    fn set(&mut self, spec: &'static Spec, allow: bool) {
        family(spec).for_each(|spec| self.put(spec.id, allow));
    }

    /// Allows or refuses one command, whatever its arguments.
    fn put(&mut self, id: Id, allow: bool) {
        let (word, bit) = Self::bit(id as u16);
        if allow {
            self.commands[word] |= bit;
        } else {
            self.commands[word] &= !bit;
            self.first_arguments.retain(|(other, _)| *other != id as u16);
        }
    }

    fn set_all(&mut self, allow: bool) {
        SPECS.iter().for_each(|spec| self.set(spec, allow));
        self.future = allow;
        self.rules.clear();
        self.ruled.clear();
        self.first_arguments.clear();
    }

    /// Whether every command is allowed.
    fn allows_all(&self) -> bool {
        SPECS.iter().flat_map(family).all(|spec| self.allows(spec.id))
    }

    /// Whether nothing is refused.
    #[must_use]
    pub fn is_unrestricted(&self) -> bool {
        self.all_keys && self.all_channels && self.allows_all()
    }

    /// Notes a rule behind the others; earlier ones that it makes needless go.
    fn note(&mut self, name: &str, allow: bool) {
        // A rule for a command covers those for its subcommands.
        let within = format!("{name}|");
        let mut from = self.ruled.range(within.clone()..);
        if self.ruled.contains(name) || from.next().is_some_and(|old| old.starts_with(&within)) {
            self.rules.retain(|rule| rule[1..] != *name && !rule[1..].starts_with(&within));
        }
        self.ruled.insert(String::from(name));
        let sign = if allow { '+' } else { '-' };
        self.rules.push(format!("{sign}{name}"));
    }

    fn category(&mut self, name: &[u8], allow: bool) -> Result<(), RuleError> {
        let name = name.to_ascii_lowercase();
        if name == b"all" {
            self.set_all(allow);
            return Ok(());
        }
        let known = CATEGORIES.iter().find(|category| category.as_bytes() == name);
        let known = known.ok_or(RuleError::UnknownCommand)?;
        for spec in SPECS.iter().flat_map(family) {
            if in_category(spec, &name) {
                self.put(spec.id, allow);
            }
        }
        self.note(&format!("@{known}"), allow);
        Ok(())
    }

    fn command(&mut self, name: &[u8], allow: bool) -> Result<(), RuleError> {
        let name = name.to_ascii_lowercase();
        if let Some(spec) = command_of(&name) {
            self.set(spec, allow);
            self.note(spec.full_name, allow);
            return Ok(());
        }
        // `+select|0`: the command with this first argument.
        let at = name.iter().position(|&byte| byte == b'|').ok_or(RuleError::UnknownCommand)?;
        let (container, argument) = (&name[..at], &name[at + 1..]);
        let spec = lookup(container).ok_or(RuleError::UnknownCommand)?;
        let subcommand = argument.split(|&byte| byte == b'|').next().unwrap_or_default();
        if allow && lookup_subcommand(spec, subcommand).is_some() {
            return Err(RuleError::FirstArgument);
        }
        if argument.is_empty() {
            return Err(RuleError::Syntax);
        }
        if !allow || argument.contains(&b'|') || !spec.subcommands.is_empty() {
            return Err(RuleError::UnknownCommand);
        }
        self.first_arguments.insert((spec.id as u16, argument.to_vec()));
        let shown = String::from_utf8_lossy(argument);
        self.note(&format!("{}|{shown}", spec.name), true);
        Ok(())
    }

    fn key_pattern(&mut self, text: &[u8], access: Access, user: &[u8]) -> Result<(), RuleError> {
        let is_all = text == b"*" && access == Access::ALL;
        if self.all_keys && !is_all {
            return Err(RuleError::BehindAllKeys);
        }
        if text.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0) {
            return Err(RuleError::Syntax);
        }
        if is_all {
            self.all_keys = true;
            self.keys.clear();
            return Ok(());
        }
        let pattern = KeyPattern::new(text, access, user)?;
        match self.key_places.find_or_add(text, self.keys.len()) {
            Some(at) => self.keys[at].access = self.keys[at].access.and(access),
            None => self.keys.push(pattern),
        }
        Ok(())
    }

    fn channel(&mut self, text: &[u8]) -> Result<(), RuleError> {
        if self.all_channels && text != b"*" {
            return Err(RuleError::BehindAllChannels);
        }
        if text.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0) {
            return Err(RuleError::Syntax);
        }
        if text == b"*" {
            self.all_channels = true;
            self.channels.clear();
        } else if self.channel_places.find_or_add(text, self.channels.len()).is_none() {
            self.channels.push(text.to_owned());
        }
        Ok(())
    }

    /// Applies one rule about commands, keys or channels; `user` is whose it is.
    ///
    /// # Errors
    /// It is none; nothing has changed.
    pub(crate) fn apply(&mut self, rule: &[u8], user: &[u8]) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        if is("allkeys") {
            (self.all_keys, self.keys) = (true, Vec::new());
        } else if is("resetkeys") {
            (self.all_keys, self.keys) = (false, Vec::new());
        } else if is("allchannels") {
            (self.all_channels, self.channels) = (true, Vec::new());
        } else if is("resetchannels") {
            (self.all_channels, self.channels) = (false, Vec::new());
        } else if is("allcommands") {
            self.set_all(true);
        } else if is("nocommands") {
            self.set_all(false);
        } else {
            return match rule {
                [b'~', text @ ..] => self.key_pattern(text, Access::ALL, user),
                [b'%', rest @ ..] => {
                    let at = rest.iter().position(|&byte| byte == b'~');
                    let at = at.ok_or(RuleError::Syntax)?;
                    let access = Access::of_letters(&rest[..at]).ok_or(RuleError::Syntax)?;
                    self.key_pattern(&rest[at + 1..], access, user)
                }
                [b'&', text @ ..] => self.channel(text),
                [b'+', b'@', name @ ..] => self.category(name, true),
                [b'-', b'@', name @ ..] => self.category(name, false),
                [b'+', name @ ..] => self.command(name, true),
                [b'-', name @ ..] => self.command(name, false),
                _ => Err(RuleError::Syntax),
            };
        }
        Ok(())
    }

    /// Whether a request may be run: its command, and whatever it needs besides.
    ///
    /// # Errors
    /// What is refused first, and how many needs were met before.
    pub fn check(
        &self,
        spec: &Spec,
        first: Option<&[u8]>,
        needs: &[Demand<'_>],
    ) -> Result<(), (usize, Denied)> {
        let is_allowed = |(id, argument): &(u16, Vec<u8>)| {
            *id == spec.id as u16 && first.is_some_and(|first| first.eq_ignore_ascii_case(argument))
        };
        let may_run = spec.flags.has(Flags::NO_AUTH)
            || self.allows(spec.id)
            || self.first_arguments.iter().any(is_allowed);
        if !may_run {
            return Err((0, Denied::Command(spec.full_name)));
        }
        needs
            .iter()
            .enumerate()
            .try_for_each(|(at, need)| self.meets(need).map_err(|denied| (at + 1, denied)))
    }

    /// Whether all is allowed that another one allows, as far as that can be told.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let commands = self.commands.iter().zip(&other.commands);
        let arguments = &other.first_arguments;
        // Mostly the same pattern covers it.
        let same = |key: &KeyPattern| self.keys.get(self.key_places.find(&*key.text)?);
        let has = |key: &KeyPattern| {
            same(key).is_some_and(|own| own.covers(key))
                || self.keys.iter().any(|own| own.covers(key))
        };
        let hears = |channel: &Vec<u8>| {
            let at = self.channel_places.find(&**channel);
            at.and_then(|at| self.channels.get(at)) == Some(channel)
        };
        commands.into_iter().all(|(own, other)| own & other == *other)
            && arguments
                .iter()
                .all(|it| self.allows_number(it.0) || self.first_arguments.contains(it))
            && (self.all_keys || !other.all_keys && other.keys.iter().all(has))
            && (self.all_channels || !other.all_channels && other.channels.iter().all(hears))
    }

    /// Whether one thing is allowed that a request needs.
    ///
    /// # Errors
    /// It is not.
    pub fn meets(&self, need: &Demand<'_>) -> Result<(), Denied> {
        let met = match need {
            Demand::Key { key, access } => {
                self.all_keys || self.keys.iter().any(|own| own.grants(key, *access))
            }
            Demand::Range { range, access } => {
                let contains = |own: &KeyPattern| own.grants_range(range, *access);
                self.all_keys || self.keys.iter().any(contains)
            }
            Demand::Channel(channel) => {
                let matches = |own: &Vec<u8>| glob::matches(own, channel);
                self.all_channels || self.channels.iter().any(matches)
            }
            // As in Redis: which channels two globs have in common is not asked.
            Demand::ChannelPattern(pattern) => {
                self.all_channels || self.channels.iter().any(|own| own == pattern)
            }
            Demand::Command(id) => self.allows(*id),
        };
        if met { Ok(()) } else { Err(need.denied()) }
    }
}
