//! The beginning of a connection: who we are, what proves it, and with which settings we want to be served.

use crate::error::complaint;
use crate::password;
use crate::url::Target;
use crate::wire::{Connection, Error};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::frontend;
use std::borrow::Cow;

/// Messages until we are let in; PostgreSQL's own are about twenty.
const STEPS_MAX: u32 = 10_000;
/// Most rounds of hashing that a proof may take; PostgreSQL's own default is 4096.
const SCRAM_ROUNDS_MAX: u32 = 1_000_000;

impl Connection {
    /// Says who we are, and waits to be let in.
    pub(crate) fn start(
        &mut self,
        target: &Target,
        replication: bool,
        settings: &[(&str, &str)],
    ) -> Result<(), Error> {
        let mut parameters = vec![
            ("user", &*target.user),
            ("database", &*target.database),
            ("application_name", &*target.application),
            ("client_encoding", "UTF8"),
        ];
        parameters.extend(settings);
        if replication {
            parameters.push(("replication", "database"));
        }
        // Whoever asks for so much before we are let in, or says so much, is no PostgreSQL.
        let mut left = STEPS_MAX;
        frontend::startup_message(parameters, &mut self.out)?;
        self.flush()?;
        let mut scram: Option<ScramSha256> = None;
        loop {
            let message = self.next()?;
            left = left.checked_sub(1).ok_or_else(|| {
                Error::broken("what answers does not come to an end of its greeting")
            })?;
            let body = self.input[message.first..message.last].to_vec();
            match message.tag {
                b'R' => self.prove(target, &body, &mut scram)?,
                b'E' => return Err(complaint(&body)),
                b'S' if body == b"in_hot_standby\0on\0" => self.standby = true,
                b'K' => {
                    let process = body.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
                    self.process = process.unwrap_or_default();
                }
                b'Z' => return Ok(()),
                _ => {}
            }
        }
    }

    /// Answers one message about who we are.
    fn prove(
        &mut self,
        target: &Target,
        body: &[u8],
        scram: &mut Option<ScramSha256>,
    ) -> Result<(), Error> {
        let kind =
            body.get(..4).map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap_or_default()));
        let rest = body.get(4..).unwrap_or_default();
        let password = match kind {
            Some(3 | 5 | 10) => password::of(target).map_err(Error::broken)?,
            _ => Cow::default(),
        };
        let password = password.as_bytes();
        match kind {
            Some(0) => return Ok(()),
            Some(3) if !target.may_say_password() => {
                return Err(Error::broken(
                    "the database asks for the password in the clear: that needs sslmode=verify-full or verify-ca, or \
                     source-clear-passwords in the configuration file",
                ));
            }
            Some(3) => frontend::password_message(password, &mut self.out)?,
            Some(5) => {
                let salt =
                    rest.try_into().map_err(|_| Error::broken("a salt of the wrong length"))?;
                let hash = md5_hash(target.user.as_bytes(), password, salt);
                frontend::password_message(hash.as_bytes(), &mut self.out)?;
            }
            Some(10) => {
                let mut offered = rest.split(|&byte| byte == 0);
                if !offered.any(|name| name == SCRAM_SHA_256.as_bytes()) {
                    return Err(Error::broken(
                        "the database asks for a proof other than SCRAM-SHA-256",
                    ));
                }
                let made = ScramSha256::new(password, ChannelBinding::unsupported());
                frontend::sasl_initial_response(SCRAM_SHA_256, made.message(), &mut self.out)?;
                *scram = Some(made);
            }
            Some(11) => {
                let scram = scram.as_mut().ok_or_else(|| Error::broken("a proof out of turn"))?;
                check_rounds(rest)?;
                scram.update(rest)?;
                frontend::sasl_response(scram.message(), &mut self.out)?;
            }
            Some(12) => {
                let scram = scram.as_mut().ok_or_else(|| Error::broken("a proof out of turn"))?;
                return Ok(scram.finish(rest)?);
            }
            _ => return Err(Error::broken("the database asks for a proof that is not known here")),
        }
        self.flush()
    }
}

/// Refuses a proof that takes so many rounds that only somebody who wants to keep us busy asks for them.
fn check_rounds(first: &[u8]) -> Result<(), Error> {
    let rounds = first.split(|&byte| byte == b',').find_map(|part| part.strip_prefix(b"i="));
    let rounds = rounds.map(String::from_utf8_lossy).unwrap_or_default();
    match rounds.parse::<u32>() {
        Ok(rounds) if rounds > SCRAM_ROUNDS_MAX => Err(Error::broken(format!(
            "the database asks for a proof of {rounds} rounds (allowed: {SCRAM_ROUNDS_MAX})"
        ))),
        // What is no number is refused by who reads all of it.
        _ => Ok(()),
    }
}
