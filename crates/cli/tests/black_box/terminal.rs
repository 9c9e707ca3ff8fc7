//! `headwater cli` in a terminal, driven through tmux, and in pipes.

use crate::support::{PATIENCE, Server, program};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A terminal of 100 by 30, which ends with the test.
struct Terminal {
    folder: tempfile::TempDir,
}

impl Terminal {
    /// Runs `headwater cli` against a server; `None` where there is no tmux.
    fn start(server: &Server) -> Option<Self> {
        let terminal = Self { folder: tempfile::tempdir().unwrap() };
        let history = terminal.folder.path().join("history");
        let program = program().get_program().to_owned();
        let begun = terminal
            .tmux()
            .args(["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "-e"])
            .arg(format!("HEADWATER_HISTORY={}", history.display()))
            .args(["-e", "LC_ALL=C.UTF-8", "-e", "INPUTRC=/dev/null"])
            .arg(program)
            .args(["cli", "-p", &server.port.to_string()])
            .status();
        begun.is_ok_and(|status| status.success()).then_some(terminal)
    }

    fn tmux(&self) -> Command {
        let mut tmux = Command::new("tmux");
        tmux.arg("-S").arg(self.folder.path().join("socket"));
        tmux
    }

    fn keys(&self, keys: &[&str]) {
        assert!(self.tmux().arg("send-keys").args(keys).status().unwrap().success());
    }

    fn type_line(&self, line: &str) {
        self.keys(&["-l", line]);
        self.keys(&["Enter"]);
    }

    fn screen(&self) -> String {
        let shown = self.tmux().args(["capture-pane", "-p"]).output().unwrap().stdout;
        String::from_utf8(shown).unwrap()
    }

    /// Waits until `text` is on the screen.
    fn until(&self, text: &str) -> String {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            if screen.contains(text) {
                return screen;
            }
            assert!(began.elapsed() < PATIENCE, "no {text:?} in\n{screen}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ended_already = self.tmux().arg("kill-server").output();
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
fn a_terminal_completes_hints_and_shows_messages_as_they_come() {
    let server = Server::start(&["--shards", "3"]);
    let Some(terminal) = Terminal::start(&server) else {
        eprintln!("SKIPPED: tmux is not installed; headwater cli was not driven in a terminal");
        return;
    };
    terminal.until("127.0.0.1:");
    // What is missing is hinted at, and a word completed.
    terminal.keys(&["-l", "setra"]);
    terminal.keys(&["Tab"]);
    terminal.until("> setrange key offset bytes");
    terminal.keys(&["C-u"]);
    terminal.type_line("help getdel");
    terminal.until("Answers a value and removes the key.");
    terminal.type_line("range.watch p| p}");
    terminal.until("(integer)");
    let () = redis::cmd("SET").arg("p|a").arg("news").query(&mut server.client(2)).unwrap();
    terminal.until("\"news\"");
    // Messages are no replies: those stay beside their requests.
    terminal.type_line("set p|b other");
    terminal.until("OK");
    terminal.type_line("get p|a");
    terminal.until("> get p|a\n\"news\"");
    terminal.type_line("echo \"not closed");
    terminal.until("a quote is not closed");
    // What was asked before comes back.
    terminal.type_line("echo once-more");
    terminal.until("> echo once-more\n\"once-more\"");
    terminal.type_line("auth nobody secret");
    terminal.until("WRONGPASS");
    terminal.keys(&["Up"]);
    let began = Instant::now();
    while !terminal.screen().trim_end().ends_with("> echo once-more") {
        assert!(began.elapsed() < PATIENCE, "it should come back:\n{}", terminal.screen());
        std::thread::sleep(Duration::from_millis(5));
    }
    // Each line is in the history file as soon as it was entered: a terminal may be closed.
    let kept = std::fs::read_to_string(terminal.folder.path().join("history")).unwrap();
    let lines: Vec<&str> = kept.lines().collect();
    assert!(lines.contains(&"get p|a") && lines.ends_with(&["echo once-more"]), "{kept}");
    assert!(lines.iter().filter(|line| **line == "get p|a").count() == 1, "{kept}");
    terminal.keys(&["C-u"]);
    terminal.type_line("exit");
}

/// What the program prints for these lines.
fn piped(server: &Server, arguments: &[&str], lines: &str) -> String {
    let mut cli = program()
        .args(["cli", "-p", &server.port.to_string()])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    cli.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let done = cli.wait_with_output().unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn replies_stay_beside_their_requests_in_pipes() {
    let server = Server::start(&[]);
    let lines = "RANGE.WATCH p| p}\nSET p|a 1\nGET p|a\nSUBSCRIBE x y\nPUBLISH x hello\nECHO end\n";
    let shown = piped(&server, &["--json"], lines);
    let lines: Vec<serde_json::Value> =
        shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let replies: Vec<_> = lines.iter().filter(|line| line.get("push").is_none()).collect();
    let expected = serde_json::json!(["OK", "1", 1, "end"]);
    assert_eq!(replies[1..], expected.as_array().unwrap().iter().collect::<Vec<_>>());
    let pushes: Vec<_> = lines.iter().filter_map(|line| line.get("push")).collect();
    assert_eq!(pushes.len(), 4, "{pushes:?}");
    assert_eq!(pushes[3], &serde_json::json!(["message", "x", "hello"]));
    let map = piped(&server, &["--json"], "RANGE p| p}\nGET none\nNOSUCH\n");
    let mut lines = map.lines();
    assert_eq!(lines.next(), Some(r#"{"p|a":"1"}"#));
    assert_eq!(lines.next(), Some("null"));
    assert!(lines.next().unwrap().starts_with(r#"{"error":"ERR unknown command"#));
}

#[test]
fn what_resets_the_protocol_is_followed() {
    let server = Server::start(&[]);
    for (argument, before) in [("--raw", "SUBSCRIBE a\nRESET"), ("-3", "HELLO 2")] {
        let lines = format!("{before}\nSUBSCRIBE b\nPUBLISH b hello\nECHO end\n");
        let shown = piped(&server, &[argument], &lines);
        let end = "subscribe\nb\n";
        let (_, behind) = shown.split_once(end).unwrap_or_else(|| panic!("{shown}"));
        let behind = behind.strip_prefix("1\n").unwrap_or_else(|| panic!("{shown}"));
        // The message may come before the reply to what has caused it.
        assert!(behind.contains("message\nb\nhello\n") && behind.ends_with("end\n"), "{shown}");
        assert!(!behind.contains("ERR"), "{shown}");
    }
    let quoted = piped(&server, &[], "SET foo a\"b c\"\nGET foo\n");
    assert_eq!(quoted, "OK\nab c\n");
}

/// Flags of redis-cli: a last word from the standard input, and a request that is sent again.
#[test]
fn a_request_is_sent_again_and_ends_with_the_input() {
    let server = Server::start(&[]);
    assert_eq!(piped(&server, &["-x", "SET", "k"], "a\nb \n"), "OK\n");
    assert_eq!(piped(&server, &["GET", "k"], ""), "a\nb \n\n");
    assert_eq!(piped(&server, &["-r", "3", "-i", "0.01", "INCR", "n"], ""), "1\n2\n3\n");
    let refused =
        program().args(["cli", "-p", &server.port.to_string(), "-n", "0", "PING"]).output();
    let refused = refused.unwrap();
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("there is no flag -n"), "{refused:?}");
}

#[test]
fn a_broken_pipe_ends_the_program_quietly() {
    let mut check = program()
        .args(["check", "--seeds", "20"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(check.stdout.take());
    let done = check.wait_with_output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    let server = Server::start(&[]);
    let mut cli = program()
        .args(["cli", "-p", &server.port.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(cli.stdout.take());
    cli.stdin.take().unwrap().write_all(b"PING\nPING\nPING\n").unwrap();
    let done = cli.wait_with_output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
}
