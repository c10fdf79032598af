//! `taskwire answer`: answers a question of a task.

use std::time::Duration;

use clap::Args;
use serde_json::Value;
use taskwire::client::{
    Answer as ClientAnswer, Call, Client, Era, Event, Question, QuestionKind, Status, TaskSnapshot,
    form::{FieldError, Form},
};
use tokio::time::{Instant, timeout_at};

use super::cancel::id_of;
use crate::{
    client::{
        arguments::{self, FilesAndStdin},
        connection::{ConnectionArgs, close},
        exit::{Exit, Problem},
        questions,
        schema::{Parameters, nearest},
        user_data::{FoundTask, UserData},
    },
    term::{
        escape,
        paint::{Terminal, shell_word},
        question_dialog::{QuestionDialog, Step},
        stderr,
        stdin_lines::StdinLines,
    },
};

/// In the legacy era only a client that listens gets questions. This is how long to listen.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(10);
/// And how long for another one: open questions come right after each other.
const MORE_QUESTIONS_TIMEOUT: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "Examples:
  taskwire answer 01k3v9x2m4qa us            the only question needs no key
  taskwire answer 01k3v9x2m4qa name name=Ada
  taskwire answer 01k3v9x2m4qa name Ada      a form's only field needs no name
  taskwire answer 01k3v9x2m4qa size '{\"width\": 3, \"height\": 4}'
  taskwire answer 01k3v9x2m4qa name          asks for the values, on a terminal
  taskwire answer 01k3v9x2m4qa sign_in --accept    agrees to visit a page
  taskwire answer 01k3v9x2m4qa name --decline
  taskwire answer 01k3v9x2m4qa               says which questions are open

TASK is an id, a beginning of it that no other task has (`taskwire tasks`),
or SERVER#ID.
`taskwire get TASK` shows the open questions, their keys and what there is to
choose from. KEY may be left out if one question is open; a word that is an open
key is the key. Values are given as in `taskwire call`, and are checked against
the question before they are sent. A question can be answered once.

Exit codes:
  0  the server has the answer
  2  there is no such question, it was answered before, or the answer does
     not fit; or no question was named
  3  the server cannot be reached, refuses, or does not know the task";

/// Answer a question of a task.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Answer {
    /// Id or a unique beginning of it, or SERVER#ID
    task: String,
    /// The question's key; it may be left out if one question is open, and alone it says which are
    key: Option<String>,
    /// key=value, key:=json, a JSON object, or the value of a form's only field
    #[arg(value_name = "VALUE", conflicts_with_all = ["accept", "decline", "cancel"])]
    values: Vec<String>,
    /// Accept: a form with its defaults, or a page to visit
    #[arg(long, conflicts_with_all = ["decline", "cancel"])]
    accept: bool,
    /// Decline (the tool is told no)
    #[arg(long, conflicts_with = "cancel")]
    decline: bool,
    /// Dismiss the question without an answer
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// A question's key, and the words that answer it.
#[derive(Debug)]
struct ParsedAnswer {
    key: String,
    words: Vec<String>,
    /// The key was left out: it is that of the only open question.
    key_is_implied: bool,
}

impl ParsedAnswer {
    /// Explains what is wrong with the answer. A single word may have been meant as a key.
    fn explain_misfit(&self, problem: Problem) -> Problem {
        let [word, rest @ ..] = self.words.as_slice() else { return problem };
        if !self.key_is_implied || arguments::key(word).is_some() || word.starts_with('{') {
            return problem;
        }
        let unknown = Problem::usage(format!("there is no open question `{word}`; open: `{}`", self.key));
        if rest.is_empty() { unknown.and(&format!("; and as its answer: {}", problem.message())) } else { unknown }
    }
}

impl Answer {
    pub(crate) async fn run(self) -> Result<Exit, Problem> {
        let user = UserData::open()?;
        let mut found = user.find(&self.task)?;
        let id = id_of(&found, &user)?;
        let client = user.connect(&mut found, &self.connection, false).await?;
        let mut task = client.task(&id).await?;
        let received = self.receive_questions(&client, &found, &task).await?;
        for input in received.iter().flat_map(|(_, questions)| questions) {
            if !task.questions.iter().any(|known| known.key == input.key) {
                task.questions.push(input.clone());
            }
        }
        let parsed = self.parse_words(&task)?;
        let key = parsed.key.as_str();
        let input = take_question(task, key)?;
        let from_args = self.answer_from_args(&input, &parsed.words).map_err(|problem| parsed.explain_misfit(problem))?;
        // Somebody else may have answered while a person thought it over: only then look again.
        let was_just_seen = from_args.is_some();
        let answer = match from_args {
            Some(answer) => answer,
            None => ask_person(&input).await?,
        };
        input.check(&answer)?;
        match received.filter(|(_, questions)| questions.iter().any(|input| input.key == key)) {
            Some((call, _)) => call.answer(key, answer).await?,
            None if was_just_seen => client.answer_question(&id, &input, answer).await?,
            None => client.answer(&id, key, answer).await?,
        }
        stderr::write(&format!("taskwire: answered {} of {}\n", escape::line(key), escape::line(&id)));
        close(client).await;
        Ok(Exit::Done)
    }

    /// Which question is meant, and the words that answer it.
    fn parse_words(&self, task: &TaskSnapshot) -> Result<ParsedAnswer, Problem> {
        let is_said = self.accept || self.decline || self.cancel;
        let named = |key: &String| ParsedAnswer { key: key.clone(), words: self.values.clone(), key_is_implied: false };
        match (&self.key, task.questions.as_slice()) {
            (Some(word), [input]) if *word != input.key && !is_said => {
                if self.values.is_empty() && is_key_typo(word, input) {
                    let (task, key) = (shell_word(&self.task), shell_word(&input.key));
                    return Err(Problem::usage(format!(
                        "there is no open question `{word}`; did you mean `{}`? If it is the answer: taskwire answer {task} {key} {}",
                        input.key,
                        shell_word(word)
                    )));
                }
                let words = [word].into_iter().chain(&self.values).cloned().collect();
                Ok(ParsedAnswer { key: input.key.clone(), words, key_is_implied: true })
            }
            (Some(key), _) => Ok(named(key)),
            (None, [input]) if is_said || Terminal::detect().can_ask => Ok(named(&input.key)),
            (None, _) => Err(which_question(task, &shell_word(&self.task))),
        }
    }

    /// In the legacy era only a client that follows the task gets questions: returns the call that follows it, and the questions.
    async fn receive_questions(
        &self,
        client: &Client,
        found: &FoundTask,
        task: &TaskSnapshot,
    ) -> Result<Option<(Call, Vec<Question>)>, Problem> {
        let is_wanted = self.key.is_some() || self.accept || self.decline || self.cancel;
        let is_it = |input: &Question| Some(&input.key) == self.key.as_ref();
        if client.server_info().era != Era::Legacy || task.status != Status::InputRequired || !is_wanted || task.questions.iter().any(is_it)
        {
            return Ok(None);
        }
        let mut call = client.attach(&found.reference).await?;
        let mut received = Vec::new();
        let mut until = Instant::now() + if task.questions.is_empty() { QUESTION_TIMEOUT } else { MORE_QUESTIONS_TIMEOUT };
        while let Ok(Some(event)) = timeout_at(until, call.next()).await {
            match event? {
                Event::Question(input) => {
                    let is_found = is_it(&input);
                    received.push(input);
                    if is_found {
                        break;
                    }
                    until = until.min(Instant::now() + MORE_QUESTIONS_TIMEOUT);
                }
                Event::Done(_) => break,
                _ => {}
            }
        }
        Ok(Some((call, received)))
    }

    /// The answer on the command line; none if a person is to be asked.
    fn answer_from_args(&self, input: &Question, words: &[String]) -> Result<Option<ClientAnswer>, Problem> {
        if self.decline {
            return Ok(Some(ClientAnswer::decline()));
        }
        if self.cancel {
            return Ok(Some(ClientAnswer::cancel()));
        }
        let answer = match &input.kind {
            QuestionKind::Form { schema } if self.accept => ClientAnswer::accept(Form::defaults(schema)),
            QuestionKind::Form { schema } if !words.is_empty() => ClientAnswer::accept(form_values(&input.key, words, schema)?),
            QuestionKind::Url { .. } if self.accept => ClientAnswer::accept_url(),
            QuestionKind::Url { .. } if !words.is_empty() => {
                return Err(Problem::usage(format!("`{}` asks to visit a page: answer with --accept, --decline or --cancel", input.key)));
            }
            QuestionKind::Sampling { .. } | QuestionKind::Other { .. } if !words.is_empty() => {
                let value = arguments::read(&input.key, words, &Value::Null, &mut FilesAndStdin::default()).map_err(Problem::usage)?;
                ClientAnswer::result(value)
            }
            QuestionKind::Sampling { .. } | QuestionKind::Other { .. } => {
                return Err(Problem::usage(format!("`{}` can only be answered with a JSON object", input.key)));
            }
            QuestionKind::Form { .. } | QuestionKind::Url { .. } => return Ok(None),
        };
        Ok(Some(answer))
    }
}

/// The open question of this key.
fn take_question(task: TaskSnapshot, key: &str) -> Result<Question, Problem> {
    if task.status.is_terminal() {
        return Err(ended(task.status));
    }
    let mut open = task.questions;
    if let Some(at) = open.iter().position(|input| input.key == key) {
        return Ok(open.swap_remove(at));
    }
    let keys: Vec<String> = open.iter().map(|input| format!("`{}`", input.key)).collect();
    let others = if keys.is_empty() { ": none is open".to_owned() } else { format!("; open: {}", keys.join(", ")) };
    Err(Problem::usage(format!("there is no open question `{key}`{others}")))
}

fn ended(status: Status) -> Problem {
    Problem::usage(format!("the task has ended ({status}): nothing is asked any more"))
}

/// The error if no question was named: lists them, and how each is answered. `name` is the task's name on the command line.
fn which_question(task: &TaskSnapshot, name: &str) -> Problem {
    if task.status.is_terminal() {
        return ended(task.status);
    }
    if task.questions.is_empty() {
        // In the legacy era only a client that follows the task gets questions.
        let is_asked = task.status == Status::InputRequired;
        let words = if is_asked { format!("which question? `taskwire watch {name}` asks it") } else { "the task asks nothing".to_owned() };
        return Problem::usage(words);
    }
    let one = |input: &Question| {
        let (key, gist) = (escape::line(&input.key), escape::line(&questions::summary(input)));
        format!("\n  {key}: {gist}\n    {}", questions::answer_command(name, input))
    };
    Problem::usage(format!("which question? Name one that is open:{}", task.questions.iter().map(one).collect::<String>()))
}

/// The values of a form, as they are typed. Its only field needs no name.
fn form_values(key: &str, words: &[String], schema: &Value) -> Result<Value, Problem> {
    let names: Vec<&str> = Parameters::new(schema).all().into_iter().map(|parameter| parameter.name).collect();
    let named: Vec<String>;
    let words = match (words, names.as_slice()) {
        ([value], [name]) if is_bare_value(value, name) => {
            named = vec![format!("{name}={value}")];
            named.as_slice()
        }
        _ => words,
    };
    let content = arguments::read(key, words, schema, &mut FilesAndStdin::default()).map_err(Problem::usage)?;
    let joined = |errors: Vec<FieldError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    match Form::check(schema, &content) {
        Ok(()) => Ok(content),
        Err(errors) => Err(Problem::usage(format!("the answer to `{key}` does not fit: {}", joined(errors)))),
    }
}

/// Whether this is the value of the only field itself, and not `field=value`, an object, or a typo of the former.
fn is_bare_value(value: &str, field: &str) -> bool {
    match arguments::key(value) {
        Some(key) => key != field && nearest(key, [field].into_iter()).is_none(),
        None => !value.starts_with('{'),
    }
}

/// Whether a word is the key of the question but for one letter, where any text would do as the answer.
fn is_key_typo(word: &str, input: &Question) -> bool {
    let QuestionKind::Form { schema } = &input.kind else { return false };
    let is_free = Parameters::new(schema).all().iter().all(|field| field.choices().is_none());
    is_free && strsim::damerau_levenshtein(word, &input.key) == 1
}

/// Asks the person. Ctrl-C leaves the question as it is.
async fn ask_person(input: &Question) -> Result<ClientAnswer, Problem> {
    let surroundings = Terminal::detect();
    let dialog = surroundings.can_ask.then(|| QuestionDialog::new(input, surroundings.stderr_paint())).flatten();
    let Some(mut dialog) = dialog else {
        return Err(Problem::usage(match &input.kind {
            QuestionKind::Form { schema } => {
                format!("`{}` wants: {}; give them as key=value", input.key, Parameters::new(schema).summary())
            }
            _ => format!("`{}` asks to visit a page: answer with --accept, --decline or --cancel", input.key),
        }));
    };
    let mut lines = StdinLines::default();
    lines.discard_typed();
    stderr::write(&dialog.opening(&input.message));
    loop {
        stderr::write(&dialog.prompt());
        lines.request_line();
        let Some(line) = lines.next().await? else { return Err(Problem::usage("nothing was answered")) };
        match dialog.enter_line(&line) {
            Step::Ask(text) => stderr::write(&text),
            Step::Answer(answer) => return Ok(answer),
            Step::Open(url, answer) => {
                if let Err(error) = questions::open_in_browser(&url) {
                    stderr::write(&format!("taskwire: no browser can be opened ({error}): go there by yourself\n"));
                }
                return Ok(answer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(words: &[&str], schema: &Value) -> Result<Value, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        form_values("size", &words, schema).map_err(|problem| format!("{problem:?}"))
    }

    #[test]
    fn the_only_field_of_a_form_needs_no_name() {
        let one = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]});
        assert_eq!(filled(&["7"], &one), Ok(json!({"n": 7})));
        assert_eq!(filled(&["n=7"], &one), Ok(json!({"n": 7})));
        assert_eq!(filled(&["{\"n\": 7}"], &one), Ok(json!({"n": 7})));
        assert!(filled(&["0"], &one).expect_err("too small").contains("does not fit"));
        assert!(filled(&["x"], &one).expect_err("no number").contains("must be an integer"));
        let name = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
        for text in ["Ada", "@ada", "-", "x=y"] {
            assert_eq!(filled(&[text], &name), Ok(json!({"name": text})));
        }
        assert!(filled(&["nmae=Ada"], &name).expect_err("a slip").contains("did you mean `name`?"));
    }

    #[test]
    fn a_word_that_is_nearly_the_key_is_not_taken_for_the_answer() {
        let input = |schema: Value| Question {
            key: "name".to_owned(),
            kind: QuestionKind::Form { schema },
            message: String::new(),
            request: json!({}).into(),
        };
        let text = input(json!({"type": "object", "properties": {"name": {"type": "string"}}}));
        assert!(is_key_typo("nmae", &text) && is_key_typo("names", &text));
        assert!(!is_key_typo("Jane", &text) && !is_key_typo("Ada", &text));
        let choice = input(json!({"type": "object", "properties": {"name": {"type": "string", "enum": ["names", "none"]}}}));
        assert!(!is_key_typo("names", &choice), "that can be chosen");
    }

    #[test]
    fn a_form_of_several_fields_needs_their_names() {
        let two = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}});
        assert_eq!(filled(&["a=1", "b=2"], &two), Ok(json!({"a": "1", "b": "2"})));
        assert!(filled(&["1"], &two).expect_err("which?").contains("neither key=value"));
        assert!(filled(&["c=1"], &two).expect_err("unknown").contains("has no parameter `c`"));
    }
}
