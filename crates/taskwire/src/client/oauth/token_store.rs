//! The store of tokens, scopes and client ids: in memory always, on disk if the settings say so.
//!
//! `tokens.json` has an entry for each server. Several processes use it: each replaces the whole file, under a lock.

use std::{
    collections::BTreeMap,
    fs::{DirBuilder, File, OpenOptions},
    io::{self, ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use rmcp::transport::{AuthError, CredentialStore, StoredCredentials};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use taskwire_core::Timestamp;
use tokio::sync::OnceCell;

use crate::{client::Error, clock::Clock};

const FORMAT: u32 = 1;
const FILE: &str = "tokens.json";
/// Held while the file is changed.
const WRITING: &str = "tokens.lock";
/// Held while a token is renewed, which takes as long as the authorization server does.
const RENEWING: &str = "tokens.renewal.lock";
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Servers in the file; the one with the oldest token goes first.
const SERVERS_MAX: usize = 200;
/// How long before its expiry a token is renewed.
const MARGIN: Duration = Duration::from_secs(30);

/// Our registration at an authorization server.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) id: String,
    /// The client secret of a dynamic registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<String>,
    pub(super) redirect_uri: String,
    /// The authorization server. No other one ever sees the id and tokens.
    pub(super) issuer: Option<String>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Record {
    client: Identity,
    credentials: StoredCredentials,
}

#[derive(Serialize, Deserialize)]
struct Tokens {
    format: u32,
    #[serde(default)]
    servers: BTreeMap<String, Record>,
}

#[derive(Clone)]
pub(super) struct Token {
    pub(super) access: String,
    pub(super) kind: String,
    pub(super) expired: bool,
    pub(super) expiring: bool,
    /// Whether there is a refresh token.
    pub(super) renewable: bool,
    /// How many requests have used it.
    pub(super) uses: u32,
}

impl Token {
    /// Whether it needs no renewal.
    pub(super) fn is_good(&self) -> bool {
        !(self.expired || self.expiring && self.renewable)
    }
}

#[derive(Default)]
struct Memory {
    identity: Option<Identity>,
    credentials: Option<StoredCredentials>,
    /// The scopes granted last, also after the token is gone.
    scopes: Vec<String>,
    uses: u32,
}

/// The tokens of one server.
#[derive(Clone)]
pub(super) struct TokenStore(Arc<Inner>);

struct Inner {
    server: String,
    directory: Option<PathBuf>,
    /// The client id of the settings: a stored token of another client is not used.
    client_id: Option<String>,
    clock: Arc<dyn Clock>,
    memory: Mutex<Memory>,
    opened: OnceCell<()>,
}

impl TokenStore {
    pub(super) fn new(server: &str, directory: Option<PathBuf>, client_id: Option<String>, clock: Arc<dyn Clock>) -> Self {
        let (memory, opened) = (Mutex::default(), OnceCell::new());
        Self(Arc::new(Inner { server: server.to_owned(), directory, client_id, clock, memory, opened }))
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the file, once.
    pub(super) async fn open(&self) -> Result<(), Error> {
        self.0.opened.get_or_try_init(|| async { self.reload().await.map(|_| ()) }).await.copied()
    }

    /// Reads the file. True if it has a token that is new to this process.
    pub(super) async fn reload(&self) -> Result<bool, Error> {
        let Some(directory) = self.0.directory.clone() else { return Ok(false) };
        let server = self.0.server.clone();
        let kept = blocking(move || Ok(read(&directory.join(FILE))?.servers.remove(&server))).await?;
        let Some(Record { client, credentials }) = kept else { return Ok(false) };
        if self.0.client_id.as_ref().is_some_and(|id| *id != client.id) {
            return Ok(false);
        }
        let mut memory = self.memory();
        let new = access(&credentials) != memory.credentials.as_ref().and_then(access);
        if new {
            let scopes = credentials.granted_scopes.clone();
            *memory = Memory { identity: Some(client), credentials: Some(credentials), scopes, uses: 0 };
        }
        Ok(new)
    }

    pub(super) fn token(&self) -> Option<Token> {
        let memory = self.memory();
        let credentials = memory.credentials.as_ref()?;
        let response = serde_json::to_value(credentials.token_response.as_ref()?).ok()?;
        let lifetime = response["expires_in"].as_u64().zip(credentials.token_received_at);
        let left = lifetime.map(|(seconds, received)| {
            let until = moment(received).after(Duration::from_secs(seconds));
            (until.since(self.0.clock.now()), MARGIN.min(Duration::from_secs(seconds) / 2))
        });
        Some(Token {
            access: response["access_token"].as_str()?.to_owned(),
            kind: response["token_type"].as_str().unwrap_or_default().to_owned(),
            expired: left.is_some_and(|(left, _)| left.is_zero()),
            expiring: left.is_some_and(|(left, margin)| left <= margin),
            renewable: response["refresh_token"].is_string(),
            uses: memory.uses,
        })
    }

    /// The token for a request, which is counted as a use.
    pub(super) fn hand_out(&self) -> Option<String> {
        let mut memory = self.memory();
        memory.uses = memory.uses.saturating_add(1);
        memory.credentials.as_ref().and_then(access)
    }

    pub(super) fn identity(&self) -> Option<Identity> {
        self.memory().identity.clone()
    }

    /// Replaces the identity and returns the old one.
    pub(super) fn set_identity(&self, identity: Option<Identity>) -> Option<Identity> {
        std::mem::replace(&mut self.memory().identity, identity)
    }

    pub(super) fn scopes(&self) -> Vec<String> {
        self.memory().scopes.clone()
    }

    pub(super) fn forget_scopes(&self) {
        self.memory().scopes.clear();
    }

    /// Forgets the token. The identity and the granted scopes stay.
    pub(super) async fn forget_token(&self) {
        let Some(credentials) = self.memory().credentials.take() else { return };
        let gone = access(&credentials);
        self.change(move |servers, server| {
            // Another process may have stored a newer token.
            if servers.get(server).is_some_and(|record| access(&record.credentials) == gone) {
                servers.remove(server);
            }
        })
        .await;
    }

    /// Keeps other processes from renewing the token at the same time.
    pub(super) async fn lock_renewal(&self) -> Result<Option<File>, Error> {
        match self.0.directory.clone() {
            Some(directory) => blocking(move || lock(&directory, RENEWING).map(Some)).await,
            None => Ok(None),
        }
    }

    async fn keep(&self, mut credentials: StoredCredentials) {
        credentials.token_received_at = u64::try_from(self.0.clock.now().as_millis() / 1000).ok();
        let identity = {
            let mut memory = self.memory();
            memory.scopes.clone_from(&credentials.granted_scopes);
            memory.credentials = Some(credentials.clone());
            memory.uses = 0;
            memory.identity.clone()
        };
        if let Some(client) = identity {
            let record = Record { client, credentials };
            self.change(move |servers, server| {
                servers.insert(server.to_owned(), record);
                while servers.len() > SERVERS_MAX {
                    let others = servers.iter().filter(|(name, _)| *name != server);
                    let Some((oldest, _)) = others.min_by_key(|(_, record)| record.credentials.token_received_at) else { return };
                    let oldest = oldest.clone();
                    servers.remove(&oldest);
                }
            })
            .await;
        }
    }

    /// Changes the file. A failure is only logged: a token that cannot be stored can still be used.
    async fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Record>, &str) + Send + 'static) {
        let Some(directory) = self.0.directory.clone() else { return };
        let server = self.0.server.clone();
        let changed = blocking(move || {
            let _lock = lock(&directory, WRITING)?;
            let path = directory.join(FILE);
            let mut tokens = read(&path)?;
            change(&mut tokens.servers, &server);
            write(&path, &tokens)
        });
        if let Err(error) = changed.await {
            tracing::warn!(%error, "the sign-in is not kept");
        }
    }
}

/// The trait is an `async_trait`; these are its methods without the macro.
impl CredentialStore for TokenStore {
    fn load<'a, 'b>(&'a self) -> BoxFuture<'b, Result<Option<StoredCredentials>, AuthError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move { Ok(self.memory().credentials.clone()) })
    }

    fn save<'a, 'b>(&'a self, credentials: StoredCredentials) -> BoxFuture<'b, Result<(), AuthError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            self.keep(credentials).await;
            Ok(())
        })
    }

    fn clear<'a, 'b>(&'a self) -> BoxFuture<'b, Result<(), AuthError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            self.forget_token().await;
            Ok(())
        })
    }
}

fn access(credentials: &StoredCredentials) -> Option<String> {
    let response = serde_json::to_value(credentials.token_response.as_ref()?).ok()?;
    response["access_token"].as_str().map(str::to_owned)
}

fn moment(seconds: u64) -> Timestamp {
    Timestamp::from_millis(i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1000))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::Auth(error.to_string()))?
}

fn trouble(path: &Path, error: impl std::fmt::Display) -> Error {
    Error::Auth(format!("{} cannot be used: {error}", path.display()))
}

/// Takes a lock file; waits until no other process has it.
fn lock(directory: &Path, name: &str) -> Result<File, Error> {
    let path = directory.join(name);
    let locked = || -> io::Result<File> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        file.lock()?;
        Ok(file)
    };
    locked().map_err(|error| trouble(&path, error))
}

fn read(path: &Path) -> Result<Tokens, Error> {
    let size = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Tokens { format: FORMAT, servers: BTreeMap::new() }),
        Err(error) => return Err(trouble(path, error)),
    };
    let damaged = |what: String| trouble(path, format!("{what}; move it away and sign in again"));
    if size > FILE_BYTES_MAX {
        return Err(damaged(format!("it has {size} bytes, which are more than {FILE_BYTES_MAX}")));
    }
    let bytes = std::fs::read(path).map_err(|error| trouble(path, error))?;
    // The format is checked first: a later one may have other members.
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if value["format"] != FORMAT {
        return Err(damaged(format!("it has format {}, and this version knows {FORMAT}", value["format"])));
    }
    serde_json::from_value(value).map_err(|error| damaged(error.to_string()))
}

/// Replaces the file as a whole. Only this user can ever read it.
fn write(path: &Path, tokens: &Tokens) -> Result<(), Error> {
    let new = path.with_extension("json.new");
    let written = || -> io::Result<()> {
        // A leftover file may have other permissions.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec_pretty(tokens)?)?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    written().map_err(|error| trouble(path, error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;
    use crate::{clock::ManualClock, testing::TempDir};

    const START: Timestamp = Timestamp::from_millis(1_785_196_800_000);

    fn store(server: &str, dir: &TempDir, clock: &ManualClock) -> TokenStore {
        TokenStore::new(server, Some(dir.0.clone()), None, Arc::new(clock.clone()))
    }

    fn identity() -> Identity {
        let (redirect_uri, issuer) = ("http://127.0.0.1:1/callback".to_owned(), Some("https://as.example".to_owned()));
        Identity { id: "me".to_owned(), secret: Some("s3cret".to_owned()), redirect_uri, issuer }
    }

    fn credentials(access: &str, rest: Value) -> StoredCredentials {
        let mut response = json!({"access_token": access, "token_type": "Bearer"});
        response.as_object_mut().expect("an object").extend(rest.as_object().cloned().unwrap_or_default());
        let response = serde_json::from_value(response).expect("a response");
        StoredCredentials::new("me".to_owned(), Some(response), vec!["a".to_owned()], None)
    }

    async fn signed_in(store: &TokenStore, access: &str, rest: Value) {
        store.set_identity(Some(identity()));
        store.save(credentials(access, rest)).await.expect("kept");
    }

    #[tokio::test]
    async fn a_sign_in_outlives_the_process_and_is_readable_by_its_owner_only() {
        let (dir, clock) = (TempDir::absent(), ManualClock::new(START));
        signed_in(&store("https://one/mcp", &dir, &clock), "t1", json!({"refresh_token": "r1", "expires_in": 3600})).await;
        signed_in(&store("https://two/mcp", &dir, &clock), "t2", json!({})).await;

        let again = store("https://one/mcp", &dir, &clock);
        again.open().await.expect("readable");
        let token = again.token().expect("kept");
        assert_eq!((token.access.as_str(), token.renewable, token.is_good()), ("t1", true, true));
        assert_eq!(again.identity().expect("kept").secret.as_deref(), Some("s3cret"));
        assert_eq!(again.scopes(), ["a"]);

        let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&dir.0), 0o700);
        for entry in std::fs::read_dir(&dir.0).expect("readable") {
            let path = entry.expect("an entry").path();
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
    }

    #[tokio::test]
    async fn a_token_is_renewed_shortly_before_its_end() {
        let (dir, clock) = (TempDir::absent(), ManualClock::new(START));
        let store = store("https://one/mcp", &dir, &clock);
        signed_in(&store, "t1", json!({"refresh_token": "r1", "expires_in": 100})).await;
        let state = || store.token().map(|token| (token.is_good(), token.expired)).expect("a token");
        clock.advance(Duration::from_secs(69));
        assert_eq!(state(), (true, false));
        clock.advance(Duration::from_secs(1));
        assert_eq!(state(), (false, false));
        clock.advance(Duration::from_secs(30));
        assert_eq!(state(), (false, true));

        // A short-lived token is used for at least half of its lifetime.
        signed_in(&store, "t2", json!({"refresh_token": "r2", "expires_in": 10})).await;
        assert_eq!(state(), (true, false));
        clock.advance(Duration::from_secs(5));
        assert_eq!(state(), (false, false));

        // A token without a refresh token is used until it expires.
        signed_in(&store, "t3", json!({"expires_in": 10})).await;
        clock.advance(Duration::from_secs(9));
        assert_eq!(state(), (true, false));
    }

    #[tokio::test]
    async fn what_another_process_renewed_is_taken_over_and_never_thrown_away() {
        let (dir, clock) = (TempDir::absent(), ManualClock::new(START));
        let (one, two) = (store("https://one/mcp", &dir, &clock), store("https://one/mcp", &dir, &clock));
        signed_in(&one, "t1", json!({"refresh_token": "r1"})).await;
        assert!(two.reload().await.expect("readable"), "t1 is new to it");
        assert!(!two.reload().await.expect("readable"));
        signed_in(&one, "t2", json!({"refresh_token": "r2"})).await;
        two.forget_token().await;
        assert!(two.token().is_none());
        assert!(two.reload().await.expect("readable"), "t2 is still there");
        assert_eq!(two.hand_out().as_deref(), Some("t2"));
        two.forget_token().await;
        assert!(!store("https://one/mcp", &dir, &clock).reload().await.expect("readable"), "now it is gone");
        assert_eq!(two.scopes(), ["a"], "what was granted is remembered");
    }

    #[tokio::test]
    async fn what_was_kept_for_another_client_is_not_used() {
        let (dir, clock) = (TempDir::absent(), ManualClock::new(START));
        signed_in(&store("https://one/mcp", &dir, &clock), "t1", json!({})).await;
        let other = TokenStore::new("https://one/mcp", Some(dir.0.clone()), Some("you".to_owned()), Arc::new(clock));
        other.open().await.expect("readable");
        assert!(other.token().is_none());
    }

    #[tokio::test]
    async fn a_damaged_file_is_left_alone_and_the_error_says_what_to_do() {
        let (dir, clock) = (TempDir::absent(), ManualClock::new(START));
        std::fs::create_dir_all(&dir.0).expect("a directory");
        let path = dir.0.join(FILE);
        for content in ["", "{", "[]", r#"{"format":2,"servers":{}}"#, r#"{"format":1,"servers":{"https://one/mcp":{}}}"#] {
            std::fs::write(&path, content).expect("written");
            let store = store("https://one/mcp", &dir, &clock);
            let refused = store.open().await.expect_err(content).to_string();
            assert!(refused.contains("move it away"), "{content}: {refused}");
            signed_in(&store, "t1", json!({})).await;
            assert_eq!(store.hand_out().as_deref(), Some("t1"), "a token is a token");
            assert_eq!(std::fs::read_to_string(&path).expect("there"), content);
        }
    }

    #[tokio::test]
    async fn the_file_holds_so_many_servers_and_the_oldest_goes_first() {
        let (dir, clock) = (TempDir::absent(), ManualClock::new(START));
        for n in 0..=SERVERS_MAX {
            signed_in(&store(&format!("https://{n}/mcp"), &dir, &clock), "t", json!({})).await;
            clock.advance(Duration::from_secs(1));
        }
        let servers = read(&dir.0.join(FILE)).expect("readable").servers;
        assert_eq!(servers.len(), SERVERS_MAX);
        assert!(!servers.contains_key("https://0/mcp") && servers.contains_key(&format!("https://{SERVERS_MAX}/mcp")));
    }
}
