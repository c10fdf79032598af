//! Error codes of JSON-RPC and MCP, and our own (outside the ranges that those reserve).

/// The body is not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The JSON is not a request.
pub const INVALID_REQUEST: i64 = -32600;
/// There is no such method.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// There is no such resource (up to 2025-11-25).
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// The parameters are wrong; also: no such tool, prompt, resource or task.
pub const INVALID_PARAMS: i64 = -32602;
/// Something went wrong on this side.
pub const INTERNAL_ERROR: i64 = -32603;
/// A header is missing, malformed or disagrees with the body.
pub const HEADER_MISMATCH: i64 = -32020;
/// The request needs a capability that the client did not declare.
pub const MISSING_CAPABILITY: i64 = -32021;
/// The protocol version is not supported.
pub const UNSUPPORTED_VERSION: i64 = -32022;
/// Taskwire's own: a configured limit is reached.
pub const LIMIT_REACHED: i64 = -31001;
/// Taskwire's own: the server is shutting down or its store has failed.
pub const UNAVAILABLE: i64 = -31002;
