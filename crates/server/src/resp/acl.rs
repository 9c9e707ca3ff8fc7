//! The commands about users: ACL and its subcommands. The texts are those of Redis 7.

use super::rights::NotAllowed;
use super::{Flow, ShardService, Turn, encoder};
use crate::resp::parts::Admission;
use crate::users::write_file;
use headwater_acl::{Selector, command_of};
use headwater_command::describe::{CATEGORIES, in_category};
use headwater_command::table::SPECS;
use headwater_command::{Acl, Args, Reply, number};
use headwater_protocol::resp::find;
use std::fs::File;
use std::io::Read;

/// Bits of a password, where nobody says how many; and most of them.
const PASSWORD_BITS: u64 = 256;
const PASSWORD_BITS_MAX: u64 = 4096;
const BAD_BITS: &str = "ACL GENPASS argument must be the number of bits for the output password, \
     a positive number up to 4096";
const NO_FILE: &str = "This Redis instance is not configured to use an ACL file. You may want to \
     specify users via the ACL SETUSER command, which are kept with the data (data-dir), or in the \
     configuration file.";

impl ShardService {
    /// Executes a command about users.
    pub(super) fn acl(&mut self, command: &Acl<'_>, work: &mut Turn<'_>) -> Flow {
        let done = match command {
            Acl::Cat { category } => cat(*category, work),
            Acl::WhoAmI => {
                let user = work.connection.session.user.as_ref().map(|user| user.name.clone());
                encoder(work).bulk(&user.unwrap_or_default());
                Ok(())
            }
            Acl::GenPass { bits } => gen_pass(*bits, work),
            Acl::GetUser { name } => {
                self.admission.acl_get_user(name, work);
                Ok(())
            }
            Acl::List => {
                let users = self.admission.registry.lock().users.clone();
                let mut out = encoder(work);
                out.array(users.iter().len());
                users.iter().for_each(|user| out.bulk(&user.line()));
                Ok(())
            }
            Acl::Users => {
                let users = self.admission.registry.lock().users.clone();
                let mut out = encoder(work);
                out.array(users.iter().len());
                users.iter().for_each(|user| out.bulk(&user.name));
                Ok(())
            }
            Acl::SetUser { name, rules } => self.acl_set_user(name, *rules, work),
            Acl::DelUser { names } => self.acl_del_user(*names, work),
            Acl::DryRun { user, request } => self.acl_dry_run(user, *request, work),
            Acl::Load => self.acl_load(work),
            Acl::Save => self.acl_save(work),
            Acl::Log { count } => {
                self.admission.acl_log(*count, work);
                Ok(())
            }
            Acl::LogReset => {
                self.admission.registry.lock().journal.clear();
                encoder(work).ok();
                Ok(())
            }
            Acl::Owners => {
                self.admission.acl_owners(work);
                Ok(())
            }
        };
        if let Err(why) = done {
            encoder(work).error("ERR", format_args!("{why}"));
        }
        Flow::Next
    }

    fn acl_set_user(
        &mut self,
        name: &[u8],
        rules: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Result<(), String> {
        let user =
            self.admission.registry.set_user(name, rules.iter()).map_err(|why| why.to_string())?;
        if self.settings.config.listen.aclfile.is_empty()
            && let Some(keeping) = &mut self.stores.keeping
        {
            keeping.user_set(name, &user.rules_text());
        }
        encoder(work).ok();
        Ok(())
    }

    fn acl_del_user(&mut self, names: Args<'_>, work: &mut Turn<'_>) -> Result<(), String> {
        let removed = self.admission.registry.change(|state| {
            if names.iter().any(|name| name == b"default") {
                // None of them.
                state.users.remove(b"default")?;
            }
            let mut removed = 0;
            for name in names.iter() {
                removed += i64::from(state.users.remove(name)?);
            }
            Ok::<_, headwater_acl::SetUserError>(removed)
        });
        let removed = removed.map_err(|why| why.to_string())?;
        if let Some(keeping) = &mut self.stores.keeping {
            names.iter().for_each(|name| keeping.user_removed(name));
        }
        encoder(work).integer(removed);
        Ok(())
    }

    fn acl_dry_run(
        &mut self,
        name: &[u8],
        request: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Result<(), String> {
        let shown = String::from_utf8_lossy(name).into_owned();
        let user = self.admission.registry.lock().users.get(name).cloned();
        let user = user.ok_or_else(|| format!("User '{shown}' not found"))?;
        let spec = find(request).map_err(|refusal| match refusal {
            headwater_protocol::resp::Refusal::UnknownCommand(args) => {
                let name = args.get(0).unwrap_or_default().escape_ascii();
                format!("Command '{name}' not found")
            }
            refusal => refusal.to_string(),
        })?;
        match self.judge(&user, spec, request) {
            Ok(()) => encoder(work).ok(),
            Err(NotAllowed::Denied(denied)) => {
                encoder(work).bulk(denied.told(&shown).as_bytes());
            }
            Err(NotAllowed::Suspended(why)) => encoder(work).bulk(why.as_bytes()),
        }
        Ok(())
    }

    fn acl_load(&mut self, work: &mut Turn<'_>) -> Result<(), String> {
        let path = &self.settings.config.listen.aclfile;
        if path.is_empty() {
            return Err(NO_FILE.to_owned());
        }
        let users = crate::users::read_file(path).map_err(|why| {
            format!(
                "{path}: {why}. WARNING: ACL errors detected, no change to the previously active \
                 ACL rules was performed"
            )
        })?;
        self.admission.registry.replace(users);
        encoder(work).ok();
        Ok(())
    }

    fn acl_save(&mut self, work: &mut Turn<'_>) -> Result<(), String> {
        let path = &self.settings.config.listen.aclfile;
        if path.is_empty() {
            return Err(NO_FILE.to_owned());
        }
        let users = self.admission.registry.lock().users.clone();
        write_file(path, &users).map_err(|why| {
            format!("There was an error trying to save the ACLs to {path}: {why}")
        })?;
        encoder(work).ok();
        Ok(())
    }
}

impl Admission {
    fn acl_get_user(&self, name: &[u8], work: &mut Turn<'_>) {
        let user = self.registry.lock().users.get(name).cloned();
        let mut out = encoder(work);
        let Some(user) = user else { return out.null() };
        let flags: Vec<&str> = user.flags().collect();
        out.map(6);
        out.bulk(b"flags");
        out.set(flags.len());
        flags.iter().for_each(|flag| out.bulk(flag.as_bytes()));
        out.bulk(b"passwords");
        let passwords = user.password_texts();
        out.array(passwords.len());
        passwords.for_each(|password| out.bulk(password.as_bytes()));
        write_selector(&user.root, &mut out);
        out.bulk(b"selectors");
        out.array(user.selectors.len());
        for selector in &user.selectors {
            out.map(3);
            write_selector(selector, &mut out);
        }
    }

    fn acl_log(&self, count: u64, work: &mut Turn<'_>) {
        let now = work.time.wall.0;
        let state = self.registry.lock();
        let count = state.journal.iter().len().min(usize::try_from(count).unwrap_or(usize::MAX));
        let mut out = encoder(work);
        out.array(count);
        for event in state.journal.iter().take(count) {
            out.map(10);
            out.bulk(b"count");
            out.integer(event.count as i64);
            let context = if event.in_transaction { "multi" } else { "toplevel" };
            for (title, text) in [
                ("reason", event.reason.word()),
                ("context", context),
                ("object", &event.object),
                ("username", &event.user),
            ] {
                out.bulk(title.as_bytes());
                out.bulk(text.as_bytes());
            }
            out.bulk(b"age-seconds");
            let age = now.saturating_sub(event.created);
            out.double(age as f64 / 1000.0);
            out.bulk(b"client-info");
            out.bulk(event.client.as_bytes());
            for (title, number) in [
                ("entry-id", event.id),
                ("timestamp-created", event.created),
                ("timestamp-last-updated", event.updated),
            ] {
                out.bulk(title.as_bytes());
                out.integer(number as i64);
            }
        }
    }

    fn acl_owners(&self, work: &mut Turn<'_>) {
        let state = self.registry.lock();
        let mut out = encoder(work);
        out.array(state.definitions.iter().len());
        for (kind, name, definition) in state.definitions.iter() {
            let refused = state.suspended().get(kind, name);
            out.map(4);
            for (title, text) in [("kind", kind.word()), ("name", name)] {
                out.bulk(title.as_bytes());
                out.bulk(text.as_bytes());
            }
            out.bulk(b"owner");
            out.bulk(definition.owner.as_deref().unwrap_or_default());
            out.bulk(b"refused");
            out.bulk(refused.map_or("", |it| &it.reason).as_bytes());
        }
    }
}

fn write_selector(selector: &Selector, out: &mut impl Reply) {
    out.bulk(b"commands");
    out.bulk(selector.commands_text().as_bytes());
    out.bulk(b"keys");
    out.bulk(&selector.keys_text());
    out.bulk(b"channels");
    out.bulk(&selector.channels_text());
}

fn cat(category: Option<&[u8]>, work: &mut Turn<'_>) -> Result<(), String> {
    let Some(category) = category else {
        let mut out = encoder(work);
        out.array(CATEGORIES.len());
        CATEGORIES.iter().for_each(|name| out.bulk(name.as_bytes()));
        return Ok(());
    };
    if !CATEGORIES.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(category)) {
        return Err(format!("Unknown category '{}'", category.escape_ascii()));
    }
    let all = SPECS.iter().flat_map(|spec| std::iter::once(spec).chain(spec.subcommands));
    let names: Vec<&str> =
        all.filter(|spec| in_category(spec, category)).map(|spec| spec.full_name).collect();
    debug_assert!(names.iter().all(|name| command_of(name.as_bytes()).is_some()));
    let mut out = encoder(work);
    out.array(names.len());
    names.iter().for_each(|name| out.bulk(name.as_bytes()));
    Ok(())
}

fn gen_pass(bits: Option<&[u8]>, work: &mut Turn<'_>) -> Result<(), String> {
    let bits = bits.map_or(Some(PASSWORD_BITS), number::parse_u64);
    let bits = bits.filter(|bits| (1..=PASSWORD_BITS_MAX).contains(bits)).ok_or(BAD_BITS)?;
    let digits = bits.div_ceil(4) as usize;
    let mut bytes = vec![0; digits.div_ceil(2)];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| format!("the system gives no random bytes: {error}"))?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    encoder(work).bulk(&text.as_bytes()[..digits]);
    Ok(())
}
