//! `taskwire progress`: a command reports its progress.

use std::process::ExitCode;

use clap::Args;
use taskwire::command::Note;

use super::in_task;
use crate::client::exit::Problem;

const EXAMPLES: &str = "Examples:
  taskwire progress 3 --total 10
  taskwire progress 3/10 --message \"third of ten files\"
  taskwire progress 40%
  taskwire progress 1024                 how much there is to do is not known

For commands that `taskwire serve` runs as tools, and the programs that they
run: clients that follow the task are told, and most show it. Elsewhere nothing
is done but to say so.

Exit codes:
  0  it is written down, or there is no task
  2  the command line is wrong
  3  the task is over, or refuses";

/// Inside a task: say how far it is.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Progress {
    /// What is done: a number, 3/10, or 40%
    #[arg(value_parser = done)]
    done: Done,
    /// Out of so much
    #[arg(long, value_name = "N", value_parser = whole)]
    total: Option<f64>,
    /// What is being done
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    message: Option<String>,
}

/// What is done, and the total if it was given with it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Done {
    done: f64,
    total: Option<f64>,
}

fn done(text: &str) -> Result<Done, String> {
    if let Some(percent) = text.trim_end().strip_suffix('%') {
        return Ok(Done { done: number(percent)?, total: Some(100.0) });
    }
    match text.split_once('/') {
        Some((done, total)) => Ok(Done { done: number(done)?, total: Some(whole(total)?) }),
        None => Ok(Done { done: number(text)?, total: None }),
    }
}

fn number(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "progress is told in numbers from 0 up: 3, 3/10 or 40%".to_owned())
}

fn whole(text: &str) -> Result<f64, String> {
    let total = number(text)?;
    if total > 0.0 { Ok(total) } else { Err("progress out of 0 says nothing: leave the total out, or give one over 0".to_owned()) }
}

impl Progress {
    pub(crate) fn run(self) -> ExitCode {
        in_task::exit_code(self.note().and_then(|note| in_task::send_note("progress", &note)))
    }

    fn note(self) -> Result<Note, Problem> {
        let Done { done, total } = self.done;
        if total.is_some() && self.total.is_some() {
            return Err(Problem::usage("3/10 and 40% say out of how much: leave --total away"));
        }
        Ok(Note::Progress { done, total: total.or(self.total), message: self.message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_number_a_fraction_or_a_percentage() {
        for (text, expected, out_of) in [
            ("3", 3.0, None),
            ("0", 0.0, None),
            ("2.5", 2.5, None),
            ("1e3", 1000.0, None),
            ("3/10", 3.0, Some(10.0)),
            ("3 / 10", 3.0, Some(10.0)),
            ("0/1", 0.0, Some(1.0)),
            ("40%", 40.0, Some(100.0)),
            ("12.5 %", 12.5, Some(100.0)),
            ("40%\n", 40.0, Some(100.0)),
        ] {
            assert_eq!(done(text), Ok(Done { done: expected, total: out_of }), "{text:?}");
        }
    }

    #[test]
    fn what_no_client_could_show_is_refused() {
        for text in
            ["", " ", "x", "%", "/", "3/", "/10", "1/2/3", "-1", "nan", "NaN", "inf", "-inf", "1e999", "3/inf", "4%%", "3/10%", "0x10"]
        {
            let words = done(text).expect_err(text);
            assert!(words.contains("3/10 or 40%"), "{words}");
        }
    }

    #[test]
    fn nothing_is_done_out_of_nothing() {
        for text in ["5/0", "0/0", "5/0.0", "5/-0"] {
            assert!(done(text).expect_err(text).contains("out of 0 says nothing"), "{text}");
        }
        assert!(whole("0").is_err() && whole("0.5").is_ok());
        assert_eq!(done("0%"), Ok(Done { done: 0.0, total: Some(100.0) }));
    }

    #[test]
    fn the_whole_is_said_once() {
        let progress = |text: &str, total| Progress { done: done(text).expect("a number"), total, message: None }.note();
        let total = |note: Result<Note, Problem>| match note {
            Ok(Note::Progress { total, .. }) => Some(total),
            _ => None,
        };
        assert_eq!(total(progress("3", Some(10.0))), Some(Some(10.0)));
        assert_eq!(total(progress("3", None)), Some(None));
        assert_eq!(total(progress("3/10", Some(10.0))), None);
        assert_eq!(total(progress("40%", Some(100.0))), None);
    }
}
