//! Why something cannot be drawn.

use crate::ggml;

/// Why something cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The graph cannot be built.
    #[error("the graph cannot be built: {0}")]
    Graph(#[from] ggml::Error),
    /// The definition has no model with these settings.
    #[error(transparent)]
    Synth(#[from] crate::files::synth::Error),
}
