//! Random and composed bytes, cut at random places, through memcached's parser, flags and encoder.
//!
//! What must hold for any bytes: no panic; the same requests, and the same end, however the bytes
//! are cut; `consumed` and `searched` within the input; a value within the input; a refusal is one line; keys
//! and numbers of a meta command come from what was sent.
//!
//! Each round depends on its number alone: set `HEADWATER_FUZZ_FIRST` and `HEADWATER_FUZZ_ROUNDS` to
//! run other or more rounds.

use headwater_command::items::{Item, Lease};
use headwater_pool::Value;
use headwater_protocol::Held;
use headwater_protocol::memcached::{Encoder, KEY_BYTES_MAX, Limits, Meta, Parsed, Request, parse};

/// SplitMix64: small, and the same everywhere.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// What a stream of bytes amounts to: its requests, as text, then how it ends.
#[derive(PartialEq, Debug)]
struct Read {
    requests: Vec<String>,
    consumed: usize,
    too_long: bool,
}

const LIMITS: Limits = Limits { line_bytes_max: 5000, value_bytes_max: 100 };

/// Parses `bytes`, which arrive in the pieces that `next_piece` tells.
fn read(bytes: &[u8], mut next_piece: impl FnMut() -> usize) -> Read {
    let mut requests = Vec::new();
    let (mut begin, mut end, mut searched) = (0, 0, 0);
    loop {
        let buffer = &bytes[begin..end];
        match parse(buffer, searched, &LIMITS) {
            Parsed::Incomplete { searched: so_far } => {
                assert!(so_far <= buffer.len(), "searched");
                if end == bytes.len() {
                    return Read { requests, consumed: begin, too_long: false };
                }
                searched = so_far;
                end = (end + next_piece().max(1)).min(bytes.len());
            }
            Parsed::LineTooLong => return Read { requests, consumed: begin, too_long: true },
            Parsed::Request { request, consumed, skip } => {
                assert!((1..=buffer.len()).contains(&consumed), "consumed");
                interpret(&request);
                requests.push(format!("{request:?}"));
                begin = (begin + consumed + skip).min(bytes.len());
                end = end.max(begin);
                searched = 0;
            }
        }
    }
}

fn interpret(request: &Request<'_>) {
    match request {
        Request::Store { value: Some(value), key, .. } => {
            assert!(value.len() <= LIMITS.value_bytes_max && key.len() <= KEY_BYTES_MAX);
        }
        Request::Invoke { param: Some(param), key, .. } => {
            assert!(param.len() <= LIMITS.value_bytes_max && key.len() <= KEY_BYTES_MAX);
        }
        Request::Refused { line } => assert!(!line.contains(['\r', '\n'])),
        Request::MetaGet(meta)
        | Request::MetaSet { meta, .. }
        | Request::MetaDelete(meta)
        | Request::MetaCount(meta) => interpret_meta(meta),
        Request::MetaDebug(meta) => drop(meta.key_flag()),
        _ => {}
    }
}

fn interpret_meta(meta: &Meta<'_>) {
    let Ok(flags) = meta.flags() else { return };
    assert!(meta.plain_flags().is_ok());
    let mut room = [0; KEY_BYTES_MAX];
    let key = meta.key(&flags, &mut room);
    assert!(!key.is_empty() && key.len() <= KEY_BYTES_MAX);
    assert_eq!(flags.fetch(key).key, key);
    assert_eq!(flags.remove(key).key, key);
    let (_, _) = (flags.store(key, b"value"), flags.count(key));
    let item = Item {
        value: Value::of(b"value"),
        flags: 7,
        version: u64::MAX,
        left_before: None,
        left: Some(1),
        lease: Lease::Won,
        stale: true,
        read: false,
        idle_seconds: 0,
    };
    let (mut out, mut held) = (Vec::new(), Held::default());
    Encoder::new(&mut out, &mut held, usize::MAX).meta_item(
        meta,
        &flags,
        &item,
        item.value.len() as u64,
    );
    assert!(out.ends_with(b"\r\n"));
    let lines = out.iter().filter(|&&byte| byte == b'\n').count();
    assert_eq!(lines, if flags.value { 2 } else { 1 });
}

/// Bytes that mean something to the parser.
const WORDS: &[&[u8]] = &[
    b"get",
    b"gets",
    b"gat",
    b"gats",
    b"set",
    b"add",
    b"replace",
    b"append",
    b"prepend",
    b"cas",
    b"incr",
    b"decr",
    b"delete",
    b"touch",
    b"flush_all",
    b"verbosity",
    b"version",
    b"stats",
    b"quit",
    b"shutdown",
    b"mg",
    b"ms",
    b"md",
    b"ma",
    b"me",
    b"mn",
    b"invoke",
    b"register",
    b"AUR",
    b"U",
    b"-",
    b"noreply",
    b"0",
    b"1",
    b"3",
    b"-1",
    b"100",
    b"101",
    b"2147483645",
    b"2147483647",
    b"18446744073709551615",
    b"18446744073709551616",
    b"9223372036854775808",
    b"k",
    b"Zm9v",
    b"//4=",
    b"\xff\xfe",
    b"v",
    b"k",
    b"b",
    b"c",
    b"f",
    b"h",
    b"l",
    b"q",
    b"s",
    b"t",
    b"u",
    b"x",
    b"I",
    b"T30",
    b"N0",
    b"R-1",
    b"C5",
    b"E6",
    b"F7",
    b"MA",
    b"MP",
    b"ME",
    b"M+",
    b"J13",
    b"D5",
    b"O123",
    b"HTTP/1.1",
    b"\t",
    b"\0",
    b"",
    b"+5",
    b"5x",
];

/// How lines end, more or less.
const ENDS: &[&[u8]] = &[b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b""];

/// Lines of words, some with data behind them.
fn compose(draws: &mut Draws) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + draws.below(5) {
        for at in 0..draws.below(9) {
            bytes.extend_from_slice(&b"  "[..usize::from(at > 0) + draws.below(10) / 9]);
            bytes.extend_from_slice(WORDS[draws.below(WORDS.len())]);
        }
        bytes.extend_from_slice(ENDS[draws.below(ENDS.len())]);
        if draws.below(3) == 0 {
            let len = draws.below(5);
            bytes.extend((0..len).map(|_| b'a' + draws.below(26) as u8));
            bytes.extend_from_slice(b"\r\n");
        }
    }
    if draws.below(20) == 0 {
        bytes.extend_from_slice(&b"get ".repeat(draws.below(1500)));
    }
    bytes
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn no_bytes_break_a_law() {
    let first = setting("HEADWATER_FUZZ_FIRST", 0);
    for round in first..first + setting("HEADWATER_FUZZ_ROUNDS", 20_000) {
        let mut draws = Draws(round);
        let mut bytes = match draws.below(4) {
            0 => (0..draws.below(200)).map(|_| draws.next() as u8).collect(),
            _ => compose(&mut draws),
        };
        for _ in 0..draws.below(4) {
            let at = draws.below(bytes.len().max(1));
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << draws.below(8);
            }
        }
        let outcome = std::panic::catch_unwind(move || {
            let whole = read(&bytes, || bytes.len());
            // Where a line is too long depends on what has come: not on how, if it has an end.
            let (by_byte, longest) = (read(&bytes, || 1), 1 + draws.below(40));
            let pieces = read(&bytes, || 1 + draws.below(longest));
            for cut in [by_byte, pieces] {
                if cut.too_long && !whole.too_long {
                    assert!(whole.requests.starts_with(&cut.requests), "{bytes:?}");
                } else {
                    assert_eq!(cut, whole, "{bytes:?}");
                }
            }
        });
        assert!(outcome.is_ok(), "round {round}");
    }
}
