//! Reading traces from files: plain, `.gz` or `.zst`, one request per line.
//!
//! | format | columns | told by |
//! | --- | --- | --- |
//! | libCacheSim's | time, object, bytes (and more, which do not count) | (otherwise) |
//! | Twitter's | time, key, key bytes, value bytes, client, operation, life time | seven columns |
//! | CacheLib's KV cache | time, key, key bytes, operation, count, bytes, … | a head `op_time,…` |
//!
//! Lines that start with `#` are comments. In Twitter's traces `get` and `gets` are reads,
//! `delete` removes, and all else writes.

use super::{KEY_BYTES, Operation, Request, Trace};
use crate::open::open;
use core::fmt;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// One line of CacheLib's format stands for so many requests at most.
const COUNT_MAX: usize = 1000;

/// Why a trace could not be read.
#[derive(Debug)]
pub enum TraceError {
    /// The file could not be opened or read.
    Io(String, std::io::Error),
    /// A line is no request.
    Line {
        /// Its number, from 1.
        number: usize,
        /// What it says.
        text: String,
    },
    /// The file has no request.
    Empty,
    /// A trace of this name is in the repository, in this file, and the working folder is not.
    Elsewhere(&'static str, &'static str),
    /// Neither a file nor one of these names.
    Unknown(String, String),
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) => write!(f, "trace file {path}: {error}"),
            Self::Line { number, text } => write!(
                f,
                "trace line {number}: '{text}' is no request (allowed: 'time,object,bytes', a \
                 line of Twitter's cache traces or of CacheLib's KV cache, or a comment that \
                 starts with #)"
            ),
            Self::Empty => f.write_str("the trace has no request"),
            Self::Elsewhere(name, file) => write!(
                f,
                "trace {name} is no part of the program: start it in a clone of Headwater's repository, which has {file}, or name a file"
            ),
            Self::Unknown(name, names) => {
                write!(f, "trace '{name}': no such file (known by name: {names})")
            }
        }
    }
}

impl std::error::Error for TraceError {}

#[derive(Clone, Copy)]
enum Format {
    Plain,
    Twitter,
    KvCache,
}

/// A line's request, before its object has a number.
struct Line<'t> {
    time_s: u64,
    key: &'t str,
    key_bytes: Option<u64>,
    value_bytes: u64,
    operation: Operation,
    count: usize,
}

impl Format {
    fn line<'t>(self, text: &'t str) -> Option<Line<'t>> {
        let mut columns = text.split(',').map(str::trim);
        let mut next = || columns.next();
        // Some traces tell time with a fraction; whole seconds are enough.
        let time_s = next()?.split('.').next()?.parse().ok()?;
        let key = next().filter(|key| !key.is_empty())?;
        let mut line = Line {
            time_s,
            key,
            key_bytes: None,
            value_bytes: 0,
            operation: Operation::Get,
            count: 1,
        };
        match self {
            Self::Plain => line.value_bytes = next()?.parse().ok()?,
            Self::Twitter => {
                line.key_bytes = Some(next()?.parse().ok()?);
                line.value_bytes = next()?.parse().ok()?;
                line.operation = match columns.nth(1)? {
                    "get" | "gets" => Operation::Get,
                    "delete" => Operation::Delete,
                    _ => Operation::Set,
                };
            }
            Self::KvCache => {
                line.key_bytes = Some(next()?.parse().ok()?);
                let operation = next()?;
                line.count = next()?.parse::<usize>().ok()?.clamp(1, COUNT_MAX);
                line.value_bytes = next()?.parse().ok()?;
                line.operation = match operation {
                    _ if operation.starts_with("GET") => Operation::Get,
                    _ if operation.starts_with("DELETE") => Operation::Delete,
                    _ => Operation::Set,
                };
            }
        }
        Some(line)
    }
}

impl Trace {
    /// Reads a trace in one of the three formats; plain, `.gz` or `.zst`.
    ///
    /// # Errors
    /// The file cannot be read, or a line is no request.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let name = path.display().to_string();
        let failed = |error| TraceError::Io(name.clone(), error);
        let short = path.file_name().map_or(&*name, |file| file.to_str().unwrap_or(&name));
        let short = short.split('.').next().unwrap_or(short);
        Self::parse(short, open(path).map_err(failed)?).map_err(|error| match error {
            TraceError::Io(_, error) => failed(error),
            other => other,
        })
    }

    /// Reads an uncompressed trace.
    ///
    /// # Errors
    /// Reading fails, or a line is no request.
    pub fn parse(name: &str, input: impl Read) -> Result<Self, TraceError> {
        let mut numbers: HashMap<Box<str>, u32> = HashMap::new();
        let mut requests: Vec<Request> = Vec::new();
        let mut format = None;
        let mut start = None;
        let (mut key_bytes, mut keys_told) = (0u64, 0u64);
        let mut input = BufReader::new(input);
        let mut line = String::new();
        for number in 1.. {
            line.clear();
            let read = input.read_line(&mut line);
            if read.map_err(|error| TraceError::Io(String::from("input"), error))? == 0 {
                break;
            }
            let text = line.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            if format.is_none() && text.starts_with("op_time") {
                format = Some(Format::KvCache);
                continue;
            }
            let format = *format.get_or_insert(match text.split(',').count() {
                7 => Format::Twitter,
                _ => Format::Plain,
            });
            let bad = || TraceError::Line { number, text: text.chars().take(80).collect() };
            let found = format.line(text).ok_or_else(bad)?;
            let next = numbers.len() as u32;
            let object = match numbers.get(found.key) {
                Some(&object) => object,
                None => {
                    numbers.insert(found.key.into(), next);
                    next
                }
            };
            if let Some(bytes) = found.key_bytes {
                key_bytes += bytes;
                keys_told += 1;
            }
            let start = *start.get_or_insert(found.time_s);
            let request = Request {
                time_s: found.time_s.saturating_sub(start).try_into().unwrap_or(u32::MAX),
                object,
                value_bytes: found.value_bytes.try_into().unwrap_or(u32::MAX),
                operation: found.operation,
            };
            requests.extend(core::iter::repeat_n(request, found.count));
        }
        if requests.is_empty() {
            return Err(TraceError::Empty);
        }
        let key_bytes = key_bytes.checked_div(keys_told).map_or(KEY_BYTES, |mean| mean as usize);
        Ok(Self { name: String::from(name), requests, objects: numbers.len() as u32, key_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::CLUSTER52;

    fn parse(text: &str) -> Result<Trace, TraceError> {
        Trace::parse("test", text.as_bytes())
    }

    fn request(time_s: u32, object: u32, value_bytes: u32, operation: Operation) -> Request {
        Request { time_s, object, value_bytes, operation }
    }

    #[test]
    fn the_trace_of_the_repository_is_the_one_described() {
        let trace = Trace::open(CLUSTER52, 1_000_000, 1).unwrap();
        assert_eq!(trace.name, CLUSTER52);
        assert_eq!((trace.requests.len(), trace.objects), (500_000, 82_416));
        assert_eq!(trace.requests.last().unwrap().time_s, 252);
    }

    #[test]
    fn plain_lines_may_have_further_columns() {
        let trace =
            parse("# time, object, size, next\n5, 77, 100, 3\n6, 78, 20, -1\n6, 77, 90, -1")
                .unwrap();
        let expected = [
            request(0, 0, 100, Operation::Get),
            request(1, 1, 20, Operation::Get),
            request(1, 0, 90, Operation::Get),
        ];
        assert_eq!((&trace.requests[..], trace.objects), (&expected[..], 2));
        assert_eq!(trace.footprint_bytes(), 90 + 20 + 2 * 20);
    }

    #[test]
    fn lines_of_twitter_tell_the_operation() {
        let trace =
            parse("0,q:q:1,30,200,8,get,0\n0,q:q:1,30,210,8,cas,60\n1,zz,10,0,8,delete,0").unwrap();
        let expected = [
            request(0, 0, 200, Operation::Get),
            request(0, 0, 210, Operation::Set),
            request(1, 1, 0, Operation::Delete),
        ];
        assert_eq!((&trace.requests[..], trace.key_bytes), (&expected[..], 23));
    }

    #[test]
    fn lines_of_the_kv_cache_stand_for_several_requests() {
        let head = "op_time,key,key_size,op,op_count,size,cache_hits,ttl,usecase,sub_usecase\n";
        let trace =
            parse(&format!("{head}9,ab,48,GET_LEASE,2,87,1,0,1,2\n9,cd,24,SET,1,5,0,0,1,2"))
                .unwrap();
        let read = request(0, 0, 87, Operation::Get);
        assert_eq!(trace.requests, [read, read, request(0, 1, 5, Operation::Set)]);
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = parse("0,1,2\n0,1\n").unwrap_err().to_string();
        assert!(error.starts_with("trace line 2: '0,1' is no request"), "{error}");
        assert!(parse("0,1,x").is_err());
        assert!(parse("0,q,30,200,8,get").is_ok_and(|trace| trace.requests[0].value_bytes == 30));
        assert!(matches!(parse("# nothing\n"), Err(TraceError::Empty)));
        let error = Trace::open("nowhere", 1, 1).unwrap_err().to_string();
        assert!(error.contains("nowhere") && error.contains("cluster52"), "{error}");
    }
}
