//! JSON Schema 2020-12: checking arguments, results and answers, with errors that a model can act on.
//!
//! Schemas and values come from others, so each check is bounded: `budget` decides yes or no, `explain` finds what does not fit.

mod assertions;
mod budget;
mod explain;
mod references;
mod short;
#[cfg(test)]
mod tests;
mod unique;

use std::borrow::Cow;

use jsonschema::{Draft, ValidationOptions, Validator, error::ValidationErrorKind};
use serde_json::Value;

use self::{
    assertions::AssertionCache,
    budget::{LARGE_STACK_BYTES, STACK_BYTES, Stop, bounded, with_much_stack, with_step_counts, within_budget},
    explain::{Explainer, Explanation},
};

pub(crate) use self::references::{meant, percent_decoded, referred};

/// How a schema is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SchemaKind {
    /// Of a tool that is served: always read as 2020-12, and formats are not checked.
    Tool,
    /// Of a form: read as 2020-12, and formats are checked.
    Form,
    /// Of another server's tool: read as the draft that it names.
    Foreign,
}

impl SchemaKind {
    fn options(self) -> ValidationOptions<'static> {
        bounded(match self {
            Self::Tool => jsonschema::draft202012::options(),
            Self::Form => jsonschema::draft202012::options().should_validate_formats(true).offline(),
            Self::Foreign => jsonschema::options().offline(),
        })
    }

    /// Whether the draft is older than 2019-09; such drafts ignore the keywords beside a reference.
    fn is_old_draft(self, schema: &Value) -> bool {
        self == Self::Foreign && Draft::default().detect(schema) < Draft::Draft201909
    }
}

/// A compiled schema. Checking a value takes bounded time and little memory, whatever both are.
#[derive(Debug)]
pub(crate) struct Schema {
    kind: SchemaKind,
    /// As it was written. It must not move: `assertions` knows parts of it by their addresses.
    source: Box<Value>,
    validator: Validator,
    assertions: AssertionCache,
}

/// A part of a value that does not fit.
#[derive(Debug)]
pub(crate) struct Misfit<'v> {
    pub(crate) path: Vec<String>,
    pub(crate) value: &'v Value,
    /// The reason, for programs.
    pub(crate) kind: ValidationErrorKind,
    /// The reason in a few words.
    pub(crate) message: String,
}

impl<'v> Misfit<'v> {
    fn custom(path: Vec<String>, value: &'v Value, message: &str) -> Self {
        let kind = ValidationErrorKind::Custom { keyword: String::new(), message: message.to_owned() };
        Self { path, value, kind, message: message.to_owned() }
    }

    fn line(&self) -> String {
        if self.path.is_empty() { self.message.clone() } else { format!("`{}`: {}", short::short_path(&self.path), self.message) }
    }
}

/// Problems that one reply lists; a caller that sends hundreds of wrong values learns enough from these.
const PROBLEMS_MAX: usize = 10;

impl Schema {
    /// Compiles a tool's schema.
    pub(crate) fn compile(schema: &Value) -> Result<Self, String> {
        Self::read(SchemaKind::Tool, schema)
    }

    pub(crate) fn read(kind: SchemaKind, schema: &Value) -> Result<Self, String> {
        // An old draft ignores a counter beside a reference. There the library caches the verdicts behind a recursive reference, so that
        // yes or no takes little time.
        let text = if kind.is_old_draft(schema) { Cow::Borrowed(schema) } else { Cow::Owned(with_step_counts(schema)) };
        let validator = kind.options().build(&text).map_err(|error| error.to_string())?;
        Ok(Self { kind, source: Box::new(schema.clone()), validator, assertions: AssertionCache::default() })
    }

    /// What is wrong with `value`, one line each; empty if nothing is.
    pub(crate) fn problems(&self, value: &Value) -> Vec<String> {
        self.misfits(value, PROBLEMS_MAX).iter().map(Misfit::line).collect()
    }

    /// Whether nothing is wrong with `value`.
    pub(crate) fn fits(&self, value: &Value) -> bool {
        self.misfits(value, 1).is_empty()
    }

    /// Up to `max` problems of `value`; empty if it fits.
    pub(crate) fn misfits<'v>(&self, value: &'v Value, max: usize) -> Vec<Misfit<'v>> {
        let found = self.misfits_within(value, max, STACK_BYTES).or_else(|stop| match stop {
            Stop::Depth => with_much_stack(|| self.misfits_within(value, max, LARGE_STACK_BYTES)).unwrap_or(Err(stop)),
            Stop::Steps => Err(stop),
        });
        found.unwrap_or_else(|stop| {
            let words = match stop {
                Stop::Steps => "this is too complex to be checked against its schema; send something smaller",
                Stop::Depth => "this is nested too deeply to be checked against its schema",
            };
            vec![Misfit::custom(largest(value), value, words)]
        })
    }

    /// The same within a bounded stack.
    fn misfits_within<'v>(&self, value: &'v Value, max: usize, stack_bytes: usize) -> Result<Vec<Misfit<'v>>, Stop> {
        if self.decide(value, stack_bytes)?.0 {
            return Ok(Vec::new());
        }
        let Explanation { found, stop, stopped_at } =
            Explainer::new(self.kind, &self.source, &self.assertions, stack_bytes).explain(value, max);
        match stop {
            _ if !found.is_empty() => Ok(found),
            Some(Stop::Depth) if stack_bytes < LARGE_STACK_BYTES => Err(Stop::Depth),
            Some(_) => Ok(vec![Misfit::custom(stopped_at, value, "this does not fit its schema, and is too large to say what of it")]),
            None => Ok(vec![Misfit::custom(stopped_at, value, "this does not fit its schema")]),
        }
    }

    /// Yes or no, and the steps that it took.
    fn decide(&self, value: &Value, stack_bytes: usize) -> Result<(bool, u64), Stop> {
        within_budget(stack_bytes, || self.validator.is_valid(value))
    }
}

/// The name of the largest member, if there are any.
fn largest(value: &Value) -> Vec<String> {
    let members = value.as_object().into_iter().flatten();
    members.max_by_key(|(_, member)| size(member)).map(|(name, _)| name.clone()).into_iter().collect()
}

/// How many values there are in a value.
fn size(value: &Value) -> usize {
    let (mut count, mut open) = (0, vec![value]);
    while let Some(value) = open.pop() {
        count += 1;
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(members) => open.extend(members.values()),
            _ => {}
        }
    }
    count
}
