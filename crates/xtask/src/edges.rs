//! Which crate may depend on which: ARCHITECTURE.md's layers as a table.
//!
//! Dependencies point one way. A crate that is not in the table has no place yet: it gets a row
//! here and in ARCHITECTURE.md together. Crates from outside are listed for pure crates alone,
//! where each is a promise about clocks, sockets and order; elsewhere `cargo deny` sees them (`deny.toml`).
//! ARCHITECTURE.md's table of rooms says the same ([`check_map`]).

use crate::Finding;
use toml::Table;

/// One crate of the workspace and what it may use.
#[derive(Debug)]
pub struct Room {
    /// Folder under `crates`.
    pub folder: &'static str,
    /// Whether it is `#![no_std]`, and so has no clock, socket, file or thread.
    pub pure: bool,
    /// Rooms that it may use.
    pub uses: &'static [&'static str],
    /// Rooms that only its tests may use.
    pub tests_use: &'static [&'static str],
}

const fn pure(folder: &'static str, uses: &'static [&'static str]) -> Room {
    Room { folder, pure: true, uses, tests_use: &[] }
}

const fn room(folder: &'static str, uses: &'static [&'static str]) -> Room {
    Room { folder, pure: false, uses, tests_use: &[] }
}

/// Crates from outside that pure crates may use.
const PURE_OUTSIDE: [&str; 8] =
    ["base64", "hashbrown", "lz4_flex", "rapidhash", "serde", "serde_json", "sha1", "sha2"];

/// Every crate, from the ground up. A room uses those above it alone.
pub const ROOMS: &[Room] = &[
    pure("base", &[]),
    pure("pool", &["base"]),
    room("buffers", &["pool"]),
    pure("store", &["base", "pool"]),
    pure("pattern", &["base"]),
    pure("command", &["base", "pool"]),
    // The machines never name one another; node and server introduce them.
    room("workload", &[]),
    // The workload brings the traces of its study.
    Room { folder: "policy", pure: true, uses: &[], tests_use: &["workload"] },
    // The workload makes the graph of its example, which measures maintenance.
    Room {
        folder: "engine",
        pure: true,
        uses: &["base", "policy", "pool", "store", "pattern"],
        tests_use: &["workload"],
    },
    pure("flows", &["base", "pattern"]),
    pure("cluster", &["base"]),
    pure("log", &["base"]),
    pure("protocol", &["base", "pool", "command"]),
    // Its tests read requests as clients send them.
    Room { folder: "acl", pure: true, uses: &["base", "command"], tests_use: &["protocol"] },
    Room {
        folder: "router",
        pure: true,
        uses: &["base", "pool", "command"],
        tests_use: &["protocol"],
    },
    Room {
        folder: "node",
        pure: true,
        uses: &["base", "pattern", "command", "engine", "flows", "cluster"],
        tests_use: &["protocol"],
    },
    room("spill", &["base"]),
    room("keep", &["base"]),
    room("functions", &["base"]),
    room("postgres", &["base"]),
    room("webhook", &["base"]),
    room("config", &["base", "policy", "protocol"]),
    room("jetstream", &["log"]),
    // Speaks to every system over its socket, Headwater included: it knows no room but the pool,
    // which is measured as a library.
    room("bench", &["base", "engine", "node", "pool", "buffers", "workload"]),
    room("script", &["base", "engine"]),
    // Joins through functions are told to real modules too, and histories to a real store and a real place to spill to.
    Room {
        folder: "model",
        pure: false,
        uses: &["base", "command", "engine", "node", "protocol", "script"],
        tests_use: &["functions", "keep", "spill"],
    },
    // Many shards under simulated time, against the oracle.
    room("sim", &["base", "cluster", "engine", "log", "node", "model"]),
    // Its tests run several shards under simulated time, against the oracle, and nodes of a cluster over the simulated servers of `sim`.
    Room {
        folder: "server",
        pure: false,
        uses: &[
            "acl",
            "base",
            "buffers",
            "command",
            "config",
            "engine",
            "functions",
            "jetstream",
            "keep",
            "log",
            "node",
            "protocol",
            "router",
            "spill",
            "postgres",
            "webhook",
        ],
        tests_use: &["model", "sim"],
    },
    // `headwater check` is the one use of the model outside of tests.
    room(
        "cli",
        &["base", "bench", "command", "engine", "functions", "model", "server", "workload"],
    ),
    Room { folder: "xtask", pure: false, uses: &[], tests_use: &["command"] },
];

/// The row of a folder under `crates`.
#[must_use]
pub fn find(folder: &str) -> Option<&'static Room> {
    ROOMS.iter().find(|room| room.folder == folder)
}

/// The names in one table of dependencies.
fn names(manifest: &Table, table: &str) -> Vec<String> {
    let found = manifest.get(table).and_then(toml::Value::as_table);
    found.map(|table| table.keys().cloned().collect()).unwrap_or_default()
}

/// Breaches of the table in the manifest of `crates/<folder>`.
#[must_use]
pub fn check(folder: &str, manifest: &str) -> Vec<Finding> {
    let path = format!("crates/{folder}/Cargo.toml");
    let Some(room) = find(folder) else {
        let text = "this crate has no row in crates/xtask/src/edges.rs";
        return vec![Finding::new(&path, 0, text)];
    };
    let manifest: Table = match manifest.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![Finding::new(&path, 0, error.to_string())],
    };
    let mut found = Vec::new();
    let lints = manifest.get("lints").and_then(|lints| lints.get("workspace"));
    if lints.and_then(toml::Value::as_bool) != Some(true) {
        found.push(Finding::new(&path, 0, "lacks `[lints] workspace = true`"));
    }
    for table in ["target", "build-dependencies"] {
        if manifest.contains_key(table) {
            found.push(Finding::new(&path, 0, format!("[{table}] is used nowhere here")));
        }
    }
    let tables = [("dependencies", false), ("dev-dependencies", true)];
    for (table, tests) in tables {
        for name in names(&manifest, table) {
            let allowed = match name.strip_prefix("headwater-") {
                Some(used) => {
                    room.uses.contains(&used) || (tests && room.tests_use.contains(&used))
                }
                None => tests || !room.pure || PURE_OUTSIDE.contains(&&*name),
            };
            if !allowed {
                let uses = room.uses.join(", ");
                let text = format!("[{table}] {name} is not allowed; {folder} uses: {uses}");
                found.push(Finding::new(&path, 0, text));
            }
        }
    }
    found
}

/// Rooms that the table lets `crates/<folder>` use, and its manifest does not.
#[must_use]
pub fn unused(folder: &str, manifest: &str) -> Vec<Finding> {
    let (Some(room), Ok(manifest)) = (find(folder), manifest.parse::<Table>()) else {
        return Vec::new();
    };
    let used = names(&manifest, "dependencies");
    let unused = room.uses.iter().filter(|name| !used.contains(&format!("headwater-{name}")));
    let path = format!("crates/{folder}/Cargo.toml");
    unused.map(|name| Finding::new(&path, 0, format!("may use {name}, and does not"))).collect()
}

/// Where ARCHITECTURE.md's table of rooms says something else than [`ROOMS`].
#[must_use]
pub fn check_map(path: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().enumerate().skip_while(|(_, line)| !line.starts_with("| room |"));
    let rows = lines.skip(2).take_while(|(_, line)| line.starts_with('|'));
    let mut missing: Vec<&Room> = ROOMS.iter().collect();
    let mut found = Vec::new();
    for (at, row) in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (name, uses) = (cells[1], cells[cells.len() - 2]);
        let mut breach = |text: String| found.push(Finding::new(path, at + 1, text));
        let folder = name.split('`').nth(1).unwrap_or_default();
        let Some(place) = missing.iter().position(|room| room.folder == folder) else {
            breach(format!("'{folder}' is no room, or has two rows"));
            continue;
        };
        let room = missing.remove(place);
        if room.pure != name.ends_with("(pure)") {
            breach(format!("'{folder}' is {}pure", if room.pure { "" } else { "not " }));
        }
        let (mut said, mut true_uses) = (uses.split(' ').collect(), room.uses.to_vec());
        let sort = |list: &mut Vec<&str>| {
            list.retain(|name| !name.is_empty());
            list.sort_unstable();
        };
        sort(&mut said);
        sort(&mut true_uses);
        if said != true_uses {
            breach(format!("'{folder}' uses: {}", room.uses.join(" ")));
        }
    }
    let lacking = missing.iter().map(|room| format!("has no row for '{}'", room.folder));
    found.extend(lacking.map(|text| Finding::new(path, 0, text)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(folder: &str, dependencies: &str) -> usize {
        check(folder, &format!("[lints]\nworkspace = true\n{dependencies}")).len()
    }

    #[test]
    fn edges_point_upwards_in_the_table() {
        for (at, room) in ROOMS.iter().enumerate() {
            for used in room.uses.iter().chain(room.tests_use) {
                let place = ROOMS.iter().position(|room| room.folder == *used);
                assert!(place.is_some_and(|place| place < at), "{} uses {used}", room.folder);
            }
            let below = room.uses.iter().filter_map(|used| find(used));
            assert!(!room.pure || below.into_iter().all(|used| used.pure), "{}", room.folder);
        }
    }

    #[test]
    fn forbidden_edges_are_found() {
        assert_eq!(found("engine", "[dependencies]\nheadwater-store.workspace = true\n"), 0);
        assert_eq!(found("engine", "[dependencies]\nheadwater-protocol.workspace = true\n"), 1);
        assert_eq!(found("store", "[dependencies]\nmio.workspace = true\n"), 1);
        assert_eq!(found("store", "[dev-dependencies]\nmio.workspace = true\n"), 0);
        assert_eq!(found("node", "[dev-dependencies]\nheadwater-protocol = \"1\"\n"), 0);
        assert_eq!(found("node", "[dependencies]\nheadwater-protocol = \"1\"\n"), 1);
        assert_eq!(found("node", "[target.'cfg(unix)'.dependencies]\nmio = \"1\"\n"), 1);
        assert_eq!(found("unheard-of", ""), 1);
        assert_eq!(check("base", "[lints]\nworkspace = false\n").len(), 1);
        assert_eq!(check("base", "").len(), 1);
        assert_eq!(unused("cluster", "").len(), 1);
        assert_eq!(unused("cluster", "[dependencies]\nheadwater-base = \"1\"\n").len(), 0);
    }

    #[test]
    fn a_map_that_is_wrong_is_found() {
        let row = |room: &Room| {
            let pure = if room.pure { " (pure)" } else { "" };
            format!("| `{}`{pure} | what | {} |\n", room.folder, room.uses.join(" "))
        };
        let rows: String = ROOMS.iter().map(row).collect();
        let map =
            format!("text\n| room | what lives there | uses |\n| --- | --- | --- |\n{rows}\n");
        let breaches = |from: &str, to: &str| {
            let wrong = map.replacen(from, to, 1);
            assert!(from.is_empty() || wrong != map);
            check_map("MAP.md", &wrong).len()
        };
        assert_eq!(breaches("", ""), 0);
        assert_eq!(breaches("| base pattern |", "| base |"), 1);
        assert_eq!(breaches("`flows` (pure)", "`flows`"), 1);
        assert_eq!(breaches("`flows` (pure)", "`store` (pure)"), 2);
        assert_eq!(breaches("| room |", "| rooms |"), ROOMS.len());
    }
}
