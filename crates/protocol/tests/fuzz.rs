//! Random and mutated bytes, cut at random places, through parser, decoding and encoder.
//!
//! What must hold for any bytes: no panic; the same requests, and the same end, however the bytes
//! are cut; memory in proportion to what was received; `consumed` within the input; every
//! refusal is one well-formed answer. The corpus in `tests/corpus/` is tried as it is, then mutated.
//!
//! Each round depends on its number alone: set `HEADWATER_FUZZ_FIRST` and `HEADWATER_FUZZ_ROUNDS` to
//! run other or more rounds. Bytes that once failed belong into the corpus.

use headwater_command::{Args, Reply, table};
use headwater_protocol::resp::{Encoder, Limits, Parsed, RequestParser, Version, decode, find};

/// What a stream of bytes amounts to: its requests, then how it ends.
#[derive(PartialEq, Debug)]
struct Read {
    requests: Vec<Vec<Vec<u8>>>,
    consumed: usize,
    end: Parsed,
}

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

    fn one<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }
}

/// Parses `bytes`, which arrive in the pieces that `next_piece` tells.
fn read(bytes: &[u8], limits: &Limits, mut next_piece: impl FnMut() -> usize) -> Read {
    let mut parser = RequestParser::new();
    let mut requests = Vec::new();
    let (mut begin, mut end) = (0, 0);
    loop {
        let buffer = &bytes[begin..end];
        let parsed = parser.parse(buffer, limits);
        // Eight bytes per argument, which takes at least two of input; vectors double, and keep
        // a little for the next request.
        assert!(parser.reserved_bytes() <= 20 * buffer.len() + (64 << 10), "memory");
        match parsed {
            Parsed::Incomplete if end < bytes.len() => {
                end = (end + next_piece().max(1)).min(bytes.len());
            }
            Parsed::Incomplete | Parsed::Error(_) => {
                return Read { requests, consumed: begin, end: parsed };
            }
            Parsed::Nothing { consumed } => {
                assert!((1..=buffer.len()).contains(&consumed), "consumed");
                begin += consumed;
            }
            Parsed::Request { consumed } => {
                assert!((1..=buffer.len()).contains(&consumed), "consumed");
                let args = parser.args(buffer);
                requests.push(args.iter().map(<[u8]>::to_vec).collect());
                interpret(args);
                begin += consumed;
            }
        }
    }
}

/// Decodes a request and, where it is refused, checks the refusal's form.
fn interpret(args: Args<'_>) {
    for version in [Version::Resp2, Version::Resp3] {
        let mut out = Vec::new();
        let mut reply = Encoder::new(&mut out, version);
        match find(args).and_then(|spec| decode(spec, args)) {
            Ok(_) => continue,
            Err(refusal) => refusal.write(&mut reply),
        }
        assert!(out.starts_with(b"-"), "a refusal is an error");
        assert!(out.ends_with(b"\r\n"), "an answer ends its line");
        let inner = &out[1..out.len() - 2];
        assert!(!inner.contains(&b'\r') && !inner.contains(&b'\n'), "an error is one line");
        assert!(out.len() < 2000, "an error quotes little");
        reply_is_rewindable(&mut out, version);
    }
}

fn reply_is_rewindable(out: &mut Vec<u8>, version: Version) {
    let before = out.clone();
    let mut reply = Encoder::new(out, version);
    let mark = reply.mark();
    reply.bulk(&before);
    reply.rewind(mark);
    assert_eq!(*out, before);
}

/// Bytes that mean something to the parser or a command.
const WORDS: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b"*",
    b"$",
    b"*1\r\n",
    b"*2\r\n",
    b"$3\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"\"",
    b"'",
    b"\\x",
    b"\\",
    b" ",
    b"\0",
    b"-",
    b"NX",
    b"XX",
    b"GET",
    b"EX",
    b"PX",
    b"EXAT",
    b"PXAT",
    b"KEEPTTL",
    b"LIMIT",
    b"REV",
    b"KEYS",
    b"COUNT",
    b"MATCH",
    b"TYPE",
    b"REPLACE",
    b"HELP",
    b"0",
    b"1",
    b"-1",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"1e5000",
    b"inf",
    b"nan",
    b"[a-",
    b"|",
    b"\xff\xff",
    b"*1048577\r\n",
    b"$67108864\r\n",
    b"$10737418240\r\n",
    b"AUTH",
    b"SETNAME",
    b"ID",
    b"SKIPME",
    b"yes",
];

fn mutate(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], draws: &mut Draws) {
    for _ in 0..1 + draws.below(6) {
        let at = draws.below(bytes.len() + 1);
        let until = (at + draws.below(20)).min(bytes.len());
        match draws.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << draws.below(8),
            1 => drop(bytes.drain(at..until)),
            2 => drop(bytes.splice(at..at, draws.one(WORDS).iter().copied())),
            3 => drop(bytes.splice(at..until, draws.one(WORDS).iter().copied())),
            4 => {
                let other = draws.one(corpus);
                let from = draws.below(other.len() + 1);
                bytes.splice(at..at, other[from..].iter().copied());
            }
            _ => {
                let copied = bytes[at..until].to_vec();
                bytes.splice(at..at, copied);
            }
        }
    }
    bytes.truncate(16 << 10);
}

/// Requests with real names and arbitrary arguments.
fn compose(draws: &mut Draws) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + draws.below(4) {
        let spec = draws.one(table::SPECS);
        let mut words = vec![spec.name.as_bytes()];
        if !spec.subcommands.is_empty() && draws.below(8) > 0 {
            words.push(draws.one(spec.subcommands).name.as_bytes());
        }
        for _ in 0..draws.below(8) {
            words.push(WORDS[draws.below(WORDS.len())]);
        }
        bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
    }
    bytes
}

fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the corpus folder")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| (path.display().to_string(), std::fs::read(&path).expect("a corpus file")))
        .collect();
    files.sort();
    files
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn narrow() -> Limits {
    Limits {
        args_max: 100,
        bulk_bytes_max: 300,
        inline_bytes_max: 200,
        request_bytes_max: 1000,
        unauthenticated: false,
    }
}

/// Checks all laws for one input.
fn check(bytes: &[u8], draws: &mut Draws) {
    let wide = Limits::for_values(64 << 20);
    for limits in [wide.before_authentication(), wide, narrow()] {
        let whole = read(bytes, &limits, || bytes.len());
        assert!(whole.consumed <= bytes.len());
        assert_eq!(read(bytes, &limits, || 1), whole, "byte by byte");
        let longest = 1 + draws.below(40);
        assert_eq!(read(bytes, &limits, || 1 + draws.below(longest)), whole, "random pieces");
    }
}

#[test]
fn the_corpus_breaks_no_law() {
    let files = corpus();
    assert!(files.len() >= 20, "the corpus is there");
    for (name, bytes) in files {
        let outcome = std::panic::catch_unwind(|| check(&bytes, &mut Draws(1)));
        assert!(outcome.is_ok(), "{name}");
    }
}

#[test]
fn mutated_and_random_bytes_break_no_law() {
    let corpus: Vec<Vec<u8>> = corpus().into_iter().map(|(_, bytes)| bytes).collect();
    let first = setting("HEADWATER_FUZZ_FIRST", 0);
    for round in first..first + setting("HEADWATER_FUZZ_ROUNDS", 10_000) {
        let mut draws = Draws(round);
        let mut bytes = match draws.below(4) {
            0 => (0..draws.below(200)).map(|_| draws.next() as u8).collect(),
            1 => compose(&mut draws),
            _ => draws.one(&corpus).clone(),
        };
        if draws.below(4) > 0 {
            mutate(&mut bytes, &corpus, &mut draws);
        }
        let outcome = std::panic::catch_unwind(|| check(&bytes, &mut Draws(round)));
        assert!(outcome.is_ok(), "round {round}: {}", bytes.escape_ascii());
    }
}
