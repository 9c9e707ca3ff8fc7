//! A node that keeps one list, on a thread, with real servers behind its machines.

use headwater_jetstream::{JetStream, JetStreamSettings, NodesSeen, Wake, monotonic};
use headwater_log::{
    Announcement, AppendWindow, Bucket, BucketRequest, Epoch, FormatRange, Formats, Heartbeat,
    LeaseTimes, Log, LogEntry, LogPosition, Owner, RECORD_FORMATS, Replica, ReplicaConfig,
    ReplicaEffect, ReplicaInput, Revision, Turn, newest_for_all,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The tag of a request that nobody else makes.
const ANNOUNCES: u64 = 1 << 50;

/// What a node is told.
enum Told {
    Wake,
    /// Appends a number.
    Append(u32),
}

/// What a node has done.
#[derive(Default, Clone, Debug)]
pub(crate) struct Done {
    /// Numbers whose appends it has acknowledged to clients.
    pub(crate) acknowledged: Vec<u32>,
    /// The epoch in which it executes.
    pub(crate) serves: Option<Epoch>,
    pub(crate) may_answer: bool,
    /// What it has of the log.
    pub(crate) list: Vec<u32>,
    pub(crate) position: LogPosition,
    pub(crate) unacknowledged_bytes: usize,
    /// It has stopped for good.
    pub(crate) halted: Option<String>,
}

pub(crate) struct Member {
    told: Sender<Told>,
    done: Arc<Mutex<Done>>,
    ends: Arc<AtomicBool>,
    paused: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    pub(crate) fn start(name: &str, settings: JetStreamSettings, wants: bool) -> Self {
        Self::start_as(name, settings, wants, (RECORD_FORMATS, None))
    }

    /// One whose program reads these formats of records, and announces what it reads, if it does.
    pub(crate) fn start_as(
        name: &str,
        settings: JetStreamSettings,
        wants: bool,
        program: (FormatRange, Option<Formats>),
    ) -> Self {
        let (told, tells) = channel();
        let (done, ends) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (own_done, own_ends, waker) = (Arc::clone(&done), Arc::clone(&ends), told.clone());
        let name = name.to_owned();
        let waker = Mutex::new(waker);
        let wake: Wake = Arc::new(move || drop(waker.lock().unwrap().send(Told::Wake)));
        let running = Running::new(&name, settings, &wake, (own_done, wants), program);
        let paused = Arc::new(AtomicBool::new(false));
        let own_paused = Arc::clone(&paused);
        let thread = std::thread::spawn(move || running.run(&tells, &own_ends, &own_paused));
        Self { told, done, ends, paused, thread: Some(thread) }
    }

    pub(crate) fn append(&self, number: u32) {
        self.told.send(Told::Append(number)).unwrap();
    }

    /// Has it do nothing for a while, as if its process were stopped; what it has sent is under way.
    pub(crate) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    pub(crate) fn done(&self) -> Done {
        self.done.lock().unwrap().clone()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let ended = self.thread.take().expect("it runs").join();
        assert!(ended.is_ok() || std::thread::panicking(), "a node's thread has panicked");
    }
}

struct Running {
    nats: JetStream,
    nodes: NodesSeen,
    log: headwater_jetstream::JetStreamLog,
    bucket: headwater_jetstream::JetStreamBucket,
    heartbeat: Heartbeat,
    replica: Replica,
    wants: bool,
    waiting: VecDeque<(Turn, u32)>,
    done: Arc<Mutex<Done>>,
}

impl Running {
    fn new(
        name: &str,
        settings: JetStreamSettings,
        wake: &Wake,
        (done, wants): (Arc<Mutex<Done>>, bool),
        (records, announces): (FormatRange, Option<Formats>),
    ) -> Self {
        let stream = settings.stream(0);
        let nats = JetStream::connect(settings).unwrap();
        let (log, mut bucket) =
            (nats.log(0, Arc::clone(wake)).unwrap(), nats.bucket(Arc::clone(wake)));
        let node = Owner {
            node: name.into(),
            address: format!("{name}:7379"),
            incarnation: std::process::id().into(),
            epoch: Epoch(0),
            shard: 0,
            released: false,
        };
        let window =
            AppendWindow { message_bytes_max: nats.message_bytes_max(), ..AppendWindow::default() };
        let times = LeaseTimes::default();
        let config = ReplicaConfig {
            stream,
            key: "owner.0".into(),
            node: node.clone(),
            times,
            window,
            follow_millis: 100,
            made_anew: false,
            records,
        };
        if let Some(formats) = announces {
            let (tag, key, revision) =
                (ANNOUNCES, format!("{}{name}", Announcement::KEYS), Revision(0));
            let program = String::from("a later one");
            let announcement = Announcement { program, incarnation: node.incarnation, formats };
            let value = announcement.encode().into_bytes();
            bucket.send(BucketRequest::Put { tag, key, revision, value });
        }
        let nodes = nats.nodes();
        let heartbeat = Heartbeat::new(node, times, 0);
        let replica = Replica::new(config, LogPosition::default(), 1 << 40);
        let waiting = VecDeque::new();
        Self { nats, nodes, log, bucket, heartbeat, replica, wants, waiting, done }
    }

    fn run(mut self, tells: &Receiver<Told>, ends: &AtomicBool, paused: &AtomicBool) {
        while !ends.load(Ordering::Relaxed) && self.done.lock().unwrap().halted.is_none() {
            if paused.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let first = tells.recv_timeout(Duration::from_millis(20)).ok();
            let now = monotonic();
            let mut effects = Vec::new();
            for told in first.into_iter().chain(tells.try_iter()) {
                if let Told::Append(number) = told
                    && let Some(turn) =
                        self.replica.append(0, &number.to_le_bytes(), now, &mut effects)
                {
                    self.waiting.push_back((turn, number));
                }
            }
            while let Some(answer) = self.log.receive() {
                self.replica.handle(ReplicaInput::Log(answer), now, &mut effects);
            }
            while let Some(answer) = self.bucket.receive() {
                self.heartbeat.answered(&answer, now).unwrap();
                self.replica.handle(ReplicaInput::Bucket(answer), now, &mut effects);
            }
            let known = self.nodes.known();
            self.replica.set_newest_for_all(newest_for_all(&known, |formats| formats.records));
            self.heartbeat.tick(now).into_iter().for_each(|request| self.bucket.send(request));
            let writable_since = self.heartbeat.writable_since();
            let tick = ReplicaInput::Tick { wants: self.wants, defer_millis: 0, writable_since };
            self.replica.handle(tick, now, &mut effects);
            self.follow(effects);
        }
        drop(self.nats);
    }

    fn follow(&mut self, effects: Vec<ReplicaEffect>) {
        let mut done = self.done.lock().unwrap();
        for effect in effects {
            match effect {
                ReplicaEffect::Log(request) => self.log.send(request),
                ReplicaEffect::Bucket(request) => self.bucket.send(request),
                ReplicaEffect::Apply(LogEntry::Data { payload, position, .. }) => {
                    done.list.push(u32::from_le_bytes(payload.try_into().unwrap()));
                    done.position = position;
                }
                ReplicaEffect::Apply(LogEntry::Claim { position, .. }) => done.position = position,
                ReplicaEffect::Serve(_) | ReplicaEffect::Leave => {}
                ReplicaEffect::Acknowledged { turn, position } => {
                    done.position = position;
                    let may_answer = self.replica.may_answer(monotonic());
                    while self.waiting.front().is_some_and(|next| next.0 <= turn)
                        && let Some((_, number)) = self.waiting.pop_front()
                    {
                        done.list.push(number);
                        if may_answer {
                            done.acknowledged.push(number);
                        }
                    }
                }
                ReplicaEffect::Stop(position) => {
                    assert_eq!(position, done.position);
                    self.waiting.clear();
                }
                ReplicaEffect::Halt(stop) => done.halted = Some(stop.to_string()),
            }
        }
        done.serves = self.replica.serves();
        done.may_answer = self.replica.may_answer(monotonic());
        done.unacknowledged_bytes = self.replica.unacknowledged_bytes();
    }
}
