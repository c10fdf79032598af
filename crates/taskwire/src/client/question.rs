//! Questions of a running tool and answers to them.

use serde::Deserialize;
use serde_json::{Value, json};
use taskwire_core::Payload;

use super::{Error, form::Form};

/// A question.
#[derive(Debug, Clone)]
pub struct Question {
    /// Its key within the task.
    pub key: String,
    /// What is asked for.
    pub kind: QuestionKind,
    /// The question in words.
    pub message: String,
    /// The question as the server sent it: `{"method": …, "params": …}`.
    pub request: Payload,
}

/// What a question asks for.
#[derive(Debug, Clone)]
pub enum QuestionKind {
    /// Values of a form.
    Form {
        /// The form's JSON Schema.
        schema: Value,
    },
    /// That a person visits a page.
    Url {
        /// The page. Show it before anybody goes there.
        url: String,
    },
    /// A message of a language model.
    Sampling {
        /// The request for the model.
        params: Value,
    },
    /// Something else.
    Other {
        /// Its method.
        method: String,
    },
}

impl Question {
    pub(crate) fn read(key: &str, request: Payload) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Read {
            method: String,
            #[serde(default)]
            params: Value,
        }
        let Read { method, params } = request.read().map_err(|error| format!("the question `{key}` cannot be read: {error}"))?;
        let message = params["message"].as_str().unwrap_or_default().to_owned();
        let kind = match method.as_str() {
            "elicitation/create" if params["mode"] == "url" => {
                let url = params["url"].as_str().ok_or_else(|| format!("the question `{key}` has no `url`"))?;
                QuestionKind::Url { url: url.to_owned() }
            }
            "elicitation/create" => QuestionKind::Form { schema: params["requestedSchema"].clone() },
            "sampling/createMessage" => QuestionKind::Sampling { params },
            _ => QuestionKind::Other { method },
        };
        Ok(Self { key: key.to_owned(), kind, message, request })
    }

    /// Checks that `answer` fits.
    ///
    /// # Errors
    /// When it does not, with what is wrong.
    pub fn check(&self, answer: &Answer) -> Result<(), Error> {
        let QuestionKind::Form { schema } = &self.kind else { return Ok(()) };
        if answer.0["action"] != "accept" {
            return Ok(());
        }
        let Err(errors) = Form::check(schema, &answer.0["content"]) else { return Ok(()) };
        let reason = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        Err(Error::InvalidAnswer { key: self.key.clone(), reason })
    }
}

/// An answer to a question.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer(Value);

impl Answer {
    /// The values of a form.
    #[must_use]
    pub fn accept(content: Value) -> Self {
        Self(json!({"action": "accept", "content": content}))
    }

    /// The person agrees to visit the page.
    #[must_use]
    pub fn accept_url() -> Self {
        Self(json!({"action": "accept"}))
    }

    /// The person says no.
    #[must_use]
    pub fn decline() -> Self {
        Self(json!({"action": "decline"}))
    }

    /// The person does not answer, or there is none.
    #[must_use]
    pub fn cancel() -> Self {
        Self(json!({"action": "cancel"}))
    }

    /// Any other result (the message of a language model, for one).
    #[must_use]
    pub fn result(value: Value) -> Self {
        Self(value)
    }

    /// The JSON that the client sends.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.0
    }
}
