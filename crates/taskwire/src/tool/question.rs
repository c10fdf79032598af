//! What a tool may ask its caller, and what comes back.

use schemars::JsonSchema;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use taskwire_core::{Payload, task::AcceptedQuestions};

use super::{
    ToolError,
    typed::{as_choices, schema_of, without_null},
};

/// A question that only the caller can answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    method: &'static str,
    params: Value,
}

/// The field of a yes-or-no question.
const CONFIRM: &str = "confirm";
/// The field of a choice.
const CHOICE: &str = "answer";

impl Question {
    fn new(method: &'static str, params: Value) -> Self {
        Self { method, params }
    }

    /// A form for a person: `schema` describes a flat object of texts, numbers, booleans and choices.
    #[must_use]
    pub fn form(message: &str, schema: Value) -> Self {
        Self::new("elicitation/create", json!({"mode": "form", "message": message, "requestedSchema": schema}))
    }

    /// A form for a person, described by a Rust type.
    #[must_use]
    pub fn form_for<T: JsonSchema>(message: &str) -> Self {
        let mut schema = schema_of::<T>();
        for field in schema["properties"].as_object_mut().into_iter().flat_map(Map::values_mut) {
            simplify(field);
        }
        Self::form(message, schema)
    }

    /// Yes or no. [`Answer::confirmed`] tells which.
    ///
    /// ```no_run
    /// use taskwire::tool::{Ctx, Question, ToolError};
    ///
    /// async fn clean(ctx: Ctx) -> Result<&'static str, ToolError> {
    ///     if !ctx.ask("sure", Question::confirm("Delete 3 files?")).await?.confirmed() {
    ///         return Ok("nothing was deleted");
    ///     }
    ///     // …
    ///     Ok("deleted")
    /// }
    /// ```
    #[must_use]
    pub fn confirm(message: &str) -> Self {
        Self::one_field(message, CONFIRM, json!({"type": "boolean", "title": "Yes or no"}))
    }

    /// One of several. [`Answer::choice`] tells which; [`Ctx::ask`](super::Ctx::ask) takes no other.
    ///
    /// ```no_run
    /// use taskwire::tool::{Ctx, Question, ToolError};
    ///
    /// async fn deploy(ctx: Ctx) -> Result<String, ToolError> {
    ///     let region = ctx.ask("region", Question::choice("Which region?", ["eu", "us"])).await?.choice()?;
    ///     Ok(format!("deployed to {region}"))
    /// }
    /// ```
    #[must_use]
    pub fn choice<T: Into<String>>(message: &str, choices: impl IntoIterator<Item = T>) -> Self {
        let choices: Vec<String> = choices.into_iter().map(Into::into).collect();
        Self::one_field(message, CHOICE, json!({"type": "string", "title": "Answer", "enum": choices}))
    }

    fn one_field(message: &str, name: &str, field: Value) -> Self {
        Self::form(message, json!({"type": "object", "properties": {name: field}, "required": [name]}))
    }

    /// A page that a person should open.
    #[must_use]
    pub fn url(message: &str, url: &str) -> Self {
        Self::new("elicitation/create", json!({"mode": "url", "message": message, "url": url}))
    }

    /// A completion by the caller's language model; `params` as in `sampling/createMessage`.
    #[must_use]
    pub fn sampling(params: Value) -> Self {
        Self::new("sampling/createMessage", params)
    }

    /// The caller's root folders.
    #[must_use]
    pub fn roots() -> Self {
        Self::new("roots/list", json!({}))
    }

    /// What a caller with these capabilities lacks to be asked this, as `ClientCapabilities`.
    #[must_use]
    pub fn missing_capabilities(&self, accepts: AcceptedQuestions) -> Option<Value> {
        missing_capabilities(self.method, &self.params, accepts)
    }

    /// The question in its wire shape.
    #[must_use]
    pub fn into_payload(self) -> Payload {
        json!({"method": self.method, "params": self.params}).into()
    }
}

/// Formats of text that a form may have, by the protocol.
pub(super) const FORMATS: [&str; 4] = ["email", "uri", "date", "date-time"];

/// Reduces a field to what a form can say: no field may be null (it may be left out), choices are listed, and formats are those that
/// clients know.
fn simplify(field: &mut Value) {
    without_null(field);
    let Some(members) = field.as_object_mut() else { return };
    as_choices(members);
    if members.get("format").and_then(Value::as_str).is_some_and(|format| !FORMATS.contains(&format)) {
        members.remove("format");
    }
}

/// As [`Question::missing_capabilities`], for a question in its wire shape.
pub(crate) fn missing_capabilities_of(question: &Payload, accepts: AcceptedQuestions) -> Option<Value> {
    let question: Value = question.read().ok()?;
    missing_capabilities(question["method"].as_str()?, &question["params"], accepts)
}

fn missing_capabilities(method: &str, params: &Value, accepts: AcceptedQuestions) -> Option<Value> {
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

/// Marks an answer that is none: the client replied that it cannot, or must not, give one.
pub(crate) const REFUSED: &str = "dev.taskwire/refused";

/// The protocol error that a client replied with instead of an answer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) code: i64,
    pub(crate) message: String,
}

impl Refusal {
    /// The refusal, if this is one.
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

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Answer {
    /// `accept`, `decline` or `cancel`, for a form or a page.
    #[serde(default)]
    pub action: Option<String>,
    /// The filled-in form.
    #[serde(default)]
    pub content: Option<Value>,
    /// All other members, for questions that are no form.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Answer {
    /// Whether the person agreed.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.action.as_deref() == Some("accept")
    }

    /// Whether the answer to [`Question::confirm`] is yes. To decline means no.
    #[must_use]
    pub fn confirmed(&self) -> bool {
        self.is_accepted() && self.content.as_ref().is_some_and(|content| content[CONFIRM] == true)
    }

    /// What was chosen of a [`Question::choice`].
    ///
    /// # Errors
    /// When the person chose nothing.
    pub fn choice(&self) -> Result<String, ToolError> {
        #[derive(Deserialize)]
        struct Chosen {
            answer: String,
        }
        self.read().map(|Chosen { answer }| answer)
    }

    /// The filled-in form, if the person agreed and it fits.
    ///
    /// # Errors
    /// When the person said no, or the content has another shape.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ToolError> {
        if !self.is_accepted() {
            let action = self.action.as_deref().unwrap_or("no action");
            return Err(ToolError::new(format!("the question was not accepted ({action})")));
        }
        serde_json::from_value(self.content.clone().unwrap_or(Value::Null))
            .map_err(|error| ToolError::new(format!("the answer does not fit the question: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::tool::check_answer;

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

    fn answer(value: Value) -> Answer {
        serde_json::from_value(value).expect("an answer")
    }

    #[test]
    fn a_yes_is_said_and_everything_else_is_a_no() {
        let Question { params, .. } = Question::confirm("Delete 3 files?");
        assert_eq!((&params["mode"], &params["message"]), (&json!("form"), &json!("Delete 3 files?")));
        let schema =
            json!({"type": "object", "properties": {"confirm": {"type": "boolean", "title": "Yes or no"}}, "required": ["confirm"]});
        assert_eq!(params["requestedSchema"], schema);
        assert!(answer(json!({"action": "accept", "content": {"confirm": true}})).confirmed());
        for no in [
            json!({"action": "accept", "content": {"confirm": false}}),
            json!({"action": "accept", "content": {"confirm": "true"}}),
            json!({"action": "accept"}),
            json!({"action": "decline", "content": {"confirm": true}}),
            json!({"action": "cancel"}),
            json!({}),
        ] {
            assert!(!answer(no.clone()).confirmed(), "{no}");
        }
    }

    #[test]
    fn a_choice_is_one_of_those_that_there_are() {
        let question = Question::choice("Which region?", ["eu", "us"]);
        let field = &question.params["requestedSchema"]["properties"]["answer"];
        assert_eq!(field, &json!({"type": "string", "title": "Answer", "enum": ["eu", "us"]}));
        let eu = answer(json!({"action": "accept", "content": {"answer": "eu"}}));
        assert_eq!(eu.choice().expect("it was chosen"), "eu");
        assert!(answer(json!({"action": "decline"})).choice().is_err(), "who declines need not choose");
        assert!(answer(json!({"action": "accept"})).choice().is_err());
        let moon = json!({"action": "accept", "content": {"answer": "moon"}});
        assert!(check_answer(&question.into_payload(), moon.into()).is_err(), "nobody offered that");
    }

    #[test]
    fn a_model_is_given_tools_only_where_its_client_said_so() {
        let question = Question::sampling(json!({"messages": [], "maxTokens": 1, "tools": []}));
        let accepts = AcceptedQuestions { sampling: true, ..AcceptedQuestions::default() };
        assert_eq!(question.missing_capabilities(accepts), Some(json!({"sampling": {"tools": {}}})));
        assert_eq!(question.missing_capabilities(AcceptedQuestions { sampling_tools: true, ..accepts }), None);
    }
}
