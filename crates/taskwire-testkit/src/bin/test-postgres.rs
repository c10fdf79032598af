//! `test-postgres [15|18]`: a PostgreSQL server for a script. Prints its URL, and ends when its standard input does.

use std::{
    io::{self, Read, Write},
    process::ExitCode,
};

use taskwire_testkit::{Installation, Server};

fn main() -> ExitCode {
    let version = std::env::args().nth(1).map_or(Ok(18), |version| version.parse());
    let Ok(version) = version else {
        eprintln!("usage: test-postgres [15|18]");
        return ExitCode::from(2);
    };
    match Installation::find(version) {
        Ok(installation) => {
            let server = Server::start(&installation);
            // Nobody may read it any more.
            let _ = writeln!(io::stdout(), "{}", server.url()).and_then(|()| io::stdout().flush());
            let _ = io::stdin().read_to_end(&mut Vec::new());
            ExitCode::SUCCESS
        }
        Err(missing) => {
            eprintln!("{missing}");
            ExitCode::FAILURE
        }
    }
}
