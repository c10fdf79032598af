//! What does not fit, in words that name the place.
//!
//! The library can say so too, but for a choice between schemas it collects what is wrong with each of them, however deep, with a copy of the
//! value each time: branches to the power of levels. So the schema is gone through here. What a schema says of a value itself is still the
//! library's to check and to word, one schema at a time (a leaf); what applies other schemas is followed here, each schema at each part of
//! the value once. The answer was no already: to miss something here makes it less telling, not wrong.

use std::{collections::HashMap, sync::Arc};

use jsonschema::error::ValidationErrorKind;
use serde_json::Value;

use super::{
    Misfit, SchemaKind,
    assertions::{AssertionCache, Assertions, Members, address},
    budget::{Budget, Stop},
    references::{HOPS_MAX, References},
    short::{short_message, short_value},
    unique::is_unique,
};

/// Schemas that are looked at, each at some part of the value, before it is given up.
const STEPS_MAX: u64 = 100_000;

/// One step from a value to a part of it.
#[derive(Debug, Clone, Copy)]
enum PathStep<'v> {
    Name(&'v str),
    Index(usize),
}

/// What was found.
pub(super) struct Explanation<'v> {
    pub(super) found: Vec<Misfit<'v>>,
    /// Why not all was looked at, and where that was.
    pub(super) stop: Option<Stop>,
    pub(super) stopped_at: Vec<String>,
}

pub(super) struct Explainer<'s, 'v> {
    kind: SchemaKind,
    is_old: bool,
    references: References<'s>,
    assertions: &'s AssertionCache,
    /// Which schema takes which part of the value, each known by its address.
    fits_cache: HashMap<(usize, usize), bool>,
    /// The schemas that are being told of, and the way to the value that they are about.
    reporting: Vec<(usize, usize)>,
    path: Vec<PathStep<'v>>,
    found: Vec<Misfit<'v>>,
    max: usize,
    budget: Budget,
    stopped_at: Option<Vec<String>>,
}

/// Looks at some of a schema's keywords; whether they fit.
type KeywordCheck<'s, 'v, Explainer> = fn(&mut Explainer, &'s Members, &'v Value, bool) -> bool;

impl<'s, 'v> Explainer<'s, 'v> {
    /// Of a schema that must not move while its leaves are kept.
    pub(super) fn new(rules: SchemaKind, text: &'s Value, leaves: &'s AssertionCache, room: usize) -> Self {
        Self {
            kind: rules,
            is_old: rules.is_old_draft(text),
            references: References::of(text),
            assertions: leaves,
            fits_cache: HashMap::new(),
            reporting: Vec::new(),
            path: Vec::new(),
            found: Vec::new(),
            max: 0,
            budget: Budget::new(STEPS_MAX, room),
            stopped_at: None,
        }
    }

    /// What of a value does not fit, up to so many.
    pub(super) fn explain(mut self, value: &'v Value, max: usize) -> Explanation<'v> {
        self.max = max;
        self.visit(self.references.root, value, true);
        Explanation { found: self.found, stop: self.budget.stop, stopped_at: self.stopped_at.unwrap_or_default() }
    }

    /// Whether a schema takes a value, as far as can be seen.
    fn fits(&mut self, schema: &'s Value, value: &'v Value) -> bool {
        if !schema.is_object() {
            return *schema != false;
        }
        let pair = (address(schema), address(value));
        if let Some(known) = self.fits_cache.get(&pair) {
            return *known;
        }
        if !self.budget.spend(1) {
            return true;
        }
        // A schema that comes back to itself at the same value asks for nothing more there.
        self.fits_cache.insert(pair, true);
        let fits = self.visit(schema, value, false);
        self.fits_cache.insert(pair, fits);
        fits
    }

    /// The same, and if it does not, tells why.
    fn check(&mut self, schema: &'s Value, value: &'v Value, step: Option<PathStep<'v>>, tell: bool) -> bool {
        if self.fits(schema, value) {
            if tell && self.budget.stop.is_some() && self.stopped_at.is_none() {
                self.stopped_at = Some(self.path.iter().copied().chain(step).map(PathStep::name).collect());
            }
            return true;
        }
        let pair = (address(schema), address(value));
        if tell && !self.reporting.contains(&pair) && self.budget.spend(1) {
            self.reporting.push(pair);
            self.path.extend(step);
            self.visit(schema, value, true);
            self.path.truncate(self.path.len() - usize::from(step.is_some()));
            self.reporting.pop();
        }
        false
    }

    fn visit(&mut self, schema: &'s Value, value: &'v Value, tell: bool) -> bool {
        let Some(rules) = schema.as_object() else {
            if tell && *schema == false {
                self.report(value, ValidationErrorKind::FalseSchema, format!("False schema does not allow {}", short_value(value)));
            }
            return *schema != false;
        };
        // Old drafts ignore what stands beside a reference.
        if self.is_old && rules.contains_key("$ref") {
            return self.in_place(rules, value, tell);
        }
        let parts: [KeywordCheck<'s, 'v, Self>; 8] = [
            Self::check_assertions,
            Self::in_place,
            Self::check_property_names,
            Self::check_properties,
            Self::items,
            Self::check_contains,
            Self::alternatives,
            Self::check_unevaluated,
        ];
        let mut fits = true;
        for part in parts {
            fits &= part(self, rules, value, tell);
            if self.is_enough(fits, tell) {
                break;
            }
        }
        fits
    }

    /// Whether to look at more would change nothing.
    fn is_enough(&self, fits: bool, tell: bool) -> bool {
        self.budget.stop.is_some() || if tell { self.found.len() >= self.max } else { !fits }
    }

    fn report(&mut self, value: &'v Value, kind: ValidationErrorKind, message: String) {
        if self.found.len() < self.max {
            let path = self.path.iter().copied().map(PathStep::name).collect();
            self.found.push(Misfit { path, value, kind, message: short_message(format_args!("{message}")) });
        }
    }

    /// What the schema says of the value itself.
    fn check_assertions(&mut self, rules: &'s Members, value: &'v Value, tell: bool) -> bool {
        let mut fits = true;
        if let Some(leaf) = self.assertions_of(rules)
            && self.budget.spend(leaf.cost)
            && !leaf.validator.is_valid(value)
        {
            fits = false;
            if tell {
                for error in leaf.validator.iter_errors(value).take(self.max) {
                    let message = short_message(format_args!("{}", error.masked_with(short_value(value))));
                    self.report(value, error.into_parts().kind, message);
                }
            }
        }
        if rules.get("uniqueItems").is_some_and(|wanted| *wanted == true) && value.as_array().is_some_and(|items| !is_unique(items)) {
            fits = false;
            if tell {
                self.report(value, ValidationErrorKind::UniqueItems, format!("{} has non-unique elements", short_value(value)));
            }
        }
        fits
    }

    /// The schemas that apply to the same value, all of them.
    fn in_place(&mut self, rules: &'s Members, value: &'v Value, tell: bool) -> bool {
        let mut fits = true;
        for schema in self.all_in_place(rules, value) {
            fits &= self.check(schema, value, None, tell);
            if self.is_enough(fits, tell) {
                break;
            }
        }
        if let Some(not) = rules.get("not")
            && self.fits(not, value)
            && self.budget.stop.is_none()
        {
            fits = false;
            if tell {
                let message = format!("{} is not allowed for {}", short_value(not), short_value(value));
                self.report(value, ValidationErrorKind::Not { schema: not.clone() }, message);
            }
        }
        fits
    }

    fn all_in_place(&mut self, rules: &'s Members, value: &'v Value) -> Vec<&'s Value> {
        let references = ["$ref", "$dynamicRef", "$recursiveRef"].into_iter().filter_map(|key| rules.get(key)?.as_str());
        let mut schemas: Vec<&'s Value> = references.filter_map(|reference| self.references.find(reference)).collect();
        schemas.extend(rules.get("allOf").and_then(Value::as_array).into_iter().flatten());
        for (name, schema) in rules.get("dependentSchemas").and_then(Value::as_object).into_iter().flatten() {
            if value.get(name).is_some() {
                schemas.push(schema);
            }
        }
        if let Some(condition) = rules.get("if") {
            schemas.extend(rules.get(if self.fits(condition, value) { "then" } else { "else" }));
        }
        schemas
    }

    fn check_property_names(&mut self, rules: &'s Members, value: &'v Value, tell: bool) -> bool {
        let (Some(schema), Some(members)) = (rules.get("propertyNames"), value.as_object()) else { return true };
        let Some(leaf) = self.assertions.of_names(self.kind, self.references.root, schema) else { return true };
        let mut fits = true;
        // One by one: the library has a message for each that is wrong, however many these are.
        for name in members.keys() {
            let single = Value::Object(Members::from_iter([(name.clone(), Value::Null)]));
            if self.budget.spend(1) && !leaf.validator.is_valid(&single) {
                fits = false;
                if tell {
                    for error in leaf.validator.iter_errors(&single) {
                        let message = short_message(format_args!("{error}"));
                        self.report(value, error.into_parts().kind, message);
                    }
                }
            }
            if self.is_enough(fits, tell) {
                break;
            }
        }
        fits
    }

    fn check_properties(&mut self, rules: &'s Members, value: &'v Value, tell: bool) -> bool {
        let Some(members) = value.as_object() else { return true };
        let schemas = |key: &str| rules.get(key).and_then(Value::as_object);
        let (properties, patterns) = (schemas("properties"), schemas("patternProperties"));
        // Where none may be, it is the leaf that says so, of all of them in one line.
        let others = rules.get("additionalProperties").filter(|others| **others != false);
        if properties.is_none() && patterns.is_none() && others.is_none() {
            return true;
        }
        let mut fits = true;
        for (name, member) in members {
            let step = Some(PathStep::Name(name));
            let property = properties.and_then(|properties| properties.get(name));
            let mut is_known = property.is_some();
            if let Some(schema) = property {
                fits &= self.check(schema, member, step, tell);
            }
            for (pattern, schema) in patterns.into_iter().flatten() {
                if self.matches(pattern, name) {
                    is_known = true;
                    fits &= self.check(schema, member, step, tell);
                }
            }
            if let Some(schema) = others.filter(|_| !is_known) {
                fits &= self.check(schema, member, step, tell);
            }
            if self.is_enough(fits, tell) {
                break;
            }
        }
        fits
    }

    fn items(&mut self, rules: &'s Members, value: &'v Value, tell: bool) -> bool {
        let Some(items) = value.as_array() else { return true };
        // Drafts before 2020-12 have a list in `items`, and `additionalItems` for what follows it.
        let (first, rest) = match (rules.get("prefixItems"), rules.get("items")) {
            (None, Some(Value::Array(first))) => (first.as_slice(), rules.get("additionalItems")),
            (first, rest) => (first.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default(), rest),
        };
        if first.is_empty() && rest.is_none() {
            return true;
        }
        let mut fits = true;
        for (index, item) in items.iter().enumerate() {
            let Some(schema) = first.get(index).or(rest) else { break };
            fits &= self.check(schema, item, Some(PathStep::Index(index)), tell);
            if self.is_enough(fits, tell) {
                break;
            }
        }
        fits
    }

    fn check_contains(&mut self, rules: &'s Members, value: &'v Value, tell: bool) -> bool {
        let (Some(schema), Some(items)) = (rules.get("contains"), value.as_array()) else { return true };
        let bound = |key: &str| rules.get(key).and_then(Value::as_f64);
        let (least, most) = (bound("minContains").unwrap_or(1.0), bound("maxContains").unwrap_or(f64::INFINITY));
        let count = items.iter().filter(|item| self.fits(schema, item)).count() as f64;
        let fits = self.budget.stop.is_some() || (least..=most).contains(&count);
        if !fits && tell {
            let message = match count < least {
                true => format!("None of {} are valid under the given schema", short_value(value)),
                false => format!("{} has more than {most} items that are valid under the given schema", short_value(value)),
            };
            self.report(value, ValidationErrorKind::Contains, message);
        }
        fits
    }

    /// Choices between schemas.
    fn alternatives(&mut self, rules: &'s Members, value: &'v Value, tell: bool) -> bool {
        let mut fits = true;
        for key in ["anyOf", "oneOf"] {
            let Some(branches) = rules.get(key).and_then(Value::as_array) else { continue };
            let wanted = if key == "anyOf" { 1 } else { 2 };
            let taken = branches.iter().filter(|branch| self.fits(branch, value)).take(wanted).count();
            if taken == 1 || self.budget.stop.is_some() {
                continue;
            }
            fits = false;
            if tell {
                self.report_choice(key, branches, value, taken);
            }
        }
        fits
    }

    /// What is wrong with the branch that is meant, if that can be seen.
    fn report_choice(&mut self, key: &str, branches: &'s [Value], value: &'v Value, taken: usize) {
        let before = self.found.len();
        if taken == 0
            && let Some(branch) = self.intended_branch(branches, value)
        {
            self.check(branch, value, None, true);
        }
        if self.found.len() > before {
            return;
        }
        let context = Vec::new();
        let (kind, words) = match (key, taken) {
            ("anyOf", _) => (ValidationErrorKind::AnyOf { context }, "is not valid under any of the schemas listed in the 'anyOf' keyword"),
            (_, 0) => {
                (ValidationErrorKind::OneOfNotValid { context }, "is not valid under any of the schemas listed in the 'oneOf' keyword")
            }
            _ => (
                ValidationErrorKind::OneOfMultipleValid { context },
                "is valid under more than one of the schemas listed in the 'oneOf' keyword",
            ),
        };
        self.report(value, kind, format!("{} {words}", short_value(value)));
    }

    /// The only branch that has the value's tag, or else that is for its type, or else that would take it but for what is in it.
    fn intended_branch(&mut self, branches: &'s [Value], value: &'v Value) -> Option<&'s Value> {
        let signs: [fn(&mut Self, &'s Members, &'v Value) -> bool; 3] = [Self::has_tag, Self::has_type, Self::has_shape];
        signs.into_iter().find_map(|has_sign| {
            let mut with_sign = Vec::new();
            for branch in branches {
                if self.resolved(branch).is_some_and(|rules| has_sign(self, rules, value)) {
                    with_sign.push(branch);
                }
            }
            with_sign.pop().filter(|_| with_sign.is_empty())
        })
    }

    /// The schema itself, or the one that it refers to.
    fn resolved(&self, mut schema: &'s Value) -> Option<&'s Members> {
        for _ in 0..HOPS_MAX {
            let rules = schema.as_object()?;
            match rules.get("$ref").and_then(Value::as_str) {
                Some(reference) => schema = self.references.find(reference)?,
                None => return Some(rules),
            }
        }
        None
    }

    /// Whether a member has the one value that it can have there.
    fn has_tag(&mut self, rules: &'s Members, value: &'v Value) -> bool {
        let mut tags = 0;
        for (name, schema) in rules.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let is_tag = schema.get("const").is_some() || schema.get("enum").and_then(Value::as_array).is_some_and(|all| all.len() == 1);
            if let Some(member) = value.get(name).filter(|_| is_tag) {
                if !self.fits(schema, member) {
                    return false;
                }
                tags += 1;
            }
        }
        tags > 0
    }

    fn has_type(&mut self, rules: &'s Members, value: &'v Value) -> bool {
        let is = |name: &Value| match value {
            Value::Null => name == "null",
            Value::Bool(_) => name == "boolean",
            Value::Number(number) => name == "number" || (name == "integer" && number.as_f64().is_some_and(|it| it.fract() == 0.0)),
            Value::String(_) => name == "string",
            Value::Array(_) => name == "array",
            Value::Object(_) => name == "object",
        };
        match rules.get("type") {
            Some(Value::Array(names)) => names.iter().any(is),
            Some(name) => is(name),
            None => false,
        }
    }

    fn has_shape(&mut self, rules: &'s Members, value: &'v Value) -> bool {
        self.assertions_of(rules).is_some_and(|leaf| self.budget.spend(leaf.cost) && leaf.validator.is_valid(value))
    }

    /// Members that no schema speaks of, where one says what these may be.
    fn check_unevaluated(&mut self, rules: &'s Members, value: &'v Value, tell: bool) -> bool {
        let (Some(schema), Some(members)) = (rules.get("unevaluatedProperties"), value.as_object()) else { return true };
        let (mut fits, mut unexpected) = (true, Vec::new());
        for (name, member) in members {
            if self.is_evaluated(rules, value, name, 0) || self.budget.stop.is_some() {
                continue;
            }
            if *schema == false {
                fits = false;
                unexpected.push(name.clone());
            } else {
                fits &= self.check(schema, member, Some(PathStep::Name(name)), tell);
            }
        }
        if tell && !unexpected.is_empty() {
            let verb = if unexpected.len() == 1 { "was" } else { "were" };
            let message = format!("Unevaluated properties are not allowed ('{}' {verb} unexpected)", unexpected.join("', '"));
            self.report(value, ValidationErrorKind::UnevaluatedProperties { unexpected }, message);
        }
        fits
    }

    fn is_evaluated(&mut self, rules: &'s Members, value: &'v Value, name: &str, hops: usize) -> bool {
        if hops > HOPS_MAX || !self.budget.spend(1) {
            return true;
        }
        let schemas = |key: &str| rules.get(key).and_then(Value::as_object);
        let is_inner = hops > 0 && rules.contains_key("unevaluatedProperties");
        if is_inner || rules.contains_key("additionalProperties") || schemas("properties").is_some_and(|named| named.contains_key(name)) {
            return true;
        }
        if schemas("patternProperties").into_iter().flatten().any(|(pattern, _)| self.matches(pattern, name)) {
            return true;
        }
        let mut others = self.all_in_place(rules, value);
        others.extend(["anyOf", "oneOf"].into_iter().filter_map(|key| rules.get(key)?.as_array()).flatten());
        others.extend(rules.get("if"));
        others.into_iter().any(|schema| {
            let Some(rules) = schema.as_object() else { return false };
            self.fits(schema, value) && self.is_evaluated(rules, value, name, hops + 1)
        })
    }

    fn assertions_of(&self, rules: &'s Members) -> Option<Arc<Assertions>> {
        self.assertions.of_schema(self.kind, self.references.root, rules)
    }

    fn matches(&mut self, pattern: &'s str, name: &str) -> bool {
        let leaf = self.assertions.of_pattern(self.kind, self.references.root, pattern);
        leaf.is_some_and(|leaf| self.budget.spend(leaf.cost) && leaf.validator.is_valid(&Value::from(name)))
    }
}

impl PathStep<'_> {
    fn name(self) -> String {
        match self {
            Self::Name(name) => name.to_owned(),
            Self::Index(index) => index.to_string(),
        }
    }
}
