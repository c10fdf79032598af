//! `taskwire doctor`: looks whether a server can run, or runs, as it should, and says what to do where it cannot.

mod clock;
mod configuration;
mod data;
mod finding;
mod network;
mod store;

use std::path::PathBuf;

use clap::Args;

use crate::{
    client::exit::{Exit, Problem},
    term::stdout,
};
use configuration::Checked;
use finding::{Finding, Status};

const EXAMPLES: &str = "Examples:
  taskwire doctor taskwire.toml
  taskwire doctor taskwire.toml --data /var/lib/taskwire
  sudo -u alice taskwire doctor /etc/taskwire/alice.toml

It looks at the configuration and its secrets, the programs of its tools, the
data directory and its disk, the store, the address, the clock, the limit of
open files, and those who issue tokens. Each line is `ok`, `warn` or `fail`,
what was found, and what to do.

Nothing is changed, and a server may run meanwhile. Run it as the user who
serves, with the variables that the server has. The store is looked at for
half a minute at most.

Exit codes:
  0  nothing failed
  1  something failed
  2  the command line is wrong";

/// Check what a server needs, and say what to do where something is wrong.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// The server's configuration file; without one the demo server is looked at
    config: Option<PathBuf>,
    /// The server's directory for tasks [default: .taskwire, beside the configuration file if there is one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print one JSON object for each check
    #[arg(long)]
    pub(crate) json: bool,
}

impl Doctor {
    pub(crate) async fn run(self) -> Result<Exit, Problem> {
        let mut has_failed = false;
        let mut tell = |findings: Vec<Finding>| -> Result<(), Problem> {
            for finding in findings {
                has_failed |= finding.status == Status::Fail;
                stdout::print(&if self.json { finding.json()? } else { finding.text() })?;
            }
            Ok(())
        };
        let (checked, findings) = configuration::check(self.config.as_deref(), self.data);
        tell(findings)?;
        tell(vec![clock::check()])?;
        if let Some(Checked { config, settings, definitions, kind }) = checked {
            tell(configuration::programs(&definitions))?;
            let (directory, findings) = data::check(&config.data, &settings);
            tell(findings)?;
            tell(clock::of_disk(&config.data).into_iter().collect())?;
            if let Some(directory) = directory {
                tell(store::check(&kind, &config, &directory).await)?;
                tell(network::address(&config, directory.holder.is_some()).into_iter().collect())?;
            }
            tell(vec![data::open_files(&settings)])?;
            tell(network::issuers(&config).await)?;
        }
        Ok(if has_failed { Exit::ToolFailed } else { Exit::Done })
    }
}
