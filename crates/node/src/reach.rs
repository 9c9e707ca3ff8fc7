//! Which keys definitions read and write: what rights are held against.

use crate::flow_commands::definition_of;
use crate::node::Node;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_command::Flows as Asked;
use headwater_flows::Action;
use headwater_pattern::{Join, Pattern};

/// What a definition reads, writes, and whom it tells.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DefinitionReach {
    /// Ranges that it reads.
    pub reads: Vec<KeyRange>,
    /// Ranges that it writes, or gives.
    pub writes: Vec<KeyRange>,
    /// The channel to which it publishes.
    pub channel: Option<Vec<u8>>,
    /// It posts to a URL.
    pub posts: bool,
    /// The function that makes its values, or does its tasks.
    pub function: Option<String>,
}

fn ranges<'p>(patterns: impl IntoIterator<Item = &'p Pattern>) -> Vec<KeyRange> {
    patterns.into_iter().map(Pattern::range_of_all).collect()
}

impl Node {
    /// What a join would read and give; `None`: its text is none.
    #[must_use]
    pub fn reach_of_join(&self, text: &str) -> Option<DefinitionReach> {
        let join = Join::parse(text, self.engine.limits()).ok()?;
        Some(DefinitionReach {
            reads: ranges(join.sources.iter().map(|source| &source.pattern)),
            writes: ranges([&join.output]),
            function: join.function.clone(),
            ..DefinitionReach::default()
        })
    }

    /// What a flow would read and write, and whom it would tell; `None`: nothing would be added.
    #[must_use]
    pub fn reach_of_flow(&self, asked: &Asked<'_>) -> Option<DefinitionReach> {
        let Asked::Add { on, action, options, .. } = asked else { return None };
        let definition = definition_of(on, action, options, self.engine.limits()).ok()?;
        let mut reach = DefinitionReach {
            reads: ranges([&definition.on]),
            writes: ranges(definition.action.puts()),
            ..DefinitionReach::default()
        };
        match &definition.action {
            // A function that a flow calls may look any key up.
            Action::Call { function, .. } => {
                reach.reads.push(KeyRange::all());
                reach.function = Some(function.clone());
            }
            Action::Fanout(join) => {
                reach.reads.extend(ranges(join.sources.iter().map(|source| &source.pattern)));
            }
            Action::Post { .. } => reach.posts = true,
            Action::Publish { channel } => reach.channel = Some(channel.clone()),
        }
        Some(reach)
    }

    /// Refuses to start tasks of a flow, or does so no more.
    pub fn refuse_flow(&mut self, name: &str, refused: bool) {
        self.working.flows.refuse(name, refused);
    }
}
