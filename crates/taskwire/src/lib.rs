//! Durable, live, long-running tools for the Model Context Protocol.
//!
//! A tool call returns its result at once if it is quick, and becomes a task if it is not: durable before it is
//! acknowledged, readable by any client of its caller, and taken over after a crash.
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
//! [`store`] where tasks are kept · [`clock`] where the time comes from. The engine, transports and dialects are private.

mod auth;
pub mod client;
pub mod clock;
pub mod command;
mod config;
mod dialect;
mod engine;
mod feed;
mod followup;
pub mod form;
mod ours;
mod schema;
pub mod server;
pub mod store;
#[cfg(test)]
mod testing;
pub mod tool;
mod transport;

pub use taskwire_core as core;

/// The README's examples must compile, and so must those of the manual.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/manual/calling.md")]
struct Calling;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/manual/live-output.md")]
struct LiveOutput;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/manual/writing-tools.md")]
struct WritingTools;
