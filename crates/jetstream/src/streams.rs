//! The bucket and the streams of a cluster: how they must be, and how they are made.
//!
//! What is there with other settings than these is refused, with each that differs: a log that is kept in memory, or by one server, or that ends by itself
//! after a while, would lose what was acknowledged.

use crate::commands::LogNames;
use crate::connect::{causes, not_yet, refused};
use crate::settings::JetStreamSettings;
use crate::waiting::Failure;
use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind};
use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, Context, ErrorCode, kv};
use std::error::Error;
use std::time::Duration;

/// Servers have not made a stream: whether they never will, as far as that can be known.
fn not_made<T>(what: &str, why: impl Error + 'static) -> Result<T, Failure> {
    const FINAL: [ErrorCode; 5] = [
        ErrorCode::STREAM_NAME_EXIST,
        ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
        ErrorCode::MAXIMUM_STREAMS_LIMIT,
        ErrorCode::STORAGE_RESOURCES_EXCEEDED,
        ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT,
    ];
    let code = |error: &(dyn Error + 'static)| match error.downcast_ref::<CreateStreamError>() {
        Some(error) => match error.kind() {
            CreateStreamErrorKind::JetStream(error) => Some(error.error_code()),
            _ => None,
        },
        None => Some(error.downcast_ref::<jetstream::Error>()?.error_code()),
    };
    if causes(&why).any(|cause| code(cause).is_some_and(|code| FINAL.contains(&code))) {
        refused(what, why)
    } else {
        not_yet(what, why)
    }
}

/// What of a stream's settings differs from what they must be, each with both.
fn differences(found: &Config, wanted: &Config) -> Vec<String> {
    let limit = |most: i64| if most > 0 { most.to_string() } else { String::from("none") };
    let parts = |one: &Config| {
        [
            ("subjects", one.subjects.join(", ")),
            ("storage", format!("{:?}", one.storage)),
            ("replicas", one.num_replicas.to_string()),
            ("retention", format!("{:?}", one.retention)),
            ("greatest number of messages", limit(one.max_messages)),
            ("greatest number of bytes", limit(one.max_bytes)),
            ("greatest age of messages", format!("{:?}", one.max_age)),
            ("protection from deletions", one.deny_delete.to_string()),
            ("direct gets", one.allow_direct.to_string()),
            ("seal", one.sealed.to_string()),
            ("mirror", one.mirror.is_some().to_string()),
        ]
    };
    let pairs = parts(found).into_iter().zip(parts(wanted));
    let differing = pairs.filter(|(found, wanted)| found.1 != wanted.1);
    differing
        .map(|((name, found), (_, wanted))| format!("{name} {found} (must be {wanted})"))
        .collect()
}

/// Refuses a stream that is there with other settings.
fn compare(what: &str, found: &Config, wanted: &Config) -> Result<(), Failure> {
    let differing = differences(found, wanted);
    if differing.is_empty() {
        return Ok(());
    }
    refused(what, format!("it is there with other settings: {}", differing.join("; ")))
}

/// Makes the bucket of nodes and owners where there is none.
pub(crate) async fn make_bucket(
    context: &Context,
    settings: &JetStreamSettings,
) -> Result<(), Failure> {
    let what = format!("bucket {}", settings.bucket());
    let config = kv::Config {
        bucket: settings.bucket(),
        history: 1,
        storage: StorageType::File,
        num_replicas: settings.replicas,
        ..kv::Config::default()
    };
    // Making it goes through a quorum also where it is there already; who is asked for it may have lost the others.
    let made = context.create_key_value(config).await;
    let wanted = |found: &Config| Config {
        storage: StorageType::File,
        num_replicas: settings.replicas,
        max_messages: -1,
        max_bytes: -1,
        max_age: Duration::ZERO,
        ..found.clone()
    };
    match made.or_else(|why| not_made(&what, why)) {
        Ok(made) => {
            let found = &made.stream.cached_info().config;
            compare(&what, found, &wanted(found))
        }
        Err(Failure::NotYet(why)) => Err(Failure::NotYet(why)),
        Err(refused) => {
            // What it differs by is said, if that is known.
            if let Ok(stream) = context.get_stream(format!("KV_{}", settings.bucket())).await {
                let found = &stream.cached_info().config;
                compare(&what, found, &wanted(found))?;
            }
            Err(refused)
        }
    }
}

/// The stream of a log; nothing in it is removed but by purging.
fn log_config(settings: &JetStreamSettings, names: &LogNames) -> Config {
    Config {
        name: names.stream.clone(),
        subjects: vec![names.subject.clone()],
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        num_replicas: settings.replicas,
        max_messages: -1,
        max_bytes: -1,
        deny_delete: true,
        allow_direct: true,
        description: Some("a shard of Headwater".into()),
        ..Config::default()
    }
}

/// Makes the stream of a log where there is none; when it was made, in nanoseconds since 1970.
pub(crate) async fn make_log(
    context: &Context,
    settings: &JetStreamSettings,
    names: &LogNames,
) -> Result<u64, Failure> {
    make(context, log_config(settings, names)).await
}

/// Makes a stream where there is none; when it was made, in nanoseconds since 1970.
pub(crate) async fn make(context: &Context, wanted: Config) -> Result<u64, Failure> {
    let what = format!("stream {}", wanted.name);
    let made = context.get_or_create_stream(wanted.clone()).await;
    let made = made.or_else(|why| not_made(&what, why))?;
    let info = made.cached_info();
    compare(&what, &info.config, &wanted)?;
    Ok(info.created.unix_timestamp_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_that_differs_is_named_with_what_it_must_be() {
        let settings =
            JetStreamSettings { cluster: "c".into(), replicas: 3, ..JetStreamSettings::default() };
        let names = LogNames { stream: settings.stream(0), subject: settings.subject(0) };
        let wanted = log_config(&settings, &names);
        assert_eq!(differences(&wanted, &wanted), Vec::<String>::new());
        let found = Config { num_replicas: 1, max_bytes: 5, ..wanted.clone() };
        let told = differences(&found, &wanted);
        let expected = ["replicas 1 (must be 3)", "greatest number of bytes 5 (must be none)"];
        assert_eq!(told, expected);
    }
}
