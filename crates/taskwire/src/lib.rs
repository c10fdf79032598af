//! Durable, live, long-running tools for the Model Context Protocol.
//!
//! A tool call returns its result at once if it is quick, and becomes a task if it is not: durable before it is
//! acknowledged, readable by any client of its caller, and recovered after a crash.
//!
//! ```no_run
//! use taskwire::{server::{Config, Server}, store::SqliteStore, tool::{Ctx, Registry, Tool, ToolError}};
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct Count { from: u32 }
//!
//! async fn countdown(count: Count, ctx: Ctx) -> Result<&'static str, ToolError> {
//!     for n in (1..=count.from).rev() {
//!         ctx.text(format!("{n}…\n")).await?;
//!         ctx.sleep(std::time::Duration::from_secs(1)).await?;
//!     }
//!     Ok("lift-off")
//! }
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let tools = Registry::new();
//! tools.tool(Tool::new("countdown", "Counts down", countdown))?;
//! let server = Server::start(tools, SqliteStore::open("data")?, Config::default())?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8787").await?;
//! server.serve(listener, async { tokio::signal::ctrl_c().await.ok(); }).await?;
//! # Ok(()) }
//! ```
//!
//! # Layout
//! [`tool`] what authors of tools use · [`server`] what applications embed · [`client`] what they call with · [`command`] commands as tools ·
//! [`store`] where tasks are kept · [`clock`] where the time comes from. The engine, transports and protocol eras are private.
//!
//! # Features
//! All but the last are there by default. `client` · `ledger`: the client's record on disk, in SQLite · `oauth`: its sign-ins · `server`: all else but
//! forms and clocks, which both sides need · `oauth-server`: tokens that others issue for a server · `postgres`: a store that servers share ·
//! `tls`: TLS by the server itself · `traces`: spans for a collector of OpenTelemetry · `oauth-extensions`: more ways to sign in, and a second
//! cryptographic library.

#[cfg(feature = "server")]
mod audit;
#[cfg(feature = "server")]
mod auth;
#[cfg(feature = "client")]
pub mod client;
pub mod clock;
#[cfg(feature = "server")]
pub mod command;
#[cfg(feature = "server")]
mod config;
#[cfg(feature = "server")]
mod engine;
#[cfg(feature = "server")]
mod followup;
pub mod form;
#[cfg(feature = "server")]
mod metrics;
#[cfg(any(feature = "oauth-server", feature = "traces"))]
mod outbound;
#[cfg(feature = "server")]
mod owned_files;
#[cfg(feature = "server")]
mod protocol;
#[cfg_attr(not(feature = "server"), expect(dead_code, unused_imports, reason = "only the server has tools whose schemas it checks"))]
mod schema;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod store;
#[cfg(test)]
mod testing;
#[cfg(feature = "server")]
pub mod tool;
#[cfg(feature = "server")]
#[cfg_attr(not(feature = "traces"), expect(dead_code, reason = "nothing begins a trace then"))]
mod traces;
#[cfg(feature = "server")]
mod transport;
#[cfg(feature = "server")]
mod wakeup;

pub use taskwire_core as core;

/// The README's examples must compile, and so must those of the manual.
#[cfg(all(doctest, feature = "ledger", feature = "server"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
#[cfg(all(doctest, feature = "ledger", feature = "server"))]
#[doc = include_str!("../../../docs/manual/calling.md")]
struct Calling;
#[cfg(all(doctest, feature = "ledger", feature = "server"))]
#[doc = include_str!("../../../docs/manual/live-output.md")]
struct LiveOutput;
#[cfg(all(doctest, feature = "ledger", feature = "server"))]
#[doc = include_str!("../../../docs/manual/writing-tools.md")]
struct WritingTools;
