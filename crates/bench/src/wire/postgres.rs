//! PostgreSQL's message protocol, version 3: prepared statements, executed in a pipeline with
//! binary parameters and results, and COPY for loading.
//!
//! Own code so that PostgreSQL is driven by the same loop, with as little client work, as the
//! other systems.

use super::bad;
use super::connection::{Connection, Input};
use std::io::{self, Read};

/// Writes a message of `kind`, whose body `write` writes.
#[inline]
fn message(out: &mut Vec<u8>, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let length = (out.len() - at) as u32;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.push(0);
}

/// Opens a session of `user` in the database `postgres`; the server must trust us.
///
/// # Errors
/// The server refuses.
pub fn open(port: u16, user: &str) -> io::Result<Connection> {
    let mut connection = Connection::open(port)?;
    let mut body = 196_608u32.to_be_bytes().to_vec();
    for word in ["user", user, "database", "postgres"] {
        text(&mut body, word);
    }
    body.push(0);
    connection.out.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
    connection.out.extend_from_slice(&body);
    connection.flush()?;
    ready(&mut connection.input)?;
    Ok(connection)
}

/// Runs statements (separated by `;`) and waits for their end.
///
/// # Errors
/// The server refuses one.
pub fn run(connection: &mut Connection, statements: &str) -> io::Result<()> {
    message(&mut connection.out, b'Q', |out| text(out, statements));
    connection.flush()?;
    ready(&mut connection.input)
}

/// Prepares `statement` under `name`.
///
/// # Errors
/// The server refuses it.
pub fn prepare(connection: &mut Connection, name: &str, statement: &str) -> io::Result<()> {
    message(&mut connection.out, b'P', |out| {
        text(out, name);
        text(out, statement);
        out.extend_from_slice(&0u16.to_be_bytes());
    });
    sync(&mut connection.out);
    connection.flush()?;
    ready(&mut connection.input)
}

/// Writes the execution of the prepared statement `name`.
#[inline]
pub fn execute(out: &mut Vec<u8>, name: &str, parameters: &[&[u8]]) {
    message(out, b'B', |out| {
        text(out, "");
        text(out, name);
        out.extend_from_slice(&[0, 1, 0, 1]);
        out.extend_from_slice(&(parameters.len() as u16).to_be_bytes());
        for parameter in parameters {
            out.extend_from_slice(&(parameter.len() as u32).to_be_bytes());
            out.extend_from_slice(parameter);
        }
        out.extend_from_slice(&[0, 1, 0, 1]);
    });
    message(out, b'E', |out| {
        text(out, "");
        out.extend_from_slice(&0u32.to_be_bytes());
    });
}

/// Writes the end of a transaction: everything since the last one is committed together.
#[inline]
pub fn sync(out: &mut Vec<u8>) {
    message(out, b'S', |_| {});
}

/// Reads one message: its kind and its body.
#[inline]
fn reply<R: Read>(input: &mut Input<R>) -> io::Result<(u8, &[u8])> {
    let head = input.take(5)?;
    let kind = head[0];
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let body = input.take(length.saturating_sub(4))?;
    match kind {
        b'E' => Err(refusal(body)),
        _ => Ok((kind, body)),
    }
}

/// What an error message says.
fn refusal(body: &[u8]) -> io::Error {
    let field = |letter: u8| {
        body.split(|&byte| byte == 0)
            .find_map(|field| field.strip_prefix(&[letter]))
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .unwrap_or_default()
    };
    bad(format!("the server answers: {} ({})", field(b'M'), field(b'C')))
}

/// Reads until the server is ready for the next transaction.
///
/// # Errors
/// A statement failed, or the connection did.
#[inline]
pub fn ready<R: Read>(input: &mut Input<R>) -> io::Result<()> {
    loop {
        match reply(input)? {
            (b'Z', _) => return Ok(()),
            (b'R', [0, 0, 0, 0, ..]) => {}
            (b'R', _) => return Err(bad("the server wants a password")),
            _ => {}
        }
    }
}

/// Reads the rows of one executed statement, each given to `row`; gives their number.
///
/// # Errors
/// The statement failed, or the connection did.
#[inline]
pub fn rows<R: Read>(
    input: &mut Input<R>,
    mut row: impl FnMut(Columns<'_>) -> io::Result<()>,
) -> io::Result<usize> {
    let mut count = 0;
    loop {
        match reply(input)? {
            (b'D', body) => {
                count += 1;
                row(Columns { rest: body.get(2..).unwrap_or_default() })?;
            }
            (b'C' | b'I', _) => return Ok(count),
            (b'Z', _) => return Err(bad("a transaction ended where rows were expected")),
            _ => {}
        }
    }
}

/// The columns of a row, in order.
#[derive(Debug)]
pub struct Columns<'a> {
    rest: &'a [u8],
}

impl<'a> Columns<'a> {
    /// The next column's bytes.
    ///
    /// # Errors
    /// There is none, or it is null.
    #[inline]
    pub fn bytes(&mut self) -> io::Result<&'a [u8]> {
        let missing = || bad("a row has fewer columns than were asked for");
        let (length, rest) = self.rest.split_first_chunk::<4>().ok_or_else(missing)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (column, rest) = rest.split_at_checked(length).ok_or_else(missing)?;
        self.rest = rest;
        Ok(column)
    }

    /// The next column, an `integer`.
    ///
    /// # Errors
    /// As for [`Columns::bytes`]; or it has not four bytes.
    #[inline]
    pub fn integer(&mut self) -> io::Result<u32> {
        let bytes = self.bytes()?;
        let four = bytes.try_into().map_err(|_| bad("a column is no 4-byte integer"))?;
        Ok(u32::from_be_bytes(four))
    }
}

/// Loads lines of tab-separated text into `table`.
///
/// # Errors
/// The server refuses.
pub fn copy(
    connection: &mut Connection,
    table: &str,
    lines: impl Iterator<Item = Vec<u8>>,
) -> io::Result<()> {
    message(&mut connection.out, b'Q', |out| text(out, &format!("COPY {table} FROM STDIN")));
    connection.flush()?;
    loop {
        match reply(&mut connection.input)? {
            (b'G', _) => break,
            (b'Z', _) => return Err(bad("COPY did not start")),
            _ => {}
        }
    }
    for line in lines {
        message(&mut connection.out, b'd', |out| {
            out.extend_from_slice(&line);
            out.push(b'\n');
        });
        if connection.out.len() > 64 * 1024 {
            connection.flush()?;
        }
    }
    message(&mut connection.out, b'c', |_| {});
    connection.flush()?;
    ready(&mut connection.input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_and_its_end_are_read() {
        let mut text = Vec::new();
        message(&mut text, b'2', |_| {});
        message(&mut text, b'D', |out| {
            out.extend_from_slice(&2u16.to_be_bytes());
            for column in [&7u32.to_be_bytes()[..], b"hello"] {
                out.extend_from_slice(&(column.len() as u32).to_be_bytes());
                out.extend_from_slice(column);
            }
        });
        message(&mut text, b'C', |out| out.extend_from_slice(b"SELECT 1\0"));
        message(&mut text, b'Z', |out| out.push(b'I'));
        let mut input = Input::new(&text[..]);
        let count = rows(&mut input, |mut row| {
            assert_eq!(row.integer()?, 7);
            assert_eq!(row.bytes()?, b"hello");
            assert!(row.bytes().is_err());
            Ok(())
        });
        assert_eq!(count.unwrap(), 1);
        ready(&mut input).unwrap();
    }

    #[test]
    fn an_error_says_what_and_its_code() {
        let mut text = Vec::new();
        message(&mut text, b'E', |out| out.extend_from_slice(b"SERROR\0C42601\0Mno such\0\0"));
        let error = ready(&mut Input::new(&text[..])).unwrap_err().to_string();
        assert_eq!(error, "the server answers: no such (42601)");
    }
}
