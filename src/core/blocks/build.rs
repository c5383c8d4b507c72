//! The interface with which a block builds its graph: weights, inputs, and helpers that all blocks share.
//!
//! A block defines the computation; the [`KeyValueStore`] decides where keys and values are stored.
//! Cached, stateless and bidirectional execution differ only in the store, so each block has one `build`.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

use crate::arch::{NormRef, PointSpec, RopeRef, WeightRole};
use crate::plan::{KeyTokens, NormUse, Plan, Unit};
use lab_base::ggml::{Graph, Result, RopePairing, RopeParams, ScoreOptions, Tensor, Unary};

use super::context::{
    DerivedInput, DerivedInputs, KeyOwner, KeyValueStore, SelectedKeys, SequenceGroup, StateStore,
};
use super::grid::RowGrid;
use super::lab::{GraphLab, NamedTensor};
use super::low_rank::ActiveAdapters;
use super::norm::{NormKind, NormOptions};
use super::rope::{Pairing, RopeOptions, Scaling};
use super::{joined, refused};

/// Maximum number of operations that limit the input and the result of a product.
pub(super) const NODES_OF_BOUNDS: usize = 20;

/// The graph under construction.
pub struct GraphBuilder<'a> {
    /// The graph to which operations are added.
    pub g: &'a Graph,
    /// The plan of the model.
    pub plan: &'a Plan,
    /// The tensors of [`Plan::tensors`], in the same order.
    pub tensors: &'a [Tensor],
    /// The adapters of the pass.
    pub adapters: ActiveAdapters<'a>,
    /// The adapter in the file for each row, i32 `[1, n_tokens]`, where tokens switch between adapters.
    pub switched: Option<Tensor>,
    /// The token of each row, i32 `[1, n_tokens]`; none where a stage is computed by itself.
    pub ids: Option<Tensor>,
    /// Number of tokens of the pass, or of rows of a tower.
    pub n_tokens: u64,
    /// The grid of a tower's rows; none if the rows are tokens.
    pub grid: Option<RowGrid>,
    /// The rows of media in the pass; none if it has none.
    pub media: Option<MediaTensors>,
    /// i32 `[n]`: the tokens that branches for media are for; none if there are none.
    pub media_tokens: Option<Tensor>,
    /// Maximum number of positions of a sequence.
    pub n_ctx: u64,
    /// Inputs that follow from the tokens' positions.
    pub inputs: &'a dyn DerivedInputs,
    pub store: &'a mut dyn KeyValueStore,
    /// The sequences of the pass in the order of its tokens, where the model has recurrent states.
    pub groups: &'a [SequenceGroup],
    /// The recurrent states of the sequences.
    pub states: &'a mut dyn StateStore,
    /// Whether flash attention is used.
    pub flash_attn: bool,
    /// Whether the KV cache stores keys, and values, in a quantised type.
    pub is_quantised: [bool; 2],
    /// The latest result of each selection, by its place in the plan.
    pub selected: Selections,
    /// The captures and edits of the pass.
    pub lab: GraphLab,
}

/// The graph under construction, at one use of a contract, whose weights and points have keys.
pub struct UnitBuilder<'u, 'g> {
    graph: &'u mut GraphBuilder<'g>,
    pub unit: &'u Unit,
    /// Second input of the branch under construction.
    pub side: Option<Tensor>,
    /// The value that the branch saves, where it is not the branch's result.
    pub saved: Option<Tensor>,
}

impl<'g> Deref for UnitBuilder<'_, 'g> {
    type Target = GraphBuilder<'g>;

    fn deref(&self) -> &Self::Target {
        self.graph
    }
}

impl DerefMut for UnitBuilder<'_, '_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.graph
    }
}

/// The rows of media of a pass.
#[derive(Clone)]
pub struct MediaTensors {
    /// f32 `[width, n]`: the embeddings, then parts that layers add.
    pub rows: Tensor,
    /// i32 `[n]`: the token of each row.
    pub places: Tensor,
}

/// The experts that each token picked.
pub struct PickedExperts {
    /// Their numbers, `[used, n_tokens]`.
    pub ids: Tensor,
    /// Whether a token may pick an expert more than once: CUDA's product of experts ends the process then.
    pub may_repeat: bool,
}

/// The positions by which heads are rotated.
#[derive(Clone, Copy)]
pub(super) enum RopePositions<'a> {
    /// The first position of the span of so many positions that a token is in.
    SpanStarts(u64),
    /// The tokens' positions, negated: a rotation back.
    Negated,
    /// The given positions, i32 `[n]`.
    Given(&'a Tensor),
}

/// The latest result of each selection, by its place in the plan.
#[derive(Default)]
pub struct Selections(pub(super) HashMap<usize, SelectedKeys>);

impl<'g> GraphBuilder<'g> {
    /// The builder at a unit.
    pub fn at<'u>(&'u mut self, unit: &'u Unit) -> UnitBuilder<'u, 'g> {
        UnitBuilder {
            graph: self,
            unit,
            side: None,
            saved: None,
        }
    }

    /// Whether a unit attends to keys that are made of the source.
    pub fn keys_are_of_source(&self, unit: &Unit) -> bool {
        let rows = unit.key_values();
        rows.is_some_and(|rows| self.plan.caches[rows.cache].keys == KeyTokens::Source)
    }

    /// The grid of the rows.
    pub(super) fn grid(&self) -> Result<RowGrid> {
        self.grid
            .ok_or_else(|| refused("grid", "the rows of tokens have no grid"))
    }

    /// Sets the grid of the rows that are built next.
    pub fn set_grid(&mut self, grid: RowGrid) {
        self.grid = Some(grid);
        self.n_tokens = grid.n_rows();
    }

    fn weight_of(&self, unit: &Unit, key: &str) -> Option<&'g Tensor> {
        unit.weight(key).map(|at| &self.tensors[at])
    }

    /// [`Self::point`] for a value of the wiring, below `path`.
    pub fn point_at(&self, path: &str, spec: &'static PointSpec, x: Tensor) -> Result<Tensor> {
        let path = format!("{path}.{}", spec.name);
        let x = self.lab.pass(self.g, &path, self.n_tokens, x)?;
        self.name_value(path, spec, &x);
        Ok(x)
    }

    /// Names a value for pairs of keys and queries, `[n_kv, n_tokens, heads]`, of the pass's `i`-th group of runs.
    pub(super) fn name_pairs(
        &self,
        path: &str,
        spec: &'static PointSpec,
        i: usize,
        tensor: &Tensor,
    ) {
        let path = match i {
            0 => format!("{path}.{}", spec.name),
            _ => format!("{path}.{}.{i}", spec.name),
        };
        self.name_value(path, spec, tensor);
    }

    fn name_value(&self, path: String, spec: &'static PointSpec, tensor: &Tensor) {
        tensor.set_name(&path);
        self.lab.named.borrow_mut().push(NamedTensor {
            path,
            spec,
            tensor: tensor.clone(),
            grid: self.grid,
        });
    }

    /// Applies a norm at a place in the wiring.
    pub fn norm(&self, norm: &NormUse, x: &Tensor) -> Result<Tensor> {
        let _scope = self.g.scope("norm", &norm.path);
        let weight = norm.weight.map(|at| &self.tensors[at]);
        let mut y = self.normalise(norm.norm, weight, x)?;
        if let Some(bias) = norm.bias {
            y = self.g.add(&y, &self.tensors[bias])?;
        }
        y.set_name(&norm.path);
        Ok(y)
    }

    /// The rows of `x`, normalised with the kind and eps of `norm` and, if there is one, a weight.
    pub fn normalise_with(
        &self,
        norm: NormRef,
        weight: Option<&Tensor>,
        x: &Tensor,
    ) -> Result<Tensor> {
        match norm.0 {
            Some(norm) => self.normalise(norm, weight, x),
            None => Ok(x.clone()),
        }
    }

    fn normalise(&self, norm: usize, weight: Option<&Tensor>, x: &Tensor) -> Result<Tensor> {
        let norm = NormOptions::read(&self.plan.norms[norm].options);
        let y = match norm.kind {
            NormKind::Rms => self.g.rms_norm(x, norm.eps)?,
            NormKind::Layer => self.g.layer_norm(x, norm.eps)?,
            NormKind::Unit => x.clone(),
        };
        match weight {
            Some(weight) => self.g.mul(&y, weight),
            None => Ok(y),
        }
    }

    /// `x [d, heads, n_tokens]` rotated by the tokens' positions; unchanged without a rope.
    pub fn rope(&self, rope: RopeRef, x: &Tensor) -> Result<Tensor> {
        self.rope_by(rope, x, RopePositions::SpanStarts(1))
    }

    /// Rotates the last elements of each head of `x [d, heads, n]` by the positions `by`, and leaves the other elements
    /// as they are.
    pub(super) fn rope_last(
        &self,
        rope: RopeRef,
        x: &Tensor,
        by: RopePositions<'_>,
    ) -> Result<Tensor> {
        let unit = rope.0.map(|at| &self.plan.ropes[at]);
        let (d, dims) = (x.shape()[0], unit.and_then(|rope| rope.option_int("dims")));
        let Some(dims) = dims.filter(|dims| *dims < d) else {
            return self.rope_by(rope, x, by);
        };
        let plain = self.window(x, 0, d - dims)?;
        let rotated = self.rope_by(rope, &self.window(x, d - dims, dims)?, by)?;
        self.g.concat(&plain, &rotated, 0)
    }

    /// Rotates `x [d, heads, n]` by the positions `by`.
    pub(super) fn rope_by(
        &self,
        rope: RopeRef,
        x: &Tensor,
        by: RopePositions<'_>,
    ) -> Result<Tensor> {
        let Some(unit) = rope.0.map(|at| &self.plan.ropes[at]) else {
            return Ok(x.clone());
        };
        let rope = RopeOptions::read(&unit.options);
        let table = if self.n_ctx > rope.orig_ctx {
            "long"
        } else {
            "short"
        };
        let factors = self.weight_of(unit, "factors");
        let factors = factors.or_else(|| self.weight_of(unit, table));
        let divisors = rope.divisors().map(DerivedInput::Divisors);
        let divisors = divisors.map(|input| self.input(input)).transpose()?;
        let params = rope_params(&rope);
        let positions = match (by, params.sections) {
            (RopePositions::SpanStarts(1), Some(_))
                if rope.takes_turns() && self.grid.is_none() =>
            {
                self.input(DerivedInput::Axes([1, 0, 2, 0]))?
            }
            // Pairs after those of height and width turn by time, as the others of time do.
            (RopePositions::SpanStarts(1), Some(_))
                if rope.kind == Pairing::Imrope && self.grid.is_none() =>
            {
                self.input(DerivedInput::Axes([0, 1, 2, 0]))?
            }
            (_, Some(_)) if rope.takes_turns() => {
                let message = format!(
                    "{}: only tokens are rotated by sections in turns",
                    unit.path
                );
                return Err(refused("rope", message));
            }
            (RopePositions::SpanStarts(1), Some(_)) if self.grid.is_some() => self.input(
                DerivedInput::GridPositions(self.grid()?, rope.axes(), rope.start),
            )?,
            (RopePositions::SpanStarts(1), None) if self.grid.is_some() => {
                self.input(DerivedInput::RowPositions(self.grid()?))?
            }
            (RopePositions::SpanStarts(span), Some(_)) => {
                self.input(DerivedInput::Sections(span))?
            }
            (RopePositions::SpanStarts(span), None) => self.input(DerivedInput::Positions(span))?,
            (RopePositions::Negated, None) => self.input(DerivedInput::Back)?,
            (RopePositions::Given(positions), None) => positions.clone(),
            (_, Some(_)) => {
                return Err(refused(
                    "rope",
                    format!(
                        "{}: sections are rotated by the positions of tokens alone",
                        unit.path
                    ),
                ));
            }
        };
        self.g
            .rope(x, &positions, divisors.as_ref().or(factors), &params)
    }

    /// Softmax over each row of `x [n, m]`.
    pub fn softmax(&self, x: &Tensor) -> Result<Tensor> {
        let plain = ScoreOptions {
            scale: 1.0,
            softcap: 0.0,
            max_bias: 0.0,
            sinks: None,
        };
        self.g.soft_max(x, None, &plain)
    }

    /// The two halves of each row of `x [2n, ..]`, as views.
    pub fn halves(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let half = x.shape()[0] / 2;
        Ok((self.window(x, 0, half)?, self.window(x, half, half)?))
    }

    /// An input that follows from the tokens' positions.
    pub fn input(&self, input: DerivedInput) -> Result<Tensor> {
        self.inputs.get(self.g, input)
    }

    /// Queries `q [d, heads, n_tokens]` times the temperature of their positions:
    /// `1 + scale * ln(1 + floor((pos + offset) / floor))`. A scale of 0 changes nothing.
    pub fn tempered(&self, q: Tensor, [scale, floor, offset]: [f32; 3]) -> Result<Tensor> {
        if scale == 0.0 {
            return Ok(q);
        }
        let factor = self.input(DerivedInput::Temperature {
            scale,
            floor,
            offset,
        })?;
        self.g.mul(&q, &factor)
    }

    /// Elements `[start, start + width)` of each row of `x [.., n]`, contiguous.
    pub fn columns(&self, x: &Tensor, start: u64, width: u64) -> Result<Tensor> {
        self.g.cont(&self.window(x, start, width)?)
    }

    /// Elements `[start, start + width)` of each row of `x [.., n]`, as a view.
    pub(super) fn window(&self, x: &Tensor, start: u64, width: u64) -> Result<Tensor> {
        let ([_, a, b, c], [element, steps @ ..]) = (x.shape(), x.strides());
        let offset = start as usize * element;
        self.g.view(x, [width, a, b, c], steps, offset)
    }
}

impl<'u, 'g> UnitBuilder<'u, 'g> {
    /// The unit as the owner of stored keys.
    pub(super) fn key_owner(&self) -> Result<KeyOwner<'u>> {
        let unit = self.unit;
        let own = unit.key_values().map(|state| KeyOwner {
            path: &unit.path,
            state,
        });
        own.ok_or_else(|| refused("key_owner", format!("{} keeps no keys", unit.path)))
    }

    /// Applies the captures and edits of a point to the unit's value `x [.., n_tokens]`, and returns the value that later
    /// operations read. The unit's contract states the point `name`.
    pub fn point(&self, name: &str, x: Tensor) -> Result<Tensor> {
        let mut points = self.unit.contract.0.points.iter();
        let Some(spec) = points.find(|spec| spec.name == name) else {
            return Err(refused(
                "point",
                format!("the contract of {} has no point `{name}`", self.unit.path),
            ));
        };
        self.point_at(&self.unit.path, spec, x)
    }

    /// A weight of a unit; `None` if the file lacks it.
    pub fn weight(&self, key: &str) -> Option<&'g Tensor> {
        self.weight_of(self.unit, key)
    }

    /// A weight of a unit that its contract requires.
    pub fn required_weight(&self, key: &str) -> Result<Tensor> {
        self.weight(key).cloned().ok_or_else(|| {
            refused(
                "weight",
                format!("{} has no weight `{key}`", self.unit.path),
            )
        })
    }

    /// `w.x + bias` with the weight `key` and its bias, if there is one. If it has bounds, `x` and the result are limited to them.
    pub fn linear(&self, key: &str, x: &Tensor) -> Result<Tensor> {
        let Some(bounds) = self.weight(&format!("{key}.clip")) else {
            let product = self.product(key, x)?;
            return self.with_bias(&format!("{key}.bias"), product);
        };
        let product = self.product(key, &self.within(x, bounds, 0)?)?;
        let y = self.with_bias(&format!("{key}.bias"), product)?;
        self.within(&y, bounds, 2)
    }

    /// `x` limited to the two numbers from element `first` of `bounds` on, which may be infinite.
    fn within(&self, x: &Tensor, bounds: &Tensor, first: usize) -> Result<Tensor> {
        let (g, [element, steps @ ..]) = (self.g, bounds.strides());
        let bound = |at: usize| g.view(bounds, [1, 1, 1, 1], steps, (first + at) * element);
        let above = g.unary(&g.sub(x, &bound(1)?)?, Unary::Relu)?;
        let x = g.sub(x, &above)?;
        let below = g.unary(&g.scale(&g.sub(&x, &bound(0)?)?, -1.0)?, Unary::Relu)?;
        g.add(&x, &below)
    }

    /// `w.x` with the weight `key` and its updates; the last dimensions of `x` are the tokens.
    pub fn product(&self, key: &str, x: &Tensor) -> Result<Tensor> {
        let shape = x.shape();
        let first = (1..4).find(|dim| shape[*dim..].iter().product::<u64>() == self.n_tokens);
        let of_tokens = first.map(|first| {
            let is_token = |dim: usize| dim >= first;
            std::array::from_fn(|dim| if is_token(dim) { shape[dim] } else { 1 })
        });
        // Without a dimension of tokens, the shapes of the scales make the update fail.
        let weight = self.required_weight(key)?;
        self.product_of(key, &weight, x, of_tokens.unwrap_or([0; 4]))
    }

    /// The product of each head of `x [d, n_tokens, heads]` with its own matrix of the weight `key [d, m, heads]`, or
    /// `[d, m * heads]`: `[m, n_tokens, heads]`.
    pub fn product_by_head(&self, key: &str, x: &Tensor) -> Result<Tensor> {
        let (weight, heads) = (self.required_weight(key)?, x.shape()[2]);
        let weight = match weight.shape() {
            [d, n, 1, 1] => self.g.reshape(&weight, [d, n / heads, heads, 1])?,
            _ => weight,
        };
        self.product_of(key, &weight, x, [1, self.n_tokens, 1, 1])
    }

    /// `w.x` for a weight in this shape. `of_tokens` is the shape that one number for each token has when it is
    /// repeated to `x`.
    fn product_of(
        &self,
        key: &str,
        weight: &Tensor,
        x: &Tensor,
        of_tokens: [u64; 4],
    ) -> Result<Tensor> {
        let g = self.g;
        let y = g.mul_mat(weight, x)?;
        let at = self.unit.weight(key).filter(|at| {
            // The update of a table updates its lookup: a head that projects with the table has its own update.
            self.plan.tensors[*at].role != WeightRole::Table
        });
        let Some(at) = at else { return Ok(y) };
        let first = |down: &Tensor| g.mul_mat(down, x);
        let second = |up: &Tensor, inner: &Tensor| g.mul_mat(up, inner);
        let y = self.adapters.add(g, at, y, of_tokens, first, second)?;
        self.add_switched(at, y, x)
    }

    /// `y` plus the updates of weight `at` of a unit by the adapters in the file, each token with its own adapter:
    /// `x [n_in, n_tokens]`, `y [n_out, n_tokens]`.
    pub(super) fn add_switched(&self, at: usize, y: Tensor, x: &Tensor) -> Result<Tensor> {
        let mut updates = self.unit.updates_of(at).peekable();
        let (Some(ids), Some(_)) = (&self.switched, updates.peek()) else {
            return Ok(y);
        };
        let (g, n) = (self.g, self.n_tokens);
        let x = g.reshape(x, [x.shape()[0], 1, n, 1])?;
        let mut rows: Option<Tensor> = None;
        for (down, up) in updates {
            let inner = g.mul_mat_id(&self.tensors[down], &x, ids)?;
            let part = g.mul_mat_id(&self.tensors[up], &inner, ids)?;
            rows = Some(joined(g, rows.as_ref(), part, 0)?);
        }
        self.adapters.updated.borrow_mut().insert(at);
        match rows {
            Some(rows) => g.add(&y, &g.reshape(&rows, y.shape())?),
            None => Ok(y),
        }
    }

    /// `w_e.x` for the picked experts, with the weight `key [n, m, experts]` and `x [n, 1 or used, n_tokens]`:
    /// `[m, used, n_tokens]`.
    pub fn product_of_experts(
        &self,
        key: &str,
        x: &Tensor,
        experts: &PickedExperts,
    ) -> Result<Tensor> {
        let (g, weight) = (self.g, self.required_weight(key)?);
        let product = |weight: &Tensor, x: &Tensor| match experts.may_repeat {
            true => product_of_each(g, weight, x, &experts.ids),
            false => g.mul_mat_id(weight, x, &experts.ids),
        };
        let y = product(&weight, x)?;
        let Some(at) = self.unit.weight(key) else {
            return Ok(y);
        };
        let first = |down: &Tensor| product(down, x);
        let of_tokens = [1, 1, self.n_tokens, 1];
        self.adapters.add(g, at, y, of_tokens, first, product)
    }

    /// Rows `ids [n_tokens]` of the table `key [n, rows]`: `[n, n_tokens]`.
    pub fn table_rows(&self, key: &str, ids: &Tensor) -> Result<Tensor> {
        let (g, table) = (self.g, self.required_weight(key)?);
        let y = g.get_rows(&table, ids)?;
        let Some(at) = self.unit.weight(key) else {
            return Ok(y);
        };
        let first = |down: &Tensor| g.get_rows(down, ids);
        let second = |up: &Tensor, inner: &Tensor| g.mul_mat(up, inner);
        let of_tokens = [1, self.n_tokens, 1, 1];
        self.adapters.add(g, at, y, of_tokens, first, second)
    }

    /// Rows `[n]` that the tokens' ids select in the table `key` of ids `[n, n_vocab]`: i32 `[n, n_tokens]`.
    pub(super) fn ids_of_tokens(&self, key: &str) -> Result<Tensor> {
        let table = self.required_weight(key)?;
        match &self.ids {
            Some(ids) => {
                let ids = self.g.reshape(ids, [self.n_tokens, 1, 1, 1])?;
                self.g.get_rows(&table, &ids)
            }
            None => Err(refused(
                "ids_of_tokens",
                format!("{}: the rows are of no tokens", self.unit.path),
            )),
        }
    }

    /// `x` plus the weight `key`, if there is one.
    pub fn with_bias(&self, key: &str, x: Tensor) -> Result<Tensor> {
        match self.weight(key) {
            Some(bias) => self.g.add(&x, bias),
            None => Ok(x),
        }
    }
}

/// `cap * tanh(scale * x / cap)`.
pub(super) fn softcap(g: &Graph, x: &Tensor, scale: f32, cap: f32) -> Result<Tensor> {
    let y = g.unary(&g.scale(x, scale / cap)?, Unary::Tanh)?;
    g.scale(&y, cap)
}

/// The parameters of a rope for ggml. They correct YaRN's magnitude: ggml multiplies by `1 + 0.1 ln(factor)` when it
/// mixes angles; a definition with a logarithmic multiplier m needs that divided by `1 + 0.1 m ln(factor)`.
fn rope_params(rope: &RopeOptions) -> RopeParams {
    let is_yarn = rope.scaling == Scaling::Yarn;
    let spread = if rope.factor > 1.0 {
        rope.factor.ln()
    } else {
        0.0
    };
    let correction = if is_yarn {
        1.0 + 0.1 * rope.log_mul * spread
    } else {
        1.0
    };
    // The operation raises the magnitude where it mixes.
    let is_mixed = rope.mixture().is_some();
    let magnitude = if is_mixed && rope.ext != 0.0 {
        1.0 + 0.1 * spread
    } else {
        1.0
    };
    RopeParams {
        pairing: match rope.kind {
            Pairing::Norm => RopePairing::Norm,
            Pairing::Neox | Pairing::Mrope => RopePairing::Neox,
            Pairing::Imrope => RopePairing::Interleaved,
        },
        sections: matches!(rope.kind, Pairing::Mrope | Pairing::Imrope).then_some(rope.sections()),
        dims: rope.dims,
        orig_ctx: rope.orig_ctx,
        base: rope.base,
        freq_scale: if rope.scaling == Scaling::None || is_mixed {
            1.0
        } else {
            1.0 / rope.factor
        },
        ext_factor: if is_yarn && !is_mixed { rope.ext } else { 0.0 },
        attn_factor: rope.attn * magnitude / correction,
        beta_fast: rope.fast,
        beta_slow: rope.slow,
    }
}

/// The product of each selected expert as if of a token of its own, which selects one.
fn product_of_each(g: &Graph, weight: &Tensor, x: &Tensor, picked: &Tensor) -> Result<Tensor> {
    let (used, n, width) = (picked.shape()[0], picked.shape()[1], x.shape()[0]);
    let x = match x.shape()[1] == used {
        true => x.clone(),
        false => g.repeat(x, [width, used, n, 1])?,
    };
    let x = g.reshape(&x, [width, 1, used * n, 1])?;
    let y = g.mul_mat_id(weight, &x, &g.reshape(picked, [1, used * n, 1, 1])?)?; // [rows, 1, used * n]
    g.reshape(&y, [y.shape()[0], used, n, 1])
}
