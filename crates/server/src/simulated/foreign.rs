//! A shard in a process of its own that is asked for keys of another one, by the map that both have: no shard writes such a thing, and whoever does is
//! answered that nothing was executed.

use super::world::World;
use headwater_base::{Placement, Shard};
use headwater_command::items::ItemCommand;
use headwater_command::{GetExpiry, OwnedArgs, table};
use headwater_router::{
    Answer, Ask, AskHeader, Budget, Frames, LockSet, PutPurpose, PutValue, TransactionId, write_ask,
};

fn request(words: &[&[u8]]) -> OwnedArgs {
    words.iter().copied().collect()
}

#[test]
fn keys_of_others_are_neither_read_nor_written() {
    let world = &mut World::apart(2, 1, &|_| {});
    let placement = Placement::by_slots(2);
    let key_of = |home: u16| {
        let keys = (0..).map(|number: u32| format!("key{number}").into_bytes());
        keys.into_iter().find(|key| placement.home(key) == Shard(home)).unwrap()
    };
    let (foreign, own) = (&*key_of(0), &*key_of(1));
    let (get, mget) = (request(&[b"GET", foreign]), request(&[b"MGET", own, foreign]));
    let mset = request(&[b"MSET", own, b"1", foreign, b"2"]);
    let transaction = TransactionId { coordinator: Shard(0), number: 7 };
    let put = PutValue {
        key: foreign,
        value: b"2",
        expires: None,
        flags: 0,
        if_absent: false,
        purpose: PutPurpose::Set,
    };
    let keys = vec![own, foreign];
    let execute = |request: &OwnedArgs| Ask::Execute {
        transaction,
        shards: vec![Shard(0), Shard(1)],
        last: true,
        requests: vec![request.clone()],
    };
    let lock = |number, prepare| Ask::Lock {
        transaction: TransactionId { number, ..transaction },
        set: LockSet::All,
        watches: false,
        wait: u64::MAX,
        budget: Budget { bytes: u64::MAX, ..Budget::default() },
        prepare,
    };
    let asks = [
        Ask::Command(table::lookup(b"get").unwrap(), get.args()),
        Ask::Command(table::lookup(b"mget").unwrap(), mget.args()),
        Ask::Exec(vec![mset.clone()]),
        execute(&mset),
        lock(8, vec![mset.clone()]),
        Ask::Carry { key: foreign, leaves: false },
        Ask::Put(put),
        Ask::Item(ItemCommand::Get { keys, versions: false, expiry: GetExpiry::Keep }),
    ];
    let header = |id| AskHeader { id, placement: placement.digest(), ..AskHeader::default() };
    let told = |world: &mut World, asks: &[&Ask<'_>]| -> Vec<String> {
        let mut bytes = Vec::new();
        for (id, ask) in (1..).zip(asks) {
            write_ask(&header(id), ask, &mut bytes);
        }
        let answers = world.exchange((0, 1), bytes, asks.len());
        let mut frames = Frames::of(&answers);
        let each = core::iter::from_fn(|| frames.next_answer());
        each.map(|it| format!("{:?}", Answer::whole(it.answer).unwrap().token())).collect()
    };
    for (count, ask) in (1..).zip(&asks) {
        let told = told(world, &[ask]);
        assert!(told.len() == 1 && told[0].contains("TRYAGAIN"), "{ask:?}: {told:?}");
        assert_eq!(world.messages_refused(1), count, "{ask:?}");
    }
    // The locks of one whose part was refused are nobody's, and of its own keys all is executed: nothing was written.
    let exists = request(&[b"EXISTS", own]);
    let part = request(&[b"SET", own, b"3"]);
    let told = told(
        world,
        &[
            &lock(7, Vec::new()),
            &execute(&mset),
            &Ask::Command(table::lookup(b"exists").unwrap(), exists.args()),
            &lock(9, Vec::new()),
            &Ask::Execute {
                transaction: TransactionId { number: 9, ..transaction },
                shards: vec![Shard(1)],
                last: true,
                requests: vec![part],
            },
            &Ask::Command(table::lookup(b"exists").unwrap(), exists.args()),
        ],
    );
    let wanted = ["Ok", "TRYAGAIN", "Integer(0)", "Ok", "Aggregate(Array, 1)", "Integer(1)"];
    for (told, wanted) in told.iter().zip(wanted) {
        assert!(told.contains(wanted), "{told} is no {wanted}");
    }
    assert_eq!(told.len(), wanted.len(), "{told:?}");
}
