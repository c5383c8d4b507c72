//! What is drawn of a scene.

use std::ops::Range;

use crate::plan::Pooling;

/// What is drawn of a scene.
#[derive(Clone, Debug, PartialEq)]
pub enum Picture {
    /// The tokens of a prompt through all layers, some in each pass.
    Prefill {
        /// Kinds that write keys and values.
        keys: Vec<usize>,
        /// Kinds that write a state.
        states: Vec<usize>,
    },
    /// One token through all layers.
    Decode {
        /// Kinds that read keys and values.
        keys: Vec<usize>,
        /// Kinds that read a state.
        states: Vec<usize>,
    },
    /// A text through all layers, and what comes of it.
    Whole {
        /// Of a text of [`MASK`] tokens, the tokens that each sees in some layer.
        seen: Vec<Range<u32>>,
        /// What becomes the vector of the text; none if tokens come out.
        pooling: Option<Pooling>,
    },
    /// An answer that forms by denoising steps.
    Denoising,
    /// A state that each token changes.
    State,
    /// Which keys are seen.
    Window {
        /// Its rule in the definition's words: `standard`, `chunked` or `symmetric`.
        rule: &'static str,
        /// Whether keys before it are evicted.
        evicts: bool,
        /// Of a text of [`WINDOW`] tokens, with a window of [`SMALL`] of them, the last ones with the
        /// keys that they see.
        views: Vec<View>,
    },
    /// Layers that read what an earlier one keeps.
    Shared(Vec<Loan>),
    /// One row for all heads.
    Latent {
        /// Elements of a row and how many of them are also the values; none if sizes are symbols.
        row: Option<(u64, u64)>,
    },
    /// Experts of which each token uses some.
    Experts {
        /// Used, and in all; none if they are symbols.
        numbers: Option<(u64, u64)>,
    },
    /// Bytes that a token reads.
    Reads {
        /// Weights, by what they are for, most first.
        weights: Vec<(String, u64)>,
        /// Keys and values, by the tokens of the context with this one.
        keys: Vec<(u64, u64)>,
        /// States.
        states: u64,
    },
    /// Bytes that are kept of a context, by its tokens.
    Keeps(Vec<Held>),
}

/// Tokens of the text in the picture of the attention mask, whose window is half of them.
pub const MASK: u32 = 6;
/// Tokens of the text in the picture of a window, and positions of its window.
pub const WINDOW: u32 = 10;
/// Positions of the window in that picture.
pub const SMALL: u32 = 4;

/// What a token attends to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The token.
    pub query: u32,
    /// The keys that it sees.
    pub keys: Range<u32>,
}

/// Layers that read what another one keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loan {
    /// The layer that keeps, counted over all stacks.
    pub owner: usize,
    /// Those that read it.
    pub readers: Vec<usize>,
}

/// What is kept of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its tokens.
    pub tokens: u64,
    /// Bytes of keys and values of layers that see all.
    pub all: u64,
    /// Bytes of keys and values of layers that see a window.
    pub window: u64,
    /// Bytes of states.
    pub state: u64,
}

impl Held {
    /// Bytes of all together.
    pub fn bytes(&self) -> u64 {
        let keys = self.all.saturating_add(self.window);
        keys.saturating_add(self.state)
    }
}
