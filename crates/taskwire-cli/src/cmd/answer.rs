//! `taskwire answer`: answers a question of a task, from wherever.

use std::time::Duration;

use clap::Args;
use serde_json::Value;
use taskwire::client::{
    Answer as Given, Client, Era, Event, Input, InputKind, Run, Status, TaskView,
    form::{FieldError, Form},
};
use tokio::time::{Instant, timeout_at};

use super::cancel::id_of;
use crate::{
    client::{
        arguments::{self, Disk},
        connection::{Connection, close},
        exit::{Exit, Problem},
        home::{Found, Home},
        questions,
        schema::{Parameters, nearest},
    },
    term::{
        asking::{Asking, Step},
        escape,
        lines::Lines,
        paint::{Surroundings, shell_word},
        screen,
    },
};

/// In the legacy era a question is told only to who listens. So long we do.
const QUESTION_PATIENCE: Duration = Duration::from_secs(10);
/// And so long for another one: those that are open are told right after each other.
const MORE_PATIENCE: Duration = Duration::from_millis(500);

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
    connection: Connection,
}

/// A question, and what is to be said to it.
#[derive(Debug)]
struct Meant {
    key: String,
    words: Vec<String>,
    /// The key was left out: it is that of the only open question.
    is_only: bool,
}

impl Meant {
    /// What is wrong with the answer. If it is one word, that may have been meant as a key.
    fn unfit(&self, problem: Problem) -> Problem {
        let [word, rest @ ..] = self.words.as_slice() else { return problem };
        if !self.is_only || arguments::key(word).is_some() || word.starts_with('{') {
            return problem;
        }
        let unknown = Problem::usage(format!("there is no open question `{word}`; open: `{}`", self.key));
        if rest.is_empty() { unknown.and(&format!("; and as its answer: {}", problem.message())) } else { unknown }
    }
}

impl Answer {
    pub(crate) async fn run(self) -> Result<Exit, Problem> {
        let home = Home::open()?;
        let mut found = home.find(&self.task)?;
        let id = id_of(&found, &home)?;
        let client = home.reach(&mut found, &self.connection, false).await?;
        let mut view = client.task(&id).await?;
        let told = self.told(&client, &found, &view).await?;
        for input in told.iter().flat_map(|(_, told)| told) {
            if !view.inputs.iter().any(|known| known.key == input.key) {
                view.inputs.push(input.clone());
            }
        }
        let meant = self.meant(&view)?;
        let key = meant.key.as_str();
        let input = question(view, key)?;
        let given = self.given(&input, &meant.words).map_err(|problem| meant.unfit(problem))?;
        // While a person thought it over, somebody else may have answered: only then there is reason to look again.
        let was_just_seen = given.is_some();
        let answer = match given {
            Some(answer) => answer,
            None => ask(&input).await?,
        };
        input.check(&answer)?;
        match told.filter(|(_, told)| told.iter().any(|input| input.key == key)) {
            Some((run, _)) => run.answer(key, answer).await?,
            None if was_just_seen => client.answer_to(&id, &input, answer).await?,
            None => client.answer(&id, key, answer).await?,
        }
        screen::write(&format!("taskwire: answered {} of {}\n", escape::line(key), escape::line(&id)));
        close(client).await;
        Ok(Exit::Done)
    }

    /// Which question is meant, and the words that answer it.
    fn meant(&self, view: &TaskView) -> Result<Meant, Problem> {
        let is_said = self.accept || self.decline || self.cancel;
        let named = |key: &String| Meant { key: key.clone(), words: self.values.clone(), is_only: false };
        match (&self.key, view.inputs.as_slice()) {
            (Some(word), [input]) if *word != input.key && !is_said => {
                if self.values.is_empty() && is_slip(word, input) {
                    let (task, key) = (shell_word(&self.task), shell_word(&input.key));
                    return Err(Problem::usage(format!(
                        "there is no open question `{word}`; did you mean `{}`? If it is the answer: taskwire answer {task} {key} {}",
                        input.key,
                        shell_word(word)
                    )));
                }
                let words = [word].into_iter().chain(&self.values).cloned().collect();
                Ok(Meant { key: input.key.clone(), words, is_only: true })
            }
            (Some(key), _) => Ok(named(key)),
            (None, [input]) if is_said || Surroundings::look().prompts => Ok(named(&input.key)),
            (None, _) => Err(which(view, &shell_word(&self.task))),
        }
    }

    /// In the legacy era questions are told only to who follows the task: who does that now, and what they were told.
    async fn told(&self, client: &Client, found: &Found, view: &TaskView) -> Result<Option<(Run, Vec<Input>)>, Problem> {
        let is_wanted = self.key.is_some() || self.accept || self.decline || self.cancel;
        let is_it = |input: &Input| Some(&input.key) == self.key.as_ref();
        if client.peer().era != Era::Legacy || view.status != Status::InputRequired || !is_wanted || view.inputs.iter().any(is_it) {
            return Ok(None);
        }
        let mut run = client.attach(&found.reference).await?;
        let mut told = Vec::new();
        let mut until = Instant::now() + if view.inputs.is_empty() { QUESTION_PATIENCE } else { MORE_PATIENCE };
        while let Ok(Some(event)) = timeout_at(until, run.next()).await {
            match event? {
                Event::Input(input) => {
                    let is_found = is_it(&input);
                    told.push(input);
                    if is_found {
                        break;
                    }
                    until = until.min(Instant::now() + MORE_PATIENCE);
                }
                Event::Done(_) => break,
                _ => {}
            }
        }
        Ok(Some((run, told)))
    }

    /// The answer on the command line; none if a person is to be asked.
    fn given(&self, input: &Input, words: &[String]) -> Result<Option<Given>, Problem> {
        if self.decline {
            return Ok(Some(Given::decline()));
        }
        if self.cancel {
            return Ok(Some(Given::cancel()));
        }
        let answer = match &input.kind {
            InputKind::Form { schema } if self.accept => Given::accept(Form::defaults(schema)),
            InputKind::Form { schema } if !words.is_empty() => Given::accept(values(&input.key, words, schema)?),
            InputKind::Url { .. } if self.accept => Given::accept_url(),
            InputKind::Url { .. } if !words.is_empty() => {
                return Err(Problem::usage(format!("`{}` asks to visit a page: answer with --accept, --decline or --cancel", input.key)));
            }
            InputKind::Sampling { .. } | InputKind::Other { .. } if !words.is_empty() => {
                let value = arguments::read(&input.key, words, &Value::Null, &mut Disk::default()).map_err(Problem::usage)?;
                Given::result(value)
            }
            InputKind::Sampling { .. } | InputKind::Other { .. } => {
                return Err(Problem::usage(format!("`{}` can only be answered with a JSON object", input.key)));
            }
            InputKind::Form { .. } | InputKind::Url { .. } => return Ok(None),
        };
        Ok(Some(answer))
    }
}

/// The open question of this key.
fn question(view: TaskView, key: &str) -> Result<Input, Problem> {
    if view.status.is_terminal() {
        return Err(ended(view.status));
    }
    let mut open = view.inputs;
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

/// No question was named: which there are, and how each is answered. `name` is how the task is called on the command line.
fn which(view: &TaskView, name: &str) -> Problem {
    if view.status.is_terminal() {
        return ended(view.status);
    }
    if view.inputs.is_empty() {
        // In the legacy era a question is told only to who follows the task.
        let is_asked = view.status == Status::InputRequired;
        let words = if is_asked { format!("which question? `taskwire watch {name}` asks it") } else { "the task asks nothing".to_owned() };
        return Problem::usage(words);
    }
    let one = |input: &Input| {
        let (key, gist) = (escape::line(&input.key), escape::line(&questions::gist(input)));
        format!("\n  {key}: {gist}\n    {}", questions::command(name, input))
    };
    Problem::usage(format!("which question? Name one that is open:{}", view.inputs.iter().map(one).collect::<String>()))
}

/// The values of a form, as they are typed. Its only field needs no name.
fn values(key: &str, words: &[String], schema: &Value) -> Result<Value, Problem> {
    let names: Vec<&str> = Parameters::new(schema).all().into_iter().map(|parameter| parameter.name).collect();
    let named: Vec<String>;
    let words = match (words, names.as_slice()) {
        ([value], [name]) if is_meant_as_it_is(value, name) => {
            named = vec![format!("{name}={value}")];
            named.as_slice()
        }
        _ => words,
    };
    let content = arguments::read(key, words, schema, &mut Disk::default()).map_err(Problem::usage)?;
    let told = |errors: Vec<FieldError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    match Form::check(schema, &content) {
        Ok(()) => Ok(content),
        Err(errors) => Err(Problem::usage(format!("the answer to `{key}` does not fit: {}", told(errors)))),
    }
}

/// Whether this is the value of the only field itself, and not `field=value`, an object, or a slip of the former.
fn is_meant_as_it_is(value: &str, field: &str) -> bool {
    match arguments::key(value) {
        Some(key) => key != field && nearest(key, [field].into_iter()).is_none(),
        None => !value.starts_with('{'),
    }
}

/// Whether a word is the key of the question but for one letter, where any text would do as the answer.
fn is_slip(word: &str, input: &Input) -> bool {
    let InputKind::Form { schema } = &input.kind else { return false };
    let is_free = Parameters::new(schema).all().iter().all(|field| field.choices().is_none());
    is_free && strsim::damerau_levenshtein(word, &input.key) == 1
}

/// Asks the person. Ctrl-C leaves the question as it is.
async fn ask(input: &Input) -> Result<Given, Problem> {
    let surroundings = Surroundings::look();
    let asking = surroundings.prompts.then(|| Asking::new(input, surroundings.paint())).flatten();
    let Some(mut asking) = asking else {
        return Err(Problem::usage(match &input.kind {
            InputKind::Form { schema } => {
                format!("`{}` wants: {}; give them as key=value", input.key, Parameters::new(schema).summary())
            }
            _ => format!("`{}` asks to visit a page: answer with --accept, --decline or --cancel", input.key),
        }));
    };
    let mut lines = Lines::default();
    lines.start_over();
    screen::write(&asking.opening(&input.message));
    loop {
        screen::write(&asking.prompt());
        lines.want();
        let Some(line) = lines.next().await? else { return Err(Problem::usage("nothing was answered")) };
        match asking.line(&line) {
            Step::Ask(text) => screen::write(&text),
            Step::Answer(answer) => return Ok(answer),
            Step::Open(url, answer) => {
                if let Err(error) = questions::open(&url) {
                    screen::write(&format!("taskwire: no browser can be opened ({error}): go there by yourself\n"));
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
        values("size", &words, schema).map_err(|problem| format!("{problem:?}"))
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
        let input = |schema: Value| Input {
            key: "name".to_owned(),
            kind: InputKind::Form { schema },
            message: String::new(),
            request: json!({}).into(),
        };
        let text = input(json!({"type": "object", "properties": {"name": {"type": "string"}}}));
        assert!(is_slip("nmae", &text) && is_slip("names", &text));
        assert!(!is_slip("Jane", &text) && !is_slip("Ada", &text));
        let choice = input(json!({"type": "object", "properties": {"name": {"type": "string", "enum": ["names", "none"]}}}));
        assert!(!is_slip("names", &choice), "that can be chosen");
    }

    #[test]
    fn a_form_of_several_fields_needs_their_names() {
        let two = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}});
        assert_eq!(filled(&["a=1", "b=2"], &two), Ok(json!({"a": "1", "b": "2"})));
        assert!(filled(&["1"], &two).expect_err("which?").contains("neither key=value"));
        assert!(filled(&["c=1"], &two).expect_err("unknown").contains("has no parameter `c`"));
    }
}
