//! `taskwire reload`: a running server reads its configuration again.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use crate::{
    client::exit::{Exit, Problem, fail},
    config::Config,
    control::{self, Changes, Reply, Request},
    term::{escape, stderr},
};

const EXAMPLES: &str = "Examples:
  taskwire reload                          the server with tasks in ./.taskwire
  taskwire reload taskwire.toml            the one with tasks where it says
  taskwire reload --data /var/lib/taskwire the one with tasks there

Tools that were added, changed or removed take effect at once, and clients are
notified. Running tasks go on as they were. The certificates of [tls] are read
again, for new connections. Other keys need a restart; it says which. A file
that cannot be used is refused with line and column, and everything stays as it
was. SIGHUP does the same, and tells the server's log.

Exit codes:
  0  it was read
  2  the file cannot be used
  3  there is no server to be told";

/// Let a running server read its configuration again.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Reload {
    /// The server's configuration file, to find it and to be sure that it is the right one
    config: Option<PathBuf>,
    /// The server's directory for tasks [default: .taskwire, beside the configuration file if it is named]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl Reload {
    pub(crate) fn run(self) -> ExitCode {
        match self.request_reload() {
            Ok(changes) => {
                for warning in &changes.warnings {
                    stderr::write(&format!("{}\n", escape::line(warning)));
                }
                // If nobody reads it, nothing is lost.
                let _ = writeln!(io::stdout(), "{}", escape::lines(&changes.to_string()));
                Exit::Done.into()
            }
            Err(problem) => fail(false, &problem),
        }
    }

    fn request_reload(self) -> Result<Changes, Problem> {
        let (data, source) = match (self.data, &self.config) {
            (Some(data), _) => (data, None),
            (None, Some(file)) => {
                let data = Config::read(file).map_err(|error| Problem::usage(format!("{error:#}")))?.data;
                (data, Some(format!(" (as {} says)", file.display())))
            }
            (None, None) => (Config::default().data, None),
        };
        let config = self.config.map(std::path::absolute).transpose()?;
        match control::send_request(&data, &Request::Reload { config }) {
            Ok(Reply::Done(changes)) => Ok(changes),
            Ok(Reply::Refused(reason)) => Err(Problem::usage(reason)),
            Ok(Reply::Described(_) | Reply::Api { .. }) => Err(Problem::protocol("the server answered something else".to_owned())),
            Err(error) => Err(Problem::protocol(no_reply_message(&std::path::absolute(&data)?, &source.unwrap_or_default(), &error))),
        }
    }
}

/// The error if no server replied. `source` says where the directory comes from, if it was not typed.
pub(super) fn no_reply_message(data: &Path, source: &str, error: &io::Error) -> String {
    let data = data.display();
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("no server has its tasks in {data}{source}: if it has them elsewhere, name its directory with --data")
        }
        _ => format!("the server that has its tasks in {data}{source} does not answer: {error}"),
    }
}
