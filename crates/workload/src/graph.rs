//! Follower graphs: a follows b.
//!
//! Users are numbered from 0 without gaps, in the order of their ids in the file, so that a
//! benchmark can address them with plain vectors. Each list of followees is sorted and
//! without doubles; nobody follows himself.
//!
//! A generated graph has the shape of the real ones: both degrees follow power laws. The
//! number of followees of a user is a bounded Pareto number with exponent 1.5; whom he
//! follows is drawn in proportion to `rank^-0.8`, which gives the most followed 1 % of users
//! about 40 % of all edges (38 % in SNAP's Epinions graph).
//!
//! Cost: reading and generating are O(edges); memory is 4 bytes per edge.

use crate::rng::{Alias, Rng};
use core::fmt;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// The real graph that is shipped; `data/graphs/SOURCES.md` says where it comes from.
const WIKI_VOTE: &[u8] = include_bytes!("../../../data/graphs/wiki-vote.txt.gz");

/// Exponent of the bounded Pareto distribution of the number of followees.
const FOLLOWEES_EXPONENT: f64 = 1.5;
/// Exponent of the popularity of the user with a given rank.
const POPULARITY_EXPONENT: f64 = 0.8;

/// Who follows whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Graph {
    /// How many users there are; they are numbered from 0.
    pub users: usize,
    /// For each user those whom he follows, sorted.
    pub follows: Vec<Vec<u32>>,
}

/// Why a graph could not be read.
#[derive(Debug)]
pub enum GraphError {
    /// The file could not be opened or read.
    Io(String, std::io::Error),
    /// A line is not two ids.
    Line {
        /// Its number, from 1.
        number: usize,
        /// What it says.
        text: String,
    },
    /// The file has no edge.
    Empty,
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) => write!(f, "graph file {path}: {error}"),
            Self::Line { number, text } => write!(
                f,
                "graph line {number}: '{text}' is not two ids (allowed: two whole numbers \
                 separated by spaces, a tab or a comma, or a comment that starts with #)"
            ),
            Self::Empty => f.write_str("the graph has no edge"),
        }
    }
}

impl std::error::Error for GraphError {}

impl Graph {
    /// Reads a directed edge list: two ids per line, `#` comments; plain, `.gz` or `.zst`.
    ///
    /// # Errors
    /// The file cannot be read, or a line is not two ids.
    pub fn read(path: &Path) -> Result<Self, GraphError> {
        let name = path.display().to_string();
        let failed = |error| GraphError::Io(name.clone(), error);
        Self::parse(crate::open::open(path).map_err(failed)?).map_err(|error| match error {
            GraphError::Io(_, error) => GraphError::Io(name, error),
            other => other,
        })
    }

    /// SNAP's wiki-Vote graph, which is part of the program: 7,115 users, 103,689 edges.
    ///
    /// # Panics
    /// Never: the file is part of the program and a test reads it.
    #[must_use]
    pub fn wiki_vote() -> Self {
        Self::parse(flate2::read::GzDecoder::new(WIKI_VOTE)).expect("the shipped graph reads")
    }

    /// Reads an uncompressed edge list.
    ///
    /// # Errors
    /// Reading fails, or a line is not two ids.
    pub fn parse(input: impl Read) -> Result<Self, GraphError> {
        let mut edges: Vec<(u64, u64)> = Vec::new();
        for (at, line) in BufReader::new(input).lines().enumerate() {
            let line = line.map_err(|error| GraphError::Io(String::from("input"), error))?;
            let text = line.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let mut ids = text
                .split(|c: char| c.is_whitespace() || c == ',')
                .filter(|part| !part.is_empty())
                .map(str::parse::<u64>);
            match (ids.next(), ids.next(), ids.next()) {
                (Some(Ok(from)), Some(Ok(to)), None) => edges.push((from, to)),
                _ => {
                    let text = text.chars().take(80).collect();
                    return Err(GraphError::Line { number: at + 1, text });
                }
            }
        }
        if edges.is_empty() {
            return Err(GraphError::Empty);
        }
        Ok(Self::from_edges(&edges))
    }

    /// Numbers the ids without gaps, in their order, and drops doubles and self loops.
    fn from_edges(edges: &[(u64, u64)]) -> Self {
        let mut numbers: BTreeMap<u64, u32> =
            edges.iter().flat_map(|&(from, to)| [(from, 0), (to, 0)]).collect();
        for (number, slot) in numbers.values_mut().enumerate() {
            *slot = number as u32;
        }
        let mut follows = vec![Vec::new(); numbers.len()];
        for (from, to) in edges.iter().filter(|(from, to)| from != to) {
            follows[numbers[from] as usize].push(numbers[to]);
        }
        for list in &mut follows {
            list.sort_unstable();
            list.dedup();
        }
        Self { users: numbers.len(), follows }
    }

    /// A power-law graph of `users` users who follow `mean` others on average; the same for
    /// the same arguments.
    #[must_use]
    pub fn generate(users: usize, mean: f64, seed: u64) -> Self {
        // At most a quarter of all users: beyond it the draw of distinct followees crawls.
        let most = (users as f64 / 4.0).clamp(1.0, 5_000.0);
        let least = pareto_least(mean.min(most * 0.9), most);
        Self::draw(users, seed, |rng| pareto(rng, least, most))
    }

    /// A graph of `users` users of whom each follows `least` to `most` others (both at most a quarter of all), any number as
    /// often as another; the same for the same arguments. How many follow a user goes by a power law, as in [`Graph::generate`].
    #[must_use]
    pub fn uniform(users: usize, least: usize, most: usize, seed: u64) -> Self {
        let ceiling = (users / 4).max(1);
        let (least, most) = (least.min(ceiling), most.min(ceiling));
        Self::draw(users, seed, |rng| (least + rng.index(most + 1 - least)) as f64)
    }

    /// A graph whose users follow as many others as `wanted` draws for each.
    fn draw(users: usize, seed: u64, mut draw_wanted: impl FnMut(&mut Rng) -> f64) -> Self {
        if users < 2 {
            return Self { users, follows: vec![Vec::new(); users] };
        }
        let mut rng = Rng::new(seed);
        let weights: Vec<f64> =
            (0..users).map(|rank| (rank as f64 + 1.0).powf(-POPULARITY_EXPONENT)).collect();
        let popularity = Alias::new(&weights);
        let mut by_rank: Vec<u32> = (0..users as u32).collect();
        rng.shuffle(&mut by_rank);

        let mut chosen_by = vec![u32::MAX; users];
        let mut follows = Vec::with_capacity(users);
        for user in 0..users as u32 {
            chosen_by[user as usize] = user;
            let wanted = draw_wanted(&mut rng).min((users - 1) as f64);
            // The fraction decides by chance, so that the mean survives rounding.
            let wanted = wanted as usize + usize::from(rng.unit() < wanted.fract());
            let mut list = Vec::with_capacity(wanted);
            for _ in 0..wanted.saturating_mul(20) {
                if list.len() == wanted {
                    break;
                }
                let other = by_rank[popularity.draw(&mut rng)];
                if chosen_by[other as usize] != user {
                    chosen_by[other as usize] = user;
                    list.push(other);
                }
            }
            list.sort_unstable();
            follows.push(list);
        }
        Self { users, follows }
    }

    /// Adds a user whom exactly `followers` others follow, and gives his number.
    ///
    /// # Panics
    /// There are fewer other users than that.
    pub fn add_celebrity(&mut self, followers: usize, seed: u64) -> u32 {
        assert!(followers <= self.users, "{} users cannot be {followers}", self.users);
        let celebrity = self.users as u32;
        let mut others: Vec<u32> = (0..celebrity).collect();
        Rng::new(seed).shuffle(&mut others);
        for &other in &others[..followers] {
            // The greatest number: the list stays sorted.
            self.follows[other as usize].push(celebrity);
        }
        self.users += 1;
        self.follows.push(Vec::new());
        celebrity
    }

    /// How many subscriptions there are.
    #[must_use]
    pub fn edges(&self) -> usize {
        self.follows.iter().map(Vec::len).sum()
    }

    /// How many follow each user.
    #[must_use]
    pub fn followers_count(&self) -> Vec<u32> {
        let mut counts = vec![0; self.users];
        for &followee in self.follows.iter().flatten() {
            counts[followee as usize] += 1;
        }
        counts
    }

    /// Draws posters in proportion to the logarithm of their number of followers (plus one,
    /// so that someone with few followers posts at times; nobody without any does).
    ///
    /// # Panics
    /// Nobody has a follower.
    #[must_use]
    pub fn posters(&self) -> Alias {
        let weights: Vec<f64> =
            self.followers_count().iter().map(|&count| f64::from(count).ln_1p()).collect();
        Alias::new(&weights)
    }

    /// How many digits a user's number has in keys: at least 4.
    #[must_use]
    pub fn digits(&self) -> usize {
        self.users.saturating_sub(1).to_string().len().max(4)
    }

    /// The name of a user as it stands in keys: `u0042`, equally long for all.
    #[must_use]
    pub fn user_name(&self, user: u32) -> String {
        format!("u{user:0width$}", width = self.digits())
    }
}

/// A bounded Pareto number in `[least, most]`, by inverting the distribution function.
fn pareto(rng: &mut Rng, least: f64, most: f64) -> f64 {
    let tail = (least / most).powf(FOLLOWEES_EXPONENT);
    least * (1.0 - rng.unit() * (1.0 - tail)).powf(-1.0 / FOLLOWEES_EXPONENT)
}

/// The least value for which the bounded Pareto distribution up to `most` has this mean.
fn pareto_least(mean: f64, most: f64) -> f64 {
    let a = FOLLOWEES_EXPONENT;
    let mean_of = |least: f64| {
        least.powf(a) / (1.0 - (least / most).powf(a))
            * (a / (a - 1.0))
            * (least.powf(1.0 - a) - most.powf(1.0 - a))
    };
    let (mut low, mut high) = (1e-3, most * 0.999);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if mean_of(middle) < mean { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_shipped_graph_is_the_one_described() {
        let graph = Graph::wiki_vote();
        assert_eq!((graph.users, graph.edges()), (7_115, 103_689));
        assert_eq!(graph.followers_count().iter().max(), Some(&457));
        assert_eq!(graph.follows.iter().map(Vec::len).max(), Some(893));
        assert_eq!(graph.user_name(42), "u0042");
    }

    #[test]
    fn column_one_follows_column_two() {
        let text = "# a comment\n7 3\n7\t9\n\n3,9\n9 9\n7 3\n";
        let graph = Graph::parse(text.as_bytes()).unwrap();
        assert_eq!(graph.follows, [vec![2], vec![0, 2], vec![]]);
        assert_eq!(graph.followers_count(), [1, 0, 2]);
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = Graph::parse(&b"1 2\n3 x\n"[..]).unwrap_err();
        assert!(error.to_string().starts_with("graph line 2: '3 x' is not two ids"), "{error}");
        assert!(Graph::parse(&b"1 2 3\n"[..]).is_err());
        assert!(matches!(Graph::parse(&b"# nothing\n"[..]), Err(GraphError::Empty)));
    }

    #[test]
    fn compressed_files_read_as_the_plain_one() {
        let folder = std::env::temp_dir().join(format!("headwater-graph-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = b"1 2\n2 3\n";
        let plain = folder.join("g.txt");
        std::fs::write(&plain, text).unwrap();
        let gz = folder.join("g.txt.gz");
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Default::default());
        encoder.write_all(text).unwrap();
        std::fs::write(&gz, encoder.finish().unwrap()).unwrap();
        let zst = folder.join("g.txt.zst");
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        std::fs::write(&zst, ruzstd::encoding::compress_to_vec(&text[..], level)).unwrap();
        let expected = Graph::read(&plain).unwrap();
        assert_eq!(Graph::read(&gz).unwrap(), expected);
        assert_eq!(Graph::read(&zst).unwrap(), expected);
        let missing = Graph::read(&folder.join("none")).unwrap_err().to_string();
        assert!(missing.contains("none"), "{missing}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_generated_graph_has_the_mean_and_a_heavy_tail() {
        let graph = Graph::generate(20_000, 40.0, 7);
        assert_eq!(graph, Graph::generate(20_000, 40.0, 7));
        assert_ne!(graph, Graph::generate(20_000, 40.0, 8));
        let mean = graph.edges() as f64 / graph.users as f64;
        assert!((36.0..44.0).contains(&mean), "mean {mean}");
        let mut followers = graph.followers_count();
        followers.sort_unstable_by(|a, b| b.cmp(a));
        let top: u32 = followers[..200].iter().sum();
        let share = f64::from(top) / graph.edges() as f64;
        assert!((0.25..0.45).contains(&share), "the top 1 % hold {share} of the edges");
        for (user, list) in graph.follows.iter().enumerate() {
            assert!(list.is_sorted_by(|a, b| a < b) && !list.contains(&(user as u32)));
        }
    }

    #[test]
    fn tiny_graphs_do_not_hang() {
        for users in 0..12 {
            let graph = Graph::generate(users, 40.0, 1);
            assert_eq!((graph.users, graph.follows.len()), (users, users));
        }
    }

    #[test]
    fn a_celebrity_has_exactly_these_followers() {
        let mut graph = Graph::generate(1_000, 10.0, 1);
        let celebrity = graph.add_celebrity(900, 2);
        assert_eq!(graph.followers_count()[celebrity as usize], 900);
        assert_eq!(graph.users, 1_001);
    }
}
