//! Tests of forms: every kind of field, what people type, and what no form may have.

use serde_json::json;

use super::*;

/// A form with one field.
fn form(property: &Value) -> Value {
    json!({"type": "object", "properties": {"field": property}})
}

fn field(property: Value) -> Field {
    let Form { mut fields } = Form::read(&form(&property)).expect("a form");
    fields.remove(0)
}

fn required(property: Value) -> Field {
    Field { required: true, ..field(property) }
}

/// Why a form with this field is refused.
fn refused(property: Value) -> String {
    Form::read(&form(&property)).expect_err("no form")
}

fn choices_of(pairs: &[(&str, &str)]) -> Vec<Choice> {
    pairs.iter().map(|(value, title)| Choice { value: (*value).to_owned(), title: (*title).to_owned() }).collect()
}

/// Texts that are typed, and the values that they become.
fn assert_parses(field: &Field, typed: &[(&str, Value)]) {
    for (text, value) in typed {
        assert_eq!(field.parse(text), Ok(Some(value.clone())), "{text:?}");
    }
}

/// Texts that are typed, and a part of their error.
fn assert_refuses(field: &Field, typed: &[(&str, &str)]) {
    for (text, part) in typed {
        let reason = field.parse(text).expect_err(text);
        assert!(reason.contains(part), "{text:?}: {reason}");
    }
}

#[test]
fn a_form_has_the_fields_of_its_schema() {
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "name": {"type": "string", "title": "Your name", "description": "On the card", "minLength": 2, "maxLength": 9.0, "pattern": "^A"},
            "mail": {"type": "string", "format": "email", "title": ""},
            "age": {"type": "integer", "minimum": 0, "maximum": 150, "default": 30},
            "part": {"type": "number", "minimum": 0.5},
            "sure": {"type": "boolean", "default": false},
        },
        "required": ["name", "sure"],
    });
    let form = Form::read(&schema).expect("a form");
    assert_eq!(form.fields.len(), 5);
    let [age, mail, name, part, sure] =
        ["age", "mail", "name", "part", "sure"].map(|name| form.fields.iter().find(|field| field.name == name).expect(name));
    assert_eq!((name.title.as_str(), name.description.as_deref(), name.required), ("Your name", Some("On the card"), true));
    assert_eq!(name.kind, FieldKind::Text { min: Some(2), max: Some(9), format: None, pattern: Some("^A".to_owned()) });
    assert_eq!((mail.title.as_str(), mail.description.as_deref(), mail.required), ("mail", None, false));
    assert_eq!(mail.kind, FieldKind::Text { min: None, max: None, format: Some("email".to_owned()), pattern: None });
    assert_eq!(age.kind, FieldKind::Number { integer: true, min: Some(0.0), max: Some(150.0) });
    assert_eq!(part.kind, FieldKind::Number { integer: false, min: Some(0.5), max: None });
    assert_eq!(sure.kind, FieldKind::Flag);
    assert_eq!((&age.default, &sure.default, &name.default), (&Some(json!(30)), &Some(json!(false)), &None));
    assert_eq!(Form::defaults(&schema), json!({"age": 30, "sure": false}));
}

#[test]
fn the_form_of_a_question_keeps_the_order_of_its_fields() {
    let text = r#"{"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": {"required": ["b"], "type": "object",
        "properties": {"z": {"type": "string"}, "b": {"type": "boolean"}, "m": {"type": "string"}, "a": {"type": "string"}}}}}"#;
    let form = Form::of_question(&Payload::parse(text.to_owned()).expect("JSON")).expect("a form");
    let names: Vec<&str> = form.fields.iter().map(|field| field.name.as_str()).collect();
    assert_eq!(names, ["z", "b", "m", "a"]);
    assert!(form.fields[1].required && !form.fields[0].required);
    for none in [json!({"method": "elicitation/create", "params": {"mode": "url", "url": "https://x.example"}}), json!({}), json!(3)] {
        let error = Form::of_question(&none.into()).expect_err("no form");
        assert!(error.contains("the question has no form"), "{error}");
    }
}

#[test]
fn a_form_may_be_empty() {
    for schema in [json!({"type": "object", "properties": {}}), json!({"type": "object"})] {
        assert_eq!(Form::read(&schema), Ok(Form { fields: Vec::new() }));
        assert_eq!(Form::check(&schema, &json!({})), Ok(()));
        assert_eq!(Form::defaults(&schema), json!({}));
    }
}

#[test]
fn choices_are_found_however_they_are_written() {
    let plain = [("red", "red"), ("green", "green")];
    let titled = [("red", "Crimson"), ("green", "Olive")];
    let titles = json!([{"const": "red", "title": "Crimson"}, {"const": "green", "title": "Olive"}]);
    for (property, pairs) in [
        (json!({"type": "string", "enum": ["red", "green"]}), plain),
        (json!({"type": "string", "enum": ["red", "green"], "enumNames": ["Crimson", "Olive"]}), titled),
        (json!({"type": "string", "enum": ["red", "green"], "enumNames": ["Crimson"]}), [titled[0], plain[1]]),
        (json!({"type": "string", "oneOf": titles}), titled),
        (json!({"type": "string", "anyOf": titles}), titled),
        (json!({"type": "string", "oneOf": [{"const": "red"}, {"const": "green", "title": ""}]}), plain),
        (json!({"enum": ["red", "green"]}), plain),
    ] {
        assert_eq!(field(property.clone()).kind, FieldKind::Choice { options: choices_of(&pairs) }, "{property}");
        assert_eq!(Form::check(&form(&property), &json!({"field": "green"})), Ok(()), "{property}");
        let errors = Form::check(&form(&property), &json!({"field": "blue"})).expect_err("no such choice");
        assert_eq!(errors[0].to_string(), "`field`: `blue` is none of the choices: red, green", "{property}");
    }
    for (items, pairs) in [
        (json!({"type": "string", "enum": ["red", "green"]}), plain),
        (json!({"anyOf": titles}), titled),
        (json!({"type": "string", "oneOf": titles}), titled),
    ] {
        let property = json!({"type": "array", "items": items, "minItems": 1, "maxItems": 2});
        let kind = FieldKind::Choices { options: choices_of(&pairs), min: Some(1), max: Some(2) };
        assert_eq!(field(property.clone()).kind, kind, "{property}");
        assert_eq!(Form::check(&form(&property), &json!({"field": ["green", "red"]})), Ok(()), "{property}");
        let errors = Form::check(&form(&property), &json!({"field": ["red", "blue"]})).expect_err("no such choice");
        assert_eq!(errors[0].to_string(), "`field`: `blue` is none of the choices: red, green", "{property}");
    }
    assert_eq!(field(json!({"type": "string", "const": "red"})).kind, FieldKind::Choice { options: choices_of(&plain[..1]) });
}

#[test]
fn what_no_form_may_have_is_refused_by_name() {
    for (property, part) in [
        (json!({"type": ["string", "null"]}), "the field `field` has several types, [\"string\",\"null\"]"),
        (json!({"type": "object", "properties": {}}), "has fields of its own"),
        (json!({"type": "array", "items": {"type": "string"}}), "is a list of something else than choices"),
        (json!({"type": "array"}), "is a list of something else than choices"),
        (json!({"type": "null"}), "is of type `null`"),
        (json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), "does not say its type"),
        (json!({"$ref": "#"}), "does not say its type"),
        (json!(true), "does not say its type"),
        (json!({"enum": [1, 2]}), "offers no choice that is a text"),
        (json!({"type": "string", "minLength": -1}), "the form's schema is not valid"),
        (json!({"type": "string", "pattern": "("}), "the form's schema is not valid"),
        (json!({"type": "string", "$ref": "https://example.com/schema.json"}), "the form's schema is not valid"),
    ] {
        let error = refused(property.clone());
        assert!(error.contains(part), "{property}: {error}");
    }
    for (schema, part) in [
        (json!(null), "the form's schema is not valid"),
        (json!({"type": "array"}), "a form is an object"),
        (json!({"type": "object", "properties": {}, "required": ["x"]}), "the form requires `x` and does not say what that is"),
    ] {
        let error = Form::read(&schema).expect_err("no form");
        assert!(error.contains(part), "{schema}: {error}");
    }
}

#[test]
fn nothing_typed_is_the_default_or_nothing() {
    for nothing in ["", "  ", "\n"] {
        assert_eq!(field(json!({"type": "string"})).parse(nothing), Ok(None));
        assert_refuses(&required(json!({"type": "string"})), &[(nothing, "this must be filled in")]);
        for (property, default) in [
            (json!({"type": "string", "default": "x"}), json!("x")),
            (json!({"type": "integer", "default": 7}), json!(7)),
            (json!({"type": "number", "default": 0.5}), json!(0.5)),
            (json!({"type": "boolean", "default": true}), json!(true)),
            (json!({"type": "string", "enum": ["a", "b"], "default": "b"}), json!("b")),
            (json!({"type": "array", "items": {"enum": ["a", "b"]}, "default": ["b"]}), json!(["b"])),
        ] {
            assert_eq!(required(property.clone()).parse(nothing), Ok(Some(default.clone())));
            assert_eq!(field(property).parse(nothing), Ok(Some(default)));
        }
    }
}

#[test]
fn a_default_that_breaks_the_rules_is_none() {
    for property in [
        json!({"type": "string", "enum": ["a", "b"], "default": "c"}),
        json!({"type": "integer", "minimum": 1, "default": 0}),
        json!({"type": "string", "format": "email", "default": "nobody"}),
        json!({"type": "boolean", "default": null}),
    ] {
        assert_eq!(field(property.clone()).default, None, "{property}");
        assert_eq!(Form::defaults(&form(&property)), json!({}), "{property}");
    }
}

#[test]
fn texts_are_taken_as_typed() {
    let plain = field(json!({"type": "string"}));
    assert_parses(&plain, &[(" two words \r\n", json!(" two words ")), ("42", json!("42")), ("\"q\"", json!("\"q\""))]);
    let bounded = field(json!({"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-zä]+$"}));
    assert_parses(&bounded, &[("ää", json!("ää")), ("abcd", json!("abcd"))]);
    assert_refuses(
        &bounded,
        &[("a", "fewer than 2 characters"), ("abcde", "more than 4 characters"), ("AB", "`AB` does not match `^[a-zä]+$`")],
    );
}

#[test]
fn formats_are_checked() {
    for (format, good, bad, part) in [
        ("email", "me@example.com", "me@", "is not an e-mail address"),
        ("uri", "https://example.com/a?b#c", "example", "is not a URI"),
        ("date", "2024-02-29", "2026-02-29", "is not a date"),
        ("date-time", "2026-07-28T12:30:00+02:00", "2026-07-28 12:30", "is not a date with time and zone"),
        ("uuid", "7d444840-9dc0-11d1-b245-5ffdce74fad2", "7d44", "is not of the format `uuid`"),
    ] {
        let property = json!({"type": "string", "format": format});
        let field = field(property.clone());
        let spaced = format!(" {good}\n");
        assert_parses(&field, &[(good, json!(good)), (spaced.as_str(), json!(good))]);
        assert_refuses(&field, &[(bad, part)]);
        assert_eq!(Form::check(&form(&property), &json!({"field": good})), Ok(()));
        let errors = Form::check(&form(&property), &json!({"field": bad})).expect_err(bad);
        assert!(errors[0].to_string().starts_with(&format!("`field`: `{bad}` {part}")), "{}", errors[0]);
    }
    assert_parses(&field(json!({"type": "string", "format": "of their own"})), &[("anything", json!("anything"))]);
}

#[test]
fn numbers_are_read() {
    let whole = field(json!({"type": "integer", "minimum": -5, "maximum": 2e19}));
    assert_parses(&whole, &[("-5", json!(-5)), (" 12 ", json!(12)), ("3.0", json!(3)), ("1e3", json!(1000)), ("+4", json!(4))]);
    assert_parses(&whole, &[("18446744073709551615", json!(u64::MAX))]);
    assert_refuses(
        &whole,
        &[
            ("-6", "-6 is less than -5"),
            ("1.5", "`1.5` is not a whole number"),
            ("x", "`x` is not a whole number"),
            ("1e300", "whole number"),
        ],
    );
    let any = field(json!({"type": "number", "maximum": 10, "exclusiveMinimum": 0, "multipleOf": 0.5}));
    assert_parses(&any, &[("1.5", json!(1.5)), ("10", json!(10))]);
    assert_refuses(
        &any,
        &[("10.5", "10.5 is more than 10"), ("0", "0 is less than or equal to"), ("0.7", "multiple"), ("3,5", "`3,5` is not a number")],
    );
    assert_refuses(&any, &[("inf", "is not a number"), ("NaN", "is not a number"), ("1e999", "is not a number")]);
    let some = field(json!({"type": "integer", "enum": [1, 2]}));
    assert_parses(&some, &[("2", json!(2))]);
    assert!(some.parse("3").is_err());
}

#[test]
fn flags_are_yes_or_no() {
    let flag = required(json!({"type": "boolean"}));
    for (text, value) in [("y", true), ("Yes", true), (" TRUE\n", true), ("n", false), ("NO", false), ("false", false)] {
        assert_parses(&flag, &[(text, json!(value))]);
    }
    assert_refuses(&flag, &[("maybe", "`maybe` is neither yes nor no"), ("1", "neither yes nor no"), ("", "must be filled in")]);
}

#[test]
fn a_choice_is_a_value_a_title_or_a_number() {
    let color = field(
        json!({"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}, {"const": "b", "title": "green"}]}),
    );
    assert_parses(&color, &[("r", json!("r")), ("Red", json!("r")), ("rEd", json!("r")), (" 2 ", json!("g")), ("3", json!("b"))]);
    assert_parses(&color, &[("Green", json!("g")), ("green", json!("b"))]);
    assert_refuses(
        &color,
        &[("GREEN", "`GREEN` is none of the choices: r, g, b"), ("0", "none of the choices"), ("4", "none of the choices"), ("re", "none")],
    );
    let count = field(json!({"type": "string", "enum": ["3", "1", "2"]}));
    assert_parses(&count, &[("3", json!("3")), ("1", json!("1"))]);
}

#[test]
fn several_choices_have_commas_between_them() {
    let property = json!({"type": "array", "items": {"anyOf": [
        {"const": "a", "title": "Salt, pepper"}, {"const": "b", "title": "Oil"}, {"const": "c,d", "title": "Both, of, them"}
    ]}, "maxItems": 2});
    let spices = required(property.clone());
    assert_parses(
        &spices,
        &[
            ("a", json!(["a"])),
            ("b, a", json!(["b", "a"])),
            ("2,1,2", json!(["b", "a"])),
            ("Salt, pepper,Oil", json!(["a", "b"])),
            ("c,d , oil,", json!(["c,d", "b"])),
            ("both, of, them", json!(["c,d"])),
            ("-", json!([])),
        ],
    );
    assert_refuses(
        &spices,
        &[
            ("a, x", "`x` is none of the choices: a, b, c,d"),
            ("1,2,3", "choose at most 2"),
            (",", "names no choice"),
            ("", "must be filled in"),
        ],
    );
    let one = field(json!({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1}));
    assert_refuses(&one, &[("-", "choose at least 1")]);
    let dash = field(json!({"type": "array", "items": {"enum": ["-", "+"]}}));
    assert_parses(&dash, &[("-", json!(["-"]))]);
}

#[test]
fn a_long_list_of_choices_is_named_in_part() {
    let values: Vec<String> = (0..100).map(|nth| format!("v{nth}")).collect();
    let field = field(json!({"type": "string", "enum": values}));
    let long = "x".repeat(1000);
    let reason = field.parse(&long).expect_err("no such choice");
    assert!(reason.ends_with("v8, v9, …") && reason.chars().count() < 200, "{reason}");
}

#[test]
fn a_check_names_each_field_that_is_wrong() {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "a/b~c": {"type": "integer"}, "007": {"type": "boolean"}, "sure": {"type": "boolean"}},
        "required": ["name", "sure"],
        "additionalProperties": false,
    });
    assert_eq!(Form::check(&schema, &json!({"name": "x", "sure": true, "a/b~c": 1, "007": false})), Ok(()));
    let errors = Form::check(&schema, &json!({"a/b~c": "one", "007": 7, "sure": true, "nmae": "x", "more": 1})).expect_err("wrong");
    let has = |field: &str, part: &str| errors.iter().any(|error| error.field == field && error.reason.contains(part));
    assert!(has("name", "this must be filled in"), "{errors:?}");
    assert!(has("a/b~c", "is not of type \"integer\""), "{errors:?}");
    assert!(has("007", "is not of type \"boolean\""), "{errors:?}");
    assert!(has("nmae", "there is no such field") && has("more", "there is no such field"), "{errors:?}");
    assert_eq!(errors.len(), 5, "{errors:?}");
    for content in [json!(null), json!([]), json!("x")] {
        let errors = Form::check(&schema, &content).expect_err("no object");
        assert!(errors[0].to_string().starts_with("the answer to a form is an object"), "{errors:?}");
    }
    let errors = Form::check(&json!({"type": "object", "properties": 3}), &json!({})).expect_err("no schema");
    assert!(errors[0].to_string().starts_with("the form's schema is not valid"), "{errors:?}");
}

#[test]
fn a_check_lists_so_many_mistakes() {
    let names: Vec<String> = (0..2 * ERRORS_MAX).map(|nth| format!("f{nth}")).collect();
    let properties: Map<String, Value> = names.iter().map(|name| (name.clone(), json!({"type": "string"}))).collect();
    let schema = json!({"type": "object", "properties": properties, "required": names});
    assert_eq!(Form::check(&schema, &json!({})).expect_err("all is missing").len(), ERRORS_MAX);
}

#[test]
fn defaults_alone_pass_the_check() {
    let schema = json!({"type": "object", "required": ["n", "s"], "properties": {
        "n": {"type": "number", "default": 95.5},
        "s": {"type": "string", "enum": ["active", "inactive"], "default": "active"},
        "m": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "default": ["a"]},
        "t": {"type": "string"},
    }});
    let defaults = Form::defaults(&schema);
    assert_eq!(defaults, json!({"n": 95.5, "s": "active", "m": ["a"]}));
    assert_eq!(Form::check(&schema, &defaults), Ok(()));
}

/// A server can send any schema, and the check must not hang.
#[test]
fn a_schema_that_is_made_to_be_long_to_check_is_not() {
    let branch = |kind: &str| json!({"type": "object", "properties": {"arg": {"$ref": "#/$defs/Expr"}, "kind": {"const": kind}}, "required": ["kind"]});
    let kinds: Vec<Value> = ["a", "b", "c", "d", "e"].map(branch).into();
    let schema = json!({"type": "object", "properties": {"expr": {"$ref": "#/$defs/Expr"}}, "$defs": {"Expr": {"anyOf": kinds}}});
    let value = (0..40).fold(json!({"kind": "f"}), |inner, _| json!({"kind": "a", "arg": inner}));
    let errors = check_arguments(&schema, &json!({"expr": value}));
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].field, "expr");
    assert!(errors[0].reason.starts_with("{\"kind\":\"f\"} is not valid under any of the schemas"), "{errors:?}");
}
