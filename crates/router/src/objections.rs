//! What shards have against their parts of a request, and which of it the client is told.
//!
//! A shard that refuses its part for one of its keys tells which one. The client is told what is against the first one that it has named,
//! as one shard would tell it, which looks at them in this order.

use crate::answer::Answer;
use headwater_base::Shard;

/// What a shard has answered to whether it would do its part: the error that it has against it, if it has one, and its rank; the lowest is told. `order`: the homes of the
/// request's keys, in its order.
pub(crate) fn objection<'a>(
    answer: Answer<'a>,
    shard: Shard,
    order: &[Shard],
) -> Option<(usize, Answer<'a>)> {
    if answer.is_error() {
        // An error without a place is about no key: one shard would say it before it looks at any.
        return Some((0, answer));
    }
    let [place, error] = answer.list()[..] else { return None };
    let own = usize::try_from(place.integer()?).ok().filter(|_| error.is_error())?;
    let mut of_shard = order.iter().enumerate().filter(|(_, at)| **at == shard);
    let place = of_shard.nth(own).map_or(own, |(place, _)| place);
    Some((1 + place, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::answer_of;
    use headwater_command::Reply;

    #[test]
    fn what_is_against_the_first_key_is_told() {
        let order = [1, 0, 1, 0].map(Shard);
        let no = |out: &mut crate::AnswerWriter<'_>| out.error("ERR", format_args!("no"));
        let of_key = |place: i64| {
            answer_of(|out| {
                out.array(2);
                out.integer(place);
                no(out);
            })
        };
        let rank = |bytes: &[u8], shard| {
            objection(Answer::whole(bytes).unwrap(), Shard(shard), &order).map(|it| it.0)
        };
        assert_eq!(rank(&answer_of(no), 1), Some(0));
        assert_eq!([rank(&of_key(0), 0), rank(&of_key(1), 0)], [Some(2), Some(4)]);
        assert_eq!([rank(&of_key(0), 1), rank(&of_key(1), 1)], [Some(1), Some(3)]);
        assert_eq!(rank(&of_key(7), 1), Some(8));
        for nothing in [answer_of(|out| out.ok()), answer_of(|out| out.integer(7))] {
            assert_eq!(rank(&nothing, 1), None);
        }
    }
}
