//! The tools of a server, and the cache of their list.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Value, json};
use taskwire_core::{Payload, Timestamp};

use super::{
    Era, Error,
    form::{self, FieldError, whole_number},
    link::{Link, RequestError},
};

/// A tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolInfo {
    /// Its name.
    pub name: String,
    /// The name to show to people.
    pub title: Option<String>,
    /// What it does.
    pub description: Option<String>,
    /// The JSON Schema of its arguments, as the server wrote it.
    pub input_schema: Value,
    /// The JSON Schema of its structured content.
    pub output_schema: Option<Value>,
    /// Hints, as trustworthy as the server is.
    pub annotations: Value,
    /// Whether calls can be tasks.
    pub task: TaskSupport,
    /// Whether the server says that its calls stream output.
    pub streams: bool,
    /// The whole JSON of the server.
    pub raw: Value,
}

/// Whether calls of a tool can be tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskSupport {
    /// The server decides (modern era).
    Unknown,
    /// Never.
    Forbidden,
    /// If the caller wants it.
    Optional,
    /// Always.
    Required,
}

impl ToolInfo {
    pub(crate) fn read(raw: Value, era: Era) -> Option<Self> {
        let text = |key: &str| raw[key].as_str().map(str::to_owned);
        let task = match (era, raw["execution"]["taskSupport"].as_str()) {
            (Era::Modern, _) => TaskSupport::Unknown,
            (Era::Legacy, Some("optional")) => TaskSupport::Optional,
            (Era::Legacy, Some("required")) => TaskSupport::Required,
            (Era::Legacy, _) => TaskSupport::Forbidden,
        };
        let streams = raw["execution"]["streamPartial"] == true || raw["_meta"]["dev.taskwire/partials"]["streamPartial"] == true;
        Some(Self {
            name: text("name")?,
            title: text("title").or_else(|| raw["annotations"]["title"].as_str().map(str::to_owned)),
            description: text("description"),
            input_schema: raw["inputSchema"].clone(),
            output_schema: raw.get("outputSchema").cloned(),
            annotations: raw["annotations"].clone(),
            task,
            streams,
            raw,
        })
    }

    /// Checks arguments against the input schema before a call; a schema that cannot be used finds nothing. An argument that
    /// is null and not required counts as absent.
    #[must_use]
    pub fn check_arguments(&self, arguments: &Value) -> Vec<FieldError> {
        let required = self.input_schema["required"].as_array();
        let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|required| required == name));
        let mut arguments = arguments.clone();
        if let Some(members) = arguments.as_object_mut() {
            members.retain(|name, value| !value.is_null() || is_required(name));
        }
        form::check_arguments(&self.input_schema, &arguments)
    }

    /// Whether the server says that a second call does no harm.
    pub(crate) fn repeatable(&self) -> bool {
        self.annotations["readOnlyHint"] == true || self.annotations["idempotentHint"] == true
    }
}

#[derive(Deserialize)]
struct ToolPage {
    #[serde(default)]
    tools: Vec<Value>,
    #[serde(default, rename = "nextCursor")]
    next_cursor: Option<String>,
    #[serde(default, rename = "ttlMs")]
    ttl_ms: Value,
}

/// The list of tools that was read last.
#[derive(Default)]
pub(crate) struct ToolCache(Mutex<Option<CachedTools>>);

/// A list, and when it expires; without a time, it is good until the server says that it has changed.
type CachedTools = (Arc<Vec<ToolInfo>>, Option<Timestamp>);

impl ToolCache {
    /// The list, unless it has expired.
    pub(crate) fn fresh(&self, now: Timestamp) -> Option<Arc<Vec<ToolInfo>>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().filter(|(_, until)| until.is_none_or(|until| now < until)).map(|(tools, _)| tools.clone())
    }

    /// The list, also if it has expired.
    pub(crate) fn known(&self) -> Option<Arc<Vec<ToolInfo>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(tools, _)| tools.clone())
    }

    /// Asks for the list, page by page, and keeps it without the tools that `is_sound` rejects.
    pub(crate) async fn list<F: Future<Output = Result<Payload, RequestError>>>(
        &self,
        link: &Link,
        era: Era,
        is_sound: fn(&Value) -> bool,
        ask: impl Fn(Value) -> F,
    ) -> Result<Arc<Vec<ToolInfo>>, Error> {
        let max = link.options.limits.tools;
        let (mut all, mut pages, mut until, mut params) = (Vec::new(), 0, None::<Timestamp>, json!({}));
        loop {
            pages += 1;
            let page = ask(params).await.map_err(|failed| link.error(failed))?;
            let page: ToolPage =
                page.read().map_err(|error| link.error(RequestError::Protocol(format!("its list of tools cannot be read: {error}"))))?;
            // A server of the legacy era notifies when the list has changed.
            if era == Era::Modern {
                let ends = link.options.clock.now().after(Duration::from_millis(whole_number(&page.ttl_ms).unwrap_or_default()));
                until = Some(until.map_or(ends, |until| until.min(ends)));
            }
            all.extend(page.tools.into_iter().filter(is_sound));
            // Pages count too: a server could send empty ones for ever.
            if all.len().max(pages) > max {
                return Err(Error::Limit { what: "tools", max, key: "limits.tools" });
            }
            let Some(cursor) = page.next_cursor else { break };
            params = json!({"cursor": cursor});
        }
        let tools: Arc<Vec<ToolInfo>> = Arc::new(all.into_iter().filter_map(|tool| ToolInfo::read(tool, era)).collect());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((tools.clone(), until));
        Ok(tools)
    }

    pub(crate) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked_as_far_as_the_schema_can_be_used() {
        let errors = |schema: Value, arguments: Value| -> Vec<String> {
            let tool = ToolInfo::read(json!({"name": "t", "inputSchema": schema}), Era::Modern).expect("a tool");
            tool.check_arguments(&arguments).iter().map(ToString::to_string).collect()
        };
        let schema = json!({
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 1}, "s": {"type": "string", "format": "uri"}},
            "required": ["s"],
            "additionalProperties": false,
        });
        assert_eq!(errors(schema.clone(), json!({"s": "no address", "n": 1})), [""; 0], "formats are the server's business");
        assert_eq!(errors(schema.clone(), json!({"s": "x", "n": null})), [""; 0], "null is nothing");
        assert_eq!(errors(schema.clone(), json!({"s": "x", "n": 0})), ["`n`: 0 is less than 1"]);
        assert_eq!(errors(schema.clone(), json!({"s": "x", "m": 0})), ["`m`: there is no such field"]);
        assert_eq!(errors(schema, json!({"s": null})).len(), 1, "what is required is not left out");
        assert_eq!(errors(json!({"type": "object", "$ref": "https://example.com/s.json"}), json!({"n": 0})), [""; 0], "nobody asks there");
        assert_eq!(errors(json!({"type": 3}), json!({"n": 0})), [""; 0]);
    }
}
