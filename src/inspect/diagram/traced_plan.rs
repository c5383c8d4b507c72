//! The input of a drawing: a plan with its graph, and a second graph that shows which sizes depend on the number of
//! tokens; and the variants of a definition that are drawn, which its table `variants` defines.

use std::num::NonZeroU32;

use lab_base::ggml::{self, GraphOp};
use lab_core::arch::{ArchDef, Mode};
use lab_core::model;
use lab_core::models::media::MediaProcessors;
use lab_core::models::synth::{self, SynthRequest};
use lab_core::models::towers::OpenedTower;
use lab_core::plan::{Media, Plan};

/// Numbers of tokens of the two passes.
const N_TOKENS: [usize; 2] = [7, 11];

/// Grids of cells (time, height, width) in the order in which they are tried: small ones, even and odd.
fn usual_grids(media: Option<Media>) -> impl Iterator<Item = [u64; 3]> {
    let is_sound = media == Some(Media::Audio);
    let sides = (2..=16).map(|n| 2 * n).chain((1..=10).map(|n| 100 * n));
    sides.map(move |n| match is_sound {
        true => [1, 1, n],
        false => [1, n, n],
    })
}

/// The names of a definition's variants and the requests that make them; the first one has no name.
pub fn variants(def: &ArchDef) -> Vec<(String, SynthRequest)> {
    let mut all = vec![(String::new(), SynthRequest::default())];
    for (name, text) in &def.variants {
        let mut request = SynthRequest::default();
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) => request.set.push((key.to_owned(), value.to_owned())),
                None => request.with.push(word.to_owned()),
            }
        }
        match name.as_str() {
            "default" => all[0].1 = request,
            _ => all.push((name.clone(), request)),
        }
    }
    all
}

/// The reason why something cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum DiagramError {
    #[error("the graph cannot be built: {0}")]
    Graph(#[from] ggml::Error),
    #[error("no grid of rows fits the tower")]
    NoGrid,
    #[error(transparent)]
    Synth(#[from] synth::Error),
}

/// A model or a definition, ready to be drawn.
pub struct TracedPlan {
    pub(super) name: String,
    plan: Plan,
    steps: [Vec<GraphOp>; 2],
    /// Tokens or rows of the two graphs.
    n_rows: [u64; 2],
    /// The graph of a pass of one token, for a model that generates token by token.
    pub(super) single: Option<Vec<GraphOp>>,
    /// Whether sizes are symbols.
    pub(super) is_symbolic: bool,
}

impl TracedPlan {
    /// A sample of a definition with symbols for sizes, for a model with the settings of `request`.
    ///
    /// # Errors
    /// The settings contradict each other, or a graph cannot be built.
    pub fn of_definition(
        name: &str,
        def: &ArchDef,
        request: &SynthRequest,
    ) -> Result<Self, DiagramError> {
        let (_, plan) = synth::design(def, request)?;
        Self::new(name, plan, true)
    }

    /// A sample of a model, with its numbers or with symbols for sizes.
    ///
    /// # Errors
    /// A graph cannot be built.
    pub fn new(name: &str, plan: Plan, is_symbolic: bool) -> Result<Self, DiagramError> {
        if plan.mode == Mode::Tower {
            return Self::of_grids(name, plan, is_symbolic, &[]);
        }
        let [a, b] = N_TOKENS.map(|n| model::trace(&plan, n));
        let is_single = plan.mode == Mode::Causal && !is_symbolic;
        let single = is_single.then(|| model::trace_tokens(&plan, 1));
        Ok(Self {
            name: name.to_owned(),
            steps: [a?, b?],
            single: single.transpose()?,
            n_rows: N_TOKENS.map(|n| n as u64),
            plan,
            is_symbolic,
        })
    }

    /// A sample of a tower of a model, as it reads a picture or a sound of a usual size.
    ///
    /// # Errors
    /// No graph can be built.
    pub fn of_tower(
        name: &str,
        tower: &OpenedTower,
        processors: &MediaProcessors,
    ) -> Result<Self, DiagramError> {
        let cells = |part: u32| {
            let part = NonZeroU32::new(part).unwrap_or(NonZeroU32::MIN);
            let sample = processors.sample(tower.media, part).ok()?;
            model::tower_cells(tower, processors, &sample).ok()
        };
        let grids: Vec<[u64; 3]> = [4, 8].into_iter().filter_map(cells).collect();
        Self::of_grids(name, tower.plan.clone(), false, &grids)
    }

    /// A sample of a tower over two of these grids, or of those that are usual: the first that fit it.
    fn of_grids(
        name: &str,
        plan: Plan,
        is_symbolic: bool,
        grids: &[[u64; 3]],
    ) -> Result<Self, DiagramError> {
        let usual = usual_grids(plan.media());
        let mut found: Vec<([u64; 3], Vec<GraphOp>)> = Vec::new();
        let mut refused = None;
        for cells in grids.iter().copied().chain(usual) {
            match model::trace_tower(&plan, cells) {
                Ok(steps) => found.push((cells, steps)),
                Err(error) => refused = Some(error),
            }
            // A tower may read inputs of one size only.
            if found.len() == 2 || (found.len() == 1 && !grids.is_empty()) {
                break;
            }
        }
        let Some((cells, steps)) = found.pop() else {
            return Err(refused.map_or(DiagramError::NoGrid, DiagramError::from));
        };
        let (other, others) = found.pop().unwrap_or_else(|| (cells, steps.clone()));
        let n_rows = [other, cells].map(|cells| cells.iter().product());
        Ok(Self {
            name: name.to_owned(),
            steps: [others, steps],
            single: None,
            n_rows,
            plan,
            is_symbolic,
        })
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The graph that is drawn.
    pub fn steps(&self) -> &[GraphOp] {
        &self.steps[0]
    }

    /// Dimensions of a step in ggml's order, without trailing ones: numbers, and `T` for a dimension of tokens.
    pub(super) fn shape(&self, at: usize) -> Vec<String> {
        let [a, b] = self.steps.each_ref().map(|steps| steps[at].shape);
        let last = (1..4).rfind(|dim| a[*dim] > 1 || b[*dim] > 1).unwrap_or(0);
        let [few, many] = self.n_rows;
        let dim = |(a, b): (u64, u64)| match (a / few, a.checked_sub(few)) {
            _ if a == b => a.to_string(),
            (1, Some(0)) if b == many => "T".into(),
            (n, _) if a == n * few && b == n * many => format!("{n}\u{b7}T"),
            (_, Some(n)) if b == many + n => format!("T+{n}"),
            _ => "\u{2026}".into(),
        };
        a.into_iter().zip(b).take(last + 1).map(dim).collect()
    }
}
