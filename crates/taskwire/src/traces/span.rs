//! One span: a name, when it began and ended, and what is known about it.

use std::{
    borrow::Cow,
    sync::{Mutex, MutexGuard, PoisonError},
};

use taskwire_core::trace::{SpanId, TraceContext};

use super::Tracer;

/// Events of one span; further ones are only counted.
pub(super) const EVENTS_MAX: usize = 64;
/// Characters of a text in a span.
const TEXT_MAX: usize = 200;

/// What a span stands for. The numbers are OpenTelemetry's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Work in this process.
    Internal = 1,
    /// A request of somebody else.
    Server = 2,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Text(Cow<'static, str>),
    Number(i64),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

/// What is recorded of a span.
#[derive(Debug)]
pub(super) struct Record {
    /// Its place in the trace, with its own id.
    pub(super) context: TraceContext,
    /// The span above it; none at the top of a trace.
    pub(super) parent: Option<SpanId>,
    pub(super) kind: Kind,
    pub(super) name: Cow<'static, str>,
    /// Nanoseconds since 1970, as all times here.
    pub(super) began: i64,
    pub(super) ended: i64,
    pub(super) attributes: Vec<(&'static str, Value)>,
    pub(super) events: Vec<(i64, &'static str)>,
    pub(super) events_dropped: u32,
    /// Why it failed, if it did.
    pub(super) error: Option<String>,
}

/// A span that has not ended. It ends when it is dropped, if not before.
pub(crate) struct Span {
    tracer: Tracer,
    context: TraceContext,
    /// None when it has ended.
    record: Mutex<Option<Box<Record>>>,
}

impl Span {
    pub(super) fn begin(tracer: Tracer, context: TraceContext, parent: Option<SpanId>, kind: Kind, name: Cow<'static, str>) -> Self {
        let began = tracer.unix_nanos();
        let record = Record {
            context: context.clone(),
            parent,
            kind,
            name,
            began,
            ended: began,
            attributes: Vec::new(),
            events: Vec::new(),
            events_dropped: 0,
            error: None,
        };
        Self { tracer, context, record: Mutex::new(Some(Box::new(record))) }
    }

    /// What is passed on to whatever is a child of this span.
    pub(crate) fn context(&self) -> &TraceContext {
        &self.context
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<Record>>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_name(&self, name: String) {
        if let Some(record) = self.lock().as_mut() {
            record.name = name.into();
        }
    }

    pub(crate) fn set(&self, key: &'static str, value: impl Into<Value>) {
        if let Some(record) = self.lock().as_mut() {
            record.attributes.push((key, value.into()));
        }
    }

    /// Says that something happened just now.
    pub(crate) fn event(&self, name: &'static str) {
        let at = self.tracer.unix_nanos();
        if let Some(record) = self.lock().as_mut() {
            if record.events.len() < EVENTS_MAX {
                record.events.push((at, name));
            } else {
                record.events_dropped = record.events_dropped.saturating_add(1);
            }
        }
    }

    /// Says that it failed, and why.
    pub(crate) fn fail(&self, why: &str) {
        if let Some(record) = self.lock().as_mut() {
            record.error = Some(short(why));
        }
    }

    /// Ends it. Nothing changes it any more.
    pub(crate) fn end(&self) {
        let Some(mut record) = self.lock().take() else { return };
        record.ended = self.tracer.unix_nanos().max(record.began);
        self.tracer.record(*record);
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.end();
    }
}

/// A text that is not too long.
pub(crate) fn short(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}
