//! Real PostgreSQL servers and poolers for tests, which start, stop, kill, pause and replicate them.
//!
//! [`Installation`] finds the programs, and `scripts/postgres.sh` gets them. Each test starts a [`Server`] of its own: that
//! takes no longer than a database in a server that several share, because a new server is a copy of a prepared directory.
//! Nothing is left of a server whose test has ended, even if the test was killed: `process` says how.
//!
//! A test that needs a server is marked `#[ignore = "needs PostgreSQL"]`, so that who has none sees it counted as left out.
//! Whoever runs those tests asks for them (`--run-ignored all`, `cargo test -- --include-ignored`): without a server they fail.
//!
//! All of it blocks its thread, and panics with the server's own words when something goes wrong.

mod installation;
mod pgbouncer;
mod process;
mod server;

pub use installation::Installation;
pub use pgbouncer::{Pgbouncer, PoolMode};
pub use server::Server;
