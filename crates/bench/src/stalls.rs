//! What commands that take long cost other clients.
//!
//! One client reads and writes, one request at a time, and its times are taken: with nothing else under way, then while
//! another client has a command executed that takes long. Each phase ends a moment after that command is answered: what it
//! leaves to be done counts as well.

use crate::args::Common;
use crate::honest::{exchange, quantile};
use crate::peer::{Server, System, stop};
use crate::report::table;
use crate::wire::{Connection, Key, Loader, resp};
use anyhow::{Result, bail};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::io::{self, Write};
use std::time::{Instant, SystemTime};

/// How long a phase goes on after its command is answered.
const TAIL: Duration = Duration::from_millis(500);
/// How many keys are loaded in a second at least: so long before they expire the first of them is written.
const LOADED_A_SECOND: u64 = 50_000;
/// How long the phase without long commands lasts.
const QUIET: Duration = Duration::from_secs(2);
/// Keys of each of the two tables whose pairs a join makes.
const SIDE: f64 = 1500.0;
/// Timelines to which a post goes.
const TIMELINES: f64 = 100_000.0;
/// Owners with this many values each, of which the greatest counts.
const OWNERS: f64 = 1000.0;
const VALUES: u64 = 70;
/// Players of one board.
const PLAYERS: f64 = 500_000.0;
/// Plain keys that are removed at once.
const PLAIN: f64 = 500_000.0;

/// Times of one client's requests while another one's commands take long; Headwater alone.
#[derive(Clone, Debug, clap::Args)]
pub struct Stalls {
    #[command(flatten)]
    common: Common,
    /// Memory bound of the server, such as 96mb; none, if it is not given.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
}

/// What one phase gave.
struct Phase {
    name: &'static str,
    took: Duration,
    cpu: Duration,
    /// Times of the other client's requests, in ascending order.
    times: Vec<Duration>,
}

/// A command, word by word.
type Words = Vec<Vec<u8>>;

impl Stalls {
    /// Measures, and prints a table.
    ///
    /// # Errors
    /// An option is wrong, a run fails, or a value is not what was written.
    pub fn run(&self) -> Result<()> {
        self.common.check()?;
        if !self.common.against.is_empty() || self.common.peers_only {
            bail!("--against: stalls measures Headwater alone");
        }
        if self.common.json.is_some() || self.common.svg.is_some() {
            bail!("--json, --svg: stalls prints a table alone");
        }
        let mut launch = self.common.launch(0)?;
        launch.check(&[System::Headwater])?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        if let Some(memory) = &self.memory {
            // Of the keys that expire together there are as many as fit.
            let words = ["--memory", memory, "--memory-policy", "volatile-ttl"];
            launch.arguments.extend(words.map(String::from));
        }
        let server = Server::start(System::Headwater, &launch)?;
        let mut run =
            Run { honest: server.connect()?, long: server.connect()?, phases: Vec::new(), server };
        run.wait("(none)", QUIET)?;
        self.products(&mut run)?;
        self.timelines(&mut run)?;
        self.greatest(&mut run)?;
        self.best_of_many(&mut run)?;
        self.below_one_check(&mut run)?;
        self.removals(&mut run)?;
        io::stdout().lock().write_all(tell(&run.phases).as_bytes())?;
        Ok(())
    }

    fn scaled(&self, number: f64) -> u64 {
        (number * self.common.scale).max(2.0) as u64
    }

    /// A join of all pairs of two tables: computed, read, verified, explained and dropped.
    fn products(&self, run: &mut Run) -> Result<()> {
        let side = self.scaled(SIDE);
        run.send((0..side).map(|at| set(Key::new(b"a|").number(at, 5), b"1")))?;
        run.send((0..side).map(|at| set(Key::new(b"b|").number(at, 5), b"value")))?;
        run.send([words(&[b"JOIN.ADD", b"c", b"c|<x>|<y> = check a|<x> copy b|<y>"])].into_iter())?;
        run.phase("PREFIX … COUNT, computed", &[b"PREFIX", b"c|", b"COUNT"])?;
        run.phase("PREFIX … COUNT, there", &[b"PREFIX", b"c|", b"COUNT"])?;
        run.phase("PREFIX, there", &[b"PREFIX", b"c|"])?;
        run.phase("VERIFY", &[b"VERIFY", b"c|", b"c}"])?;
        run.phase("EXPLAIN.RANGE", &[b"EXPLAIN.RANGE", b"c|", b"c}"])?;
        run.phase("JOIN.DROP", &[b"JOIN.DROP", b"c"])?;
        if self.memory.is_some() {
            // What a pull join gives is kept until it is sent, for which there is no room.
            return Ok(());
        }
        run.send(
            [words(&[b"JOIN.ADD", b"e", b"e|<x>|<y> = pull check a|<x> copy b|<y>"])].into_iter(),
        )?;
        run.phase("PREFIX … COUNT of a pull join", &[b"PREFIX", b"e|", b"COUNT"])?;
        run.phase("PREFIX of a pull join", &[b"PREFIX", b"e|"])
    }

    /// A post to many timelines.
    fn timelines(&self, run: &mut Run) -> Result<()> {
        let users = self.scaled(TIMELINES);
        run.send((0..users).map(|at| set(Key::new(b"s|u").number(at, 7).text(b"|bob"), b"1")))?;
        run.send([set(Key::new(b"p|bob|0001"), b"first")].into_iter())?;
        let join = b"t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
        run.send(
            [words(&[b"TABLE.SET", b"t", b"BOUNDARY", b"1"]), words(&[b"JOIN.ADD", b"t", join])]
                .into_iter(),
        )?;
        run.send(
            (0..users).map(|at| {
                words(&[b"PREFIX", &Key::new(b"t|u").number(at, 7).text(b"|"), b"COUNT"])
            }),
        )?;
        let count = b"posts|<user> = check s|<user>|<poster> count p|<poster>|<time>";
        run.send([words(&[b"JOIN.ADD", b"posts", count])].into_iter())?;
        run.send((0..users).map(|at| words(&[b"GET", &Key::new(b"posts|u").number(at, 7)])))?;
        run.phase("SET to many timelines and counts", &[b"SET", b"p|bob|0002", b"second"])?;
        let sizes = b"size|<user> = count t|<user>|<time>|<poster>";
        run.send([words(&[b"JOIN.ADD", b"size", sizes])].into_iter())?;
        run.send((0..users).map(|at| words(&[b"GET", &Key::new(b"size|u").number(at, 7)])))?;
        run.phase("SET to many that joins read", &[b"SET", b"p|bob|0003", b"third"])?;
        run.phase("GET of a join of joins", &[b"GET", b"size|u0000007"])?;
        run.phase("DEL from many timelines", &[b"DEL", b"p|bob|0001"])?;
        run.phase("JOIN.DROP of many timelines", &[b"JOIN.DROP", b"t"])
    }

    /// The greatest values of many go.
    fn greatest(&self, run: &mut Run) -> Result<()> {
        let owners = self.scaled(OWNERS);
        run.send(
            [words(&[b"JOIN.ADD", b"best", b"best|<owner> = max po|<post>|<owner>"])].into_iter(),
        )?;
        let key = |owner, post| Key::new(b"po|").number(post, 3).text(b"|").number(owner, 6);
        run.send((0..owners * VALUES).map(|at| {
            let post = at % VALUES;
            set(key(at / VALUES, post), post.to_string().as_bytes())
        }))?;
        run.phase("PREFIX of max, computed", &[b"PREFIX", b"best|", b"COUNT"])?;
        run.send((0..owners).map(|owner| words(&[b"DEL", &key(owner, VALUES - 1)])))?;
        run.phase("PREFIX of max, after removals", &[b"PREFIX", b"best|", b"COUNT"])
    }

    /// One greatest value, and the best of one board, of very many: at first, and when the best has gone.
    fn best_of_many(&self, run: &mut Run) -> Result<()> {
        let players = self.scaled(PLAYERS);
        let key = |player| Key::new(b"score|b|").number(player, 7);
        run.send((0..players).map(|at| set(key(at), at.to_string().as_bytes())))?;
        let board = b"board|<b>|<score:number:desc>|<player> = index score|<b>|<player> as <score> keep 100";
        run.send(
            [
                words(&[b"JOIN.ADD", b"most", b"most|<b> = max score|<b>|<player>"]),
                words(&[b"JOIN.ADD", b"board", board]),
            ]
            .into_iter(),
        )?;
        run.phase("GET of one max, computed", &[b"GET", b"most|b"])?;
        run.phase("PREFIX of a board, computed", &[b"PREFIX", b"board|b|", b"COUNT"])?;
        run.send([words(&[b"DEL", &key(players - 1)])].into_iter())?;
        run.phase("GET of one max, after a removal", &[b"GET", b"most|b"])?;
        run.phase("PREFIX of a board, after a removal", &[b"PREFIX", b"board|b|", b"COUNT"])
    }

    /// The same values below one key that is checked, and read by a join that is computed at each read.
    fn below_one_check(&self, run: &mut Run) -> Result<()> {
        let members = b"members|<b> = check open|<b> count score|<b>|<player>";
        run.send(
            [set(Key::new(b"open|b"), b"1"), words(&[b"JOIN.ADD", b"members", members])]
                .into_iter(),
        )?;
        run.phase("GET of one count below a check", &[b"GET", b"members|b"])?;
        run.send([words(&[b"DEL", b"open|b"])].into_iter())?;
        run.phase("the same, when the check has gone", &[b"GET", b"members|b"])?;
        run.send([set(Key::new(b"open|b"), b"1")].into_iter())?;
        run.phase("the same, when the check has come", &[b"GET", b"members|b"])?;
        let players = b"player|<b>|<player> = copy score|<b>|<player>";
        let shown = b"shown|<b>|<player> = pull copy player|<b>|<player>";
        run.send(
            [words(&[b"JOIN.ADD", b"player", players]), words(&[b"JOIN.ADD", b"shown", shown])]
                .into_iter(),
        )?;
        let (first, limit) = (b"shown|b|", b"LIMIT");
        run.phase(
            "PREFIX … LIMIT 10 of a pull join over a join",
            &[b"PREFIX", first, limit, b"10"],
        )?;
        match self.memory {
            None => run.phase("PREFIX … COUNT of it", &[b"PREFIX", first, b"COUNT"]),
            Some(_) => Ok(()),
        }
    }

    /// Many keys go at once.
    fn removals(&self, run: &mut Run) -> Result<()> {
        let keys = self.scaled(PLAIN);
        run.send((0..keys).map(|at| set(Key::new(b"plain|").number(at, 8), b"some value")))?;
        run.phase("RANGE.DEL", &[b"RANGE.DEL", b"plain|", b"plain}"])?;
        let wait = Duration::from_secs(keys / LOADED_A_SECOND + 1);
        let (begun, due) = (Instant::now(), SystemTime::now() + wait);
        let due = due.duration_since(SystemTime::UNIX_EPOCH)?.as_millis().to_string();
        run.send((0..keys).map(|at| {
            words(&[b"SET", &Key::new(b"soon|").number(at, 8), b"v", b"PXAT", due.as_bytes()])
        }))?;
        run.wait("keys that expire together", wait.saturating_sub(begun.elapsed()) + 4 * TAIL)?;
        run.send((0..keys).map(|at| set(Key::new(b"plain|").number(at, 8), b"some value")))?;
        run.phase("FLUSHALL", &[b"FLUSHALL"])
    }
}

fn words(words: &[&[u8]]) -> Words {
    words.iter().map(|word| word.to_vec()).collect()
}

fn set(key: Key, value: &[u8]) -> Words {
    words(&[b"SET", &key, value])
}

/// A server, the client whose times are taken, and the one whose commands take long.
struct Run {
    honest: Connection,
    long: Connection,
    phases: Vec<Phase>,
    server: Server,
}

impl Run {
    /// Has commands executed whose time is of no interest.
    fn send(&mut self, commands: impl Iterator<Item = Words>) -> Result<()> {
        let mut loader = Loader::new(&mut self.long, resp::skip);
        for command in commands {
            let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            resp::command(&mut loader.connection.out, &words);
            loader.sent(1)?;
        }
        loader.finish()
    }

    /// The times while something happens by itself.
    fn wait(&mut self, name: &'static str, wait: Duration) -> Result<()> {
        let (begun, cpu) = (Instant::now(), self.server.cpu()?);
        let times = exchange(&mut self.honest, || begun.elapsed() >= wait)?;
        self.note(name, begun.elapsed(), cpu, times)
    }

    /// The times until a command is answered, and a moment longer.
    fn phase(&mut self, name: &'static str, command: &[&[u8]]) -> Result<()> {
        stop::check()?;
        let (done, cpu) = (AtomicBool::new(false), self.server.cpu()?);
        let mut end: Option<Instant> = None;
        let (honest, long) = (&mut self.honest, &mut self.long);
        let (times, took) = std::thread::scope(|scope| {
            let caller = scope.spawn(|| {
                let begun = Instant::now();
                resp::command(&mut long.out, command);
                let answered = long.flush().map_err(io::Error::other);
                let answered = answered.and_then(|()| resp::skip(&mut long.input));
                done.store(true, Ordering::Relaxed);
                answered.map(|()| begun.elapsed())
            });
            let times = exchange(honest, || {
                if end.is_none() && done.load(Ordering::Relaxed) {
                    end = Some(Instant::now() + TAIL);
                }
                end.is_some_and(|end| Instant::now() >= end)
            });
            let took = caller.join().map_err(|_| anyhow::anyhow!("a caller panicked"))?;
            Ok::<_, anyhow::Error>((times?, took?))
        })?;
        self.note(name, took, cpu, times)
    }

    fn note(
        &mut self,
        name: &'static str,
        took: Duration,
        cpu: Duration,
        times: Vec<Duration>,
    ) -> Result<()> {
        let cpu = self.server.cpu()?.saturating_sub(cpu);
        self.phases.push(Phase { name, took, cpu, times });
        Ok(())
    }
}

fn tell(phases: &[Phase]) -> String {
    let head =
        ["command under way", "took s", "CPU s", "others' requests", "p50 ms", "p99 ms", "max ms"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for Phase { name, took, cpu, times } in phases {
        let at = |part| quantile(times, part);
        rows.push(vec![
            (*name).to_owned(),
            format!("{:.3}", took.as_secs_f64()),
            format!("{:.2}", cpu.as_secs_f64()),
            times.len().to_string(),
            at(0.5),
            at(0.99),
            at(1.0),
        ]);
    }
    let mut text =
        String::from("\nstalls: requests of one client while another's command takes long\n");
    table::rows(&mut text, &rows);
    text
}
