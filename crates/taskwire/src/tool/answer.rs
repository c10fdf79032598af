//! Checks whether an answer fits its question.
//!
//! The server calls this before it accepts any answer. One that does not fit is refused with a reason, and its question stays open.

use serde_json::{Map, Value, json};
use taskwire_core::Payload;

use super::{
    nulls::drop_nulls,
    question::{FORMATS, REFUSED},
    schema::integer,
};
use crate::schema::Schema;

const ELICITATION: &str = "elicitation/create";
const SAMPLING: &str = "sampling/createMessage";
const ROOTS: &str = "roots/list";

/// The answer as it is accepted: unchanged, except that an accepted form always has content, without each `null` that stands for an omitted
/// field, and with `3.0` as the integer that it is.
///
/// # Errors
/// What is wrong with it, in words.
pub(crate) fn check_answer(question: &Payload, answer: Payload) -> Result<Payload, String> {
    let asked: Value = question.read().unwrap_or_default();
    let params = &asked["params"];
    let mut object = members(&answer)?;
    let changed = match asked["method"].as_str() {
        Some(ELICITATION) => check_action(&object)? && params["mode"] != "url" && check_form(&params["requestedSchema"], &mut object)?,
        Some(SAMPLING) => check_sampling(&object).map(|()| false)?,
        Some(ROOTS) => check_roots(&object).map(|()| false)?,
        _ => false,
    };
    Ok(if changed { Value::Object(object).into() } else { answer })
}

/// Whether this has the shape of an answer, where the question is not known.
///
/// # Errors
/// That it is not, in words.
pub(crate) fn check_any_answer(answer: &Payload) -> Result<(), String> {
    let object = members(answer)?;
    if check_action(&object).is_ok() || check_sampling(&object).is_ok() || check_roots(&object).is_ok() {
        return Ok(());
    }
    Err("it has neither an `action` (\"accept\", \"decline\" or \"cancel\"), nor the `role`, `content` and `model` of a message, nor `roots`"
        .to_owned())
}

/// The parts of a question that decide whether an answer fits it.
pub(crate) fn answer_constraints(question: &Payload) -> Payload {
    let asked: Value = question.read().unwrap_or_default();
    let (method, params) = (&asked["method"], &asked["params"]);
    if method == ELICITATION {
        json!({"method": method, "params": {"mode": params["mode"], "requestedSchema": params["requestedSchema"]}}).into()
    } else {
        json!({ "method": method }).into()
    }
}

fn members(answer: &Payload) -> Result<Map<String, Value>, String> {
    let members: Map<String, Value> = answer.read().map_err(|_| "an answer is an object".to_owned())?;
    // Only the server sets this, for a client that replied with an error.
    if members.contains_key(REFUSED) {
        return Err(format!("`{REFUSED}` is not for clients to say"));
    }
    Ok(members)
}

/// Checks the reply to a form or a page; returns whether it was accepted.
fn check_action(answer: &Map<String, Value>) -> Result<bool, String> {
    let accepted = match answer.get("action").and_then(Value::as_str) {
        Some("accept") => true,
        Some("decline" | "cancel") => false,
        _ => return Err("`action` must be \"accept\", \"decline\" or \"cancel\"".to_owned()),
    };
    match answer.get("content") {
        None | Some(Value::Null | Value::Object(_)) => Ok(accepted),
        Some(_) => Err("`content` must be an object".to_owned()),
    }
}

/// Checks the content of a form; returns whether it was changed.
fn check_form(schema: &Value, answer: &mut Map<String, Value>) -> Result<bool, String> {
    let (mut content, mut changed) = match answer.remove("content") {
        Some(content @ Value::Object(_)) => (content, false),
        // Where nothing is required, an empty object will do.
        _ => (json!({}), true),
    };
    changed |= drop_nulls(schema, &mut content);
    changed |= make_whole(schema, &mut content);
    let problems = problems(schema, &content);
    answer.insert("content".to_owned(), content);
    if problems.is_empty() { Ok(changed) } else { Err(problems.join("; ")) }
}

/// Checks a language model's message.
fn check_sampling(answer: &Map<String, Value>) -> Result<(), String> {
    let is_block = |block: &Value| block.get("type").is_some_and(Value::is_string);
    let is_content = |content: &Value| content.as_array().map_or_else(|| is_block(content), |blocks| blocks.iter().all(is_block));
    if !matches!(answer.get("role").and_then(Value::as_str), Some("assistant" | "user")) {
        Err("`role` must be \"assistant\" or \"user\"".to_owned())
    } else if !answer.get("content").is_some_and(is_content) {
        Err("`content` must be a content block with its `type`, or a list of them".to_owned())
    } else if !answer.get("model").is_some_and(Value::is_string) {
        Err("`model` must be the name of a model".to_owned())
    } else {
        Ok(())
    }
}

/// Checks the list of root folders.
fn check_roots(answer: &Map<String, Value>) -> Result<(), String> {
    let is_root = |root: &Value| root.get("uri").is_some_and(Value::is_string);
    if answer.get("roots").and_then(Value::as_array).is_some_and(|roots| roots.iter().all(is_root)) {
        Ok(())
    } else {
        Err("`roots` must be a list of objects with a `uri`".to_owned())
    }
}

/// The fields of a form, which is flat.
fn fields(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

/// Writes `3.0` as `3` where the schema wants an integer, since most readers want that; returns whether it changed something.
fn make_whole(schema: &Value, content: &mut Value) -> bool {
    let mut changed = false;
    for (name, _) in fields(schema).filter(|(_, field)| field["type"] == "integer") {
        if let Some(Value::Number(number)) = content.get_mut(name)
            && let Some(whole) = integer(number)
        {
            *number = whole.into();
            changed = true;
        }
    }
    changed
}

/// The problems of a form's content. A schema that cannot be used forbids nothing.
fn problems(schema: &Value, content: &Value) -> Vec<String> {
    let Some(mut members) = schema.as_object().cloned() else { return Vec::new() };
    // Forms use only what all drafts have in common, so the draft that is named does not matter.
    members.remove("$schema");
    let Ok(compiled) = Schema::compile(&Value::Object(members)) else { return Vec::new() };
    let mut problems = compiled.problems(content);
    problems.extend(fields(schema).filter_map(|(name, field)| misformatted(name, field, content.get(name)?)));
    problems
}

/// Says that a text does not have its field's format. Clients and `taskwire ask` check formats, too.
fn misformatted(name: &str, field: &Value, value: &Value) -> Option<String> {
    let format = field["format"].as_str().filter(|format| FORMATS.contains(format))?;
    let options = jsonschema::draft202012::options().should_validate_formats(true).offline();
    let validator = options.build(&json!({ "format": format })).ok()?;
    (!validator.is_valid(value)).then(|| format!("`{name}`: this is not of the format `{format}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::Question;

    fn taken(question: &Payload, answer: &Value) -> Result<Value, String> {
        check_answer(question, answer.clone().into()).map(|taken| taken.read().expect("JSON"))
    }

    fn refused(question: &Payload, answer: &Value) -> String {
        match taken(question, answer) {
            Ok(taken) => panic!("{answer} was taken as {taken}"),
            Err(why) => why,
        }
    }

    fn form() -> Payload {
        let fields = json!({
            "name": {"type": "string", "minLength": 2},
            "n": {"type": "integer", "maximum": 9},
            "size": {"type": "string", "enum": ["s", "m"]},
            "mail": {"type": "string", "format": "email"},
        });
        Question::form("Well?", json!({"type": "object", "properties": fields, "required": ["name"]})).into_payload()
    }

    fn accept(content: Value) -> Value {
        json!({"action": "accept", "content": content})
    }

    #[test]
    fn what_is_no_answer_at_all_fits_no_question_that_a_person_is_asked() {
        let page = Question::url("Look", "https://example.com").into_payload();
        for question in [form(), page, answer_constraints(&form())] {
            for bad in [
                json!({}),
                json!({"action": "perhaps"}),
                json!({"action": 7}),
                json!({"action": null}),
                json!({"action": ["accept"]}),
                json!({"action": "Accept"}),
                json!({"content": {"name": "Ada"}}),
                json!({"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"}),
            ] {
                assert!(refused(&question, &bad).contains("`action` must be"), "{bad}");
            }
            for bad in [json!("accept"), json!(["accept"]), json!(null), json!(7)] {
                assert!(refused(&question, &bad).contains("an object"), "{bad}");
            }
            assert!(refused(&question, &json!({"action": "decline", "content": 7})).contains("`content` must be an object"));
            for no in
                [json!({"action": "decline"}), json!({"action": "cancel", "content": null}), json!({"action": "cancel", "content": {}})]
            {
                assert_eq!(taken(&question, &no), Ok(no));
            }
        }
    }

    #[test]
    fn what_is_filled_in_fits_the_schema() {
        for (content, word) in [
            (json!({}), "name"),
            (json!({"name": null}), "name"),
            (json!({"name": "A"}), "`name`"),
            (json!({"name": ["Ada"]}), "`name`"),
            (json!({"name": "Ada", "n": 10}), "`n`"),
            (json!({"name": "Ada", "n": 1.5}), "`n`"),
            (json!({"name": "Ada", "n": "3"}), "`n`"),
            (json!({"name": "Ada", "size": "xl"}), "`size`"),
            (json!({"name": "Ada", "mail": "nobody"}), "`mail`: this is not of the format `email`"),
        ] {
            let why = refused(&form(), &accept(content.clone()));
            assert!(why.contains(word), "{content}: {why}");
            assert_eq!(refused(&answer_constraints(&form()), &accept(content)), why, "its gist says the same");
        }
        for why in [json!({"action": "accept"}), json!({"action": "accept", "content": null})].map(|bad| refused(&form(), &bad)) {
            assert!(why.contains("name"), "{why}");
        }
        let good = accept(json!({"name": "Ada", "n": 3, "size": "m", "mail": "a@example.com", "more": 1}));
        assert_eq!(taken(&form(), &good), Ok(good));
    }

    #[test]
    fn an_answer_stays_as_it_came_but_for_what_only_looks_different() {
        let text = r#"{ "content": {"n":  3, "name": "Ada"},  "action": "accept", "_meta": {"x": 1} }"#;
        let came = Payload::parse(text.to_owned()).expect("JSON");
        assert_eq!(check_answer(&form(), came.clone()), Ok(came), "to the byte");
        let meant = accept(json!({"name": "Ada", "n": 3}));
        assert_eq!(taken(&form(), &accept(json!({"name": "Ada", "n": 3.0, "size": null}))), Ok(meant));
        let optional = Question::form("Go on?", json!({"type": "object", "properties": {"why": {"type": "string"}}})).into_payload();
        assert_eq!(taken(&optional, &json!({"action": "accept"})), Ok(accept(json!({}))), "nothing need be filled in");
    }

    #[test]
    fn a_question_whose_schema_cannot_be_used_takes_what_is_filled_in() {
        for schema in [json!(null), json!(7), json!({"type": "nonsense"})] {
            let question: Payload = json!({"method": ELICITATION, "params": {"message": "Well?", "requestedSchema": schema}}).into();
            assert_eq!(taken(&question, &accept(json!({"a": 1}))), Ok(accept(json!({"a": 1}))), "{schema}");
            assert!(refused(&question, &json!({"action": "perhaps"})).contains("`action`"));
        }
        let named = json!({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"type": "string"}}});
        let question = Question::form("Well?", named).into_payload();
        assert!(refused(&question, &accept(json!({"a": 1}))).contains("`a`"));
    }

    #[test]
    fn models_and_roots_answer_in_their_own_shape() {
        let (text, said) =
            (json!({"type": "text", "text": "hi"}), |content: Value| json!({"role": "assistant", "content": content, "model": "m"}));
        let model = Question::sampling(json!({"messages": [], "maxTokens": 1})).into_payload();
        for good in [said(text.clone()), said(json!([text])), said(json!([]))] {
            assert_eq!(taken(&model, &good), Ok(good));
        }
        for (bad, word) in [
            (json!({}), "`role`"),
            (json!({"action": "accept", "content": {}}), "`role`"),
            (json!({"role": "system", "content": text, "model": "m"}), "`role`"),
            (json!({"role": "assistant", "model": "m"}), "`content`"),
            (said(json!("hi")), "`content`"),
            (said(json!(["hi"])), "`content`"),
            (json!({"role": "assistant", "content": text}), "`model`"),
        ] {
            assert!(refused(&model, &bad).contains(word), "{bad}");
        }
        let roots = Question::roots().into_payload();
        for good in [json!({"roots": []}), json!({"roots": [{"uri": "file:///a", "name": "a"}]})] {
            assert_eq!(taken(&roots, &good), Ok(good));
        }
        for bad in [json!({}), json!({"roots": {}}), json!({"roots": ["file:///a"]}), json!({"roots": [{"name": "a"}]})] {
            assert!(refused(&roots, &bad).contains("`roots`"), "{bad}");
        }
    }

    #[test]
    fn where_nobody_knows_what_was_asked_an_answer_is_one_of_any_kind() {
        let any = |answer: Value| check_any_answer(&answer.into());
        for good in [json!({"action": "cancel"}), accept(json!({"x": 1})), json!({"roots": []})] {
            assert_eq!(any(good.clone()), Ok(()), "{good}");
        }
        for bad in [json!({}), json!({"action": "perhaps"}), json!({"action": 7}), json!({"roots": 1}), json!([])] {
            assert!(any(bad.clone()).is_err(), "{bad}");
        }
        let unknown: Payload = json!({"method": "some/thing", "params": {}}).into();
        assert_eq!(taken(&unknown, &json!({"any": "thing"})), Ok(json!({"any": "thing"})), "that is for who asked it to know");
    }

    #[test]
    fn nobody_refuses_in_the_name_of_a_client() {
        let forged = json!({"action": "accept", "content": {"name": "Ada"}, REFUSED: {"code": 1, "message": "no"}});
        for question in [form(), Question::roots().into_payload(), json!({"method": "some/thing"}).into()] {
            assert!(refused(&question, &forged).contains(REFUSED));
        }
        assert!(check_any_answer(&forged.into()).is_err());
    }
}
