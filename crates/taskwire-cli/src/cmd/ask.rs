//! `taskwire ask`: a command asks whoever called it, and waits for the answer.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};
use taskwire::{
    client::form::Form,
    command::{Answer, Question},
};
use taskwire_core::Payload;

use super::in_task;
use crate::{
    client::exit::{self, Exit, Problem},
    term::{stderr, stdout},
};

/// The only field of a question for a text or a choice.
const FIELD: &str = "answer";
/// The only field of a yes-or-no question.
const CONFIRM: &str = "confirm";
/// The exit code if the answer is no.
const EXIT_NO: u8 = 1;

const HINT: &str = "taskwire ask: not run by a task, so nobody can be asked. (Commands that `taskwire serve` runs as tools \
                    can ask; --default gives the answer elsewhere.)\n";

const EXAMPLES: &str = "Examples:
  name=$(taskwire ask 'Which name?') || exit
  taskwire ask 'Which region?' --choice eu --choice us --default eu
  taskwire ask 'Delete 17 files?' --confirm && rm -- \"$@\"
  taskwire ask 'Size?' --schema '{\"type\": \"object\", \"properties\":
    {\"width\": {\"type\": \"integer\"}, \"height\": {\"type\": \"integer\"}}}'
  taskwire ask 'Please sign in' --url https://example.com/login

For commands that `taskwire serve` runs as tools, and the programs that they
run. The client that called the tool is asked; the answer is printed as it is.
Without --schema, --choice or --confirm it is one text. With --schema it is a
JSON object on one line. With --confirm and --url nothing is printed.

The questions of a task have keys: ask-1, ask-2 and so on, unless --key names
one. The same question under the same key has the same answer.

Exit codes:
  0  answered; with --confirm: yes
  1  declined or cancelled; with --confirm: or no
  2  the command line is wrong
  3  nobody can be asked: standard error says why";

/// Inside a task: ask the caller, and print the answer.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Ask {
    /// What to ask
    #[arg(value_name = "MESSAGE", required_unless_present = "message", conflicts_with = "message")]
    text: Option<String>,
    /// The same, for a message that may begin with a dash
    #[arg(long, value_name = "MESSAGE", allow_hyphen_values = true)]
    message: Option<String>,
    /// Ask for a form: a JSON Schema of an object of plain values
    #[arg(long, value_name = "JSON|@FILE", conflicts_with_all = ["choices", "confirm", "url"])]
    schema: Option<String>,
    /// Ask for one of these (give it once for each)
    #[arg(long = "choice", value_name = "TEXT", allow_hyphen_values = true, conflicts_with_all = ["confirm", "url"])]
    choices: Vec<String>,
    /// Ask for yes or no
    #[arg(long, conflicts_with = "url")]
    confirm: bool,
    /// Ask to visit this page
    #[arg(long)]
    url: Option<String>,
    /// The question's name within the task
    #[arg(long)]
    key: Option<String>,
    /// The answer outside a task; within one, what the form suggests
    #[arg(long, value_name = "ANSWER", allow_hyphen_values = true, conflicts_with = "url")]
    default: Option<String>,
}

/// The kind of question.
#[derive(Debug)]
enum Kind {
    Text,
    Choice(Vec<String>),
    Confirm,
    /// A form, as it was written: its fields are shown in this order.
    Form(Payload),
    Url(String),
}

/// The answer, as a script gets it.
#[derive(Debug, PartialEq, Eq)]
enum AskOutcome {
    Yes,
    No,
    Text(String),
    /// Nobody can be asked.
    NobodyToAsk,
}

impl Ask {
    pub(crate) fn run(self) -> ExitCode {
        let said = self.ask().and_then(|said| match said {
            AskOutcome::Yes => Ok(ExitCode::SUCCESS),
            AskOutcome::No => Ok(ExitCode::from(EXIT_NO)),
            AskOutcome::NobodyToAsk => {
                stderr::write(HINT);
                Ok(Exit::Protocol.into())
            }
            // Unfiltered, also on a terminal: the reader wants exactly the answer.
            AskOutcome::Text(text) => Ok(stdout::print(&format!("{text}\n")).map(|()| ExitCode::SUCCESS)?),
        });
        said.unwrap_or_else(|problem| exit::fail(false, &problem))
    }

    fn ask(&self) -> Result<AskOutcome, Problem> {
        let message = self.text.as_ref().or(self.message.as_ref()).map(String::as_str).unwrap_or_default();
        if message.trim().is_empty() {
            return Err(Problem::usage("a question of no words cannot be answered: give a message"));
        }
        if self.key.as_ref().is_some_and(String::is_empty) {
            return Err(Problem::usage("--key: a key has at least one character"));
        }
        let kind = self.kind()?;
        // Checked in any case, so that a trial outside a task finds the mistakes.
        let default = self.default.as_ref().map(|default| kind.default(default)).transpose()?;
        let Some(mut task) = in_task::current_task()? else {
            return Ok(default.map_or(AskOutcome::NobodyToAsk, |(said, _)| said));
        };
        let question = kind.question(message, default.map(|(_, value)| value));
        match task.ask(self.key.as_deref(), &question).map_err(in_task::problem)? {
            Answer::Accept(content) => {
                kind.read(content.as_ref()).map_err(|why| Problem::protocol(format!("the answer does not fit: {why}")))
            }
            Answer::Decline | Answer::Cancel => Ok(AskOutcome::No),
        }
    }

    fn kind(&self) -> Result<Kind, Problem> {
        if let Some(schema) = &self.schema {
            let schema = in_task::json_option("--schema", schema)?;
            check_form(&schema).map_err(|why| Problem::usage(format!("--schema: {why}")))?;
            return Ok(Kind::Form(schema));
        }
        if let Some(url) = &self.url {
            return match url.split_once("://") {
                Some((scheme, rest)) if !scheme.is_empty() && !rest.is_empty() => Ok(Kind::Url(url.clone())),
                _ => Err(Problem::usage("--url: an address begins like https://")),
            };
        }
        if self.confirm {
            return Ok(Kind::Confirm);
        }
        if self.choices.is_empty() {
            return Ok(Kind::Text);
        }
        let mut choices: Vec<String> = Vec::new();
        for choice in &self.choices {
            if choice.is_empty() {
                return Err(Problem::usage("--choice: nobody can choose a text of no characters"));
            }
            if !choices.contains(choice) {
                choices.push(choice.clone());
            }
        }
        Ok(Kind::Choice(choices))
    }
}

/// Whether clients can show this form.
fn check_form(schema: &Payload) -> Result<(), String> {
    let schema: Value = schema.read().map_err(|error| error.to_string())?;
    if schema.get("type").is_none_or(|kind| kind != "object") || !schema.get("properties").is_some_and(Value::is_object) {
        return Err(
            "a form is an object with fields: {\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}}}".to_owned()
        );
    }
    Form::read(&schema).map(|_| ())
}

impl Kind {
    /// The name and the schema of the only field, where there is one.
    fn field(&self) -> Option<(&'static str, Value)> {
        match self {
            Self::Text => Some((FIELD, json!({"type": "string", "title": "Answer"}))),
            Self::Choice(choices) => Some((FIELD, json!({"type": "string", "title": "Answer", "enum": choices}))),
            Self::Confirm => Some((CONFIRM, json!({"type": "boolean", "title": "Yes or no"}))),
            Self::Form(_) | Self::Url(_) => None,
        }
    }

    /// The form, with its suggested value.
    fn schema(&self, default: Option<Value>) -> Payload {
        match (self, self.field()) {
            (Self::Form(schema), _) => schema.clone(),
            (_, Some((name, mut field))) => {
                if let Some(default) = default {
                    field["default"] = default;
                }
                let fields: Map<String, Value> = [(name.to_owned(), field)].into_iter().collect();
                json!({"type": "object", "properties": fields, "required": [name]}).into()
            }
            (_, None) => json!({"type": "object", "properties": {}}).into(),
        }
    }

    fn question(&self, message: &str, default: Option<Value>) -> Question {
        match self {
            Self::Url(url) => Question::url(message, url),
            _ => Question::form(message, self.schema(default)),
        }
    }

    /// The outcome of `--default`, and its value in the form.
    fn default(&self, text: &str) -> Result<(AskOutcome, Value), Problem> {
        let wrong = |why: String| Problem::usage(format!("--default: {why}"));
        match self {
            Self::Text | Self::Url(_) => Ok((AskOutcome::Text(text.to_owned()), text.into())),
            Self::Choice(choices) if choices.iter().any(|choice| choice == text) => Ok((AskOutcome::Text(text.to_owned()), text.into())),
            Self::Choice(choices) => Err(wrong(format!("`{text}` is none of the choices: {}", choices.join(", ")))),
            Self::Confirm => match text.to_ascii_lowercase().as_str() {
                "yes" | "y" | "true" => Ok((AskOutcome::Yes, true.into())),
                "no" | "n" | "false" => Ok((AskOutcome::No, false.into())),
                _ => Err(wrong(format!("`{text}` is neither yes nor no"))),
            },
            Self::Form(_) => {
                let content = in_task::json_option("--default", text)?;
                let said = self.read(Some(&content)).map_err(wrong)?;
                // A form has its own suggestions.
                Ok((said, Value::Null))
            }
        }
    }

    /// Reads an answer. It never has more than was asked for: scripts go on with it.
    fn read(&self, content: Option<&Payload>) -> Result<AskOutcome, String> {
        if let Self::Url(_) = self {
            return Ok(AskOutcome::Yes);
        }
        let content = content.ok_or("it has no content")?;
        let mut values: Value = content.read().map_err(|error| error.to_string())?;
        let schema: Value = self.schema(None).read().map_err(|error| error.to_string())?;
        Form::check(&schema, &values).map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
        match self {
            Self::Form(_) => Ok(AskOutcome::Text(content.as_str().to_owned())),
            Self::Confirm => Ok(if values[CONFIRM] == true { AskOutcome::Yes } else { AskOutcome::No }),
            _ => match values[FIELD].take() {
                Value::String(text) => Ok(AskOutcome::Text(text)),
                _ => Err(format!("`{FIELD}` is no text")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(value: Value) -> Payload {
        value.into()
    }

    fn read(kind: &Kind, content: Value) -> Result<AskOutcome, String> {
        kind.read(Some(&payload(content)))
    }

    fn choice() -> Kind {
        Kind::Choice(vec!["eu".to_owned(), "us".to_owned()])
    }

    fn form() -> Kind {
        let text = r#"{"type":"object","properties":{"z":{"type":"integer"},"a":{"type":"string"}},"required":["z"]}"#;
        Kind::Form(Payload::parse(text.to_owned()).expect("JSON"))
    }

    #[test]
    fn each_kind_of_question_is_a_form_that_clients_can_show() {
        for (kind, default, field, schema) in [
            (Kind::Text, None, "answer", json!({"type": "string", "title": "Answer"})),
            (Kind::Text, Some(json!("x")), "answer", json!({"type": "string", "title": "Answer", "default": "x"})),
            (choice(), None, "answer", json!({"type": "string", "title": "Answer", "enum": ["eu", "us"]})),
            (Kind::Confirm, Some(json!(false)), "confirm", json!({"type": "boolean", "title": "Yes or no", "default": false})),
        ] {
            let whole = kind.schema(default);
            assert_eq!(whole.read::<Value>().expect("JSON"), json!({"type": "object", "properties": {field: schema}, "required": [field]}));
            check_form(&whole).expect("a form");
        }
        let Kind::Form(written) = form() else { panic!("a form") };
        assert_eq!(form().schema(Some(json!("ignored"))), written, "to the byte: its fields keep their order");
    }

    #[test]
    fn a_text_is_the_answer_to_the_byte() {
        let text = " \x1b[31m\t\u{202e}é\n\n";
        assert_eq!(read(&Kind::Text, json!({"answer": text})), Ok(AskOutcome::Text(text.to_owned())));
        assert_eq!(read(&Kind::Text, json!({"answer": ""})), Ok(AskOutcome::Text(String::new())));
    }

    #[test]
    fn a_confirmation_is_yes_only_if_it_says_so() {
        assert_eq!(read(&Kind::Confirm, json!({"confirm": true})), Ok(AskOutcome::Yes));
        assert_eq!(read(&Kind::Confirm, json!({"confirm": false})), Ok(AskOutcome::No));
        for content in [json!({}), json!({"confirm": "true"}), json!({"confirm": 1}), json!({"confirm": null}), json!(true)] {
            assert!(read(&Kind::Confirm, content.clone()).is_err(), "{content}");
        }
        assert!(Kind::Confirm.read(None).is_err());
    }

    #[test]
    fn an_answer_that_does_not_fit_is_none() {
        assert_eq!(read(&choice(), json!({"answer": "us"})), Ok(AskOutcome::Text("us".to_owned())));
        for content in [json!({"answer": "uk"}), json!({"answer": ""}), json!({"answer": 1}), json!({})] {
            assert!(read(&choice(), content.clone()).is_err(), "{content}");
        }
        for content in [json!({"answer": 1}), json!({"other": "x"}), json!(["x"]), json!("x"), json!(null)] {
            assert!(read(&Kind::Text, content.clone()).is_err(), "{content}");
        }
        assert!(read(&form(), json!({"a": "x"})).expect_err("z is missing").contains('z'));
    }

    #[test]
    fn a_form_is_given_as_it_came_on_one_line() {
        let content = Payload::parse("{\n \"z\": 1,\n \"a\": \"x\\ny\"}".to_owned()).expect("JSON");
        assert_eq!(form().read(Some(&content)), Ok(AskOutcome::Text("{  \"z\": 1,  \"a\": \"x\\ny\"}".to_owned())));
    }

    #[test]
    fn a_page_was_agreed_to_whatever_else_is_said() {
        let page = Kind::Url("https://example.com".to_owned());
        assert_eq!(page.read(None), Ok(AskOutcome::Yes));
        assert_eq!(read(&page, json!({"x": 1})), Ok(AskOutcome::Yes));
    }

    #[test]
    fn a_default_must_be_an_answer() {
        let default = |kind: &Kind, text: &str| kind.default(text).ok();
        assert_eq!(default(&Kind::Text, "-x"), Some((AskOutcome::Text("-x".to_owned()), json!("-x"))));
        assert_eq!(default(&choice(), "eu"), Some((AskOutcome::Text("eu".to_owned()), json!("eu"))));
        assert_eq!(default(&choice(), "EU"), None);
        assert_eq!(default(&Kind::Confirm, "Yes"), Some((AskOutcome::Yes, json!(true))));
        assert_eq!(default(&Kind::Confirm, "n"), Some((AskOutcome::No, json!(false))));
        assert_eq!(default(&Kind::Confirm, "maybe"), None);
        assert_eq!(default(&form(), "{\"z\": 1}"), Some((AskOutcome::Text("{\"z\": 1}".to_owned()), Value::Null)));
        for text in ["{}", "{\"z\": \"x\"}", "1", "nonsense"] {
            assert_eq!(default(&form(), text), None, "{text}");
        }
    }

    #[test]
    fn a_schema_that_no_client_can_show_is_refused() {
        for schema in [
            json!(true),
            json!([]),
            json!({}),
            json!({"type": "string"}),
            json!({"type": "object"}),
            json!({"type": "object", "properties": []}),
            json!({"properties": {"a": {"type": "string"}}}),
            json!({"type": "object", "properties": {"a": {"type": "object"}}}),
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}),
            json!({"type": "object", "properties": {"a": {"type": "strin"}}}),
        ] {
            assert!(check_form(&payload(schema.clone())).is_err(), "{schema}");
        }
    }
}
