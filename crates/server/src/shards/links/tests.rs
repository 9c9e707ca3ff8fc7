//! Links over the loopback: what is written arrives, what is lost is told, and whoever is not of the cluster is refused.

use super::handshake::{Answer, NONCE_BYTES, answer};
use super::{LinkSecurity, LinkSettings, LinkedOwner, LinkedOwners, Links, MayAnswer};
use crate::connection::ConnectionId;
use crate::service::SocketNews;
use crate::shards::{MessageBatch, Outbox, ShardMessage, Transport};
use headwater_base::Shard;
use headwater_config::Cluster;
use headwater_log::FormatRange;
use mio::{Events, Poll};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What takes longer never comes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A shard in a process of its own, as it were.
struct Side {
    transport: Arc<Transport>,
    outbox: Outbox,
    /// What a loop would wait for that carries its connections itself.
    poll: Option<Poll>,
    begun: Instant,
    links: Option<Links>,
    owners: watch::Sender<LinkedOwners>,
    /// Whether it was told that the other one is connected.
    told: Vec<bool>,
    /// For how many milliseconds it had said nothing when it was lost last.
    silent: u64,
    /// The bytes of the messages that have come.
    came: Vec<u8>,
}

fn settings(me: u16, epoch: u64) -> LinkSettings {
    LinkSettings {
        cluster: String::from("shop"),
        secret: [5; 32],
        me: Shard(me),
        epoch,
        formats: FormatRange::one(4),
        bind: SocketAddr::from(([127, 0, 0, 1], 0)),
        batch_bytes_max: 32 << 20,
        security: None,
        may_answer: MayAnswer(Arc::new(|| true)),
    }
}

impl Side {
    /// The connections of the first shard are carried by its loop, those of the other one by the thread of links.
    fn start(settings: LinkSettings) -> Self {
        let by_loop = settings.me == Shard(0);
        Self::start_with(settings, by_loop)
    }

    fn start_with(settings: LinkSettings, by_loop: bool) -> Self {
        let transport = Transport::apart(settings.me, 2, 1);
        let mut outbox = Outbox::new(settings.me, transport.clone());
        let poll = by_loop.then(|| Poll::new().unwrap());
        if let Some(poll) = &poll {
            outbox.set_registry(poll.registry().try_clone().unwrap(), 0);
        }
        let (owners, told) = watch::channel(vec![None, None]);
        let links = Links::start(settings, transport.clone(), told).unwrap();
        let (told, came) = (Vec::new(), Vec::new());
        let begun = Instant::now();
        let links = Some(links);
        Self { transport, outbox, poll, begun, links, owners, told, silent: 0, came }
    }

    fn address(&self) -> String {
        self.links.as_ref().unwrap().address.to_string()
    }

    /// Takes what has come.
    fn look(&mut self) {
        if let Some(poll) = &mut self.poll {
            let mut events = Events::with_capacity(8);
            poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
            for event in &events {
                let news = SocketNews::of(event);
                self.outbox.lines.news(event.token().0, news);
            }
            self.outbox.lines.turn(self.begun.elapsed().as_millis() as u64);
            self.outbox.send(&crate::service::DurableWrites::default());
        }
        for MessageBatch { from, bytes, messages, .. } in self.outbox.take() {
            let mut begin = 0;
            for message in messages {
                match message {
                    ShardMessage::Found | ShardMessage::Lost { .. } => {
                        let is = matches!(message, ShardMessage::Found);
                        if let ShardMessage::Lost { heard } = message {
                            let silent = heard.map_or(0, |it| it.elapsed().as_millis() as u64);
                            let now = self.begun.elapsed().as_millis() as u64;
                            self.silent = self.outbox.lines.silence(from, now).unwrap_or(silent);
                        }
                        self.outbox.set_connected(from, is);
                        self.told.push(is);
                    }
                    ShardMessage::Publish { end, .. } => {
                        self.came.extend_from_slice(&bytes[begin..end]);
                        begin = end;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        let to = Shard(1 - self.outbox_me());
        let batch = self.outbox.to(to);
        batch.bytes.extend_from_slice(bytes);
        let end = batch.bytes.len();
        batch.messages.push(ShardMessage::Publish { name: 0, end });
        self.outbox.send(&crate::service::DurableWrites::default());
    }

    fn outbox_me(&self) -> u16 {
        self.outbox.me().0
    }

    fn until(&mut self, what: &str, is: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        loop {
            self.look();
            if is(self) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{what}: {:?} {}", self.told, self.came.len());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn until_connected(&mut self) {
        self.until("connected", |side| side.told.last() == Some(&true));
    }

    fn until_lost(&mut self) {
        self.until("lost", |side| side.told.last() == Some(&false));
    }

    fn knows(&self, other: &Self, epoch: u64) {
        let owner = LinkedOwner { address: other.address(), epoch };
        let me = usize::from(self.outbox_me());
        self.owners.send_modify(|owners| owners[1 - me] = Some(owner));
    }
}

fn pair() -> (Side, Side) {
    let (mut one, mut other) = (Side::start(settings(0, 1)), Side::start(settings(1, 1)));
    one.knows(&other, 1);
    until_both(&mut one, &mut other, true);
    (one, other)
}

#[test]
fn batches_arrive_in_order_in_both_directions() {
    for by_loop in [[true, false], [true, true], [false, false]] {
        let mut one = Side::start_with(settings(0, 1), by_loop[0]);
        let mut other = Side::start_with(settings(1, 1), by_loop[1]);
        one.knows(&other, 1);
        until_both(&mut one, &mut other, true);
        exchange(one, other);
    }
}

fn exchange(mut one: Side, mut other: Side) {
    let large: Vec<u8> = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect();
    let mut sent = Vec::new();
    for at in 0..200_u8 {
        one.send(&[at; 1000]);
        other.send(&[at]);
        sent.extend_from_slice(&[at; 1000]);
    }
    one.send(&large);
    sent.extend_from_slice(&large);
    let expected = sent.len();
    let began = Instant::now();
    while other.came.len() < expected {
        one.look();
        other.look();
        assert!(began.elapsed() < PATIENCE, "{} of {expected} bytes", other.came.len());
    }
    assert!(other.came == sent);
    one.until("all has come", |side| side.came.len() == 200);
    assert!(one.came.iter().copied().eq(0..200));
    assert_eq!((one.told, other.told), (vec![true], vec![true]));
}

#[test]
fn what_is_lost_is_told_and_the_next_connection_begins_anew() {
    let (mut one, mut other) = pair();
    other.links = None;
    one.until_lost();
    // It is written for no connection.
    one.send(b"nowhere");
    let (owners, told) = watch::channel(vec![None, None]);
    other.owners = owners;
    let links = Links::start(settings(1, 2), other.transport.clone(), told).unwrap();
    other.links = Some(links);
    other.until_lost();
    one.knows(&other, 2);
    until_both(&mut one, &mut other, true);
    one.send(b"again");
    other.until("it has come", |side| side.came == b"again");
    assert_eq!(one.told, [true, false, true]);
    assert_eq!(other.told, [true, false, true]);
}

#[test]
fn another_owner_takes_the_place_of_the_one_before() {
    let (mut one, mut old) = pair();
    let mut new = Side::start(settings(1, 2));
    // The old one goes on as if nothing were.
    one.knows(&new, 2);
    one.until("connected anew", |side| side.told == [true, false, true]);
    new.until_connected();
    old.until_lost();
    one.send(b"to the new one");
    new.until("it has come", |side| side.came == b"to the new one");
    old.look();
    assert!(old.came.is_empty());
}

#[test]
fn who_is_not_of_the_cluster_is_refused() {
    let refused: [(&str, LinkSettings); 3] = [
        ("secret", LinkSettings { secret: [6; 32], ..settings(0, 1) }),
        ("cluster", LinkSettings { cluster: String::from("other"), ..settings(0, 1) }),
        ("shard", settings(1, 1)),
    ];
    let mut other = Side::start(settings(1, 1));
    for (what, settings) in refused {
        let one = Side::start(settings);
        let owner = LinkedOwner { address: other.address(), epoch: 1 };
        one.owners.send_modify(|owners| owners.fill(Some(owner)));
        std::thread::sleep(Duration::from_millis(300));
        other.look();
        assert!(other.told.is_empty(), "{what}");
    }
    // What is no greeting at all, or too long a one, ends the connection.
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[255; 64], &[10, 0, 0, 0, 1, 2]] {
        let mut stream = TcpStream::connect(other.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        assert!(matches!(stream.read(&mut [0; 16]), Ok(0) | Err(_)), "{bytes:?}");
    }
    let mut one = Side::start(settings(0, 1));
    one.knows(&other, 1);
    until_both(&mut one, &mut other, true);
}

fn formats(oldest: u16, newest: u16) -> FormatRange {
    FormatRange { oldest, newest }
}

/// What goes over a link between shards whose programs read these formats; `None`: they are not connected.
fn carried(dials: FormatRange, accepts: FormatRange) -> bool {
    let mut one = Side::start(LinkSettings { formats: dials, ..settings(0, 1) });
    let mut other = Side::start(LinkSettings { formats: accepts, ..settings(1, 1) });
    one.knows(&other, 1);
    if dials.agree(accepts).is_none() {
        std::thread::sleep(Duration::from_millis(300));
        one.look();
        other.look();
        assert!(one.told.is_empty() && other.told.is_empty(), "{dials}, {accepts}");
        return false;
    }
    until_both(&mut one, &mut other, true);
    one.send(b"there");
    other.send(b"back");
    other.until("it has come", |side| side.came == b"there");
    one.until("it has come", |side| side.came == b"back");
    true
}

/// An upgrade: each pair of programs of which one follows the other, whichever of them dials.
#[test]
fn programs_of_several_versions_speak_the_newest_format_that_both_read() {
    for (older, newer) in [
        (formats(4, 4), formats(4, 5)),
        (formats(4, 5), formats(5, 10)),
        (formats(5, 10), formats(5, 10)),
    ] {
        assert!(carried(older, newer) && carried(newer, older), "{older}, {newer}");
    }
    for (older, newer) in [(formats(4, 4), formats(5, 5)), (formats(4, 5), formats(6, 10))] {
        assert!(!carried(older, newer) && !carried(newer, older), "{older}, {newer}");
    }
}

/// Reads a frame of a handshake.
fn hear(stream: &mut TcpStream) -> Vec<u8> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).unwrap();
    let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn say(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(&(bytes.len() as u32).to_le_bytes()).unwrap();
    stream.write_all(bytes).unwrap();
}

/// A shard that is connected, and then says `bytes` and nothing more, is given up, whoever carries the connection: how many messages were refused before that.
fn given_up(bytes: &[u8]) -> u64 {
    let refused = giving_up(bytes).map(|one| one.transport.refused());
    assert_eq!(refused[0], refused[1]);
    refused[0]
}

/// One whose loop carries the connection, and one whose thread does, that have given it up.
fn giving_up(bytes: &[u8]) -> [Side; 2] {
    [true, false].map(|by_loop| giving_up_by(Side::start_with(settings(0, 1), by_loop), bytes))
}

fn giving_up_by(mut one: Side, bytes: &[u8]) -> Side {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = LinkedOwner { address: listener.local_addr().unwrap().to_string(), epoch: 3 };
    one.owners.send_modify(|owners| owners[1] = Some(owner));
    let (mut stream, _) = listener.accept().unwrap();
    let greeting = hear(&mut stream);
    let says = Answer { epoch: 3, formats: FormatRange::one(4) };
    say(&mut stream, &answer(&settings(1, 3).secret, &greeting, says, &[0; NONCE_BYTES]));
    hear(&mut stream);
    one.until_connected();
    stream.write_all(bytes).unwrap();
    one.until_lost();
    assert_eq!(one.told, [true, false]);
    one
}

#[test]
fn who_says_nothing_any_more_is_given_up() {
    // The other is there, and then within a message.
    for bytes in [&b""[..], &[0, 0, 0, 0, 100, 0, 0, 0, 1]] {
        for one in giving_up(bytes) {
            assert_eq!(one.transport.refused(), 0);
            assert!(one.silent >= 2_000, "it was heard {} ms ago", one.silent);
        }
    }
}

#[test]
fn what_is_no_message_ends_the_connection() {
    assert_eq!(given_up(&[3, 0, 0, 0, 1, 2, 3]), 1);
    // A message of another shard's, and one that is announced to be too long.
    let mut foreign = Vec::new();
    MessageBatch { from: Shard(0), ..MessageBatch::default() }.write((4, 0), &mut foreign).unwrap();
    assert_eq!(given_up(&[&(foreign.len() as u32).to_le_bytes()[..], &foreign].concat()), 1);
    assert_eq!(given_up(&u32::MAX.to_le_bytes()), 1);
    // A batch whose places are right, and whose answer is none.
    let session = ConnectionId { slot: 1, number: 2 };
    let messages = vec![ShardMessage::Answers { session, end: 3 }];
    let bytes = b"abc".to_vec();
    let mut broken = Vec::new();
    let batch = MessageBatch { from: Shard(1), bytes, messages, connection: 0 };
    batch.write((4, 0), &mut broken).unwrap();
    assert_eq!(given_up(&[&(broken.len() as u32).to_le_bytes()[..], &broken].concat()), 1);
}

/// One that has come before is dropped, and one too late ends the connection: each message is taken in once, and in order.
#[test]
fn what_comes_again_is_dropped_and_what_is_missing_ends_the_connection() {
    let frame = |number| {
        let mut frame = vec![0; 4];
        let batch = MessageBatch { from: Shard(1), ..MessageBatch::default() };
        batch.write((4, number), &mut frame).unwrap();
        let len = frame.len() as u32 - 4;
        frame[..4].copy_from_slice(&len.to_le_bytes());
        frame
    };
    assert_eq!(given_up(&[frame(0), frame(0), frame(1), frame(0)].concat()), 2);
    assert_eq!(given_up(&[frame(0), frame(2)].concat()), 1);
}

/// Runs `openssl` in a folder.
fn openssl(folder: &Path, arguments: &str) {
    let run = Command::new("openssl").args(arguments.split(' ')).current_dir(folder).output();
    let run = run.expect("openssl is there");
    assert!(run.status.success(), "{arguments}: {}", String::from_utf8_lossy(&run.stderr));
}

/// Security by a certificate that names this host, signed by an authority that is made with it, or the one before.
fn security(folder: &Path, (authority, is_new): (&str, bool), host: &str) -> LinkSecurity {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    if is_new {
        openssl(
            folder,
            &format!(
                "req -x509 {key} -keyout {authority}.key -out {authority}.pem -days 2 -subj /CN={authority}"
            ),
        );
    }
    std::fs::write(folder.join("names"), format!("subjectAltName={host}")).unwrap();
    openssl(folder, &format!("req {key} -keyout one.key -out one.csr -subj /CN=one"));
    openssl(
        folder,
        &format!(
            "x509 -req -in one.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -out one.pem -days 2 -extfile names"
        ),
    );
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let cluster = Cluster {
        cluster_ca_cert_file: file(&format!("{authority}.pem")),
        cluster_cert_file: file("one.pem"),
        cluster_key_file: file("one.key"),
        ..Cluster::default()
    };
    let (dials, accepts) = crate::tls::between_nodes(&cluster).unwrap();
    LinkSecurity { dials, accepts }
}

#[test]
fn encrypted_links_carry_the_same_and_strangers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let here = "IP:127.0.0.1";
    let ours = security(folder.path(), ("ours", true), here);
    let elsewhere = security(folder.path(), ("ours", false), "DNS:elsewhere.example");
    let theirs = security(folder.path(), ("theirs", true), here);
    let with = |me, epoch, security: Option<&LinkSecurity>| {
        let security = security.cloned();
        Side::start(LinkSettings { security, ..settings(me, epoch) })
    };
    let mut other = with(1, 2, Some(&ours));
    // One that does not encrypt, and one of another authority.
    for security in [None, Some(&theirs)] {
        let one = with(0, 1, security);
        one.knows(&other, 1);
        std::thread::sleep(Duration::from_millis(300));
        other.look();
        assert!(other.told.is_empty());
    }
    // It dials no node whose certificate is another host's.
    let mut one = with(0, 1, Some(&ours));
    let mut stranger = with(1, 1, Some(&elsewhere));
    one.knows(&stranger, 1);
    std::thread::sleep(Duration::from_millis(300));
    stranger.look();
    assert!(stranger.told.is_empty());
    one.knows(&other, 2);
    until_both(&mut one, &mut other, true);
    let large: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    one.send(&large);
    other.send(b"small");
    other.until("all has come", |side| side.came.len() == large.len());
    assert!(other.came == large);
    one.until("all has come", |side| side.came == b"small");
    // What is sent is not readable on the way: a peer that speaks no TLS hears no greeting.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    one.owners.send_modify(|owners| owners[1] = Some(LinkedOwner { address, epoch: 3 }));
    let (mut stream, _) = listener.accept().unwrap();
    let mut heard = [0; 3];
    stream.read_exact(&mut heard).unwrap();
    // A handshake's record of TLS.
    assert_eq!(heard[..2], [0x16, 3]);
}

/// N4: the thread of links would tell for ever that a shard is there which may not answer.
#[test]
fn nobody_waits_for_a_shard_that_may_not_answer() {
    let may = Arc::new(AtomicBool::new(true));
    let asked = may.clone();
    let may_answer = MayAnswer(Arc::new(move || asked.load(Ordering::Relaxed)));
    let (mut one, mut other) =
        (Side::start(LinkSettings { may_answer, ..settings(0, 1) }), Side::start(settings(1, 1)));
    one.knows(&other, 1);
    other.knows(&one, 1);
    until_both(&mut one, &mut other, true);
    may.store(false, Ordering::Relaxed);
    until_both(&mut one, &mut other, false);
    may.store(true, Ordering::Relaxed);
    until_both(&mut one, &mut other, true);
    one.send(b"again");
    other.until("it came", |side| side.came == b"again");
}

/// Waits until both were told that they are connected, or that they are not; both go on all the time.
fn until_both(one: &mut Side, other: &mut Side, connected: bool) {
    let began = Instant::now();
    while [&one.told, &other.told].iter().any(|told| told.last() != Some(&connected)) {
        one.look();
        other.look();
        assert!(began.elapsed() < PATIENCE, "connected should be {connected}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// N4: nor for one whose thread hangs.
#[test]
fn nobody_waits_for_a_shard_that_does_not_go_on() {
    let (mut one, mut other) = pair();
    // The other one alone looks what has come.
    other.until_lost();
    assert_eq!(one.told, [true]);
    until_both(&mut one, &mut other, true);
}
