//! A blocking client for one connection: sends a request, reads and shows its reply.
//!
//! Replies are shown as redis-cli shows them: numbered and quoted for people, or raw for
//! programs.

use crate::dial::{Place, Stream, TlsArgs};
use anyhow::{Context, bail, ensure};
use headwater_bench::wire::{Input, resp};
use std::fmt::Write as _;
use std::io::{ErrorKind, Write};
use std::time::Duration;

/// Nesting that a reply may have; the server's own have far less.
const DEPTH_MAX: usize = 64;
/// Longest byte string that is accepted in a reply.
const BULK_BYTES_MAX: u64 = 1 << 30;

/// One reply.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reply {
    /// A status text.
    Status(String),
    /// A refusal or failure.
    Error(String),
    /// A whole number.
    Integer(i64),
    /// A byte string.
    Bulk(Vec<u8>),
    /// Text to be shown as it is.
    Verbatim(Vec<u8>),
    /// Nothing.
    Null,
    /// A floating-point number, as text.
    Double(String),
    /// True or false.
    Boolean(bool),
    /// An array or a set.
    Array(Vec<Reply>),
    /// A message that answers no request.
    Push(Vec<Reply>),
    /// Pairs.
    Map(Vec<(Reply, Reply)>),
}

/// Which server, and who talks to it, as flags say it.
#[derive(clap::Args)]
pub(crate) struct ServerArgs {
    /// Host of the server
    #[arg(short = 'h', long, default_value = "127.0.0.1")]
    host: String,
    /// Port of the server
    #[arg(short, long, default_value_t = 7379)]
    port: u16,
    /// User
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The server as redis://user:password@host:port, in which user, password and port may be left out; rediss:// talks TLS
    #[arg(short = 'u', long, value_name = "URL")]
    uri: Option<String>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Password
    #[arg(short = 'a', long = "pass", value_name = "PASSWORD", env = "HEADWATER_PASSWORD")]
    password: Option<String>,
}

impl ServerArgs {
    /// Where the server is.
    pub(crate) fn place(&self) -> anyhow::Result<Place> {
        let place = Place {
            host: self.host.clone(),
            port: self.port,
            user: self.user.clone(),
            password: self.password.clone(),
            encrypted: self.tls.is_on(),
        };
        self.uri.as_ref().map_or_else(|| Ok(place.clone()), |url| Place::of_url(url, &place))
    }

    /// Connects, and logs in where there is a password; the reply to that, if so.
    pub(crate) fn connect(&self, place: &Place) -> anyhow::Result<(Client, Option<Reply>)> {
        let mut client = Client::connect(place, &self.tls)?;
        let Some(password) = &place.password else { return Ok((client, None)) };
        let user = place.user.iter().map(String::as_str);
        let words: Vec<&str> = ["AUTH"].into_iter().chain(user).chain([&**password]).collect();
        let reply = client.call(&words)?;
        Ok((client, Some(reply)))
    }
}

/// A connection to a server.
pub(crate) struct Client {
    input: Input<Stream>,
    out: Vec<u8>,
}

impl Client {
    /// Connects.
    pub(crate) fn connect(place: &Place, tls: &TlsArgs) -> anyhow::Result<Self> {
        Ok(Self { input: Input::new(Stream::connect(place, tls)?), out: Vec::new() })
    }

    /// Sends one request and reads its reply.
    pub(crate) fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> anyhow::Result<Reply> {
        self.send(args)?;
        self.read()
    }

    /// Sends requests together, and reads their replies.
    pub(crate) fn call_all<A: AsRef<[u8]>, const N: usize>(
        &mut self,
        requests: &[[A; N]],
    ) -> anyhow::Result<Vec<Reply>> {
        self.out.clear();
        for args in requests {
            self.add(args);
        }
        self.send_out()?;
        requests.iter().map(|_| self.read()).collect()
    }

    fn add<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        resp::begin(&mut self.out, args.len());
        args.iter().for_each(|arg| resp::argument(&mut self.out, arg.as_ref()));
    }

    fn send_out(&mut self) -> anyhow::Result<()> {
        let stream = self.input.stream();
        stream.write_all(&self.out).and_then(|()| stream.flush()).context("sending")
    }

    /// Waits a while for the first byte of what the server sends next; whether it came, or the server is gone.
    pub(crate) fn wait(&mut self, most: Duration) -> anyhow::Result<bool> {
        self.input.stream().socket().set_read_timeout(Some(most))?;
        let came = self.input.peek();
        self.input.stream().socket().set_read_timeout(None)?;
        match came {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(false),
            // The end is what the next reply is.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(true),
            Err(error) => Err(error).context("reading"),
        }
    }

    /// Sends one request.
    pub(crate) fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> anyhow::Result<()> {
        self.out.clear();
        self.add(args);
        self.send_out()
    }

    /// Reads one reply.
    pub(crate) fn read(&mut self) -> anyhow::Result<Reply> {
        self.read_at(0)
    }

    fn read_at(&mut self, depth: usize) -> anyhow::Result<Reply> {
        ensure!(depth < DEPTH_MAX, "the reply is nested too deeply");
        let line = self.input.line().context("reading")?;
        let line = String::from_utf8_lossy(line).into_owned();
        let (kind, rest) = line.split_at_checked(1).context("an empty line is no reply")?;
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(rest.parse().context("an integer reply")?),
            "_" => Reply::Null,
            "," | "(" => Reply::Double(rest.to_owned()),
            "#" => Reply::Boolean(rest == "t"),
            "$" => self.bulk(rest)?.map_or(Reply::Null, Reply::Bulk),
            "!" => {
                Reply::Error(String::from_utf8_lossy(&self.bulk(rest)?.unwrap_or_default()).into())
            }
            "=" => Reply::Verbatim(self.bulk(rest)?.unwrap_or_default().split_off(4)),
            "*" | "~" | ">" => match length(rest)? {
                None => Reply::Null,
                Some(count) => {
                    let items = (0..count).map(|_| self.read_at(depth + 1));
                    let items = items.collect::<anyhow::Result<_>>()?;
                    if kind == ">" { Reply::Push(items) } else { Reply::Array(items) }
                }
            },
            "%" => {
                let pairs = (0..length(rest)?.unwrap_or(0))
                    .map(|_| Ok((self.read_at(depth + 1)?, self.read_at(depth + 1)?)));
                Reply::Map(pairs.collect::<anyhow::Result<_>>()?)
            }
            _ => bail!("the server's answer is no RESP: {line:?}"),
        })
    }

    fn bulk(&mut self, text: &str) -> anyhow::Result<Option<Vec<u8>>> {
        let Some(count) = length(text)? else {
            return Ok(None);
        };
        ensure!(count <= BULK_BYTES_MAX, "a reply of {count} bytes is too long");
        Ok(Some(self.input.data(count as usize).context("reading")?.to_vec()))
    }
}

/// The length of an aggregate or byte string; `None` for the old form of null.
fn length(text: &str) -> anyhow::Result<Option<u64>> {
    if text == "-1" {
        return Ok(None);
    }
    Ok(Some(text.parse().with_context(|| format!("{text:?} is no length"))?))
}

impl Reply {
    /// For people: numbered, quoted, with the type where it matters.
    pub(crate) fn pretty(&self) -> String {
        let mut out = String::new();
        self.write_pretty("", &mut out);
        out
    }

    fn write_pretty(&self, indent: &str, out: &mut String) {
        match self {
            Self::Array(items) | Self::Push(items) if items.is_empty() => {
                out.push_str("(empty array)\n")
            }
            Self::Map(pairs) if pairs.is_empty() => out.push_str("(empty hash)\n"),
            Self::Array(items) | Self::Push(items) => {
                let width = items.len().to_string().len();
                for (at, item) in items.iter().enumerate() {
                    let head = format!("{:>width$}) ", at + 1);
                    lead(at, indent, &head, out);
                    item.write_pretty(&format!("{indent}{:1$}", "", head.len()), out);
                }
            }
            Self::Map(pairs) => {
                let width = pairs.len().to_string().len();
                for (at, (key, value)) in pairs.iter().enumerate() {
                    let head = format!("{:>width$}# ", at + 1);
                    lead(at, indent, &head, out);
                    out.push_str(key.line().trim_end());
                    out.push_str(" => ");
                    if matches!(value, Self::Array(items) if !items.is_empty())
                        || matches!(value, Self::Map(items) if !items.is_empty())
                    {
                        let deeper = format!("{indent}{:1$}", "", head.len());
                        let _ = write!(out, "\n{deeper}");
                        value.write_pretty(&deeper, out);
                    } else {
                        value.write_pretty(indent, out);
                    }
                }
            }
            Self::Verbatim(text) => {
                out.push_str(&String::from_utf8_lossy(text));
                out.push('\n');
            }
            other => out.push_str(&other.line()),
        }
    }

    /// A reply that fits one line.
    fn line(&self) -> String {
        match self {
            Self::Status(text) => format!("{text}\n"),
            Self::Error(text) => format!("(error) {text}\n"),
            Self::Integer(number) => format!("(integer) {number}\n"),
            Self::Bulk(bytes) => format!("{}\n", quoted(bytes)),
            Self::Null => String::from("(nil)\n"),
            Self::Double(text) => format!("(double) {text}\n"),
            Self::Boolean(truth) => format!("({truth})\n"),
            Self::Verbatim(_) | Self::Array(_) | Self::Push(_) | Self::Map(_) => self.pretty(),
        }
    }

    /// For programs: the bytes alone, a line each.
    pub(crate) fn raw(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_raw(&mut out);
        out
    }

    fn write_raw(&self, out: &mut Vec<u8>) {
        match self {
            Self::Status(text) | Self::Error(text) | Self::Double(text) => {
                out.extend_from_slice(text.as_bytes());
            }
            Self::Integer(number) => out.extend_from_slice(number.to_string().as_bytes()),
            Self::Boolean(truth) => out.extend_from_slice(truth.to_string().as_bytes()),
            Self::Bulk(bytes) | Self::Verbatim(bytes) => out.extend_from_slice(bytes),
            Self::Null => {}
            Self::Array(items) | Self::Push(items) => {
                return items.iter().for_each(|item| item.write_raw(out));
            }
            Self::Map(pairs) => {
                return pairs.iter().for_each(|(key, value)| {
                    key.write_raw(out);
                    value.write_raw(out);
                });
            }
        }
        out.push(b'\n');
    }
}

/// Begins an element: the first one stands on the line of its parent.
fn lead(at: usize, indent: &str, head: &str, out: &mut String) {
    if at > 0 {
        out.push_str(indent);
    }
    out.push_str(head);
}

/// The bytes as redis-cli quotes them; what is valid text beyond ASCII is shown as it is.
fn quoted(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                c if c.is_control() => {
                    let _ = write!(out, "\\x{:02x}", c as u32);
                }
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.push('"');
    out
}

/// Splits a line into words as redis-cli does: spaces separate, quotes and escapes group.
/// `None`: a quote is not closed, or is followed by more than a space.
pub(crate) fn split_words(line: &str) -> Option<Vec<Vec<u8>>> {
    let mut rest = line.as_bytes();
    let mut words = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        let ends_plain = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'');
        let end = rest.iter().position(ends_plain).unwrap_or(rest.len());
        word.extend_from_slice(&rest[..end]);
        rest = &rest[end..];
        // A quote may begin within a word, and ends it.
        if let Some((&quote, quoted)) = rest.split_first()
            && !quote.is_ascii_whitespace()
        {
            rest = quoted_word(quoted, quote, &mut word)?;
            if rest.first().is_some_and(|byte| !byte.is_ascii_whitespace()) {
                return None;
            }
        }
        words.push(word);
    }
}

/// Reads a word up to its closing `quote` and gives what follows.
fn quoted_word<'t>(mut rest: &'t [u8], quote: u8, word: &mut Vec<u8>) -> Option<&'t [u8]> {
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        if byte == quote {
            return Some(rest);
        }
        if byte != b'\\' || quote == b'\'' && rest.first() != Some(&b'\'') {
            word.push(byte);
            continue;
        }
        let (&escaped, after) = rest.split_first()?;
        rest = after;
        if escaped == b'x'
            && let Some(digits) = rest.get(..2)
            && let Ok(digits) = std::str::from_utf8(digits)
            && let Ok(byte) = u8::from_str_radix(digits, 16)
        {
            word.push(byte);
            rest = &rest[2..];
            continue;
        }
        word.push(match escaped {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'a' => 7,
            b'b' => 8,
            other => other,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_group_by_quotes() {
        let words = |line: &str| {
            split_words(line).map(|words| {
                words.into_iter().map(|word| String::from_utf8(word).unwrap()).collect::<Vec<_>>()
            })
        };
        assert_eq!(words("  set a  'it\\'s' ").unwrap(), ["set", "a", "it's"]);
        assert_eq!(words(r#"set "a b" "x\x41\n\"" "#).unwrap(), ["set", "a b", "xA\n\""]);
        assert_eq!(words("").unwrap(), Vec::<String>::new());
        assert_eq!(words(r#"set foo a"b c" x'd\e'"#).unwrap(), ["set", "foo", "ab c", r"xd\e"]);
        assert_eq!(words(r#"set foo "" '' a"""#).unwrap(), ["set", "foo", "", "", "a"]);
        assert_eq!(words("set a\"b"), None);
        assert_eq!(words("set a\"b\"c"), None);
        assert_eq!(words("set \"a"), None);
        assert_eq!(words("set \"a\"b"), None);
    }

    #[test]
    fn replies_look_as_in_redis_cli() {
        let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
        let reply = Reply::Array(vec![
            bulk("a\"b\n"),
            Reply::Array(vec![Reply::Integer(1), Reply::Null]),
            Reply::Array(vec![]),
        ]);
        let expected = "1) \"a\\\"b\\n\"\n2) 1) (integer) 1\n   2) (nil)\n3) (empty array)\n";
        assert_eq!(reply.pretty(), expected);
        assert_eq!(reply.raw(), b"a\"b\n\n1\n\n");
        let map =
            Reply::Map(vec![(bulk("k"), bulk("v")), (bulk("l"), Reply::Array(vec![bulk("x")]))]);
        assert_eq!(map.pretty(), "1# \"k\" => \"v\"\n2# \"l\" => \n   1) \"x\"\n");
    }
}
