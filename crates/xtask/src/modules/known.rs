//! The names within circles of modules that there are, for [`super`]: none is added.

use super::Names;

/// Among the rooms of `crates/server`.
pub(super) const SERVER: Names = &[
    ("arrival", &["tls"]),
    ("backup", &["keeping"]),
    ("connection", &["io_threads", "output", "service"]),
    ("connections", &["connection", "memory", "resp"]),
    ("handover", &["shards"]),
    ("http", &["users"]),
    ("io_threads", &["memory"]),
    ("keeping", &["backup", "replicated", "service", "shards", "sources"]),
    ("memcached", &["connection", "resp", "service"]),
    ("memory", &["shards", "sources"]),
    ("output", &["service"]),
    ("reload", &["resp"]),
    ("replicated", &["handover", "http", "keeping", "resp", "shards", "users"]),
    (
        "resp",
        &[
            "connection",
            "connections",
            "handover",
            "http",
            "io_threads",
            "keeping",
            "memcached",
            "memory",
            "reload",
            "replicated",
            "service",
            "shards",
            "sources",
            "users",
        ],
    ),
    ("service", &["connection", "connections", "handover"]),
    ("shards", &["connection", "http", "keeping", "memory", "resp", "service", "sources", "users"]),
    ("sources", &["connection"]),
    ("tls", &["arrival"]),
    ("users", &["resp"]),
];

/// Among the modules of its `resp`.
pub(super) const RESP: Names = &[
    ("blocking", &["session"]),
    ("bound", &["parts", "session"]),
    ("channels", &["parts", "session"]),
    ("client", &["parts", "tracking"]),
    ("connect", &["session", "tracking"]),
    ("entrance", &["parts"]),
    ("errors", &["parts"]),
    ("flows", &["parts", "session"]),
    ("info", &["connect", "parts"]),
    ("kept", &["info", "parts", "session"]),
    ("metrics", &["parts", "session"]),
    ("monitor", &["slowlog"]),
    (
        "parts",
        &[
            "blocking", "channels", "entrance", "flows", "metrics", "monitor", "pause", "remote",
            "slowlog", "tracking", "watching",
        ],
    ),
    ("pause", &["parts"]),
    ("remote", &["bound", "errors", "kept", "parts", "session", "slowlog"]),
    ("rights", &["client", "parts", "session"]),
    ("session", &["blocking", "remote", "rights", "tracking"]),
    ("slowlog", &["parts", "session"]),
    ("tracking", &["parts", "session"]),
    ("watching", &["parts", "remote", "session", "tracking"]),
];
