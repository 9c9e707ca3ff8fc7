//! The requests to one log, in order.
//!
//! # Order
//! Appends are published as they are given, over one connection at a time: another one is taken once everything that was sent over the one before is
//! answered. Otherwise the servers could meet two of them in another order, and refuse the one that comes too early as they refuse those of an owner that is none any more.

use crate::commands::{self, LogNames, Published};
use crate::connection::{Answers, is_connected};
use crate::leader::{self, Direct};
use crate::settings::JetStreamSettings;
use async_nats::jetstream::Context;
use headwater_log::{AppendOutcome, LogAnswer, LogRequest, MessageId, Sequence};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, watch};

/// Appends that are sent and not answered.
#[derive(Default)]
struct UnderWay {
    count: Cell<usize>,
    none: Notify,
}

/// An append that is yet to be sent.
struct Append {
    id: MessageId,
    expected: Sequence,
    bytes: Vec<u8>,
}

/// What requests to a log go through.
pub(crate) struct LogTask {
    /// The connection for everything but appends.
    pub(crate) main: Context,
    pub(crate) settings: JetStreamSettings,
    pub(crate) names: Arc<LogNames>,
    pub(crate) answers: Answers<LogAnswer>,
}

impl LogTask {
    /// Carries requests out until there can be no more.
    pub(crate) async fn run(self, mut requests: UnboundedReceiver<LogRequest>) {
        let under_way = Rc::new(UnderWay::default());
        let mut held: VecDeque<Append> = VecDeque::new();
        // Who only reads needs no leader.
        let mut found = None;
        let mut direct: Option<Direct> = None;
        loop {
            while let Some(append) = held.pop_front() {
                let leader = found.get_or_insert_with(|| self.follow_leader());
                if is_other(direct.as_ref(), leader.borrow().as_ref()) {
                    if under_way.count.get() > 0 {
                        held.push_front(append);
                        break;
                    }
                    direct = leader.borrow().clone().filter(|it| is_connected(&it.context));
                }
                let over = direct.as_ref().map_or(&self.main, |it| &it.context);
                self.append(over, append, &under_way).await;
            }
            tokio::select! {
                request = requests.recv() => match request {
                    None => return,
                    Some(LogRequest::Append { id, expected, bytes }) => {
                        held.push_back(Append { id, expected, bytes });
                    }
                    Some(LogRequest::Read { tag, .. }) if !is_connected(&self.main) => {
                        commands::fail(LogAnswer::Read { tag, batch: None }, &self.answers);
                    }
                    Some(LogRequest::Read { tag, from }) => {
                        commands::read_log(&self.main, &self.names, (tag, from), &self.answers);
                    }
                    // The next one purges as much and more.
                    Some(LogRequest::Purge { .. }) if !is_connected(&self.main) => {}
                    Some(LogRequest::Purge { below }) => {
                        commands::purge(&self.main, &self.names, below);
                    }
                },
                () = under_way.none.notified(), if !held.is_empty() => {}
            }
        }
    }

    fn follow_leader(&self) -> watch::Receiver<Option<Direct>> {
        let (sender, found) = watch::channel(None);
        let (main, settings) = (self.main.clone(), self.settings.clone());
        let following = leader::follow(main, settings, self.names.stream.clone(), sender);
        drop(tokio::task::spawn_local(following));
        found
    }

    /// Publishes a message; returns once it is sent.
    async fn append(&self, over: &Context, append: Append, under_way: &Rc<UnderWay>) {
        let Append { id, expected, bytes } = append;
        if !is_connected(over) {
            // What waited for a connection would be sent long after its sender has given it up.
            let outcome = AppendOutcome::Unknown;
            return commands::fail(LogAnswer::Append { id, outcome }, &self.answers);
        }
        let sent = commands::append(over, &self.names, id, expected, bytes).await;
        under_way.count.set(under_way.count.get() + 1);
        let (under_way, answers) = (under_way.clone(), self.answers.clone());
        tokio::task::spawn_local(async move {
            let outcome = match sent.await {
                Published::Stored(sequence) => AppendOutcome::Stored(Sequence(sequence)),
                Published::Refused => AppendOutcome::Refused,
                Published::Unknown => AppendOutcome::Unknown,
            };
            under_way.count.set(under_way.count.get() - 1);
            if under_way.count.get() == 0 {
                under_way.none.notify_one();
            }
            answers.send(LogAnswer::Append { id, outcome });
        });
    }
}

/// Whether appends are to go over another connection than now.
fn is_other(now: Option<&Direct>, leader: Option<&Direct>) -> bool {
    let leader = leader.filter(|it| is_connected(&it.context));
    now.map(|it| it.number) != leader.map(|it| it.number)
}
