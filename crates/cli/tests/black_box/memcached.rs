//! memcached's protocol, beside memcached itself: the same requests to both, whose answers must be
//! equal byte for byte. Skipped, with a message, where no `memcached` is installed.
//!
//! `tests/memcached/*.script` hold the requests, one a line, with escapes as in Rust; `#` starts a comment.
//! A line end is added where there is none. `{k*250}` stands for as many letters, `{c2}` for the
//! second version that the server has given out in this script: versions are compared by the
//! order in which they came. Times to live are compared by whether there is one.

use crate::support::Server;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A `memcached` of our own that ends with the test.
struct Memcached {
    process: Child,
    /// Holds its socket.
    folder: tempfile::TempDir,
}

impl Memcached {
    /// `None` where it is not installed.
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new("memcached");
        command.arg("-s").arg(folder.path().join("socket")).args(["-t", "1"]);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        let process = command.stdout(Stdio::null()).spawn().ok()?;
        Some(Self { process, folder })
    }

    fn connect(&self) -> UnixStream {
        for _ in 0..200 {
            if let Ok(stream) = UnixStream::connect(self.folder.path().join("socket")) {
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                return stream;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("memcached does not listen");
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}

/// One side of a comparison.
struct Side<S> {
    stream: S,
    /// The versions it has given out, in order.
    versions: Vec<u64>,
}

impl<S: Read + Write> Side<S> {
    fn new(stream: S) -> Self {
        Self { stream, versions: Vec::new() }
    }

    /// The answer to a line of a script.
    fn ask(&mut self, line: &str, number: usize) -> String {
        let mut request = unescape(line, &self.versions);
        if !request.ends_with(b"\n") {
            request.extend_from_slice(b"\r\n");
        }
        // A request whose answer cannot be mistaken for another's.
        request.extend_from_slice(format!("mg end-{number} k\r\n").as_bytes());
        let end = format!("EN kend-{number}\r\n");
        self.stream.write_all(&request).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(end.as_bytes()) {
            let mut some = [0; 4096];
            let count = self.stream.read(&mut some).unwrap_or_else(|error| {
                panic!("{line}: {error} after {}", answer.escape_ascii());
            });
            assert!(count > 0, "{line}: closed after {}", answer.escape_ascii());
            answer.extend_from_slice(&some[..count]);
        }
        answer.truncate(answer.len() - end.len());
        self.comparable(&answer)
    }

    /// The answer with its versions by order, and without times.
    fn comparable(&mut self, answer: &[u8]) -> String {
        let text = answer.escape_ascii().to_string();
        let lines = text.split("\\r\\n").map(|line| {
            let value = line.starts_with("VALUE ");
            let meta = ["HD", "VA ", "EN", "NS", "EX", "NF"].iter().any(|c| line.starts_with(c));
            let words = line.split(' ').enumerate().map(|(at, word)| {
                if value && at == 4 {
                    self.rank(word)
                } else if let Some(version) = word.strip_prefix('c').filter(|_| meta && at > 0) {
                    format!("c{}", self.rank(version))
                } else if meta && at > 0 && word.starts_with('t') && word != "t-1" {
                    String::from("t+")
                } else {
                    word.to_owned()
                }
            });
            words.collect::<Vec<_>>().join(" ")
        });
        lines.collect::<Vec<_>>().join("\\r\\n")
    }

    fn rank(&mut self, version: &str) -> String {
        let version: u64 = version.parse().expect("a version");
        let known = self.versions.iter().position(|&known| known == version);
        let at = known.unwrap_or_else(|| {
            self.versions.push(version);
            self.versions.len() - 1
        });
        format!("{{c{}}}", at + 1)
    }
}

/// The bytes that a line of a script stands for.
fn unescape(line: &str, versions: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        match first {
            '\\' => {
                let (letter, behind) = rest.split_at(1);
                rest = behind;
                match letter {
                    "r" => bytes.push(b'\r'),
                    "n" => bytes.push(b'\n'),
                    "t" => bytes.push(b'\t'),
                    "x" => {
                        let (digits, behind) = rest.split_at(2);
                        rest = behind;
                        bytes.push(u8::from_str_radix(digits, 16).expect("two digits"));
                    }
                    other => panic!("{line}: \\{other}"),
                }
            }
            '{' => {
                let (inner, behind) = rest.split_once('}').expect("a closing brace");
                rest = behind;
                if let Some((letter, count)) = inner.split_once('*') {
                    bytes.extend_from_slice(letter.repeat(count.parse().unwrap()).as_bytes());
                } else {
                    let number: usize = inner.strip_prefix('c').unwrap().parse().unwrap();
                    let version = versions.get(number - 1).expect("so many versions");
                    bytes.extend_from_slice(version.to_string().as_bytes());
                }
            }
            other => bytes.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

#[expect(clippy::print_stderr, reason = "a skipped comparison must be seen")]
fn compare(script: &str, name: &str) {
    for shards in ["1", "3"] {
        let Some(memcached) = Memcached::start() else {
            eprintln!("SKIPPED: memcached is not installed; {name} was not compared with it");
            return;
        };
        compare_with(&memcached, shards, script, name);
    }
}

fn compare_with(memcached: &Memcached, shards: &str, script: &str, name: &str) {
    let server = Server::start(&["--memcached-port", "0", "--shards", shards]);
    let mut theirs = Side::new(memcached.connect());
    let mut ours = Side::new(server.memcached().stream().try_clone().unwrap());
    let mut differences = Vec::new();
    for (at, line) in script.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let (ours, theirs) = (ours.ask(line, at), theirs.ask(line, at));
        if ours != theirs {
            let at = at + 1;
            differences.push(format!(
                "{name}:{at}, {shards} shards: {line}\n  ours   {ours}\n  theirs {theirs}"
            ));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn classic_commands_are_answered_as_memcached_does() {
    compare(include_str!("../memcached/classic.script"), "classic.script");
}

#[test]
fn meta_commands_are_answered_as_memcached_does() {
    compare(include_str!("../memcached/meta.script"), "meta.script");
}

#[test]
fn refusals_have_the_words_of_memcached() {
    compare(include_str!("../memcached/refusals.script"), "refusals.script");
}
