//! Whether all items of a list differ, in bounded time.
//!
//! The library puts items into a hash table, and all that consists of empty lists (`[]`, `[[]]`, `[[],[]]`, …) has the same hash: a list of
//! such items takes the square of its length, and `uniqueItems` comes before `items`, so that it does not help to say what the items are.
//! Sorting takes n log n comparisons, whatever the items are.

use std::cmp::Ordering;

use serde_json::{Number, Value};

/// Floats from here on are no integers that JSON could also write without an exponent.
const WHOLE_BELOW: f64 = 1e30;

/// Whether no two items are equal, as JSON Schema understands it: `1` and `1.0` are.
pub(super) fn is_unique(items: &[Value]) -> bool {
    let mut sorted: Vec<&Value> = items.iter().collect();
    sorted.sort_unstable_by(|a, b| order(a, b));
    sorted.windows(2).all(|pair| order(pair[0], pair[1]).is_ne())
}

/// An order in which values compare as equal if, and only if, they are equal.
fn order(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => order_numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => a.len().cmp(&b.len()).then_with(|| first_difference(a.iter().zip(b))),
        (Value::Object(a), Value::Object(b)) => {
            // A map is sorted by its keys.
            a.len().cmp(&b.len()).then_with(|| a.keys().cmp(b.keys())).then_with(|| first_difference(a.values().zip(b.values())))
        }
        (a, b) => rank(a).cmp(&rank(b)),
    }
}

fn first_difference<'a>(mut pairs: impl Iterator<Item = (&'a Value, &'a Value)>) -> Ordering {
    pairs.find_map(|(a, b)| Some(order(a, b)).filter(|order| order.is_ne())).unwrap_or(Ordering::Equal)
}

fn order_numbers(a: &Number, b: &Number) -> Ordering {
    let ((near_a, exact_a), (near_b, exact_b)) = (size(a), size(b));
    near_a.total_cmp(&near_b).then(exact_a.cmp(&exact_b))
}

/// A number as a float, and as exactly what it is if it is whole: large integers that differ may have the same float.
fn size(number: &Number) -> (f64, Option<i128>) {
    // To add zero makes -0.0 zero.
    let float = number.as_f64().unwrap_or(f64::NAN) + 0.0;
    let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    (float, whole.or_else(|| (float.fract() == 0.0 && float.abs() < WHOLE_BELOW).then_some(float as i128)))
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_is_what_json_schema_calls_so() {
        for (list, unique) in [
            (json!([]), true),
            (json!([1, 2, "1", true, null, [1], {"a": 1}]), true),
            (json!([1, 1.0]), false),
            (json!([0, -0.0]), false),
            (json!([9_007_199_254_740_993_u64, 9_007_199_254_740_992.0]), true),
            (json!([u64::MAX, u64::MAX - 1, i64::MIN, 1e300, 1.5]), true),
            (json!([{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]), false),
            (json!([{"a": 1}, {"b": 1}, {"a": 2}, {}]), true),
            (json!([[1, 2], [2, 1], [1], [[1]]]), true),
            (json!([false, 0, "", null]), true),
            (json!([[], [[]], [[], []], [[[]]], []]), false),
        ] {
            assert_eq!(is_unique(list.as_array().expect("a list")), unique, "{list}");
            assert_eq!(jsonschema::draft202012::is_valid(&json!({"uniqueItems": true}), &list), unique, "{list}");
        }
    }

    /// Lists of empty lists, each of another shape. They hash alike, and take the library the square of their number.
    #[test]
    fn a_long_list_of_what_hashes_alike_takes_no_longer_than_another() {
        let shape =
            |number: u32| (0..14).fold(json!([]), |inner, bit| if number & (1 << bit) == 0 { json!([inner]) } else { json!([inner, []]) });
        let mut list: Vec<Value> = (0..10_000).map(shape).collect();
        assert!(is_unique(&list));
        list.push(shape(5_000));
        assert!(!is_unique(&list));
    }
}
