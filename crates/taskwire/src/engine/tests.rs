//! The engine without a wire: what no client could provoke.
