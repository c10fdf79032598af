//! What a client keeps of a streamed result, piece by piece.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn text(seq_nr: u64) -> Value {
    json!({"type": "text", "text": format!("part {seq_nr}")})
}

fn segment(seq_nr: u64) -> Value {
    let mut block = text(seq_nr);
    block["seqNr"] = seq_nr.into();
    block
}

/// A streaming result with these segments.
fn result(numbers: impl IntoIterator<Item = u64>, is_complete: bool) -> Value {
    let list: Vec<Value> = numbers.into_iter().map(segment).collect();
    json!({"partial-content": list, "isError": false, "isComplete": is_complete, "_meta": {RELATED: {"taskId": "t"}}})
}

fn numbers(seen: &[Segment]) -> Vec<u64> {
    seen.iter().map(|segment| segment.seq_nr).collect()
}

/// First and last of each range that is missing.
fn gaps(segments: &Segments) -> Vec<(u64, u64)> {
    segments.gaps().into_iter().map(RangeInclusive::into_inner).collect()
}

/// What has come, and what follows from it.
#[track_caller]
fn assert_state(segments: &Segments, received: &[u64], missing: &[(u64, u64)], resume_from: Option<u64>) {
    assert_eq!(segments.received().collect::<Vec<_>>(), received);
    assert_eq!(gaps(segments), missing);
    assert_eq!(segments.resume_from(), resume_from);
    assert_eq!(segments.is_empty(), received.is_empty());
}

#[test]
fn keeps_what_comes_in_order_until_it_is_complete() {
    let mut segments = Segments::new();
    assert_state(&segments, &[], &[], None);
    let seen = segments.take(&result([1, 2], false)).expect("taken");
    assert_eq!(seen, [Segment { seq_nr: 1, block: text(1) }, Segment { seq_nr: 2, block: text(2) }]);
    assert_eq!((segments.is_complete(), segments.merged()), (false, None));
    assert_eq!(numbers(&segments.take(&result([], false)).expect("taken")), [0; 0]);
    assert_eq!(numbers(&segments.take(&result([3], true)).expect("taken")), [3]);
    assert_state(&segments, &[1, 2, 3], &[], Some(3));
    assert_eq!((segments.is_complete(), segments.is_error()), (true, false));
    assert_eq!(segments.merged(), Some(vec![text(1), text(2), text(3)]), "the numbers are gone");
}

#[test]
fn learns_the_task_from_either_place_and_takes_no_other() {
    let forms = [
        json!({"task": {"taskId": "t", "status": "working"}}),
        json!({"task": {"taskId": "t", "status": "working"}, "_meta": {RELATED: {"taskId": "t"}}}),
        json!({"partial-content": [], "isComplete": false, "_meta": {RELATED: {"taskId": "t"}}}),
    ];
    let strangers = [
        json!({"task": {"taskId": "u"}}),
        json!({"partial-content": [segment(1)], "isComplete": true, "_meta": {RELATED: {"taskId": "u"}}}),
        json!({"task": {"taskId": "t"}, "_meta": {RELATED: {"taskId": "u"}}}),
    ];
    for form in forms {
        let mut segments = Segments::new();
        assert_eq!(segments.task_id(), None);
        assert_eq!(segments.take(&form), Ok(Vec::new()), "{form}");
        assert_eq!(segments.task_id(), Some("t"), "{form}");
        for stranger in &strangers {
            let refused = segments.take(stranger).expect_err("another task's");
            assert_eq!(refused, SegmentError::OtherTask { expected: "t".to_owned(), found: "u".to_owned() });
            assert_eq!(refused.to_string(), "the result belongs to task `u`, not to `t`");
            assert!(segments.is_empty() && !segments.is_complete(), "{stranger}");
        }
    }
    let torn = Segments::new().take(&strangers[2]).expect_err("it names two tasks");
    assert!(matches!(torn, SegmentError::OtherTask { .. }), "{torn}");
}

#[test]
fn a_number_that_came_before_is_passed_over_whatever_comes_with_it() {
    let mut segments = Segments::new();
    segments.take(&result([1, 2], false)).expect("taken");
    assert_eq!(segments.take(&result([1, 2], false)), Ok(Vec::new()));
    let mut other = result([2, 3, 3], true);
    other["partial-content"][0]["text"] = "another".into();
    other["partial-content"][2]["text"] = "a third".into();
    assert_eq!(numbers(&segments.take(&other).expect("taken")), [3]);
    assert_eq!(segments.merged(), Some(vec![text(1), text(2), text(3)]));
}

#[test]
fn gaps_are_found_and_filled() {
    let mut segments = Segments::new();
    for (n, missing, resume_from) in [
        (5, vec![(1, 4)], None),
        (1, vec![(2, 4)], Some(1)),
        (3, vec![(2, 2), (4, 4)], Some(1)),
        (9, vec![(2, 2), (4, 4), (6, 8)], Some(1)),
        (2, vec![(4, 4), (6, 8)], Some(3)),
    ] {
        assert_eq!(numbers(&segments.take(&result([n], n == 9)).expect("taken")), [n]);
        assert_eq!((gaps(&segments), segments.resume_from()), (missing, resume_from), "after {n}");
        assert_eq!(segments.merged(), None);
    }
    assert!(segments.is_complete() && segments.received().any(|nr| nr == 9) && !segments.received().any(|nr| nr == 4));
    let answer = result(4..=9, true);
    assert_eq!(numbers(&segments.take(&answer).expect("taken")), [4, 6, 7, 8]);
    assert_state(&segments, &[1, 2, 3, 4, 5, 6, 7, 8, 9], &[], Some(9));
    assert_eq!(segments.merged(), Some((1..=9).map(text).collect()));
}

#[test]
fn a_number_far_away_costs_nothing() {
    let mut segments = Segments::new();
    segments.take(&result([u64::MAX, 2], false)).expect("taken");
    assert_state(&segments, &[2, u64::MAX], &[(1, 1), (3, u64::MAX - 1)], None);
}

#[test]
fn what_is_malformed_is_refused_and_changes_nothing() {
    let mut segments = Segments::new();
    segments.take(&result([1], false)).expect("taken");
    let with = |key: &str, value: Value| {
        let mut result = result([2, 3], true);
        result[key] = value;
        result
    };
    let numbered = |number: Value| {
        let mut result = result([2, 3], true);
        result["partial-content"][1]["seqNr"] = number;
        result
    };
    let bad = [
        (numbered(json!(0)), "not 0"),
        (numbered(json!(-1)), "not -1"),
        (numbered(json!(1.5)), "not 1.5"),
        (numbered(json!("3")), "not \"3\""),
        (numbered(Value::Null), "not null"),
        (numbered(json!("x".repeat(1_000))), "x…"),
        (with("partial-content", json!([segment(2), text(3)])), "segment 1 of `partial-content` needs a `seqNr`"),
        (with("partial-content", json!([segment(2), text(3)])), "not nothing"),
        (with("partial-content", json!([segment(2), "three"])), "must be an object"),
        (with("partial-content", json!({"0": segment(2)})), "must be a list"),
        (with("partial-content", Value::Null), "must be a list"),
        (with("isComplete", json!("yes")), "`isComplete`"),
        (with("isError", Value::Null), "`isError`"),
        (with("_meta", json!({RELATED: {}})), "`taskId`"),
        (with("task", json!({"taskId": 5})), "`taskId`"),
        (json!({"content": "all of it"}), "`content` must be a list"),
        (json!({"isComplete": true}), "neither"),
        (json!([]), "not an object"),
    ];
    for (result, part) in bad {
        let refused = segments.take(&result).expect_err("malformed").to_string();
        assert!(refused.contains(part) && refused.len() < 200, "{refused} for {result}");
        assert_state(&segments, &[1], &[], Some(1));
        assert!(!segments.is_complete() && !segments.is_error(), "{result}");
    }
}

#[test]
fn errors_are_told_with_and_without_segments() {
    let mut segments = Segments::new();
    segments.take(&result([1], false)).expect("taken");
    let mut failed = result([], true);
    failed["isError"] = true.into();
    failed["task"] = json!({"taskId": "t", "status": "failed", "statusMessage": "broken"});
    segments.take(&failed).expect("taken");
    assert_eq!((segments.is_complete(), segments.is_error(), segments.merged()), (true, true, Some(vec![text(1)])));

    let mut segments = Segments::new();
    let content = json!([{"type": "text", "text": "broken"}]);
    let failed = json!({"content": content, "isError": true, "isComplete": true, "_meta": {RELATED: {"taskId": "t"}}});
    assert_eq!(segments.take(&failed), Ok(Vec::new()));
    assert_eq!((segments.is_complete(), segments.is_error(), segments.task_id()), (true, true, Some("t")));
    assert_eq!(segments.merged().map(Value::Array), Some(content));
}

#[test]
fn a_result_in_standard_form_is_the_whole_and_structured_content_comes_with_either() {
    let mut segments = Segments::new();
    segments.take(&result([1, 3], false)).expect("taken");
    let content: Vec<Value> = (1..=4).map(text).collect();
    let whole = json!({"content": content, "structuredContent": {"n": 4}, "_meta": {RELATED: {"taskId": "t"}}});
    assert_eq!(segments.take(&whole), Ok(Vec::new()));
    assert!(segments.is_complete() && !segments.is_error() && segments.gaps().is_empty());
    assert_eq!((segments.merged(), segments.structured()), (Some(content), Some(json!({"n": 4}))));

    let mut segments = Segments::new();
    let mut last = result([1], true);
    last["structuredContent"] = json!({"a": [1, null]});
    segments.take(&last).expect("taken");
    segments.take(&result([], true)).expect("taken");
    assert_eq!(segments.structured(), Some(json!({"a": [1, null]})));
}

#[test]
fn what_is_too_much_is_refused_and_changes_nothing() {
    let mut segments = Segments::with_limits(SegmentLimits { count: 3, ..SegmentLimits::DEFAULT });
    segments.take(&result([1, 2], false)).expect("taken");
    let refused = segments.take(&result([3, 4], true)).expect_err("one too many");
    assert_eq!(refused, SegmentError::Full { what: "segments", max: 3 });
    assert_eq!(refused.to_string(), "the result has more than 3 segments: raise the limit to keep it");
    assert_state(&segments, &[1, 2], &[], Some(2));
    assert!(!segments.is_complete());
    segments.take(&result([1, 2, 3], false)).expect("what is there already takes no room");
    segments.take(&result([1], true)).expect("nor does it when there is none left");
    assert_eq!(segments.merged().map(|content| content.len()), Some(3));

    let bytes = text(1).to_string().len();
    let mut segments = Segments::with_limits(SegmentLimits { bytes: 2 * bytes, ..SegmentLimits::DEFAULT });
    segments.take(&result([1, 2], false)).expect("they just fit");
    let full = Err(SegmentError::Full { what: "bytes", max: 2 * bytes });
    assert_eq!(segments.take(&result([3], true)), full);
    assert_eq!(segments.take(&json!({"content": [text(1)]})), full);
    let mut structured = result([], true);
    structured["structuredContent"] = json!({"a": 1});
    assert_eq!(segments.take(&structured), full);
    assert!(!segments.is_complete() && segments.structured().is_none());
    segments.take(&result([2, 1], true)).expect("taken");
    assert_eq!(segments.merged(), Some(vec![text(1), text(2)]));

    let whole = json!({"content": [text(1)]});
    let mut segments = Segments::with_limits(SegmentLimits { bytes: whole["content"].to_string().len(), ..SegmentLimits::DEFAULT });
    for _ in 0..3 {
        segments.take(&whole).expect("it takes the place of what was there");
    }
}

/// Every segment at least once, in any order, and any ranges of them besides.
fn deliveries() -> impl Strategy<Value = (u64, Vec<(u64, u64)>)> {
    (1u64..30).prop_flat_map(|count| {
        let each = (1..=count).map(|n| (n, n)).collect::<Vec<_>>();
        let ranges = proptest::collection::vec((1..=count, 0u64..6).prop_map(move |(n, more)| (n, (n + more).min(count))), 0..30);
        ranges.prop_flat_map(move |ranges| Just([each.clone(), ranges].concat()).prop_shuffle()).prop_map(move |all| (count, all))
    })
}

proptest! {
    #[test]
    fn any_order_and_any_repetition_give_the_same_result((count, deliveries) in deliveries()) {
        let mut segments = Segments::new();
        let mut model = std::collections::BTreeSet::new();
        for (first, last) in deliveries {
            let seen = segments.take(&result(first..=last, last == count)).expect("taken");
            let new: Vec<u64> = (first..=last).filter(|n| model.insert(*n)).collect();
            prop_assert_eq!(numbers(&seen), new);
            let missing: Vec<u64> = (1..=*model.last().expect("not empty")).filter(|n| !model.contains(n)).collect();
            prop_assert_eq!(segments.gaps().into_iter().flatten().collect::<Vec<_>>(), missing);
            let dense = (1..).take_while(|n| model.contains(n)).last();
            prop_assert_eq!(segments.resume_from(), dense);
            prop_assert_eq!(segments.is_complete(), model.contains(&count));
            prop_assert_eq!(segments.merged().is_some(), model.len() as u64 == count);
        }
        prop_assert_eq!(segments.merged(), Some((1..=count).map(text).collect::<Vec<_>>()));
    }
}
