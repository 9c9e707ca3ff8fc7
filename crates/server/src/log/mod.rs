//! The log: what the server tells those who run it, as lines of text or JSON.
//!
//! Every line is an *event* of one kind: `event!` names its level, its target (the part of the server that it is about) and its
//! name, and gives it fields. What clients store is never among them, and neither are passwords: an event
//! says which command, which address and how many, not what. docs/logging.md lists the events.
//!
//! - `repeats`: no more than so many lines of one kind within a minute.
//! - `writer`: the thread that writes, so that a full pipe or a slow disk holds up nobody.
//!
//! The log is the process's, as its standard error is: [`start`] is called once, by the program. Where it is not, as in
//! tests of the library, nothing is logged.

mod repeats;
mod writer;

use headwater_config::settings::{SETTINGS, Setting};
use headwater_config::{Config, ConfigError, LogFormat, LogLevels, Logging};
use repeats::Repeats;
use std::sync::OnceLock;
use std::time::Duration;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry, reload};
use writer::{LineTag, Lines, Writer};

/// Logs an event: `event!(warn, "clients", "auth_failed", peer = %peer, "a client gave a wrong password")`.
macro_rules! event {
    ($level:ident, $target:literal, $name:literal, $($rest:tt)+) => {
        tracing::$level!(name: $name, target: $target, event = $name, $($rest)+)
    };
}
pub(crate) use event;

/// How long what was logged may take to be written at the end.
const FAREWELL: Duration = Duration::from_secs(1);

static LOG: OnceLock<Log> = OnceLock::new();

/// The process's log.
struct Log {
    levels: reload::Handle<Targets, Registry>,
    repeats: Repeats,
    writer: Writer,
    /// To what it goes.
    file: String,
}

/// Begins to log, as the settings say.
///
/// # Errors
/// A setting cannot be its value, or the file cannot be opened.
pub fn start(settings: &Logging) -> Result<(), ConfigError> {
    let refuse = |what: &str, value: &str, why: &dyn core::fmt::Display| {
        ConfigError(format!("{what} is '{value}' ({why})"))
    };
    let levels: LogLevels =
        settings.log_level.parse().map_err(|why| refuse("log-level", &settings.log_level, &why))?;
    let format: LogFormat = settings
        .log_format
        .parse()
        .map_err(|why| refuse("log-format", &settings.log_format, &why))?;
    let (writer, lines) =
        Writer::start(&settings.log_file, LineTag::new(&settings.process, format))
            .map_err(|error| refuse("log-file", &settings.log_file, &error))?;
    let (levels, handle) = reload::Layer::new(levels.targets());
    let repeats = Repeats::new(settings.log_repeats_max);
    let subscriber =
        Registry::default().with(levels).with(repeats.clone()).with(shape(format, lines));
    let log = Log { levels: handle, repeats, writer, file: settings.log_file.clone() };
    if LOG.set(log).is_ok() {
        // Nobody else sets one: this is the program's.
        let _ = tracing::subscriber::set_global_default(subscriber);
        tell_panics();
    }
    Ok(())
}

/// How events become lines.
fn shape<S>(format: LogFormat, lines: Lines) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    let shape = tracing_subscriber::fmt::layer().with_writer(lines).with_ansi(false);
    match format {
        LogFormat::Text => shape.boxed(),
        LogFormat::Json => {
            shape.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
    }
}

/// Has a panic be told: where it was, not what it said, which may be what somebody stores.
fn tell_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current();
        event!(
            error,
            "server",
            "panicked",
            thread = thread.name().unwrap_or("?"),
            place,
            "a thread panicked"
        );
        flush();
        before(panic);
    }));
}

/// Puts changed settings into force.
pub(crate) fn apply(settings: &Logging) {
    let Some(log) = LOG.get() else { return };
    // It was checked when it was set.
    if let Ok(levels) = settings.log_level.parse::<LogLevels>() {
        // It fails only where the subscriber is gone, which is for ever.
        let _ = log.levels.modify(|targets| *targets = levels.targets());
    }
    log.repeats.set_most(settings.log_repeats_max);
}

/// Has the file opened anew: it was renamed, for a new one to be begun.
pub fn reopen() {
    let Some(log) = LOG.get() else { return };
    log.writer.reopen();
    let file = if log.file.is_empty() { "standard error" } else { &log.file };
    event!(info, "server", "log_reopened", file, "SIGHUP: the log goes on");
}

/// Tells what was left out, if a minute is over. To be called now and then.
pub(crate) fn tell_left_out() {
    if let Some(log) = LOG.get() {
        log.repeats.tell(false, log.writer.take_lost());
    }
}

/// The last lines that were logged, oldest first.
pub(crate) fn recent(most: usize) -> Vec<String> {
    LOG.get().map(|log| log.writer.recent(most)).unwrap_or_default()
}

/// Has everything written that was logged, and tells what was left out.
pub fn end() {
    if let Some(log) = LOG.get() {
        log.repeats.tell(true, log.writer.take_lost());
    }
    flush();
}

fn flush() {
    if let Some(log) = LOG.get() {
        log.writer.flush(FAREWELL);
    }
}

/// Tells that the server cannot be started, where whoever started it does not read the log anyway.
pub fn cannot_start(error: &dyn core::fmt::Display) {
    if LOG.get().is_some_and(|log| !log.file.is_empty()) {
        event!(error, "server", "cannot_start", error = %error, "the server cannot be started");
        end();
    }
}

/// Tells of a file with secrets that others may read.
pub fn warn_of_file(text: &str) {
    event!(warn, "server", "file_readable", text, "a file with secrets can be read by others");
}

/// Tells that the process of a shard has ended by an error, and when it is started again.
pub fn shard_process_ended(shard: usize, how: &dyn core::fmt::Display, pause: Duration) {
    let seconds = pause.as_secs();
    event!(
        error,
        "cluster",
        "shard_process_ended",
        shard,
        how = %how,
        seconds,
        "the process of a shard has ended, and is started again in so many seconds"
    );
}

/// A setting's value, unless that is a secret.
fn shown(setting: &Setting, config: &Config) -> String {
    let value = (setting.get)(config);
    if setting.name == "requirepass" && !value.is_empty() {
        return String::from("(hidden)");
    }
    value.escape_debug().to_string()
}

/// The settings in which two configurations differ, as the second has them.
pub(crate) fn differences(from: &Config, to: &Config) -> String {
    let differ = SETTINGS.iter().filter(|setting| (setting.get)(from) != (setting.get)(to));
    let shown: Vec<String> =
        differ.map(|setting| format!("{}={}", setting.name, shown(setting, to))).collect();
    shown.join(" ")
}

#[cfg(test)]
mod tests {
    use super::differences;
    use headwater_config::Config;

    #[test]
    fn passwords_are_not_told() {
        let mut config = Config::default();
        config.listen.requirepass = String::from("hunter2");
        config.clients.clients_max = 7;
        config.data.data_dir = String::from("/a\nb");
        let told = differences(&Config::default(), &config);
        assert_eq!(told, "requirepass=(hidden) clients-max=7 data-dir=/a\\nb");
    }
}
