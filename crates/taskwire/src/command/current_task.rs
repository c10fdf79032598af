//! For programs that a command tool runs: access to the task that they run for.
//!
//! The command finds its task by its environment. Its reports go into the task's log. Its questions go to the caller, and the answers come
//! back here. `taskwire ask`, `progress`, `status` and `emit` do this for scripts.
//!
//! ```no_run
//! use taskwire::command::{CurrentTask, Note};
//!
//! # fn main() -> std::io::Result<()> {
//! if let Some(mut task) = CurrentTask::from_env()? {
//!     task.note(&Note::Status { message: "reading".to_owned() })?;
//! }
//! # Ok(()) }
//! ```

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use serde::{Deserialize, Serialize};
use taskwire_core::Payload;

pub use super::messages::Question;
use super::{
    definition::DIR_VARIABLE,
    messages::{Hello, LINE_BYTES_MAX, SOCKET, ToCommand},
    socket,
};

/// A report of a command about its task.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Note {
    /// How much of the work is done.
    Progress {
        /// The amount that is done; neither negative nor infinite.
        done: f64,
        /// The amount that there is to do.
        total: Option<f64>,
        /// What the command is doing.
        message: Option<String>,
    },
    /// What the command is doing.
    Status {
        /// For people.
        message: String,
    },
    /// A content block of the output, as in MCP.
    Block {
        /// For example [`crate::tool::Content`] as JSON.
        block: Payload,
    },
    /// The result of the call. The last one counts.
    Result {
        /// The structured content.
        structured: Option<Payload>,
        /// Whether the tool failed, whatever its exit code.
        is_error: bool,
    },
}

/// The caller's answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Accepted, with the form's values; None for a page that was opened.
    Accept(Option<Payload>),
    /// Declined.
    Decline,
    /// Dismissed without a choice.
    Cancel,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum CommandMessage<'a> {
    Note(&'a Note),
    Ask {
        #[serde(skip_serializing_if = "Option::is_none")]
        key: Option<&'a str>,
        question: &'a Question,
    },
}

#[derive(Deserialize)]
struct ElicitResult {
    action: String,
    #[serde(default)]
    content: Option<Payload>,
}

/// The task that this process runs for.
#[derive(Debug)]
pub struct CurrentTask {
    stream: BufReader<UnixStream>,
    has_said_hello: bool,
}

impl CurrentTask {
    /// Finds the task; None if this process runs for none.
    ///
    /// # Errors
    /// When the task cannot be reached; the text is for people.
    pub fn from_env() -> io::Result<Option<Self>> {
        match std::env::var_os(DIR_VARIABLE) {
            Some(dir) if !dir.is_empty() => Self::connect(Path::new(&dir)).map(Some),
            _ => Ok(None),
        }
    }

    fn connect(dir: &Path) -> io::Result<Self> {
        let stream = socket::connect_blocking(dir, SOCKET).map_err(|error| {
            let shown = dir.display();
            let words = match error.kind() {
                ErrorKind::NotFound if !dir.exists() => format!("the task of this command is over: its directory {shown} is gone"),
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                    format!("the task of this command is over: nobody listens in its directory {shown}")
                }
                _ => format!("cannot reach the task of this command in {shown}: {error}"),
            };
            io::Error::new(error.kind(), words)
        })?;
        Ok(Self::from_stream(stream))
    }

    fn from_stream(stream: UnixStream) -> Self {
        Self { stream: BufReader::new(stream), has_said_hello: false }
    }

    /// Reports something. When this returns, the journal has it, in order with the command's output.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when it can never be sent: progress that is no finite number from 0 up, or more than a megabyte.
    /// Otherwise when it was refused, or the task has ended.
    pub fn note(&mut self, note: &Note) -> io::Result<()> {
        if let Note::Progress { done, total, .. } = note {
            // JSON has no NaN and no infinity.
            let is_usable = |number: &f64| number.is_finite() && *number >= 0.0;
            if !is_usable(done) || !total.as_ref().is_none_or(is_usable) {
                return Err(io::Error::new(ErrorKind::InvalidInput, "progress is told in finite numbers from 0 up"));
            }
        }
        match self.exchange(&CommandMessage::Note(note))? {
            ToCommand::Ok {} => Ok(()),
            ToCommand::Error(why) => Err(io::Error::other(why)),
            ToCommand::Answer { .. } => Err(not_understood("it answers what nobody asked")),
        }
    }

    /// Asks the caller, and waits for the answer as long as it takes.
    ///
    /// A question with a key can be asked again: the same question under the same key gets the same answer.
    ///
    /// # Errors
    /// When nobody can be asked, with why, or the task has ended; [`ErrorKind::InvalidInput`] as for [`CurrentTask::note`].
    pub fn ask(&mut self, key: Option<&str>, question: &Question) -> io::Result<Answer> {
        let answer: ElicitResult = match self.exchange(&CommandMessage::Ask { key, question })? {
            ToCommand::Answer { value, .. } => value.read().map_err(|error| not_understood(&error.to_string()))?,
            ToCommand::Error(why) => return Err(io::Error::other(why)),
            ToCommand::Ok {} => return Err(not_understood("it says that all is well instead of an answer")),
        };
        match answer.action.as_str() {
            "accept" => Ok(Answer::Accept(answer.content)),
            "decline" => Ok(Answer::Decline),
            "cancel" => Ok(Answer::Cancel),
            _ => Err(not_understood("the answer is neither accept, decline nor cancel")),
        }
    }

    /// Sends a message and waits for the reply.
    fn exchange(&mut self, message: &CommandMessage<'_>) -> io::Result<ToCommand> {
        let mut text = Vec::new();
        if !self.has_said_hello {
            push_line(&mut text, &Hello::Command)?;
        }
        push_line(&mut text, message)?;
        let sent = self.stream.get_mut().write_all(&text);
        self.has_said_hello = true;
        // A supervisor that refuses a line may close before all of it was sent. Its reason can still be read.
        match (sent, self.line()) {
            (_, Ok(Some(line))) => serde_json::from_str(&line).map_err(|error| not_understood(&error.to_string())),
            (Ok(()), Ok(None)) => Err(closed()),
            (Ok(()), Err(error)) if error.kind() == ErrorKind::InvalidData => Err(error),
            (Err(error), _) | (Ok(()), Err(error)) => match error.kind() {
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Err(closed()),
                kind => Err(io::Error::new(kind, format!("cannot talk to the task of this command: {error}"))),
            },
        }
    }

    /// The next whole line; None if the other side closed.
    fn line(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        self.stream.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
        match line.pop() {
            Some(b'\n') => String::from_utf8(line).map(Some).map_err(|_| not_understood("it is not text")),
            Some(_) if line.len() + 1 >= LINE_BYTES_MAX => Err(not_understood("it is too long")),
            _ => Ok(None),
        }
    }
}

fn push_line(text: &mut Vec<u8>, message: &impl Serialize) -> io::Result<()> {
    let start = text.len();
    serde_json::to_writer(&mut *text, message)?;
    text.push(b'\n');
    let bytes = text.len() - start;
    if bytes > LINE_BYTES_MAX {
        let words = format!("this is too large: {bytes} bytes of JSON, and at most {LINE_BYTES_MAX} can be handed over at once");
        return Err(io::Error::new(ErrorKind::InvalidInput, words));
    }
    Ok(())
}

fn closed() -> io::Error {
    let words = "the connection to the task was closed: the task was cancelled, or has ended";
    io::Error::new(ErrorKind::UnexpectedEof, words)
}

fn not_understood(why: &str) -> io::Error {
    let words = format!("what the task's supervisor says is not understood ({why}): is it another version of taskwire?");
    io::Error::new(ErrorKind::InvalidData, words)
}

#[cfg(test)]
mod tests {
    use std::{net::Shutdown, thread};

    use serde_json::{Value, json};

    use super::*;

    /// Runs `command` against a supervisor that sends these replies, one for each message, and returns what the supervisor received.
    fn talk<T>(replies: &[&str], command: impl FnOnce(&mut CurrentTask) -> T) -> (T, Vec<Value>) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let replies: Vec<String> = replies.iter().map(|&reply| reply.to_owned()).collect();
        let supervisor = thread::spawn(move || {
            let mut received = Vec::new();
            let mut lines = BufReader::new(theirs.try_clone().expect("another handle")).lines();
            let mut next = || lines.next().and_then(Result::ok);
            received.extend(next());
            for reply in replies {
                received.extend(next());
                (&theirs).write_all(reply.as_bytes()).expect("it is read");
            }
            let _ = theirs.shutdown(Shutdown::Write);
            received.extend(std::iter::from_fn(next));
            received
        });
        let mut task = CurrentTask::from_stream(ours);
        let result = command(&mut task);
        drop(task);
        let received = supervisor.join().expect("a supervisor that does not panic");
        (result, received.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect())
    }

    fn status(message: &str) -> Note {
        Note::Status { message: message.to_owned() }
    }

    fn question() -> Question {
        Question::form("Who?", json!({"type": "object"}))
    }

    #[test]
    fn notes_are_lines_of_json_after_one_hello() {
        let notes = [
            status("a\nb"),
            Note::Progress { done: 0.5, total: Some(2.0), message: None },
            Note::Block { block: json!({"type": "text", "text": "x"}).into() },
            Note::Result { structured: Some(json!({"n": 1}).into()), is_error: false },
            Note::Result { structured: None, is_error: true },
        ];
        let (result, received) =
            talk(&["{\"ok\":{}}\n"; 5], |task| notes.iter().map(|note| task.note(note)).collect::<io::Result<Vec<()>>>());
        assert_eq!(result.expect("all are taken").len(), 5);
        let expected = [
            json!({"hello": "inside"}),
            json!({"note": {"status": {"message": "a\nb"}}}),
            json!({"note": {"progress": {"done": 0.5, "total": 2.0, "message": null}}}),
            json!({"note": {"block": {"block": {"type": "text", "text": "x"}}}}),
            json!({"note": {"result": {"structured": {"n": 1}, "is_error": false}}}),
            json!({"note": {"result": {"structured": null, "is_error": true}}}),
        ];
        assert_eq!(received, expected);
    }

    #[test]
    fn a_question_says_only_what_it_has() {
        let (_, received) = talk(&["{\"error\":\"no\"}\n"; 2], |task| {
            let _ = task.ask(None, &question());
            let _ = task.ask(Some("k"), &Question::url("Sign in", "https://example.com"));
        });
        assert_eq!(received[1], json!({"ask": {"question": {"message": "Who?", "schema": {"type": "object"}}}}));
        assert_eq!(received[2], json!({"ask": {"key": "k", "question": {"message": "Sign in", "url": "https://example.com"}}}));
    }

    #[test]
    fn the_fields_of_a_form_keep_their_order() {
        let text = r#"{"type":"object","properties":{"z":{},"a":{}}}"#;
        let question = Question::form("Who?", Payload::parse(text.to_owned()).expect("JSON"));
        let line = serde_json::to_string(&CommandMessage::Ask { key: None, question: &question }).expect("it can be written");
        assert!(line.contains(text), "{line}");
    }

    #[test]
    fn answers_are_what_the_caller_did() {
        for (reply, expected) in [
            (r#"{"action":"accept","content":{"n":1.50}}"#, Answer::Accept(Some(Payload::parse("{\"n\":1.50}".to_owned()).expect("JSON")))),
            (r#"{"action":"accept"}"#, Answer::Accept(None)),
            (r#"{"action":"accept","content":null}"#, Answer::Accept(None)),
            (r#"{"action":"decline","content":{}}"#, Answer::Decline),
            (r#"{"action":"cancel","_meta":{}}"#, Answer::Cancel),
        ] {
            let line = format!("{{\"answer\":{{\"key\":\"ask-1\",\"value\":{reply}}}}}\n");
            let (answer, _) = talk(&[&line], |task| task.ask(None, &question()));
            assert_eq!(answer.expect("an answer"), expected, "{reply}");
        }
    }

    #[test]
    fn a_refusal_keeps_its_words() {
        let (error, _) = talk(&["{\"error\":\"the caller cannot be asked\"}\n"], |task| task.ask(None, &question()).unwrap_err());
        assert_eq!(error.to_string(), "the caller cannot be asked");
        let (error, _) = talk(&["{\"error\":\"too large\"}\n"], |task| task.note(&status("x")).unwrap_err());
        assert_eq!(error.to_string(), "too large");
    }

    #[test]
    fn nonsense_is_an_error_and_never_an_answer() {
        let long = format!("{{\"error\":\"{}\"}}\n", "x".repeat(LINE_BYTES_MAX));
        for reply in [
            "\n",
            "nonsense\n",
            "{}\n",
            "[]\n",
            "{\"ok\":{}}\n",
            "{\"yes\":1}\n",
            "{\"answer\":{\"key\":\"k\"}}\n",
            "{\"answer\":{\"key\":\"k\",\"value\":{}}}\n",
            "{\"answer\":{\"key\":\"k\",\"value\":{\"action\":\"maybe\"}}}\n",
            &long,
        ] {
            let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
            let reply = reply.to_owned();
            // The other end stays open until the reply was read: nothing may wait for more.
            let (send, shown) = (theirs.try_clone().expect("another handle"), reply.chars().take(40).collect::<String>());
            let sender = thread::spawn(move || (&send).write_all(reply.as_bytes()));
            let error = CurrentTask::from_stream(ours).ask(None, &question()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{shown}: {error}");
            let _ = sender.join().expect("a thread that does not panic");
            drop(theirs);
        }
    }

    #[test]
    fn a_supervisor_that_closes_before_during_or_after_an_answer_ends_the_wait() {
        for reply in ["", "{\"answer\":{\"key\":\"k\",\"value\":{\"action\":\"accept\"}}}", "{\"ok\":{}"] {
            let (error, _) = talk(&[reply], |task| task.ask(None, &question()).unwrap_err());
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "half a line is no line: {reply}");
        }
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        drop(theirs);
        let error = CurrentTask::from_stream(ours).note(&status("x")).unwrap_err();
        assert!(error.to_string().contains("has ended"), "{error}");
    }

    #[test]
    fn why_a_line_was_refused_is_read_although_not_all_of_it_was_taken() {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        (&theirs).write_all(b"{\"error\":\"too much\"}\n").expect("it has room");
        drop(theirs);
        let error = CurrentTask::from_stream(ours).note(&status("x")).unwrap_err();
        assert_eq!(error.to_string(), "too much");
    }

    #[test]
    fn what_can_never_be_told_is_not_sent() {
        let progress = |done, total| Note::Progress { done, total, message: None };
        let notes = [
            progress(f64::NAN, None),
            progress(f64::INFINITY, None),
            progress(-1.0, None),
            progress(1.0, Some(f64::NAN)),
            status(&"x".repeat(LINE_BYTES_MAX)),
        ];
        let ((), received) = talk(&[], |task| {
            for note in &notes {
                assert_eq!(task.note(note).unwrap_err().kind(), ErrorKind::InvalidInput);
            }
        });
        assert_eq!(received, Vec::<Value>::new());
    }

    #[test]
    fn the_longest_line_is_sent() {
        let empty = serde_json::to_vec(&CommandMessage::Note(&status(""))).expect("it can be written").len();
        let longest = status(&"x".repeat(LINE_BYTES_MAX - 1 - empty));
        let (result, received) = talk(&["{\"ok\":{}}\n"], |task| task.note(&longest));
        result.expect("it is taken");
        assert_eq!(received[1].to_string().len() + 1, LINE_BYTES_MAX);
    }

    #[test]
    fn a_task_that_is_over_is_named() {
        let gone = std::env::temp_dir().join("taskwire-no-such-task");
        let error = CurrentTask::connect(&gone).unwrap_err();
        assert!(error.to_string().contains("is gone") && error.to_string().contains("taskwire-no-such-task"), "{error}");
    }
}
