//! CONFIG GET and CONFIG SET: each setting as text under its name, and under the name that
//! Redis's clients know it by, where there is one.
//!
//! Settings that only Redis has are shown where tools ask for them, with the value that
//! describes this server; they cannot be changed.

use crate::{Config, EventChannels, LogLevels, Percentiles};
use core::fmt::Display;
use core::str::FromStr;

/// Reads a text into a setting; the error says what is allowed.
type Setter = fn(&mut Config, &str) -> Result<(), String>;

/// One setting as CONFIG sees it.
pub struct Setting {
    /// Its name in the configuration file.
    pub name: &'static str,
    /// Its names in Redis.
    pub aliases: &'static [&'static str],
    /// Its value as text.
    pub get: fn(&Config) -> String,
    /// Changes it; `None` where that needs a restart.
    pub set: Option<Setter>,
}

/// What Redis has and tools ask for: names and what is true here.
pub const FOREIGN: &[(&str, &str)] = &[
    ("appendfsync", "everysec"),
    ("appendonly", "no"),
    ("cluster-enabled", "no"),
    ("databases", "1"),
    ("save", ""),
];

fn read_text<T: FromStr<Err = String>>(text: &str, slot: &mut T) -> Result<(), String> {
    *slot = text.parse()?;
    Ok(())
}

fn read<T: FromStr + Display>(text: &str, slot: &mut T) -> Result<(), String> {
    *slot =
        text.parse().map_err(|_| String::from("argument couldn't be parsed into an integer"))?;
    Ok(())
}

fn yes_or_no(is: bool) -> String {
    String::from(if is { "yes" } else { "no" })
}

fn read_yes_or_no(text: &str, slot: &mut bool) -> Result<(), String> {
    *slot = match text.to_ascii_lowercase().as_str() {
        "yes" => true,
        "no" => false,
        _ => return Err(String::from("argument must be 'yes' or 'no'")),
    };
    Ok(())
}

/// What stands for a secret, if there is one.
fn hidden(secret: &str) -> String {
    String::from(if secret.is_empty() { "" } else { "(hidden)" })
}

macro_rules! setting {
    (live $name:literal $aliases:expr, $($path:ident).+) => {
        Setting {
            name: $name,
            aliases: $aliases,
            get: |config| config.$($path).+.to_string(),
            set: Some(|config, text| read(text, &mut config.$($path).+)),
        }
    };
    (fixed $name:literal $aliases:expr, $($path:ident).+) => {
        Setting { name: $name, aliases: $aliases, get: |config| config.$($path).+.to_string(), set: None }
    };
}

/// Every setting of the configuration file but the lists of tables, joins and functions.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "bind",
        aliases: &[],
        get: |config| {
            let texts: Vec<String> = config.listen.bind.iter().map(ToString::to_string).collect();
            texts.join(" ")
        },
        set: None,
    },
    setting!(fixed "port" &[], listen.port),
    setting!(fixed "memcached-port" &[], listen.memcached_port),
    setting!(fixed "http-port" &[], listen.http_port),
    Setting {
        name: "requirepass",
        aliases: &[],
        get: |config| config.listen.requirepass.clone(),
        set: Some(|config, text| {
            config.listen.requirepass = text.to_owned();
            Ok(())
        }),
    },
    setting!(fixed "requirepass-file" &[], listen.requirepass_file),
    setting!(fixed "aclfile" &[], listen.aclfile),
    setting!(fixed "tcp-keepalive-seconds" &["tcp-keepalive"], listen.tcp_keepalive_seconds),
    setting!(fixed "shards" &[], listen.shards),
    Setting {
        name: "pin",
        aliases: &[],
        get: |config| String::from(if config.listen.pin { "yes" } else { "no" }),
        set: None,
    },
    setting!(fixed "io-threads" &[], listen.io_threads),
    setting!(fixed "tls-port" &[], tls.tls_port),
    setting!(fixed "tls-memcached-port" &[], tls.tls_memcached_port),
    setting!(fixed "tls-http-port" &[], tls.tls_http_port),
    setting!(live "tls-cert-file" &[], tls.tls_cert_file),
    setting!(live "tls-key-file" &[], tls.tls_key_file),
    setting!(live "tls-ca-cert-file" &[], tls.tls_ca_cert_file),
    setting!(live "tls-crl-file" &[], tls.tls_crl_file),
    Setting {
        name: "tls-auth-clients",
        aliases: &[],
        get: |config| config.tls.tls_auth_clients.to_string(),
        set: Some(|config, text| read_text(text, &mut config.tls.tls_auth_clients)),
    },
    setting!(fixed "tls-auth-clients-user" &[], tls.tls_auth_clients_user),
    setting!(live "tls-protocols" &[], tls.tls_protocols),
    setting!(fixed "tls-handshake-milliseconds-max" &[], tls.tls_handshake_milliseconds_max),
    Setting {
        name: "protected-mode",
        aliases: &[],
        get: |config| yes_or_no(config.doors.protected_mode),
        set: Some(|config, text| read_yes_or_no(text, &mut config.doors.protected_mode)),
    },
    setting!(live "login-seconds-max" &[], doors.login_seconds_max),
    setting!(live "login-failures-max" &[], doors.login_failures_max),
    setting!(live "login-failure-milliseconds" &[], doors.login_failure_milliseconds),
    setting!(live "clients-unauthenticated-max" &[], doors.clients_unauthenticated_max),
    setting!(live "clients-reserved" &[], doors.clients_reserved),
    setting!(fixed "enable-debug-command" &[], doors.enable_debug_command),
    Setting {
        name: "rename-command",
        aliases: &[],
        // Who may use them is told.
        get: |config| hidden(&config.doors.rename_command.join(" ")),
        set: None,
    },
    Setting {
        name: "connect-allow",
        aliases: &[],
        get: |config| config.connect.connect_allow.join(" "),
        set: None,
    },
    setting!(fixed "source-certificates" &[], connect.source_certificates),
    Setting {
        name: "source-clear-passwords",
        aliases: &[],
        get: |config| yes_or_no(config.connect.source_clear_passwords),
        set: None,
    },
    setting!(fixed "http-clients-max" &[], http.http_clients_max),
    setting!(fixed "http-header-bytes-max" &[], http.http_header_bytes_max),
    setting!(fixed "http-milliseconds-max" &[], http.http_milliseconds_max),
    Setting {
        name: "http-token",
        aliases: &[],
        get: |config| hidden(&config.http.http_token),
        set: None,
    },
    setting!(fixed "http-token-file" &[], http.http_token_file),
    Setting {
        name: "http-hosts",
        aliases: &[],
        get: |config| config.http.http_hosts.join(" "),
        set: None,
    },
    setting!(fixed "http-watches-max" &[], http.http_watches_max),
    setting!(fixed "http-heartbeat-milliseconds" &[], http.http_heartbeat_milliseconds),
    Setting {
        name: "http-origins",
        aliases: &[],
        get: |config| config.http.http_origins.join(" "),
        set: None,
    },
    setting!(live "clients-max" &["maxclients"], clients.clients_max),
    setting!(live "idle-seconds-max" &["timeout"], clients.idle_seconds_max),
    setting!(
        live "request-bytes-max" &["client-query-buffer-limit", "proto-max-bulk-len"],
        clients.request_bytes_max
    ),
    setting!(live "arguments-max" &[], clients.arguments_max),
    setting!(live "inline-bytes-max" &[], clients.inline_bytes_max),
    setting!(live "output-bytes-soft" &[], clients.output_bytes_soft),
    setting!(live "output-bytes-max" &[], clients.output_bytes_max),
    setting!(live "pubsub-output-bytes-max" &[], clients.pubsub_output_bytes_max),
    setting!(live "watch-output-bytes-max" &[], clients.watch_output_bytes_max),
    setting!(live "watch-history-bytes-max" &[], clients.watch_history_bytes_max),
    setting!(live "output-stuck-seconds-max" &[], clients.output_stuck_seconds_max),
    setting!(live "transaction-commands-max" &[], clients.transaction_commands_max),
    setting!(live "watched-keys-max" &[], clients.watched_keys_max),
    setting!(live "subscriptions-max" &[], clients.subscriptions_max),
    setting!(
        live "tracking-table-keys-max" &["tracking-table-max-keys"],
        clients.tracking_table_keys_max
    ),
    setting!(live "turn-requests-max" &[], clients.turn_requests_max),
    setting!(live "slice-rows" &[], clients.slice_rows),
    setting!(live "command-milliseconds-max" &[], clients.command_milliseconds_max),
    setting!(live "key-bytes-max" &[], limits.key_bytes_max),
    setting!(live "value-bytes-max" &[], limits.value_bytes_max),
    setting!(live "joins-max" &[], limits.joins_max),
    setting!(live "join-depth-max" &[], limits.join_depth_max),
    setting!(live "sources-max" &[], limits.sources_max),
    setting!(live "slots-max" &[], limits.slots_max),
    setting!(fixed "spill-dir" &[], spill.spill_dir),
    setting!(fixed "spill-bytes-max" &[], spill.spill_bytes_max),
    setting!(fixed "spill-value-bytes-min" &[], spill.spill_value_bytes_min),
    setting!(fixed "data-dir" &["dir"], data.data_dir),
    setting!(fixed "durability" &[], data.durability),
    setting!(fixed "durability-milliseconds" &[], data.durability_milliseconds),
    setting!(fixed "data-plain" &[], data.data_plain),
    setting!(fixed "data-free-bytes-min" &[], data.data_free_bytes_min),
    Setting {
        name: "cluster-nats",
        aliases: &[],
        get: |config| hidden(&config.cluster.cluster_nats),
        set: None,
    },
    setting!(fixed "cluster-name" &[], cluster.cluster_name),
    setting!(fixed "cluster-node" &[], cluster.cluster_node),
    setting!(fixed "cluster-advertise" &[], cluster.cluster_advertise),
    setting!(fixed "cluster-shard" &[], cluster.cluster_shard),
    Setting {
        name: "cluster-balance",
        aliases: &[],
        get: |config| yes_or_no(config.cluster.cluster_balance),
        set: None,
    },
    Setting {
        name: "cluster-monitoring",
        aliases: &[],
        get: |config| config.cluster.cluster_monitoring.join(" "),
        set: None,
    },
    setting!(fixed "cluster-replicas" &[], cluster.cluster_replicas),
    setting!(fixed "cluster-snapshot-bytes" &[], cluster.cluster_snapshot_bytes),
    setting!(fixed "cluster-start-seconds" &[], cluster.cluster_start_seconds),
    Setting {
        name: "cluster-unsafe-sync",
        aliases: &[],
        get: |config| yes_or_no(config.cluster.cluster_unsafe_sync),
        set: None,
    },
    setting!(fixed "cluster-credentials" &[], cluster.cluster_credentials),
    setting!(fixed "cluster-ca-cert-file" &[], cluster.cluster_ca_cert_file),
    setting!(fixed "cluster-cert-file" &[], cluster.cluster_cert_file),
    setting!(fixed "cluster-key-file" &[], cluster.cluster_key_file),
    Setting {
        name: "cluster-link-tls",
        aliases: &["tls-cluster"],
        get: |config| yes_or_no(config.cluster.cluster_link_tls),
        set: None,
    },
    Setting {
        name: "max",
        aliases: &["maxmemory"],
        get: |config| config.memory.max.to_string(),
        set: Some(|config, text| read_text(text, &mut config.memory.max)),
    },
    Setting {
        name: "policy",
        aliases: &["maxmemory-policy"],
        get: |config| config.memory.policy.clone(),
        set: Some(|config, text| {
            config.memory.policy = text.to_ascii_lowercase();
            Ok(())
        }),
    },
    Setting {
        name: "clients-bytes-max",
        aliases: &["maxmemory-clients"],
        get: |config| config.memory.clients_bytes_max.to_string(),
        set: Some(|config, text| read_text(text, &mut config.memory.clients_bytes_max)),
    },
    setting!(live "source-milliseconds-max" &[], sources.source_milliseconds_max),
    setting!(fixed "functions-dir" &[], functions.functions_dir),
    Setting {
        name: "functions-callable",
        aliases: &[],
        get: |config| config.functions.functions_callable.clone(),
        set: Some(|config, text| {
            config.functions.functions_callable = text.to_owned();
            Ok(())
        }),
    },
    setting!(live "functions-max" &[], functions.functions_max),
    setting!(live "function-module-bytes-max" &[], functions.function_module_bytes_max),
    setting!(live "function-milliseconds-max" &[], functions.function_milliseconds_max),
    setting!(live "function-memory-bytes-max" &[], functions.function_memory_bytes_max),
    setting!(live "function-reply-bytes-max" &[], functions.function_reply_bytes_max),
    setting!(live "function-write-bytes-max" &[], functions.function_write_bytes_max),
    setting!(fixed "webhook-certificates" &[], flow_settings.webhook_certificates),
    setting!(live "flow-late-milliseconds" &[], flow_settings.flow_late_milliseconds),
    setting!(
        live "slowlog-microseconds-min" &["slowlog-log-slower-than"],
        observe.slowlog_microseconds_min
    ),
    setting!(live "slowlog-entries-max" &["slowlog-max-len"], observe.slowlog_entries_max),
    setting!(live "acllog-entries-max" &["acllog-max-len"], observe.acllog_entries_max),
    setting!(
        live "latency-milliseconds-min" &["latency-monitor-threshold"],
        observe.latency_milliseconds_min
    ),
    Setting {
        name: "latency-tracking",
        aliases: &[],
        get: |config| yes_or_no(config.observe.latency_tracking),
        set: Some(|config, text| read_yes_or_no(text, &mut config.observe.latency_tracking)),
    },
    Setting {
        name: "latency-tracking-info-percentiles",
        aliases: &[],
        get: |config| config.observe.latency_tracking_info_percentiles.clone(),
        set: Some(|config, text| {
            let percentiles = text.parse::<Percentiles>()?.to_string();
            config.observe.latency_tracking_info_percentiles = percentiles;
            Ok(())
        }),
    },
    Setting {
        name: "notify-keyspace-events",
        aliases: &[],
        get: |config| config.observe.notify_keyspace_events.clone(),
        set: Some(|config, text| {
            config.observe.notify_keyspace_events = text.parse::<EventChannels>()?.to_string();
            Ok(())
        }),
    },
    Setting {
        name: "log-level",
        aliases: &["loglevel"],
        get: |config| config.log.log_level.clone(),
        set: Some(|config, text| {
            text.parse::<LogLevels>()?;
            config.log.log_level = text.to_ascii_lowercase();
            Ok(())
        }),
    },
    setting!(fixed "log-format" &[], log.log_format),
    setting!(fixed "log-file" &["logfile"], log.log_file),
    setting!(live "log-repeats-max" &[], log.log_repeats_max),
];

impl Setting {
    /// Its value as text under one of its names.
    pub fn get_as(&self, name: &str, config: &Config) -> String {
        if name == "loglevel" {
            // Redis's name has Redis's values.
            let levels = config.log.log_level.parse::<LogLevels>();
            return levels.map_or_else(|_| String::new(), |it| it.as_redis_names().to_owned());
        }
        (self.get)(config)
    }
}

/// The setting of this name (in any case), or why there is none.
pub fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| {
        setting.name.eq_ignore_ascii_case(name)
            || setting.aliases.iter().any(|alias| alias.eq_ignore_ascii_case(name))
    })
}

/// Changes the settings named in `pairs`, all or none, and checks them together, whatever their order; the texts are those of
/// Redis 7.
pub fn change(config: &Config, pairs: &[(String, String)]) -> Result<Config, String> {
    let failed_at = |name: &str, why: &str| {
        Err(format!("CONFIG SET failed (possibly related to argument '{name}') - {why}"))
    };
    let mut changed = config.clone();
    for (at, (name, value)) in pairs.iter().enumerate() {
        let failed = |why: &str| failed_at(name, why);
        if pairs[..at].iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            return failed("duplicate parameter");
        }
        let Some(setting) = find(name) else {
            match FOREIGN.iter().find(|(foreign, _)| foreign.eq_ignore_ascii_case(name)) {
                Some((_, kept)) if kept == value => continue,
                Some(_) => return failed("can't set immutable config"),
                None => {
                    return Err(format!(
                        "Unknown option or number of arguments for CONFIG SET - '{name}'"
                    ));
                }
            }
        };
        match setting.set {
            None if (setting.get)(config) == *value => {}
            None => return failed("can't set immutable config"),
            Some(set) => {
                if let Err(why) = set(&mut changed, value) {
                    return failed(&why);
                }
            }
        }
    }
    if let Err(why) = changed.check() {
        let why = why.to_string();
        // What is wrong begins with the setting that is.
        let is_meant = |(name, _): &&(String, String)| {
            find(name).is_some_and(|setting| why.starts_with(&format!("{} ", setting.name)))
        };
        let (name, _) = pairs.iter().find(is_meant).or(pairs.last()).expect("a pair was changed");
        return failed_at(name, &why);
    }
    Ok(changed)
}

/// Changes settings that can be changed at run time, all or none; they are checked together, whatever their order.
pub fn change_all(config: &Config, pairs: &[(String, String)]) -> Result<Config, String> {
    let mut changed = config.clone();
    for (name, value) in pairs {
        let set = find(name).and_then(|setting| setting.set);
        let set = set.ok_or_else(|| format!("{name} cannot be changed at run time"))?;
        set(&mut changed, value).map_err(|why| format!("{name}: {why}"))?;
    }
    changed.check().map_err(|why| why.to_string())?;
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../headwater.example.toml");

    #[test]
    fn the_example_file_names_every_setting_with_its_default() {
        let config = Config::parse(EXAMPLE).unwrap();
        assert_eq!(config, Config::default());
        for setting in SETTINGS {
            let line =
                EXAMPLE.lines().find(|line| line.starts_with(&format!("{} = ", setting.name)));
            assert!(line.is_some(), "{} is not in headwater.example.toml", setting.name);
        }
        // And the list of settings is complete: it has what the file has.
        let names = EXAMPLE.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name);
        let names: Vec<&str> = names.filter(|name| !name.starts_with('#')).collect();
        assert_eq!(names, SETTINGS.iter().map(|setting| setting.name).collect::<Vec<_>>());
        // As does the structure itself.
        let fields = toml::Table::try_from(Config::default()).unwrap();
        let fields = fields.values().filter_map(toml::Value::as_table).map(toml::Table::len);
        assert_eq!(fields.sum::<usize>(), SETTINGS.len());
    }

    #[test]
    fn an_unknown_field_is_named_with_the_allowed_ones() {
        let error = Config::parse("[clients]\nclients-mx = 5\n").unwrap_err().to_string();
        assert!(error.contains("clients-mx") && error.contains("`clients-max`"), "{error}");
        let error = Config::parse("[clients]\nclients-max = \"many\"\n").unwrap_err().to_string();
        assert!(error.contains("clients-max") && error.contains("invalid type"), "{error}");
    }

    #[test]
    fn figures_for_other_machines_need_a_token() {
        let text = "[listen]\nbind = [\"0.0.0.0\"]\n[tls]\ntls-http-port = 0\n\
            tls-cert-file = \"c\"\ntls-key-file = \"k\"\ntls-auth-clients = \"no\"\n";
        let error = Config::parse(text).unwrap().check().unwrap_err().to_string();
        assert!(error.contains("http-token"), "{error}");
        let with = format!("{text}[http]\nhttp-token = \"t\"\n");
        assert_eq!(Config::parse(&with).unwrap().check(), Ok(()));
        let open = Config::parse("[listen]\nbind = [\"0.0.0.0\"]\n").unwrap();
        assert!(open.is_open_to_all() && open.doors.protected_mode && open.check().is_ok());
    }

    #[test]
    fn config_set_is_all_or_nothing() {
        let config = Config::default();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let changed = change(&config, &[pair("maxclients", "7"), pair("TIMEOUT", "3")]).unwrap();
        assert_eq!((changed.clients.clients_max, changed.clients.idle_seconds_max), (7, 3));
        for (name, value, told) in [
            ("port", "1", "can't set immutable config"),
            ("maxclients", "x", "couldn't be parsed"),
            ("key-bytes-max", "9999", "allowed: 1 to 1024"),
            ("nothing", "1", "Unknown option"),
            ("appendonly", "yes", "can't set immutable config"),
        ] {
            let error = change(&config, &[pair("timeout", "3"), pair(name, value)]).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
        assert!(change(&config, &[pair("appendonly", "no"), pair("save", "")]).is_ok());
        // Each may be out of bounds for the other's old value.
        let bytes =
            |config: &Config| (config.clients.output_bytes_soft, config.clients.output_bytes_max);
        let both = [pair("output-bytes-max", "2048"), pair("output-bytes-soft", "1024")];
        for order in [[0, 1], [1, 0]] {
            let changed = change(&config, &order.map(|at| both[at].clone())).unwrap();
            assert_eq!(bytes(&changed), (1024, 2048));
        }
        let wrong = [pair("output-bytes-soft", "4096"), pair("output-bytes-max", "2048")];
        let error = change(&config, &wrong).unwrap_err();
        assert!(error.contains("related to argument 'output-bytes-soft'"), "{error}");
        let twice = [pair("timeout", "3"), pair("timeout", "4")];
        assert!(change(&config, &twice).unwrap_err().contains("duplicate parameter"));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = FOREIGN.iter().map(|(name, _)| *name).collect();
        names.extend(SETTINGS.iter().flat_map(|s| s.aliases.iter().copied().chain([s.name])));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
