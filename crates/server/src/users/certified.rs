//! Users whom a certificate names, which is as good as their password.
//!
//! Only certificates that an authority of `tls-ca-cert-file` has signed come here; what they say of their owner is what that authority vouches for.

use super::UserRegistry;
use headwater_acl::User;
use headwater_config::{CertificateUser, Config};
use std::collections::HashMap;
use std::sync::Arc;

/// Which certificates are whose.
#[derive(Debug, Default)]
pub(crate) struct Certified {
    /// Users by the names of their certificates.
    users: HashMap<String, Vec<u8>>,
    /// Any other name is that of the user.
    common_names: bool,
}

impl Certified {
    pub(super) fn new(config: &Config) -> Self {
        let named = config.users.iter().filter(|user| !user.certificate.is_empty());
        Self {
            users: named
                .map(|user| (user.certificate.clone(), user.name.clone().into_bytes()))
                .collect(),
            common_names: config.tls.tls_auth_clients_user == CertificateUser::CommonName,
        }
    }

    fn user_named<'n>(&'n self, certificate: &'n str) -> Option<&'n [u8]> {
        let other = self.common_names.then_some(certificate.as_bytes());
        self.users.get(certificate).map(Vec::as_slice).or(other)
    }
}

impl UserRegistry {
    /// The user as whom a certificate of this name logs in; `Err`: it would be this one, who is not there or may not log in.
    pub(crate) fn user_of_certificate(
        &self,
        certificate: &str,
    ) -> Result<Option<Arc<User>>, Vec<u8>> {
        let state = self.lock();
        let Some(name) = state.certified.user_named(certificate) else { return Ok(None) };
        match state.users.get(name) {
            Some(user) if user.enabled => Ok(Some(user.clone())),
            _ => Err(name.to_vec()),
        }
    }

    /// The name of the user as whom a client with this certificate is passed on to an owner, if it may log in.
    pub(crate) fn named_by(&self, certificate: Option<&str>) -> Option<Vec<u8>> {
        let user = self.user_of_certificate(certificate?).ok().flatten()?;
        Some(user.name.clone())
    }
}
