//! Meta commands: a key, and flags of one letter, some with a token behind it.

use super::base64;
use super::parser::{lifetime, new_lifetime};
use super::words::Words;
use alloc::vec::Vec;
use headwater_command::items::{Count, Fetch, Remove, Seen, Store, StoreMode};
use headwater_command::{GetExpiry, SetExpiry, number};

/// Longest key, as it is sent.
pub const KEY_BYTES_MAX: usize = 250;
/// Longest opaque token, with its letter.
pub(super) const OPAQUE_BYTES_MAX: usize = 32;

const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const BAD_KEY: &str = "CLIENT_ERROR error decoding key";
const LONG_OPAQUE: &str = "CLIENT_ERROR opaque token too long";
/// Every flag, of whichever command.
const KNOWN: &[u8] = b"bvquxIchlTNRCEFMJDOPLkstf";
/// What `md` and `ma` say of any flag that is wrong.
const BAD_FLAG: &str = "CLIENT_ERROR invalid or duplicate flag";

/// A meta command's key and flags, as they were sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta<'a> {
    key: &'a [u8],
    flags: Words<'a>,
}

/// What the flags say.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MetaFlags {
    /// `b`: the key is in base64.
    pub base64: bool,
    /// `v`: the value is wanted.
    pub value: bool,
    /// `q`: the usual answer is not wanted.
    pub quiet: bool,
    /// `u`: reading is no use.
    untouched: bool,
    /// `x`: the value is removed, the item stays.
    value_only: bool,
    /// `I`: make stale, or write over what is newer.
    stale: bool,
    /// `c`: the version is wanted.
    version: bool,
    /// `h`, `l`: the last use is wanted.
    uses: bool,
    /// `M`: how to store or count.
    mode: Option<u8>,
    /// `F`: what is kept beside the value.
    client_flags: u32,
    /// `T`: a new expiry.
    lifetime: Option<i64>,
    /// `N`: make the item where it is not there.
    vivify: Option<i64>,
    /// `R`: renew it before it expires.
    renew: Option<i64>,
    /// `C`: the version that was seen.
    seen: Option<u64>,
    /// `E`: the version to give.
    give: Option<u64>,
    /// `J`: where counting starts.
    initial: u64,
    /// `D`: by how much to count.
    by: u64,
}

impl Default for MetaFlags {
    fn default() -> Self {
        Self {
            base64: false,
            value: false,
            quiet: false,
            untouched: false,
            value_only: false,
            stale: false,
            version: false,
            uses: false,
            mode: None,
            client_flags: 0,
            lifetime: None,
            vivify: None,
            renew: None,
            seen: None,
            give: None,
            initial: 0,
            by: 1,
        }
    }
}

impl<'a> Meta<'a> {
    pub(super) fn new(key: &'a [u8], flags: Words<'a>) -> Self {
        Self { key, flags }
    }

    /// Key and flags as [`Meta::write`] has written them.
    #[must_use]
    pub fn of(line: &'a [u8]) -> Self {
        let mut flags = Words::of(line);
        let key = flags.next().unwrap_or_default();
        Self { key, flags }
    }

    /// Writes key and flags as they were sent.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.key);
        for flag in self.flags {
            out.push(b' ');
            out.extend_from_slice(flag);
        }
    }

    /// The key as it was sent.
    #[must_use]
    pub fn sent_key(&self) -> &'a [u8] {
        self.key
    }

    /// The flags as they were sent.
    pub(super) fn words(&self) -> Words<'a> {
        self.flags
    }

    /// The key, decoded into `room` where it is in base64.
    #[must_use]
    pub fn key<'k>(&self, flags: &MetaFlags, room: &'k mut [u8; KEY_BYTES_MAX]) -> &'k [u8]
    where
        'a: 'k,
    {
        if !flags.base64 {
            return self.key;
        }
        // It was tried when the flags were read.
        let len = base64::decode(self.key, room).unwrap_or(0);
        &room[..len]
    }

    /// Reads the flags.
    ///
    /// # Errors
    /// The answer: a flag is unknown, stands twice, or its token is wrong.
    pub fn flags(&self) -> Result<MetaFlags, &'static str> {
        let mut read = MetaFlags::default();
        let mut seen = 0_u128;
        let mut wrong = None;
        for word in self.flags {
            let (letter, token) = (word[0], &word[1..]);
            if letter >= 127 || seen >> letter & 1 == 1 {
                return Err("CLIENT_ERROR duplicate flag");
            }
            seen |= 1 << letter;
            if !KNOWN.contains(&letter) {
                return Err("CLIENT_ERROR invalid flag");
            }
            // What is told is the last token that is wrong, unless a flag behind it is.
            wrong = read.take(letter, token, self.key).err().or(wrong);
        }
        wrong.map_or(Ok(read), Err)
    }

    /// Reads the flags of `md` and `ma`, which tell everything that is wrong in the same words.
    ///
    /// # Errors
    /// As for [`Meta::flags`].
    pub fn plain_flags(&self) -> Result<MetaFlags, &'static str> {
        self.flags().map_err(|_| BAD_FLAG)
    }

    /// Reads whether the key is in base64, and no other flag.
    ///
    /// # Errors
    /// The answer: it is not.
    pub fn key_flag(&self) -> Result<MetaFlags, &'static str> {
        let mut read = MetaFlags::default();
        if self.words().any(|word| word[0] == b'b') {
            read.take(b'b', &[], self.key).map_err(|_| "CLIENT_ERROR bad command line format")?;
        }
        Ok(read)
    }

    /// Refuses an opaque token that is too long to be given back.
    ///
    /// # Errors
    /// The answer.
    pub fn check_opaque(&self) -> Result<(), &'static str> {
        let mut flags = self.flags;
        if flags.any(|word| word[0] == b'O' && word.len() > OPAQUE_BYTES_MAX) {
            return Err(LONG_OPAQUE);
        }
        Ok(())
    }
}

impl MetaFlags {
    /// Takes one flag.
    fn take(&mut self, letter: u8, token: &[u8], key: &[u8]) -> Result<(), &'static str> {
        let signed = || number::read_i64(token).ok_or(BAD_TOKEN);
        let unsigned = |line| number::read_u64(token).ok_or(line);
        match letter {
            b'b' => {
                self.base64 = true;
                base64::decode(key, &mut [0; KEY_BYTES_MAX]).ok_or(BAD_KEY)?;
            }
            b'v' => self.value = true,
            b'q' => self.quiet = true,
            b'u' => self.untouched = true,
            b'x' => self.value_only = true,
            b'I' => self.stale = true,
            b'c' => self.version = true,
            b'h' | b'l' => self.uses = true,
            b'T' => self.lifetime = Some(signed()?),
            b'N' => self.vivify = Some(signed()?),
            b'R' => self.renew = Some(signed()?),
            b'C' => self.seen = Some(unsigned(BAD_TOKEN)?),
            b'E' => self.give = Some(unsigned(BAD_TOKEN)?),
            b'F' => self.client_flags = unsigned("CLIENT_ERROR bad command line format")? as u32,
            b'M' => match token {
                [mode] => self.mode = Some(*mode),
                _ => return Err("CLIENT_ERROR incorrect length for M token"),
            },
            b'J' => self.initial = unsigned("CLIENT_ERROR invalid numeric initial value")?,
            b'D' => self.by = unsigned("CLIENT_ERROR invalid numeric delta value")?,
            // Given back, or meant for those between client and server.
            _ => {}
        }
        Ok(())
    }

    /// What becomes of the expiry of an item that is there.
    fn expiry(&self) -> GetExpiry {
        self.lifetime.map_or(GetExpiry::Keep, new_lifetime)
    }

    /// Whether `mg` changes something besides: an expiry, or a key that it makes.
    #[must_use]
    pub fn changes(&self) -> bool {
        self.lifetime.is_some() || self.vivify.is_some() || self.renew.is_some()
    }

    /// What `mg` asks.
    #[must_use]
    pub fn fetch<'k>(&self, key: &'k [u8]) -> Fetch<'k> {
        Fetch {
            key,
            expiry: self.expiry(),
            vivify: self.vivify.map(lifetime),
            renew_within: self.renew.map(|seconds| seconds.saturating_mul(1000)),
            version: self.version,
            uses: self.uses,
            untouched: self.untouched,
            leases: true,
        }
    }

    /// What `ms` asks.
    ///
    /// # Errors
    /// The answer: the mode is none.
    pub fn store<'k>(&self, key: &'k [u8], value: &'k [u8]) -> Result<Store<'k>, &'static str> {
        let mode = match self.mode {
            None | Some(b'S') => StoreMode::Set,
            Some(b'E') => StoreMode::Add,
            Some(b'A') => StoreMode::Append,
            Some(b'P') => StoreMode::Prepend,
            Some(b'R') => StoreMode::Replace,
            Some(_) => return Err("CLIENT_ERROR invalid mode for ms M token"),
        };
        Ok(Store {
            key,
            value,
            flags: self.client_flags,
            expiry: self.lifetime.map_or(SetExpiry::Never, lifetime),
            // What was seen is there: replacing it is setting it.
            mode: if self.seen.is_some() && mode == StoreMode::Replace {
                StoreMode::Set
            } else {
                mode
            },
            seen: self.seen.map(|version| Seen { version, or_newer: self.stale }),
            vivify: self.vivify.map(lifetime),
            give: self.give,
            version: self.version,
        })
    }

    /// What `md` asks.
    #[must_use]
    pub fn remove<'k>(&self, key: &'k [u8]) -> Remove<'k> {
        Remove {
            key,
            seen: self.seen,
            stale: self.stale.then(|| self.expiry()),
            value_only: self.value_only,
            give: self.give,
        }
    }

    /// What `ma` asks.
    ///
    /// # Errors
    /// The answer: the mode is none.
    pub fn count<'k>(&self, key: &'k [u8]) -> Result<Count<'k>, &'static str> {
        let down = match self.mode {
            None | Some(b'I' | b'+') => false,
            Some(b'D' | b'-') => true,
            Some(_) => return Err("CLIENT_ERROR invalid mode for ma M token"),
        };
        Ok(Count {
            key,
            by: self.by,
            down,
            seen: self.seen,
            expiry: self.expiry(),
            vivify: self.vivify.map(|seconds| (self.initial, lifetime(seconds))),
            give: self.give,
            version: self.version,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(line: &str) -> Meta<'_> {
        let mut words = Words::of(line.as_bytes());
        let key = words.next().unwrap();
        Meta::new(key, words)
    }

    #[test]
    fn flags_are_read_or_refused() {
        let flags = meta("k v c T30 C5 MA D7 Oabc k").flags().unwrap();
        assert!(flags.value && flags.version && !flags.quiet && !flags.fetch(b"k").is_plain());
        assert_eq!((flags.lifetime, flags.seen, flags.by), (Some(30), Some(5), 7));
        assert_eq!(flags.store(b"k", b"").unwrap().mode, StoreMode::Append);
        assert!(meta("k v k s t f q").flags().unwrap().fetch(b"k").is_plain());
        for (line, told) in [
            ("k v v", "duplicate flag"),
            ("k z", "invalid flag"),
            ("k Tx v z", "invalid flag"),
            ("k Tx v", "bad token"),
            ("k Tx Jx", "initial value"),
            ("k MSS", "M token"),
            ("foo b", "decoding key"),
        ] {
            let error = meta(line).flags().unwrap_err();
            assert!(error.contains(told), "{line}: {error}");
            assert_eq!(meta(line).plain_flags().unwrap_err(), BAD_FLAG);
        }
        assert!(meta("k Md").flags().unwrap().count(b"k").is_err());
        assert!(meta("k MX").flags().unwrap().store(b"k", b"").is_err());
    }

    #[test]
    fn key_and_flags_are_written_and_read() {
        let (sent, mut line) = (meta("k v  T30 Oabc"), Vec::new());
        sent.write(&mut line);
        assert_eq!(line, b"k v T30 Oabc");
        assert_eq!(Meta::of(&line).flags(), sent.flags());
    }

    #[test]
    fn keys_are_decoded_where_the_flags_say_so() {
        let mut room = [0; KEY_BYTES_MAX];
        let sent = meta("Zm9v b");
        assert_eq!(sent.key(&sent.flags().unwrap(), &mut room), b"foo");
        let plain = meta("Zm9v");
        assert_eq!(plain.key(&plain.flags().unwrap(), &mut room), b"Zm9v");
    }
}
