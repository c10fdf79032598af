//! What both eras share of a tool call: finding the tool, reading the arguments, making the `Spec`, cancelling.

mod dedupe;
pub(super) mod hold;
pub(super) mod plan;
pub(super) mod wait;
pub(super) mod waiter;

use std::{borrow::Cow, sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use taskwire_core::{
    CallerId, Payload,
    task::{AcceptedQuestions, Spec},
    trace::TraceContext,
    wire::RequestId,
};

use self::waiter::is_timeout;
use super::{ByteStreamId, Fault, catalog, params::present};
use crate::{
    protocol::Context,
    tool::{CallResult, ReadyTool},
};

const KEY_BYTES_MAX: usize = 256;

pub(super) fn find_tool(context: &Context, name: &str) -> Result<Arc<ReadyTool>, Fault> {
    // A tool of the provider hides a follow-up tool of the same name.
    let known = context.provider.tool(name).or_else(|| context.followups.iter().find(|tool| &*tool.0.name == name).cloned());
    known.ok_or_else(|| Fault::params(format!("there is no tool `{name}`")))
}

/// The arguments of a call, parsed and to be stored. A `null` that stands for a missing argument is dropped from both.
pub(super) fn arguments(tool: &ReadyTool, raw: Option<&RawValue>) -> Result<(Value, Payload), Fault> {
    let mut arguments = catalog::arguments(raw)?;
    let changed = tool.0.drop_nulls(&mut arguments);
    let kept = raw.filter(|_| !changed).map_or_else(|| arguments.clone().into(), Payload::from);
    Ok((arguments, kept))
}

/// The result that tells a model which arguments do not fit the schema; none if all fit.
pub(super) fn invalid_arguments(tool: &ReadyTool, arguments: &Value) -> Option<CallResult> {
    let problems = tool.0.problems(arguments);
    let list = problems.join("\n- ");
    let name = &tool.0.name;
    (!problems.is_empty())
        .then(|| CallResult::error(format!("The arguments of `{name}` are not valid. Correct them and call again.\n- {list}")))
}

pub(super) struct CallOptions<'a> {
    pub(super) caller: &'a CallerId,
    pub(super) accepts: AcceptedQuestions,
    pub(super) idempotency_key: Option<&'a str>,
    /// Where in a trace the call belongs, if anywhere.
    pub(super) trace: Option<&'a TraceContext>,
}

/// What the tool and the configuration fix about the task that a call may become.
pub(super) fn spec(context: &Context, tool: &ReadyTool, wanted: &CallOptions<'_>) -> Result<Spec, Fault> {
    let (config, policy) = (&context.config, &tool.0.policy);
    if wanted.idempotency_key.is_some_and(|key| key.is_empty() || key.len() > KEY_BYTES_MAX) {
        return Err(Fault::params(format!("`dev.taskwire/idempotencyKey` needs 1 to {KEY_BYTES_MAX} bytes")));
    }
    Ok(Spec {
        on_interrupt: policy.on_interrupt,
        attempts_max: config.attempts_max,
        retention_ms: policy.retention.or(config.retention).map(ms),
        timeout_ms: policy.timeout.map(ms),
        answer_timeout_ms: config.answer_timeout.map(ms),
        overflow: policy.overflow,
        idempotency_key: wanted.idempotency_key.map(Into::into),
        accepts: wanted.accepts,
        trace: wanted.trace.cloned(),
        ..Spec::new(wanted.caller.clone(), &tool.0.name)
    })
}

pub(super) const CANCELLED_BY_CALLER: &str = "the call was cancelled by its caller";

/// Handles `notifications/cancelled`. A lost connection does not stop a call that has a key or shares a task with other calls, so only
/// this does: the key comes in `_meta`.
pub(crate) fn on_cancelled(context: &Context, caller: &CallerId, stream: Option<&ByteStreamId>, params: &str) {
    #[derive(Deserialize)]
    struct Keyed<'a> {
        #[serde(borrow, rename = "_meta")]
        meta: Meta<'a>,
    }
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(borrow, rename = "dev.taskwire/idempotencyKey")]
        key: Cow<'a, str>,
    }
    if let Ok(Keyed { meta: Meta { key } }) = serde_json::from_str(params) {
        context.engine.cancel_by_key(caller, &key, CANCELLED_BY_CALLER);
    }
    if let (Some(stream), Some(Cancellation { request_id, timed_out })) = (stream, Cancellation::read(params)) {
        context.calls.cancel(caller, stream, &request_id, timed_out);
    }
}

/// Which request is cancelled, and whether its sender only did not want to wait any longer.
pub(super) struct Cancellation {
    pub(super) request_id: RequestId,
    pub(super) timed_out: bool,
}

impl Cancellation {
    pub(super) fn read(params: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Params<'a> {
            #[serde(rename = "requestId")]
            request_id: RequestId,
            #[serde(borrow, default, deserialize_with = "present")]
            reason: Option<&'a RawValue>,
        }
        let Params { request_id, reason } = serde_json::from_str(params).ok()?;
        let reason = reason.and_then(|reason| serde_json::from_str::<String>(reason.get()).ok());
        Some(Self { request_id, timed_out: reason.is_some_and(|reason| is_timeout(&reason)) })
    }
}

/// Milliseconds, the unit of the wire and the store.
pub(super) fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancellation_is_read_whatever_its_reason_looks_like() {
        let read = |text: &str| Cancellation::read(text).map(|Cancellation { request_id, timed_out }| (request_id, timed_out));
        let seven = || RequestId::Number(7);
        assert_eq!(read(r#"{"requestId":7}"#), Some((seven(), false)));
        assert_eq!(read(r#"{"requestId":7,"reason":"Request timed out"}"#), Some((seven(), true)));
        assert_eq!(read(r#"{"requestId":7,"reason":"no \"longer\" needed"}"#), Some((seven(), false)));
        for odd in ["null", "3", "{}", "[\"timeout\"]"] {
            assert_eq!(read(&format!(r#"{{"requestId":7,"reason":{odd}}}"#)), Some((seven(), false)), "{odd}");
        }
        for bad in ["{}", "[]", "null", r#"{"requestId":{}}"#, "no JSON"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
