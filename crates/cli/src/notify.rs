//! What a service manager is told that has asked for it (systemd's Type=notify): that clients are served now.

use anyhow::Context;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells the manager that `NOTIFY_SOCKET` names, if it does, that the server is ready.
pub(crate) fn ready() -> anyhow::Result<()> {
    match std::env::var_os("NOTIFY_SOCKET").filter(|place| !place.is_empty()) {
        Some(place) => tell(&place, b"READY=1\n").context("NOTIFY_SOCKET"),
        None => Ok(()),
    }
}

fn tell(place: &OsStr, message: &[u8]) -> std::io::Result<()> {
    let address = match place.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(place)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address)?;
    Ok(())
}
