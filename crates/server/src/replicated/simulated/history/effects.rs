//! Posts, each a key of its own, and what flows make of them: an effect that a client has taken away once never comes again, so each is counted.

use super::{Asked, History, Operation, Told};
use std::collections::{BTreeMap, BTreeSet};

/// What a flow makes of a post.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in super::super) enum Effect {
    /// Where the post lives.
    Near,
    /// All of them at one shard.
    Far,
    /// What a second flow makes of the one before, back at the post's shard.
    Chained,
}

impl Effect {
    pub(in super::super) const ALL: [Self; 3] = [Self::Near, Self::Far, Self::Chained];

    /// What their keys begin with.
    pub(in super::super) const fn prefix(self) -> &'static str {
        match self {
            Self::Near => "u|",
            Self::Far => "v|all|",
            Self::Chained => "w|",
        }
    }
}

/// What there is in the end.
#[derive(Default, Debug)]
pub(in super::super) struct Shown {
    pub(in super::super) posts: BTreeSet<usize>,
    pub(in super::super) effects: BTreeMap<Effect, BTreeSet<usize>>,
}

impl History {
    /// The posts that clients have asked for so far.
    pub(in super::super) fn posts(&self) -> Vec<usize> {
        let is_post =
            |(which, asked): (usize, &Asked)| (asked.operation == Operation::Post).then_some(which);
        self.all().filter_map(is_post).collect()
    }

    /// A range over all shards shows what was there before it was asked for, and nothing that nobody has put there.
    pub(super) fn check_posts(&self) -> Result<(), String> {
        let posts = self.posts();
        for (which, asked) in self.all() {
            let Some((end, Told::Posts(shown))) = &asked.answer else { continue };
            for post in shown {
                let by = &self.asked[*post];
                if by.operation != Operation::Post || by.is_refused() || by.began > *end {
                    return Err(format!("operation {which} saw post {post}: {by:?}"));
                }
            }
            let was_there =
                |post: &&usize| self.asked[**post].end().is_some_and(|end| end < asked.began);
            if let Some(lost) = posts.iter().filter(was_there).find(|it| !shown.contains(it)) {
                return Err(format!(
                    "operation {which} did not see post {lost}, which was acknowledged: that is lost"
                ));
            }
        }
        Ok(())
    }

    /// Whether each post has its effects, each once; `false`: some are not there yet.
    pub(in super::super) fn check_effects(&self, shown: &Shown) -> Result<bool, String> {
        let mut are_there = true;
        for post in self.posts() {
            let (asked, is_there) = (&self.asked[post], shown.posts.contains(&post));
            if is_there == asked.is_refused() && (is_there || asked.end().is_some()) {
                return Err(format!("post {post} is there: {is_there}, and {asked:?}"));
            }
            for effect in Effect::ALL {
                let is_left = shown.effects.get(&effect).is_some_and(|them| them.contains(&post));
                are_there &= self.has_effect_once(effect, post, (is_there, is_left))?;
            }
        }
        Ok(are_there)
    }

    /// The same, of one effect of a post that is there or not; it is left, or not.
    fn has_effect_once(
        &self,
        effect: Effect,
        post: usize,
        (is_there, is_left): (bool, bool),
    ) -> Result<bool, String> {
        let (mut taken, mut may_be_taken) = (Vec::new(), false);
        for (which, asked) in self.all() {
            if asked.operation == Operation::Take(effect, post) {
                match &asked.answer {
                    Some((_, Told::Value(Some(value)))) if *value == post => taken.push(which),
                    Some((_, Told::Value(Some(value)))) => {
                        return Err(format!("{effect:?} of post {post} has the value of {value}"));
                    }
                    Some(_) => {}
                    None => may_be_taken = true,
                }
            }
        }
        let count = taken.len() + usize::from(is_left);
        if count > 1 || (count > 0 && !is_there) {
            return Err(format!(
                "{effect:?} of post {post} came again, or of nothing: it was taken by {taken:?}, and is left: {is_left}"
            ));
        }
        Ok(count == 1 || may_be_taken || !is_there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_that_are_lost_or_come_again_are_noticed() {
        let taken = |all: &[Option<Told>]| {
            let mut history = History::default();
            let post = history.begin(Operation::Post, 0, 1);
            history.asked[post].answer = Some((2, Told::Done));
            for told in all {
                let take = history.begin(Operation::Take(Effect::Near, post), 0, 3);
                history.asked[take].answer = told.clone().map(|told| (4, told));
            }
            history
        };
        let shown = |near: &[usize]| Shown {
            posts: BTreeSet::from([0]),
            effects: Effect::ALL
                .map(|it| (it, if it == Effect::Near { near } else { &[0] }))
                .map(|(it, posts)| (it, posts.iter().copied().collect()))
                .into(),
        };
        let (it, nothing) = (Some(Told::Value(Some(0))), Some(Told::Value(None)));
        let is_lost = Ok(false);
        assert_eq!(taken(&[]).check_effects(&shown(&[0])), Ok(true));
        assert_eq!(taken(&[it.clone(), nothing.clone()]).check_effects(&shown(&[])), Ok(true));
        assert_eq!(taken(&[nothing]).check_effects(&shown(&[])), is_lost);
        assert_eq!(taken(&[None]).check_effects(&shown(&[])), Ok(true));
        for (all, near) in [(vec![it.clone(), it.clone()], &[][..]), (vec![it.clone()], &[0])] {
            let found = taken(&all).check_effects(&shown(near)).unwrap_err();
            assert!(found.contains("came again"), "{found}");
        }
        let gone = Shown { posts: BTreeSet::new(), ..shown(&[]) };
        assert!(taken(&[]).check_effects(&gone).is_err());
        let mut history = taken(&[]);
        let read = history.begin(Operation::ReadPosts, 0, 5);
        history.asked[read].answer = Some((6, Told::Posts(Vec::new())));
        assert!(history.check_posts().unwrap_err().contains("is lost"));
    }
}
