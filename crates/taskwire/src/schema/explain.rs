//! Explains which parts of a value do not fit, and why.
//!
//! The library can explain, too, but for a choice between schemas it collects the errors of each branch, however deep, with a copy of the
//! value each time: branches to the power of levels. So this file walks the schema itself. The library still checks and words the
//! assertions, one schema at a time; subschemas are followed here, each at each part of the value once. The value is known to be invalid:
//! an error that is missed here makes the explanation poorer, not wrong.

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

/// Pairs of a schema and a part of the value that are visited before the explanation is given up.
const STEPS_MAX: u64 = 100_000;

/// One step from a value to a part of it.
#[derive(Debug, Clone, Copy)]
enum PathStep<'v> {
    Name(&'v str),
    Index(usize),
}

pub(super) struct Explanation<'v> {
    pub(super) found: Vec<Misfit<'v>>,
    /// Why the walk stopped early, and where.
    pub(super) stop: Option<Stop>,
    pub(super) stopped_at: Vec<String>,
}

pub(super) struct Explainer<'s, 'v> {
    kind: SchemaKind,
    is_old: bool,
    references: References<'s>,
    assertions: &'s AssertionCache,
    /// Which schema accepts which part of the value, by their addresses.
    fits_cache: HashMap<(usize, usize), bool>,
    /// The schemas that are being reported, and the path to the value that they are about.
    reporting: Vec<(usize, usize)>,
    path: Vec<PathStep<'v>>,
    found: Vec<Misfit<'v>>,
    max: usize,
    budget: Budget,
    stopped_at: Option<Vec<String>>,
}

/// Checks some of a schema's keywords.
type KeywordCheck<'s, 'v, Explainer> = fn(&mut Explainer, &'s Members, &'v Value, bool) -> bool;

impl<'s, 'v> Explainer<'s, 'v> {
    /// The schema must not move while its assertions are cached.
    pub(super) fn new(kind: SchemaKind, text: &'s Value, assertions: &'s AssertionCache, stack_bytes: usize) -> Self {
        Self {
            kind,
            is_old: kind.is_old_draft(text),
            references: References::of(text),
            assertions,
            fits_cache: HashMap::new(),
            reporting: Vec::new(),
            path: Vec::new(),
            found: Vec::new(),
            max: 0,
            budget: Budget::new(STEPS_MAX, stack_bytes),
            stopped_at: None,
        }
    }

    /// Finds up to `max` misfits of a value.
    pub(super) fn explain(mut self, value: &'v Value, max: usize) -> Explanation<'v> {
        self.max = max;
        self.visit(self.references.root, value, true);
        Explanation { found: self.found, stop: self.budget.stop, stopped_at: self.stopped_at.unwrap_or_default() }
    }

    /// Whether a schema accepts a value, as far as can be seen.
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
        // A schema that comes back to itself at the same value demands nothing more there.
        self.fits_cache.insert(pair, true);
        let fits = self.visit(schema, value, false);
        self.fits_cache.insert(pair, fits);
        fits
    }

    /// As `fits`; if it does not fit and `tell` is set, reports why.
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
        let Some(keywords) = schema.as_object() else {
            if tell && *schema == false {
                self.report(value, ValidationErrorKind::FalseSchema, format!("False schema does not allow {}", short_value(value)));
            }
            return *schema != false;
        };
        // Old drafts ignore the keywords beside a reference.
        if self.is_old && keywords.contains_key("$ref") {
            return self.in_place(keywords, value, tell);
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
            fits &= part(self, keywords, value, tell);
            if self.is_enough(fits, tell) {
                break;
            }
        }
        fits
    }

    /// Whether further checks would change nothing.
    fn is_enough(&self, fits: bool, tell: bool) -> bool {
        self.budget.stop.is_some() || if tell { self.found.len() >= self.max } else { !fits }
    }

    fn report(&mut self, value: &'v Value, kind: ValidationErrorKind, message: String) {
        if self.found.len() < self.max {
            let path = self.path.iter().copied().map(PathStep::name).collect();
            self.found.push(Misfit { path, value, kind, message: short_message(format_args!("{message}")) });
        }
    }

    /// Checks what the schema says of the value itself.
    fn check_assertions(&mut self, keywords: &'s Members, value: &'v Value, tell: bool) -> bool {
        let mut fits = true;
        if let Some(assertions) = self.assertions_of(keywords)
            && self.budget.spend(assertions.cost)
            && !assertions.validator.is_valid(value)
        {
            fits = false;
            if tell {
                for error in assertions.validator.iter_errors(value).take(self.max) {
                    let message = short_message(format_args!("{}", error.masked_with(short_value(value))));
                    self.report(value, error.into_parts().kind, message);
                }
            }
        }
        if keywords.get("uniqueItems").is_some_and(|wanted| *wanted == true) && value.as_array().is_some_and(|items| !is_unique(items)) {
            fits = false;
            if tell {
                self.report(value, ValidationErrorKind::UniqueItems, format!("{} has non-unique elements", short_value(value)));
            }
        }
        fits
    }

    /// Checks all schemas that apply to the same value.
    fn in_place(&mut self, keywords: &'s Members, value: &'v Value, tell: bool) -> bool {
        let mut fits = true;
        for schema in self.all_in_place(keywords, value) {
            fits &= self.check(schema, value, None, tell);
            if self.is_enough(fits, tell) {
                break;
            }
        }
        if let Some(not) = keywords.get("not")
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

    fn all_in_place(&mut self, keywords: &'s Members, value: &'v Value) -> Vec<&'s Value> {
        let references = ["$ref", "$dynamicRef", "$recursiveRef"].into_iter().filter_map(|key| keywords.get(key)?.as_str());
        let mut schemas: Vec<&'s Value> = references.filter_map(|reference| self.references.find(reference)).collect();
        schemas.extend(keywords.get("allOf").and_then(Value::as_array).into_iter().flatten());
        for (name, schema) in keywords.get("dependentSchemas").and_then(Value::as_object).into_iter().flatten() {
            if value.get(name).is_some() {
                schemas.push(schema);
            }
        }
        if let Some(condition) = keywords.get("if") {
            schemas.extend(keywords.get(if self.fits(condition, value) { "then" } else { "else" }));
        }
        schemas
    }

    fn check_property_names(&mut self, keywords: &'s Members, value: &'v Value, tell: bool) -> bool {
        let (Some(schema), Some(members)) = (keywords.get("propertyNames"), value.as_object()) else { return true };
        let Some(assertions) = self.assertions.of_names(self.kind, self.references.root, schema) else { return true };
        let mut fits = true;
        // One name at a time: the library makes an error for each wrong name, however many there are.
        for name in members.keys() {
            let single = Value::Object(Members::from_iter([(name.clone(), Value::Null)]));
            if self.budget.spend(1) && !assertions.validator.is_valid(&single) {
                fits = false;
                if tell {
                    for error in assertions.validator.iter_errors(&single) {
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

    fn check_properties(&mut self, keywords: &'s Members, value: &'v Value, tell: bool) -> bool {
        let Some(members) = value.as_object() else { return true };
        let schemas = |key: &str| keywords.get(key).and_then(Value::as_object);
        let (properties, patterns) = (schemas("properties"), schemas("patternProperties"));
        // Where no other members are allowed, the assertions say so, in one line for all of them.
        let others = keywords.get("additionalProperties").filter(|others| **others != false);
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

    fn items(&mut self, keywords: &'s Members, value: &'v Value, tell: bool) -> bool {
        let Some(items) = value.as_array() else { return true };
        // Drafts before 2020-12 have a list in `items`, and `additionalItems` for what follows it.
        let (first, rest) = match (keywords.get("prefixItems"), keywords.get("items")) {
            (None, Some(Value::Array(first))) => (first.as_slice(), keywords.get("additionalItems")),
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

    fn check_contains(&mut self, keywords: &'s Members, value: &'v Value, tell: bool) -> bool {
        let (Some(schema), Some(items)) = (keywords.get("contains"), value.as_array()) else { return true };
        let bound = |key: &str| keywords.get(key).and_then(Value::as_f64);
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

    /// Checks `anyOf` and `oneOf`.
    fn alternatives(&mut self, keywords: &'s Members, value: &'v Value, tell: bool) -> bool {
        let mut fits = true;
        for key in ["anyOf", "oneOf"] {
            let Some(branches) = keywords.get(key).and_then(Value::as_array) else { continue };
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

    /// Reports what is wrong with the branch that is meant, if that can be seen.
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

    /// The only branch that has the value's tag, or else its type, or else that would accept it but for its members.
    fn intended_branch(&mut self, branches: &'s [Value], value: &'v Value) -> Option<&'s Value> {
        let signs: [fn(&mut Self, &'s Members, &'v Value) -> bool; 3] = [Self::has_tag, Self::has_type, Self::has_shape];
        signs.into_iter().find_map(|has_sign| {
            let mut with_sign = Vec::new();
            for branch in branches {
                if self.resolved(branch).is_some_and(|keywords| has_sign(self, keywords, value)) {
                    with_sign.push(branch);
                }
            }
            with_sign.pop().filter(|_| with_sign.is_empty())
        })
    }

    /// The schema itself, or the one that it refers to.
    fn resolved(&self, mut schema: &'s Value) -> Option<&'s Members> {
        for _ in 0..HOPS_MAX {
            let keywords = schema.as_object()?;
            match keywords.get("$ref").and_then(Value::as_str) {
                Some(reference) => schema = self.references.find(reference)?,
                None => return Some(keywords),
            }
        }
        None
    }

    /// Whether a member has the only value that the schema allows there.
    fn has_tag(&mut self, keywords: &'s Members, value: &'v Value) -> bool {
        let mut tags = 0;
        for (name, schema) in keywords.get("properties").and_then(Value::as_object).into_iter().flatten() {
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

    fn has_type(&mut self, keywords: &'s Members, value: &'v Value) -> bool {
        let is = |name: &Value| match value {
            Value::Null => name == "null",
            Value::Bool(_) => name == "boolean",
            Value::Number(number) => name == "number" || (name == "integer" && number.as_f64().is_some_and(|it| it.fract() == 0.0)),
            Value::String(_) => name == "string",
            Value::Array(_) => name == "array",
            Value::Object(_) => name == "object",
        };
        match keywords.get("type") {
            Some(Value::Array(names)) => names.iter().any(is),
            Some(name) => is(name),
            None => false,
        }
    }

    fn has_shape(&mut self, keywords: &'s Members, value: &'v Value) -> bool {
        self.assertions_of(keywords).is_some_and(|assertions| self.budget.spend(assertions.cost) && assertions.validator.is_valid(value))
    }

    /// Checks the members that no other keyword describes.
    fn check_unevaluated(&mut self, keywords: &'s Members, value: &'v Value, tell: bool) -> bool {
        let (Some(schema), Some(members)) = (keywords.get("unevaluatedProperties"), value.as_object()) else { return true };
        let (mut fits, mut unexpected) = (true, Vec::new());
        for (name, member) in members {
            if self.is_evaluated(keywords, value, name, 0) || self.budget.stop.is_some() {
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

    fn is_evaluated(&mut self, keywords: &'s Members, value: &'v Value, name: &str, hops: usize) -> bool {
        if hops > HOPS_MAX || !self.budget.spend(1) {
            return true;
        }
        let schemas = |key: &str| keywords.get(key).and_then(Value::as_object);
        let is_inner = hops > 0 && keywords.contains_key("unevaluatedProperties");
        if is_inner || keywords.contains_key("additionalProperties") || schemas("properties").is_some_and(|named| named.contains_key(name))
        {
            return true;
        }
        if schemas("patternProperties").into_iter().flatten().any(|(pattern, _)| self.matches(pattern, name)) {
            return true;
        }
        let mut others = self.all_in_place(keywords, value);
        others.extend(["anyOf", "oneOf"].into_iter().filter_map(|key| keywords.get(key)?.as_array()).flatten());
        others.extend(keywords.get("if"));
        others.into_iter().any(|schema| {
            let Some(keywords) = schema.as_object() else { return false };
            self.fits(schema, value) && self.is_evaluated(keywords, value, name, hops + 1)
        })
    }

    fn assertions_of(&self, keywords: &'s Members) -> Option<Arc<Assertions>> {
        self.assertions.of_schema(self.kind, self.references.root, keywords)
    }

    fn matches(&mut self, pattern: &'s str, name: &str) -> bool {
        let assertions = self.assertions.of_pattern(self.kind, self.references.root, pattern);
        assertions.is_some_and(|assertions| self.budget.spend(assertions.cost) && assertions.validator.is_valid(&Value::from(name)))
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
