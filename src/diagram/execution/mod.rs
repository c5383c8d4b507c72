//! What happens when a model runs, as a few scenes: its passes, what layers keep and see, what is read.
//!
//! Only scenes that are true for the model occur, and everything in them follows from the plan, from the
//! traced graph, or from a constant of the program that runs it. They are data without coordinates;
//! numbers of bytes are there only with a file.

mod bytes;
mod layers;
mod passes;

use std::collections::BTreeSet;
use std::ops::Range;

use super::build::Maker;
use super::kinds::is_within;
use crate::arch::Mode;
use crate::plan::{Pooling, StatePlan, Unit};

/// One thing that happens, or one thing that is read or kept.
#[derive(Clone, Debug)]
pub struct Scene {
    /// What it is called.
    pub title: String,
    /// What happens, in a plain sentence.
    pub line: String,
    /// Numbers and choices.
    pub facts: Vec<String>,
    /// The kinds of layers it is about, as places in [`super::Drawing::kinds`]; none if it is about all
    /// of the model.
    pub kinds: Vec<usize>,
    /// What is drawn.
    pub picture: Picture,
}

/// What is drawn of a scene.
#[derive(Clone, Debug, PartialEq)]
pub enum Picture {
    /// The tokens of a prompt through all layers, some in each pass.
    Prefill {
        /// Kinds that leave keys and values.
        keys: Vec<usize>,
        /// Kinds that leave a state.
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
        /// Of a text of [`super::MASK`] tokens, the tokens that each sees in some layer.
        seen: Vec<Range<u32>>,
        /// What becomes the vector of the text; none if tokens come out.
        pooling: Option<Pooling>,
    },
    /// An answer that forms.
    Filling {
        /// Tokens of the prompt.
        n_prompt: u32,
        /// Positions of the answer that are filled in together.
        block: u32,
        /// The positions of the answer that each pass fixes.
        fixed: Vec<Vec<u32>>,
    },
    /// A state that each token changes.
    State,
    /// Which keys are seen.
    Window {
        /// Its rule in the definition's words: `standard`, `chunked` or `symmetric`.
        rule: &'static str,
        /// Whether keys behind it are let go of.
        lets_go: bool,
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
    /// Networks of which each token uses some.
    Experts {
        /// Used, and in all; none if they are symbols.
        numbers: Option<(u64, u64)>,
    },
    /// Bytes that a token reads.
    Reads {
        /// Weights, by what they are for, most first.
        weights: Vec<(String, u64)>,
        /// Keys and values, by the tokens of the text with this one.
        keys: Vec<(u64, u64)>,
        /// States.
        states: u64,
    },
    /// Bytes that are kept of a text, by its tokens.
    Keeps(Vec<Held>),
}

/// Tokens of the text in the picture of a window, and positions of its window.
pub const WINDOW: u32 = 10;
/// Positions of the window in that picture.
pub const SMALL: u32 = 4;

/// What a token sees.
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

/// What is kept of a text.
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

/// The scenes of a model whose layers have these kinds.
pub(super) fn scenes(maker: &Maker<'_>, of_layer: &[usize]) -> Vec<Scene> {
    let stage = Stage { maker, of_layer };
    let mut all = stage.passes();
    all.extend(stage.windows());
    all.extend(stage.shared());
    all.extend(stage.latent());
    all.extend(stage.states());
    all.extend(stage.experts());
    all.extend(stage.reads());
    all.extend(stage.keeps());
    all
}

/// What scenes are made from.
struct Stage<'a, 'p> {
    maker: &'a Maker<'p>,
    /// The kind of each layer.
    of_layer: &'a [usize],
}

impl<'p> Stage<'_, 'p> {
    /// Every block with its layer, in the order of execution.
    fn units(&self) -> impl Iterator<Item = (usize, &'p Unit)> + use<'p> {
        let layers = self.maker.plan.layers.iter().enumerate();
        let slots = layers.flat_map(|(at, layer)| layer.slots.iter().map(move |slot| (at, slot)));
        slots.flat_map(|(at, slot)| slot.branches.iter().map(move |branch| (at, &branch.block)))
    }

    /// The kinds of layers that have such a block.
    fn kinds(&self, holds: impl Fn(&Unit) -> bool) -> Vec<usize> {
        let units = self.units().filter(|(_, unit)| holds(unit));
        let kinds: BTreeSet<usize> = units.map(|(at, _)| self.of_layer[at]).collect();
        kinds.into_iter().collect()
    }

    /// The layer that a path lies in.
    fn layer_of(&self, path: &str) -> Option<usize> {
        let mut layers = self.maker.plan.layers.iter();
        layers.position(|layer| is_within(path, &layer.path))
    }

    fn goes_on(&self) -> bool {
        self.maker.plan.mode == Mode::Causal
    }
}

/// A scene about all of the model.
fn scene(title: &str, line: String, picture: Picture) -> Scene {
    Scene {
        title: title.to_owned(),
        line,
        facts: Vec::new(),
        kinds: Vec::new(),
        picture,
    }
}

fn has_keys(unit: &Unit) -> bool {
    matches!(&unit.state, Some(StatePlan::KeyValue(_)))
}

fn is_owner(unit: &Unit) -> bool {
    matches!(&unit.state, Some(StatePlan::KeyValue(rows)) if rows.owner.is_none())
}

fn is_recurrent(unit: &Unit) -> bool {
    matches!(&unit.state, Some(StatePlan::Recurrent(_)))
}
