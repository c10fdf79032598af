//! What a tool may ask its caller, and what comes back.

use schemars::JsonSchema;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use taskwire_core::{Payload, task::Accepts};

/// Something that only the caller knows.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    method: &'static str,
    params: Value,
}

impl Question {
    /// A form for a person: `schema` describes a flat object of texts, numbers, booleans and choices.
    #[must_use]
    pub fn form(message: &str, schema: Value) -> Self {
        Self { method: "elicitation/create", params: json!({"mode": "form", "message": message, "requestedSchema": schema}) }
    }

    /// A form for a person, described by a Rust type.
    #[must_use]
    pub fn form_for<T: JsonSchema>(message: &str) -> Self {
        let settings = schemars::generate::SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        let mut schema = settings.into_generator().into_root_schema_for::<T>();
        schema.remove("title");
        schema.remove("$schema");
        let mut schema = schema.to_value();
        for field in schema["properties"].as_object_mut().into_iter().flat_map(Map::values_mut) {
            simplify(field);
        }
        Self::form(message, schema)
    }

    /// A page that a person should open.
    #[must_use]
    pub fn url(message: &str, url: &str) -> Self {
        Self { method: "elicitation/create", params: json!({"mode": "url", "message": message, "url": url}) }
    }

    /// A completion by the caller's language model; `params` as in `sampling/createMessage`.
    #[must_use]
    pub fn sampling(params: Value) -> Self {
        Self { method: "sampling/createMessage", params }
    }

    /// The caller's root folders.
    #[must_use]
    pub fn roots() -> Self {
        Self { method: "roots/list", params: json!({}) }
    }

    /// What a caller with these capabilities lacks to be asked this, as `ClientCapabilities`.
    #[must_use]
    pub fn lacks(&self, accepts: Accepts) -> Option<Value> {
        lacks(self.method, &self.params, accepts)
    }

    /// The question in its wire shape.
    #[must_use]
    pub fn into_payload(self) -> Payload {
        json!({"method": self.method, "params": self.params}).into()
    }
}

/// Formats of text that a form may have, by the protocol.
const FORMATS: [&str; 4] = ["email", "uri", "date", "date-time"];

/// Says of a field what a form can say: no field may be null (it may be left out), choices are listed, and formats are
/// those that clients know.
fn simplify(field: &mut Value) {
    let is_null = |kind: &Value| kind == "null" || kind["type"] == "null";
    if let Some(kinds) = field["type"].as_array() {
        let kind = kinds.iter().find(|kind| !is_null(kind)).cloned().unwrap_or_default();
        field["type"] = kind;
    }
    let Some(members) = field.as_object_mut() else { return };
    if let Some(one) = members.get("anyOf").and_then(Value::as_array).and_then(|kinds| kinds.iter().find(|kind| !is_null(kind))).cloned() {
        members.remove("anyOf");
        members.extend(one.as_object().cloned().unwrap_or_default());
    }
    let choices = members
        .get("oneOf")
        .and_then(Value::as_array)
        .map(|kinds| kinds.iter().filter_map(|kind| kind.get("const")).cloned().collect::<Vec<_>>());
    if let Some(choices) = choices.filter(|choices| !choices.is_empty() && choices.iter().all(Value::is_string)) {
        members.remove("oneOf");
        members.insert("type".to_owned(), "string".into());
        members.insert("enum".to_owned(), choices.into());
    }
    if members.get("format").and_then(Value::as_str).is_some_and(|format| !FORMATS.contains(&format)) {
        members.remove("format");
    }
    if members.get("default").is_some_and(Value::is_null) {
        members.remove("default");
    }
}

/// As [`Question::lacks`], for a question in its wire shape.
pub(crate) fn payload_lacks(question: &Payload, accepts: Accepts) -> Option<Value> {
    let question: Value = question.read().ok()?;
    lacks(question["method"].as_str()?, &question["params"], accepts)
}

fn lacks(method: &str, params: &Value, accepts: Accepts) -> Option<Value> {
    let url = params["mode"] == "url";
    let tools = params.get("tools").is_some() || params.get("toolChoice").is_some();
    let (accepted, needed) = match method {
        "sampling/createMessage" if tools => (accepts.sampling_tools, json!({"sampling": {"tools": {}}})),
        "sampling/createMessage" => (accepts.sampling, json!({"sampling": {}})),
        "roots/list" => (accepts.roots, json!({"roots": {}})),
        _ if url => (accepts.elicit_url, json!({"elicitation": {"url": {}}})),
        _ => (accepts.elicit_form, json!({"elicitation": {}})),
    };
    (!accepted).then_some(needed)
}

/// Marks an answer that is none: the client said that it cannot, or must not, give one.
pub(crate) const REFUSED: &str = "dev.taskwire/refused";

/// What a client says instead of an answer: an error of the protocol.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) code: i64,
    pub(crate) message: String,
}

impl Refusal {
    /// The refusal, if this is no answer.
    pub(crate) fn of(answer: &Payload) -> Option<Self> {
        #[derive(Deserialize)]
        struct Refused {
            #[serde(rename = "dev.taskwire/refused")]
            refused: Refusal,
        }
        if !answer.as_str().contains(REFUSED) {
            return None;
        }
        answer.read().ok().map(|Refused { refused }| refused)
    }
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Answer {
    /// `accept`, `decline` or `cancel`, for a form or a page.
    #[serde(default)]
    pub action: Option<String>,
    /// The filled-in form.
    #[serde(default)]
    pub content: Option<Value>,
    /// Everything else that came, for kinds that are no form.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Answer {
    /// Whether the person agreed.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.action.as_deref() == Some("accept")
    }

    /// The filled-in form, if the person agreed and it fits.
    ///
    /// # Errors
    /// When the person said no, or the content has another shape.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, super::ToolError> {
        if !self.is_accepted() {
            let action = self.action.as_deref().unwrap_or("no action");
            return Err(super::ToolError::new(format!("the question was not accepted ({action})")));
        }
        serde_json::from_value(self.content.clone().unwrap_or(Value::Null))
            .map_err(|error| super::ToolError::new(format!("the answer does not fit the question: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    /// How it is sent.
    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    enum Way {
        /// Slowly.
        Mail,
        /// Quickly.
        Wire,
    }

    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is looked at")]
    struct Form {
        name: String,
        age: Option<u32>,
        #[serde(default)]
        way: Option<Way>,
        sure: Way,
    }

    #[test]
    fn a_form_for_a_type_has_fields_that_every_client_knows() {
        let Question { params, .. } = Question::form_for::<Form>("Who?");
        let fields = &params["requestedSchema"]["properties"];
        assert_eq!(fields["name"], json!({"type": "string"}));
        assert_eq!(fields["age"], json!({"type": "integer", "minimum": 0}));
        for field in ["way", "sure"] {
            assert_eq!((&fields[field]["type"], &fields[field]["enum"]), (&json!("string"), &json!(["mail", "wire"])), "{fields}");
            assert!(fields[field].get("oneOf").is_none() && fields[field].get("anyOf").is_none(), "{fields}");
        }
        assert_eq!(params["requestedSchema"]["required"], json!(["name", "sure"]));
    }

    #[test]
    fn a_model_is_given_tools_only_where_its_client_said_so() {
        let question = Question::sampling(json!({"messages": [], "maxTokens": 1, "tools": []}));
        let accepts = Accepts { sampling: true, ..Accepts::default() };
        assert_eq!(question.lacks(accepts), Some(json!({"sampling": {"tools": {}}})));
        assert_eq!(question.lacks(Accepts { sampling_tools: true, ..accepts }), None);
    }
}
