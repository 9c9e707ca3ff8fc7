//! The ACL file: a line for each user, as ACL LIST shows it.

use headwater_acl::Users;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The users of a file.
///
/// # Errors
/// It cannot be read, or a line is none of a user.
pub(crate) fn read(path: &str) -> Result<Users, String> {
    let text = fs::read(path).map_err(|error| error.to_string())?;
    Users::from_file(&text).map_err(|(line, why)| format!("line {line}: {why}"))
}

/// Writes the users to a file, which nobody else may read: all of it or nothing.
///
/// # Errors
/// It cannot be written; the file is what it was.
pub(crate) fn write(path: &str, users: &Users) -> Result<(), String> {
    let partial = format!("{path}.new");
    let written = (|| {
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        file.write_all(&users.to_file())?;
        file.sync_all()?;
        fs::rename(&partial, path)?;
        let folder = Path::new(path).parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.map_or_else(|| PathBuf::from("."), Path::to_owned))?.sync_all()
    })();
    written.map_err(|error: std::io::Error| error.to_string())
}
