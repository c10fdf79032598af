//! How to reach the database: an URL, and what tokio-postgres does not know of it.

use std::{fmt, fs, path::Path, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio_postgres::{
    Socket,
    config::{Config, Host, SslMode, TargetSessionAttrs},
    tls::MakeTlsConnect,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::store::Error;

/// The longest name of a schema. The names of its partitions and of its channel have to fit into the 63 bytes of PostgreSQL.
const SCHEMA_MAX: usize = 40;

/// How a node uses PostgreSQL.
#[derive(Clone)]
pub struct PostgresConfig {
    /// Where the database is: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`. There can be several `HOST:PORT`, with commas between: the
    /// primary is taken. What tokio-postgres has as parameters can follow after `?`; also `sslrootcert=FILE`, the certificates to trust
    /// instead of those of the system, and `pgbouncer=true`, the same as [`unnamed_statements`](Self::unnamed_statements).
    ///
    /// Whoever has a certificate is verified: `sslmode=require` means `verify-full`, and so does `prefer`, if the server offers TLS.
    pub url: String,
    /// The same for what needs a session, if `url` leads to a pooler in transaction mode: hearing what other nodes change, and upkeep.
    pub listen_url: Option<String>,
    /// What this node is called where nodes are listed.
    pub node: Arc<str>,
    /// The schema that has the tables. Small letters, digits and `_`.
    pub schema: String,
    /// How many connections readers may have. The node has up to seven more, each for its own purpose.
    pub max_connections: usize,
    /// How long it may take to reach one host, or to get a connection that is free.
    pub connect_timeout: Duration,
    /// How long a statement may take.
    pub statement_timeout: Duration,
    /// Whether statements are not prepared under a name, as some poolers need it. If that is so it is mostly found out.
    pub unnamed_statements: bool,
}

impl PostgresConfig {
    /// The database at `url`, for a node of this name.
    #[must_use]
    pub fn new(url: impl Into<String>, node: &str) -> Self {
        Self {
            url: url.into(),
            listen_url: None,
            node: node.into(),
            schema: "taskwire".to_owned(),
            max_connections: 16,
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(10),
            unnamed_statements: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let begins = self.schema.starts_with(|c: char| c.is_ascii_lowercase() || c == '_') && !self.schema.starts_with("pg_");
        if !begins || self.schema.len() > SCHEMA_MAX || !self.schema.chars().all(is_name) {
            return Err(Error::Unusable(format!(
                "`{}` cannot be the name of the schema: use up to {SCHEMA_MAX} small letters, digits and `_`, and begin with a letter",
                self.schema
            )));
        }
        if self.max_connections == 0 {
            return Err(Error::Unusable("readers need at least one connection to the database".to_owned()));
        }
        Ok(())
    }
}

/// Without the URLs, which may have passwords.
impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig").field("node", &self.node).field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// A database that can be connected to.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) config: Config,
    pub(super) tls: Tls,
    /// Whether the URL says that statements cannot have names.
    pub(super) unnamed_statements: bool,
    /// How long it may take to connect, whichever host it is.
    pub(super) timeout: Duration,
}

impl Endpoint {
    pub(super) fn new(url: &str, of: &PostgresConfig) -> Result<Self, Error> {
        let Parts { url, keys, root_certificates, unnamed_statements } = Parts::of(url)?;
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let cause = std::error::Error::source(&error).map(|cause| cause.to_string()).unwrap_or_default();
            unusable(format_args!("it is not understood: {cause}"))
        })?;
        let is_default = |key: &str| !keys.iter().any(|given| given == key);
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(unusable("it names no host"));
        }
        if is_default("application_name") {
            config.application_name(format!("taskwire {}", of.node.replace('\0', "")));
        }
        if is_default("target_session_attrs") {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if is_default("connect_timeout") {
            config.connect_timeout(of.connect_timeout);
        }
        // The defaults are hours, or none: a host that is gone must be noticed.
        if is_default("tcp_user_timeout") {
            config.tcp_user_timeout(of.statement_timeout);
        }
        if is_default("keepalives_idle") {
            config.keepalives_idle(Duration::from_secs(10)).keepalives_interval(Duration::from_secs(5)).keepalives_retries(3);
        }
        let hosts = u32::try_from(config.get_hosts().len().max(1)).unwrap_or(1);
        let timeout = of.connect_timeout.saturating_mul(hosts.saturating_add(1));
        let tls = tls(config.get_ssl_mode(), root_certificates.as_deref())?;
        Ok(Self { config, tls, unnamed_statements, timeout })
    }
}

/// Which database it is, without user and password.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports = self.config.get_ports();
        for (n, host) in self.config.get_hosts().iter().enumerate() {
            let port = ports.get(n).or_else(|| ports.first()).copied().unwrap_or(5432);
            f.write_str(if n == 0 { "" } else { "," })?;
            match host {
                Host::Tcp(name) => write!(f, "{name}:{port}")?,
                #[cfg(unix)]
                Host::Unix(path) => write!(f, "{}:{port}", path.display())?,
            }
        }
        write!(f, "/{}", self.config.get_dbname().unwrap_or_default())
    }
}

/// Never the URL itself: it may have a password.
fn unusable(why: impl fmt::Display) -> Error {
    Error::Unusable(format!("the URL of the database cannot be used: {why}"))
}

/// An URL without what tokio-postgres does not know.
struct Parts {
    url: String,
    /// Which parameters it has.
    keys: Vec<String>,
    root_certificates: Option<String>,
    unnamed_statements: bool,
}

impl Parts {
    fn of(url: &str) -> Result<Self, Error> {
        if !url.starts_with("postgresql://") && !url.starts_with("postgres://") {
            return Err(unusable("it must begin with `postgresql://`"));
        }
        if url.matches('@').count() > 1 {
            // Else a part of the password would be taken for a host, and be shown.
            return Err(unusable("it has more than one `@`: write `%40` for those in user, password or parameters"));
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        if query.contains('@') {
            return Err(unusable("write `%3F` for `?` in user and password"));
        }
        let mut parts = Self { url: base.to_owned(), keys: Vec::new(), root_certificates: None, unnamed_statements: false };
        let mut kept = Vec::new();
        for (key, value) in query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, ""))) {
            parts.keys.push(key.to_owned());
            match (key, value) {
                ("sslrootcert", "system") => {}
                ("sslrootcert", path) => parts.root_certificates = Some(decode(path)?),
                ("pgbouncer", value) => parts.unnamed_statements = value == "true",
                ("sslmode", "verify-full" | "verify-ca") => kept.push("sslmode=require".to_owned()),
                ("target_session_attrs", "primary") => kept.push("target_session_attrs=read-write".to_owned()),
                _ => kept.push(format!("{key}={value}")),
            }
        }
        if !kept.is_empty() {
            parts.url = format!("{base}?{}", kept.join("&"));
        }
        Ok(parts)
    }
}

/// Replaces `%XX` in a parameter: tokio-postgres knows how.
fn decode(value: &str) -> Result<String, Error> {
    let config: Config =
        format!("postgresql:///?application_name={value}").parse().map_err(|_| unusable("`sslrootcert` is not the name of a file"))?;
    Ok(config.get_application_name().unwrap_or_default().to_owned())
}

/// TLS that always verifies whom it talks to.
fn tls(mode: SslMode, root_certificates: Option<&str>) -> Result<Tls, Error> {
    let mut roots = RootCertStore::empty();
    match root_certificates {
        _ if mode == SslMode::Disable => {}
        Some(path) => {
            let failed = |why: &dyn fmt::Display| Error::Unusable(format!("the certificates in {path} cannot be used: {why}"));
            let pem = fs::read(Path::new(path)).map_err(|source| Error::File { path: path.to_owned(), source })?;
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                roots.add(certificate.map_err(|error| failed(&error))?).map_err(|error| failed(&error))?;
            }
            if roots.is_empty() {
                return Err(failed(&"there is none"));
            }
        }
        None => {
            // A machine may have none, and need none.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Unusable(format!("TLS cannot be used: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Tls(MakeRustlsConnect::new(config)))
}

/// TLS for hosts, and none for Unix sockets.
#[derive(Clone)]
pub(super) struct Tls(MakeRustlsConnect);

impl MakeTlsConnect<Socket> for Tls {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type TlsConnect = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
    type Error = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Error;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Self::TlsConnect, Self::Error> {
        // A Unix socket has no name, and an empty one is refused. No server offers TLS there, so the name is never used.
        let domain = if domain.is_empty() { "localhost" } else { domain };
        MakeTlsConnect::<Socket>::make_tls_connect(&mut self.0, domain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Result<Endpoint, Error> {
        Endpoint::new(url, &PostgresConfig::new(url, "n1"))
    }

    #[test]
    fn what_only_we_know_is_taken_out_of_the_url_and_defaults_are_set() {
        let plain = endpoint("postgresql://me:secret@one:1,two:2/db?sslmode=disable").expect("it is understood");
        assert_eq!(plain.to_string(), "one:1,two:2/db");
        assert_eq!(plain.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        assert_eq!(plain.config.get_connect_timeout(), Some(&Duration::from_secs(5)));
        assert_eq!(plain.timeout, Duration::from_secs(15), "each host may take its time");
        assert!(!plain.unnamed_statements);
        let all = "postgres://h/db?pgbouncer=true&sslmode=verify-full&sslrootcert=system&target_session_attrs=any&connect_timeout=1";
        let all = endpoint(all).expect("it is understood");
        assert!(all.unnamed_statements);
        assert_eq!((all.config.get_ssl_mode(), all.config.get_target_session_attrs()), (SslMode::Require, TargetSessionAttrs::Any));
        assert_eq!(all.config.get_connect_timeout(), Some(&Duration::from_secs(1)));
        assert!(matches!(endpoint("postgres://h/db?sslrootcert=%2Fno%20where"), Err(Error::File { path, .. }) if path == "/no where"));
    }

    #[test]
    fn no_error_has_the_password() {
        let urls = [
            "mysql://me:secret@host/db",
            "postgresql://me:secret@part@host/db",
            "postgresql://me:secret?x=y@host/db",
            "postgresql://me:secret@host:none/db",
            "postgresql://me:secret@host/db?secrets=1",
            "postgresql://me:secret@/db",
        ];
        for url in urls {
            let error = endpoint(url).err().expect("it cannot be used").to_string();
            assert!(!error.contains("secret@") && !error.contains("me:"), "{error}");
        }
        let config = PostgresConfig { listen_url: Some(urls[0].to_owned()), ..PostgresConfig::new(urls[0], "n1") };
        assert!(!format!("{config:?}").contains("secret"));
    }

    #[test]
    fn a_schema_has_a_plain_name() {
        let check = |schema: &str| PostgresConfig { schema: schema.to_owned(), ..PostgresConfig::new("", "n1") }.check();
        assert!(["taskwire", "_a1"].iter().all(|schema| check(schema).is_ok()));
        assert!(["", "1a", "A", "a-b", "a\"b", "pg_a", &"a".repeat(41)].iter().all(|schema| check(schema).is_err()));
    }
}
