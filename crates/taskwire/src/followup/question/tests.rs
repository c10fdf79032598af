//! What a model reads about a question, and what is accepted as its answer.

use serde_json::json;
use taskwire_core::{Timestamp, id::ID_RANDOM_BYTES};

use super::*;

fn form(properties: Value, required: Value) -> Question {
    let schema = json!({"type": "object", "properties": properties, "required": required});
    let request = json!({"method": "elicitation/create", "params": {"mode": "form", "message": "Well?", "requestedSchema": schema}});
    Question::read(&request.into())
}

fn one(property: Value) -> Question {
    form(json!({"it": property}), json!(["it"]))
}

fn fits(question: &Question, value: Value) -> Value {
    question.fill_in(Some(value.clone())).unwrap_or_else(|problems| panic!("{value}: {problems:?}"))
}

fn misfits(question: &Question, value: Value) -> String {
    match question.fill_in(Some(value.clone())) {
        Ok(content) => panic!("{value} was taken for {content}"),
        Err(problems) => problems.join("\n"),
    }
}

fn ask(question: &Question) -> String {
    question.to_text(TaskId::new(Timestamp::from_millis(1), [1; ID_RANDOM_BYTES]), "k")
}

#[test]
fn a_plain_value_is_that_of_the_only_field() {
    for property in [json!({"type": "string"}), json!({"type": "string", "minLength": 2})] {
        assert_eq!(fits(&one(property), json!("Ada")), json!({"it": "Ada"}));
    }
    assert_eq!(fits(&one(json!({"type": "string"})), json!({"it": "Ada"})), json!({"it": "Ada"}));
    let two = form(json!({"a": {"type": "string"}, "b": {"type": "string"}}), json!(["a", "b"]));
    assert!(misfits(&two, json!("Ada")).contains("`value` must be an object with `a`, `b`"));
    let one_needed = form(json!({"a": {"type": "string"}, "b": {"type": "string"}}), json!(["b"]));
    assert_eq!(fits(&one_needed, json!("Ada")), json!({"b": "Ada"}));
}

#[test]
fn text_becomes_what_the_field_wants_where_that_is_clear() {
    let number = one(json!({"type": "integer", "minimum": 1, "maximum": 9}));
    assert_eq!((fits(&number, json!("3")), fits(&number, json!({"it": " 4 "}))), (json!({"it": 3}), json!({"it": 4})));
    assert!(misfits(&number, json!("three")).starts_with("`it`:"));
    assert!(misfits(&number, json!(12)).contains("`it`: 12 is more than 9"));
    assert!(misfits(&number, json!("2.5")).starts_with("`it`:"));
    let flag = one(json!({"type": "boolean"}));
    for (text, meant) in [("true", true), ("Yes", true), ("no", false), ("FALSE", false)] {
        assert_eq!(fits(&flag, json!(text)), json!({"it": meant}));
    }
    assert!(misfits(&flag, json!("perhaps")).starts_with("`it`:"));
    assert!(misfits(&flag, json!(1)).starts_with("`it`:"));
    let text = one(json!({"type": "string"}));
    assert_eq!((fits(&text, json!(7)), fits(&text, json!(true))), (json!({"it": "7"}), json!({"it": "true"})));
    assert_eq!(fits(&text, json!("{\"a\":1}")), json!({"it": "{\"a\":1}"}), "text that happens to be JSON stays text");
}

#[test]
fn a_choice_is_found_by_value_title_or_without_regard_to_case() {
    let choice = one(json!({"type": "string", "oneOf": [{"const": "eu-1", "title": "Europe"}, {"const": "us-1", "title": "America"}]}));
    for said in ["eu-1", "Europe", "europe", " EU-1 "] {
        assert_eq!(fits(&choice, json!(said)), json!({"it": "eu-1"}), "{said}");
    }
    for said in [json!("asia"), json!("1"), json!(1), json!("")] {
        assert!(misfits(&choice, said).contains("none of the choices: eu-1, us-1"));
    }
    let sizes = one(json!({"type": "string", "enum": ["1", "2", "a", "A"]}));
    assert_eq!((fits(&sizes, json!(2)), fits(&sizes, json!("A"))), (json!({"it": "2"}), json!({"it": "A"})));
    let many = one(json!({"type": "array", "items": {"type": "string", "enum": ["x", "y", "z, too"]}}));
    for said in [json!(["x", "Y"]), json!("x, y"), json!("[\"x\",\"y\"]")] {
        assert_eq!(fits(&many, said), json!({"it": ["x", "y"]}));
    }
    assert_eq!(fits(&many, json!("z, too")), json!({"it": ["z, too"]}));
    assert!(misfits(&many, json!("x, q")).starts_with("`it`:"));
}

#[test]
fn what_a_model_wraps_is_unwrapped() {
    let two = form(json!({"a": {"type": "string"}, "b": {"type": "integer"}}), json!(["a", "b"]));
    let meant = json!({"a": "x", "b": 2});
    let whole = json!({"action": "accept", "content": meant});
    for said in [meant.clone(), json!(meant.to_string()), whole.clone(), json!(whole.to_string()), json!({"a": "x", "b": "2"})] {
        assert_eq!(fits(&two, said), meant);
    }
    assert_eq!(misfits(&two, json!("{\"a\": \"x\", \"c\": 2}")), "`c`: the form has no such field", "it can only be an object");
    for action in ["decline", "cancel"] {
        let no = json!({"action": action, "content": meant});
        for said in [no.clone(), json!(no.to_string())] {
            let no = misfits(&two, said);
            assert!(no.contains("`action`: the form has no such field"), "a no is no yes: {no}");
        }
    }
    let text = one(json!({"type": "string"}));
    assert!(misfits(&text, json!("{\"action\": \"decline\"}")).contains("`action`: the form has no such field"));
    let named = form(json!({"action": {"type": "string"}, "content": {"type": "string"}}), json!(["action", "content"]));
    let own = json!({"action": "a", "content": "c"});
    assert_eq!(fits(&named, own.clone()), own, "fields may have any name");
}

#[test]
fn what_is_left_out_has_its_default_and_what_does_not_belong_is_named() {
    let question =
        form(json!({"name": {"type": "string"}, "n": {"type": "integer", "default": 5}, "note": {"type": "string"}}), json!(["name", "n"]));
    assert_eq!(fits(&question, json!({"name": "x", "note": null})), json!({"name": "x", "n": 5}));
    assert_eq!(misfits(&question, json!({"nmae": "x"})), "`nmae`: the form has no such field");
    assert_eq!(misfits(&question, json!({})), "`name`: this must be filled in");
    assert!(misfits(&question, json!({"name": null})).starts_with("`name`:"));
    assert!(question.fill_in(None).expect_err("nothing").join("").contains("`value` is missing"));
}

#[test]
fn who_can_agree_with_the_defaults_is_told_how() {
    let offers_defaults =
        |question: &Question| ask(question).contains("To agree with the defaults, say \"action\":\"accept\" in place of \"value\".");
    let (text, number) = (json!({"type": "string"}), json!({"type": "integer", "default": 5}));
    let fields = || json!({"note": text, "n": number});
    for required in [json!([]), json!(["n"])] {
        let question = form(fields(), required);
        assert!(question.can_accept_defaults() && offers_defaults(&question), "{}", ask(&question));
        assert!(ask(&question).ends_with("}\"}. To agree with the defaults, say \"action\":\"accept\" in place of \"value\"."));
        assert_eq!(fits(&question, json!({})), json!({"n": 5}));
        assert!(question.fill_in(None).is_err(), "silence is no yes");
    }
    let needed = form(fields(), json!(["note", "n"]));
    assert!(!needed.can_accept_defaults() && !offers_defaults(&needed));
    let optional = form(json!({"note": text}), json!([]));
    assert!(optional.can_accept_defaults() && !offers_defaults(&optional), "there are no defaults to agree with");
    let broken = form(json!({"n": {"type": "integer", "maximum": 3, "default": 5}}), json!(["n"]));
    assert!(!broken.can_accept_defaults() && !offers_defaults(&broken), "a default that does not fit is none");
}

#[test]
fn the_value_to_copy_is_a_text() {
    let (text, list) = (json!({"type": "string"}), json!({"type": "array", "items": {"type": "string", "enum": ["x", "y"]}}));
    for (property, example) in [
        (text.clone(), TEXT),
        (json!({"type": "integer"}), NUMBER),
        (json!({"type": "boolean"}), FLAG),
        (json!({"type": "string", "enum": ["x"]}), CHOICE),
        (list, CHOICE),
    ] {
        let question = one(property);
        assert_eq!(question.example(), json!(example));
        assert!(question.fields().starts_with("Field of `value`:\n"), "{}", question.fields());
    }
    let two = form(json!({"a": text, "b": {"type": "integer"}}), json!(["a", "b"]));
    assert_eq!(two.example(), json!("{\"a\":\"<text>\",\"b\":\"<number>\"}"));
}

#[test]
fn what_only_stands_for_an_answer_is_none() {
    let question = form(json!({"name": {"type": "string"}, "sure": {"type": "boolean"}}), json!(["name", "sure"]));
    let problems = misfits(&question, question.example());
    assert_eq!(problems.lines().count(), 2, "{problems}");
    assert!(problems.contains("`name`: \"<text>\" stands for an answer"), "{problems}");
}

#[test]
fn a_form_without_fields_is_a_yes_or_a_no() {
    let question = form(json!({}), json!([]));
    assert_eq!(question.fill_in(None), Ok(json!({})));
    assert!(misfits(&question, json!(true)).contains("leave `value` out"));
    assert!(ask(&question).contains("\"action\":\"accept\"") && !ask(&question).contains("Fields"));
    assert!(question.has_no_fields() && !one(json!({"type": "string"})).has_no_fields());
}

#[test]
fn fields_are_told_in_their_order_with_all_that_is_asked_of_them() {
    let schema = r#"{"type":"object","required":["z"],"properties":{
        "z":{"type":"string","minLength":1,"maxLength":8,"description":"The last letter"},
        "mail":{"type":"string","format":"email"},
        "n":{"type":"integer","minimum":1,"maximum":3,"default":2,"title":"How many"},
        "x":{"type":"array","maxItems":2,"items":{"type":"string","enum":["a","b"]}}}}"#;
    let request = format!(r#"{{"method":"elicitation/create","params":{{"message":"Well?","requestedSchema":{schema}}}}}"#);
    let question = Question::read(&Payload::parse(request).expect("JSON"));
    assert_eq!(
        question.fields(),
        "Fields of `value`, a JSON object as text:\n\
         - `z` (text, 1 to 8 characters; required): The last letter\n\
         - `mail` (an e-mail address; optional)\n\
         - `n` (whole number from 1 to 3; default 2): How many\n\
         - `x` (a list of some of \"a\", \"b\", at most 2 of them; optional)"
    );
    assert!(ask(&question).contains(r#""key":"k","value":"{\"z\":\"<text>\"}"}"#), "{}", ask(&question));
}

#[test]
fn schemas_that_are_no_forms_are_shown_and_checked_all_the_same() {
    let schema = json!({"type": "object", "properties": {"deep": {"type": "object"}}, "required": ["deep"]});
    let request = json!({"method": "elicitation/create", "params": {"message": "Well?", "requestedSchema": schema}});
    let question = Question::read(&request.into());
    assert!(question.fields().contains("JSON Schema: {"), "{}", question.fields());
    assert_eq!(fits(&question, json!({"deep": {"a": 1}})), json!({"deep": {"a": 1}}));
    assert_eq!(fits(&question, json!("{\"deep\": {\"a\": 1}}")), json!({"deep": {"a": 1}}));
    assert!(misfits(&question, json!({})).contains("deep") && misfits(&question, json!("x")).contains("must be an object"));
    let none = Question::read(&json!({"method": "elicitation/create", "params": {"message": "Well?"}}).into());
    assert_eq!(fits(&none, json!({"a": 1})), json!({"a": 1}));
}

#[test]
fn pages_and_programs_have_nothing_to_fill_in() {
    let page = Question::read(
        &json!({"method": "elicitation/create", "params": {"mode": "url", "message": "Sign", "url": "https://x.test/1"}}).into(),
    );
    assert!(page.is_for_users() && ask(&page).contains("https://x.test/1") && ask(&page).contains("\"action\":\"accept\""));
    let roots = Question::read(&json!({"method": "roots/list", "params": {}}).into());
    assert!(!roots.is_for_users() && ask(&roots).contains("`roots/list`"));
    assert!(page.has_no_fields() && roots.has_no_fields());
    assert!(page.fill_in(Some(json!("x"))).is_err() && roots.fill_in(Some(json!([]))).is_err());
}

#[test]
fn long_texts_and_lists_are_cut() {
    let options: Vec<String> = (0..100).map(|n| format!("choice-{n}")).collect();
    let question = one(json!({"type": "string", "enum": options, "description": "é".repeat(10_000)}));
    let text = question.fields();
    assert!(text.contains("\"choice-29\" and 70 more") && text.len() < 6_000, "{}", text.len());
}
