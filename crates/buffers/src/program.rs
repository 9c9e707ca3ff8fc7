//! Pages of the program itself: most of what a start touches is never looked at again.
//!
//! The system maps a program page by page as it runs, with some of each page's neighbours. A start goes through the
//! option parser, the compiler's set-up, the reading of settings: megabytes that stay resident
//! though they have done their work. They are clean copies of files, so they can be let go of at any
//! time, and what is needed again comes back from the system's cache.
//!
//! With each page that is touched the system maps its neighbours, 64 KiB in all, but none beyond the
//! *mapping*. Functions that are used lie far apart in a large program, so most of what comes with them
//! is not. Advice that means nothing for a program's pages, whether they belong into a memory dump, given for
//! every other piece makes a mapping of each piece, and keeps what comes along small.
//!
//! # Invariants
//! - H3. Only mappings of files that cannot be written, and of which no page differs from its file, are
//!   touched: their content cannot change by this.
//!
//! # Cost
//! One look at `/proc/self/smaps`, which is long for a large process, and a call for every other piece; then, each time, a call for
//! each mapping, and a page fault of a microsecond or so for each piece that is used again.

#![expect(unsafe_code, reason = "advice on mappings that others made, within H3")]

use rustix::mm::Advice;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

/// What the system may map at once.
const PIECE_BYTES: usize = 16 << 10;

/// A mapping as `/proc/self/smaps` tells of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mapping {
    start: usize,
    end: usize,
    /// A file's, private, readable, and not to be written.
    constant: bool,
}

/// Reads the line that a mapping begins with: `start-end rwxp offset device inode path`.
fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let rights = fields.next()?;
    let inode = fields.nth(2)?;
    let constant = matches!(rights, "r-xp" | "r--p") && inode != "0";
    (start < end).then_some(Mapping { start, end, constant })
}

/// The mappings of files in `smaps` that are as their files are (H3); those that lie side by side are one. It is read line by
/// line: for a large program it is megabytes long, more than a shard has otherwise when it begins.
fn clean(mut smaps: impl BufRead) -> io::Result<Vec<Mapping>> {
    let mut found: Vec<Mapping> = Vec::new();
    let mut last: Option<Mapping> = None;
    let mut line = String::new();
    while smaps.read_line(&mut line)? > 0 {
        if let Some(next) = mapping(&line) {
            last = Some(next);
        } else if let Some(rest) = line.strip_prefix("Anonymous:") {
            // Pages that were written, as the linker does before it takes the right away.
            let unchanged = rest.trim() == "0 kB";
            if let Some(next) = last.take().filter(|mapping| mapping.constant && unchanged) {
                match found.last_mut() {
                    Some(before) if before.end == next.start => before.end = next.end,
                    _ => found.push(next),
                }
            }
        }
        line.clear();
    }
    Ok(found)
}

/// Where the program and its libraries are in memory.
#[derive(Debug, Default)]
pub struct Program {
    mappings: Vec<Mapping>,
}

impl Program {
    /// The program as it is mapped now; nothing where the system does not tell.
    #[must_use]
    pub fn of_this_process() -> Self {
        let smaps = File::open("/proc/self/smaps").map(BufReader::new);
        let program = Self { mappings: smaps.and_then(clean).unwrap_or_default() };
        program.divide();
        program
    }

    /// Makes mappings of [`PIECE_BYTES`] each.
    fn divide(&self) {
        for mapping in &self.mappings {
            // Not the first, which names the program in a dump.
            let second = mapping.start + PIECE_BYTES;
            for start in (second..mapping.end).step_by(2 * PIECE_BYTES) {
                let bytes = PIECE_BYTES.min(mapping.end - start);
                advise(start, bytes, Advice::LinuxDontDump);
            }
        }
    }

    /// Lets go of all its resident pages; what runs next comes back by itself.
    pub fn forget(&self) {
        for &Mapping { start, end, .. } in &self.mappings {
            advise(start, end - start, Advice::LinuxDontNeed);
        }
    }
}

/// Advises on pages of a mapping that [`clean`] found.
fn advise(start: usize, bytes: usize, advice: Advice) {
    let address = core::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the mapping is private, of a file, without the right to write, and has no page of its
    // own (H3): the next access reads the same bytes from the file, whichever advice is
    // followed. It stays mapped, for we load no libraries, and so unload none. Where the
    // advice is refused, everything is as before.
    let _ = unsafe { rustix::mm::madvise(address, bytes, advice) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c0000000-55d0c0001000 r--p 00000000 08:02 173521 /usr/bin/thing
Size:                  4 kB
Anonymous:             0 kB
55d0c0001000-55d0c0003000 r-xp 00001000 08:02 173521 /usr/bin/thing
Anonymous:             0 kB
55d0c0003000-55d0c0004000 r--p 00003000 08:02 173521 /usr/bin/thing
Anonymous:             4 kB
55d0c0004000-55d0c0005000 rw-p 00004000 08:02 173521 /usr/bin/thing
Anonymous:             0 kB
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0 [vdso]
Anonymous:             0 kB
";

    #[test]
    fn only_files_as_they_are_on_disk_are_let_go_of() {
        let found = clean(SMAPS.as_bytes()).unwrap();
        let found: Vec<_> = found.iter().map(|it| (it.start & 0xffff, it.end & 0xffff)).collect();
        assert_eq!(found, [(0x0000, 0x3000)]);
        let apart = SMAPS.replacen("55d0c0001000-", "55d0c0002000-", 1);
        let found = clean(apart.as_bytes()).unwrap();
        let found: Vec<_> = found.iter().map(|it| (it.start & 0xffff, it.end & 0xffff)).collect();
        assert_eq!(found, [(0x0000, 0x1000), (0x2000, 0x3000)]);
    }

    #[test]
    fn a_program_in_pieces_is_looked_at_as_a_whole_one() {
        let first = Program::of_this_process();
        let second = Program::of_this_process();
        assert!(
            first.mappings.len() < 100
                && first.mappings.iter().any(|it| it.end - it.start > 1 << 20)
        );
        assert_eq!(second.mappings, first.mappings);
    }

    fn resident_of_files() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(2).unwrap().parse().unwrap()
    }

    #[test]
    fn a_program_goes_on_without_the_pages_of_its_start() {
        let text: String = (0..1000).map(|number| format!("{number} ")).collect();
        let before = resident_of_files();
        Program::of_this_process().forget();
        let after = resident_of_files();
        assert!(after < before, "{after} of {before} pages");
        assert_eq!(text, (0..1000).map(|number| format!("{number} ")).collect::<String>());
    }
}
