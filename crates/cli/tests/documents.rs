//! What the documents show is what the program answers.
//!
//! A fenced block with lines that start with `> ` is a conversation, as `redis-cli --raw` shows
//! it. The blocks of one document are one conversation with one server, in their order. `other> ` is a request of another client, and
//! `message>` stands before what a client is sent without having asked. Figures in the `status:` and `eviction:` lines of EXPLAIN (times,
//! bytes, uses) are not compared, nor are positions. A server is started with what a page says in a comment (`is started with: …`).
//!
//! Options of `headwater` in commands for a shell are ones that it has, and settings (`toml`) are ones that it takes.
//!
//! Others are run elsewhere: Python and TypeScript by the tests of those clients (`clients/run`), `curl` and scripts for browsers by
//! `tests/page`, sources by `tests/postgres`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long something may take that comes a moment later.
const PATIENCE: Duration = Duration::from_secs(30);

/// The real program, on a port that the system chose.
struct Server {
    process: Child,
    address: String,
    /// The address of memcached's protocol, where it is spoken.
    memcached: Option<String>,
}

impl Server {
    fn start(options: &[&str]) -> Self {
        let process = Command::new(env!("CARGO_BIN_EXE_headwater"))
            .args(["serve", "--port", "0"])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut server = Self { process, address: String::new(), memcached: None };
        let out = BufReader::new(server.process.stdout.take().expect("its output"));
        for line in out.lines().map(|line| line.expect("a line")) {
            let address = line.rsplit(' ').next().unwrap_or_default().to_owned();
            if line.contains(" ready on ") {
                server.address = address;
                return server;
            }
            server.memcached = Some(address);
        }
        panic!("the program ends");
    }

    fn connect(&self) -> BufReader<TcpStream> {
        BufReader::new(TcpStream::connect(&self.address).expect("a connection"))
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

/// What can be compared: figures of a `status:` or `eviction:` line are left out, and positions.
fn comparable(text: &str) -> String {
    let lines = text.trim_end().lines().map(|line| {
        let title = line.trim_start();
        let varies = title.starts_with("status:") || title.starts_with("eviction:");
        if is_position(line) {
            return "(a position)".to_owned();
        }
        line.chars().filter(|c| !(varies && c.is_ascii_digit())).collect::<String>()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether it is a position of a watch, as `5d1b2c7e9f003a44-17`.
fn is_position(text: &str) -> bool {
    text.split_once('-').is_some_and(|(run, number)| {
        run.len() == 16
            && run.bytes().all(|it| it.is_ascii_hexdigit())
            && !number.is_empty()
            && number.bytes().all(|it| it.is_ascii_digit())
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The README and every page, by its path and with its text, but for reports of measurements.
fn pages() -> Vec<(String, String)> {
    let mut paths = vec!["README.md".to_owned()];
    for folder in ["docs", "docs/how-to"] {
        for file in std::fs::read_dir(root().join(folder)).expect("a folder of pages") {
            let name = file.expect("a page").file_name().into_string().expect("a name");
            if name.ends_with(".md") {
                paths.push(format!("{folder}/{name}"));
            }
        }
    }
    paths.sort();
    let read = |path: &String| std::fs::read_to_string(root().join(path)).expect("a page");
    paths.into_iter().map(|path| (path.clone(), read(&path))).collect()
}

/// One request, or one message, of a conversation.
#[derive(Clone, Copy)]
enum Line<'a> {
    Asks(&'a str),
    OtherAsks(&'a str),
    Message,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        if line.trim_end() == "message>" {
            return Some(Self::Message);
        }
        let other = line.strip_prefix("other> ").map(Self::OtherAsks);
        other.or_else(|| line.strip_prefix("> ").map(Self::Asks))
    }
}

/// Runs the conversations of a page; how many requests they had.
fn converse(page: &str, text: &str) -> usize {
    if !text.lines().any(|line| line.starts_with("> ")) {
        return 0;
    }
    let options =
        text.split_once("is started with: ").and_then(|(_, rest)| rest.split_once(" -->"));
    let options: Vec<&str> = options.map_or("--shards 1", |it| it.0).split(' ').collect();
    let server = Server::start(&options);
    let (mut stream, mut other) = (server.connect(), server.connect());
    let (mut asked, mut fenced) = (0, false);
    let mut position = String::new();
    let mut step: Option<(Line<'_>, String)> = None;
    let mut finish = |step: Option<(Line<'_>, String)>| {
        let Some((line, expected)) = step else { return };
        let mut shown = String::new();
        let request = match line {
            Line::Asks(request) => {
                let words = words(request).into_iter();
                // A position that the page shows stands for the one that was told last.
                let words = words.map(|it| if is_position(&it) { position.clone() } else { it });
                let words = words.collect::<Vec<_>>();
                let end = Instant::now() + PATIENCE;
                loop {
                    shown.clear();
                    send(&mut stream, &words);
                    receive(&mut stream, &mut shown);
                    // What flows do comes a moment after the write.
                    let may_come =
                        page == "docs/flows.md" && ["GET", "PREFIX"].contains(&&*words[0]);
                    if !may_come
                        || comparable(&shown) == comparable(&expected)
                        || Instant::now() > end
                    {
                        break;
                    }
                }
                request
            }
            Line::OtherAsks(request) => {
                send(&mut other, &words(request));
                receive(&mut other, &mut shown);
                request
            }
            Line::Message => {
                receive(&mut stream, &mut shown);
                "a message"
            }
        };
        if let Some(told) = shown.lines().find(|line| is_position(line)) {
            position = told.to_owned();
        }
        assert_eq!(comparable(&shown), comparable(&expected), "{page}: {request}");
        asked += 1;
    };
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
            finish(step.take());
        } else if !fenced {
        } else if let Some(next) = Line::parse(line) {
            finish(step.replace((next, String::new())));
        } else if let Some((_, expected)) = &mut step {
            expected.push_str(line);
            expected.push('\n');
        }
    }
    asked
}

#[test]
fn what_every_page_shows_is_answered() {
    let mut asked: Vec<(String, usize)> =
        pages().iter().map(|(page, text)| (page.clone(), converse(page, text))).collect();
    asked.retain(|(_, count)| *count > 0);
    assert!(asked.len() >= 14, "{asked:?}");
    assert!(asked.iter().map(|(_, count)| count).sum::<usize>() > 250, "{asked:?}");
}

/// What the program prints for `headwater … --help`.
fn help(subcommands: &[&str]) -> String {
    let shown =
        Command::new(env!("CARGO_BIN_EXE_headwater")).args(subcommands).arg("--help").output();
    String::from_utf8(shown.expect("the program runs").stdout).expect("text")
}

#[test]
fn options_that_pages_show_exist() {
    let mut seen = 0;
    for (page, text) in pages() {
        let text = text.replace("\\\n", " ");
        for line in text.lines() {
            // In a block that is indented, or has its own fence; not in sentences.
            let Some((before, command)) = line.split_once("headwater ") else { continue };
            let is_command = line.starts_with("    ") || before.is_empty();
            if !is_command || !before.chars().all(|it| it.is_whitespace()) {
                continue;
            }
            let command = command.split('#').next().unwrap_or_default();
            let words: Vec<&str> = command.split_whitespace().collect();
            let Some((name, words)) = words.split_first() else { continue };
            let nested = matches!(*name, "bench" | "fn" | "config");
            let subcommands = match words.first() {
                Some(word) if nested && !word.starts_with('-') => vec![*name, *word],
                _ => vec![*name],
            };
            let known = help(&subcommands);
            for option in words.iter().filter(|word| word.starts_with("--")) {
                let option = option.split('=').next().unwrap_or_default();
                seen += 1;
                let there = known.split(|it: char| it.is_whitespace() || it == ',' || it == '=');
                assert!(there.into_iter().any(|it| it == option), "{page}: {option} of {command}");
            }
        }
    }
    assert!(seen > 20, "{seen} options");
}

#[test]
fn settings_that_pages_show_are_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut seen = 0;
    for (page, text) in pages() {
        for block in text.split("```toml\n").skip(1) {
            let block = block.split("```").next().unwrap_or_default();
            if block.starts_with("[[case]]") {
                // Cases of a function: `function_projects` runs them.
                continue;
            }
            let file = folder.path().join("headwater.toml");
            std::fs::write(&file, block).expect("a file");
            let checked = Command::new(env!("CARGO_BIN_EXE_headwater"))
                .args(["config", "check"])
                .arg(&file)
                .output()
                .expect("the program runs");
            let told = String::from_utf8_lossy(&checked.stderr).into_owned();
            // What is told of files that are somebody else's is no mistake in the names or values of settings.
            let only_files = told.contains("/etc/headwater/") && !told.contains("unknown field");
            assert!(checked.status.success() || only_files, "{page}: {told}");
            seen += 1;
        }
    }
    assert!(seen >= 2, "{seen} blocks");
}

/// Runs a line of a page as a shell would, with `headwater` on the path; what it prints.
fn shell(line: &str, folder: &Path) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_headwater")).parent().expect("its folder");
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let ran = Command::new("sh").args(["-c", line]).current_dir(folder).env("PATH", path).output();
    let ran = ran.expect("a shell");
    assert!(ran.status.success(), "{line}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).expect("text")
}

#[test]
fn lines_for_a_shell_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path();
    let data = here.join("data");
    let data = data.to_str().expect("a path");
    let server = Server::start(&["--shards", "1", "--data", data, "--data-plain", "yes"]);
    let port = server.address.rsplit(':').next().expect("a port").to_owned();
    let client = format!("headwater cli -p {port}");
    shell(&format!("{client} SET greeting Hello && {client} SET 't|ann|1' Hi"), here);
    std::fs::write(here.join("requests.txt"), "GET greeting\nGET 't|ann|1'\n").expect("a file");
    let text = std::fs::read_to_string(root().join("docs/operating.md")).expect("a page");
    let mut seen = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("    headwater cli ")) {
        // MONITOR shows what others ask, without an end.
        let Some((words, _)) = line.split_once('#').filter(|it| !it.0.contains("MONITOR")) else {
            continue;
        };
        let told = shell(&format!("{client} {words}"), here);
        let expected = match words.trim() {
            "GET greeting" => "Hello\n",
            "< requests.txt" => "Hello\nHi\n",
            _ => "{\"t|ann|1\":\"Hi\"}\n",
        };
        assert_eq!(told.replace(' ', ""), expected.replace(' ', ""), "{line}");
        seen += 1;
    }
    assert_eq!(seen, 3);
    // docs/backup.md: a copy while it runs, and a server on what was restored.
    let (backup, restored) = (here.join("monday"), here.join("restored"));
    shell(&format!("headwater backup --to {} -p {port}", backup.display()), here);
    shell(
        &format!("headwater restore --from {} --data {}", backup.display(), restored.display()),
        here,
    );
    let options =
        ["--shards", "1", "--data-plain", "yes", "--data", restored.to_str().expect("a path")];
    let again = Server::start(&options);
    let port = again.address.rsplit(':').next().expect("a port");
    assert_eq!(shell(&format!("headwater cli -p {port} GET greeting"), here), "Hello\n");
}

#[test]
fn the_line_for_memcached_runs() {
    let text = std::fs::read_to_string(root().join("docs/memcached.md")).expect("a page");
    let (_, rest) = text.split_once("printf '").expect("a request");
    let request = rest.split('\'').next().unwrap_or_default().replace("\\r\\n", "\r\n");
    let server = Server::start(&["--shards", "1", "--memcached-port", "0"]);
    let mut stream =
        TcpStream::connect(server.memcached.as_deref().expect("an address")).expect("a connection");
    stream.write_all(request.as_bytes()).expect("a request is sent");
    let mut told = String::new();
    stream.read_to_string(&mut told).expect("an answer");
    assert_eq!(told, "STORED\r\nVALUE k 0 5\r\nhello\r\nEND\r\n");
}
