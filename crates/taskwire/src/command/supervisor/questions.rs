//! The questions of the command, and the processes that wait for the answers.

use std::{collections::VecDeque, sync::Arc};

use taskwire_core::Payload;
use tokio::sync::oneshot;

use crate::command::messages::{OpenQuestion, Question, ToCommand};

/// Questions that may be open at once.
const OPEN_MAX: usize = 64;
/// Answers that are kept for processes that ask again.
const ANSWERED_MAX: usize = 1024;
const KEY_BYTES_MAX: usize = 128;

struct AwaitedQuestion {
    question: Arc<OpenQuestion>,
    waiters: Vec<oneshot::Sender<ToCommand>>,
}

struct AnsweredQuestion {
    key: String,
    question: Question,
    value: Payload,
}

/// All questions of one job.
pub(super) struct Questions {
    job_number: u64,
    count: u64,
    serial: u64,
    open: Vec<AwaitedQuestion>,
    answered: VecDeque<AnsweredQuestion>,
}

impl Questions {
    pub(super) fn new(job_number: u64) -> Self {
        Self { job_number, count: 0, serial: 0, open: Vec::new(), answered: VecDeque::new() }
    }

    /// The open questions, oldest first.
    pub(super) fn open(&self) -> Vec<Arc<OpenQuestion>> {
        self.open.iter().map(|open| open.question.clone()).collect()
    }

    /// Adds a question. The answer goes to `reply`, now or later. Returns whether the list of open questions changed.
    pub(super) fn ask(&mut self, key: Option<String>, question: Question, at: u64, reply: oneshot::Sender<ToCommand>) -> bool {
        // The process that asks may be gone by now.
        match self.add_or_join(key, question, at) {
            AskResult::Answered(answer) => drop(reply.send(answer)),
            AskResult::Joined(n) => self.open[n].waiters.push(reply),
            AskResult::New => {
                if let Some(open) = self.open.last_mut() {
                    open.waiters.push(reply);
                }
                return true;
            }
        }
        false
    }

    fn add_or_join(&mut self, key: Option<String>, question: Question, at: u64) -> AskResult {
        let refuse = |why: String| AskResult::Answered(ToCommand::Error(why));
        let key = match key {
            Some(key) if key.is_empty() || key.len() > KEY_BYTES_MAX || key.chars().any(char::is_control) => {
                return refuse(format!("the key of a question is a text of 1 to {KEY_BYTES_MAX} bytes without control characters"));
            }
            Some(key) => key,
            None => self.unused_key(),
        };
        let another =
            |key: &str| refuse(format!("another question was asked with the key `{key}`: use a key of its own for each question"));
        if let Some(old) = self.answered.iter().find(|old| old.key == key) {
            return if old.question == question {
                AskResult::Answered(ToCommand::Answer { key, value: old.value.clone() })
            } else {
                another(&key)
            };
        }
        if let Some(n) = self.open.iter().position(|open| open.question.key == key) {
            let open = &mut self.open[n];
            open.waiters.retain(|reply| !reply.is_closed());
            return if open.question.question == question { AskResult::Joined(n) } else { another(&key) };
        }
        if self.open.len() >= OPEN_MAX {
            return refuse(format!("{OPEN_MAX} questions wait for an answer already"));
        }
        self.serial += 1;
        let asked = OpenQuestion { key, question, journal_offset: at, serial: self.serial };
        self.open.push(AwaitedQuestion { question: Arc::new(asked), waiters: Vec::new() });
        AskResult::New
    }

    fn unused_key(&mut self) -> String {
        loop {
            self.count += 1;
            let key =
                if self.job_number > 1 { format!("run{}-ask-{}", self.job_number, self.count) } else { format!("ask-{}", self.count) };
            if self.open.iter().all(|open| open.question.key != key) && self.answered.iter().all(|old| old.key != key) {
                return key;
            }
        }
    }

    /// Answers all processes that wait for this question. Returns whether it was open.
    pub(super) fn answer(&mut self, key: &str, value: &Payload) -> bool {
        let Some(asked) = self.close(key, &ToCommand::Answer { key: key.to_owned(), value: value.clone() }) else { return false };
        if self.answered.len() >= ANSWERED_MAX {
            self.answered.pop_front();
        }
        let OpenQuestion { key, question, .. } = OpenQuestion::clone(&asked);
        self.answered.push_back(AnsweredQuestion { key, question, value: value.clone() });
        true
    }

    /// Tells all processes that wait that there will be no answer. They can ask again. Returns whether the question was open.
    pub(super) fn refuse(&mut self, key: &str, why: &str) -> bool {
        self.close(key, &ToCommand::Error(why.to_owned())).is_some()
    }

    /// Removes questions whose answer no process waits for any more. Returns whether there was one.
    pub(super) fn drop_unawaited(&mut self) -> bool {
        let before = self.open.len();
        self.open.retain_mut(|open| {
            open.waiters.retain(|reply| !reply.is_closed());
            !open.waiters.is_empty()
        });
        self.open.len() < before
    }

    fn close(&mut self, key: &str, answer: &ToCommand) -> Option<Arc<OpenQuestion>> {
        let n = self.open.iter().position(|open| open.question.key == key)?;
        let open = self.open.remove(n);
        for reply in open.waiters {
            // The process may be gone.
            let _ = reply.send(answer.clone());
        }
        Some(open.question)
    }
}

enum AskResult {
    /// There is a reply already.
    Answered(ToCommand),
    /// The same question is open, at this index.
    Joined(usize),
    /// It is now the last of the open questions.
    New,
}

#[cfg(test)]
mod tests {
    use super::*;

    type Reply = oneshot::Receiver<ToCommand>;

    fn question(message: &str) -> Question {
        Question { message: message.to_owned(), schema: None, url: None }
    }

    fn value(text: &str) -> Payload {
        Payload::from(serde_json::json!({"action": "accept", "content": {"v": text}}))
    }

    fn ask(questions: &mut Questions, key: Option<&str>, message: &str) -> (bool, Reply) {
        let (reply, answer) = oneshot::channel();
        (questions.ask(key.map(str::to_owned), question(message), 8, reply), answer)
    }

    #[test]
    fn a_question_that_nobody_waits_for_is_not_asked_any_more() {
        let mut questions = Questions::new(1);
        let ((_, first), (_, second), (_, same)) =
            (ask(&mut questions, Some("a"), "A?"), ask(&mut questions, Some("b"), "B?"), ask(&mut questions, Some("b"), "B?"));
        assert!(!questions.drop_unawaited());
        drop((first, second));
        assert!(questions.drop_unawaited());
        assert_eq!(keys(&questions), ["b"], "somebody else still waits");
        drop(same);
        assert!(questions.drop_unawaited() && questions.open().is_empty());
        let (is_new, _reply) = ask(&mut questions, Some("a"), "A?");
        assert!(is_new, "it can be asked again");
    }

    fn keys(questions: &Questions) -> Vec<String> {
        questions.open().iter().map(|asked| asked.key.clone()).collect()
    }

    fn said(reply: &mut Reply) -> Option<ToCommand> {
        reply.try_recv().ok()
    }

    fn is_error(reply: &mut Reply) -> bool {
        matches!(said(reply), Some(ToCommand::Error(_)))
    }

    #[test]
    fn questions_without_a_name_are_numbered_around_those_that_have_one() {
        let mut questions = Questions::new(1);
        let (_, _named) = ask(&mut questions, Some("ask-2"), "named");
        let (_, _first) = ask(&mut questions, None, "same");
        let (_, _second) = ask(&mut questions, None, "same");
        assert_eq!(keys(&questions), ["ask-2", "ask-1", "ask-3"]);
        let mut questions = Questions::new(3);
        let (_, _reply) = ask(&mut questions, None, "again");
        assert_eq!(keys(&questions), ["run3-ask-1"]);
    }

    #[test]
    fn all_who_ask_the_same_get_the_answer_also_later() {
        let mut questions = Questions::new(1);
        let (is_new, mut first) = ask(&mut questions, Some("k"), "q");
        let (is_new_again, mut second) = ask(&mut questions, Some("k"), "q");
        assert!(is_new && !is_new_again);
        assert!(said(&mut first).is_none());
        assert!(questions.answer("k", &value("yes")));
        let expected = Some(ToCommand::Answer { key: "k".to_owned(), value: value("yes") });
        assert_eq!(said(&mut first), expected);
        assert_eq!(said(&mut second), expected);
        let (is_new, mut third) = ask(&mut questions, Some("k"), "q");
        assert!(!is_new);
        assert_eq!(said(&mut third), expected);
        assert!(keys(&questions).is_empty());
        // An answer that comes twice changes nothing.
        assert!(!questions.answer("k", &value("no")));
        let (_, mut fourth) = ask(&mut questions, Some("k"), "q");
        assert_eq!(said(&mut fourth), expected);
    }

    #[test]
    fn another_question_under_the_same_name_is_refused() {
        let mut questions = Questions::new(1);
        let (_, mut first) = ask(&mut questions, Some("k"), "q");
        let (_, mut other) = ask(&mut questions, Some("k"), "other");
        assert!(is_error(&mut other));
        questions.answer("k", &value("yes"));
        assert!(matches!(said(&mut first), Some(ToCommand::Answer { .. })));
        let (_, mut other) = ask(&mut questions, Some("k"), "other");
        assert!(is_error(&mut other));
    }

    #[test]
    fn what_was_refused_can_be_asked_again_and_is_sent_anew() {
        let mut questions = Questions::new(1);
        let (_, mut first) = ask(&mut questions, Some("k"), "q");
        let serial = questions.open()[0].serial;
        assert!(questions.refuse("k", "nobody is there"));
        assert_eq!(said(&mut first), Some(ToCommand::Error("nobody is there".to_owned())));
        assert!(!questions.refuse("k", "nobody is there"));
        let (is_new, _second) = ask(&mut questions, Some("k"), "q");
        assert!(is_new);
        assert!(questions.open()[0].serial > serial);
    }

    #[test]
    fn a_question_stays_open_when_the_one_who_asked_is_gone() {
        let mut questions = Questions::new(1);
        let (_, reply) = ask(&mut questions, Some("k"), "q");
        drop(reply);
        assert_eq!(keys(&questions), ["k"]);
        let (_, mut second) = ask(&mut questions, Some("k"), "q");
        assert!(questions.answer("k", &value("yes")));
        assert!(matches!(said(&mut second), Some(ToCommand::Answer { .. })));
    }

    #[test]
    fn there_are_never_too_many() {
        let mut questions = Questions::new(1);
        let replies: Vec<Reply> = (0..OPEN_MAX).map(|_| ask(&mut questions, None, "q").1).collect();
        let (is_new, mut one_more) = ask(&mut questions, None, "q");
        assert!(!is_new && is_error(&mut one_more));
        drop(replies);
        for n in 0..ANSWERED_MAX + 10 {
            let key = format!("k{n}");
            questions.refuse("ask-1", "make room");
            let (_, _reply) = ask(&mut questions, Some(&key), "q");
            assert!(questions.answer(&key, &value("x")));
        }
        assert_eq!(questions.answered.len(), ANSWERED_MAX);
    }

    #[test]
    fn names_are_names() {
        let mut questions = Questions::new(1);
        for key in ["", "a\nb", &"k".repeat(KEY_BYTES_MAX + 1)] {
            let (is_new, mut reply) = ask(&mut questions, Some(key), "q");
            assert!(!is_new && is_error(&mut reply), "{key:?}");
        }
        assert!(ask(&mut questions, Some(&"k".repeat(KEY_BYTES_MAX)), "q").0);
    }
}
