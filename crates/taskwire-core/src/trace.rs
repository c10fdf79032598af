//! Where in a trace something belongs, as W3C Trace Context writes it: `traceparent` and `tracestate`.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The longest `tracestate` that is kept; a longer one is left out.
pub const TRACE_STATE_BYTES_MAX: usize = 512;
/// How long a `traceparent` of version 00 is.
const PARENT_BYTES: usize = 55;
/// The flag that says that the trace is recorded.
const SAMPLED: u8 = 1;
/// The flags that have a meaning; others are not passed on.
const KNOWN_FLAGS: u8 = 0b11;

/// The id of a trace: sixteen bytes that are not all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// The id of a span: eight bytes that are not all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

impl TraceId {
    /// Makes an id of these bytes. All zeros would be no id, so they become another number.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> Self {
        Self(if bytes == [0; 16] { [1; 16] } else { bytes })
    }
}

impl SpanId {
    /// Makes an id of these bytes. All zeros would be no id, so they become another number.
    #[must_use]
    pub fn new(bytes: [u8; 8]) -> Self {
        Self(if bytes == [0; 8] { [1; 8] } else { bytes })
    }
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A `traceparent`: the trace, the span that what follows is a child of, and whether the trace is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
    flags: u8,
}

impl TraceParent {
    /// The first span of a trace that is recorded.
    #[must_use]
    pub const fn recorded(trace: TraceId, span: SpanId) -> Self {
        Self { trace, span, flags: SAMPLED }
    }

    /// The same trace, with this span as the parent of what follows.
    #[must_use]
    pub const fn with_span(self, span: SpanId) -> Self {
        Self { span, ..self }
    }

    /// Whether the trace is recorded.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The flags, as the header has them.
    #[must_use]
    pub const fn flags(&self) -> u8 {
        self.flags
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, self.flags)
    }
}

/// The text is no `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent: expected 00-TRACE-SPAN-FLAGS with 32, 16 and 2 hexadecimal digits in lower case")]
pub struct ParseTraceParentError;

/// The bytes of hexadecimal digits, which are in lower case.
fn bytes_of<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4) | digit(pair[1])?;
    }
    Some(bytes)
}

fn parse(text: &str) -> Option<TraceParent> {
    let text = text.as_bytes();
    let (known, rest) = text.split_at_checked(PARENT_BYTES)?;
    let dashes = [known[2], known[35], known[52]];
    let [version] = bytes_of::<1>(&known[..2])?;
    // Later versions may say more, behind a dash; their first part is the same.
    let is_whole = if version == 0 { rest.is_empty() } else { rest.is_empty() || rest[0] == b'-' };
    let (trace, span) = (bytes_of::<16>(&known[3..35])?, bytes_of::<8>(&known[36..52])?);
    let [flags] = bytes_of::<1>(&known[53..])?;
    let is_valid = dashes == [b'-'; 3] && version != 0xff && is_whole && trace != [0; 16] && span != [0; 8];
    is_valid.then_some(TraceParent { trace: TraceId(trace), span: SpanId(span), flags: flags & KNOWN_FLAGS })
}

impl FromStr for TraceParent {
    type Err = ParseTraceParentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or(ParseTraceParentError)
    }
}

impl Serialize for TraceParent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceParent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Where in a trace something belongs, and what the systems that the trace came through say of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    /// `traceparent`.
    #[serde(rename = "traceparent")]
    pub parent: TraceParent,
    /// `tracestate`.
    #[serde(rename = "tracestate", default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Arc<str>>,
}

impl TraceContext {
    /// Reads both. A `traceparent` that is malformed counts as none, and without one the `tracestate` means nothing. Of a trace that is not
    /// recorded nobody reads the `tracestate`, so it is left out there, and so is one that is too long.
    #[must_use]
    pub fn read(parent: &str, state: Option<&str>) -> Option<Self> {
        let parent: TraceParent = parent.parse().ok()?;
        let is_text = |state: &&str| {
            (1..=TRACE_STATE_BYTES_MAX).contains(&state.len()) && state.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
        };
        let state = state.map(str::trim).filter(is_text).filter(|_| parent.is_sampled());
        Some(Self { parent, state: state.map(Into::into) })
    }

    /// The same place in the trace, with this span as the parent of what follows.
    #[must_use]
    pub fn with_span(&self, span: SpanId) -> Self {
        Self { parent: self.parent.with_span(span), state: self.state.clone() }
    }

    /// About how many bytes it takes where it is stored.
    #[must_use]
    pub fn bytes(&self) -> usize {
        PARENT_BYTES + self.state.as_ref().map_or(0, |state| state.len())
    }
}

impl From<TraceParent> for TraceContext {
    fn from(parent: TraceParent) -> Self {
        Self { parent, state: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_written_as_it_was_read() {
        let parent: TraceParent = GOOD.parse().expect("it is well-formed");
        assert_eq!((parent.to_string().as_str(), parent.is_sampled()), (GOOD, true));
        assert_eq!(parent.trace.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        let child = parent.with_span(SpanId::new([1; 8]));
        assert_eq!(child.to_string(), "00-4bf92f3577b34da6a3ce929d0e0e4736-0101010101010101-01");
        let unsampled: TraceParent = GOOD.replace("-01", "-00").parse().expect("it is well-formed");
        assert!(!unsampled.is_sampled());
    }

    #[test]
    fn later_versions_may_say_more_and_flags_without_meaning_are_dropped() {
        let later = |text: &str| text.parse::<TraceParent>().map(|parent| parent.to_string());
        assert_eq!(later(&GOOD.replace("00-4", "cc-4")).as_deref(), Ok(GOOD));
        assert_eq!(later(&format!("{}-what-the-future-has", GOOD.replace("00-4", "cc-4"))).as_deref(), Ok(GOOD));
        assert_eq!(later(&GOOD.replace("-01", "-ff")), Ok(GOOD.replace("-01", "-03")));
    }

    #[test]
    fn what_is_malformed_is_no_traceparent() {
        let zeros = |from: usize, to: usize| format!("{}{}{}", &GOOD[..from], "0".repeat(to - from), &GOOD[to..]);
        let bad = [
            String::new(),
            "00".to_owned(),
            GOOD[..54].to_owned(),
            format!("{GOOD}-"),
            format!("{GOOD}0"),
            format!(" {GOOD}"),
            GOOD.to_uppercase(),
            GOOD.replace("00-4", "ff-4"),
            format!("{}x", GOOD.replace("00-4", "cc-4")),
            GOOD.replace('-', "_"),
            GOOD.replace("01", "0x"),
            zeros(3, 35),
            zeros(36, 52),
            "ü".repeat(40),
        ];
        for text in bad {
            assert_eq!(text.parse::<TraceParent>(), Err(ParseTraceParentError), "{text}");
            assert_eq!(TraceContext::read(&text, Some("a=b")), None, "{text}");
        }
    }

    #[test]
    fn a_tracestate_is_kept_if_it_is_short_and_somebody_reads_it() {
        let state = |state: &str| TraceContext::read(GOOD, Some(state)).and_then(|context| context.state);
        assert_eq!(state("a=1,b=2").as_deref(), Some("a=1,b=2"));
        assert_eq!(state(&"x".repeat(TRACE_STATE_BYTES_MAX)).map(|state| state.len()), Some(TRACE_STATE_BYTES_MAX));
        for odd in ["", " ", "a=ü", "a\n=1", "x".repeat(TRACE_STATE_BYTES_MAX + 1).as_str()] {
            assert_eq!(state(odd), None, "{odd:?}");
        }
        let unsampled = TraceContext::read(&GOOD.replace("-01", "-00"), Some("a=1")).expect("it is well-formed");
        assert_eq!(unsampled.state, None);
    }
}
