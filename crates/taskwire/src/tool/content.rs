//! What tools produce: content blocks and results.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use taskwire_core::{Payload, task::Outcome};

/// One content block, in the shape that every era of the protocol shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content(Payload);

impl Content {
    /// Text.
    #[must_use]
    pub fn text(text: impl AsRef<str>) -> Self {
        #[derive(Serialize)]
        struct Text<'a> {
            r#type: &'static str,
            text: &'a str,
        }
        Self(Payload::of(&Text { r#type: "text", text: text.as_ref() }).expect("text can always be written"))
    }

    /// An image, from its bytes.
    #[must_use]
    pub fn image(bytes: &[u8], mime_type: &str) -> Self {
        Self(json!({"type": "image", "data": STANDARD.encode(bytes), "mimeType": mime_type}).into())
    }

    /// Sound, from its bytes.
    #[must_use]
    pub fn audio(bytes: &[u8], mime_type: &str) -> Self {
        Self(json!({"type": "audio", "data": STANDARD.encode(bytes), "mimeType": mime_type}).into())
    }

    /// A text resource, included whole.
    #[must_use]
    pub fn resource(uri: &str, mime_type: &str, text: &str) -> Self {
        Self(json!({"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": text}}).into())
    }

    /// A pointer to a resource.
    #[must_use]
    pub fn link(uri: &str, name: &str) -> Self {
        Self(json!({"type": "resource_link", "uri": uri, "name": name}).into())
    }

    /// A block in its wire shape, for kinds that have no constructor here.
    #[must_use]
    pub fn raw(block: Value) -> Self {
        Self(block.into())
    }

    /// The block in its wire shape.
    #[must_use]
    pub fn into_payload(self) -> Payload {
        self.0
    }
}

impl<T: AsRef<str>> From<T> for Content {
    fn from(text: T) -> Self {
        Self::text(text)
    }
}

/// In the `_meta` of a failed result: the reason, in one line.
pub(crate) const FAILURE_REASON: &str = "dev.taskwire/failure-reason";

/// The result of a tool call.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallResult {
    /// For people and models.
    pub content: Vec<Payload>,
    /// For programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_content: Option<Payload>,
    /// Whether the tool says that it failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
    /// The result's `_meta`.
    #[serde(rename = "_meta", default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Map<String, Value>>,
}

impl CallResult {
    /// A result made of content blocks.
    #[must_use]
    pub fn of(content: impl IntoIterator<Item = Content>) -> Self {
        Self { content: content.into_iter().map(Content::into_payload).collect(), ..Self::default() }
    }

    /// A result that says the tool failed, and why, so that a model can do better.
    #[must_use]
    pub fn error(text: impl AsRef<str>) -> Self {
        Self { is_error: true, ..Self::of([Content::text(text)]) }
    }

    /// Says in one line why it failed, to stand next to the status of its task.
    pub(crate) fn set_failure_reason(&mut self, why: &str) {
        self.meta.get_or_insert_default().insert(FAILURE_REASON.to_owned(), why.into());
    }

    /// The outcome of a task with this result.
    pub(crate) fn into_outcome(self) -> Outcome {
        let is_error = self.is_error;
        let result = Payload::of(&self).expect("a result consists of JSON already");
        Outcome::Completed { result, is_error }
    }
}

/// What a tool written in Rust may return.
pub trait IntoResult {
    /// The result it stands for.
    fn into_result(self) -> CallResult;
}

impl IntoResult for CallResult {
    fn into_result(self) -> CallResult {
        self
    }
}

impl IntoResult for () {
    fn into_result(self) -> CallResult {
        CallResult::default()
    }
}

impl IntoResult for Content {
    fn into_result(self) -> CallResult {
        CallResult::of([self])
    }
}

impl IntoResult for Vec<Content> {
    fn into_result(self) -> CallResult {
        CallResult::of(self)
    }
}

impl IntoResult for String {
    fn into_result(self) -> CallResult {
        CallResult::of([Content::text(self)])
    }
}

impl IntoResult for &str {
    fn into_result(self) -> CallResult {
        CallResult::of([Content::text(self)])
    }
}

/// A value that becomes the structured content of a result, and its text too.
#[derive(Debug, Clone)]
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResult for Json<T> {
    fn into_result(self) -> CallResult {
        match Payload::of(&self.0) {
            Ok(value) => CallResult { structured_content: Some(value.clone()), ..CallResult::of([Content::text(value.as_str())]) },
            Err(error) => CallResult::error(format!("the result cannot be written as JSON: {error}")),
        }
    }
}
