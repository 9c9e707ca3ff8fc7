//! What a transaction reads, where joins read joins whose outputs live at other shards: what it has written before is in it, by whichever way it comes.

use super::tests::{check_replies, seeds, shards};
use super::world::Draws;
use headwater_model::server::Script;

/// From a key of a name over outputs of other names back to it.
const JOINS: [&str; 6] = [
    "f|<p>\\s=\\scount\\ss|<u>|<p>",
    "top|<u>|<p>\\s=\\scheck\\ss|<u>|<p>\\scopy\\sf|<p>",
    "n|<p>\\s=\\scount\\sp|<p>|<c>",
    "g|all|<p>\\s=\\scopy\\sn|<p>",
    "back|<u>|<p>\\s=\\scheck\\ss|<u>|<p>\\scopy\\sg|all|<p>",
    "deep|<u>\\s=\\ssum\\sback|<u>|<p>\\scheck\\sm|<u>",
];
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Transactions of one name each, so that one shard executes each of them, and what happens between them.
fn script(seed: u64) -> Script {
    let mut draws = Draws::new(seed ^ 0x6f77_6e73);
    let mut text = String::from("clients 3 2 3\n0\n");
    for (at, join) in JOINS.iter().enumerate() {
        text += &format!("  JOIN.ADD j{at} {join}\n");
    }
    for _ in 0..4 + draws.below(20) {
        let client = draws.below(3);
        text += &format!("{client}\n");
        let in_multi = draws.below(4) > 0;
        text += if in_multi { "  MULTI\n" } else { "" };
        let own = NAMES[draws.below(NAMES.len())];
        for _ in 0..1 + draws.below(6) {
            let other = NAMES[draws.below(NAMES.len())];
            let who = if in_multi { own } else { NAMES[draws.below(NAMES.len())] };
            let number = draws.below(9);
            text += "  ";
            text += &match draws.below(10) {
                0 | 1 => format!("SET s|{who}|{other} {number}\n"),
                2 => format!("DEL s|{who}|{other}\n"),
                3 => format!("SET p|{who}|{number} {number}\n"),
                4 => format!("SET m|{who} 1\n"),
                5 => format!("GET n|{who}\n"),
                6 => format!("PREFIX top|{who}|\n"),
                7 => format!("PREFIX back|{who}|\n"),
                8 => format!("GET deep|{who}\n"),
                _ => format!("GET top|{who}|{other}\n"),
            };
        }
        text += if in_multi { "  EXEC\n" } else { "" };
    }
    Script::parse(&text).unwrap()
}

#[test]
fn what_a_transaction_has_written_is_in_what_it_reads() {
    for count in shards("2,3") {
        for seed in seeds(60) {
            check_replies(count, seed, &script(seed));
        }
    }
}
