//! Schemas and values that others wrote: the verdict is the library's, within bounds, and names the path.

use proptest::prelude::*;
use serde_json::{Map, json};

use super::{budget::STEPS_MAX, *};

/// An expression, as a recursive enumeration with tags. The tag comes after what is within, in the order of the alphabet.
fn tagged() -> Value {
    let inner = json!({"$ref": "#/$defs/Expr"});
    let binary =
        |op: &str| json!({"type": "object", "properties": {"a": inner, "b": inner, "op": {"const": op}}, "required": ["a", "b", "op"]});
    let number =
        json!({"type": "object", "properties": {"op": {"const": "num"}, "value": {"type": "number"}}, "required": ["op", "value"]});
    expression(&[binary("add"), binary("sub"), binary("mul"), binary("div"), number])
}

/// The same without tags that the library could go by.
fn untagged() -> Value {
    let inner = json!({"$ref": "#/$defs/Expr"});
    let binary =
        |op: &str| json!({"type": "object", "properties": {"a": inner, "b": inner, "op": {"enum": [op, ""]}}, "required": ["a", "op"]});
    let number = json!({"type": "object", "properties": {"value": {"type": "number"}}, "required": ["value"]});
    expression(&[binary("add"), binary("sub"), binary("mul"), binary("div"), number])
}

fn expression(kinds: &[Value]) -> Value {
    json!({
        "type": "object",
        "properties": {"expr": {"$ref": "#/$defs/Expr"}, "name": {"type": "string"}},
        "required": ["expr"],
        "$defs": {"Expr": {"oneOf": kinds}},
    })
}

/// An addition of an addition, and so on, so many levels deep.
fn nested(levels: usize, deepest: Value) -> Value {
    let expr = (0..levels).fold(deepest, |inner, _| {
        let mut outer = json!({"op": "add", "b": {"op": "num", "value": 1}});
        outer["a"] = inner;
        outer
    });
    let mut arguments = json!({});
    arguments["expr"] = expr;
    arguments
}

fn good() -> Value {
    json!({"op": "num", "value": 1})
}

fn bad() -> Value {
    json!({"op": "num", "value": "x"})
}

fn compiled(schema: &Value) -> Schema {
    Schema::compile(schema).unwrap_or_else(|why| panic!("{schema}: {why}"))
}

/// Yes or no, and how many steps that took.
fn decided(schema: &Schema, value: &Value) -> Result<(bool, u64), Stop> {
    with_much_stack(|| schema.decide(value, LARGE_STACK_BYTES)).expect("a thread")
}

/// What the library itself says, in our form.
fn of_the_library(schema: &Value, value: &Value) -> Vec<String> {
    let validator = jsonschema::draft202012::new(schema).expect("a schema");
    let line = |error: jsonschema::ValidationError<'_>| {
        let path = error.instance_path().to_string();
        if path.is_empty() { error.to_string() } else { format!("`{}`: {error}", path.trim_start_matches('/')) }
    };
    validator.iter_errors(value).map(line).collect()
}

#[test]
fn problems_name_the_field() {
    let schema =
        json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}, "s": {"type": "string"}}, "required": ["s"]});
    let schema = compiled(&schema);
    assert_eq!(schema.problems(&json!({"s": "x", "n": 2})), Vec::<String>::new());
    let problems = schema.problems(&json!({"n": 0}));
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems.iter().any(|line| line.starts_with("`n`: 0 is less than")), "{problems:?}");
    assert!(problems.iter().any(|line| line.contains("\"s\" is a required property")), "{problems:?}");
}

#[test]
fn what_is_simple_is_said_in_the_words_of_the_library() {
    for (schema, value) in [
        (json!({"type": "integer"}), json!("x")),
        (json!({"type": ["integer", "null"]}), json!("x")),
        (json!({"properties": {"a": {"minimum": 3, "multipleOf": 2}, "b": {"maxLength": 1}}}), json!({"a": 1, "b": "xx"})),
        (json!({"required": ["a", "b"], "minProperties": 2}), json!({})),
        (
            json!({"additionalProperties": false, "properties": {"a": true}, "patternProperties": {"^x": true}}),
            json!({"a": 1, "b": 2, "x1": 3}),
        ),
        (json!({"additionalProperties": {"type": "string"}, "properties": {"a": true}}), json!({"a": 1, "b": 2})),
        (json!({"patternProperties": {"^x": {"type": "string"}}}), json!({"x~/1": 3, "y": 4})),
        (json!({"items": {"enum": [1, 2]}, "minItems": 3}), json!([1, 5])),
        (json!({"prefixItems": [{"const": "a"}], "items": {"type": "integer"}}), json!(["b", "c"])),
        (json!({"items": {"items": {"pattern": "^a"}}}), json!([["a", "b"], ["c"]])),
        (json!({"uniqueItems": true}), json!([1, 1.0])),
        (json!({"dependentRequired": {"a": ["b"]}, "propertyNames": {"maxLength": 1}}), json!({"a": 1, "cc": 2})),
        (json!({"not": {"type": "string"}}), json!("x")),
        (json!({"contains": {"type": "string"}}), json!([1])),
        (json!({"anyOf": [{"const": 1}, {"const": 2}]}), json!(3)),
        (json!({"properties": {"a": {"oneOf": [{"minimum": 1}, {"minimum": 2}]}}}), json!({"a": 3})),
        (json!({"properties": {"a": {"oneOf": [{"minimum": 1}, {"minimum": 2}]}}}), json!({"a": 0})),
        (json!({"allOf": [{"required": ["a"]}, {"properties": {"b": {"type": "null"}}}]}), json!({"b": 1})),
        (json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}}), json!({"a": 1})),
        (json!({"dependentSchemas": {"a": {"required": ["b"]}}}), json!({"a": 1})),
        (json!({"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n", "minimum": 2}}}), json!({"a": 1.5})),
        (json!({"properties": {"a": {"$anchor": "x", "type": "integer"}, "b": {"$ref": "#x"}}}), json!({"b": "x"})),
        (json!({"allOf": [{"properties": {"a": true}}], "unevaluatedProperties": false}), json!({"a": 1, "b": 2})),
    ] {
        let (mut ours, mut theirs) = (compiled(&schema).problems(&value), of_the_library(&schema, &value));
        ours.sort();
        theirs.sort();
        assert!(!theirs.is_empty(), "{schema} {value}");
        assert_eq!(ours, theirs, "{schema} {value}");
    }
}

#[test]
fn a_bomb_is_answered_with_the_path_of_what_is_wrong() {
    let schema = compiled(&tagged());
    for levels in [0, 1, 11, 14] {
        let line = format!("`expr/{}value`: \"x\" is not of type \"number\"", "a/".repeat(levels));
        assert_eq!(schema.problems(&nested(levels, bad())), [line]);
    }
    let problems = schema.problems(&nested(110, bad()));
    assert!(problems[0].starts_with("`expr/a/a/") && problems[0].ends_with("/a/a/value`: \"x\" is not of type \"number\""), "{problems:?}");
    assert_eq!(problems.len(), 1, "{problems:?}");
    let problems = schema.problems(&nested(3, json!({"op": "sub", "a": 3})));
    assert_eq!(
        problems,
        [
            "`expr/a/a/a`: \"b\" is a required property",
            "`expr/a/a/a/a`: 3 is not valid under any of the schemas listed in the 'oneOf' keyword"
        ]
    );
    let problems = schema.problems(&nested(3, json!({"op": "root"})));
    assert_eq!(problems, ["`expr/a/a/a`: {\"op\":\"root\"} is not valid under any of the schemas listed in the 'oneOf' keyword"]);
}

#[test]
fn a_bomb_without_tags_is_answered_with_its_field() {
    let schema = compiled(&untagged());
    for levels in [11, 14, 110] {
        let problems = schema.problems(&nested(levels, json!({"op": "pow"})));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("`expr`: {\"a\":"), "{problems:?}");
        assert!(problems[0].ends_with("… is not valid under any of the schemas listed in the 'oneOf' keyword"), "{problems:?}");
        assert!(problems[0].len() < 300, "{problems:?}");
    }
}

#[test]
fn a_deep_value_that_fits_is_taken_in_few_steps() {
    for text in [tagged(), untagged()] {
        let schema = compiled(&text);
        for levels in [1, 11, 14, 110] {
            let value = nested(levels, good());
            assert_eq!(schema.problems(&value), [""; 0], "{levels}");
            let (fits, steps) = decided(&schema, &value).expect("it is not stopped");
            assert!(fits && steps < 200 * (levels as u64 + 1), "{levels}: {steps}");
        }
    }
}

/// No message is so deep; what a tool returns can be.
#[test]
fn a_thousand_levels_are_answered() {
    let done = with_much_stack(|| {
        for text in [tagged(), untagged()] {
            let schema = compiled(&text);
            let problems = schema.problems(&nested(1_000, bad()));
            assert!(problems.len() == 1 && problems[0].starts_with("`expr"), "{problems:?}");
            let problems = schema.problems(&nested(1_000, good()));
            assert!(
                problems.is_empty() || problems == ["`expr`: this is nested too deeply to be checked against its schema"],
                "{problems:?}"
            );
        }
    });
    assert!(done.is_some(), "see above");
}

#[test]
fn a_choice_is_explained_by_the_branch_that_is_meant() {
    let maybe = json!({"properties": {"place": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]}},
        "$defs": {"Place": {"type": "object", "properties": {"port": {"type": "integer"}}, "required": ["port"]}}});
    let maybe = compiled(&maybe);
    assert_eq!(maybe.problems(&json!({"place": null})), [""; 0]);
    assert_eq!(maybe.problems(&json!({"place": {"port": "x"}})), ["`place/port`: \"x\" is not of type \"integer\""]);
    assert_eq!(maybe.problems(&json!({"place": {}})), ["`place`: \"port\" is a required property"]);
    assert_eq!(maybe.problems(&json!({"place": 3})), ["`place`: 3 is not valid under any of the schemas listed in the 'anyOf' keyword"]);
    let variant = |name: &str| json!({"type": "object", "properties": {name: {"type": "integer"}}, "required": [name], "additionalProperties": false});
    let outside = compiled(&json!({"oneOf": [variant("Move"), variant("Wait")]}));
    assert_eq!(outside.problems(&json!({"Wait": "x"})), ["`Wait`: \"x\" is not of type \"integer\""], "by its shape");
}

#[test]
fn what_is_long_or_much_is_cut() {
    let schema = compiled(&json!({"properties": {
        "text": {"maxLength": 5}, "list": {"items": {"type": "integer"}}, "one": {"type": "object"},
    }, "additionalProperties": false}));
    let problems = schema.problems(&json!({"text": "ä".repeat(100_000)}));
    assert!(problems[0].starts_with("`text`: \"ä") && problems[0].ends_with("… is longer than 5 characters"), "{problems:?}");
    assert!(problems[0].chars().count() < 200, "{problems:?}");
    let many: Map<String, Value> = (0..10_000).map(|nth| (format!("stray{nth}"), json!(1))).collect();
    let problems = schema.problems(&Value::Object(many));
    assert!(problems.len() == 1 && problems[0].chars().count() <= 301 && problems[0].starts_with("Additional properties"), "{problems:?}");
    let problems = schema.problems(&json!({"list": vec!["x"; 100_000]}));
    assert_eq!(problems.len(), PROBLEMS_MAX, "{problems:?}");
    assert_eq!(problems[9], "`list/9`: \"x\" is not of type \"integer\"");
    let mut list = vec![json!(1); 200_000];
    list.push(json!("x"));
    assert_eq!(schema.problems(&json!({"list": list})), ["`list`: this does not fit its schema, and is too large to say what of it"]);
}

#[test]
fn a_schema_that_multiplies_itself_is_stopped() {
    let mut defs = Map::new();
    for nth in 0..40 {
        let next = json!({"$ref": format!("#/$defs/d{}", nth + 1)});
        defs.insert(format!("d{nth}"), json!({"anyOf": [next, next]}));
    }
    defs.insert("d40".to_owned(), json!({"type": "integer"}));
    let references = json!({"$defs": defs, "properties": {"n": {"$ref": "#/$defs/d0"}}});
    let (value, mut nested) = (json!({"n": "x"}), json!({"properties": {"n": true}}));
    for _ in 0..18 {
        nested = json!({"anyOf": [nested], "unevaluatedProperties": false});
    }
    for text in [references, nested] {
        assert_eq!(compiled(&text).problems(&value), ["`n`: this is too complex to be checked against its schema; send something smaller"]);
    }
}

#[test]
fn a_pattern_that_goes_back_again_and_again_is_stopped() {
    let schema = compiled(&json!({"items": {"type": "string", "pattern": "^(a|a)*\\1b$"}, "maxItems": 100_000}));
    assert_eq!(
        schema.problems(&json!(["ab", "aab"])),
        of_the_library(&json!({"items": {"pattern": "^(a|a)*\\1b$"}}), &json!(["ab", "aab"]))
    );
    let costly: Vec<Value> = (0..5_000).map(|nth| Value::String(format!("{}!{nth}", "a".repeat(40)))).collect();
    let problems = schema.problems(&costly.into());
    assert!(!problems.is_empty() && problems.len() <= PROBLEMS_MAX, "{problems:?}");
    let plain = compiled(&json!({"items": {"pattern": "^a+b$"}}));
    assert_eq!(decided(&plain, &json!(["ab", "aab"])), Ok((true, 0)), "others count nothing");
}

#[test]
fn what_only_looks_like_a_reference_is_left_alone() {
    let text = json!({
        "properties": {
            "$ref": {"type": "string"},
            "const": {"$ref": "#/$defs/N"},
            "x": {"const": {"$ref": "#/nowhere", "unevaluatedProperties": false}},
            "y": {"enum": [{"$ref": "a"}, {"allOf": []}], "default": {"$ref": "b"}, "examples": [{"$ref": "c"}]},
        },
        "$defs": {"N": {"type": "integer"}},
    });
    let schema = compiled(&text);
    for (value, fits) in [
        (json!({"$ref": "s"}), true),
        (json!({"$ref": 1}), false),
        (json!({"const": 1}), true),
        (json!({"const": "1"}), false),
        (json!({"x": {"$ref": "#/nowhere", "unevaluatedProperties": false}}), true),
        (json!({"x": {"$ref": "#/nowhere"}}), false),
        (json!({"y": {"$ref": "a"}}), true),
        (json!({"y": {"allOf": []}}), true),
        (json!({"y": {"$ref": "b"}}), false),
    ] {
        assert_eq!(schema.fits(&value), fits, "{value}");
        assert_eq!(jsonschema::draft202012::is_valid(&text, &value), fits, "{value}");
    }
    let plain = json!({"properties": {"a": {"anyOf": [{"type": "string", "pattern": "^a"}, {"items": {"const": 1}}]}}, "required": ["a"]});
    assert_eq!(with_step_counts(&plain), plain, "what has no reference is not changed");
    assert!(Schema::compile(&json!({"$ref": "#/$defs/none"})).is_err(), "and one to nowhere is an error");
    assert!(Schema::compile(&json!({"$ref": "#", "allOf": []})).is_err());
}

#[test]
fn schemas_with_ids_are_explained_as_far_as_can_be_seen() {
    let list = compiled(
        &json!({"$defs": {"n": {"$id": "node", "properties": {"v": {"type": "integer"}, "next": {"$ref": "node"}}}}, "$ref": "node"}),
    );
    assert_eq!(list.problems(&json!({"next": {"next": {"v": "x"}}})), ["`next/next/v`: \"x\" is not of type \"integer\""]);
    let parts = compiled(
        &json!({"$defs": {"n": {"$id": "node", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}}}, "$ref": "node"}),
    );
    assert_eq!(parts.problems(&json!({"next": {"v": 1}})), [""; 0]);
    assert_eq!(parts.problems(&json!({"v": "x"})), ["`v`: \"x\" is not of type \"integer\""]);
    assert_eq!(parts.problems(&json!({"next": {"v": "x"}})), ["this does not fit its schema"]);
}

#[test]
fn schemas_of_other_drafts_are_read_as_they_say() {
    let text = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"n": {"type": "object", "properties": {"next": {"$ref": "#/definitions/n", "type": "string"}, "v": {"type": "integer"}}}},
        "properties": {"list": {"$ref": "#/definitions/n"}, "pair": {"items": [{"type": "integer"}], "additionalItems": false}},
    });
    let schema = Schema::read(SchemaKind::Foreign, &text).expect("a schema");
    assert!(schema.fits(&json!({"list": {"next": {"v": 1}}})), "what stands beside a reference does not count there");
    assert_eq!(schema.problems(&json!({"list": {"next": {"v": "x"}}})), ["`list/next/v`: \"x\" is not of type \"integer\""]);
    assert_eq!(schema.problems(&json!({"pair": ["x"]})), ["`pair/0`: \"x\" is not of type \"integer\""]);
}

// Any schema, any value.

/// How many definitions a random schema has.
const DEFINITIONS: usize = 4;

/// Choices, made by bytes. When there are no more, it is always the first.
struct Dice<'a>(std::slice::Iter<'a, u8>);

impl Dice<'_> {
    fn below(&mut self, end: usize) -> usize {
        usize::from(self.0.next().copied().unwrap_or(0)) % end
    }

    fn pick(&mut self, all: &[Value]) -> Value {
        all[self.below(all.len())].clone()
    }

    fn scalar(&mut self) -> Value {
        self.pick(&[json!(null), json!(true), json!(0), json!(1), json!(1.0), json!(2.5), json!(""), json!("a"), json!("aa")])
    }

    fn value(&mut self, levels: usize) -> Value {
        match self.below(if levels == 0 { 2 } else { 6 }) {
            0 | 1 => self.scalar(),
            2 | 3 => (0..self.below(3)).map(|_| self.value(levels - 1)).collect(),
            _ => (0..self.below(4))
                .map(|_| (["a", "b", "c"][self.below(3)], self.value(levels - 1)))
                .collect::<Vec<_>>()
                .into_iter()
                .collect(),
        }
    }

    /// Like [`Dice::value`], but a chain of one in another.
    fn chain(&mut self, levels: usize) -> Value {
        let deepest = self.value(1);
        (0..levels).fold(deepest, |inner, _| match self.below(4) {
            0 => Value::Array(vec![inner]),
            1 => Value::Object(Map::from_iter([("b".to_owned(), inner), ("a".to_owned(), self.scalar())])),
            _ => Value::Object(Map::from_iter([("a".to_owned(), inner)])),
        })
    }

    /// A schema for the same value refers only to definitions from this one on: one that comes back to itself without going on to
    /// a part of the value means nothing.
    fn schema(&mut self, levels: usize, from: usize) -> Value {
        let next = levels.saturating_sub(1);
        match self.below(if levels == 0 { 6 } else { 20 }) {
            0 => json!(self.below(4) != 0),
            1 => {
                json!({"type": self.pick(&[json!("object"), json!("array"), json!("string"), json!("integer"), json!(["number", "null"])])})
            }
            2 => json!({"const": self.value(1)}),
            3 => json!({"enum": [self.scalar(), self.value(1)]}),
            4 => self.pick(&[json!({"minimum": 1}), json!({"maxLength": 1}), json!({"uniqueItems": true}), json!({"pattern": "^a(?=a)"})]),
            5 if from < DEFINITIONS => json!({"$ref": self.reference(from)}),
            5 => json!({"required": ["a"]}),
            6 | 7 => json!({"properties": {"a": self.part(next), "b": self.part(next)}}),
            8 => json!({"properties": {"a": self.part(next)}, "required": ["a"], "additionalProperties": self.part(next)}),
            9 => json!({"items": self.part(next)}),
            10 => json!({"prefixItems": [self.part(next)], "items": self.part(next)}),
            11 => json!({"contains": self.part(next), "maxContains": 1}),
            12 | 13 => json!({"anyOf": [self.schema(next, from), self.schema(next, from)]}),
            14 | 15 => json!({"oneOf": [self.schema(next, from), self.schema(next, from), self.schema(next, from)]}),
            16 => json!({"allOf": [self.schema(next, from), self.schema(next, from)], "unevaluatedProperties": self.part(next)}),
            17 => json!({"not": self.schema(next, from)}),
            18 => json!({"if": self.schema(next, from), "then": self.schema(next, from), "else": self.schema(next, from)}),
            _ => {
                json!({"$ref": self.reference(from), "anyOf": [self.schema(next, from), {"type": "object"}]})
            }
        }
    }

    /// A schema for a part of the value.
    fn part(&mut self, levels: usize) -> Value {
        self.schema(levels, 0)
    }

    fn reference(&mut self, from: usize) -> String {
        if from >= DEFINITIONS {
            return "#/$defs/leaf".to_owned();
        }
        format!("#/$defs/d{}", from + self.below(DEFINITIONS - from))
    }

    /// A schema whose definitions refer to each other.
    fn document(&mut self) -> Value {
        let mut defs: Map<String, Value> = (0..DEFINITIONS).map(|nth| (format!("d{nth}"), self.schema(3, nth + 1))).collect();
        defs.insert("leaf".to_owned(), json!({"type": ["object", "string"]}));
        json!({"$defs": defs, "allOf": [self.schema(3, 0)]})
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_schema_takes_exactly_what_the_library_takes(text in proptest::collection::vec(any::<u8>(), 0..160), bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        let text = Dice(text.iter()).document();
        let value = Dice(bytes.iter()).value(4);
        let schema = compiled(&text);
        let plain = jsonschema::draft202012::new(&text).expect("a schema");
        let (fits, steps) = decided(&schema, &value).expect("what is small is not stopped");
        prop_assert!(steps <= STEPS_MAX);
        prop_assert_eq!(fits, plain.is_valid(&value), "{} {}", text, value);
        let problems = schema.problems(&value);
        prop_assert_eq!(problems.is_empty(), fits, "{} {}: {:?}", text, value, problems);
        prop_assert!(problems.len() <= PROBLEMS_MAX && problems.iter().all(|line| line.chars().count() <= 510), "{:?}", problems);
    }

    #[test]
    fn any_deep_value_is_answered_within_bounds(text in proptest::collection::vec(any::<u8>(), 0..160), bytes in proptest::collection::vec(any::<u8>(), 0..200), levels in 10usize..100) {
        let text = Dice(text.iter()).document();
        let value = Dice(bytes.iter()).chain(levels);
        let schema = compiled(&text);
        let problems = schema.problems(&value);
        prop_assert!(problems.len() <= PROBLEMS_MAX && problems.iter().all(|line| line.chars().count() <= 510), "{:?}", problems);
        if let Ok((fits, steps)) = decided(&schema, &value) {
            prop_assert!(steps <= STEPS_MAX);
            prop_assert_eq!(problems.is_empty(), fits, "{} {}: {:?}", text, value, problems);
            // Where we need few steps the library does, too.
            if steps < 10_000 {
                let plain = jsonschema::draft202012::new(&text).expect("a schema");
                prop_assert_eq!(Some(fits), with_much_stack(|| plain.is_valid(&value)), "{} {}", text, value);
            }
        }
    }
}
