//! The parts from which the graph of a pass is built, and the shape for which it is built.

use crate::blocks::SequenceGroup;
use crate::plan::{BLOCK_LEN, CachePlan, KeyTokens, Plan};

use super::adapters::DeviceWeights;
use super::cache::SequenceId;
use super::cache::states::States;
use super::cache::store::KvCache;
use super::key_shape::{KeyShape, table_len};
use super::lab::LabShape;
use super::options::Options;
use super::points::Points;

/// The parts from which the graphs of a model are built.
#[derive(Clone, Copy)]
pub(super) struct GraphParts<'a> {
    pub(super) plan: &'a Plan,
    pub(super) weights: DeviceWeights<'a>,
    pub(super) cache: &'a KvCache,
    pub(super) states: &'a States,
    pub(super) options: &'a Options,
    /// KV slots of each KV group.
    pub(super) n_slots: &'a [usize],
    /// The points of the model; empty if nothing is captured or edited.
    pub(super) points: &'a Points,
}

/// The shape for which a graph is built. Passes of the same shape run the same graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GraphShape {
    pub(super) n_tokens: usize,
    /// Tokens of sources that the pass reads.
    pub(super) n_source: usize,
    /// Whether these sources are rows in the place of tokens.
    pub(super) source_is_rows: bool,
    /// Rows of media in the pass.
    pub(super) n_media: usize,
    /// Tokens that branches for media are for; 0 if the model has no such branch.
    pub(super) n_media_tokens: usize,
    /// Number of rows that want logits.
    pub(super) n_outputs: usize,
    /// Whether rows of nobody pad the pass. Then the rows that want logits are always taken out, in any order.
    pub(super) is_padded: bool,
    /// The keys that are attended to, for each KV group.
    pub(super) keys: Vec<KeyShape>,
    /// Number of blocks that end in the pass, for each KV group in which whole blocks have keys: see [`n_ended`].
    pub(super) n_ended: Vec<usize>,
    /// The sequences, if the model has recurrent states: the shortest first.
    pub(super) groups: Vec<SequenceGroup>,
    /// Whether the rows that want logits want the hidden state after the final norm.
    pub(super) wants_hidden: bool,
    /// Whether the projection to logits is left to graphs of [`build_head`](super::stage::build_head).
    pub(super) is_headless: bool,
    /// Number of highest logits that are given for each row that wants logits.
    pub(super) n_top: usize,
    /// The adapters that are on for any token.
    pub(super) adapters: Vec<usize>,
    /// The captures and edits.
    pub(super) lab: LabShape,
    /// Whether the pass gives the values that a drafter reads.
    pub(super) gives_values: bool,
    /// What stands for the values of the target, in a drafter.
    pub(super) target: TargetRows,
}

/// What stands for the values of the target in a pass of a drafter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TargetRows {
    /// Nothing: it reads none.
    #[default]
    None,
    /// Rows of values of the target.
    Values,
    /// The results of the drafter itself for the tokens before.
    Own,
    /// The keys that earlier passes made of them: the pass reads a block of tokens.
    Kept,
}

impl TargetRows {
    /// Elements of a row; 0 if nothing is read.
    pub(super) fn width(self, plan: &Plan) -> u64 {
        match (self, &plan.target) {
            (Self::Values, Some(target)) => target.row_width(),
            (Self::Own, Some(_)) => plan.n_embd,
            _ => 0,
        }
    }
}

impl GraphShape {
    /// The shape of the largest pass.
    pub(super) fn largest(options: &Options, plan: &Plan, n_slots: &[usize]) -> Self {
        let n_tokens = options.rows_of_pass(plan);
        let of_group = |(group, n_slots): (&CachePlan, &usize)| match options.n_ctx {
            _ if group.keys == KeyTokens::Pass => match options.n_ctx {
                0 => KeyShape::one_run(n_tokens, n_tokens),
                _ => KeyShape::Runs(Vec::new()),
            },
            0 => KeyShape::one_run(n_tokens, n_tokens),
            n_ctx if options.is_paged(plan) => {
                let n_blocks = n_ctx.div_ceil(BLOCK_LEN as usize);
                KeyShape::Table(table_len(n_blocks * options.n_seqs.max(1)))
            }
            _ => {
                let n_kv = options.most_scores(plan, *n_slots) / n_tokens;
                KeyShape::one_run(n_tokens, n_kv)
            }
        };
        let keys = plan.caches.iter().zip(n_slots).map(of_group).collect();
        let most_ended = |group: &CachePlan| match group.span() {
            None => 0,
            Some(span) => {
                let n_seqs = options.n_seqs.max(1);
                padded_ended(n_tokens.min(n_tokens / span as usize + n_seqs))
            }
        };
        Self {
            n_ended: plan.caches.iter().map(most_ended).collect(),
            n_tokens,
            n_source: match options.n_ctx {
                0 => source_of_pass(plan, n_tokens),
                _ => 0,
            },
            source_is_rows: reads_rows(plan),
            n_media: 0,
            n_media_tokens: 0,
            n_outputs: n_tokens.min(options.outputs_at_once(plan)),
            is_padded: options.pads(plan),
            keys,
            groups: largest_groups(options, plan),
            wants_hidden: plan.target.as_ref().is_some_and(|of| of.block.is_none()),
            is_headless: false,
            n_top: options.n_top(plan),
            adapters: Vec::new(),
            lab: LabShape::default(),
            gives_values: options.for_drafter.is_some(),
            // Of blocks the pass over tokens is the larger one.
            target: match &plan.target {
                Some(target) if target.block.is_some() => TargetRows::Kept,
                Some(_) => TargetRows::Values,
                None => TargetRows::None,
            },
        }
    }
}

impl GraphShape {
    /// The shape of the largest pass that reads only a source; none if there is no such pass.
    pub(super) fn largest_source(options: &Options, plan: &Plan) -> Option<Self> {
        let n_source = match options.n_ctx {
            0 => 0,
            _ => source_of_pass(plan, options.n_batch.max(1)),
        };
        let keys = plan.caches.iter().map(|group| match group.keys {
            KeyTokens::Pass => KeyShape::one_run(n_source, n_source),
            _ => KeyShape::Runs(Vec::new()),
        });
        (n_source > 0).then(|| Self {
            n_tokens: 0,
            n_source,
            source_is_rows: reads_rows(plan),
            n_media: 0,
            n_media_tokens: 0,
            n_outputs: 0,
            is_padded: false,
            n_ended: vec![0; plan.caches.len()],
            keys: keys.collect(),
            groups: Vec::new(),
            wants_hidden: false,
            is_headless: false,
            n_top: 0,
            adapters: Vec::new(),
            lab: LabShape::default(),
            gives_values: false,
            target: TargetRows::None,
        })
    }

    /// Maximum number of attention operations in a layer.
    pub(super) fn n_views(&self) -> usize {
        let views = self.keys.iter().map(KeyShape::n_views);
        views.max().unwrap_or(1)
    }
}

/// Number of blocks that end in a pass over tokens at these places, for each KV group, rounded up so that a graph
/// serves many passes.
pub(super) fn n_ended(plan: &Plan, places: &[(SequenceId, u32)]) -> Vec<usize> {
    let of_group = |group: &CachePlan| match group.span() {
        None => 0,
        Some(span) => {
            let is_last = |(_, at): &&(SequenceId, u32)| (u64::from(*at) + 1).is_multiple_of(span);
            padded_ended(places.iter().filter(is_last).count())
        }
    };
    plan.caches.iter().map(of_group).collect()
}

fn padded_ended(n: usize) -> usize {
    if n == 0 { 0 } else { n.next_power_of_two() }
}

fn reads_rows(plan: &Plan) -> bool {
    plan.source.as_ref().is_some_and(|source| source.is_rows)
}

/// Maximum number of source tokens in a pass of `n_tokens` tokens.
fn source_of_pass(plan: &Plan, n_tokens: usize) -> usize {
    plan.source.as_ref().map_or(0, |_| n_tokens)
}

/// The sequences of the largest pass: all but one decode, and the last one is prefilled.
fn largest_groups(options: &Options, plan: &Plan) -> Vec<SequenceGroup> {
    if plan.recurrent().next().is_none() {
        return Vec::new();
    }
    let n_tokens = options.n_batch.max(1);
    let n_decoding = options.n_seqs.saturating_sub(1).min(n_tokens - 1);
    let groups = [(n_decoding, 1), (1, n_tokens - n_decoding)];
    let groups = groups.map(|(n_seqs, n_steps)| SequenceGroup { n_seqs, n_steps });
    groups.into_iter().filter(|g| g.n_seqs > 0).collect()
}
