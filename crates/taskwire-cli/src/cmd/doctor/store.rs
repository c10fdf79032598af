//! The store: embedded, in memory, or a database that nodes share.

use std::time::Duration;

use taskwire::store::{DirectoryFindings, PageCheck, PostgresFindings, PostgresStore, StoreFindings, examine_store};

use super::{clock, finding::Finding};
use crate::{
    config::{Config, StoreKind},
    term::render::size,
};

const STORE: &str = "store";
const NODES: &str = "nodes";
/// How long the pages of a store are looked at.
const LIMIT: Duration = Duration::from_secs(30);
/// Damaged tasks and pages that are named.
const NAMED_MAX: usize = 5;
const PUT_A_COPY: &str = "put a copy of the store in its place (`taskwire store restore`)";

pub(super) async fn check(kind: &StoreKind, config: &Config, directory: &DirectoryFindings) -> Vec<Finding> {
    match kind {
        // The directory has been complained about.
        _ if directory.problem.is_some() => Vec::new(),
        StoreKind::Memory if directory.has_store => {
            let found = format!("{} has tasks that are kept, and the others end with the server", config.data.display());
            vec![Finding::fail(STORE, found).so("choose another data directory, or leave out `store`")]
        }
        StoreKind::Memory => vec![Finding::ok(STORE, "in memory: tasks end with the server")],
        StoreKind::Embedded if !directory.has_store => vec![Finding::ok(STORE, "there is none yet: the server makes it")],
        StoreKind::Embedded => match examine_store(&config.data, LIMIT) {
            Ok(found) => embedded(&found),
            Err(error) => vec![Finding::fail(STORE, error.to_string())],
        },
        StoreKind::Postgres(url) => match config.postgres(&url.0) {
            // It was checked with the file.
            Err(error) => vec![Finding::fail(STORE, format!("{error:#}"))],
            Ok(postgres) => match PostgresStore::examine(postgres).await {
                Ok(found) => database(&found),
                Err(error) => vec![Finding::fail(STORE, error.to_string())],
            },
        },
    }
}

fn embedded(found: &StoreFindings) -> Vec<Finding> {
    let format = found.format;
    let (older, also) = (format < found.known_format, format!("the next start makes it {}", found.known_format));
    let mut findings = vec![match &found.pages {
        PageCheck::Good if older => Finding::ok(STORE, format!("format {format}, {}; all pages fit together; {also}", size(found.bytes))),
        PageCheck::Good => Finding::ok(STORE, format!("format {format}, {}; all pages fit together", size(found.bytes))),
        PageCheck::Unfinished => {
            let seconds = LIMIT.as_secs();
            Finding::warn(STORE, format!("{} are too much to look at in {seconds} seconds", size(found.bytes)))
                .so("check a backup of it (`taskwire store backup`), which takes as long as it takes")
        }
        PageCheck::Damaged(problems) => Finding::fail(STORE, format!("pages are damaged: {}", named(problems))).so(PUT_A_COPY),
    }];
    if !found.damaged.is_empty() {
        findings.push(Finding::fail(STORE, format!("tasks are damaged: {}", named(&found.damaged))).so(PUT_A_COPY));
    } else if !older {
        findings.push(Finding::ok(STORE, format!("tasks that were read fit their checksums: {}", found.tasks_read)));
    }
    findings
}

/// The first of these, and how many more there are.
fn named(all: &[String]) -> String {
    let more = match all.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    all.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join("; ") + &more
}

fn database(found: &PostgresFindings) -> Vec<Finding> {
    let (place, version, oldest) = (&found.place, found.version, found.oldest_version);
    let mut findings = vec![match (&found.moved, found.format) {
        _ if version < oldest => {
            Finding::fail(STORE, format!("{place} is PostgreSQL {version}, and nodes need {oldest} or newer")).so("upgrade it")
        }
        _ if found.encoding != "UTF8" => {
            Finding::fail(STORE, format!("{place} has the encoding {}", found.encoding)).so("use a database with UTF8")
        }
        (Some(why), _) => Finding::fail(STORE, why.as_str()),
        (None, Some(format)) if format > found.known_format => {
            Finding::fail(STORE, format!("{place} has format {format}, this release knows up to {}", found.known_format))
                .so("use a newer release")
        }
        (None, Some(format)) => Finding::ok(STORE, format!("{place}: PostgreSQL {version}, format {format}")),
        (None, None) => Finding::ok(STORE, format!("{place}: PostgreSQL {version}; there are no tables yet: the first node makes them")),
    }];
    findings.extend(durability(found));
    findings.push(clock::of_difference("the database", found.clock_ahead_ms));
    findings.push(if found.hears {
        Finding::ok(NODES, "each hears at once what others change")
    } else {
        Finding::warn(NODES, "notifications of the database do not arrive, so changes of other nodes are noticed late")
            .so("set `postgres.listen_url` to an address of the database without the pooler")
    });
    let expired: Vec<&str> = found.nodes.iter().filter(|node| node.lease_left.is_zero()).map(|node| &*node.name).collect();
    findings.push(match (found.nodes.len(), expired.is_empty()) {
        (0, _) => Finding::ok(NODES, "none runs"),
        (count, true) => Finding::ok(NODES, format!("{count} run")),
        (count, false) => Finding::warn(NODES, format!("of {count}, these have no lease any more: {}", expired.join(", ")))
            .so("they are dead, or cannot reach the database: look at their logs"),
    });
    findings
}

/// Settings with which the database may lose what it has acknowledged.
fn durability(found: &PostgresFindings) -> Vec<Finding> {
    let problems = [
        (!found.is_durable).then(|| {
            Finding::fail(STORE, "fsync is off: a crash of the database's machine may lose and damage what was acknowledged")
                .so("set `fsync = on`")
        }),
        found.commits_loosely.then(|| {
            Finding::warn(STORE, "synchronous_commit is off").so("Taskwire turns it on for its own commits: set it on for all to be sure")
        }),
        (!found.has_checksums)
            .then(|| Finding::warn(STORE, "its pages have no checksums, so damage by a disk is not noticed").so("`pg_checksums --enable`")),
    ];
    problems.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_many_are_named() {
        let all: Vec<String> = (1..=7).map(|n| n.to_string()).collect();
        assert_eq!((named(&all[..2]), named(&all)), ("1; 2".to_owned(), "1; 2; 3; 4; 5; and 2 more".to_owned()));
    }
}
