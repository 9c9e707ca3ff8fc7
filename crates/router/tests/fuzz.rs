//! Frames and answers that were mutated, cut or made up: they are read as something, or refused, and nothing panics.

mod draws;

use draws::Draws;
use headwater_base::placement::Partition;
use headwater_base::{Millis, Shard};
use headwater_command::items::{Fetch, ItemCommand};
use headwater_command::{ArgVec, Deadline, GetExpiry, OwnedArgs, Reply, SetExpiry, table};
use headwater_router::items::{counted_of, item_of, values, written_of};
use headwater_router::{
    Answer, Ask, AskHeader, Budget, Copies, Frames, LockSet, PutPurpose, PutValue, TransactionId,
    answer_of, are_requests, write_answer, write_ask,
};

fn corpus() -> Vec<Vec<u8>> {
    let request: OwnedArgs = [&b"SET"[..], b"a|b", b"value"].into_iter().collect();
    let transaction = TransactionId { coordinator: Shard(1), number: 7 };
    let header = AskHeader {
        id: 3,
        copies: Copies::Keys,
        wants_digests: true,
        no_evict: true,
        placement: 1,
        after: vec![1, 2, 3],
        record: Some((1, vec![1, 2])),
        user: Some(b"ada".to_vec()),
    };
    let asks = [
        Ask::Command(table::lookup(b"set").unwrap(), request.args()),
        Ask::Exec(vec![request.clone(), request.clone()]),
        Ask::Lock {
            transaction,
            set: LockSet::All,
            watches: true,
            wait: 5,
            budget: Budget::default(),
            prepare: vec![request.clone()],
        },
        Ask::Lock {
            transaction,
            set: LockSet::of([Partition(1), Partition(4095)].into_iter()),
            watches: false,
            wait: u64::MAX,
            budget: Budget { bytes: 1 << 40, denies_oom: true, stores: true },
            prepare: Vec::new(),
        },
        Ask::Release { transaction, prepared: vec![request.clone()] },
        Ask::Carry { key: b"k", leaves: true },
        Ask::Execute {
            transaction,
            shards: vec![Shard(0)],
            last: true,
            requests: vec![request.clone()],
        },
        Ask::Put(PutValue {
            key: b"k",
            value: b"v",
            expires: Some(Millis(1)),
            flags: 0,
            if_absent: true,
            purpose: PutPurpose::Copy,
        }),
        Ask::Item(ItemCommand::Get {
            keys: vec![b"a", b"b"],
            versions: true,
            expiry: GetExpiry::Deadline(Deadline::After(5)),
        }),
        Ask::Item(ItemCommand::Fetch {
            fetch: Fetch { key: b"k", vivify: Some(SetExpiry::Never), ..Fetch::default() },
            value: true,
        }),
    ];
    let mut corpus: Vec<Vec<u8>> = asks
        .iter()
        .map(|ask| {
            let mut bytes = Vec::new();
            write_ask(&header, ask, &mut bytes);
            bytes
        })
        .collect();
    let answer = answer_of(|out| {
        out.map(1);
        out.bulk(b"key");
        out.array(2);
        out.integer(5);
        out.error("ERR", format_args!("no"));
    });
    let mut bytes = Vec::new();
    write_answer(9, 1, &[2, 3], &answer, &mut bytes);
    corpus.extend([answer, bytes]);
    corpus
}

fn read_all(bytes: &[u8]) {
    // What is refused before it is taken in is refused without a panic as well.
    if are_requests(bytes, Shard(1), 2) {
        let (mut frames, mut spans) = (Frames::of(bytes), ArgVec::new());
        while frames.next_ask(&mut spans).is_some() {}
        assert_eq!(frames.left(), 0);
    }
    let mut spans = ArgVec::new();
    let mut frames = Frames::of(bytes);
    while let Some((_, ask)) = frames.next_ask(&mut spans) {
        if let Ask::Command(_, args) = ask {
            assert!(args.iter().map(<[u8]>::len).sum::<usize>() <= bytes.len());
        }
    }
    let mut frames = Frames::of(bytes);
    while frames.pass_key().is_some() {}
    let mut frames = Frames::of(bytes);
    while let Some(frame) = frames.next_answer() {
        look(frame.answer);
    }
    look(bytes);
}

/// An answer that is taken for one can be read to its end.
fn look(bytes: &[u8]) {
    if let Some((answer, rest)) = Answer::first(bytes) {
        assert!(answer.bytes().len() + rest.len() == bytes.len());
        let again = answer_of(|out| answer.replay(out));
        assert!(Answer::whole(&again).is_some());
        // As an answer about items it is read, or refused.
        let _ = (item_of(answer), written_of(answer), counted_of(answer));
        let _values = values(answer).count();
        answer.list().iter().for_each(|element| assert!(!element.bytes().is_empty()));
    }
}

#[test]
fn what_is_no_message_is_refused() {
    let rounds = std::env::var("HEADWATER_FUZZ_ROUNDS").ok();
    let rounds: u64 = rounds.map_or(20_000, |text| text.parse().expect("a number"));
    let first = std::env::var("HEADWATER_FUZZ_FIRST").ok();
    let first = first.map_or(7, |text| text.parse().expect("a number"));
    let (corpus, mut draws) = (corpus(), Draws(first));
    corpus.iter().for_each(|bytes| read_all(bytes));
    for _ in 0..rounds {
        let mut bytes = corpus[draws.below(corpus.len())].clone();
        for _ in 0..1 + draws.below(4) {
            let at = draws.below(bytes.len().max(1));
            match draws.below(4) {
                0 => bytes.truncate(at),
                1 if !bytes.is_empty() => bytes[at] = draws.below(256) as u8,
                2 if !bytes.is_empty() => bytes[at] ^= 1 << draws.below(8),
                _ => {
                    let other = &corpus[draws.below(corpus.len())];
                    bytes.extend_from_slice(&other[draws.below(other.len())..]);
                }
            }
        }
        read_all(&bytes);
    }
}
