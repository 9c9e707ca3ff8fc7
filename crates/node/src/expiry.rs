//! Execution of the commands about when keys expire.

use crate::node::Lookups;
use headwater_base::Millis;
use headwater_command::{ExpireCondition, Expiry, Reply, TimeUnit};
use headwater_engine::{Engine, Stop};

/// Gives `key` this value until `at`; a moment that has passed leaves the key absent.
pub(crate) fn set_until(
    engine: &mut Engine,
    key: &[u8],
    value: &[u8],
    at: Millis,
) -> Result<(), Stop> {
    Ok(engine.set(key, value, headwater_engine::Expiry::At(at))?)
}

pub(crate) fn run(
    engine: &mut Engine,
    command: &Expiry<'_>,
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let answer = match *command {
        Expiry::Expire { key, deadline, condition } => {
            i64::from(expire(engine, key, deadline.moment(engine.now()), condition)?)
        }
        Expiry::Remaining { key, unit } => {
            let now = engine.now();
            let found = engine.expiry(key)?;
            lookups.note(found.is_some());
            told(found, unit, |at| at.since(now))
        }
        Expiry::Moment { key, unit } => {
            let found = engine.expiry(key)?;
            lookups.note(found.is_some());
            told(found, unit, |at| at.0)
        }
        Expiry::Persist { key } => match engine.expiry(key)? {
            Some(Some(_)) => i64::from(engine.set_expiry(key, None)?),
            _ => 0,
        },
    };
    reply.integer(answer);
    Ok(())
}

fn expire(
    engine: &mut Engine,
    key: &[u8],
    at: Millis,
    condition: ExpireCondition,
) -> Result<bool, Stop> {
    let Some(kept) = engine.expiry(key)? else { return Ok(false) };
    let acts = match condition {
        ExpireCondition::Always => true,
        ExpireCondition::IfNone => kept.is_none(),
        ExpireCondition::IfSome => kept.is_some(),
        ExpireCondition::IfLater => kept.is_some_and(|kept| at > kept),
        ExpireCondition::IfEarlier => kept.is_none_or(|kept| at < kept),
        ExpireCondition::IfSomeAndEarlier => kept.is_some_and(|kept| at < kept),
    };
    if acts { engine.set_expiry(key, Some(at)) } else { Ok(false) }
}

/// The answer of TTL and its kin: seconds are rounded to the nearest.
fn told(expiry: Option<Option<Millis>>, unit: TimeUnit, millis: impl FnOnce(Millis) -> u64) -> i64 {
    match expiry {
        None => -2,
        Some(None) => -1,
        Some(Some(at)) => {
            let millis = millis(at);
            (match unit {
                TimeUnit::Millis => millis,
                TimeUnit::Seconds => millis.saturating_add(500) / 1000,
            }) as i64
        }
    }
}
