//! The PostgreSQL that the nodes share: one of this run's own, which waits for the disk as in production.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use taskwire_testkit::{Installation, Server};
use tokio::{task::block_in_place, time::sleep};
use tokio_postgres::{Client, NoTls};

use crate::process::family_cpu;

/// The versions that are looked for, the first one first.
const MAJORS: [u32; 2] = [18, 15];
/// What it is set to. Nothing of it makes a commit cheaper.
pub const SETTINGS: [&str; 5] = [
    "max_connections = 200",
    "shared_buffers = '512MB'",
    // Checkpoints come between measures, and not in some of them.
    "max_wal_size = '8GB'",
    "checkpoint_timeout = '30min'",
    // A run is short: what happens in a minute elsewhere happens in some seconds here.
    "autovacuum_naptime = '10s'",
];
/// Pause before a measure, and after it, so that what it leaves to be done is counted with it.
pub const SETTLE: Duration = Duration::from_millis(200);

/// A running PostgreSQL.
pub struct Database {
    /// A session for what is asked beside the measures.
    pub client: Client,
    /// Its version.
    pub version: String,
    /// Its first process, the parent of all others.
    pid: u32,
    // The last, so that nobody uses it any more when it ends.
    server: Server,
}

impl Database {
    /// Starts it: this version, or the newest that is there.
    pub async fn start(major: Option<u32>) -> Result<Self> {
        let installation = find(major)?;
        let server = block_in_place(|| Server::start_with(&installation, &SETTINGS));
        let file = std::fs::read_to_string(server.data().join("postmaster.pid")).context("PostgreSQL does not say which process it is")?;
        let pid: u32 = file.lines().next().unwrap_or_default().trim().parse().context("PostgreSQL has no process id")?;
        let client = connect(&server.url()).await?;
        let sql = "SELECT current_setting('server_version'), current_setting('fsync') || ' ' || current_setting('synchronous_commit')";
        let shown = client.query_one(sql, &[]).await?;
        let (version, durability): (String, String) = (shown.try_get(0)?, shown.try_get(1)?);
        // Packages put their own names behind it.
        let version = version.split_whitespace().next().unwrap_or_default().to_owned();
        ensure!(durability == "on on", "PostgreSQL does not wait for the disk: fsync and synchronous_commit are `{durability}`");
        Ok(Self { client, version, pid, server })
    }

    /// Where nodes find it.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Another session.
    pub async fn connect(&self) -> Result<Client> {
        connect(&self.url()).await
    }

    /// User and system time that all its processes have used, in seconds.
    pub fn cpu(&self) -> Result<f64> {
        family_cpu(self.pid).context("PostgreSQL cannot be watched")
    }

    /// Waits until what earlier measures have left is done.
    pub async fn settle(&self) -> Result<()> {
        self.client.batch_execute("CHECKPOINT").await?;
        sleep(SETTLE).await;
        Ok(())
    }

    /// Runs commands on the tables of a schema, which are written as `@task`.
    pub async fn run(&self, schema: &str, commands: &str) -> Result<()> {
        self.client.batch_execute(&render(commands, schema)).await.with_context(|| format!("cannot do: {commands}"))
    }
}

/// A text with the tables of this schema for those that are written as `@task`.
pub fn render(text: &str, schema: &str) -> String {
    text.replace('@', &format!("\"{schema}\"."))
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.context("cannot connect to PostgreSQL")?;
    tokio::spawn(connection);
    Ok(client)
}

fn find(major: Option<u32>) -> Result<Installation> {
    let majors = major.map_or_else(|| MAJORS.to_vec(), |major| vec![major]);
    let mut reasons = Vec::new();
    for major in majors {
        match Installation::find(major) {
            Ok(installation) => return Ok(installation),
            Err(missing) => reasons.push(missing),
        }
    }
    bail!("{}", reasons.join("\n"))
}
