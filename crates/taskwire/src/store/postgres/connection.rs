//! Connections with the database, and statements on them.
//!
//! A statement is written once and can be run in two ways: prepared under a name, or without one in a single round trip, as poolers need
//! it that give each transaction another connection of the server. For their sake nothing relies on settings of a session: each table has
//! the name of its schema, and what matters is set in the transaction.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use deadpool_postgres::{ClientWrapper, Connect, Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime};
use futures_util::future::{BoxFuture, MaybeDone, maybe_done, try_join_all};
use tokio::{task::JoinHandle, time::timeout};
use tokio_postgres::{
    Client, Row, Statement,
    types::{ToSql, Type},
};

use super::{
    busy::Busy,
    config::{Endpoint, PostgresConfig},
    durability::{Durability, SETTINGS},
    error::{away, classify, describe, is_about_names, leaves_connection},
};
use crate::store::Error;

/// Connections for what the writer reads, for wake-ups and for takeovers: readers must not be in their way.
const CONTROL_CONNECTIONS: usize = 3;
/// The lease waits for nobody.
const LEASE_CONNECTIONS: usize = 1;
/// How long we wait beyond the server's own limit.
const MARGIN: Duration = Duration::from_secs(1);
/// On how many connections a statement is tried: one that was idle may be dead.
const TRIES_MAX: u32 = 3;
/// All that we ask is found by an index. The plan of a prepared statement is made once, perhaps while its table is empty, and then kept while
/// the table grows: it must not read all of it, to find rows or to join them.
pub(super) const PLANNING: [&str; 4] = ["jit = off", "enable_seqscan = off", "enable_hashjoin = off", "enable_mergejoin = off"];
const TOO_LONG: &str = "the database took too long to answer";

/// A statement. In its text `@` stands for the schema.
pub(super) struct Sql {
    pub(super) text: &'static str,
    pub(super) types: &'static [Type],
}

/// A value for a statement that is sent with others.
pub(super) type Param<'a> = Box<dyn ToSql + Sync + Send + 'a>;
pub(super) type Answer = Result<Vec<Row>, tokio_postgres::Error>;

/// A number for PostgreSQL; one that is too large becomes its largest.
pub(super) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// How the database can be used.
struct Mode {
    /// Whether statements are prepared under a name.
    named: AtomicBool,
    /// Whether a connection is known to be the same session all the time, so that it can have settings.
    sessions: AtomicBool,
}

/// Makes connections.
#[derive(Clone)]
struct Connector {
    endpoint: Endpoint,
    mode: Arc<Mode>,
    /// What each new connection begins with.
    settings: String,
    durability: Arc<Durability>,
}

impl Connector {
    async fn open(&self) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error> {
        let (client, connection) = self.endpoint.config.connect(self.endpoint.tls.clone()).await?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = describe(&error), "a connection with the database has ended");
            }
        });
        let set = if self.mode.sessions.load(Ordering::Relaxed) { format!("{};", self.settings) } else { String::new() };
        self.durability.look_at(&client.simple_query(&format!("{set} {SETTINGS}")).await?);
        Ok((client, task))
    }

    async fn connect(&self) -> Result<ClientWrapper, Error> {
        match timeout(self.endpoint.timeout, self.open()).await {
            Ok(Ok((client, task))) => Ok(ClientWrapper::new(client, task)),
            Ok(Err(error)) => Err(away(format_args!("{}: {}", self.endpoint, describe(&error)))),
            Err(_) => Err(away(format_args!("{}: it took too long to connect", self.endpoint))),
        }
    }
}

impl Connect for Connector {
    fn connect(&self, _: &tokio_postgres::Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        Box::pin(self.open())
    }
}

/// A task in the background that ends with this.
pub(super) struct EndOnDrop(Option<JoinHandle<()>>);

impl EndOnDrop {
    pub(super) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(tokio::spawn(future)))
    }

    /// Waits for its end.
    pub(super) async fn ended(&mut self) {
        if let Some(task) = &mut self.0 {
            let _ = task.await;
            self.0 = None;
        }
    }
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// The database, as a node reaches it.
pub(super) struct Database {
    pub(super) config: PostgresConfig,
    /// What stands for `@`.
    prefix: String,
    mode: Arc<Mode>,
    connector: Connector,
    /// Where a connection is a session.
    direct: Connector,
    readers: Pool,
    control: Pool,
    lease: Pool,
}

impl Database {
    pub(super) fn new(config: PostgresConfig) -> Result<Self, Error> {
        config.check()?;
        let endpoint = Endpoint::new(&config.url, &config)?;
        let sessions_at = config.listen_url.as_ref().map_or(Ok(endpoint.clone()), |url| Endpoint::new(url, &config))?;
        let is_plain = !(config.unnamed_statements || endpoint.unnamed_statements);
        let mode = Arc::new(Mode { named: AtomicBool::new(is_plain), sessions: AtomicBool::new(false) });
        let settings = format!(
            "SET statement_timeout = {}; {}",
            config.statement_timeout.as_millis(),
            PLANNING.map(|setting| format!("SET {setting}")).join("; ")
        );
        let durability = Arc::<Durability>::default();
        let connector = Connector { endpoint, mode: mode.clone(), settings: settings.clone(), durability: durability.clone() };
        let always = || Arc::new(Mode { named: AtomicBool::new(false), sessions: AtomicBool::new(true) });
        let direct_mode = if config.listen_url.is_some() { always() } else { mode.clone() };
        let settings = format!("{settings}; SET lock_timeout = 2000");
        let direct = Connector { endpoint: sessions_at, mode: direct_mode, settings, durability };
        let readers = pool(&connector, &config, config.max_connections)?;
        let control = pool(&connector, &config, CONTROL_CONNECTIONS)?;
        let lease = pool(&connector, &config, LEASE_CONNECTIONS)?;
        Ok(Self { prefix: format!("\"{}\".", config.schema), mode, connector, direct, readers, control, lease, config })
    }

    /// The text with the schema in it.
    pub(super) fn render(&self, text: &str) -> String {
        text.replace('@', &self.prefix)
    }

    fn is_named(&self) -> bool {
        self.mode.named.load(Ordering::Relaxed)
    }

    /// A connection of its own.
    pub(super) async fn connect(&self) -> Result<ClientWrapper, Error> {
        self.connector.connect().await
    }

    /// The same, which is a session even behind a pooler, if the configuration says where.
    pub(super) async fn connect_session(&self) -> Result<ClientWrapper, Error> {
        self.direct.connect().await
    }

    /// Where sessions are.
    pub(super) fn sessions_at(&self) -> &Endpoint {
        &self.direct.endpoint
    }

    /// Runs a statement for a reader.
    pub(super) async fn read(&self, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        self.run_on(&self.readers, sql, params).await
    }

    /// Runs a statement for anybody else. Each of these can be carried out twice: that happens if a connection breaks.
    pub(super) async fn run(&self, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        self.run_on(&self.control, sql, params).await
    }

    /// The same for the lease.
    pub(super) async fn run_for_lease(&self, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        self.run_on(&self.lease, sql, params).await
    }

    async fn run_on(&self, pool: &Pool, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        let tries = async {
            for _ in 1..TRIES_MAX {
                if let Ok(answered) = self.try_on(pool, sql, params).await {
                    return answered;
                }
            }
            self.try_on(pool, sql, params).await.unwrap_or_else(Err)
        };
        // Time for one connection that is dead, and for another one.
        let limit = self.config.statement_timeout + MARGIN + self.config.connect_timeout;
        timeout(limit, tries).await.unwrap_or_else(|_| Err(away(TOO_LONG)))
    }

    /// Runs a statement on one connection. Fails if that is dead: the server may have been started anew since it was last used, or the
    /// network swallows what is sent. The next one is new.
    async fn try_on(&self, pool: &Pool, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Result<Result<Vec<Row>, Error>, Error> {
        let busy = match pool.get().await {
            Ok(client) => Busy::new(client),
            Err(PoolError::Backend(error)) => return Ok(Err(away(format_args!("{}: {}", self.connector.endpoint, describe(&error))))),
            Err(error) => return Ok(Err(away(format_args!("no connection with the database is free: {error}")))),
        };
        match timeout(self.config.statement_timeout + MARGIN, self.run_one(&busy, sql, params)).await {
            Ok(Ok(rows)) => {
                busy.answered();
                Ok(Ok(rows))
            }
            Ok(Err(error)) => {
                self.note(&error);
                if leaves_connection(&error) {
                    busy.answered();
                    return Ok(Err(classify(error)));
                }
                busy.fail();
                Err(classify(error))
            }
            Err(_) => {
                busy.fail();
                Err(away(TOO_LONG))
            }
        }
    }

    async fn run_one(&self, client: &ClientWrapper, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Answer {
        query(client, &self.prepare_one(client, sql).await?, sql, params).await
    }

    /// Runs a statement on a connection.
    pub(super) async fn run_in(&self, client: &ClientWrapper, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        query(client, &Prepared::Unnamed(self.render(sql.text)), sql, params).await.map_err(classify)
    }

    async fn prepare_one(&self, client: &ClientWrapper, sql: &Sql) -> Result<Prepared, tokio_postgres::Error> {
        let text = self.render(sql.text);
        if !self.is_named() {
            return Ok(Prepared::Unnamed(text));
        }
        client.prepare_typed_cached(&text, sql.types).await.map(Prepared::Named)
    }

    /// Prepares what is to be sent together, since nothing can be sent in order while that is not done.
    pub(super) async fn prepare(&self, client: &ClientWrapper, calls: &[Call<'_>]) -> Result<Vec<Prepared>, tokio_postgres::Error> {
        try_join_all(calls.iter().map(|call| self.prepare_one(client, call.sql))).await
    }

    /// Remembers what an error says about the way to the database.
    pub(super) fn note(&self, error: &tokio_postgres::Error) {
        if is_about_names(error) && self.mode.named.swap(false, Ordering::Relaxed) {
            self.mode.sessions.store(false, Ordering::Relaxed);
            tracing::warn!("the database is behind a pooler in transaction mode: statements are not prepared any more");
        }
    }

    /// Finds out whether there is a pooler that gives each transaction another connection of the server.
    pub(super) async fn find_pooler(&self) -> Result<(), Error> {
        if !self.is_named() {
            return Ok(());
        }
        let (one, other) = (self.connect().await?, self.connect().await?);
        let test = timeout(self.config.statement_timeout, is_shared(&one, &other)).await;
        let (prepared_is_found, is_shared) = test.map_err(|_| away(TOO_LONG))?.map_err(classify)?;
        self.mode.sessions.store(!is_shared, Ordering::Relaxed);
        if is_shared {
            self.mode.named.store(prepared_is_found, Ordering::Relaxed);
            let how = if prepared_is_found { "prepared" } else { "not prepared" };
            tracing::info!("the database is behind a pooler in transaction mode: statements are {how}");
        }
        Ok(())
    }
}

/// Whether a prepared statement is found again, and whether two connections share one of the server.
async fn is_shared(one: &ClientWrapper, other: &ClientWrapper) -> Result<(bool, bool), tokio_postgres::Error> {
    const TEXT: &str = "SELECT pg_backend_pid()";
    let prepared = one.prepare(TEXT).await;
    let first: i32 = one.query_typed_one(TEXT, &[]).await?.try_get(0)?;
    // While this transaction has the connection of the server, the first one gets another.
    other.batch_execute("BEGIN").await?;
    let second: i32 = other.query_typed_one(TEXT, &[]).await?.try_get(0)?;
    let again: Option<i32> = match &prepared {
        Ok(statement) => match timeout(MARGIN * 2, one.query_one(statement, &[])).await {
            Ok(Ok(row)) => Some(row.try_get(0)?),
            _ => None,
        },
        Err(_) => None,
    };
    other.batch_execute("ROLLBACK").await?;
    Ok((again.is_some(), first == second || again != Some(first)))
}

fn pool(connector: &Connector, config: &PostgresConfig, size: usize) -> Result<Pool, Error> {
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_connect(connector.endpoint.config.clone(), connector.clone(), recycling);
    Pool::builder(manager)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(config.connect_timeout))
        .create_timeout(Some(connector.endpoint.timeout))
        .recycle_timeout(Some(config.connect_timeout))
        .build()
        .map_err(|error| Error::Unusable(error.to_string()))
}

/// A statement as a connection has it.
pub(super) enum Prepared {
    Named(Statement),
    Unnamed(String),
}

/// Sends a statement when it is first polled, then waits for the answer.
async fn query(client: &Client, prepared: &Prepared, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Answer {
    match prepared {
        Prepared::Named(statement) => client.query(statement, params).await,
        Prepared::Unnamed(text) => {
            let typed: Vec<(&(dyn ToSql + Sync), Type)> = params.iter().copied().zip(sql.types.iter().cloned()).collect();
            client.query_typed(text, &typed).await
        }
    }
}

/// A statement with its values, to be sent with others.
pub(super) struct Call<'a> {
    pub(super) sql: &'static Sql,
    pub(super) params: Vec<Param<'a>>,
}

impl<'a> Call<'a> {
    pub(super) fn new(sql: &'static Sql, params: Vec<Param<'a>>) -> Self {
        Self { sql, params }
    }
}

/// Statements that are sent one after the other, without waiting for the answers between.
pub(super) struct Pipeline<'a>(Vec<MaybeDone<BoxFuture<'a, Answer>>>);

impl<'a> Pipeline<'a> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a command without values.
    pub(super) fn command(&mut self, client: &'a Client, text: &'a str) {
        let answer: BoxFuture<'a, Answer> = Box::pin(async move { client.batch_execute(text).await.map(|()| Vec::new()) });
        self.0.push(maybe_done(answer));
    }

    /// Adds statements.
    pub(super) fn calls(&mut self, client: &'a Client, calls: &'a [Call<'a>], prepared: &'a [Prepared]) {
        for (call, prepared) in calls.iter().zip(prepared) {
            let answer: BoxFuture<'a, Answer> = Box::pin(async move {
                let params: Vec<&(dyn ToSql + Sync)> = call.params.iter().map(|param| &**param as &(dyn ToSql + Sync)).collect();
                query(client, prepared, call.sql, &params).await
            });
            self.0.push(maybe_done(answer));
        }
    }

    /// Sends what was added, in its order. Fails if something could not be sent: then what comes after it must not be.
    pub(super) async fn send(&mut self) -> Result<(), tokio_postgres::Error> {
        poll_fn(|context| {
            for call in &mut self.0 {
                let _ = Pin::new(call).poll(context);
            }
            Poll::Ready(())
        })
        .await;
        let failed = self.0.iter_mut().position(|call| Pin::new(call).output_mut().is_some_and(|answer| answer.is_err()));
        match failed.and_then(|failed| Pin::new(&mut self.0[failed]).take_output()) {
            Some(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits for all answers. Fails with the first error, since those after it only follow from it.
    pub(super) async fn finish(mut self) -> Result<Vec<Vec<Row>>, tokio_postgres::Error> {
        poll_fn(|context| {
            let mut is_done = true;
            for call in &mut self.0 {
                is_done &= Pin::new(call).poll(context).is_ready();
            }
            if is_done { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.0.iter_mut().map(|call| Pin::new(call).take_output().unwrap_or_else(|| Ok(Vec::new()))).collect()
    }
}
