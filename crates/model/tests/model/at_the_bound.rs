//! Work near a memory bound: reads of much, and room for writes, are made in steps that are short, in rows and outputs; not
//! in time, which depends on the machine.

use headwater_base::KeyRange;
use headwater_engine::{
    Engine, EngineError, Expiry, RangeOptions, Settings, Stop, TableOptions, Ticket,
};
use headwater_model::pressure::Pressure;
use std::rc::Rc;

const SLICE_ROWS: usize = 200;
const JOIN: &str = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";

/// An engine, and what it takes of memory.
struct Bounded {
    engine: Engine,
    pressure: Rc<Pressure>,
}

/// What a read in slices gave, and what it took.
struct SlicedRead {
    result: Result<u64, EngineError>,
    /// Source rows of the slice that read most of them, and of all.
    most: u64,
    all: u64,
}

impl Bounded {
    /// So many users follow one poster, who has posted so often.
    fn new(users: usize, posts: usize) -> Self {
        let pressure = Pressure::new(0);
        let engine = pressure.own(|| Engine::new(Settings::default()));
        let mut bounded = Self { engine, pressure };
        bounded.own(|engine| {
            let options = TableOptions { boundary: Some(1), ..TableOptions::default() };
            engine.table_set(b"t", &options).expect("a table");
            engine.join_add("timeline", JOIN, false).expect("a join");
            (0..users).for_each(|user| set(engine, &format!("s|u{user:05}|bob")));
            (0..posts).for_each(|post| set(engine, &format!("p|bob|{post:05}")));
        });
        bounded
    }

    fn own<T>(&mut self, operation: impl FnOnce(&mut Engine) -> T) -> T {
        self.pressure.own(|| operation(&mut self.engine))
    }

    /// Reads each timeline by itself.
    fn read_each(&mut self, users: usize) {
        for user in 0..users {
            let prefix = format!("t|u{user:05}|");
            assert!(self.own(|engine| count_of(engine, &prefix)).expect("no bound") > 0);
        }
    }

    /// Lets it take `bytes`, and has it work in slices from now on.
    fn bound(&mut self, bytes: usize) {
        let pressure = self.pressure.clone();
        self.own(|engine| engine.set_memory(pressure, Some(bytes)));
        self.engine.set_slice(Some(SLICE_ROWS));
    }

    fn used(&self) -> usize {
        headwater_base::memory::Meter::used(&*self.pressure)
    }

    /// Reads what has a prefix in slices, as clients do.
    fn read_sliced(&mut self, prefix: &str) -> SlicedRead {
        let (mut most, begun) = (0, self.rows());
        loop {
            let before = self.rows();
            let done = self.own(|engine| one_slice(engine, |engine| count_of(engine, prefix)));
            most = most.max(self.rows() - before);
            let result = match done {
                Err(Stop::Wait(ticket)) => {
                    self.own(|engine| wait(engine, ticket));
                    continue;
                }
                Err(Stop::Failed(error)) => Err(error),
                Ok(count) => Ok(count),
            };
            return SlicedRead { result, most, all: self.rows() - begun };
        }
    }

    fn rows(&self) -> u64 {
        let counters = self.engine.stats().counters;
        counters.iter().find(|(name, _)| *name == "rows_read").expect("a counter").1
    }
}

fn set(engine: &mut Engine, key: &str) {
    engine.set(key.as_bytes(), b"a post of some length", Expiry::Never).expect("a base key");
}

fn count_of(engine: &mut Engine, prefix: &str) -> Result<u64, Stop> {
    let last = headwater_base::prefix_end(prefix.as_bytes());
    engine.range(prefix.as_bytes(), &last, RangeOptions::default(), &mut |_, _| {})
}

/// One slice of an operation, which is run again when room was made for it.
fn one_slice<T>(
    engine: &mut Engine,
    mut operation: impl FnMut(&mut Engine) -> Result<T, Stop>,
) -> Result<T, Stop> {
    let mut attempts = 0;
    engine.begin_slice();
    let done = loop {
        let done = operation(engine);
        let lacks = matches!(done, Err(Stop::Failed(EngineError::OutOfMemory)));
        attempts += 1;
        if !lacks || attempts > 8 || !engine.make_room_again() {
            break done;
        }
    };
    engine.end_slice();
    done
}

/// Source rows that reading all in slices takes, and bytes that it leaves in memory.
fn without_bound(users: usize, posts: usize) -> (u64, usize) {
    let mut bounded = Bounded::new(users, posts);
    bounded.bound(1 << 40);
    let before = bounded.used();
    let read = bounded.read_sliced("t|");
    assert_eq!(read.result, Ok((users * posts) as u64));
    (read.all, bounded.used() - before)
}

fn wait(engine: &mut Engine, ticket: Ticket) {
    engine.forget_later(ticket);
    engine.go_on();
    engine.resume(ticket);
}

#[test]
fn a_read_of_what_fits_is_never_run_as_a_whole_though_much_goes_for_it() {
    let (users, posts) = (3000, 3);
    let (whole, bytes) = without_bound(users, posts);
    let mut bounded = Bounded::new(users, posts);
    let most = bounded.used() + 3 * bytes / 2;
    bounded.read_each(users);
    // Each in a range of its own they take more than fits.
    assert!(bounded.used() > most, "{} of {most}", bounded.used());
    bounded.bound(most);
    let read = bounded.read_sliced("t|");
    assert_eq!(read.result, Ok((users * posts) as u64));
    assert!(read.most < 5 * SLICE_ROWS as u64, "{} rows in one slice", read.most);
    assert!(read.all < 2 * whole, "{} rows, {whole} where there is no bound", read.all);
    assert!(bounded.engine.evicted().ranges > 0, "it is at the bound");
    bounded.engine.check_invariants();
}

#[test]
fn a_read_of_more_than_fits_fails_in_slices_each_time() {
    let (users, posts) = (3000, 8);
    let (whole, bytes) = without_bound(users, posts);
    let mut bounded = Bounded::new(users, posts);
    bounded.bound(bounded.used() + bytes / 2);
    for _ in 0..3 {
        let read = bounded.read_sliced("t|");
        assert_eq!(read.result, Err(EngineError::OutOfMemory));
        assert!(read.most < 5 * SLICE_ROWS as u64, "{} rows in one slice", read.most);
        assert!(read.all < 3 * whole, "{} rows, {whole} where there is no bound", read.all);
        bounded.engine.check_invariants();
    }
    // What fits is read as ever.
    assert_eq!(bounded.read_sliced("t|u000").result, Ok(100 * posts as u64));
}

#[test]
fn a_large_range_is_evicted_in_parts() {
    let posts = 20_000;
    let mut bounded = Bounded::new(1, posts);
    let outputs = |bounded: &Bounded| bounded.engine.stats().keys;
    let base = outputs(&bounded);
    bounded.read_each(1);
    assert_eq!(outputs(&bounded) - base, posts as u64);
    bounded.bound(bounded.used());
    let mut steps = 0;
    loop {
        let before = outputs(&bounded);
        let done = bounded.own(|engine| engine.make_room_in_steps(200_000, 0, 0));
        assert!(before - outputs(&bounded) <= 20 * SLICE_ROWS as u64, "a step is short");
        bounded.engine.check_invariants();
        steps += 1;
        match done {
            None => {}
            Some(made) => break assert!(made, "there is enough that can go"),
        }
    }
    assert!(steps > 1, "{steps} steps");
    assert_eq!(bounded.read_sliced("t|u00000|").result, Err(EngineError::OutOfMemory));
    bounded.own(|engine| engine.set_memory_limit(None));
    assert_eq!(bounded.read_sliced("t|u00000|").result, Ok(posts as u64));
}

#[test]
fn a_write_makes_room_for_more_than_itself_but_does_not_wait_for_all_of_the_reserve() {
    let users = 3000;
    let mut bounded = Bounded::new(users, 3);
    bounded.read_each(users);
    bounded.bound(bounded.used());
    let (reserve, full) = (300_000, bounded.used());
    let mut writes = 0;
    loop {
        let evicted = bounded.engine.evicted().ranges;
        let done = bounded.own(|engine| engine.make_room_in_steps(128, 1000, reserve));
        assert_eq!(done, Some(true), "after {writes} writes");
        let went = bounded.engine.evicted().ranges - evicted;
        assert!(went < 200, "{went} ranges went for one write");
        if went == 0 {
            break;
        }
        writes += 1;
    }
    assert!(writes > 2, "{writes} writes");
    assert!(bounded.used() + reserve / 2 < full, "the reserve is there");
}

/// Verifies all that the join `c` gives, in slices, as clients do; how many these were, and the differences.
fn verify_sliced(bounded: &mut Bounded) -> (usize, Result<usize, EngineError>) {
    let all = KeyRange::new(b"c|", b"c}");
    for slices in 1..100_000 {
        let verify = |engine: &mut Engine| engine.verify(&all, 100);
        let done = bounded.own(|engine| one_slice(engine, verify));
        match done {
            Err(Stop::Wait(ticket)) => bounded.own(|engine| wait(engine, ticket)),
            Err(Stop::Failed(error)) => return (slices, Err(error)),
            Ok(differences) => return (slices, Ok(differences.len())),
        }
    }
    panic!("it does not end");
}

#[test]
fn a_verification_of_more_than_fits_ends_in_slices_of_any_size() {
    const SIDE: usize = 120;
    for rows in [2, 3, 4, 50] {
        let pressure = Pressure::new(0);
        let engine = pressure.own(|| Engine::new(Settings::default()));
        let mut bounded = Bounded { engine, pressure };
        bounded.own(|engine| {
            for number in 0..SIDE {
                set(engine, &format!("a|{number:04}"));
                set(engine, &format!("b|{number:04}"));
            }
            let join = "c|<x>|<y> = check a|<x> copy b|<y>";
            engine.join_add("c", join, false).expect("a join");
        });
        bounded.bound(bounded.used() + SIDE * SIDE * 16);
        bounded.engine.set_slice(Some(rows));
        let before = bounded.rows();
        let (slices, differences) = verify_sliced(&mut bounded);
        assert_eq!(differences, Ok(0), "{rows} rows, {slices} slices");
        assert!(bounded.engine.evicted().ranges > 0, "it is at the bound");
        let read = (bounded.rows() - before) as usize;
        assert!(read < 60 * SIDE * SIDE, "{rows} rows a slice, {read} rows in {slices} slices");
    }
}
