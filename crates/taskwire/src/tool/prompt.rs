//! Prompts: messages for a model that a person chooses in a client.

use std::{fmt, sync::Arc};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use taskwire_core::{task::AcceptedQuestions, wire::code};

use super::{
    Content, ToolError,
    provider::Handler,
    typed::{read_texts, schema_of},
};
use crate::engine::Continuation;

/// A request for a prompt.
#[derive(Debug, Clone)]
pub struct PromptCall {
    /// The prompt's arguments.
    pub arguments: Map<String, Value>,
    /// What the caller sent along when it was asked to call again.
    pub resumed: Continuation,
    /// What the caller can be asked.
    pub accepts: AcceptedQuestions,
}

/// A prompt: its definition and the code that makes its messages.
#[derive(Clone)]
pub struct Prompt {
    pub(crate) name: Arc<str>,
    pub(crate) wire: Value,
    pub(crate) get: Handler<PromptCall>,
}

impl Prompt {
    /// A prompt whose arguments are a Rust type. They come as texts; numbers and flags are read from them.
    ///
    /// ```no_run
    /// use taskwire::tool::{Prompt, PromptCall, Registry, ToolError};
    ///
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Review {
    ///     /// The file to look at
    ///     file: String,
    ///     lines: Option<u32>,
    /// }
    ///
    /// async fn review(args: Review, _call: PromptCall) -> Result<String, ToolError> {
    ///     Ok(format!("Review the first {} lines of {}.", args.lines.unwrap_or(100), args.file))
    /// }
    ///
    /// Registry::new().prompt(Prompt::new("review", "Reviews a file", review));
    /// ```
    pub fn new<A, R, F, Fut>(name: &str, description: &str, get: F) -> Self
    where
        A: DeserializeOwned + JsonSchema,
        R: IntoPrompt,
        F: Fn(A, PromptCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
    {
        let schema = schema_of::<A>();
        let wire = json!({"name": name, "description": description, "arguments": arguments_of(&schema)});
        Self::raw(wire, move |call: PromptCall| {
            let getting = match read_texts::<A>(&schema, call.arguments.clone()) {
                Ok(args) => Ok(get(args, call)),
                Err(error) => Err(ToolError::protocol(code::INVALID_PARAMS, format!("the arguments do not fit: {error}"))),
            };
            async move { getting?.await.map(IntoPrompt::into_prompt) }
        })
    }

    /// A prompt in its wire shape: `wire` is its definition (`name`, `description`, `arguments`); `get` returns a `GetPromptResult`.
    pub fn raw<F, Fut>(wire: Value, get: F) -> Self
    where
        F: Fn(PromptCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, ToolError>> + Send + 'static,
    {
        let name = wire["name"].as_str().unwrap_or_default().into();
        Self { name, wire, get: Arc::new(move |call| Box::pin(get(call))) }
    }

    /// A title for people.
    #[must_use]
    pub fn title(mut self, title: &str) -> Self {
        self.wire["title"] = title.into();
        self
    }
}

impl fmt::Debug for Prompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prompt {}", self.wire)
    }
}

/// The arguments of a prompt, as its definition names them.
fn arguments_of(schema: &Value) -> Vec<Value> {
    let is_required = |name: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|it| it == name));
    let argument = |(name, field): (&String, &Value)| {
        let mut argument = json!({"name": name, "required": is_required(name)});
        for key in ["title", "description"] {
            if let Some(said) = field.get(key) {
                argument[key] = said.clone();
            }
        }
        argument
    };
    schema["properties"].as_object().into_iter().flatten().map(argument).collect()
}

/// One message of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    role: &'static str,
    content: Content,
}

impl Message {
    /// What the user says.
    #[must_use]
    pub fn user(content: impl Into<Content>) -> Self {
        Self { role: "user", content: content.into() }
    }

    /// A message in the model's name.
    #[must_use]
    pub fn assistant(content: impl Into<Content>) -> Self {
        Self { role: "assistant", content: content.into() }
    }
}

/// What a prompt written in Rust may return.
pub trait IntoPrompt {
    /// The `GetPromptResult` that it stands for.
    fn into_prompt(self) -> Value;
}

impl IntoPrompt for Vec<Message> {
    fn into_prompt(self) -> Value {
        let message = |Message { role, content }| json!({"role": role, "content": content.into_payload()});
        json!({"messages": self.into_iter().map(message).collect::<Vec<_>>()})
    }
}

impl IntoPrompt for Message {
    fn into_prompt(self) -> Value {
        vec![self].into_prompt()
    }
}

/// Said by the user.
impl IntoPrompt for Content {
    fn into_prompt(self) -> Value {
        Message::user(self).into_prompt()
    }
}

/// Said by the user.
impl IntoPrompt for String {
    fn into_prompt(self) -> Value {
        Message::user(self).into_prompt()
    }
}

/// Said by the user.
impl IntoPrompt for &str {
    fn into_prompt(self) -> Value {
        Message::user(self).into_prompt()
    }
}

/// A `GetPromptResult` in its wire shape.
impl IntoPrompt for Value {
    fn into_prompt(self) -> Value {
        self
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[test]
    fn arguments_are_named_with_what_is_said_of_them() {
        #[derive(Deserialize, JsonSchema)]
        #[expect(dead_code, reason = "only its schema is looked at")]
        struct Wanted {
            /// Whom to greet
            who: String,
            often: Option<u32>,
        }
        let prompt = Prompt::new("greet", "Greets", |_: Wanted, _call| async { Ok::<_, ToolError>("Hello.") }).title("A greeting");
        let mut arguments = prompt.wire["arguments"].as_array().cloned().unwrap_or_default();
        arguments.sort_by_key(ToString::to_string);
        let mut expected =
            vec![json!({"name": "who", "description": "Whom to greet", "required": true}), json!({"name": "often", "required": false})];
        expected.sort_by_key(ToString::to_string);
        assert_eq!(arguments, expected);
        assert_eq!((&*prompt.name, &prompt.wire["title"]), ("greet", &json!("A greeting")));
    }

    #[test]
    fn what_is_returned_becomes_messages() {
        let text = |role: &str, text: &str| json!({"role": role, "content": {"type": "text", "text": text}});
        assert_eq!("Hello.".into_prompt(), json!({"messages": [text("user", "Hello.")]}));
        let both = vec![Message::user("Hello."), Message::assistant("Hi.")];
        assert_eq!(both.into_prompt(), json!({"messages": [text("user", "Hello."), text("assistant", "Hi.")]}));
    }
}
