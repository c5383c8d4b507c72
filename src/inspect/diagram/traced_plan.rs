//! The input of a drawing: a plan with its graph, and a second graph that shows which sizes depend on the number of
//! tokens; and the variants of a definition that are drawn, which its table `variants` defines.

use lab_base::ggml::{self, GraphOp};
use lab_core::arch::{ArchDef, Mode};
use lab_core::model;
use lab_core::models::synth::{self, SynthRequest};
use lab_core::plan::Plan;

/// Numbers of tokens of the two passes.
const N_TOKENS: [usize; 2] = [7, 11];

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
    #[error(transparent)]
    Synth(#[from] synth::Error),
}

/// A model or a definition, ready to be drawn.
pub struct TracedPlan {
    pub(super) name: String,
    plan: Plan,
    steps: [Vec<GraphOp>; 2],
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
        let [a, b] = N_TOKENS.map(|n| model::trace(&plan, n));
        let is_single = plan.mode == Mode::Causal && !is_symbolic;
        let single = is_single.then(|| model::trace_tokens(&plan, 1));
        Ok(Self {
            name: name.to_owned(),
            steps: [a?, b?],
            single: single.transpose()?,
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
        let [few, many] = N_TOKENS.map(|n| n as u64);
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
