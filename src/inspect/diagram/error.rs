//! Errors of drawing.

use crate::ggml;

/// The reason why something cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The graph cannot be built.
    #[error("the graph cannot be built: {0}")]
    Graph(#[from] ggml::Error),
    /// No model of the definition has these settings.
    #[error(transparent)]
    Synth(#[from] crate::files::synth::Error),
}
