//! What the documents show is what the program answers.
//!
//! A fenced block with lines that start with `> ` is a conversation, as `redis-cli --raw` shows
//! it. The blocks of one document are one conversation with one server, in their order. Figures
//! in the `status:` and `eviction:` lines of EXPLAIN (times, bytes, uses) are not compared. Blocks in Python and in TypeScript are
//! run by the tests of those clients (`clients/run`).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// The real program, on a port that the system chose.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_headwater"))
            .args(["serve", "--port", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        let mut out = BufReader::new(process.stdout.take().expect("its output"));
        out.read_line(&mut line).expect("a line when ready");
        let address = line.trim().rsplit(' ').next().expect("an address").to_owned();
        Self { process, address }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}

/// Words as a shell would cut them: single quotes keep what is between them together.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for (at, part) in line.split('\'').enumerate() {
        if at % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

fn send(stream: &mut BufReader<TcpStream>, words: &[String]) {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.get_mut().write_all(request.as_bytes()).expect("a request is sent");
}

/// Reads a RESP2 answer and adds the lines that `redis-cli --raw` prints for it.
fn receive(stream: &mut BufReader<TcpStream>, shown: &mut String) {
    let mut line = String::new();
    stream.read_line(&mut line).expect("an answer");
    let (kind, rest) = line.trim_end().split_at(1);
    let count: i64 = rest.parse().unwrap_or(-1);
    match kind {
        "$" if count >= 0 => {
            let mut bytes = vec![0; count as usize + 2];
            stream.read_exact(&mut bytes).expect("the bytes of an answer");
            bytes.truncate(count as usize);
            shown.push_str(&String::from_utf8(bytes).expect("text"));
            shown.push('\n');
        }
        "*" if count > 0 => (0..count).for_each(|_| receive(stream, shown)),
        "$" | "*" => shown.push('\n'),
        _ => {
            shown.push_str(rest);
            shown.push('\n');
        }
    }
}

/// What can be compared: figures of a `status:` or `eviction:` line are left out.
fn comparable(text: &str) -> String {
    let lines = text.trim_end().lines().map(|line| {
        let title = line.trim_start();
        let varies = title.starts_with("status:") || title.starts_with("eviction:");
        line.chars().filter(|c| !(varies && c.is_ascii_digit())).collect::<String>()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Runs the conversations of a document; how many requests they had.
fn converse(document: &str) -> usize {
    let path = format!("{}/../../{document}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("the document");
    let server = Server::start();
    let stream = TcpStream::connect(&server.address).expect("a connection");
    let mut stream = BufReader::new(stream);
    let (mut asked, mut fenced) = (0, false);
    let mut step: Option<(String, String)> = None;
    let mut finish = |step: Option<(String, String)>| {
        let Some((request, expected)) = step else { return };
        send(&mut stream, &words(&request));
        let mut shown = String::new();
        receive(&mut stream, &mut shown);
        assert_eq!(comparable(&shown), comparable(&expected), "{document}: {request}");
        asked += 1;
    };
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
            finish(step.take());
        } else if !fenced {
        } else if let Some(request) = line.strip_prefix("> ") {
            finish(step.replace((request.to_owned(), String::new())));
        } else if let Some((_, expected)) = &mut step {
            expected.push_str(line);
            expected.push('\n');
        }
    }
    asked
}

#[test]
fn the_readme_is_right() {
    assert!(converse("README.md") > 5);
}

#[test]
fn the_page_about_joins_is_right() {
    assert!(converse("docs/joins.md") > 30);
}

#[test]
fn the_page_about_commands_is_right() {
    assert!(converse("docs/commands.md") > 8);
}

#[test]
fn the_page_about_tracking_is_right() {
    assert!(converse("docs/tracking.md") > 2);
}

#[test]
fn the_first_page_is_right() {
    assert!(converse("docs/start.md") > 10);
}

#[test]
fn the_pages_of_how_to_are_right() {
    for page in ["timeline", "leaderboard", "shop", "sessions", "front-page"] {
        assert!(converse(&format!("docs/how-to/{page}.md")) > 8, "{page}");
    }
}
