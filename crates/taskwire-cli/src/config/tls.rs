//! `[tls]`: the certificate of the server, and those of its clients.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use taskwire::server::{Tls, TlsSettings};
use taskwire_core::Timestamp;

use super::{Config, base};

/// How long before it expires a certificate is warned about.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);
/// The bit of a mode that lets everybody read.
const EVERYBODY_READS: u32 = 0o004;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsTable {
    /// The certificate of the server, and after it those that lead to its authority (PEM). Required.
    certificate: PathBuf,
    /// The key of the certificate (PEM), without a passphrase. Required.
    key: PathBuf,
    /// The authorities (PEM) whose certificates clients may show. Default: none, clients are not asked for any.
    #[serde(default)]
    client_ca: Option<PathBuf>,
    /// Whether a client without such a certificate is turned away. Default: `false`.
    #[serde(default)]
    require_client: bool,
}

impl Config {
    /// Refuses what makes no sense, whatever is in the files.
    pub(super) fn check_tls(&self) -> anyhow::Result<()> {
        let asks_clients = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if self.auth.client_certificates && !asks_clients {
            let message = "`auth.client_certificates` needs `tls.client_ca`: the authorities whose certificates count";
            return Err(self.refuse(&["auth", "client_certificates"], message));
        }
        if self.tls.as_ref().is_some_and(|tls| tls.require_client) && !asks_clients {
            return Err(self.refuse(&["tls", "require_client"], "`tls.require_client` needs `tls.client_ca`"));
        }
        Ok(())
    }

    /// What the server speaks TLS with, read from the files; none if it speaks none.
    pub(crate) fn read_tls(&self) -> anyhow::Result<Option<Tls>> {
        let Some(table) = &self.tls else { return Ok(None) };
        let read = |key: &str, path: &Path| {
            let path = self.beside(path);
            fs::read(&path).map_err(|error| self.refuse(&["tls", key], &format!("{} cannot be read: {error}", path.display())))
        };
        let settings = TlsSettings {
            certificate: read("certificate", &table.certificate)?,
            key: read("key", &table.key)?,
            client_ca: table.client_ca.as_deref().map(|path| read("client_ca", path)).transpose()?,
            require_client: table.require_client,
        };
        let tls = Tls::new(&settings).map_err(|invalid| {
            let file = match invalid.setting {
                "certificate" => Some(&table.certificate),
                "key" => Some(&table.key),
                _ => table.client_ca.as_ref(),
            };
            let file = file.map(|path| format!("{} cannot be used: ", self.beside(path).display())).unwrap_or_default();
            self.refuse(&["tls", invalid.setting], &format!("{file}{}", invalid.reason))
        })?;
        Ok(Some(tls))
    }

    /// Warnings for people about the certificate and its key, a line for each.
    pub(crate) fn tls_warnings(&self, tls: &Tls, now: Timestamp) -> Vec<String> {
        let Some(table) = &self.tls else { return Vec::new() };
        let (file, expires) = (self.source.path.display(), tls.expires());
        let certificate = self.beside(&table.certificate);
        let renew = "put a new one in its place, and run `taskwire reload`";
        let expiry = if expires <= now {
            Some(format!("warning: {file}: the certificate in {} expired at {expires}: {renew}", certificate.display()))
        } else {
            let is_soon = expires.since(now) < SOON;
            is_soon.then(|| format!("warning: {file}: the certificate in {} expires at {expires}: {renew}", certificate.display()))
        };
        let key = self.beside(&table.key);
        let is_open = fs::metadata(&key).is_ok_and(|found| found.permissions().mode() & EVERYBODY_READS != 0);
        let open = is_open.then(|| format!("warning: {file}: every user of this machine can read {0}: `chmod 600 {0}`", key.display()));
        expiry.into_iter().chain(open).collect()
    }

    /// A path as the file has it, which is relative to the file.
    fn beside(&self, path: &Path) -> PathBuf {
        base(&self.source.path).join(path)
    }
}
