//! Questions of a task for a person, one at a time, and how to answer those that cannot be asked here.

use std::{
    collections::VecDeque,
    io,
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

use taskwire::client::{
    Question, QuestionKind,
    form::{Choice, Field, FieldKind, Form},
};

use crate::term::{
    paint::{Paint, shell_word},
    question_dialog::QuestionDialog,
    stderr::StatusDisplay,
    stdin_lines::StdinLines,
};

/// Choices that a summary names.
const CHOICES_SHOWN: usize = 12;

/// Questions that wait, and the one that is being asked.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    waiting: VecDeque<Question>,
    current: Option<(QuestionDialog, Question)>,
    pub(crate) lines: StdinLines,
    /// Standard input has ended.
    is_input_closed: bool,
}

impl Questions {
    /// Whether a person can be asked this.
    pub(crate) fn can_ask(&self, input: &Question, paint: Paint) -> bool {
        !self.is_input_closed && QuestionDialog::new(input, paint).is_some()
    }

    pub(crate) fn is_asking(&self) -> bool {
        self.current.is_some()
    }

    pub(crate) fn dialog(&mut self) -> Option<&mut QuestionDialog> {
        self.current.as_mut().map(|(asking, _)| asking)
    }

    pub(crate) fn push(&mut self, input: Question) {
        self.waiting.push_back(input);
    }

    /// Asks the next question, if none is being asked.
    pub(crate) fn ask_next(&mut self, screen: &mut StatusDisplay) {
        while self.current.is_none() {
            let Some(input) = self.waiting.pop_front() else { return };
            if let Some(asking) = QuestionDialog::new(&input, screen.paint()) {
                self.lines.discard_typed();
                screen.say(&asking.opening(&input.message));
                self.current = Some((asking, input));
                self.prompt(screen);
            }
        }
    }

    /// Shows the prompt, and waits for a line.
    pub(crate) fn prompt(&mut self, screen: &mut StatusDisplay) {
        if let Some((asking, _)) = &self.current {
            screen.say(&asking.prompt());
            self.lines.request_line();
        }
    }

    /// Takes the question that the person has answered.
    pub(crate) fn take(&mut self) -> Option<(QuestionDialog, Question)> {
        self.current.take()
    }

    /// The server refused the answer: the question is asked again.
    pub(crate) fn ask_again(&mut self, asked: (QuestionDialog, Question)) {
        self.current = Some(asked);
    }

    /// The question needs no answer any more. True if the person was just being asked.
    pub(crate) fn settle(&mut self, key: &str) -> bool {
        self.waiting.retain(|input| input.key != key);
        let was_asked = self.current.take_if(|(asking, _)| asking.key() == key).is_some();
        if was_asked {
            self.lines.discard_typed();
        }
        was_asked
    }

    /// Drops all questions.
    pub(crate) fn drop_all(&mut self) {
        self.waiting.clear();
        if self.current.take().is_some() {
            // What the person began to type is not for the shell either.
            self.lines.discard_typed();
        }
    }

    /// Standard input has ended: returns the questions that are left unanswered.
    pub(crate) fn close_input(&mut self) -> Vec<Question> {
        self.is_input_closed = true;
        self.current.take().map(|(_, input)| input).into_iter().chain(std::mem::take(&mut self.waiting)).collect()
    }
}

/// The question in a few words, with its choices.
pub(crate) fn summary(input: &Question) -> String {
    match &input.kind {
        QuestionKind::Form { .. } => match choices(input) {
            Some(choices) => format!("{} ({choices})", input.message).trim_start().to_owned(),
            None => input.message.clone(),
        },
        QuestionKind::Url { .. } => input.message.clone(),
        QuestionKind::Sampling { .. } => "sampling/createMessage".to_owned(),
        QuestionKind::Other { method } => method.clone(),
    }
}

/// The choices: of the only field its values, of several each with its name.
fn choices(input: &Question) -> Option<String> {
    let Form { fields, .. } = Form::of_question(&input.request).ok()?;
    let values = |options: &[Choice]| {
        let mut values: Vec<&str> = options.iter().take(CHOICES_SHOWN).map(|choice| choice.value.as_str()).collect();
        values.extend((options.len() > CHOICES_SHOWN).then_some("…"));
        values.join(", ")
    };
    let of_field = |field: &Field| {
        let values = match &field.kind {
            FieldKind::Choice { options } | FieldKind::Choices { options, .. } => values(options),
            FieldKind::Flag => "yes, no".to_owned(),
            FieldKind::Text { .. } | FieldKind::Number { .. } => return None,
        };
        Some(if fields.len() == 1 { values } else { format!("{}: {values}", field.name) })
    };
    let texts: Vec<String> = fields.iter().filter_map(of_field).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// The command that answers a question of the task that is called `name` here.
pub(crate) fn answer_command(name: &str, input: &Question) -> String {
    let key = shell_word(&input.key);
    let values = match &input.kind {
        QuestionKind::Form { .. } => example(input),
        QuestionKind::Url { .. } => "--accept".to_owned(),
        QuestionKind::Sampling { .. } | QuestionKind::Other { .. } => "'{…}'".to_owned(),
    };
    format!("taskwire answer {name} {key} {values}").trim_end().to_owned()
}

/// Example values for what must be filled in.
fn example(input: &Question) -> String {
    let Ok(Form { fields, .. }) = Form::of_question(&input.request) else { return "'{…}'".to_owned() };
    let word = |field: &Field| format!("{}=…", shell_word(&field.name));
    let required: Vec<String> = fields.iter().filter(|field| field.required).map(word).collect();
    match (required.is_empty(), fields.first()) {
        (false, _) => required.join(" "),
        (true, Some(field)) => word(field),
        (true, None) => "--accept".to_owned(),
    }
}

/// Opens a page in the user's browser, only after they agreed.
pub(crate) fn open_in_browser(url: &str) -> io::Result<()> {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(program);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // In its own process group: Ctrl-C here is not for the browser.
    command.process_group(0).spawn().map(drop)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn form(schema: Value) -> Question {
        let request = json!({"method": "elicitation/create", "params": {"message": "", "requestedSchema": schema}});
        Question { key: "name".to_owned(), kind: QuestionKind::Form { schema }, message: String::new(), request: request.into() }
    }

    #[test]
    fn the_way_to_answer_names_what_must_be_filled_in() {
        let two = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a", "b"]});
        assert_eq!(answer_command("01k", &form(two)), "taskwire answer 01k name a=… b=…");
        let optional = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        assert_eq!(answer_command("01k", &form(optional)), "taskwire answer 01k name a=…");
        let nothing = json!({"type": "object", "properties": {}});
        assert_eq!(answer_command("01k", &form(nothing)), "taskwire answer 01k name --accept");
        let page = Question { key: "it's".to_owned(), kind: QuestionKind::Url { url: "https://h".to_owned() }, ..form(json!({})) };
        assert_eq!(answer_command("01k", &page), r"taskwire answer 01k 'it'\''s' --accept");
    }

    #[test]
    fn what_there_is_to_choose_from_is_told_with_the_question() {
        let asked = |properties: Value| {
            summary(&Question { message: "Which?".to_owned(), ..form(json!({"type": "object", "properties": properties})) })
        };
        assert_eq!(asked(json!({"region": {"type": "string", "enum": ["eu", "us"]}})), "Which? (eu, us)");
        assert_eq!(asked(json!({"sure": {"type": "boolean"}})), "Which? (yes, no)");
        assert_eq!(asked(json!({"name": {"type": "string"}})), "Which?");
        let titled = json!({"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]});
        assert_eq!(asked(json!({"colour": titled, "name": {"type": "string"}})), "Which? (colour: r, g)", "as one types them");
        let many: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        assert!(asked(json!({"n": {"type": "string", "enum": many}})).ends_with(", 10, 11, …)"));
        assert_eq!(summary(&form(json!({"type": "object", "properties": {"sure": {"type": "boolean"}}}))), "(yes, no)");
    }

    #[test]
    fn a_question_that_needs_no_answer_is_not_asked() {
        let mut questions = Questions::default();
        questions.push(form(json!({"type": "object", "properties": {}})));
        assert!(!questions.settle("name"), "nobody was asked yet");
        assert!(questions.close_input().is_empty());
        assert!(!questions.can_ask(&form(json!({"type": "object"})), Paint::plain()), "nobody types any more");
    }
}
