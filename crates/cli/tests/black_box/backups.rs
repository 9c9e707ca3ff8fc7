//! `headwater backup` and `headwater restore`: a backup is one state of all shards, taken under load, and what is cut short
//! or damaged is no backup.
//!
//! Each writer writes `1`, `2`, `3` … to the keys of its own in turn, each only once the one before is acknowledged. A state of the server
//! therefore has every number of a writer up to some number, and none above it: a gap would show shards at different moments.

use crate::support::{PATIENCE, Server, Stops, number_from, program, request};
use redis::{Connection, RedisResult, cmd};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const WRITERS: usize = 3;
const JOIN: &str = "sums|<writer> = sum n|<writer>|<number>";

fn start(data: &Path, shards: &str) -> Server {
    let data = data.to_str().unwrap();
    Server::start(&["--shards", shards, "--data-plain", "yes", "--data", data])
}

fn run(words: &[&str]) -> Output {
    program().args(words).output().unwrap()
}

fn port(server: &Server) -> String {
    server.port.to_string()
}

fn back_up(server: &Server, to: &Path) -> Output {
    run(&["backup", "-p", &port(server), "--to", to.to_str().unwrap()])
}

fn begin_backing_up(server: &Server, to: &Path, older: Option<&Path>) -> Child {
    let mut command = program();
    command.args(["backup", "-p", &port(server), "--to", to.to_str().unwrap()]);
    if let Some(older) = older {
        command.arg("--older").arg(older);
    }
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn restore(from: &Path, data: &Path) -> Output {
    run(&["restore", "--from", from.to_str().unwrap(), "--data", data.to_str().unwrap()])
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", told(output));
}

/// Writes the next number of a writer: some to a table with a join, some to plain keys, and some together with two keys that are always alike.
fn write_next(client: &mut Connection, writer: usize, written: &AtomicU64) -> RedisResult<()> {
    let number = written.load(Ordering::Acquire) + 1;
    let key = match number % 2 {
        0 => format!("plain {writer} {number}"),
        _ => format!("n|{writer}|{number:06}"),
    };
    let mut request = redis::pipe();
    if number.is_multiple_of(5) {
        request.atomic();
        request.set(format!("left {writer}"), number).ignore();
        request.set(format!("right {writer}"), number).ignore();
    }
    let () = request.set(key, number).query(client)?;
    written.store(number, Ordering::Release);
    if number.is_multiple_of(8) {
        // As many rounds as there may be have to be read in the end.
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Writes the numbers of a writer until it is to stop.
fn write(client: &mut Connection, writer: usize, written: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        write_next(client, writer, written).unwrap();
    }
}

/// The same, to whichever server is at the port: what has failed is written again.
fn write_through_kills(port: &AtomicU16, writer: usize, written: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let url = format!("redis://127.0.0.1:{}/", port.load(Ordering::Acquire));
        let client = redis::Client::open(url).unwrap();
        if let Ok(mut client) = client.get_connection_with_timeout(Duration::from_secs(1)) {
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            while !stop.load(Ordering::Relaxed) && write_next(&mut client, writer, written).is_ok()
            {
            }
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// The numbers of each writer that a server has.
fn numbers(server: &Server, most: &[u64]) -> Vec<Vec<u64>> {
    let mut client = server.client(2);
    let mut found = vec![Vec::new(); WRITERS];
    for (writer, found) in found.iter_mut().enumerate() {
        let all: BTreeMap<String, u64> =
            cmd("PREFIX").arg(format!("n|{writer}|")).query(&mut client).unwrap();
        found.extend(all.into_values());
        // Some more than can be there.
        let keys = (1..=most[writer] / 2 + 9).map(|half| format!("plain {writer} {}", 2 * half));
        let keys: Vec<String> = keys.collect();
        for keys in keys.chunks(1000) {
            let plain: Vec<Option<u64>> = cmd("MGET").arg(keys).query(&mut client).unwrap();
            found.extend(plain.into_iter().flatten());
        }
        found.sort_unstable();
    }
    found
}

/// The numbers of each writer are all up to one that lies between these bounds; and the join has their sum.
fn check_state(server: &Server, least: &[u64], most: &[u64]) {
    let mut client = server.client(2);
    for (writer, found) in numbers(server, most).into_iter().enumerate() {
        let last = found.len() as u64;
        assert!(found.iter().copied().eq(1..=last), "writer {writer} has a gap: {found:?}");
        let bounds = least[writer]..=most[writer] + 1;
        assert!(bounds.contains(&last), "writer {writer} has {last}, not in {bounds:?}");
        let odd: u64 = found.iter().filter(|number| !number.is_multiple_of(2)).sum();
        let sum: Option<u64> = cmd("GET").arg(format!("sums|{writer}")).query(&mut client).unwrap();
        assert_eq!(sum.unwrap_or(0), odd, "writer {writer}");
        let twins = [format!("left {writer}"), format!("right {writer}")];
        let twins: Vec<Option<u64>> = cmd("MGET").arg(&twins).query(&mut client).unwrap();
        assert_eq!(twins, [Some(last / 5 * 5).filter(|twin| *twin > 0); 2], "writer {writer}");
    }
}

fn counts(written: &[AtomicU64]) -> Vec<u64> {
    written.iter().map(|it| it.load(Ordering::Acquire)).collect()
}

fn backups_under_load(shards: &str) {
    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    let server = start(&at("data"), shards);
    let client = &mut server.client(2);
    let () = cmd("JOIN.ADD").arg("sums").arg(JOIN).query(client).unwrap();
    let long = vec![b'x'; 3 << 20];
    let () = cmd("SET").arg("long").arg(&long).query(client).unwrap();
    let (written, stop) = ([const { AtomicU64::new(0) }; WRITERS], AtomicBool::new(false));
    thread::scope(|scope| {
        for (writer, written) in written.iter().enumerate() {
            let mut client = server.client(2);
            let stop = &stop;
            scope.spawn(move || write(&mut client, writer, written, stop));
        }
        let _stops = Stops(&stop);
        for round in 0..number_from("HEADWATER_BACKUP_ROUNDS", 3) {
            thread::sleep(Duration::from_millis(150));
            let (backup, data) = (at(&format!("backup {round}")), at(&format!("data {round}")));
            let least = counts(&written);
            succeeds(&back_up(&server, &backup));
            let most = counts(&written);
            succeeds(&restore(&backup, &data));
            let restored = start(&data, shards);
            check_state(&restored, &least, &most);
            let found: Vec<u8> = cmd("GET").arg("long").query(&mut restored.client(2)).unwrap();
            assert!(found == long);
            // What was restored is served, and kept, like anything else.
            let () = cmd("SET").arg("after").arg("1").query(&mut restored.client(2)).unwrap();
            restored.signal(Signal::TERM);
            restored.wait();
            let again = start(&data, shards);
            let after: String = cmd("GET").arg("after").query(&mut again.client(2)).unwrap();
            assert_eq!(after, "1");
        }
    });
}

#[test]
fn a_backup_under_load_is_one_state() {
    backups_under_load("1");
}

#[test]
fn a_backup_of_several_shards_under_load_is_one_state() {
    backups_under_load("3");
}

#[test]
fn partitions_that_have_moved_are_where_they_were() {
    let place = TempDir::new().unwrap();
    let (data, backup) = (place.path().join("data"), place.path().join("backup"));
    let server = start(&data, "3");
    let client = &mut server.client(2);
    for at in 0..200 {
        let () = cmd("SET").arg(format!("key {at}")).arg(at).query(client).unwrap();
    }
    let (partition, home) = crate::partitions::home(client, "key 7");
    let to = (home + 1) % 3;
    let () = cmd("SHARD.MOVE").arg(partition).arg(to).query(client).unwrap();
    succeeds(&back_up(&server, &backup));
    let copy = place.path().join("copy");
    succeeds(&restore(&backup, &copy));
    let restored = start(&copy, "3");
    let client = &mut restored.client(2);
    assert_eq!(crate::partitions::home(client, "key 7"), (partition, to));
    for at in 0..200 {
        let found: u64 = cmd("GET").arg(format!("key {at}")).query(client).unwrap();
        assert_eq!(found, at);
    }
}

#[test]
fn what_is_killed_leaves_no_backup_and_no_data() {
    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    let mut server = start(&at("data"), "1");
    let client = &mut server.client(2);
    for key in 0..400 {
        let () = cmd("SET").arg(key).arg(vec![b'x'; 100_000]).query(client).unwrap();
    }
    for round in 0..number_from("HEADWATER_BACKUP_KILLS", 6) {
        // Killed: whoever takes it, or the server.
        let backup = at(&format!("backup {round}"));
        let mut child = begin_backing_up(&server, &backup, None);
        thread::sleep(Duration::from_millis(round * 7 % 60));
        if round % 2 == 0 {
            let _ended = kill_process(Pid::from_child(&child), Signal::KILL);
        } else {
            server.signal(Signal::KILL);
            server.wait();
            server = start(&at("data"), "1");
        }
        let is_done = child.wait().unwrap().success();
        let data = at(&format!("data {round}"));
        let restored = restore(&backup, &data);
        // What is killed behind its last step is whole.
        assert!(restored.status.success() || !is_done, "{}", told(&restored));
        assert_eq!(data.exists(), restored.status.success());
    }
    // Whoever is killed with a backup under way is in nobody's way.
    let () = cmd("BACKUP.BEGIN").query::<redis::Value>(&mut server.client(2)).map(drop).unwrap();
    let whole = at("whole");
    let mut tries = 0;
    while !back_up(&server, &whole).status.success() {
        // The server may yet have to see that the connection has ended.
        tries += 1;
        assert!(tries < 1000, "{}", told(&back_up(&server, &whole)));
        thread::sleep(Duration::from_millis(1));
    }
    // A restore that is killed leaves nothing that looks like data.
    let mut command = program();
    let (from, data) = (whole.to_str().unwrap(), at("killed"));
    command.args(["restore", "--from", from, "--data", data.to_str().unwrap()]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    thread::sleep(Duration::from_millis(20));
    let _ended = kill_process(Pid::from_child(&child), Signal::KILL);
    if !child.wait().unwrap().success() {
        assert!(!data.exists());
        let left = at("killed.restoring");
        if left.exists() {
            assert!(told(&restore(&whole, &data)).contains("cut short"));
            fs::remove_dir_all(left).unwrap();
        }
        succeeds(&restore(&whole, &data));
    }
}

/// Backups under load, each upon the last one that is whole, while whoever takes them is killed, or the server.
fn backups_killed_under_load(shards: &str) {
    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    let mut server = start(&at("data"), shards);
    let client = &mut server.client(2);
    let () = cmd("JOIN.ADD").arg("sums").arg(JOIN).query(client).unwrap();
    for key in 0..200 {
        let () = cmd("SET").arg(key).arg(vec![b'x'; 100_000]).query(client).unwrap();
    }
    let (written, stop) = ([const { AtomicU64::new(0) }; WRITERS], AtomicBool::new(false));
    let at_port = AtomicU16::new(server.port);
    let (mut older, mut whole) = (None, 0);
    let server = thread::scope(|scope| {
        for (writer, written) in written.iter().enumerate() {
            let (at_port, stop) = (&at_port, &stop);
            scope.spawn(move || write_through_kills(at_port, writer, written, stop));
        }
        let _stops = Stops(&stop);
        let kills = number_from("HEADWATER_BACKUP_KILLS", 6);
        for round in 0..=kills {
            let (backup, data) = (at(&format!("backup {round}")), at(&format!("data {round}")));
            let least = counts(&written);
            let mut child = begin_backing_up(&server, &backup, older.as_deref());
            if round < kills {
                thread::sleep(Duration::from_millis(round * 29 % 120));
            }
            if round == kills {
                // The last one is let be, unless the one before is still under way at the server.
                while !child.wait().unwrap().success() {
                    fs::remove_dir_all(&backup).ok();
                    thread::sleep(Duration::from_millis(5));
                    child = begin_backing_up(&server, &backup, older.as_deref());
                }
            } else if round % 2 == 0 {
                let _ended = kill_process(Pid::from_child(&child), Signal::KILL);
            } else {
                server.signal(Signal::KILL);
                server.wait();
                server = start(&at("data"), shards);
                at_port.store(server.port, Ordering::Release);
            }
            let is_done = child.wait().unwrap().success();
            let most = counts(&written);
            // What is killed behind its last step is whole.
            let restored = restore(&backup, &data);
            let is_whole = restored.status.success();
            assert!(is_whole || !is_done, "{}", told(&restored));
            assert_eq!(data.exists(), is_whole);
            if is_whole {
                check_state(&start(&data, shards), &least, &most);
                fs::remove_dir_all(&data).unwrap();
                (older, whole) = (Some(backup), whole + 1);
            }
        }
        server
    });
    assert!(whole > 0);
    // The server has lost nothing that it acknowledged, however often it was killed.
    check_state(&server, &counts(&written), &counts(&written));
}

#[test]
fn backups_that_are_killed_under_load_are_none_and_the_others_are_one_state() {
    backups_killed_under_load("1");
    backups_killed_under_load("3");
}

#[test]
fn a_folder_that_is_there_already_is_filled_where_it_is() {
    for shards in ["1", "3"] {
        let place = TempDir::new().unwrap();
        let at = |name: &str| place.path().join(name);
        let server = start(&at("data"), shards);
        let () = cmd("SET").arg("k|1").arg("v").query(&mut server.client(2)).unwrap();
        succeeds(&back_up(&server, &at("tables")));
        let () = cmd("SET").arg("plain").arg("v").query(&mut server.client(2)).unwrap();
        succeeds(&back_up(&server, &at("backup")));
        // A link, as a service manager makes one, above which others write; and the folder that one is in.
        fs::create_dir_all(at("private/linked")).unwrap();
        // One with what a new file system has.
        fs::create_dir_all(at("here/lost+found")).unwrap();
        std::os::unix::fs::symlink("private/linked", at("link")).unwrap();
        let closed = fs::Permissions::from_mode(0o555);
        fs::set_permissions(at("private"), closed).unwrap();
        let linked = restore(&at("backup"), &at("link"));
        fs::set_permissions(at("private"), fs::Permissions::from_mode(0o755)).unwrap();
        succeeds(&linked);
        let mut command = program();
        command.args(["restore", "--data", ".", "--from", at("backup").to_str().unwrap()]);
        succeeds(&command.current_dir(at("here")).output().unwrap());
        assert!(at("link").is_symlink());
        for folder in ["link", "here"] {
            assert!(!at(folder).join("headwater-restoring").exists());
            let restored = start(&at(folder), shards);
            for key in ["k|1", "plain"] {
                let value: String = cmd("GET").arg(key).query(&mut restored.client(2)).unwrap();
                assert_eq!(value, "v");
            }
        }
        // How to start it depends on what there is.
        let said = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said(&linked).contains("--data-plain yes"), "{}", said(&linked));
        let tables = restore(&at("tables"), &at("new"));
        assert!(tables.status.success() && !said(&tables).contains("--data-plain"));
        // What was cut short is neither served nor filled once more.
        fs::create_dir_all(at("half").join("headwater-restoring")).unwrap();
        assert!(told(&restore(&at("backup"), &at("half"))).contains("cut short"));
        let half = run(&["serve", "--port", "0", "--data", at("half").to_str().unwrap()]);
        assert!(!half.status.success() && told(&half).contains("cut short"), "{}", told(&half));
    }
}

/// The files that a backup's shards are in, by their numbers.
fn pieces(backup: &Path) -> Vec<PathBuf> {
    let shards = (0..).map(|shard| backup.join(format!("shard-{shard}")));
    let shards = shards.take_while(|shard| shard.exists());
    let files = shards.flat_map(|shard| fs::read_dir(shard).unwrap());
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn what_an_older_backup_has_is_not_written_again() {
    for shards in ["1", "3"] {
        let place = TempDir::new().unwrap();
        let at = |name: &str| place.path().join(name);
        let server = start(&at("data"), shards);
        let client = &mut server.client(2);
        // Random bytes, which the store cannot compress, for 12 MB of files.
        let value = |key: u64, round: u64| {
            let mut state = key << 8 | round | 1;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            };
            (0..3000).map(|_| next()).collect::<Vec<u8>>()
        };
        for keys in (0..4000).collect::<Vec<u64>>().chunks(100) {
            let mut all = redis::pipe();
            keys.iter().for_each(|&key| {
                all.set(format!("v|{key:05}"), value(key, 0)).ignore();
            });
            let () = all.query(client).unwrap();
        }
        succeeds(&back_up(&server, &at("first")));
        let () = cmd("SET").arg("v|02000").arg(value(2000, 1)).query(client).unwrap();
        // A piece of the older one is damaged: it is written again.
        let old = pieces(&at("first"));
        assert!(old.len() > 5, "{old:?}");
        fs::write(&old[1], fs::read(&old[1]).unwrap().iter().map(|byte| !byte).collect::<Vec<_>>())
            .unwrap();
        let to = at("second");
        let (first, second) = (at("first"), to.to_str().unwrap());
        let older = ["--older", first.to_str().unwrap()];
        let words = ["backup", "-p", &port(&server), "--to", second];
        let done = run(&[&words[..], &older].concat());
        succeeds(&done);
        let text = String::from_utf8(done.stdout).unwrap();
        let number = |at: usize| text.split(' ').nth(at).unwrap().parse::<u64>().unwrap();
        assert!(text.contains("of them not in"), "{text}");
        let new = pieces(&to);
        let is_shared = |path: &&PathBuf| fs::metadata(path).unwrap().nlink() == 2;
        let shared: u64 =
            new.iter().filter(is_shared).map(|path| fs::metadata(path).unwrap().len()).sum();
        // All but what was damaged, what was changed, and the last piece of each shard.
        let written = number(6);
        assert_eq!(written, number(1) - shared, "{text}");
        let few = 2 + shards.parse::<usize>().unwrap();
        assert!(new.iter().filter(is_shared).count() + few + 2 >= new.len(), "{text}");
        assert!(shared > 0 && written > 0, "{text}");

        fs::remove_dir_all(at("first")).unwrap();
        succeeds(&restore(&to, &at("restored")));
        let restored = start(&at("restored"), shards);
        let client = &mut restored.client(2);
        for key in (0..4000).step_by(7).chain([2000]) {
            let got: Vec<u8> = cmd("GET").arg(format!("v|{key:05}")).query(client).unwrap();
            assert_eq!(got, value(key, u64::from(key == 2000)), "{key}");
        }
    }
    // One that is none is refused before a server is asked.
    let place = TempDir::new().unwrap();
    let none = place.path().to_str().unwrap();
    let new = place.path().join("new");
    let words = ["backup", "-p", "1", "--to", new.to_str().unwrap(), "--older", none];
    let refused = run(&words);
    assert!(told(&refused).contains("has no whole backup"), "{}", told(&refused));
}

#[test]
fn a_folder_for_a_backup_is_looked_at_before_a_server_is_asked() {
    let place = TempDir::new().unwrap();
    fs::write(place.path().join("x"), "").unwrap();
    // Nobody listens there.
    let refused = run(&["backup", "-p", "1", "--to", place.path().to_str().unwrap()]);
    assert!(told(&refused).contains("is not empty"), "{}", told(&refused));
}

#[test]
fn what_is_wrong_with_a_backup_is_said() {
    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    let server = start(&at("data"), "1");
    let client = &mut server.client(2);
    let () = cmd("SET").arg("k").arg("v").query(client).unwrap();
    fs::create_dir(at("full")).unwrap();
    fs::write(at("full").join("x"), "").unwrap();
    assert!(told(&back_up(&server, &at("full"))).contains("is not empty"));
    succeeds(&back_up(&server, &at("backup")));
    assert!(told(&restore(&at("full"), &at("new"))).contains("has no whole backup"));
    assert!(told(&restore(&at("backup"), &at("full"))).contains("is not empty"));
    assert!(told(&restore(&at("backup"), &at("data"))).contains("is not empty"));
    let pieces = pieces(&at("backup"));
    let file = &pieces[0];
    let good = fs::read(file).unwrap();
    fs::write(file, &good[1..]).unwrap();
    assert!(told(&restore(&at("backup"), &at("new"))).contains("bytes, and had"));
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    fs::write(file, bad).unwrap();
    let why = told(&restore(&at("backup"), &at("new")));
    assert!(why.contains("shard-0/000000-") && why.contains("is damaged"), "{why}");
    assert!(!at("new").exists() && !at("new.restoring").exists());
    fs::rename(file, at("gone")).unwrap();
    let why = told(&restore(&at("backup"), &at("new")));
    assert!(why.contains("bytes, and had"), "{why}");
    fs::write(file, good).unwrap();
    let manifest = at("backup").join("headwater-backup");
    let text = fs::read_to_string(&manifest).unwrap();
    for (part, other) in [("format 2", "format 3"), ("shards 1", "shards 2"), ("bytes ", "bytes x")]
    {
        fs::write(&manifest, text.replacen(part, other, 1)).unwrap();
        let why = told(&restore(&at("backup"), &at("new")));
        assert!(why.contains("damaged, or of another format"), "{why}");
    }
    fs::write(&manifest, text).unwrap();
    succeeds(&restore(&at("backup"), &at("new")));

    let mut socket = server.socket();
    let mut ask = |words: &[&[u8]], reply: &[u8]| {
        socket.send(&request(words));
        socket.expect(reply);
    };
    ask(&[b"BACKUP.READ", b"77", b"0"], b"-ERR there is no backup 77 under way\r\n");
    ask(&[b"BACKUP.END", b"77"], b":0\r\n");
    ask(
        &[b"BACKUP.READ", b"x", b"0"],
        b"-ERR a backup is a whole number, as BACKUP.BEGIN gives it\r\n",
    );
    let begun: Vec<redis::Value> = cmd("BACKUP.BEGIN").query(client).unwrap();
    let redis::Value::Int(number) = begun[1] else { panic!("{begun:?}") };
    let text = number.to_string();
    ask(&[b"BACKUP.READ", text.as_bytes(), b"1"], b"-ERR there is no shard 1\r\n");
    let busy = cmd("BACKUP.BEGIN").query::<redis::Value>(client).unwrap_err().to_string();
    assert!(busy.contains("one is taken at a time"), "{busy}");
    ask(&[b"BACKUP.END", text.as_bytes()], b":1\r\n");
    let bare = Server::start(&["--shards", "1"]);
    let why = told(&back_up(&bare, &at("nothing")));
    assert!(why.contains("nothing is kept on disk"), "{why}");
    assert!(!at("nothing").exists());
}
