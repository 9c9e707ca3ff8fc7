//! Items: values with flags, a version and a lease, as clients of caches ask for them.
//!
//! An item is a key's value with what is kept beside it. The same keys and values can be asked
//! for by [`Data`](crate::Data) commands, which see the values alone.

use crate::command::{GetExpiry, SetExpiry};
use alloc::vec::Vec;
use headwater_pool::Value;

/// Asks for an item, and for what reading it is to change.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fetch<'a> {
    /// The key.
    pub key: &'a [u8],
    /// What becomes of the expiry.
    pub expiry: GetExpiry,
    /// Where the key is not there, it is made, with no bytes and this expiry, and leased.
    pub vivify: Option<SetExpiry>,
    /// A client of an item that will expire in fewer milliseconds gets the lease.
    pub renew_within: Option<i64>,
    /// The version is wanted.
    pub version: bool,
    /// The last use is wanted.
    pub uses: bool,
    /// Reading it is no use.
    pub untouched: bool,
    /// The client may be given the lease of an item that is stale, or about to expire.
    pub leases: bool,
}

impl Fetch<'_> {
    /// Whether nothing but the value and the flags beside it is asked for, and nothing changes.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let Self { expiry, vivify, renew_within, version, uses, .. } = self;
        *expiry == GetExpiry::Keep
            && !version
            && !uses
            && vivify.is_none()
            && renew_within.is_none()
    }
}

impl Default for Fetch<'_> {
    fn default() -> Self {
        Self {
            key: &[],
            expiry: GetExpiry::Keep,
            vivify: None,
            renew_within: None,
            version: false,
            uses: false,
            untouched: false,
            leases: false,
        }
    }
}

/// Who is to renew an item's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lease {
    /// Nobody.
    #[default]
    Free,
    /// The client that is being answered.
    Won,
    /// A client that was told so before.
    Taken,
}

/// An item that was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Item<'v> {
    /// The value.
    pub value: Value<'v>,
    /// What the client that wrote it gave with it.
    pub flags: u32,
    /// Its version, if that was asked for; otherwise 0.
    pub version: u64,
    /// Milliseconds until it expired as it was found; `None`: it did not.
    pub left_before: Option<u64>,
    /// Milliseconds until it expires; `None`: it does not.
    pub left: Option<u64>,
    /// Who is to renew it.
    pub lease: Lease,
    /// Out of date, by a client's word.
    pub stale: bool,
    /// It was read before; known from the first time on that anybody asks.
    pub read: bool,
    /// Seconds since its last use; known as `read` is.
    pub idle_seconds: u32,
}

/// How a value goes into an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StoreMode {
    /// In any case.
    #[default]
    Set,
    /// Only if the key is not there.
    Add,
    /// Only if the key is there.
    Replace,
    /// Behind the value that is there.
    Append,
    /// Before the value that is there.
    Prepend,
}

/// A version that a client has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The version.
    pub version: u64,
    /// A newer one may be overwritten, and the item is stale then.
    pub or_newer: bool,
}

/// Gives an item a value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Store<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The bytes.
    pub value: &'a [u8],
    /// What is kept beside them. Modes that add bytes leave the item's as they are.
    pub flags: u32,
    /// What becomes of the expiry; modes that add bytes leave that alone too.
    pub expiry: SetExpiry,
    /// How.
    pub mode: StoreMode,
    /// Only if the item's version is this one.
    pub seen: Option<Seen>,
    /// Where the key is not there, modes that add bytes make it, with this expiry.
    pub vivify: Option<SetExpiry>,
    /// The version that the item is to have, instead of a new one.
    pub give: Option<u64>,
    /// The version is wanted.
    pub version: bool,
}

/// What came of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// It is done; the item's version, if that was asked for, or else 0.
    Done(u64),
    /// The item's version is another one.
    Changed,
    /// The key is not there.
    Missing,
    /// The mode does not allow it.
    Refused,
}

/// Removes an item, or tells that it is out of date.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Remove<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Only if the item's version is this one.
    pub seen: Option<u64>,
    /// The item stays, out of date, for one client to renew it; its expiry changes like this.
    pub stale: Option<GetExpiry>,
    /// The item stays, without its bytes and flags.
    pub value_only: bool,
    /// The version that an item which stays is to have, instead of a new one.
    pub give: Option<u64>,
}

/// Adds to the number that an item's value is the text of.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Count<'a> {
    /// The key.
    pub key: &'a [u8],
    /// How much is added or taken away.
    pub by: u64,
    /// It is taken away, down to 0 at the most.
    pub down: bool,
    /// Only if the item's version is this one.
    pub seen: Option<u64>,
    /// What becomes of the expiry.
    pub expiry: GetExpiry,
    /// Where the key is not there, it is made, with this number and expiry.
    pub vivify: Option<(u64, SetExpiry)>,
    /// The version that the item is to have, instead of a new one.
    pub give: Option<u64>,
    /// The version is wanted.
    pub version: bool,
}

/// What came of counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// The number is this one now.
    Done {
        /// The number.
        number: u64,
        /// The item's version, if that was asked for; otherwise 0.
        version: u64,
        /// Milliseconds until it expired as it was found; `None`: it did not.
        left_before: Option<u64>,
        /// Milliseconds until it expires; `None`: it does not.
        left: Option<u64>,
        /// The key was not there.
        made: bool,
    },
    /// The value is not the text of a number.
    NotNumber,
    /// The item's version is another one.
    Changed,
    /// The key is not there.
    Missing,
}

/// What is asked about items, whatever words a client has for it.
#[derive(Clone, PartialEq, Debug)]
pub enum ItemCommand<'a> {
    /// Values with their flags, in the order of the keys.
    Get {
        /// The keys.
        keys: Vec<&'a [u8]>,
        /// Versions are wanted.
        versions: bool,
        /// What becomes of the expiry.
        expiry: GetExpiry,
    },
    /// An item, with what is known of it.
    Fetch {
        /// Which, and what reading it changes.
        fetch: Fetch<'a>,
        /// The value is wanted; its length is known in any case.
        value: bool,
    },
    /// What is known of an item, for people; this is no use of it.
    Examine {
        /// The key.
        key: &'a [u8],
    },
    /// To give an item a value.
    Store {
        /// Which, and how.
        store: Store<'a>,
        /// Where there is no memory for it, what is there is not wanted any more.
        or_forget: bool,
    },
    /// To remove an item, or to tell that it is out of date.
    Remove(Remove<'a>),
    /// To count.
    Count(Count<'a>),
    /// To change when an item expires.
    Touch {
        /// The key.
        key: &'a [u8],
        /// To what.
        expiry: GetExpiry,
    },
    /// To call a function next to a value.
    Call {
        /// The key.
        key: &'a [u8],
        /// The function: `module` or `module.export`.
        function: &'a [u8],
        /// What it is given besides.
        param: &'a [u8],
        /// It may change the value.
        update: bool,
        /// Its answer is wanted; without, a key that is absent is not made.
        reply: bool,
    },
    /// To load a module of functions.
    Register {
        /// Its name.
        name: &'a str,
        /// Its file, below the directory of functions.
        file: &'a str,
        /// The export that the name alone stands for.
        export: &'a str,
    },
    /// To remove everything, now or later.
    Flush {
        /// When.
        when: SetExpiry,
    },
    /// What was counted, or what is counted from now on.
    Statistics(Statistics),
}

/// What is asked about what was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Statistics {
    /// Figures of the whole server.
    General,
    /// Figures of items.
    Items,
    /// Figures of the memory that items take.
    Memory,
    /// Figures of the sizes of items.
    Sizes,
    /// Figures of connections.
    Connections,
    /// Figures by what keys begin with.
    Prefixes,
    /// To count by what keys begin with, or no longer.
    CountPrefixes(bool),
    /// To count from nothing again.
    Reset,
}

impl<'a> ItemCommand<'a> {
    /// The keys that it names.
    pub fn keys(&self) -> impl Iterator<Item = &'a [u8]> {
        let (many, one): (&[&'a [u8]], Option<&'a [u8]>) = match self {
            Self::Get { keys, .. } => (keys, None),
            Self::Fetch { fetch, .. } => (&[], Some(fetch.key)),
            Self::Store { store, .. } => (&[], Some(store.key)),
            Self::Remove(remove) => (&[], Some(remove.key)),
            Self::Count(count) => (&[], Some(count.key)),
            Self::Examine { key } | Self::Touch { key, .. } | Self::Call { key, .. } => {
                (&[], Some(*key))
            }
            Self::Register { .. } | Self::Flush { .. } | Self::Statistics(_) => (&[], None),
        };
        many.iter().copied().chain(one)
    }

    /// Bytes of what it has, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let data = match self {
            Self::Store { store, .. } => store.value.len(),
            Self::Call { function, param, .. } => function.len() + param.len(),
            _ => 0,
        };
        data + self.keys().map(<[u8]>::len).sum::<usize>()
    }

    /// Whether it changes values.
    #[must_use]
    pub fn writes(&self) -> bool {
        match self {
            Self::Store { .. }
            | Self::Remove(_)
            | Self::Count(_)
            | Self::Touch { .. }
            | Self::Flush { .. } => true,
            Self::Call { update, .. } => *update,
            Self::Get { .. }
            | Self::Fetch { .. }
            | Self::Examine { .. }
            | Self::Register { .. }
            | Self::Statistics(_) => false,
        }
    }

    /// Whether it writes by removing alone.
    #[must_use]
    pub fn removes(&self) -> bool {
        matches!(self, Self::Remove(_) | Self::Flush { .. })
    }
}
