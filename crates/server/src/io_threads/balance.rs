//! Which thread is to have which sockets: whichever is short of time gives some of them to one that is not.
//!
//! What a packet costs is the kernel's part alone, and what a request costs is all the loop's. So how many sockets the loop should have itself
//! depends on what clients ask: with one request in a packet about as many as any other thread, with long pipelines or dear requests none.
//! Nobody can know that but by looking at the threads.

/// How often the threads are looked at, in milliseconds.
pub(super) const LOOK_EVERY: u64 = 100;
/// A thread is short of time that is at work for so much of it, in thousandths.
const BUSY: u64 = 900;
/// Sockets go to a thread that is at work for so much less of the time.
const DISTANCE: u64 = 150;
/// A part of a thread's clients that goes at once.
const PART: usize = 8;

/// How much of the time a thread was at work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ThreadLoad {
    /// Thousandths of the time.
    pub(super) share: u64,
    /// Clients whose sockets it has.
    pub(super) clients: usize,
}

/// Sockets that are to go to another thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shift {
    /// Clients whose sockets the loop has are handed to an I/O thread.
    Away {
        /// The number of the I/O thread.
        thread: usize,
        /// How many clients.
        clients: usize,
    },
    /// Clients whose sockets an I/O thread has are handed to the loop.
    Back {
        /// The number of the I/O thread.
        thread: usize,
        /// How many clients.
        clients: usize,
    },
}

/// What is to go where, if anything.
pub(super) fn shift(own: ThreadLoad, threads: &[ThreadLoad]) -> Option<Shift> {
    let part = |clients: usize| clients.div_ceil(PART);
    // One that is alone would come and go.
    let (idlest, least) = threads.iter().enumerate().min_by_key(|(_, load)| load.share)?;
    if own.share >= BUSY && own.clients > 1 && least.share + DISTANCE <= own.share {
        return Some(Shift::Away { thread: idlest, clients: part(own.clients) });
    }
    let (busiest, most) = threads.iter().enumerate().max_by_key(|(_, load)| load.share)?;
    if most.share >= BUSY && most.clients > 1 && own.share + DISTANCE <= most.share {
        return Some(Shift::Back { thread: busiest, clients: part(most.clients) });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(share: u64, clients: usize) -> ThreadLoad {
        ThreadLoad { share, clients }
    }

    #[test]
    fn who_is_short_of_time_gives_to_who_is_not() {
        let away = Some(Shift::Away { thread: 1, clients: 2 });
        assert_eq!(shift(load(980, 9), &[load(700, 20), load(400, 20)]), away);
        assert_eq!(shift(load(980, 1), &[load(400, 20)]), None, "it has one, which stays");
        assert_eq!(shift(load(980, 9), &[load(900, 20)]), None, "all are short of time");
        assert_eq!(shift(load(500, 9), &[load(100, 20)]), None, "nobody is");
        let back = Some(Shift::Back { thread: 0, clients: 3 });
        assert_eq!(shift(load(600, 9), &[load(990, 24), load(400, 20)]), back);
        assert_eq!(shift(load(600, 0), &[load(990, 1)]), None);
        assert_eq!(shift(load(980, 9), &[]), None);
    }

    #[test]
    fn it_comes_to_rest() {
        // Reading and writing for a client costs `socket`, on the thread that has its socket; executing for it costs `request`, always on the
        // loop.
        for (socket, request) in [(100, 1), (100, 20), (10, 40), (1, 50)] {
            let (mut own, mut other) = (20, 40);
            let mut moves = 0;
            loop {
                let work = |clients: usize| clients as u64 * socket;
                let own_work = work(own) + 60 * request;
                // As much is asked as the busiest can do.
                let most = own_work.max(work(other));
                let share = |work: u64| work * 1000 / most;
                match shift(load(share(own_work), own), &[load(share(work(other)), other)]) {
                    Some(Shift::Away { clients, .. }) => {
                        (own, other) = (own - clients, other + clients)
                    }
                    Some(Shift::Back { clients, .. }) => {
                        (own, other) = (own + clients, other - clients)
                    }
                    None => break,
                }
                moves += 1;
                assert!(moves < 100, "{socket} {request}: {own} {other}");
            }
        }
    }
}
