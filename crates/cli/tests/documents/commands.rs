//! Lines for a shell: each is run, with `headwater` on the path, its server on a port of its own, and its files in a folder of its own.

use crate::pages::{Block, read, root};
use crate::server::Server;
use std::path::Path;
use std::process::{Command, Output};

/// Folders of a machine that lines name, each of which is a folder of the test.
const FOLDERS: [&str; 5] = [
    "/backups",
    "/var/lib/headwater",
    "/etc/bash_completion.d",
    "/usr/local/share/man/man1",
    "DIR",
];

/// Where the lines of one page are run, one after the other.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    server: Option<Server>,
}

/// Runs a line of a page as a shell would, with `headwater` on the path.
pub(crate) fn shell(line: &str, folder: &Path) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_headwater")).parent().expect("its folder");
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let ran = Command::new("sh").args(["-c", line]).current_dir(folder).env("PATH", path).output();
    ran.expect("a shell")
}

pub(crate) fn told(ran: &Output) -> String {
    let text = [&ran.stdout[..], &ran.stderr].concat();
    String::from_utf8(text).expect("text")
}

pub(crate) fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[expect(clippy::print_stderr, reason = "a skipped line must be seen")]
pub(crate) fn skipped(place: &str, why: &str) {
    eprintln!("SKIPPED: {place}: {why}");
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let here = folder.path();
        // What lines read that readers have of their own.
        std::fs::write(here.join("requests.txt"), "GET greeting\nGET 't|ann|1'\n").expect("a file");
        std::fs::write(here.join("secret"), "a password\n").expect("a file");
        std::os::unix::fs::symlink(
            root().canonicalize().expect("it").join("examples"),
            here.join("examples"),
        )
        .expect("a link");
        for file in ["headwater.example.toml", "examples/timeline-live/headwater.toml"] {
            let name = Path::new(file).file_name().expect("a name");
            std::fs::copy(root().join(file), here.join(name)).expect("a file");
        }
        Self { folder, server: None }
    }

    fn here(&self) -> &Path {
        self.folder.path()
    }

    /// The line with folders of the test.
    fn local(&self, line: &str) -> String {
        FOLDERS.iter().fold(line.to_owned(), |line, folder| {
            let name = folder.rsplit('/').next().expect("a name");
            let there = self.here().join(name);
            if *folder != "DIR" && line.contains(folder) {
                std::fs::create_dir_all(&there).expect("a folder");
            }
            line.replace(folder, there.to_str().expect("text"))
        })
    }

    /// The server that lines ask which start none, with a few keys.
    fn server(&mut self) -> &Server {
        if self.server.is_none() {
            let data = self.here().join("asked");
            let data = data.to_str().expect("text");
            let server = Server::start(&["--shards", "3", "--data", data, "--data-plain", "yes"]);
            let client = format!("headwater cli -p {}", server.port());
            self.done(&format!("{client} SET greeting Hello && {client} SET 't|ann|1' Hi"));
            self.server = Some(server);
        }
        self.server.as_ref().expect("it is there")
    }

    fn done(&self, line: &str) -> String {
        let ran = shell(line, self.here());
        assert!(ran.status.success(), "{line}: {}", told(&ran));
        String::from_utf8(ran.stdout).expect("text")
    }

    /// Runs a line of a block; whether there is a way to.
    pub(crate) fn run(&mut self, block: &Block, line: &str) -> bool {
        let words: Vec<&str> =
            line.split(" #").next().unwrap_or_default().split_whitespace().collect();
        let [first, rest @ ..] = &words[..] else { return true };
        match *first {
            "headwater" => self.headwater(block, line, rest),
            "redis-cli" => {
                let asked = format!("redis-cli -p {}", self.server().port());
                let asked = line.replacen("redis-cli -p 7379", &asked, 1);
                assert!(asked != line, "{}: another server's port: {line}", block.place());
                // What is sent was built by the lines before.
                let is_built = is_there("clang") && is_there("wasm-ld");
                if is_there("redis-cli") && is_built {
                    self.done(&asked);
                } else {
                    skipped(&block.place(), "redis-cli, clang or lld is not installed");
                }
                true
            }
            "clang" => {
                if is_there("clang") && is_there("wasm-ld") {
                    self.done(line);
                } else {
                    skipped(&block.place(), "clang and lld are not installed");
                }
                true
            }
            "cargo" => {
                names_of_cargo(block, line, rest);
                true
            }
            name if name.starts_with("HEADWATER_") || name.starts_with("HEADWATER=") => {
                names_of_tests(block, line, &words);
                true
            }
            // `clients/run` builds the one, and `deploy/package/check` installs the other.
            "pip" | "npm" | "(cd" => names_of_packages(block, &words),
            // It serves the files of a folder until it is ended; `tests/page/test_timeline.py` serves those.
            "python3" => {
                line.contains("-m http.server") && block.page.starts_with("examples/timeline-live")
            }
            // `files` has NATS look at the settings that the page shows.
            "nats-server" => rest[..2] == ["-c", "nats.conf"],
            script if root().join(script).is_file() => true,
            _ => false,
        }
    }

    fn headwater(&mut self, block: &Block, line: &str, words: &[&str]) -> bool {
        options_exist(block, words);
        match words[0] {
            "serve" => {
                // Nodes of a cluster are started by `black_box/cluster.rs`, with NATS.
                let is_node = words.contains(&"--cluster");
                if !is_node {
                    self.serves(words);
                }
                true
            }
            "cli" => {
                let asked = line.replacen(
                    "headwater cli",
                    &format!("headwater cli -p {}", self.server().port()),
                    1,
                );
                if words.contains(&"MONITOR") {
                    self.monitors(&asked);
                } else {
                    self.asks(words, &asked);
                }
                true
            }
            "backup" => {
                let port = self.server().port().to_owned();
                let line =
                    line.replacen("headwater backup", &format!("headwater backup -p {port}"), 1);
                self.done(&self.local(&line));
                true
            }
            "restore" => {
                // A server has kept nothing there before.
                let line = self.local(line);
                std::fs::remove_dir_all(self.here().join("headwater")).expect("a folder");
                self.done(&line);
                true
            }
            "completions" | "man" => {
                self.done(&self.local(line));
                true
            }
            "fn" => {
                let needs_clang = line.contains(" build") || line.contains(" test");
                if needs_clang && !(is_there("clang") && is_there("wasm-ld")) {
                    skipped(&block.place(), "clang and lld are not installed");
                } else {
                    // What may be left out, and what is begun twice on one page.
                    let line = line.replace(" [--language c|rust|assemblyscript]", "");
                    if words.contains(&"new") {
                        let _none_yet = std::fs::remove_dir_all(self.here().join("visits"));
                    }
                    self.done(&line);
                }
                true
            }
            // `black_box/cluster_commands.rs` and `cluster_demo.rs` run them with NATS servers.
            "cluster" => true,
            "demo" => words.contains(&"--cluster"),
            // They take long: what is looked at is that the program takes each word of the line.
            "bench" | "check" => true,
            _ => false,
        }
    }

    /// Whether a block is a loop of a shell whose lines are run.
    pub(crate) fn is_loop(&mut self, block: &Block) -> bool {
        let (Some((_, body)), Some(_)) =
            (block.text.split_once("; do\n"), block.text.trim_end().strip_suffix("done"))
        else {
            return false;
        };
        let read = shell(&format!("set -n\n{}", block.text), self.here());
        assert!(read.status.success(), "{}: {}", block.place(), told(&read));
        let mut lines = body.lines().filter(|line| *line != "done");
        lines.all(|line| self.run(block, line))
    }

    /// Starts a server with the options of a line.
    fn serves(&mut self, words: &[&str]) {
        let local: Vec<String> = words[1..].iter().map(|word| self.local(word)).collect();
        let mut options: Vec<String> = Vec::new();
        let mut local = local.into_iter().filter(|word| word != "&").peekable();
        while let Some(option) = local.next() {
            // Ports that the system chooses.
            let is_port = option.ends_with("-port");
            options.push(option);
            if is_port {
                local.next();
                options.push("0".to_owned());
            }
        }
        if let Some(at) = options.iter().position(|it| it == "--config") {
            let text = std::fs::read_to_string(self.here().join(&options[at + 1])).expect("a file");
            let text = text.replace("http-port = 7380", "http-port = 0").replace("port = 7379", "");
            let file = self.here().join("local.toml");
            std::fs::write(&file, text).expect("a file");
            options[at + 1] = file.to_str().expect("text").to_owned();
        }
        if options.iter().any(|it| it == "--data") {
            options.extend(["--data-plain".to_owned(), "yes".to_owned()]);
        }
        if options.iter().any(|it| it == "--functions") {
            let at = options.iter().position(|it| it == "--functions").expect("it is there");
            options[at + 1] = self.here().to_str().expect("text").to_owned();
        }
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let server = Server::start(&options);
        if words.last() == Some(&"&") {
            // The lines behind it ask this one.
            self.server = Some(server);
            return;
        }
        let restored = self.here().join("backups/monday").exists();
        let greeting = self.done(&format!("headwater cli -p {} GET greeting", server.port()));
        assert_eq!(greeting, if restored { "Hello\n" } else { "\n" });
    }

    /// Asks the server, and looks at what it answers where that is known.
    fn asks(&mut self, words: &[&str], line: &str) {
        let answer = self.done(line).replace(' ', "");
        match words[1..] {
            ["GET", "greeting"] => assert_eq!(answer, "Hello\n"),
            ["<", "requests.txt"] => assert_eq!(answer, "Hello\nHi\n"),
            ["--json", ..] => assert_eq!(answer, "{\"t|ann|1\":\"Hi\"}\n"),
            _ => assert!(!answer.is_empty(), "{line}"),
        }
    }

    /// Watches what others ask, until `head` has had its ten lines.
    fn monitors(&mut self, line: &str) {
        let port = self.server().port().to_owned();
        let others = format!("for n in $(seq 1000); do headwater cli -p {port} ECHO $n; done");
        let line = line.split(" #").next().expect("a part");
        // The others ask until the reader is gone.
        let shown =
            self.done(&format!("({others}) >/dev/null 2>&1 & asker=$!; {line}; kill $asker"));
        assert_eq!(shown.lines().count(), 10, "{shown}");
        assert!(shown.contains("\"ECHO\""), "{shown}");
    }
}

/// Fails if the program does not take the words of a line. `--help` at its end has nothing be done.
fn options_exist(block: &Block, words: &[&str]) {
    let words = words.iter().take_while(|word| !["&&", "&", "|", "<", ">"].contains(word));
    let plain = |word: &&&str| !word.starts_with('[') && !word.ends_with(']');
    let words: Vec<&str> = words.filter(plain).copied().collect();
    let ran = Command::new(env!("CARGO_BIN_EXE_headwater"))
        .args(words.iter().map(|word| word.replace("$active", "1").replace('\'', "")))
        .arg("--help")
        .output()
        .expect("the program runs");
    // What a client is to send is the server's to judge.
    let is_request = words[0] == "cli";
    assert!(ran.status.success() || is_request, "{}: {words:?}: {}", block.place(), told(&ran));
}

/// Fails if what a line has Cargo do names a package, a test or an example that there is not.
fn names_of_cargo(block: &Block, line: &str, words: &[&str]) {
    let after = |option: &str| {
        let at = words.iter().position(|word| *word == option);
        at.map(|at| words[at + 1])
    };
    let place = block.place();
    if let Some(profile) = after("--profile") {
        assert!(read("Cargo.toml").contains(&format!("[profile.{profile}]")), "{place}: {profile}");
    }
    let packages: Vec<&str> = words
        .iter()
        .zip(words.iter().skip(1))
        .filter(|(it, _)| **it == "-p")
        .map(|(_, name)| *name)
        .collect();
    let folders: Vec<&str> = packages
        .iter()
        .map(
            |name| if *name == "headwater" { "cli" } else { name.trim_start_matches("headwater-") },
        )
        .collect();
    for folder in &folders {
        assert!(
            root().join("crates").join(folder).join("Cargo.toml").is_file(),
            "{place}: {folder}"
        );
    }
    if let Some(path) = after("--path") {
        assert!(root().join(path).join("Cargo.toml").is_file(), "{place}: {path}");
    }
    let file = |folder: &str, kind: &str, name: &str| {
        let crates = root().join("crates").join(folder).join(kind);
        crates.join(format!("{name}.rs")).is_file() || crates.join(name).join("main.rs").is_file()
    };
    for (option, kind) in [("--test", "tests"), ("--example", "examples")] {
        let pairs = words.iter().zip(words.iter().skip(1)).filter(|(it, _)| **it == option);
        for (_, name) in pairs {
            assert!(folders.iter().any(|folder| file(folder, kind, name)), "{place}: {name}");
        }
    }
    if words[0] == "run"
        && let Some(at) = words.iter().position(|word| *word == "--")
        && after("--example").is_none()
    {
        options_exist(block, &words[at + 1..]);
    }
    // What stands behind, or before, `--` is which tests: those of a module, or whose names begin so.
    if words[0] == "test" {
        let values = ["-p", "--test", "--test-threads"];
        let filters = words[1..]
            .iter()
            .zip(words)
            .filter(|(word, before)| !word.starts_with('-') && !values.contains(before));
        for (filter, _) in filters {
            if words.contains(&"--lib") {
                let is_module = |folder: &&str| {
                    let path = format!("crates/{folder}/src/{}", filter.replace("::", "/"));
                    root().join(&path).is_dir() || root().join(format!("{path}.rs")).is_file()
                };
                assert!(folders.iter().any(is_module), "{place}: {filter}");
                continue;
            }
            let (module, name) = filter.split_once("::").unwrap_or((filter, ""));
            let path = format!("crates/cli/tests/black_box/{module}.rs");
            let text = if root().join(&path).is_file() {
                read(&path)
            } else {
                panic!("{place}: {filter}")
            };
            assert!(text.contains(&format!("fn {name}")), "{place}: {filter} in {line}");
        }
    }
}

/// Fails if a line for tests names a variable that nothing reads, or a test that there is not.
fn names_of_tests(block: &Block, line: &str, words: &[&str]) {
    let place = block.place();
    let (settings, command): (Vec<&str>, Vec<&str>) =
        words.iter().partition(|word| word.starts_with("HEADWATER"));
    let sources = Command::new("grep")
        .args(["-rhoE", "--include=*.rs", "--include=*.py", "--include=*.ts", r"HEADWATER[A-Z_]*"])
        .args(["crates", "tests", "clients/python/tests", "clients/typescript/test"])
        .current_dir(root())
        .output()
        .expect("grep runs");
    let sources = told(&sources);
    for setting in settings {
        let name = setting.split('=').next().expect("a name");
        assert!(sources.lines().any(|it| it == name), "{place}: nothing reads {name}");
    }
    match command[..] {
        ["cargo", ref rest @ ..] => names_of_cargo(block, line, rest),
        ["python3", "-m", "pytest", ref rest @ ..] => {
            for path in rest.iter().filter(|word| !word.starts_with('-')) {
                assert!(root().join(path).exists(), "{place}: {path}");
            }
        }
        ["npm", "test"] => {
            let folder = Path::new(&block.page).parent().expect("a folder");
            assert!(read(folder.join("package.json").to_str().expect("text")).contains("\"test\""));
        }
        _ => panic!("{place}: {line}"),
    }
}

/// Whether a line for pip or npm is about a folder of the repository; fails if that is no package.
fn names_of_packages(block: &Block, words: &[&str]) -> bool {
    let behind_cd =
        words.iter().zip(&words[1..]).find(|(word, _)| **word == "(cd").map(|(_, it)| *it);
    let named = words.iter().find(|word| word.starts_with("./")).copied();
    let Some(folder) = behind_cd.or(named) else { return false };
    let is_package = ["pyproject.toml", "package.json"]
        .iter()
        .any(|file| root().join(folder).join(file).is_file());
    assert!(is_package, "{}: {folder}", block.place());
    true
}
