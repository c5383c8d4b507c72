//! Conversations as text: chat templates, the reasoning and tool calls in an answer, and the buffer that releases text.
//!
//! Everything here is pure: no model, no device, no clock. Called by the engine (the buffer), the server and the command
//! line.

pub mod stop_buffer;
pub mod template;
pub mod tool_calls;
