//! Spans as a collector takes them: an `ExportTraceServiceRequest` of OTLP, as JSON.

use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::span::{Record, Value};

/// A status of a span that failed, in OpenTelemetry's numbers.
const FAILED: u8 = 2;
/// The bit of a span's flags that says that the next one has a meaning: whether its parent is elsewhere.
const HAS_IS_REMOTE: u32 = 0x100;
/// The bit that says that its parent is elsewhere.
const IS_REMOTE: u32 = 0x200;

/// The message that has these spans.
pub(super) fn request(service_name: &str, spans: &[Record]) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let resource = attributes(&[("service.name", service_name.to_owned().into()), ("service.version", version.into())]);
    let spans: Vec<Json> = spans.iter().map(span).collect();
    let message = json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": {"name": "taskwire", "version": version}, "spans": spans}],
    }]});
    message.to_string().into_bytes()
}

fn span(record: &Record) -> Json {
    let Record { context, parent, kind, name, began, ended, events_dropped, error, .. } = record;
    // Only a request has a parent elsewhere.
    let is_remote = *kind == super::Kind::Server && parent.is_some();
    let flags = u32::from(context.parent.flags()) | HAS_IS_REMOTE | if is_remote { IS_REMOTE } else { 0 };
    let mut span = json!({
        "traceId": context.parent.trace.to_string(),
        "spanId": context.parent.span.to_string(),
        "flags": flags,
        "name": name,
        "kind": *kind as u8,
        "startTimeUnixNano": began.to_string(),
        "endTimeUnixNano": ended.to_string(),
        "attributes": attributes(&record.attributes),
    });
    if let Some(parent) = parent {
        span["parentSpanId"] = parent.to_string().into();
    }
    if let Some(state) = &context.state {
        span["traceState"] = json!(state);
    }
    if !record.events.is_empty() {
        let events = record.events.iter().map(|(at, name)| json!({"timeUnixNano": at.to_string(), "name": name}));
        span["events"] = events.collect();
    }
    if *events_dropped > 0 {
        span["droppedEventsCount"] = (*events_dropped).into();
    }
    if let Some(why) = error {
        span["status"] = json!({"code": FAILED, "message": why});
    }
    span
}

fn attributes(attributes: &[(&'static str, Value)]) -> Vec<Json> {
    let value = |value: &Value| match value {
        Value::Text(text) => json!({"stringValue": text}),
        // 64-bit numbers are texts in OTLP's JSON.
        Value::Number(number) => json!({"intValue": number.to_string()}),
    };
    attributes.iter().map(|(key, known)| json!({"key": key, "value": value(known)})).collect()
}

/// How many of the spans a collector did not take, as its answer says.
pub(super) fn rejected(answer: &[u8]) -> u64 {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(rename = "partialSuccess")]
        partial: Partial,
    }
    #[derive(Deserialize)]
    struct Partial {
        #[serde(rename = "rejectedSpans")]
        rejected: Json,
    }
    let Ok(Answer { partial: Partial { rejected } }) = serde_json::from_slice(answer) else { return 0 };
    rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_says_how_much_it_did_not_take() {
        for (answer, count) in [
            (r#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}"#, 3),
            (r#"{"partialSuccess":{"rejectedSpans":4}}"#, 4),
            (r#"{"partialSuccess":{"errorMessage":"only a warning"}}"#, 0),
            ("{}", 0),
            ("", 0),
            ("ok", 0),
        ] {
            assert_eq!(rejected(answer.as_bytes()), count, "{answer}");
        }
    }
}
