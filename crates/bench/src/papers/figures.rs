//! The figures: which paper has them, what it shows, and what is run for them here.
//!
//! The papers: *Easy Freshness with Pequod Cache Joins* (Kate et al., NSDI 2014); *Yet Another Cache, but for the Streaming World*
//! (Pravega, 2020); *Fetch-and-Phi in Memcached* (Schaub, 2015); *Building Data Flows Using Distributed Key-Value Stores* (Hentschel et
//! al., ETH Zürich, Technical Report 742, 2011).

/// One of the four papers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Paper {
    /// Cache joins.
    Pequod,
    /// Chained blocks.
    StreamingCache,
    /// Functions next to the data.
    FetchAndPhi,
    /// Queues inside the store.
    DataFlows,
}

impl Paper {
    /// Its title and where it appeared.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Pequod => "Easy Freshness with Pequod Cache Joins (NSDI 2014)",
            Self::StreamingCache => {
                "Yet Another Cache, but for the Streaming World (Pravega, 2020)"
            }
            Self::FetchAndPhi => "Fetch-and-Phi in Memcached (Lehigh University, 2015)",
            Self::DataFlows => {
                "Building Data Flows Using Distributed Key-Value Stores (ETH Zürich, TR 742, 2011)"
            }
        }
    }
}

/// What is taken from a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Quantity {
    /// CPU of the server and of the client, µs an operation.
    BothCpu,
    /// Operations a second.
    Rate,
}

impl Quantity {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::BothCpu => "CPU of server and client, µs an operation",
            Self::Rate => "operations a second",
        }
    }
}

/// In which form it is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Presentation {
    /// Systems beside one another on one work, with how many times Pequod's time each took in the paper.
    Systems(&'static [(&'static str, f64)]),
    /// Lines of systems over what changes along the bottom.
    Over(&'static str, &'static [Quantity]),
    /// Lines of systems over what changes along the bottom, with loading and warming included.
    OverWhole(&'static str, &'static [Quantity]),
    /// Nanoseconds a step, for each holder.
    Steps,
    /// What more shards cost.
    Shards,
    /// The table and the picture of the workload itself.
    Printed,
}

/// A run of another workload.
#[derive(Clone, Debug)]
pub(super) struct Experiment {
    /// Where it is along the bottom.
    pub(super) place: String,
    /// The workload and its options.
    pub(super) words: Vec<String>,
}

/// A table or a figure of a paper.
#[derive(Debug)]
pub(super) struct Figure {
    /// Its name, for `--only`.
    pub(super) name: &'static str,
    pub(super) paper: Paper,
    /// What it is about.
    pub(super) title: &'static str,
    /// What the paper's shows.
    pub(super) shows: &'static str,
    /// What is different here.
    pub(super) differs: &'static str,
    /// What it is compared with, where that is installed.
    pub(super) peers: &'static [&'static str],
    /// What it cannot be measured without.
    pub(super) needs: &'static [&'static str],
    pub(super) presentation: Presentation,
    /// Whether its workload runs once, wherever the kernel has it run.
    pub(super) is_run_once: bool,
    /// What is run, at a scale.
    pub(super) experiments: fn(f64) -> Vec<Experiment>,
}

impl Figure {
    /// Whether its table is made from the JSON of its workload.
    pub(super) fn has_json(&self) -> bool {
        !matches!(self.presentation, Presentation::Printed)
    }
}

fn experiment(place: impl Into<String>, words: &str) -> Experiment {
    Experiment { place: place.into(), words: words.split(' ').map(str::to_owned).collect() }
}

/// One experiment.
fn one(words: &str) -> Vec<Experiment> {
    vec![experiment("", words)]
}

/// A scale, without digits that only arithmetic has brought in.
fn rounded(scale: f64) -> f64 {
    (scale * 1e6).round() / 1e6
}

/// How many there are at a scale, where `usual` are at 1; `least`, where that would be fewer.
fn count(usual: f64, scale: f64, least: f64) -> u64 {
    (usual * scale).round().max(least) as u64
}

/// Percent of users who are active, or of sessions that vote.
const ACTIVE: [u32; 7] = [1, 10, 30, 50, 70, 90, 100];
const VOTES: [u32; 7] = [0, 10, 25, 50, 75, 90, 100];

/// Functions, over objects of 1 to 64 KiB.
fn functions(operation: &str, scale: f64) -> Vec<Experiment> {
    one(&format!("functions --op {operation} --value 1024,4096,16384,65536 --scale {scale}"))
}

/// All of them, in the order of the page.
pub(super) const FIGURES: [Figure; 11] = [
    Figure {
        name: "systems",
        paper: Paper::Pequod,
        title: "Timelines: systems compared (Figure 7)",
        shows: "Pequod takes the least time. The others take longer: Redis 1.33 times as long, Pequod with timelines kept by clients 1.64 times, \
                memcached 3.98 times, PostgreSQL with triggers 9.55 times.",
        differs: "One server on one core and one generator on another, where the paper has several machines; a generated graph of its shape. \
                  All of it is measured, from an empty server on: while they are loaded, the others are given the timelines that Headwater computes \
                  when they are first read.",
        peers: &["client", "valkey", "redis", "memcached", "postgres"],
        needs: &[],
        presentation: Presentation::Systems(&[
            ("headwater", 1.0),
            ("redis", 1.33),
            ("client", 1.64),
            ("memcached", 3.98),
            ("postgres", 9.55),
        ]),
        is_run_once: false,
        experiments: |scale| one(&format!("twip --users {}", count(20_000.0, scale, 200.0))),
    },
    Figure {
        name: "active",
        paper: Paper::Pequod,
        title: "Timelines: what to materialize, by the share of active users (Figure 8)",
        shows: "To materialize everything costs most while few users are active. To materialize nothing costs more and more the more are active. To \
                materialize what is read is as good as the better of the two, but for a crossing at either end.",
        differs: "`headwater` materializes what is read, `push-all` everything, `pull` nothing; `auto` chooses for each timeline. All of it is measured, \
                  from an empty server on, with what each of them materializes.",
        peers: &["push-all", "pull", "auto"],
        needs: &[],
        presentation: Presentation::OverWhole("active users, percent", &[Quantity::BothCpu]),
        is_run_once: false,
        experiments: |scale| {
            let users = count(10_000.0, scale, 200.0);
            let of = |active: u32| {
                let words = format!("twip --users {users} --active {active}");
                experiment(active.to_string(), &words)
            };
            ACTIVE.into_iter().map(of).collect()
        },
    },
    Figure {
        name: "pages",
        paper: Paper::Pequod,
        title: "Pages of a news site: one interleaved range or several reads, by the share of votes (Figure 9)",
        shows: "A page whose article, rank, comments and karma are interleaved in one range takes less time to read than one that is put together from \
                several ranges, until nearly every session votes: a vote changes karma on many pages.",
        differs: "Server and client share one machine, and interleaving moves work from the client to the server: both are counted. All pages have been read \
                  once before the run (`--warm`): each is read five times in it, and without that, computing them would be most of what is measured.",
        peers: &["separate", "valkey", "redis"],
        needs: &[],
        presentation: Presentation::Over("sessions that vote, percent", &[Quantity::BothCpu]),
        is_run_once: false,
        experiments: |scale| {
            let of = |votes: u32| {
                experiment(
                    votes.to_string(),
                    &format!("newp --scale {scale} --vote {votes} --warm"),
                )
            };
            VOTES.into_iter().map(of).collect()
        },
    },
    Figure {
        name: "shards",
        paper: Paper::Pequod,
        title: "Timelines: more servers, and what their subscriptions cost (Figure 10)",
        shows: "Four times as many servers (12 to 48) bring about three times the throughput: base data is copied to more of them, and each change goes \
                to more subscribers.",
        differs: "Shards of one process instead of machines, and two cores for all of them: so the work of all shards for one operation is what is \
                  compared, not throughput. With as many cores as shards, four times the shards would bring 4 ÷ (that ratio) times the throughput.",
        peers: &[],
        needs: &[],
        presentation: Presentation::Shards,
        is_run_once: false,
        experiments: |scale| {
            let users = count(20_000.0, scale, 500.0);
            one(&format!("scale --users {users} --warm --driver engines --shards 12,24,36,48"))
        },
    },
    Figure {
        name: "blocks",
        paper: Paper::StreamingCache,
        title: "The memory of values: sequential and random",
        shows: "Entries of 10 KiB are inserted, appended to, read and removed, in order, and at random with 10 and 100 KiB. A cache of chained blocks does \
                each step in a small part of the time that RocksDB takes in memory; an append does not depend on how long the entry is.",
        differs: "The pool as a library in one thread. `memcpy` is the limit: a lookup and a copy. RocksDB is compared where \
                  `bench-rocksdb/build` has built it.",
        peers: &["hashmap", "hashmap-reuse", "memcpy", "rocksdb"],
        needs: &[],
        presentation: Presentation::Steps,
        is_run_once: false,
        experiments: |scale| one(&format!("pool --scale {}", rounded(scale / 10.0))),
    },
    Figure {
        name: "change",
        paper: Paper::FetchAndPhi,
        title: "Fetch-and-update: 16 bytes of an object, by its size",
        shows: "Where clients fetch the object and store it again, fewer and fewer updates a second are done the larger it is. A function that changes \
                the bytes at the server keeps its rate.",
        differs: "`headwater` calls a WebAssembly function with FN.CALL, `items` with `invoke` over memcached's protocol; `client`, Valkey's Lua and \
                  memcached beside them.",
        peers: &["client", "items", "memcached", "valkey"],
        needs: &[],
        presentation: Presentation::Over("KiB of an object", &[Quantity::Rate]),
        is_run_once: false,
        experiments: |scale| functions("change", scale),
    },
    Figure {
        name: "set-and-go",
        paper: Paper::FetchAndPhi,
        title: "Set-and-go: the same without a reply",
        shows: "Without a reply the client does not wait, and more updates a second are done.",
        differs: "As above; the client's own way still has to fetch the object.",
        peers: &["client", "items", "memcached", "valkey"],
        needs: &[],
        presentation: Presentation::Over("KiB of an object", &[Quantity::Rate]),
        is_run_once: false,
        experiments: |scale| functions("change-noreply", scale),
    },
    Figure {
        name: "filter",
        paper: Paper::FetchAndPhi,
        title: "Filter: 4 bytes of an object, by its size",
        shows: "To fetch only what is wanted takes as long for large objects as for small ones.",
        differs: "As above. The paper also has a filter that computes something of what it reads; that is not measured here.",
        peers: &["client", "items", "memcached", "valkey"],
        needs: &[],
        presentation: Presentation::Over("KiB of an object", &[Quantity::Rate]),
        is_run_once: false,
        experiments: |scale| functions("filter", scale),
    },
    Figure {
        name: "top-of-the-hour",
        paper: Paper::FetchAndPhi,
        title: "The top of the hour: a burst of updates, and the quiet time behind it",
        shows: "In the half minute in which 44 reads meet 56 updates, functions do more of them a second, at less CPU, than clients that fetch and store.",
        differs: "The burst is as fast as it goes, the quiet time at a constant rate.",
        peers: &["client", "items", "memcached", "valkey"],
        needs: &[],
        presentation: Presentation::Over("phase", &[Quantity::Rate, Quantity::BothCpu]),
        is_run_once: false,
        experiments: |scale| one(&format!("functions --op burst --scale {scale}")),
    },
    Figure {
        name: "posts",
        paper: Paper::DataFlows,
        title: "Posts to followers: by the client, by an external queue, by a queue inside the store",
        shows: "A client that writes every timeline itself waits for all of them; with a queue it is answered at once. A queue inside the store needs fewer \
                machines for the same load than one outside. A burst is absorbed by the queue.",
        differs: "One machine instead of a cluster: CPU and bytes of all processes stand for machines.",
        peers: &["redis", "nats"],
        needs: &[],
        presentation: Presentation::Printed,
        is_run_once: false,
        experiments: |scale| one(&format!("flows --scale {scale}")),
    },
    Figure {
        name: "faults",
        paper: Paper::DataFlows,
        title: "A node is killed and comes back (Figures 7 and 8)",
        shows: "1 000 posts a second; a node is killed after 60 s and is back after 90 s. What was acknowledged is not lost, and what was not done meanwhile \
                is done afterwards.",
        differs: "Three nodes and three NATS servers on one machine; the owner of the data is what is killed.",
        peers: &[],
        needs: &["nats"],
        presentation: Presentation::Printed,
        is_run_once: true,
        experiments: |scale| one(&format!("faults --scale {}", scale.clamp(0.03, 1.0))),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_a_name_of_its_own_and_experiments() {
        let names: std::collections::BTreeSet<_> = FIGURES.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), FIGURES.len());
        for figure in &FIGURES {
            for experiment in (figure.experiments)(0.01) {
                assert!(experiment.words.len() > 1, "{}", figure.name);
            }
        }
    }
}
