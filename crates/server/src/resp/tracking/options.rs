//! CLIENT TRACKING, CACHING, TRACKINGINFO and GETREDIR: what a client asks for, and what it may not. The texts are those of
//! Redis 7.

use super::ShardService;
use crate::connection::ConnectionId;
use crate::resp::{Turn, encoder};
use headwater_base::Shard;
use headwater_command::{Reply, Tracking as Asked};
use headwater_router::Copies;
use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::ops::Bound;

/// How a client tracks.
#[derive(Debug, Default)]
pub(crate) struct Tracks {
    /// Who is told instead of it, and at which shard that one is.
    pub(crate) redirect: Option<(Shard, ConnectionId)>,
    /// That one is gone.
    pub(crate) broken: bool,
    /// It is told of all keys of its prefixes, whoever read them.
    pub(crate) broadcast: bool,
    /// Only reads behind CLIENT CACHING YES count.
    pub(crate) opt_in: bool,
    /// All but reads behind CLIENT CACHING NO count.
    pub(crate) opt_out: bool,
    /// It is not told of what it writes itself.
    pub(crate) no_loop: bool,
    /// CLIENT CACHING was said about the next command.
    pub(crate) caching: bool,
    /// Of all keys that begin with one of these.
    pub(crate) prefixes: BTreeSet<Vec<u8>>,
}

impl Tracks {
    /// Whether the keys that it reads now are to be remembered.
    pub(super) fn wants(&self) -> bool {
        match (self.opt_in, self.opt_out) {
            (true, _) => self.caching,
            (_, true) => !self.caching,
            _ => true,
        }
    }

    /// How it keeps copies of what it reads now.
    pub(crate) fn copies(&self) -> Copies {
        match (self.broadcast, self.wants()) {
            (true, _) => Copies::Broadcast,
            (false, true) => Copies::Keys,
            (false, false) => Copies::None,
        }
    }

    /// The words of its state, as CLIENT TRACKINGINFO gives them.
    fn words(&self) -> Vec<&'static str> {
        let all = [
            (true, "on"),
            (self.broadcast, "bcast"),
            (self.opt_in, "optin"),
            (self.opt_in && self.caching, "caching-yes"),
            (self.opt_out, "optout"),
            (self.opt_out && self.caching, "caching-no"),
            (self.no_loop, "noloop"),
            (self.broken, "broken_redirect"),
        ];
        all.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect()
    }
}

/// One of `prefixes` that begins with `prefix`, or with which it begins. None of them begins with another.
fn overlapping<'p, P: Borrow<[u8]> + Ord>(
    prefixes: &'p BTreeSet<P>,
    prefix: &[u8],
) -> Option<&'p [u8]> {
    // What begins with it comes right behind it, and what it begins with right before: between the two would be others that
    // begin with that.
    let at = (Bound::Unbounded, Bound::Excluded(prefix));
    let before = prefixes.range::<[u8], _>(at).next_back();
    let behind = prefixes.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded)).next();
    let before = before.map(Borrow::borrow).filter(|other| prefix.starts_with(other));
    before.or(behind.map(Borrow::borrow).filter(|other| other.starts_with(prefix)))
}

/// Why these prefixes cannot be told apart from those that the client has, or from one another.
fn collision(asked: &[&[u8]], there: &BTreeSet<Vec<u8>>) -> Option<String> {
    let text = |prefix: &[u8], which: &str, other: &[u8]| {
        format!(
            "Prefix '{}' overlaps with {which} prefix '{}'. Prefixes for a single client must not \
             overlap.",
            prefix.escape_ascii(),
            other.escape_ascii()
        )
    };
    let mut seen = BTreeSet::new();
    for prefix in asked {
        if let Some(other) = overlapping(there, prefix) {
            return Some(text(prefix, "an existing", other));
        }
        if let Some(other) = overlapping(&seen, prefix) {
            return Some(text(other, "another provided", prefix));
        }
        seen.insert(*prefix);
    }
    None
}

impl ShardService {
    /// CLIENT TRACKING.
    pub(in crate::resp) fn client_tracking(&mut self, asked: &Asked<'_>, work: &mut Turn<'_>) {
        match self.set_tracking(asked, work) {
            // What is read anywhere behind the answer is told, whoever reads it.
            Ok(()) if asked.on && asked.broadcast && self.others.shards.is_some() => {
                self.answer_when_all_heard(work);
            }
            Ok(()) => encoder(work).ok(),
            Err(text) => self.refuse_tracking(&text, work),
        }
    }

    fn refuse_tracking(&mut self, text: &str, work: &mut Turn<'_>) {
        encoder(work).error("ERR", format_args!("{text}"));
    }

    fn set_tracking(&mut self, asked: &Asked<'_>, work: &mut Turn<'_>) -> Result<(), String> {
        let id = work.connection.id;
        let refuse = |text: &str| Err(text.to_owned());
        let redirect = match asked.redirect {
            None => None,
            Some(number) => {
                let found = self.redirect_to(number, work);
                if found.is_none() {
                    return refuse("The client ID you want redirect to does not exist");
                }
                found
            }
        };
        let session = &mut work.connection.session;
        if !asked.on {
            self.forget_tracking(id, session);
            return Ok(());
        }
        let prefixes: Vec<&[u8]> = asked.prefixes().collect();
        if !asked.broadcast && !prefixes.is_empty() {
            return refuse("PREFIX option requires BCAST mode to be enabled");
        }
        let none = Tracks::default();
        let before = session.tracking.as_deref();
        if before.is_some_and(|before| before.broadcast != asked.broadcast) {
            return refuse(
                "You can't switch BCAST mode on/off before disabling tracking for this client, and \
                 then re-enabling it with a different mode.",
            );
        }
        if asked.broadcast && (asked.opt_in || asked.opt_out) {
            return refuse("OPTIN and OPTOUT are not compatible with BCAST");
        }
        if asked.opt_in && asked.opt_out {
            return refuse("You can't specify both OPTIN mode and OPTOUT mode");
        }
        let before = before.unwrap_or(&none);
        if (asked.opt_in && before.opt_out) || (asked.opt_out && before.opt_in) {
            return refuse(
                "You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and \
                 then re-enabling it with a different mode.",
            );
        }
        if let Some(text) = collision(&prefixes, &before.prefixes) {
            return Err(text);
        }
        let most = self.settings.lowered.clients.subscriptions_max;
        if before.prefixes.len() + prefixes.len() > most {
            return Err(format!("more than {most} prefixes (subscriptions-max)"));
        }
        let mut tracks = Tracks {
            redirect,
            broken: false,
            broadcast: asked.broadcast,
            opt_in: asked.opt_in,
            opt_out: asked.opt_out,
            no_loop: asked.no_loop,
            caching: before.caching,
            prefixes: before.prefixes.clone(),
        };
        if asked.broadcast {
            let all: &[&[u8]] = if prefixes.is_empty() { &[b""] } else { &prefixes };
            for prefix in all {
                tracks.prefixes.insert(prefix.to_vec());
                if self.pushes.tracking.prefixes.add(prefix, id) {
                    self.others.tell_prefix(prefix);
                }
            }
        }
        session.tracking = Some(Box::new(tracks));
        self.pushes.tracking.clients.insert(id);
        self.node.engine_mut().list_changes(true);
        Ok(())
    }

    /// CLIENT CACHING.
    pub(in crate::resp) fn client_caching(&mut self, yes: Option<bool>, work: &mut Turn<'_>) {
        let text = match work.connection.session.tracking.as_deref_mut() {
            None => {
                "CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or \
                 OPTOUT mode enabled"
            }
            Some(_) if yes.is_none() => "syntax error",
            Some(tracks) if yes == Some(true) && !tracks.opt_in => {
                "CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode."
            }
            Some(tracks) if yes == Some(false) && !tracks.opt_out => {
                "CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode."
            }
            Some(tracks) => {
                tracks.caching = true;
                encoder(work).ok();
                return;
            }
        };
        self.refuse_tracking(text, work);
    }

    /// CLIENT TRACKINGINFO.
    pub(in crate::resp) fn client_tracking_info(&self, work: &mut Turn<'_>) {
        let tracks = work.connection.session.tracking.as_deref();
        let words = tracks.map_or(vec!["off"], Tracks::words);
        let redirect = redirect_of(tracks);
        let prefixes: Vec<Vec<u8>> =
            tracks.map_or(Vec::new(), |tracks| tracks.prefixes.iter().cloned().collect());
        let mut out = encoder(work);
        out.map(3);
        out.bulk(b"flags");
        out.set(words.len());
        words.iter().for_each(|word| out.bulk(word.as_bytes()));
        out.bulk(b"redirect");
        out.integer(redirect);
        out.bulk(b"prefixes");
        out.array(prefixes.len());
        prefixes.iter().for_each(|prefix| out.bulk(prefix));
    }
}

/// The number of the client that is told instead: 0 where it is the client itself, -1 where it does not track.
pub(in crate::resp) fn redirect_of(tracks: Option<&Tracks>) -> i64 {
    tracks.map_or(-1, |tracks| tracks.redirect.map_or(0, |(_, id)| id.number as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that begin with one another, by comparing each with each.
    fn is_any_within_another(asked: &[&[u8]], there: &[&[u8]]) -> bool {
        let overlap = |one: &[u8], other: &[u8]| one.starts_with(other) || other.starts_with(one);
        let among = |at: usize| asked[at + 1..].iter().any(|other| overlap(asked[at], other));
        let before = |at: usize| there.iter().any(|other| overlap(asked[at], other));
        (0..asked.len()).any(|at| among(at) || before(at))
    }

    #[test]
    fn prefixes_that_begin_with_one_another_are_found() {
        let word = |number: usize| -> Vec<u8> {
            let bits = number.max(1).ilog2();
            (0..bits).map(|bit| b"ab"[number >> bit & 1]).collect()
        };
        let words: Vec<Vec<u8>> = (1..16).map(word).collect();
        let all = || words.iter().map(Vec::as_slice);
        let mut found = 0;
        for one in all() {
            for other in all() {
                for third in all() {
                    let (asked, there) = ([one, other], BTreeSet::from([third.to_vec()]));
                    let collides = collision(&asked, &there).is_some();
                    assert_eq!(
                        collides,
                        is_any_within_another(&asked, &[third]),
                        "{asked:?} {third:?}"
                    );
                    found += usize::from(!collides);
                }
            }
        }
        assert!(found > 100, "{found}");
        let text = collision(&[b"b", b"ab", b"a"], &BTreeSet::new());
        assert!(
            text.unwrap().starts_with("Prefix 'ab' overlaps with another provided prefix 'a'.")
        );
    }
}
