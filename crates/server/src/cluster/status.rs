//! How a cluster does: its shards, its nodes, and what is wrong.

use super::{BucketView, ClusterAdmin, ClusterError, GONE, Renewed, Watched};
use headwater_jetstream::{AdminError, StreamSummary};
use headwater_log::{FormatRange, Formats, KnownProcess};
use serde::Serialize;
use std::collections::BTreeMap;

/// How a cluster does.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ClusterStatus {
    /// The name of the cluster.
    pub cluster: String,
    /// Whether a majority of the NATS servers keeps the bucket of owners and each log.
    pub quorum: bool,
    /// Its shards.
    pub shards: Vec<ShardStatus>,
    /// Its nodes, also those that have ended.
    pub nodes: Vec<NodeStatus>,
    /// What is wrong: a sentence for each. Clients are not served, or will not be when something else fails.
    pub problems: Vec<String>,
    /// What should be looked at: a sentence for each.
    pub warnings: Vec<String>,
}

/// How a shard does.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ShardStatus {
    /// Its number.
    pub shard: u32,
    /// The node that owns it.
    pub owner: Option<String>,
    /// Where that node is reached.
    pub address: Option<String>,
    /// The epoch of its owner, or of its last one; 0: it has had none.
    pub epoch: u64,
    /// Its log, if the servers say what it has.
    pub log: Option<LogStatus>,
    /// Its newest snapshot, if there is one.
    pub snapshot: Option<SnapshotStatus>,
}

/// What a log has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LogStatus {
    /// Its stream.
    pub stream: String,
    /// The first sequence that it has.
    pub first: u64,
    /// The last sequence that it has given.
    pub last: u64,
    /// Its bytes, in one copy.
    pub bytes: u64,
    /// The NATS servers that keep it.
    pub servers: Vec<ServerStatus>,
}

/// A NATS server that keeps a log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ServerStatus {
    /// Its name.
    pub server: String,
    /// Whether it leads the log.
    pub leads: bool,
    /// Whether the leader hears it.
    pub heard: bool,
}

/// A snapshot of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct SnapshotStatus {
    /// The last sequence of the log that it contains.
    pub sequence: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// How a node does.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NodeStatus {
    /// Its name.
    pub node: String,
    /// Where it is reached.
    pub address: String,
    /// The shard that it is for.
    pub shard: u32,
    /// Whether it shows that it lives.
    pub heard: bool,
    /// Whether it is drained: it owns nothing then.
    pub drained: bool,
    /// The shards that it owns.
    pub owns: Vec<u32>,
    /// The version of its program, if that has announced what it reads.
    pub program: Option<String>,
    /// The formats that its program reads: `records 1-2, links 3, snapshots 1`.
    pub formats: String,
}

impl ClusterAdmin {
    /// Looks how the cluster does; takes up to 5 seconds where a node is not heard.
    ///
    /// # Errors
    /// There is no such cluster.
    pub fn status(&self) -> Result<ClusterStatus, ClusterError> {
        let cluster = self.nats.settings().cluster.clone();
        let mut status = ClusterStatus {
            cluster,
            quorum: true,
            shards: Vec::new(),
            nodes: Vec::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
        };
        let watched = match self.watch() {
            Ok(watched) => watched,
            Err(error @ AdminError::Missing(_)) => return Err(error.into()),
            Err(AdminError::Unavailable(why)) => {
                status.quorum = false;
                status.problems.push(format!("there is no quorum of the NATS servers: {why}"));
                return Ok(status);
            }
        };
        let bucket = self.nats.bucket_stream();
        status.note_stream(&format!("bucket {}", self.nats.settings().bucket()), &bucket);
        for shard in watched.view.shards() {
            self.look_at_shard(shard, &watched, &mut status);
        }
        let known = watched.known();
        for process in &known {
            let (name, node) = (&process.owner.node, &process.owner);
            let owns = status.shards.iter().filter(|shard| shard.owner.as_ref() == Some(name));
            status.nodes.push(NodeStatus {
                node: name.clone(),
                address: node.address.clone(),
                shard: node.shard.into(),
                heard: process.is_heard,
                drained: watched.view.drained.contains(name),
                owns: owns.map(|shard| shard.shard).collect(),
                program: process.announcement().map(|it| it.program.clone()),
                formats: shown(&process.formats()),
            });
        }
        for node in status.nodes.iter().filter(|node| node.drained && !node.owns.is_empty()) {
            let (name, owns) = (&node.node, &node.owns);
            status
                .warnings
                .push(format!("node '{name}' is drained, and owns shards {owns:?} still"));
        }
        status.warnings.extend(programs(&known));
        status.warnings.extend(differing(&watched));
        status.problems.extend(watched.view.unreadable);
        Ok(status)
    }

    fn look_at_shard(&self, shard: u32, watched: &Watched, status: &mut ClusterStatus) {
        let stream = self.nats.settings().stream(shard);
        let log = self.nats.stream(&stream);
        status.note_stream(&format!("stream {stream}"), &log);
        let last = watched.view.owners.get(&shard).map(|(_, owner)| owner);
        let owner = last
            .filter(|owner| !owner.released && watched.renewed.contains(&Renewed::Owner(shard)));
        if owner.is_none() {
            status
                .problems
                .push(format!("shard {shard} has no owner: {}", why_none(watched, shard)));
        }
        status.shards.push(ShardStatus {
            shard,
            owner: owner.map(|owner| owner.node.clone()),
            address: owner.map(|owner| owner.address.clone()),
            epoch: last.map_or(0, |owner| owner.epoch.0),
            log: log.ok().map(|summary| LogStatus::of(stream, &summary)),
            snapshot: watched.view.snapshots.get(&shard).map(|mark| SnapshotStatus {
                sequence: mark.position.sequence.0,
                bytes: mark.bytes,
            }),
        });
    }
}

/// What a program reads, in a few words.
fn shown(formats: &Formats) -> String {
    let each = formats.named().map(|(what, FormatRange { oldest, newest })| match newest {
        newest if newest == oldest => format!("{what} {newest}"),
        newest => format!("{what} {oldest}-{newest}"),
    });
    each.join(", ")
}

/// Which programs there are, where an upgrade has not come to its end: those of nodes that are heard differ, or a node reads other formats than another
/// one, heard or not.
fn programs(known: &[KnownProcess]) -> Option<String> {
    let formats = known.first()?.formats();
    let formats_differ = known.iter().any(|process| process.formats() != formats);
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for process in known.iter().filter(|process| process.is_heard || formats_differ) {
        let told = process.announcement();
        let mut program = told.map_or(String::from("an earlier version"), |it| it.program.clone());
        if formats_differ {
            program = format!("{program} with {}", shown(&process.formats()));
        }
        let node = &process.owner.node;
        let away = if process.is_heard { "" } else { " (not heard)" };
        groups.entry(program).or_default().push(format!("{node}{away}"));
    }
    if groups.len() < 2 {
        return None;
    }
    let each =
        groups.into_iter().map(|(program, nodes)| format!("{program} at {}", nodes.join(", ")));
    let each = each.collect::<Vec<_>>().join("; ");
    let holds = if formats_differ {
        ", and the newest formats are not written before all nodes read them (`headwater cluster remove NODE` forgets one that has ended)"
    } else {
        ""
    };
    Some(format!("nodes run different programs ({each}): upgrade the others{holds}"))
}

/// Settings that differ between the nodes that are heard, a sentence for each.
fn differing(watched: &Watched) -> Vec<String> {
    let told = watched.view.settings.iter().filter(|(node, _)| watched.hears(node));
    let mut all: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for (node, settings) in told {
        for (name, value) in settings {
            all.entry(name).or_default().entry(value).or_default().push(node);
        }
    }
    let differ = all.into_iter().filter(|(_, values)| values.len() > 1);
    let sentence = |(name, values): (&str, BTreeMap<&str, Vec<&str>>)| {
        let each = values.iter().map(|(value, nodes)| format!("{value} at {}", nodes.join(", ")));
        let each = each.collect::<Vec<_>>().join("; ");
        format!(
            "nodes have started with different settings of {name} ({each}): any of them may own the data next"
        )
    };
    differ.map(sentence).collect()
}

/// Why nobody owns a shard.
fn why_none(watched: &Watched, shard: u32) -> String {
    let seconds = GONE.as_secs();
    let last = match watched.view.owners.get(&shard) {
        None => String::from("no node has owned it yet"),
        Some((_, owner)) if owner.released => format!("node '{}' has given it up", owner.node),
        Some((_, owner)) => {
            format!("node '{}' has not renewed its lease for {seconds} seconds", owner.node)
        }
    };
    let heard = watched.heard(shard);
    let BucketView { drained, .. } = &watched.view;
    let others = if heard.is_empty() {
        "no node is heard that is for it"
    } else if heard.iter().all(|node| drained.contains(node)) {
        "all nodes that are heard are drained (headwater cluster drain NODE --undo)"
    } else {
        "a node takes it within seconds, if the NATS servers have a quorum"
    };
    format!("{last}; {others}")
}

impl ClusterStatus {
    /// Notes what is wrong with a stream.
    fn note_stream(&mut self, what: &str, stream: &Result<StreamSummary, AdminError>) {
        match stream {
            Ok(summary) if summary.has_quorum() || summary.servers.is_empty() => {
                let away = summary.servers.iter().filter(|server| !server.heard);
                self.warnings.extend(away.map(|server| {
                    format!("NATS server '{}' is away: it keeps {what}", server.name)
                }));
            }
            Ok(summary) => {
                self.quorum = false;
                let heard = summary.servers.iter().filter(|server| server.heard);
                let heard: Vec<&str> = heard.map(|server| &*server.name).collect();
                self.problems.push(format!(
                    "there is no quorum of the NATS servers: of {} that keep {what}, {} can be heard ({})",
                    summary.servers.len(),
                    heard.len(),
                    heard.join(", ")
                ));
            }
            Err(AdminError::Missing(_)) => {
                self.problems.push(format!("the NATS servers have no {what}"));
            }
            Err(AdminError::Unavailable(why)) => {
                self.quorum = false;
                self.problems.push(format!("there is no quorum of the NATS servers: {why}"));
            }
        }
    }
}

impl LogStatus {
    fn of(stream: String, summary: &StreamSummary) -> Self {
        let server = |server: &headwater_jetstream::StreamServer| ServerStatus {
            server: server.name.clone(),
            leads: summary.leader.as_ref() == Some(&server.name),
            heard: server.heard,
        };
        Self {
            stream,
            first: summary.first.0,
            last: summary.last.0,
            bytes: summary.bytes,
            servers: summary.servers.iter().map(server).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_log::{Announcement, Epoch, Owner};

    fn process(node: &str, is_heard: bool, told: Option<(&str, Formats)>) -> KnownProcess {
        let owner = Owner {
            node: node.into(),
            address: "a:1".into(),
            shard: 0,
            incarnation: 3,
            epoch: Epoch(0),
            released: false,
        };
        let announced = told.map(|(program, formats)| Announcement {
            program: program.into(),
            incarnation: 3,
            formats,
        });
        KnownProcess { owner, announced, is_heard }
    }

    #[test]
    fn an_upgrade_that_is_not_over_is_told_with_who_is_left() {
        let old = Formats::UNANNOUNCED;
        let records = FormatRange { oldest: 1, newest: 2 };
        let new = Formats { records, ..old };
        assert_eq!(programs(&[]), None);
        let same =
            [process("a", true, Some(("1.0.0", old))), process("b", true, Some(("1.0.0", old)))];
        assert_eq!(programs(&same), None);
        let mixed = [
            process("a", true, Some(("1.0.0", old))),
            process("b", true, Some(("1.1.0", old))),
            process("c", true, Some(("1.1.0", old))),
            process("gone", false, Some(("0.9.0", old))),
        ];
        assert_eq!(
            programs(&mixed).unwrap(),
            "nodes run different programs (1.0.0 at a; 1.1.0 at b, c): upgrade the others"
        );
        let mixed = [
            process("a", true, Some(("1.1.0", new))),
            process("b", true, None),
            process("gone", false, Some(("1.0.0", old))),
        ];
        assert_eq!(
            programs(&mixed).unwrap(),
            "nodes run different programs (1.0.0 with records 1, links 3, snapshots 1 at gone (not heard); 1.1.0 with records 1-2, links 3, snapshots 1 at a; an earlier version with records 1, links 3, snapshots 1 at b): upgrade the others, and the newest formats are not written before all nodes read them (`headwater cluster remove NODE` forgets one that has ended)"
        );
        // One that has ended and reads the same as all others holds nothing up.
        let gone = [
            process("a", true, Some(("1.1.0", new))),
            process("gone", false, Some(("1.0.0", new))),
        ];
        assert_eq!(programs(&gone), None);
    }
}
