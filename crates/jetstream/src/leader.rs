//! Which server leads a stream, and a connection straight to it.
//!
//! Any server takes a message and passes it on to the leader, and the acknowledgement back, which takes a tenth of a millisecond and work of both servers. An owner
//! spares itself that where the settings name the leader among the servers: it finds out which one that is by asking each for its name.

use crate::connect::{connect_to, context_of, servers_of};
use crate::connection::is_connected;
use crate::settings::JetStreamSettings;
use async_nats::jetstream::Context;
use std::time::Duration;
use tokio::sync::watch;

/// How often it is looked which server leads.
const LOOK: Duration = Duration::from_secs(2);
/// How often that is done where it is none of those that the settings name, so that they are not connected to all the time in vain.
const LOOK_IN_VAIN: Duration = Duration::from_secs(60);
/// How long a server may take to be connected to.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to the server that leads the stream, which is not the one that everything else goes through.
#[derive(Clone)]
pub(crate) struct Direct {
    pub(crate) context: Context,
    /// Counts them.
    pub(crate) number: u64,
}

/// Why there is no connection to the leader.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NotFound {
    /// A server that could not be asked may be it.
    Yet,
    /// The settings name others alone.
    Named,
}

/// Follows the stream's leader until nobody listens any more.
pub(crate) async fn follow(
    main: Context,
    settings: JetStreamSettings,
    stream: String,
    found: watch::Sender<Option<Direct>>,
) {
    let mut number = 0;
    loop {
        let mut wait = LOOK;
        if let Some(leader) = leader_of(&main, &stream).await {
            let is = |context: &Context| name_of(context) == leader && is_connected(context);
            if is(&main) {
                found.send_if_modified(|direct| direct.take().is_some());
            } else if !found.borrow().as_ref().is_some_and(|direct| is(&direct.context)) {
                let direct = connection_to(&leader, &settings).await;
                if matches!(direct, Err(NotFound::Named)) {
                    wait = LOOK_IN_VAIN;
                }
                number += 1;
                found.send_replace(direct.ok().map(|context| Direct { context, number }));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = found.closed() => return,
        }
    }
}

/// The name of the server that leads a stream, if that is known.
async fn leader_of(context: &Context, stream: &str) -> Option<String> {
    let stream = context.get_stream(stream).await.ok()?;
    stream.cached_info().cluster.as_ref()?.leader.clone()
}

fn name_of(context: &Context) -> String {
    context.client().server_info().server_name
}

/// Connects to the server of this name, if it is one of those that the settings name.
async fn connection_to(leader: &str, settings: &JetStreamSettings) -> Result<Context, NotFound> {
    let count = servers_of(settings).map_or(0, |servers| servers.len());
    let mut without = NotFound::Named;
    for at in 0..count {
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, connect_to(settings, at));
        match connecting.await {
            Ok(Ok(client)) => {
                let context = context_of(client);
                if name_of(&context) == leader {
                    return Ok(context);
                }
            }
            _ => without = NotFound::Yet,
        }
    }
    Err(without)
}
