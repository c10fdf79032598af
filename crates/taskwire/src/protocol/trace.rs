//! The trace of a request: what its sender says of it (`_meta` first, then headers), and the span that measures it.

use std::{borrow::Cow, sync::LazyLock};

use hyper::HeaderMap;
use memchr::memmem::Finder;
use serde::Deserialize;
use serde_json::value::RawValue;
use taskwire_core::{trace::TraceContext, wire::RequestId};

use super::{
    Fault, METHODS,
    params::{Members, present},
};
use crate::{
    engine::Engine,
    traces::{Span, short},
};

/// The header, and the member of `_meta`, that places a request in a trace.
pub(crate) const TRACEPARENT: &str = "traceparent";
/// The one that goes with it.
pub(crate) const TRACESTATE: &str = "tracestate";
/// What stands in a request whose `_meta` has a place in a trace.
static MEMBER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"traceparent\""));
/// The name of a span for a method that no era has.
const UNKNOWN: &str = "unknown method";

/// The headers of a request, if it came with any of its own.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TraceHeaders<'a>(Option<&'a HeaderMap>);

impl<'a> TraceHeaders<'a> {
    pub(crate) fn of(headers: &'a HeaderMap) -> Self {
        Self(Some(headers))
    }

    fn read(self) -> Option<TraceContext> {
        let headers = self.0?;
        let mut parents = headers.get_all(TRACEPARENT).iter();
        // Of two, neither is to be believed.
        let (Some(parent), None) = (parents.next(), parents.next()) else { return None };
        let mut states = headers.get_all(TRACESTATE).iter().filter_map(|value| value.to_str().ok());
        let state = match (states.next(), states.next()) {
            (None, _) => None,
            (Some(only), None) => Some(Cow::Borrowed(only)),
            (Some(first), Some(second)) => Some([first, second].into_iter().chain(states).collect::<Vec<_>>().join(",").into()),
        };
        TraceContext::read(parent.to_str().ok()?, state.as_deref())
    }
}

/// What `_meta` says. The text of other members does not matter.
fn in_meta(params: &str) -> Option<TraceContext> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow, rename = "_meta")]
        meta: Members<Meta<'a>>,
    }
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(borrow, deserialize_with = "present")]
        traceparent: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "present")]
        tracestate: Option<&'a RawValue>,
    }
    // Most requests have none, and this is the cheapest way to see that.
    MEMBER.find(params.as_bytes())?;
    let Params { meta: Members(Meta { traceparent, tracestate }) } = serde_json::from_str(params).ok()?;
    // Nothing in a `traceparent` has to be escaped.
    let parent = traceparent?.get().strip_prefix('"')?.strip_suffix('"')?;
    let state: Option<String> = tracestate.and_then(|raw| serde_json::from_str(raw.get()).ok());
    TraceContext::read(parent, state.as_deref())
}

/// A request's place in a trace, and its span if it is traced. The span ends when this is dropped.
#[derive(Default)]
pub(crate) struct RequestSpan {
    incoming: Option<TraceContext>,
    span: Option<Span>,
}

impl RequestSpan {
    pub(crate) fn begin(engine: &Engine, method: &str, id: &RequestId, params: &str, headers: TraceHeaders<'_>) -> Self {
        let incoming = in_meta(params).or_else(|| headers.read());
        let span = engine.tracer().and_then(|tracer| {
            let known = METHODS.iter().copied().find(|known| *known == method).unwrap_or(UNKNOWN);
            tracer.request(incoming.as_ref(), known)
        });
        if let Some(span) = &span {
            span.set("mcp.method.name", short(method));
            span.set("jsonrpc.request.id", short(&id.to_string()));
        }
        Self { incoming, span }
    }

    /// What is passed on to whatever this request causes.
    pub(crate) fn context(&self) -> Option<&TraceContext> {
        self.span.as_ref().map(Span::context).or(self.incoming.as_ref())
    }

    /// The request is a call of this tool, which exists.
    pub(crate) fn calls(&self, tool: &str) {
        if let Some(span) = &self.span {
            span.set_name(format!("tools/call {tool}"));
            span.set("gen_ai.operation.name", "execute_tool");
            span.set("gen_ai.tool.name", tool.to_owned());
        }
    }

    /// The request is answered with an error.
    pub(crate) fn failed(&self, fault: &Fault) {
        if let Some(span) = &self.span {
            span.set("error.type", fault.error.code.to_string());
            span.set("rpc.response.status_code", fault.error.code.to_string());
            // Its message may repeat what a caller sent.
            span.fail(&format!("error {}", fault.error.code));
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(context: Option<TraceContext>) -> Option<(String, Option<String>)> {
        context.map(|context| (context.parent.to_string(), context.state.map(|state| state.to_string())))
    }

    #[test]
    fn a_place_in_a_trace_is_read_from_meta_alone() {
        let meta = |meta: &str| read(in_meta(&format!(r#"{{"name":"x","arguments":{{"traceparent":1}},"_meta":{meta}}}"#)));
        assert_eq!(meta(&format!(r#"{{"traceparent":"{PARENT}"}}"#)), Some((PARENT.to_owned(), None)));
        let state = Some("a=\"1".to_owned());
        assert_eq!(meta(&format!(r#"{{"traceparent":"{PARENT}","tracestate":"a=\"1","baggage":7}}"#)), Some((PARENT.to_owned(), state)));
        assert_eq!(meta(&format!(r#"{{"traceparent":"{PARENT}","tracestate":7}}"#)), Some((PARENT.to_owned(), None)));
        for odd in ["7", "null", "{}", "[]", r#"{"traceparent":7}"#, r#"{"traceparent":null}"#, r#"{"traceparent":"00-1"}"#] {
            assert_eq!(meta(odd), None, "{odd}");
        }
        assert_eq!(read(in_meta("{}")), None);
    }

    #[test]
    fn a_place_in_a_trace_is_read_from_headers() {
        let headers = |all: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in all {
                headers.append(*name, HeaderValue::from_str(value).expect("a value"));
            }
            read(TraceHeaders::of(&headers).read())
        };
        assert_eq!(headers(&[(TRACEPARENT, PARENT)]), Some((PARENT.to_owned(), None)));
        let several = headers(&[(TRACEPARENT, PARENT), (TRACESTATE, "a=1"), (TRACESTATE, "b=2"), (TRACESTATE, "c=3")]);
        assert_eq!(several, Some((PARENT.to_owned(), Some("a=1,b=2,c=3".to_owned()))));
        assert_eq!(headers(&[(TRACEPARENT, PARENT), (TRACEPARENT, PARENT)]), None, "of two, neither is to be believed");
        assert_eq!(headers(&[(TRACEPARENT, "00-x")]), None);
        assert_eq!(headers(&[(TRACESTATE, "a=1")]), None);
        assert!(TraceHeaders::default().read().is_none());
    }
}
