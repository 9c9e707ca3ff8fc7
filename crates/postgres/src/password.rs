//! Where a password is that is not in the URL: where `libpq` looks for it.
//!
//! First the environment's `PGPASSWORD`, then a file of lines `host:port:database:user:password`, in which `*` stands for anything and
//! `\` before a `:` or `\` for itself: the one that the URL's `passfile` names, or `PGPASSFILE`, or `~/.pgpass`. It is looked for
//! each time that a connection is made, so a new password is taken up without a restart. As with `libpq`, a file that others may read
//! is not used; a file that was named and cannot be used is an error, not a silent refusal by the database later.

use crate::url::Target;
use std::borrow::Cow;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// What proves who connects; empty: nothing.
///
/// # Errors
/// A file that was named cannot be used.
pub(crate) fn of(target: &Target) -> Result<Cow<'_, str>, String> {
    find(target, |name| std::env::var(name).ok().filter(|text| !text.is_empty()))
}

fn find(
    target: &Target,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Cow<'_, str>, String> {
    if !target.password.is_empty() {
        return Ok(Cow::Borrowed(&target.password));
    }
    if !target.terms.has_own_passwords() {
        // What the process was given is not for whomever a client names.
        return Ok(Cow::Borrowed(""));
    }
    if let Some(password) = variable("PGPASSWORD").filter(|_| target.passfile.is_empty()) {
        return Ok(Cow::Owned(password));
    }
    let named = Some(target.passfile.clone()).filter(|file| !file.is_empty());
    let named = named.or_else(|| variable("PGPASSFILE"));
    let Some(file) = named.clone().or_else(|| Some(variable("HOME")? + "/.pgpass")) else {
        return Ok(Cow::Borrowed(""));
    };
    match read(&file) {
        Ok(text) => {
            let found = text.lines().find_map(|line| of_line(line, target));
            Ok(Cow::Owned(found.unwrap_or_default()))
        }
        Err(why) if named.is_some() => Err(format!("the file of passwords {file}: {why}")),
        Err(_) => Ok(Cow::Borrowed("")),
    }
}

fn read(file: &str) -> Result<String, String> {
    let mode = fs::metadata(file).map_err(|error| error.to_string())?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err("others may read it: chmod 0600".to_owned());
    }
    fs::read_to_string(file).map_err(|error| error.to_string())
}

/// The password of a line that is for `target`.
fn of_line(line: &str, target: &Target) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let port = target.port.to_string();
    let mut rest = line.chars();
    for wanted in [&*target.host, &*port, &*target.database, &*target.user] {
        let (field, plain) = field(&mut rest, true)?;
        // A socket is where `localhost` is.
        let socket = wanted.starts_with('/') && field == "localhost";
        if field != wanted && !socket && !(plain && field == "*") {
            return None;
        }
    }
    field(&mut rest, false).map(|(password, _)| password)
}

/// The text up to the next `:`, which must be there if `within` the line, and whether it was written without `\`.
fn field(rest: &mut std::str::Chars<'_>, within: bool) -> Option<(String, bool)> {
    let (mut text, mut plain) = (String::new(), true);
    loop {
        match rest.next() {
            Some('\\') => {
                plain = false;
                text.extend(rest.next());
            }
            Some(':') => return Some((text, plain)),
            Some(next) => text.push(next),
            None => return (!within).then_some((text, plain)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Target {
        Target::parse(url).unwrap()
    }

    #[test]
    fn lines() {
        let shop = target("postgres://ann@db.example/shop");
        let of = |line| of_line(line, &shop);
        assert_eq!(of("db.example:5432:shop:ann:se:cret").as_deref(), Some("se"));
        assert_eq!(of(r"db.example:5432:shop:ann:se\:cr\\et").as_deref(), Some(r"se:cr\et"));
        assert_eq!(of("*:*:*:ann:x").as_deref(), Some("x"));
        for other in ["#*:*:*:*:x", "*:*:*:bob:x", "db:5432:shop:ann:x", r"\*:*:*:*:x", "*:*:*", ""]
        {
            assert_eq!(of(other), None, "{other}");
        }
        let socket = target("postgres://ann@/shop?host=/run/pg");
        assert_eq!(of_line("localhost:5432:shop:ann:x", &socket).as_deref(), Some("x"));
        assert_eq!(of_line("/run/pg:5432:shop:ann:x", &socket).as_deref(), Some("x"));
    }

    #[test]
    fn what_is_nearest_goes_first() {
        let folder = std::env::temp_dir().join(format!("headwater-pass-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("pass").to_string_lossy().into_owned();
        fs::write(&file, "*:*:*:bob:no\n*:*:*:ann:filed\n").unwrap();
        let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o600);
        let none = |_: &str| None;
        let words =
            |text: &'static str| move |name: &str| (name == "PGPASSWORD").then(|| text.to_owned());
        let named = target(&format!("postgres://ann@db/shop?passfile={file}"));
        assert_eq!(find(&target("postgres://ann:own@db/shop"), words("given")).unwrap(), "own");
        assert_eq!(find(&target("postgres://ann@db/shop"), words("given")).unwrap(), "given");
        assert_eq!(find(&target("postgres://ann@db/shop"), none).unwrap(), "");
        assert_eq!(find(&named, words("given")).unwrap(), "filed");
        let variable = |name: &str| (name == "PGPASSFILE").then(|| file.clone());
        assert_eq!(find(&target("postgres://ann@db/shop"), variable).unwrap(), "filed");
        let allowed = headwater_base::connect::Allowed::parse(["db:5432"]).unwrap();
        let client = crate::terms::Terms { allowed: Some(allowed), ..Default::default() };
        let theirs = Target::parse_for("postgres://ann@db/shop", &client).unwrap();
        for variable in [&words("given") as &dyn Fn(&str) -> Option<String>, &variable] {
            assert_eq!(find(&theirs, variable).unwrap(), "", "a client's URL gets none of ours");
        }
        mode(0o640);
        assert!(find(&named, none).unwrap_err().contains("chmod 0600"));
        fs::remove_dir_all(&folder).unwrap();
        assert!(find(&named, none).is_err());
        let home = |name: &str| (name == "HOME").then(|| folder.to_string_lossy().into_owned());
        assert_eq!(find(&target("postgres://ann@db/shop"), home).unwrap(), "");
    }
}
