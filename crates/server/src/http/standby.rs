//! The HTTP port of a node of a cluster that stands by: signs of its own life, and figures of what it follows; all else an owner answers.
//!
//! It takes the same tokens, names and certificates as that of a server, which goes on with its socket.

use super::api::Api;
use super::inner::InnerConnector;
use super::token::{Proofs, Token};
use super::{Asker, ForwardedClients, Vitals, hosts, listener, routes};
use crate::tls::Certificates;
use crate::users::UserRegistry;
use headwater_config::Http;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Says how a node that stands by does; nothing: its thread does not go on.
#[derive(Clone)]
pub(crate) struct StandbyVitals(pub(crate) Arc<dyn Fn() -> Option<Vitals> + Send + Sync>);

impl fmt::Debug for StandbyVitals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StandbyVitals").finish_non_exhaustive()
    }
}

/// A listener, with its connections; closed when dropped.
#[derive(Debug)]
pub(crate) struct StandbyListener {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    listener: TcpListener,
    close: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StandbyListener {
    /// Answers HTTP on `listener`, over TLS with `certificates`; what an owner is to answer goes through `door`.
    ///
    /// # Errors
    /// The thread cannot be started, or the listener cannot be used.
    pub(crate) fn open(
        listener: TcpListener,
        settings: &Http,
        (certificates, users): (Option<Certificates>, Arc<UserRegistry>),
        (vitals, door): (StandbyVitals, ForwardedClients),
    ) -> Result<Self, String> {
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let again = listener.try_clone().map_err(|error| error.to_string())?;
        let is_encrypted = certificates.is_some();
        let connector = InnerConnector::PassedOn(door, users.clone(), is_encrypted, Instant::now());
        let api = Api::new(settings, connector);
        let proofs = Proofs { token: Token::new(&settings.http_token), users };
        let hosts = hosts::Hosts::new(&settings.http_hosts);
        let routes = routes::all(Asker::Standby(vitals), api, hosts, proofs);
        let (close, closes) = oneshot::channel::<()>();
        let closes = async move { closes.await.ok() };
        let thread = listener::start(again, settings, certificates, routes, closes);
        let thread = Some(thread.map_err(|error| error.to_string())?);
        Ok(Self { address, listener, close: Some(close), thread })
    }

    /// Its socket, for a server that listens there from now on. Answers that are under way come to their end, to which watches are told; then their connections are closed.
    pub(crate) fn let_go(mut self) -> std::io::Result<TcpListener> {
        let _told = self.close.take().map(|close| close.send(()));
        // The thread ends with its connections, or with the process.
        drop(self.thread.take());
        self.listener.try_clone()
    }
}

impl Drop for StandbyListener {
    fn drop(&mut self) {
        drop(self.close.take());
        if let Some(thread) = self.thread.take() {
            // The port is free when it has ended, however it did.
            let _ended = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;
    use tokio::sync::mpsc::unbounded_channel;

    fn until(stream: &mut TcpStream, end: &str) -> String {
        let (mut told, mut byte) = (Vec::new(), [0]);
        while !told.ends_with(end.as_bytes()) {
            stream.read_exact(&mut byte).unwrap();
            told.push(byte[0]);
        }
        String::from_utf8(told).unwrap()
    }

    /// Whoever watches has an answer that would never come to its end by itself.
    #[test]
    fn the_port_is_the_servers_alone_and_who_watches_is_told_so() {
        let (door, (says, mut clients)) = (ForwardedClients::default(), unbounded_channel());
        door.set(Some(says)).unwrap();
        let vitals = StandbyVitals(Arc::new(|| None));
        let proofs = (None, Arc::default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = Http::default();
        let opened = StandbyListener::open(listener, &settings, proofs, (vitals, door)).unwrap();
        let address = opened.address;
        // An owner, which goes on whatever becomes of the node's shard.
        let owner = std::thread::spawn(move || {
            let mut stream = clients.blocking_recv().unwrap().stream;
            stream.set_nonblocking(false).unwrap();
            let mut asked = [0; 1024];
            for (word, answer) in [
                ("HELLO", "+OK\r\n"),
                ("RANGE.WATCH", "*2\r\n:1\r\n$3\r\n7-1\r\n"),
                ("RANGE", "*0\r\n"),
            ] {
                let count = stream.read(&mut asked).unwrap();
                let asked = String::from_utf8_lossy(&asked[..count]);
                assert!(asked.contains(word), "{asked}");
                stream.write_all(answer.as_bytes()).unwrap();
            }
            assert_eq!(stream.read(&mut asked).unwrap(), 0, "nobody goes on with the session");
        });
        let mut client = TcpStream::connect(address).unwrap();
        // It would wait for ever where nobody is told.
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.write_all(b"GET /v1/watch?first=a HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        until(&mut client, "event: live\n");
        let listener = opened.let_go().unwrap();
        let mut told = String::new();
        client.read_to_string(&mut told).unwrap();
        assert!(told.contains("event: end\n") && told.contains("takes its shard over"), "{told}");
        owner.join().unwrap();
        drop(listener);
        TcpListener::bind(address).unwrap();
    }
}
