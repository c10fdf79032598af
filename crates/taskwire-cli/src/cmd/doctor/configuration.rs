//! The configuration file: whether it can be used, its secrets, and the programs of its tools.

use std::path::{Path, PathBuf};

use taskwire::{command::Definition, server};

use super::finding::Finding;
use crate::{
    cmd::serve,
    config::{Config, StoreKind},
};

const CONFIGURATION: &str = "configuration";
const SECRETS: &str = "secrets";
const TOOLS: &str = "tools";

/// A configuration that a server could run with.
pub(super) struct Checked {
    pub(super) config: Config,
    pub(super) settings: server::Config,
    pub(super) definitions: Vec<Definition>,
    pub(super) kind: StoreKind,
}

/// Reads and checks the file. There is nothing to go on with if it cannot be used.
pub(super) fn check(file: Option<&Path>, data: Option<PathBuf>) -> (Option<Checked>, Vec<Finding>) {
    let shown = file.map_or("no file".to_owned(), |file| file.display().to_string());
    match read(file, data) {
        Err(error) => (None, vec![Finding::fail(CONFIGURATION, format!("{error:#}"))]),
        Ok(checked) => {
            let tools = checked.definitions.len();
            let s = if tools == 1 { "" } else { "s" };
            let demo = if checked.config.demo { ", and the demo tools" } else { "" };
            let mut findings = vec![Finding::ok(CONFIGURATION, format!("{shown}: {tools} command tool{s}{demo}"))];
            findings.extend(warnings(&checked.definitions));
            findings.extend(secrets(&checked.config));
            (Some(checked), findings)
        }
    }
}

fn read(file: Option<&Path>, data: Option<PathBuf>) -> anyhow::Result<Checked> {
    let mut config = file.map_or_else(|| Ok(Config::demo()), Config::read)?;
    config.data = data.unwrap_or(config.data);
    let settings = config.check()?;
    let kind = config.store()?;
    if let StoreKind::Postgres(url) = &kind {
        config.postgres(&url.0)?;
    }
    let definitions = config.definitions(&[])?;
    // Only a server on standard input needs none.
    serve::address(&config)?;
    Ok(Checked { config, settings, definitions, kind })
}

/// What is probably a mistake, without programs that are missing: those have a check of their own.
fn warnings(definitions: &[Definition]) -> impl Iterator<Item = Finding> {
    definitions.iter().flat_map(|tool| {
        let missing = tool.missing_program();
        let warnings = tool.warnings().into_iter().filter(move |warning| Some(warning) != missing.as_ref());
        warnings.map(move |warning| Finding::warn(CONFIGURATION, format!("tool `{}`: {warning}", tool.name)))
    })
}

/// Whether secrets are where the file says that they come from.
fn secrets(config: &Config) -> Option<Finding> {
    match config.to_server_config() {
        // The file itself has been checked.
        Err(error) => Some(Finding::fail(SECRETS, format!("{error:#}")).so("set it where the server is started, and here")),
        Ok(_) if config.auth.is_required() => Some(Finding::ok(SECRETS, "all tokens and secrets can be had")),
        Ok(_) => None,
    }
}

/// Whether the programs of tools are there.
pub(super) fn programs(definitions: &[Definition]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for tool in definitions {
        if let Some(missing) = tool.missing_program() {
            findings.push(Finding::fail(TOOLS, format!("tool `{}`: {missing}", tool.name)));
        }
    }
    if findings.is_empty() && !definitions.is_empty() {
        findings.push(Finding::ok(TOOLS, "the program of each tool is there, and can be run"));
    }
    findings
}
