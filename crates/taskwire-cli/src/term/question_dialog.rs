//! Asks a person a question, line by line. Pure: it gets what was typed and returns what to show next.

use serde_json::{Map, Value};
use taskwire::client::{
    Answer, Question, QuestionKind,
    form::{Field, FieldKind, Form},
};

use super::{escape, paint::Paint};

const SEND: &str = "Send? [Y/n/d(ecline)/c(ancel)] ";
const OPEN: &str = "Open it in a browser? [y/N/a(ccept without)/c(ancel)] ";
/// The prompt for a page that cannot be opened from here.
const ACCEPT: &str = "Accept without opening it here? [y/N/c(ancel)] ";

/// A question that is being asked.
#[derive(Debug)]
pub(crate) struct QuestionDialog {
    key: String,
    paint: Paint,
    state: State,
}

#[derive(Debug)]
enum State {
    Form(FormState),
    /// A form that cannot be asked field by field.
    Json {
        schema: Value,
    },
    Url {
        url: String,
    },
}

/// A form that is being filled in.
#[derive(Debug)]
struct FormState {
    schema: Value,
    fields: Vec<Field>,
    content: Map<String, Value>,
    /// The field that is asked for; after the last of several: whether to send the form.
    at: usize,
}

/// What follows from a line.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// Show this (whole lines), and then the prompt again.
    Ask(String),
    /// Open the page, and give this answer.
    Open(String, Answer),
    /// Give this answer.
    Answer(Answer),
}

impl QuestionDialog {
    /// `None` if a person cannot be asked this.
    pub(crate) fn new(input: &Question, paint: Paint) -> Option<Self> {
        let state = match &input.kind {
            QuestionKind::Form { schema } => match Form::of_question(&input.request) {
                Ok(Form { fields, .. }) => State::Form(FormState { schema: schema.clone(), fields, content: Map::new(), at: 0 }),
                Err(_) => State::Json { schema: schema.clone() },
            },
            QuestionKind::Url { url } => State::Url { url: url.clone() },
            QuestionKind::Sampling { .. } | QuestionKind::Other { .. } => return None,
        };
        Some(Self { key: input.key.clone(), paint, state })
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The question itself, and what comes before the first prompt.
    pub(crate) fn opening(&self, message: &str) -> String {
        let message = escape::lines(message.trim());
        let message = if message.is_empty() { "The server asks:".to_owned() } else { message };
        let mut text = format!("{}\n", self.paint.bold(&format!("? {}", message.replace('\n', "\n  "))));
        match &self.state {
            State::Form(sheet) => text.push_str(&sheet.introduction(self.paint)),
            State::Json { schema } => {
                text.push_str(&format!("  an answer as JSON, for this schema: {}\n", escape::line(&schema.to_string())))
            }
            State::Url { url } => text.push_str(&describe_url(url, self.paint)),
        }
        text
    }

    pub(crate) fn prompt(&self) -> String {
        match &self.state {
            State::Form(sheet) => sheet.prompt(),
            State::Json { .. } => "  JSON (or d(ecline), c(ancel)): ".to_owned(),
            State::Url { url } if can_be_opened(url) => OPEN.to_owned(),
            State::Url { .. } => ACCEPT.to_owned(),
        }
    }

    /// Handles a typed line.
    pub(crate) fn enter_line(&mut self, line: &str) -> Step {
        let line = line.trim_end_matches(['\n', '\r']);
        let word = line.trim().to_ascii_lowercase();
        match &mut self.state {
            State::Form(sheet) if sheet.at < sheet.fields.len() => sheet.fill(line, self.paint),
            State::Form(sheet) => sheet.send(&word, self.paint),
            State::Json { schema } => json(schema, line, &word, self.paint),
            State::Url { url } => match word.as_str() {
                "" | "n" | "no" | "d" | "decline" => Step::Answer(Answer::decline()),
                "c" | "cancel" => Step::Answer(Answer::cancel()),
                word if is_yes(word) && can_be_opened(url) => Step::Open(url.clone(), Answer::accept_url()),
                "y" | "yes" | "a" | "accept" => Step::Answer(Answer::accept_url()),
                _ => Step::Ask(error_line("y, n, a or c", self.paint)),
            },
        }
    }

    /// The answer was refused: returns what to show before the prompt.
    pub(crate) fn refused(&mut self, reason: &str) -> String {
        let complaint = error_line(reason, self.paint);
        match &mut self.state {
            State::Form(sheet) => {
                sheet.restart();
                format!("{complaint}{}", sheet.introduction(self.paint))
            }
            _ => complaint,
        }
    }
}

fn is_yes(word: &str) -> bool {
    matches!(word, "y" | "yes")
}

fn error_line(reason: &str, paint: Paint) -> String {
    format!("{}\n", paint.red(&format!("  ! {}", escape::line(reason))))
}

fn json(schema: &Value, line: &str, word: &str, paint: Paint) -> Step {
    match word {
        "d" | "decline" => return Step::Answer(Answer::decline()),
        "c" | "cancel" => return Step::Answer(Answer::cancel()),
        _ => {}
    }
    let content: Value = match serde_json::from_str(line) {
        Ok(content) => content,
        Err(error) => return Step::Ask(error_line(&format!("that is not JSON: {error}"), paint)),
    };
    match Form::check(schema, &content) {
        Ok(()) => Step::Answer(Answer::accept(content)),
        Err(errors) => Step::Ask(errors.iter().map(|error| error_line(&error.to_string(), paint)).collect()),
    }
}

impl FormState {
    /// The introduction to the current field, or the summary of all.
    fn introduction(&self, paint: Paint) -> String {
        let Some(field) = self.fields.get(self.at) else { return self.summary() };
        let mut text = String::new();
        if let Some(description) = field.description.as_deref().filter(|text| !text.trim().is_empty()) {
            text.push_str(&format!("  {}\n", paint.dim(&escape::line(description))));
        }
        if let FieldKind::Choice { options, .. } | FieldKind::Choices { options, .. } = &field.kind {
            for (number, choice) in (1..).zip(options) {
                text.push_str(&format!("    {number}) {}\n", escape::line(&choice.title)));
            }
        }
        text
    }

    fn summary(&self) -> String {
        let line = |field: &Field| Some(format!("  {}: {}\n", escape::line(&field.title), value_text(self.content.get(&field.name)?)));
        self.fields.iter().filter_map(line).collect()
    }

    fn prompt(&self) -> String {
        let Some(field) = self.fields.get(self.at) else { return SEND.to_owned() };
        let hint = match (&field.kind, &field.default) {
            (_, Some(default)) => format!(" [{}]", value_text(default)),
            (FieldKind::Flag, None) => " [y/n]".to_owned(),
            (FieldKind::Choices { .. }, None) if field.required => " (numbers, with commas)".to_owned(),
            (FieldKind::Choices { .. }, None) => " (numbers, with commas; optional)".to_owned(),
            (_, None) if field.required => String::new(),
            (_, None) => " (optional)".to_owned(),
        };
        format!("  {}{hint}: ", escape::line(&field.title))
    }

    fn fill(&mut self, line: &str, paint: Paint) -> Step {
        let field = &self.fields[self.at];
        match field.parse(line) {
            Ok(value) => {
                match value {
                    Some(value) => self.content.insert(field.name.clone(), value),
                    None => self.content.remove(&field.name),
                };
                self.at += 1;
                // A single answer needs no confirmation.
                if self.fields.len() == 1 { self.send("", paint) } else { Step::Ask(self.introduction(paint)) }
            }
            // A line that is no value of the only field may decline or cancel the question.
            Err(reason) => match line.trim().to_ascii_lowercase().as_str() {
                "d" | "decline" if self.fields.len() == 1 => Step::Answer(Answer::decline()),
                "c" | "cancel" if self.fields.len() == 1 => Step::Answer(Answer::cancel()),
                _ => Step::Ask(error_line(&reason, paint)),
            },
        }
    }

    fn send(&mut self, word: &str, paint: Paint) -> Step {
        match word {
            "d" | "decline" => Step::Answer(Answer::decline()),
            "c" | "cancel" => Step::Answer(Answer::cancel()),
            // A form without fields has nothing to change: no means decline.
            "n" | "no" if self.fields.is_empty() => Step::Answer(Answer::decline()),
            "n" | "no" => {
                self.restart();
                Step::Ask(self.introduction(paint))
            }
            word if word.is_empty() || is_yes(word) => {
                let content = Value::Object(self.content.clone());
                let Err(errors) = Form::check(&self.schema, &content) else { return Step::Answer(Answer::accept(content)) };
                let complaints: String = errors.iter().map(|error| error_line(&error.to_string(), paint)).collect();
                self.restart();
                if let Some(at) = self.fields.iter().position(|field| errors.iter().any(|error| error.field == field.name)) {
                    self.at = at;
                }
                Step::Ask(complaints + &self.introduction(paint))
            }
            _ => Step::Ask(error_line("y, n, d or c", paint)),
        }
    }

    /// Begins again at the first field; Enter keeps what was filled in.
    fn restart(&mut self) {
        self.at = 0;
        for field in &mut self.fields {
            if let Some(value) = self.content.get(&field.name) {
                field.default = Some(value.clone());
            }
        }
    }
}

/// A value as people write it.
fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => escape::line(text),
        Value::Array(values) => values.iter().map(value_text).collect::<Vec<_>>().join(", "),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => escape::line(&other.to_string()),
    }
}

fn is_web(url: &str) -> bool {
    let start = url.get(..8).unwrap_or(url).to_ascii_lowercase();
    start.starts_with("http://") || start.starts_with("https://")
}

/// Whether the address may be passed to a browser: a web page, with nothing but the characters of an address.
fn can_be_opened(url: &str) -> bool {
    is_web(url) && url.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The address with its host in bold, and what is suspicious about it.
fn describe_url(url: &str, paint: Paint) -> String {
    let (before, host, after) = parts(url);
    let mut text = format!("  {}{}{}\n", escape::line(before), paint.bold(&escape::line(host)), escape::line(after));
    if !is_web(url) {
        text.push_str("  This is no web page: it is not opened from here.\n");
    } else if !can_be_opened(url) {
        text.push_str("  It has characters that no address has: it is not opened from here.\n");
    }
    if before.contains('@') {
        text.push_str(&format!("  Look twice: it leads to {}, whatever stands before the @.\n", escape::line(host)));
    }
    if !host.is_ascii() || host.to_ascii_lowercase().split('.').any(|label| label.starts_with("xn--")) {
        text.push_str("  Look twice: letters of this host's name may look like others.\n");
    }
    text
}

/// An address up to its host, the host, and the rest.
pub(crate) fn parts(url: &str) -> (&str, &str, &str) {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '\\', '?', '#']).map_or(url.len(), |at| start + at);
    let host = url[start..end].rfind('@').map_or(start, |at| start + at + 1);
    (&url[..host], &url[host..end], &url[end..])
}

#[cfg(test)]
mod tests;
