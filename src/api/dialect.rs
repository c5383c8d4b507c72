//! The dialect of a route: in which shape it writes errors, and in which words those that clients match.

use super::{anthropic, responses};

/// The dialect of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// OpenAI's chat and completions, and all that have no dialect of their own.
    Plain,
    /// Anthropic's messages.
    Messages,
    /// OpenAI's responses.
    Responses,
    /// llama-server's own completions.
    Native,
}

impl Dialect {
    /// The dialect of the route at a path.
    pub(super) fn of(path: &str) -> Self {
        match path {
            _ if path.starts_with(anthropic::ROUTE) => Self::Messages,
            _ if responses::ROUTES.contains(&path) => Self::Responses,
            "/completion" | "/completions" | "/infill" => Self::Native,
            _ => Self::Plain,
        }
    }
}
