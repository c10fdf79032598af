//! `taskwire nodes`: the nodes that share a store.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use taskwire::{
    clock::{Clock, SystemClock},
    store::{NodeInfo, PostgresStore},
};
use taskwire_core::Timestamp;

use crate::{
    client::exit::{Exit, Problem},
    config::{Config, Secret, StoreKind},
    term::{
        escape,
        paint::{Paint, Terminal, short_duration},
        stderr, stdout,
        table::{self, Cell, LastColumn},
    },
};

const EXAMPLES: &str = "Examples:
  taskwire nodes taskwire.toml
  taskwire nodes --store env:DATABASE_URL
  taskwire nodes taskwire.toml --json

It asks the database, so any machine that can reach it will do.

LEASE says how long the node has before others take over what it runs; each
renews it every two seconds. A node that is `expired` is dead, or cannot reach
the database. TASKS are those that it runs, or waits with for an answer.

Exit codes:
  0  there are nodes
  2  the command line or the file cannot be used
  3  the database cannot be reached, or has no nodes";

/// List the nodes that share a store.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Nodes {
    /// The configuration file of the nodes
    config: Option<PathBuf>,
    /// The database, instead of the one in the file
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Print one JSON object for each node
    #[arg(long)]
    pub(crate) json: bool,
}

/// A node, for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeObject<'a> {
    name: &'a str,
    epoch: u64,
    since: String,
    lease_left_ms: u64,
    tasks: u64,
}

impl Nodes {
    pub(crate) async fn run(self) -> Result<Exit, Problem> {
        let mut config = match &self.config {
            Some(file) => Config::read(file).map_err(|error| Problem::usage(format!("{error:#}")))?,
            None => Config::default(),
        };
        let usage = |error: anyhow::Error| Problem::usage(format!("{error:#}"));
        config.store = self.store.clone().map_or(config.store, Secret);
        let StoreKind::Postgres(url) = config.store().map_err(usage)? else {
            return Err(Problem::usage("only a database has nodes: name it with --store, or a configuration file whose `store` is one"));
        };
        let postgres = config.postgres(&url.0).map_err(usage)?;
        let nodes = PostgresStore::nodes(postgres).await.map_err(|error| Problem::protocol(error.to_string()))?;
        stdout::print(&self.text(&nodes, SystemClock.now())?)?;
        if nodes.is_empty() {
            return Err(Problem::protocol("no node uses this store: `taskwire serve` starts one"));
        }
        if !self.json && nodes.iter().any(|node| node.lease_left.is_zero()) {
            stderr::write("taskwire: the tasks of an expired node are taken over as soon as another node sees that it is\n");
        }
        Ok(Exit::Done)
    }

    fn text(&self, nodes: &[NodeInfo], now: Timestamp) -> Result<String, Problem> {
        if self.json {
            let line = |node: &NodeInfo| serde_json::to_string(&object(node)).map(|line| escape::json(line) + "\n");
            return nodes.iter().map(line).collect::<Result<_, _>>().map_err(|error| Problem::protocol(error.to_string()));
        }
        let surroundings = Terminal::detect();
        let rows = nodes.iter().map(|node| cells(node, now, surroundings.stdout_paint()));
        Ok(table::text(&["NODE", "EPOCH", "UP", "LEASE", "TASKS"], rows, LastColumn::Whole, surroundings))
    }
}

fn object(node: &NodeInfo) -> NodeObject<'_> {
    NodeObject {
        name: &node.name,
        epoch: node.epoch.0,
        since: node.since.to_string(),
        lease_left_ms: u64::try_from(node.lease_left.as_millis()).unwrap_or(u64::MAX),
        tasks: node.open_tasks,
    }
}

fn cells(node: &NodeInfo, now: Timestamp, paint: Paint) -> Vec<Cell> {
    let lease = if node.lease_left.is_zero() {
        Cell::painted("expired", paint.red("expired"))
    } else {
        format!("{:.1}s", node.lease_left.as_secs_f64()).into()
    };
    let up = short_duration(now.since(node.since));
    vec![escape::line(&node.name).into(), node.epoch.to_string().into(), up.into(), lease, node.open_tasks.to_string().into()]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use taskwire_core::Epoch;

    use super::*;

    #[test]
    fn nodes_are_told_in_lines() {
        let node = |name: &str, lease_ms| NodeInfo {
            name: name.into(),
            epoch: Epoch((1 << 40) + 7),
            since: Timestamp::from_millis(1_000_000),
            lease_left: Duration::from_millis(lease_ms),
            open_tasks: 3,
        };
        let nodes = [node("a:8787", 4_250), node("b\x1b[2J", 0)];
        let rows: Vec<Vec<Cell>> = nodes.iter().map(|node| cells(node, Timestamp::from_millis(1_065_000), Paint::plain())).collect();
        let lines = table::lines(&rows, LastColumn::Whole, None, true);
        assert_eq!(lines, ["a:8787  1099511627783  1m 05s  4.2s     3", "b^[[2J  1099511627783  1m 05s  expired  3"]);
        let json = serde_json::to_value(object(&nodes[0])).expect("JSON");
        assert_eq!(json["leaseLeftMs"], 4_250);
        assert_eq!(json["name"], "a:8787");
    }
}
