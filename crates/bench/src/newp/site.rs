//! The site and its visitors, drawn from a seed, and the model of what pages show.
//!
//! Votes are drawn so that nobody votes twice for an article: every vote counts.

use super::{Comment, Page};
use crate::drive::Schedule;
use anyhow::{Result, bail};
use headwater_workload::{Rng, TweetLengths};
use std::collections::HashSet;

/// Different texts; a number chooses one.
const TEXTS: usize = 4096;
/// Bytes of an article.
const ARTICLE_BYTES: usize = 512;
/// Percent of sessions that comment.
const COMMENT_PERCENT: f64 = 1.0;

/// What a site is drawn from.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// Articles.
    pub articles: u32,
    /// Users: authors, voters and commenters.
    pub users: u32,
    /// Comments before the run.
    pub comments: u32,
    /// Votes before the run.
    pub votes: u32,
    /// Sessions in the run.
    pub sessions: u32,
    /// Percent of sessions that vote.
    pub vote_percent: f64,
    /// The seed of all chance.
    pub seed: u64,
    /// Connections.
    pub connections: usize,
    /// Sessions in flight per connection.
    pub pipeline: usize,
}

/// A visit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    /// Who comes.
    pub user: u32,
    /// What he reads.
    pub article: u32,
    /// Whether he votes for it.
    pub votes: bool,
    /// The number of his comment, if he writes one.
    pub comments: Option<u32>,
}

/// The site before the run, and the visits.
#[derive(Debug)]
pub struct Plan {
    /// What it was drawn from.
    pub params: Params,
    /// The site.
    pub site: Site,
    /// The visits.
    pub schedule: Schedule<Session>,
}

/// What the site holds.
#[derive(Clone, Debug)]
pub struct Site {
    /// The author of each article.
    pub authors: Vec<u32>,
    /// The comments on each article: number and commenter.
    pub comments: Vec<Vec<(u32, u32)>>,
    /// Who voted for each article before the run.
    pub voters: Vec<Vec<u32>>,
    /// The votes for each article.
    pub ranks: Vec<u32>,
    /// The votes for each user's articles.
    pub karma: Vec<u32>,
    texts: Vec<Vec<u8>>,
    article: Vec<u8>,
}

impl Params {
    /// Articles, comments and votes before the run.
    #[must_use]
    pub fn items(&self) -> u64 {
        u64::from(self.articles) + u64::from(self.comments) + u64::from(self.votes)
    }
}

impl Plan {
    /// Draws a site and its visits.
    #[must_use]
    pub fn draw(params: Params) -> Self {
        let mut rng = Rng::new(params.seed);
        let mut site = Site::draw(&params, &mut rng);
        let mut voted = HashSet::new();
        let mut vote = |rng: &mut Rng, article: u32, wanted: u32| {
            // A user who voted already sends another in his place.
            let others = (0..20).map(|_| rng.below(u64::from(params.users)) as u32);
            core::iter::once(wanted).chain(others).find(|&user| voted.insert((article, user)))
        };
        for _ in 0..params.votes {
            let article = rng.below(u64::from(params.articles)) as u32;
            let wanted = rng.below(u64::from(params.users)) as u32;
            if let Some(user) = vote(&mut rng, article, wanted) {
                site.voters[article as usize].push(user);
                site.vote(article);
            }
        }
        let mut next_comment = params.comments;
        let sessions: Vec<Session> = (0..params.sessions)
            .map(|_| {
                let article = rng.below(u64::from(params.articles)) as u32;
                let mut user = rng.below(u64::from(params.users)) as u32;
                let mut votes = rng.unit() * 100.0 < params.vote_percent;
                if votes {
                    let found = vote(&mut rng, article, user);
                    votes = found.is_some();
                    user = found.unwrap_or(user);
                }
                let comments = (rng.unit() * 100.0 < COMMENT_PERCENT).then_some(next_comment);
                next_comment += u32::from(comments.is_some());
                Session { user, article, votes, comments }
            })
            .collect();
        let schedule =
            Schedule::deal(sessions, params.connections, params.pipeline, |session| session.user);
        Self { params, site, schedule }
    }
}

impl Site {
    fn draw(params: &Params, rng: &mut Rng) -> Self {
        let lengths = TweetLengths::real();
        let texts: Vec<Vec<u8>> = (0..TEXTS).map(|_| lengths.text(rng).into_bytes()).collect();
        let mut article: Vec<u8> = texts.concat();
        article.truncate(64 * 1024);
        let mut user = || rng.below(u64::from(params.users)) as u32;
        let authors = (0..params.articles).map(|_| user()).collect();
        let mut comments = vec![Vec::new(); params.articles as usize];
        for id in 0..params.comments {
            let on = rng.below(u64::from(params.articles)) as usize;
            comments[on].push((id, rng.below(u64::from(params.users)) as u32));
        }
        Self {
            authors,
            comments,
            voters: vec![Vec::new(); params.articles as usize],
            ranks: vec![0; params.articles as usize],
            karma: vec![0; params.users as usize],
            texts,
            article,
        }
    }

    /// The text of an article.
    #[must_use]
    pub fn text(&self, article: u32) -> &[u8] {
        let room = self.article.len() - ARTICLE_BYTES;
        let at = (article.wrapping_mul(0x9e37_79b1) >> 8) as usize % room;
        &self.article[at..at + ARTICLE_BYTES]
    }

    /// The text of a comment.
    #[must_use]
    pub fn comment_text(&self, comment: u32) -> &[u8] {
        &self.texts[(comment.wrapping_mul(0x9e37_79b1) >> 16) as usize % TEXTS]
    }

    fn vote(&mut self, article: u32) {
        self.ranks[article as usize] += 1;
        self.karma[self.authors[article as usize] as usize] += 1;
    }

    /// Notes what a visitor did.
    pub fn visited(&mut self, session: &Session) {
        if session.votes {
            self.vote(session.article);
        }
        if let Some(id) = session.comments {
            self.comments[session.article as usize].push((id, session.user));
        }
    }

    /// The page of an article, recomputed.
    #[must_use]
    pub fn page(&self, article: u32) -> Page {
        let show = |&(id, commenter): &(u32, u32)| Comment {
            id,
            commenter,
            text: self.comment_text(id).to_vec(),
            karma: self.karma[commenter as usize],
        };
        let mut comments: Vec<Comment> = self.comments[article as usize].iter().map(show).collect();
        comments.sort();
        let rank = self.ranks[article as usize];
        Page { text: self.text(article).to_vec(), rank, comments }
    }

    /// Compares a page that a system answered with the recomputation.
    ///
    /// # Errors
    /// They differ; the message names the first difference.
    pub fn verify(&self, article: u32, mut answered: Page) -> Result<()> {
        let expected = self.page(article);
        answered.comments.sort();
        if expected == answered {
            return Ok(());
        }
        if expected.text != answered.text {
            bail!("the text of article {article} is wrong");
        }
        if expected.rank != answered.rank {
            let (is, should) = (answered.rank, expected.rank);
            bail!("the rank of article {article} is {is} instead of {should}");
        }
        let pairs = expected.comments.iter().zip(&answered.comments);
        if let Some((should, is)) = pairs.clone().find(|(should, is)| should != is) {
            bail!("a comment on article {article} is {is:?} instead of {should:?}");
        }
        let (is, should) = (answered.comments.len(), expected.comments.len());
        bail!("article {article} has {is} comments instead of {should}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan::draw(Params {
            articles: 100,
            users: 50,
            comments: 1_000,
            votes: 2_000,
            sessions: 20_000,
            vote_percent: 5.0,
            seed: 1,
            connections: 4,
            pipeline: 8,
        })
    }

    #[test]
    fn the_site_has_what_was_asked_for() {
        let Plan { site, schedule, .. } = plan();
        assert_eq!(site.comments.iter().map(Vec::len).sum::<usize>(), 1_000);
        assert_eq!(site.ranks.iter().sum::<u32>(), 2_000);
        assert_eq!(site.karma.iter().sum::<u32>(), 2_000);
        assert_eq!(schedule.operations(), 20_000);
        for voters in &site.voters {
            let distinct: HashSet<_> = voters.iter().collect();
            assert_eq!(distinct.len(), voters.len(), "nobody votes twice");
        }
    }

    #[test]
    fn visits_change_the_pages() {
        let Plan { mut site, .. } = plan();
        let before = site.page(7);
        let (user, article) = (3, 7);
        site.visited(&Session { user, article, votes: true, comments: Some(5_000) });
        let after = site.page(7);
        assert_eq!(after.rank, before.rank + 1);
        assert_eq!(after.comments.len(), before.comments.len() + 1);
        assert!(after.comments.iter().any(|comment| comment.id == 5_000));
    }

    #[test]
    fn a_planted_error_is_found() {
        let Plan { site, .. } = plan();
        let right = site.page(7);
        site.verify(7, right.clone()).unwrap();
        let planted = |change: fn(&mut Page)| {
            let mut page = right.clone();
            change(&mut page);
            site.verify(7, page).unwrap_err().to_string()
        };
        assert!(planted(|page| page.rank += 1).contains("rank"));
        assert!(planted(|page| page.comments[0].karma += 1).contains("a comment"));
        assert!(planted(|page| drop(page.comments.pop())).contains("comments instead of"));
        assert!(planted(|page| page.text[0] ^= 1).contains("text"));
    }
}
