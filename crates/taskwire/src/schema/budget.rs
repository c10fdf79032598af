//! Validation within a budget: the library says yes or no, and its steps are counted.
//!
//! Only references make a validation long: without one, a schema looks at each part of a value once for each position in its own text. So a
//! keyword that counts stands before each reference, and before whatever else can be long. When the budget is spent it says no, there and
//! everywhere, and the verdict is discarded.

use std::{cell::Cell, thread};

use jsonschema::{Keyword, PatternOptions, ValidationError, ValidationOptions, paths::Location};
use serde_json::{Map, Value, json};

use super::unique::is_unique;

/// References that one validation follows at most. A message of 4 MiB, the default, can have a million values that are described elsewhere,
/// and these should pass; more means that the schema goes in circles.
pub(super) const STEPS_MAX: u64 = 1_000_000;
/// Steps that a match costs whose pattern looks around or back; other matches take time in proportion to their text.
const PATTERN_STEPS: u64 = 500;
/// Backtracking steps of such a match, at most.
const BACKTRACKS_MAX: usize = 10_000;
/// Bytes of stack that a validation may use on the calling thread; a value of some twenty levels takes less.
pub(super) const STACK_BYTES: usize = 256 * 1024;
/// The stack of a thread for deeper values, and how much of it may be used.
const LARGE_STACK: usize = 16 * 1024 * 1024;
pub(super) const LARGE_STACK_BYTES: usize = 12 * 1024 * 1024;
/// The keyword that counts.
const STEP: &str = "x-taskwire-step";

/// Why a validation was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// It has taken too many steps.
    Steps,
    /// It has taken too much of the stack.
    Depth,
}

/// What a validation on this thread may still use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    steps: u64,
    /// Where on the stack the validation began, and how many bytes it may use from there.
    base: usize,
    stack_bytes: usize,
    pub(super) stop: Option<Stop>,
}

impl Budget {
    pub(super) fn new(steps: u64, stack_bytes: usize) -> Self {
        Self { steps, base: stack_address(), stack_bytes, stop: None }
    }

    /// Spends steps; returns whether the validation may go on.
    pub(super) fn spend(&mut self, cost: u64) -> bool {
        if self.stop.is_none() {
            if stack_address().abs_diff(self.base) > self.stack_bytes {
                self.stop = Some(Stop::Depth);
            } else if cost > self.steps {
                self.stop = Some(Stop::Steps);
            } else {
                self.steps -= cost;
            }
        }
        self.stop.is_none()
    }
}

thread_local! {
    static BUDGET: Cell<Budget> = const { Cell::new(Budget { steps: u64::MAX, base: 0, stack_bytes: usize::MAX, stop: None }) };
}

/// Restores the budget that was, also after a panic.
struct Restore(Budget);

impl Drop for Restore {
    fn drop(&mut self) {
        BUDGET.set(self.0);
    }
}

/// An address in the current stack frame.
#[inline(never)]
fn stack_address() -> usize {
    let mark = 0_u8;
    std::ptr::from_ref(&mark).addr()
}

/// Runs a validation, and returns how many steps it took.
pub(super) fn within_budget(stack_bytes: usize, validate: impl FnOnce() -> bool) -> Result<(bool, u64), Stop> {
    let _restore = Restore(BUDGET.replace(Budget::new(STEPS_MAX, stack_bytes)));
    let valid = validate();
    let budget = BUDGET.get();
    budget.stop.map_or(Ok((valid, STEPS_MAX - budget.steps)), Err)
}

/// Spends steps of this thread's budget; returns whether the validation may go on.
fn spend(cost: u64) -> bool {
    let mut budget = BUDGET.get();
    let may_go_on = budget.spend(cost);
    BUDGET.set(budget);
    may_go_on
}

/// Runs `work` on a thread with a large stack; `None` if no thread can be started.
pub(super) fn with_much_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("schema".to_owned()).stack_size(LARGE_STACK);
        thread.spawn_scoped(scope, work).ok()?.join().ok()
    })
}

/// The options, with all that bounds a validation.
pub(super) fn bounded(options: ValidationOptions<'static>) -> ValidationOptions<'static> {
    let patterns = PatternOptions::fancy_regex().backtrack_limit(BACKTRACKS_MAX);
    options.with_pattern_options(patterns).with_keyword(STEP, step).with_keyword("uniqueItems", unique_items)
}

/// The keyword that counts, and says no when the budget is spent.
struct StepKeyword {
    cost: u64,
}

impl StepKeyword {
    /// A pattern is tried on a text, or on the name of each member.
    fn cost_of(&self, value: &Value) -> u64 {
        match value {
            Value::String(_) => self.cost,
            Value::Object(members) if self.cost > 1 => self.cost.saturating_mul(members.len() as u64),
            _ => 1,
        }
    }
}

impl<'i> Keyword<'i> for StepKeyword {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        if self.is_valid(instance) { Ok(()) } else { Err(ValidationError::custom("too complex to check")) }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        spend(self.cost_of(instance))
    }
}

fn step<'a>(_: &'a Map<String, Value>, cost: &'a Value, _: Location) -> Result<Box<dyn for<'i> Keyword<'i>>, ValidationError<'a>> {
    Ok(Box::new(StepKeyword { cost: cost.as_u64().unwrap_or(1) }))
}

/// `uniqueItems`, in place of the library's (see `unique`).
struct UniqueItems {
    wanted: bool,
}

impl<'i> Keyword<'i> for UniqueItems {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        if self.is_valid(instance) { Ok(()) } else { Err(ValidationError::custom("non-unique elements")) }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        !self.wanted || instance.as_array().is_none_or(|items| is_unique(items))
    }
}

fn unique_items<'a>(
    _: &'a Map<String, Value>,
    wanted: &'a Value,
    _: Location,
) -> Result<Box<dyn for<'i> Keyword<'i>>, ValidationError<'a>> {
    Ok(Box::new(UniqueItems { wanted: *wanted == true }))
}

/// What stands under these keywords is no schema.
pub(super) fn is_data(keyword: &str) -> bool {
    matches!(keyword, "const" | "enum" | "default" | "examples")
}

/// What stands under these keywords are schemas, each under a name that may be anything.
fn has_names(keyword: &str) -> bool {
    matches!(keyword, "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" | "dependencies")
}

/// Steps that a match of this pattern costs.
pub(super) fn cost_of_pattern(pattern: &str) -> u64 {
    // The backtracking engine hands a pattern without look-around to the other one, which is linear.
    if regex::Regex::new(pattern).is_ok() { 1 } else { PATTERN_STEPS }
}

/// The schema with a counter wherever a validation can be long. It accepts exactly the same values.
pub(super) fn with_step_counts(schema: &Value) -> Value {
    schema.as_object().map_or_else(|| schema.clone(), |members| Value::Object(with_step_counts_in_members(members)))
}

/// The same for whatever stands within a schema.
fn with_step_counts_within(value: &Value) -> Value {
    match value {
        // Another draft may read the counters in another way.
        Value::Object(members) if !members.contains_key("$schema") => Value::Object(with_step_counts_in_members(members)),
        Value::Array(items) => items.iter().map(with_step_counts_within).collect(),
        other => other.clone(),
    }
}

fn with_step_counts_in_members(members: &Map<String, Value>) -> Map<String, Value> {
    // An empty `allOf` is an error, and must stay one.
    let may_wrap = members.get("allOf").is_none_or(|all| all.as_array().is_some_and(|all| !all.is_empty()));
    let (mut result, mut behind, mut cost) = (Map::new(), Map::new(), 0);
    for (key, value) in members {
        let own_cost = if may_wrap { cost_of_keyword(key, value) } else { 0 };
        cost = own_cost.max(cost);
        if own_cost > 0 && value.is_string() {
            behind.insert(key.clone(), value.clone());
            continue;
        }
        let value = match value {
            value if is_data(key) => value.clone(),
            Value::Object(named) if has_names(key) => {
                named.iter().map(|(name, schema)| (name.clone(), with_step_counts_within(schema))).collect()
            }
            value => with_step_counts_within(value),
        };
        result.insert(key.clone(), value);
    }
    if cost > 0
        && let Value::Array(all) = result.entry("allOf").or_insert_with(|| json!([]))
    {
        // The counter comes first: the library stops at an entry that says no. References to earlier entries stay right.
        all.push(json!({STEP: cost}));
        if !behind.is_empty() {
            all.push(Value::Object(behind));
        }
    }
    result
}

/// Steps to count before this keyword is evaluated; 0 if none.
fn cost_of_keyword(key: &str, value: &Value) -> u64 {
    match (key, value) {
        ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(_)) => 1,
        // These evaluate the schemas beside them again.
        ("unevaluatedProperties" | "unevaluatedItems", _) => 1,
        ("pattern", Value::String(pattern)) => cost_of_pattern(pattern).saturating_sub(1),
        ("patternProperties", Value::Object(named)) => {
            named.keys().map(|pattern| cost_of_pattern(pattern)).max().unwrap_or(0).saturating_sub(1)
        }
        _ => 0,
    }
}
