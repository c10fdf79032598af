//! Resources: what a client can read under a URI, one by one or by a template.

use std::{fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use taskwire_core::{task::AcceptedQuestions, wire::code};

use super::{
    Json, ToolError,
    provider::Handler,
    typed::{read_texts, schema_of},
};
use crate::{engine::Continuation, schema::percent_decoded};

/// A request for a resource.
#[derive(Debug, Clone)]
pub struct ResourceCall {
    /// Which resource.
    pub uri: String,
    /// What the caller sent along when it was asked to call again.
    pub resumed: Continuation,
    /// What the caller can be asked.
    pub accepts: AcceptedQuestions,
}

/// A resource: its definition and what it contains.
#[derive(Clone)]
pub struct Resource {
    pub(crate) uri: Arc<str>,
    pub(crate) wire: Value,
    pub(crate) read: Handler<ResourceCall>,
}

impl Resource {
    /// A resource that is read by Rust code.
    ///
    /// ```no_run
    /// use taskwire::tool::{Registry, Resource, ResourceCall, ToolError};
    ///
    /// async fn notes(_call: ResourceCall) -> Result<String, ToolError> {
    ///     Ok(std::fs::read_to_string("notes.md")?)
    /// }
    ///
    /// Registry::new().resource(Resource::new("notes://all", "notes", notes).mime_type("text/markdown"));
    /// ```
    pub fn new<R, F, Fut>(uri: &str, name: &str, read: F) -> Self
    where
        R: IntoContents,
        F: Fn(ResourceCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
    {
        Self::raw(json!({"uri": uri, "name": name}), move |call: ResourceCall| {
            let (uri, reading) = (call.uri.clone(), read(call));
            async move { reading.await?.into_contents(&uri) }
        })
    }

    /// A resource in its wire shape: `wire` is its definition (`uri`, `name`, …); `read` returns a `ReadResourceResult`.
    pub fn raw<F, Fut>(wire: Value, read: F) -> Self
    where
        F: Fn(ResourceCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, ToolError>> + Send + 'static,
    {
        let uri = wire["uri"].as_str().unwrap_or_default().into();
        Self { uri, wire, read: Arc::new(move |call| Box::pin(read(call))) }
    }
}

/// A family of resources, by a URI template with `{variables}` that match anything but a slash.
#[derive(Clone)]
pub struct ResourceTemplate {
    pub(crate) template: Arc<str>,
    pub(crate) wire: Value,
    pub(crate) read: Handler<ResourceCall>,
}

impl ResourceTemplate {
    /// A template whose variables are a Rust type: a field for each. They come as texts; numbers and flags are read from them.
    ///
    /// ```no_run
    /// use taskwire::tool::{Json, Registry, ResourceCall, ResourceTemplate, ToolError};
    ///
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Month {
    ///     year: u32,
    ///     month: u32,
    /// }
    ///
    /// async fn sales(args: Month, _call: ResourceCall) -> Result<Json<Vec<u32>>, ToolError> {
    ///     Ok(Json(vec![args.year, args.month]))
    /// }
    ///
    /// Registry::new().template(ResourceTemplate::new("sales://{year}/{month}", "sales", sales).description("What was sold in a month"));
    /// ```
    pub fn new<A, R, F, Fut>(template: &str, name: &str, read: F) -> Self
    where
        A: DeserializeOwned + JsonSchema,
        R: IntoContents,
        F: Fn(A, ResourceCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
    {
        let (schema, pattern) = (schema_of::<A>(), Arc::<str>::from(template));
        Self::raw(json!({"uriTemplate": template, "name": name}), move |call: ResourceCall| {
            let uri = call.uri.clone();
            let variables = variables(&pattern, &uri).into_iter().flatten();
            let texts: Map<String, Value> = variables.map(|(name, text)| (name.to_owned(), percent_decoded(text).into())).collect();
            let reading = match read_texts::<A>(&schema, texts) {
                Ok(args) => Ok(read(args, call)),
                Err(error) => Err(ToolError::protocol(code::INVALID_PARAMS, format!("`{uri}` does not fit `{pattern}`: {error}"))),
            };
            async move { reading?.await?.into_contents(&uri) }
        })
    }

    /// A template in its wire shape: `wire` is its definition (`uriTemplate`, `name`, …); `read` returns a `ReadResourceResult`.
    pub fn raw<F, Fut>(wire: Value, read: F) -> Self
    where
        F: Fn(ResourceCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, ToolError>> + Send + 'static,
    {
        let template = wire["uriTemplate"].as_str().unwrap_or_default().into();
        Self { template, wire, read: Arc::new(move |call| Box::pin(read(call))) }
    }

    pub(crate) fn matches(&self, uri: &str) -> bool {
        variables(&self.template, uri).is_some()
    }
}

macro_rules! described {
    ($($name:ident),*) => {$(
        impl $name {
            /// A title for people.
            #[must_use]
            pub fn title(mut self, title: &str) -> Self {
                self.wire["title"] = title.into();
                self
            }

            /// What it is, for a model.
            #[must_use]
            pub fn description(mut self, description: &str) -> Self {
                self.wire["description"] = description.into();
                self
            }

            /// What kind of contents it has, where they do not say so themselves.
            #[must_use]
            pub fn mime_type(mut self, mime_type: &str) -> Self {
                self.wire["mimeType"] = mime_type.into();
                let (read, mime_type) = (self.read, Arc::<str>::from(mime_type));
                self.read = Arc::new(move |call| {
                    let (reading, mime_type) = (read(call), mime_type.clone());
                    Box::pin(async move { reading.await.map(|contents| of_type(contents, &mime_type)) })
                });
                self
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), " {}"), self.wire)
            }
        }
    )*};
}
described!(Resource, ResourceTemplate);

/// Sets the MIME type of each content that has none.
fn of_type(mut contents: Value, mime_type: &str) -> Value {
    let pieces = contents.get_mut("contents").and_then(Value::as_array_mut);
    for piece in pieces.into_iter().flatten().filter_map(Value::as_object_mut) {
        piece.entry("mimeType").or_insert_with(|| mime_type.into());
    }
    contents
}

/// The variables of a template with their values in a URI; `None` if the URI does not match.
fn variables<'t, 'u>(template: &'t str, uri: &'u str) -> Option<Vec<(&'t str, &'u str)>> {
    let (mut pattern, mut rest, mut found) = (template, uri, Vec::new());
    while let Some((literal, tail)) = pattern.split_once('{') {
        let (after, (name, next)) = (rest.strip_prefix(literal)?, tail.split_once('}')?);
        let stop = next.chars().next().filter(|c| *c != '{');
        let end = after.find(|c| Some(c) == stop || c == '/').unwrap_or(after.len());
        if end == 0 {
            return None;
        }
        found.push((name, &after[..end]));
        (pattern, rest) = (next, &after[end..]);
    }
    (pattern == rest).then_some(found)
}

/// What a resource written in Rust may return.
pub trait IntoContents {
    /// The `ReadResourceResult` that it stands for, under this URI.
    ///
    /// # Errors
    /// When it cannot be written down.
    fn into_contents(self, uri: &str) -> Result<Value, ToolError>;
}

/// Text.
impl IntoContents for String {
    fn into_contents(self, uri: &str) -> Result<Value, ToolError> {
        Ok(json!({"contents": [{"uri": uri, "text": self}]}))
    }
}

/// Text.
impl IntoContents for &str {
    fn into_contents(self, uri: &str) -> Result<Value, ToolError> {
        Ok(json!({"contents": [{"uri": uri, "text": self}]}))
    }
}

/// Bytes that are no text.
impl IntoContents for Vec<u8> {
    fn into_contents(self, uri: &str) -> Result<Value, ToolError> {
        Ok(json!({"contents": [{"uri": uri, "blob": STANDARD.encode(self)}]}))
    }
}

/// JSON, as text.
impl<T: Serialize> IntoContents for Json<T> {
    fn into_contents(self, uri: &str) -> Result<Value, ToolError> {
        Ok(json!({"contents": [{"uri": uri, "mimeType": "application/json", "text": serde_json::to_string(&self.0)?}]}))
    }
}

/// A `ReadResourceResult` in its wire shape.
impl IntoContents for Value {
    fn into_contents(self, _uri: &str) -> Result<Value, ToolError> {
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_match_whole_uris() {
        let template = ResourceTemplate::raw(json!({"uriTemplate": "test://t/{id}/data"}), |_| async { Ok(json!({})) });
        assert!(template.matches("test://t/123/data"));
        for other in ["test://t//data", "test://t/1/2/data", "test://t/1/data/", "test://t/1", "x"] {
            assert!(!template.matches(other), "{other}");
        }
    }

    #[test]
    fn variables_are_found_where_the_template_has_them() {
        assert_eq!(variables("t://{a}-{b}/c", "t://1-2/c"), Some(vec![("a", "1"), ("b", "2")]));
        assert_eq!(variables("t://all", "t://all"), Some(Vec::new()));
        assert_eq!(variables("t://{a", "t://1"), None);
        for (part, meant) in [("a%20b", "a b"), ("caf%C3%A9", "café"), ("100%", "100%"), ("%zz", "%zz"), ("%ff", "%ff"), ("é%2", "é%2")]
        {
            assert_eq!(percent_decoded(part), meant);
        }
    }

    #[test]
    fn a_kind_is_said_where_contents_do_not_say_it() {
        let contents = of_type(json!({"contents": [{"text": "a"}, {"text": "b", "mimeType": "x/y"}]}), "text/plain");
        assert_eq!(contents["contents"], json!([{"text": "a", "mimeType": "text/plain"}, {"text": "b", "mimeType": "x/y"}]));
        assert_eq!(of_type(json!({}), "text/plain")["contents"], json!(null));
    }

    #[test]
    fn what_is_returned_becomes_contents() {
        let of = |contents: Result<Value, ToolError>| contents.expect("contents")["contents"][0].clone();
        assert_eq!(of("large".into_contents("t://1")), json!({"uri": "t://1", "text": "large"}));
        assert_eq!(of(b"\0\x01".to_vec().into_contents("t://1")), json!({"uri": "t://1", "blob": "AAE="}));
        let json = json!({"uri": "t://1", "mimeType": "application/json", "text": "[1]"});
        assert_eq!(of(Json([1]).into_contents("t://1")), json);
    }
}
