//! A server on standard input and output that says what a file tells it to: `scripted_stdio SCRIPT LOG`.
//!
//! SCRIPT is a JSON list of steps, each for one message: `{"on": METHOD, "line": TEXT, "result": …}` or with `"error"` instead;
//! without either it is silent, and with `"exit": true` it ends. The second message of a method gets the second step for it, and
//! so on, through all lives of the program: LOG has every message that ever came, one a line.

use std::{
    error::Error,
    fs::{self, OpenOptions},
    io::{self, BufRead, Write},
};

use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(script), Some(log)) = (args.next(), args.next()) else {
        return Err("usage: scripted_stdio SCRIPT LOG".into());
    };
    let steps: Vec<Value> = serde_json::from_str(&fs::read_to_string(script)?)?;
    let mut heard = Vec::new();
    for line in fs::read_to_string(&log).unwrap_or_default().lines() {
        heard.push(serde_json::from_str::<Value>(line)?["method"].clone());
    }
    let mut log = OpenOptions::new().create(true).append(true).open(&log)?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let message: Value = serde_json::from_str(&line)?;
        // Before the answer, so that who has the answer finds it.
        writeln!(log, "{line}")?;
        let method = message["method"].clone();
        let nth = heard.iter().filter(|other| **other == method).count();
        heard.push(method.clone());
        let Some(step) = steps.iter().filter(|step| step["on"] == method).nth(nth) else { continue };
        if step["exit"] == true {
            return Ok(());
        }
        let mut output = io::stdout().lock();
        if let Some(text) = step["line"].as_str() {
            writeln!(output, "{text}")?;
        }
        for key in ["result", "error"] {
            if let Some(value) = step.get(key) {
                writeln!(output, "{}", json!({"jsonrpc": "2.0", "id": message["id"], key: value}))?;
            }
        }
        output.flush()?;
    }
    Ok(())
}
