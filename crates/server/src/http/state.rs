//! What the server is and does: its figures, joins, tables, sources, flows and log, and why a key has its value.

use super::api::{Api, caller};
use super::body::whole;
use super::inner::{Caller, InnerReply, InnerSession};
use super::json::{self, JsonAnswer};
use super::problem::Problem;
use super::query::{Query, decode};
use super::trials::{self, OUTPUTS_MAX};
use crate::log::recent;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Longest body with a join.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Of so many joins, sources or flows everything is told; of others what the list says.
const DETAILED_MAX: usize = 200;
/// Most lines of the log that are told.
const LINES_MAX: u64 = 200;

type Answer = Result<JsonAnswer, Problem>;

/// Has one command executed, and tells its reply as JSON.
async fn ask(api: &Api, caller: Result<Caller, Problem>, words: &[&[u8]]) -> Answer {
    let mut session = api.connector.open(&caller?).await?;
    Ok(JsonAnswer(json::of_reply(&session.call(words, usize::MAX).await?)))
}

fn no_query(request: &Request) -> Result<(), Problem> {
    Query::parse(request.uri().query(), &[]).map(drop)
}

/// Why a key or a range is as it is.
pub(super) async fn explain(State(api): State<Api>, request: Request) -> Answer {
    let query = Query::parse(request.uri().query(), &["key", "first", "last", "prefix"])?;
    let names_range = ["first", "last", "prefix"].iter().any(|name| query.get(name).is_some());
    let allowed = "key; or first and last (an empty last: to the end); or prefix";
    if let Some(key) = query.get("key") {
        if names_range {
            return Err(Problem::bad("both a key and a range are named", allowed));
        }
        return ask(&api, caller(&request), &[b"EXPLAIN", key]).await;
    }
    if !names_range {
        return Err(Problem::bad("neither a key nor a range is named", allowed));
    }
    let (first, last) = query.range()?;
    ask(&api, caller(&request), &[b"EXPLAIN.RANGE", &first, &last]).await
}

/// Differences between what joins give and what a recomputation gives.
pub(super) async fn verify(State(api): State<Api>, request: Request) -> Answer {
    let query = Query::parse(request.uri().query(), &["first", "last", "prefix"])?;
    let (first, last) = query.range()?;
    let JsonAnswer(differences) = ask(&api, caller(&request), &[b"VERIFY", &first, &last]).await?;
    Ok(JsonAnswer(json!({ "differences": differences })))
}

/// Who asks.
pub(super) async fn user(State(api): State<Api>, request: Request) -> Answer {
    no_query(&request)?;
    let JsonAnswer(user) = ask(&api, caller(&request), &[b"ACL", b"WHOAMI"]).await?;
    Ok(JsonAnswer(json!({ "user": user })))
}

/// The figures of `INFO`, by section.
pub(super) async fn info(State(api): State<Api>, request: Request) -> Answer {
    let query = Query::parse(request.uri().query(), &["section"])?;
    let mut words: Vec<&[u8]> = vec![b"INFO"];
    words.extend(query.get("section"));
    let mut session = api.connector.open(&caller(&request)?).await?;
    let reply = session.call(&words, usize::MAX).await?;
    let text = String::from_utf8_lossy(reply.bytes().unwrap_or_default()).into_owned();
    Ok(JsonAnswer(sections(&text)))
}

/// The text of `INFO` as objects: of each section, and of each line that has several figures.
fn sections(text: &str) -> Value {
    let mut all = Map::new();
    let mut section = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("# ") {
            section = name.trim().to_ascii_lowercase();
            all.entry(section.as_str()).or_insert_with(|| json!({}));
        } else if let Some((name, value)) = line.split_once(':') {
            let facts: Option<Map<String, Value>> = value
                .split(',')
                .map(|fact| fact.split_once('='))
                .map(|fact| fact.map(|(name, value)| (name.to_owned(), Value::from(value))))
                .collect();
            let value = facts.map_or_else(|| Value::from(value), Value::Object);
            all.entry(section.as_str()).or_insert_with(|| json!({}))[name] = value;
        }
    }
    Value::Object(all)
}

/// A list of what has names, and what is told of each.
async fn list(api: &Api, request: Request, family: &str) -> Answer {
    no_query(&request)?;
    let caller = caller(&request)?;
    drop(request);
    let mut session = api.connector.open(&caller).await?;
    let all = session.call(&[format!("{family}.LIST").as_bytes()], usize::MAX).await?;
    let mut told = Vec::new();
    for (at, item) in all.items().iter().enumerate() {
        told.push(details(&mut session, family, item, at < DETAILED_MAX).await?);
    }
    Ok(JsonAnswer(Value::Array(told)))
}

async fn details(
    session: &mut InnerSession,
    family: &str,
    item: &InnerReply,
    all: bool,
) -> Result<Value, Problem> {
    let mut told = json::of_reply(item);
    let name = item.field("name").and_then(InnerReply::bytes);
    if let Some(name) = name.filter(|_| all) {
        // It may have gone since.
        let info = session.call(&[format!("{family}.INFO").as_bytes(), name], usize::MAX).await;
        if let (Value::Object(told), Ok(Value::Object(info))) =
            (&mut told, info.map(|info| json::of_reply(&info)))
        {
            told.extend(info);
        }
    }
    Ok(told)
}

/// All joins.
pub(super) async fn joins(State(api): State<Api>, request: Request) -> Answer {
    list(&api, request, "JOIN").await
}

/// All tables.
pub(super) async fn tables(State(api): State<Api>, request: Request) -> Answer {
    list(&api, request, "TABLE").await
}

/// All sources.
pub(super) async fn sources(State(api): State<Api>, request: Request) -> Answer {
    list(&api, request, "SOURCE").await
}

/// All flows.
pub(super) async fn flows(State(api): State<Api>, request: Request) -> Answer {
    list(&api, request, "FLOW").await
}

/// All shards: what each holds, and what it has sent to the others.
pub(super) async fn shards(State(api): State<Api>, request: Request) -> Answer {
    no_query(&request)?;
    ask(&api, caller(&request), &[b"SHARD.LIST"]).await
}

/// The last lines of the log, for those who may see what slow commands there were: for both one has to be trusted with how others use
/// the server.
pub(super) async fn log(State(api): State<Api>, request: Request) -> Answer {
    let query = Query::parse(request.uri().query(), &["lines"])?;
    let lines = query.number("lines", LINES_MAX)?.unwrap_or(50);
    ask(&api, caller(&request), &[b"SLOWLOG", b"LEN"]).await?;
    Ok(JsonAnswer(json!({ "lines": recent(lines as usize) })))
}

/// Reads a body of JSON.
async fn read_json<T: DeserializeOwned>(
    api: &Api,
    request: Request,
    allowed: &str,
) -> Result<T, Problem> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok());
    let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let text = format!("the body is '{}'", kind.escape_default());
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "BODY", text)
            .allowing("Content-Type: application/json"));
    }
    let body = whole(request.into_body(), BODY_BYTES_MAX, api.patience).await?;
    serde_json::from_slice(&body)
        .map_err(|error| Problem::bad(format!("the body cannot be read: {error}"), allowed))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewJoin {
    name: String,
    spec: String,
    #[serde(default)]
    replace: bool,
}

/// Installs a join.
pub(super) async fn add_join(State(api): State<Api>, request: Request) -> Answer {
    no_query(&request)?;
    let caller = caller(&request)?;
    let allowed = "an object with name, spec and, if you like, replace";
    let join: NewJoin = read_json(&api, request, allowed).await?;
    let mut session = api.connector.open(&caller).await?;
    let mut words = vec![b"JOIN.ADD", join.name.as_bytes(), join.spec.as_bytes()];
    words.extend(join.replace.then_some(&b"REPLACE"[..]));
    let reply = session.call(&words, usize::MAX).await;
    Ok(JsonAnswer(json::of_reply(&reply.map_err(|it| it.without_quote(&join.spec))?)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TriedJoin {
    spec: String,
    #[serde(default)]
    limit: Option<u32>,
}

/// Tells what a join would give, without installing it.
pub(super) async fn try_join(State(api): State<Api>, request: Request) -> Answer {
    no_query(&request)?;
    let caller = caller(&request)?;
    let allowed = "an object with spec and, if you like, limit";
    let join: TriedJoin = read_json(&api, request, allowed).await?;
    let limit = u64::from(join.limit.unwrap_or(10));
    if !(1..=OUTPUTS_MAX).contains(&limit) {
        let what = format!("limit is {limit}");
        return Err(Problem::bad(what, format!("a whole number from 1 to {OUTPUTS_MAX}")));
    }
    let Ok(_permit) = api.trials.try_acquire() else {
        let text = "other joins are being tried";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "TRIALS", text));
    };
    let mut session = api.connector.open(&caller).await?;
    trials::run(&mut session, join.spec, limit).await.map(JsonAnswer)
}

/// Drops a join.
pub(super) async fn drop_join(
    State(api): State<Api>,
    request: Request,
) -> Result<StatusCode, Problem> {
    no_query(&request)?;
    let name = request.uri().path().strip_prefix("/v1/joins/").unwrap_or_default();
    let name = decode(name, false)?;
    let mut session = api.connector.open(&caller(&request)?).await?;
    match session.call(&[b"JOIN.DROP", &name], 0).await {
        Err(problem) if problem.detail().contains("no join") => {
            Err(problem.with_status(StatusCode::NOT_FOUND))
        }
        Err(problem) => Err(problem),
        Ok(_) => Ok(StatusCode::NO_CONTENT),
    }
}

#[cfg(test)]
mod tests {
    use super::sections;
    use serde_json::json;

    #[test]
    fn sections_of_info_are_objects() {
        let text = "# Server\r\nredis_version:7\r\n\r\n# Sources\r\nsource_a:state=up,lag=3\r\nplain:a,b\r\n";
        let expected = json!({
            "server": { "redis_version": "7" },
            "sources": { "source_a": { "state": "up", "lag": "3" }, "plain": "a,b" },
        });
        assert_eq!(sections(text), expected);
    }
}
