//! What clients may take of the memory bound: together, and each.
//!
//! A client's own settings say what it may take up; under a bound, shares of it lower them.

use headwater_config::{Config, Share, Size};

/// What clients may take together, by default, in parts of the bound.
const TOGETHER: usize = 8;
/// What a client takes besides its buffers and queues, in bytes: its socket, its session and their
/// places in tables.
pub(crate) const CLIENT_BYTES: usize = 768;

/// What clients may take together, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClientShare(pub(crate) usize);

impl ClientShare {
    /// The share that `config` says, or a part of the bound; `usize::MAX` without both.
    pub(crate) fn of(config: &Config) -> Self {
        let bound = config.memory.max.0 as usize;
        let asked = match config.memory.clients_bytes_max {
            Share::Bytes(Size(bytes)) => bytes as usize,
            Share::Percent(percent) => bound / 100 * usize::from(percent),
        };
        let usual = if bound > 0 { bound / TOGETHER } else { usize::MAX };
        Self(if asked > 0 { asked } else { usual })
    }

    /// The settings in force: those of `config`, as far as the bound has room for them.
    pub(crate) fn lower(self, config: &Config) -> Config {
        let mut lowered = config.clone();
        if config.memory.max.0 == 0 {
            return lowered;
        }
        let Self(share) = self;
        let (clients, limits) = (&mut lowered.clients, &mut lowered.limits);
        for (setting, parts) in [
            (&mut clients.request_bytes_max, 2),
            (&mut clients.output_bytes_soft, 8),
            (&mut clients.output_bytes_max, 2),
            (&mut clients.pubsub_output_bytes_max, 4),
            (&mut clients.watch_output_bytes_max, 8),
            (&mut clients.watch_history_bytes_max, 8),
            (&mut limits.value_bytes_max, 3),
        ] {
            *setting = (*setting).min(share / parts);
        }
        let functions = &mut lowered.functions;
        for (setting, parts) in [
            (&mut functions.function_memory_bytes_max, 1),
            (&mut functions.function_write_bytes_max, 2),
            (&mut functions.function_reply_bytes_max, 4),
        ] {
            *setting = (*setting).min(share / parts);
        }
        // Each argument takes 8 bytes more while its request is incomplete.
        clients.arguments_max = clients.arguments_max.min(share / 64);
        lowered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_lowers_what_each_may_take() {
        let mut config = Config::default();
        assert_eq!(ClientShare::of(&config).lower(&config), config);
        config.memory.max = Size(64 << 20);
        let share = ClientShare::of(&config);
        assert_eq!(share, ClientShare(8 << 20));
        let lowered = share.lower(&config);
        assert_eq!(lowered.clients.request_bytes_max, 4 << 20);
        assert_eq!(lowered.functions.function_memory_bytes_max, 8 << 20);
        assert_eq!(lowered.functions.function_reply_bytes_max, 1 << 20);
        assert_eq!(lowered.clients.clients_max, config.clients.clients_max);
        assert_eq!(lowered.memory, config.memory);
        config.memory.clients_bytes_max = Share::Percent(50);
        assert!(ClientShare::of(&config).0 > 31 << 20);
        config.memory.max = Size(100 << 30);
        assert_eq!(ClientShare::of(&config).lower(&config).clients, config.clients);
    }
}
