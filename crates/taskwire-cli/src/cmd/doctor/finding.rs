//! What a check found: a line for people, or an object for programs.

use serde::Serialize;

use crate::{client::exit::Problem, term::escape};

/// How it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Ok,
    /// It works, but not as well as it could, or not for long.
    Warn,
    /// A server cannot run so, or not safely.
    Fail,
}

/// What a check found.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) status: Status,
    pub(super) found: String,
    /// What to do, if what was found does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<&'static str>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, status: Status::Ok, found: found.into(), advice: None }
    }

    pub(super) fn warn(check: &'static str, found: impl Into<String>) -> Self {
        Self { status: Status::Warn, ..Self::ok(check, found) }
    }

    pub(super) fn fail(check: &'static str, found: impl Into<String>) -> Self {
        Self { status: Status::Fail, ..Self::ok(check, found) }
    }

    /// And what to do about it.
    pub(super) fn so(self, advice: &'static str) -> Self {
        Self { advice: Some(advice), ..self }
    }

    pub(super) fn json(&self) -> Result<String, Problem> {
        let line = serde_json::to_string(self).map_err(|error| Problem::protocol(error.to_string()))?;
        Ok(escape::json(line) + "\n")
    }

    /// One line, however many the message has.
    pub(super) fn text(&self) -> String {
        let status = match self.status {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "fail",
        };
        let advice = self.advice.map(|advice| format!(": {advice}")).unwrap_or_default();
        format!("{status:<4}  {:<13}  {}{advice}\n", self.check, escape::line(&in_one_line(&self.found)))
    }
}

/// A message without the excerpt of the file that it may have.
fn in_one_line(message: &str) -> String {
    let is_excerpt = |line: &&str| line.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit()).starts_with('|');
    message.lines().filter(|line| !is_excerpt(line)).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_one_line_with_what_to_do() {
        let message = "a.toml cannot be used: line 2, column 1\n  |\n2 | cont = 1\n  | ^^^^\nthere is no key `cont` here";
        let finding = Finding::fail("configuration", message);
        assert_eq!(finding.text(), "fail  configuration  a.toml cannot be used: line 2, column 1: there is no key `cont` here\n");
        let finding = Finding::warn("clock", "late\x1b[2J").so("set it");
        assert_eq!(finding.text(), "warn  clock          late^[[2J: set it\n");
        let json: serde_json::Value = serde_json::from_str(&finding.json().expect("JSON")).expect("JSON");
        let told = ["check", "status", "found", "advice"].map(|key| json[key].as_str().expect("a text").to_owned());
        assert_eq!(told, ["clock", "warn", "late\x1b[2J", "set it"]);
    }
}
