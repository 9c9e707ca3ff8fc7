//! Draws what clients ask: keys that joins read and give, and everything else that goes over shards.

use super::commands::{LONG_KEY, Words};
use super::script::{Script, Step};
use crate::generate::{BITS_FROM, KEPT_FROM, LENSED_FROM, TALLIED_FROM};
use crate::join::{Join, Part, Pattern};
use crate::rng::Rng;

/// Joins over one group and over many, of other joins, and of keys that are placed elsewhere.
const JOINS: [&str; 15] = [
    "t|<u>|<c>|<p> = check s|<u>|<p> copy p|<p>|<c>",
    "n|<p> = count p|<p>|<c>",
    "f|<p> = count s|<u>|<p>",
    "top|<u>|<p> = check s|<u>|<p> copy f|<p>",
    "w|<c> = sum p|<p>|<c>",
    "r|<p>|<u> = copy s|<u>|<p>",
    "g|all|<p> = copy n|<p>",
    "x|<u> = max p|<p>|<c> check s|<u>|<p>",
    "l|<p> = last p|<p>|<c>",
    "q|<u>|<c>|<p> = pull check s|<u>|<p> copy p|<p>|<c>",
    "total = count p|<p>|<c>",
    "h|<a>|<b> = first p|<a>|<c> check s|<b>|<a>",
    "avg|<c> = avg p|<p>|<c> check s|<p>|<p2>",
    "t|<u>|<c>|<p>|m = copy m|<u>|<c>|<p>",
    "v|<u>|<c>|<p> = pull copy q|<u>|<c>|<p>",
];
/// Joins that look at values, which seeds from [`LENSED_FROM`] on have too.
const LENSED: [&str; 6] = [
    "b|<p>|<n:number:desc>|<c> = index p|<p>|<c> as <n>",
    "e|<p>|<c> = copy p|<p>|<c> where value >= 10 and value < 40",
    "i|<n>|<u> = check s|<u>|<p> as <n> copy p|<p>|<c>",
    "j|<p> = count p|<p>|<c> where not value prefix '1'",
    "d|<m:text>|<p>|<u> = index s|<u>|<p> as <m> where <u> != 'a'",
    "o|<m:number:desc>|<p> = index n|<p> as <m>",
];
/// Joins that keep some outputs of each group, which seeds from [`KEPT_FROM`] on have besides.
const KEPT: [&str; 3] = [
    "ka|<u>|<c>|<p> = check s|<u>|<p> copy p|<p>|<c> keep 3",
    "kb|<p>|<n:number:desc>|<c> = index p|<p>|<c> as <n> keep 2 desc",
    "kd|<p> = count ka|<u>|<c>|<p>",
];
/// Joins that count values, which seeds from [`TALLIED_FROM`] on have besides.
const TALLIED: [&str; 4] = [
    "la|<p> = distinct p|<p>|<c>",
    "lb|<u> = check s|<u>|<p> topk 2 p|<p>|<c>",
    "lc|<p> = distinct~ 2 s|<u>|<p> on <u>",
    "ld|<p> = percentile 50 p|<p>|<c>",
];
const SOURCES: [&str; 4] = ["s|<u>|<p>", "p|<p>|<c>", "p|<p>|<c>", "m|<u>|<c>|<p>"];
const NAMES: [&str; 7] = ["a", "b", "c", "d", "10", "1", "~x"];
const CHANNELS: [&str; 3] = ["news", "other", "nothing"];
const TRACKINGS: [&str; 8] = [
    "",
    "NOLOOP",
    "OPTIN",
    "OPTOUT",
    "BCAST",
    "BCAST PREFIX t| PREFIX p|",
    "BCAST NOLOOP PREFIX f|",
    "BCAST PREFIX k",
];
/// Far away, and past.
const FAR: &str = "4102444800000";

fn words(text: &str) -> Words {
    text.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
}

fn pattern(text: &str) -> Pattern {
    let join = Join::parse(&format!("o = count {text}")).expect("known patterns are well formed");
    join.sources[0].1.clone()
}

/// What scripts can be drawn without: while one thing is known to be wrong, others can be looked for.
pub const SUBJECTS: [&str; 15] = [
    "busy",
    "channels",
    "clients",
    "copies",
    "definitions",
    "derived-copies",
    "derived-watches",
    "exec-messages",
    "join-lists",
    "join-refusals",
    "kills-by-address",
    "pattern-counts",
    "refusals",
    "scans",
    "transactions",
];

/// What one script is about.
struct World {
    /// What is left out.
    without: Vec<String>,
    rng: Rng,
    joins: Vec<(String, Join)>,
    sources: Vec<Pattern>,
    names: Vec<&'static str>,
    /// What each client does besides reading and writing.
    clients: Vec<Client>,
    /// Bounds end here, where other clients are busy with the keys behind it.
    end: &'static str,
    /// Something is asked about bits.
    bits: bool,
}

#[derive(Default)]
struct Client {
    /// It speaks RESP3, and so can be told of things.
    told: bool,
    tracks: Option<&'static str>,
    in_multi: bool,
}

/// The script of a seed, without some [`SUBJECTS`].
#[must_use]
pub fn script(seed: u64, without: &[String]) -> Script {
    let mut rng = Rng::new(seed ^ 0x7365_7276_6572_0000);
    let more = if seed < LENSED_FROM { &[][..] } else { &LENSED };
    let kept = if seed < KEPT_FROM { &[][..] } else { &KEPT };
    let tallied = if seed < TALLIED_FROM { &[][..] } else { &TALLIED };
    let all = JOINS.iter().chain(more).chain(kept).chain(tallied);
    let mut joins: Vec<_> = all.enumerate().collect();
    rng.shuffle(&mut joins);
    joins.truncate(rng.below(7));
    let join = |(at, text): &(usize, &&str)| {
        (format!("j{at}"), Join::parse(text).expect("known joins are well formed"))
    };
    let joins: Vec<_> = joins.iter().map(join).collect();
    let names = NAMES[..2 + rng.below(NAMES.len() - 1)].to_vec();
    let protocols: Vec<u8> = (0..2 + rng.below(4)).map(|_| *rng.pick(&[2, 3, 3])).collect();
    let busy = rng.chance(30) && !without.iter().any(|it| it == "busy");
    let client = |protocol: &u8| Client { told: *protocol == 3, ..Client::default() };
    let mut world = World {
        without: without.to_vec(),
        joins,
        sources: SOURCES.map(pattern).to_vec(),
        names,
        clients: protocols.iter().map(client).collect(),
        end: if busy { "~" } else { "" },
        bits: seed >= BITS_FROM,
        rng,
    };
    let mut steps = vec![world.start()];
    for _ in 0..8 + world.rng.below(20) {
        let client = match steps.last() {
            Some(last) if world.rng.chance(35) => last.client,
            _ => world.rng.below(protocols.len()),
        };
        steps.push(world.step(client));
    }
    Script { protocols, busy, steps }
}

impl World {
    /// Whether something is asked.
    fn has(&self, subject: &str) -> bool {
        debug_assert!(SUBJECTS.contains(&subject), "{subject}");
        !self.without.iter().any(|without| without == subject)
    }

    fn start(&mut self) -> Step {
        let mut requests = Vec::new();
        for table in ["s", "p", "t", "m"] {
            let boundary = if self.rng.chance(20) { 2 } else { 1 };
            requests.push(words(&format!("TABLE.SET {table} BOUNDARY {boundary}")));
        }
        for at in 0..self.joins.len() {
            requests.push(self.add(at, false));
        }
        for _ in 0..self.rng.below(12) {
            requests.push(self.write());
        }
        Step { client: 0, cuts: Vec::new(), requests }
    }

    fn add(&self, at: usize, replace: bool) -> Words {
        let (name, join) = &self.joins[at];
        let mut request = vec![b"JOIN.ADD".to_vec(), name.clone().into_bytes()];
        request.push(join.to_string().into_bytes());
        request.extend(replace.then(|| b"REPLACE".to_vec()));
        request
    }

    fn step(&mut self, client: usize) -> Step {
        let most = *self.rng.pick(&[1, 4, 12, 30]);
        let length = 1 + self.rng.below(most);
        let mut requests = Vec::new();
        while requests.len() < length {
            let block = self.block(client);
            requests.extend(block);
        }
        let goes_on = self.clients[client].in_multi || requests[0].len() == 1;
        if requests.len() == 1 && self.rng.chance(10) && !goes_on && self.has("scans") {
            requests = vec![words(&format!("SCAN.ALL {}", 1 + self.rng.below(9)))];
        }
        let pieces = *self.rng.pick(&[0, 0, 0, 1, 3]);
        let mut cuts: Vec<_> = (0..pieces).map(|_| self.rng.below(1000)).collect();
        cuts.sort_unstable();
        Step { client, cuts, requests }
    }

    fn name(&mut self) -> &'static str {
        self.names[self.rng.below(self.names.len())]
    }

    fn of(&mut self, choices: &[&'static str]) -> &'static str {
        choices[self.rng.below(choices.len())]
    }

    /// A key of a pattern, of slots that stand for what they stand for elsewhere.
    fn fill(&mut self, pattern: &Pattern, bound: &mut Vec<(String, &'static str)>) -> String {
        let mut key = pattern.table.clone();
        for part in &pattern.parts {
            key.push('|');
            key += match part {
                Part::Literal(text) => text,
                Part::Slot { name, .. } => {
                    let known = bound.iter().find(|(other, _)| other == name).map(|(_, it)| *it);
                    let value = known.unwrap_or_else(|| self.name());
                    bound.push((name.clone(), value));
                    value
                }
            };
        }
        key
    }

    /// A key that a join gives, if there is a join.
    fn derived(&mut self) -> String {
        if self.joins.is_empty() {
            return self.base();
        }
        let at = self.rng.below(self.joins.len());
        let output = self.joins[at].1.output.clone();
        self.fill(&output, &mut Vec::new())
    }

    fn base(&mut self) -> String {
        match self.rng.below(10) {
            0..2 => format!("k{}", self.rng.below(5)),
            2 => format!("{{tag}}{}", self.rng.below(3)),
            _ => {
                let source = self.rng.pick(&self.sources).clone();
                self.fill(&source, &mut Vec::new())
            }
        }
    }

    fn key(&mut self) -> String {
        if self.rng.chance(35) { self.derived() } else { self.base() }
    }

    /// A key that is mostly written without being refused.
    fn target(&mut self) -> String {
        match self.rng.below(20) {
            0 if self.has("refusals") => self.derived(),
            1 if self.rng.chance(20) && self.has("refusals") => LONG_KEY.to_owned(),
            _ => self.base(),
        }
    }

    fn value(&mut self) -> String {
        match self.rng.below(12) {
            0 => String::from("1.5"),
            1 => String::from("x"),
            2 if self.rng.chance(20) => "long".repeat(2000),
            _ => self.rng.below(50).to_string(),
        }
    }

    fn bound(&mut self) -> String {
        match self.rng.below(6) {
            0 => self.end.to_owned(),
            1 => self.key(),
            _ => {
                let key = self.key();
                let cut = key.rfind('|').map_or(0, |at| at + 1);
                let end = if self.rng.chance(30) { "}" } else { "" };
                format!("{}{end}", &key[..cut])
            }
        }
    }

    fn range(&mut self) -> Words {
        let mut all = match self.rng.below(2) {
            0 => {
                let (first, last) = (self.bound(), self.bound());
                let last = if last.is_empty() { self.end.to_owned() } else { last };
                vec!["RANGE".to_owned(), first, last]
            }
            _ => {
                let bound = self.bound();
                let all = self.end == "~" && (bound.is_empty() || bound.starts_with('~'));
                vec!["PREFIX".to_owned(), if all { String::from("p|") } else { bound }]
            }
        };
        if self.rng.chance(35) {
            all.push(String::from("REV"));
        }
        if self.rng.chance(35) {
            all.extend([String::from("LIMIT"), self.rng.below(8).to_string()]);
        }
        if self.rng.chance(35) {
            all.push(self.of(&["KEYS", "VALUES", "COUNT"]).to_owned());
        }
        all.into_iter().map(String::into_bytes).collect()
    }

    fn some(&mut self, least: usize, mut one: impl FnMut(&mut Self) -> Vec<String>) -> Vec<String> {
        let count = least + self.rng.below(4);
        (0..count).flat_map(|_| one(self)).collect()
    }

    fn read(&mut self) -> Words {
        let mut request = match self.rng.below(20) {
            0..5 => vec!["GET".to_owned(), self.key()],
            5..8 => {
                let mut all = vec!["MGET".to_owned()];
                all.extend(self.some(1, |it| vec![it.key()]));
                all
            }
            8..13 => return self.range(),
            13 => {
                let (from, to) = (self.rng.below(5) as i64 - 2, self.rng.below(6) as i64 - 3);
                vec!["GETRANGE".to_owned(), self.key(), from.to_string(), to.to_string()]
            }
            14 => {
                let mut all = vec!["EXISTS".to_owned()];
                all.extend(self.some(1, |it| vec![it.key()]));
                all
            }
            15 => vec![self.of(&["STRLEN", "TYPE", "PEXPIRETIME"]).to_owned(), self.key()],
            16 => vec!["KEYS".to_owned(), self.of(&["*", "p|*", "k*", "t|*"]).to_owned()],
            17 => vec!["DBSIZE".to_owned()],
            18 if self.end.is_empty() => vec!["VERIFY".to_owned(), self.bound(), String::new()],
            18 => vec!["VERIFY".to_owned(), String::from("a"), String::from("~")],
            _ if !self.has("scans") => vec!["DBSIZE".to_owned()],
            _ => {
                let count = (1 + self.rng.below(5)).to_string();
                vec!["SCAN".to_owned(), String::from("0"), String::from("COUNT"), count]
            }
        };
        if request.len() == 1 && self.rng.chance(3) {
            request[0] = String::from("NOSUCH");
        }
        request.into_iter().map(String::into_bytes).collect()
    }

    fn write(&mut self) -> Words {
        let pair = |it: &mut Self| vec![it.target(), it.value()];
        let word = |text: &str| text.to_owned();
        if self.bits && self.rng.chance(30) {
            return self.about_bits().into_iter().map(String::into_bytes).collect();
        }
        let request = match self.rng.below(31) {
            0..9 => vec![word("SET"), self.target(), self.value()],
            9 => {
                let option = self.of(&["NX", "XX", "GET", "KEEPTTL"]);
                vec![word("SET"), self.target(), self.value(), word(option)]
            }
            10 => vec![word("SET"), self.target(), self.value(), word("PXAT"), word(FAR)],
            11..13 => vec![word(self.of(&["INCR", "DECR"])), self.target()],
            13..15 => vec![word("APPEND"), self.target(), self.value()],
            15 => vec![word("GETDEL"), self.target()],
            16..18 => {
                let at = self.of(&[FAR, "1000"]);
                vec![word("PEXPIREAT"), self.target(), word(at)]
            }
            18 => vec![word("PERSIST"), self.target()],
            19..22 => {
                let name = word(self.of(&["DEL", "DEL", "UNLINK"]));
                [vec![name], self.some(1, |it| vec![it.target()])].concat()
            }
            22..25 => {
                let name = word(self.of(&["MSET", "MSET", "MSETNX"]));
                [vec![name], self.some(1, pair)].concat()
            }
            25..27 => self.copy(),
            27..29 => {
                let name = word(self.of(&["RENAME", "RENAMENX"]));
                vec![name, self.target(), self.target()]
            }
            29 => {
                let (first, last) = (self.bound(), self.bound());
                let last = if last.is_empty() { self.end.to_owned() } else { last };
                vec![word("RANGE.DEL"), first, last]
            }
            _ if self.rng.chance(10) && self.end.is_empty() => vec![word("FLUSHALL")],
            _ => vec![word("INCRBY"), self.target(), self.rng.below(9).to_string()],
        };
        request.into_iter().map(String::into_bytes).collect()
    }

    fn about_bits(&mut self) -> Vec<String> {
        let word = |text: &str| text.to_owned();
        let offset = self.rng.below(40).to_string();
        match self.rng.below(5) {
            0 => vec![word("GETBIT"), self.key(), offset],
            1 => vec![word("BITCOUNT"), self.key()],
            2 => {
                let bit = self.rng.below(2).to_string();
                vec![word("SETBIT"), self.target(), offset, bit]
            }
            3 => vec![word("BITOP"), word("NOT"), self.target(), self.key()],
            _ => {
                let operation = word(self.of(&["AND", "OR", "XOR"]));
                let head = vec![word("BITOP"), operation, self.target()];
                [head, self.some(1, |it| vec![it.key()])].concat()
            }
        }
    }

    fn copy(&mut self) -> Vec<String> {
        let derived = self.has("derived-copies");
        let from = if derived { self.key() } else { self.base() };
        let to = self.target();
        let to = if from == to { format!("{to}2") } else { to };
        let mut all = vec![String::from("COPY"), from, to];
        all.extend(self.rng.chance(70).then(|| String::from("REPLACE")));
        all
    }

    /// Writes all that a key is computed from, and reads it.
    fn followed(&mut self) -> Vec<Words> {
        if self.joins.is_empty() || !self.has("derived-copies") {
            return vec![self.read()];
        }
        let at = self.rng.below(self.joins.len());
        let join = self.joins[at].1.clone();
        let mut bound = Vec::new();
        let mut all = Vec::new();
        for (_, source) in &join.sources {
            let key = self.fill(source, &mut bound);
            let removes = self.rng.chance(20);
            all.push(if removes {
                format!("DEL {key}")
            } else {
                format!("SET {key} {}", self.rng.below(9))
            });
        }
        let key = self.fill(&join.output, &mut bound);
        let other = self.base();
        all.push(match self.rng.below(6) {
            0..3 => format!("COPY {key} {other} REPLACE"),
            3 => format!("MGET {other} {key}"),
            4 => format!("GET {key}"),
            _ => format!("EXISTS {key} {other}"),
        });
        all.push(format!("GET {other}"));
        all.iter().map(|text| words(text)).collect()
    }

    fn any(&mut self) -> Vec<Words> {
        match self.rng.below(10) {
            0..4 => vec![self.read()],
            4..8 => vec![self.write()],
            _ => self.followed(),
        }
    }

    fn block(&mut self, client: usize) -> Vec<Words> {
        if self.clients[client].in_multi {
            return self.in_multi(client);
        }
        match self.rng.below(100) {
            0..60 => self.any(),
            60..75 if self.has("transactions") => {
                self.clients[client].in_multi = true;
                vec![words("MULTI")]
            }
            75..80 if self.has("transactions") => {
                let derived = self.has("derived-watches");
                let key = |it: &mut Self| if derived { it.key() } else { it.base() };
                let keys = self.some(1, |it| vec![key(it)]).join(" ");
                vec![words(&format!("WATCH {keys}"))]
            }
            80 if self.has("transactions") => {
                vec![words(self.of(&["UNWATCH", "EXEC", "DISCARD", "PING", "GET"]))]
            }
            81..87 if self.has("copies") => self.tracking(client),
            87..92 if self.has("channels") => self.channels(client),
            92..95 if self.has("clients") => vec![words("CLIENT LIST")],
            95 if self.has("clients") => self.kill(client),
            96 => vec![self.list()],
            97.. if self.has("definitions") => self.define(),
            _ => self.any(),
        }
    }

    fn in_multi(&mut self, client: usize) -> Vec<Words> {
        match self.rng.below(12) {
            0..2 => {
                self.clients[client].in_multi = false;
                vec![words("EXEC")]
            }
            2 if self.rng.chance(30) => {
                self.clients[client].in_multi = false;
                vec![words("DISCARD")]
            }
            3 if self.rng.chance(30) && self.has("exec-messages") => vec![self.publish()],
            4 if self.rng.chance(10) => vec![words("WATCH k1")],
            _ => self.any(),
        }
    }

    fn tracking(&mut self, client: usize) -> Vec<Words> {
        if !self.clients[client].told {
            return vec![self.read()];
        }
        let read = self.read();
        match self.clients[client].tracks {
            Some(mode) if mode.starts_with("OPT") && self.rng.chance(80) => {
                let yes = if mode == "OPTIN" { "YES" } else { "NO" };
                vec![words(&format!("CLIENT CACHING {yes}")), read]
            }
            Some(_) if self.rng.chance(70) => vec![read],
            _ => {
                let mode = self.of(&TRACKINGS);
                self.clients[client].tracks = Some(mode);
                let on = words(&format!("CLIENT TRACKING ON {mode}"));
                vec![words("CLIENT TRACKING OFF"), on, read]
            }
        }
    }

    fn publish(&mut self) -> Words {
        let channel = self.of(&CHANNELS);
        words(&format!("PUBLISH {channel} text{}", self.rng.below(100)))
    }

    fn channels(&mut self, client: usize) -> Vec<Words> {
        let channel = self.of(&CHANNELS);
        vec![match self.rng.below(8) {
            0 if self.clients[client].told => words(&format!("SUBSCRIBE {channel}")),
            1 if self.clients[client].told => words(&format!("UNSUBSCRIBE {channel}")),
            2 if self.clients[client].told => words("PSUBSCRIBE n*"),
            3 => words(&format!("PUBSUB NUMSUB {} nobody", CHANNELS.join(" "))),
            4 if self.has("pattern-counts") => words("PUBSUB NUMPAT"),
            5 => words("PUBSUB CHANNELS"),
            _ => self.publish(),
        }]
    }

    fn kill(&mut self, client: usize) -> Vec<Words> {
        let victim = self.rng.below(self.clients.len());
        if victim == client {
            return vec![words("CLIENT LIST")];
        }
        let told = self.clients[victim].told;
        self.clients[victim] = Client { told, ..Client::default() };
        let all = ["ID #", "ADDR @", "@"];
        let how = self.of(if self.has("kills-by-address") { &all } else { &all[..2] });
        vec![words(&format!("CLIENT KILL {how}{victim}")), words("CLIENT LIST")]
    }

    fn list(&mut self) -> Words {
        if self.has("join-lists") { words("JOIN.LIST") } else { words("PING") }
    }

    fn define(&mut self) -> Vec<Words> {
        if self.joins.is_empty() {
            return self.any();
        }
        let at = self.rng.below(self.joins.len());
        match self.rng.below(4) {
            0 => vec![words(&format!("JOIN.DROP {}", self.joins[at].0)), self.list()],
            // A key in the way of a join that is not there, perhaps.
            1 if self.has("join-refusals") => {
                let output = self.joins[at].1.output.clone();
                let key = self.fill(&output, &mut Vec::new());
                let other = self.fill(&output, &mut Vec::new());
                let set = words(&format!("MSET {key} 1 {other} 1"));
                let drop = words(&format!("DEL {key} {other}"));
                vec![set, self.add(at, false), drop, self.add(at, false), self.list()]
            }
            2 => vec![self.add(at, true), self.list()],
            _ => vec![self.add(at, false), self.list()],
        }
    }
}
