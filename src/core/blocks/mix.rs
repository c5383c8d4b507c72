//! Mixes of several hidden states of a token: how they start, are read as one, are written back, and end as one.
//!
//! ```text
//! mean       X_i = x                                                      at the start
//!            x   = mean of X_i                                            at the end
//! projected  X_0 = x,  X_i = P_i . x, as long as x                        at the start
//!            x   = mean of X_0 and P_i . X_i, as long as X_0              at the end
//! gated      m   = fn . rms(all X),  g = sigmoid(scale * m + base) + eps
//!            x   = sum of g_i * X_i
//!            X_i = X_i + (magnitude * sigmoid(scale' * m'_i + base'_i) + write_eps) * y
//!            with rounds: sum over j of S_ij * X_j in place of X_i, S = sinkhorn(scale'' * m'' + base'')
//! predicted  r(v) = tanh(router . norm(v) / n_embd)
//!            P_i = X_i + sum over j of (predict . r(X_0))_ij * X_j,  x = P_0
//!            X_i = P_i + (1 + (correct . r(y))_i) * (y - P_0)
//! others     x   = correct_scale * X_0;  X_i = X_i + y for all i but 0
//! low_rank   N_i = norm_i . rms(X_i),  g = sigmoid(up . silu(down . N / count))
//!            x   = mean of g_i * N_i, by elements
//!            X_i = X_i + magnitude * sigmoid(inject . N / count)_i * y
//! all        x   = all X_i, one after another;  they are what becomes of it
//! attended   X_0 = x                                                      at the start
//!            x   = sum of p_i * X_i,  p = softmax over i of score . norm(X_i)
//!            the last X_i = X_i + y, or y is a further state
//! ```
//! Gated: hyper-connections (Zhu et al. 2024, arXiv 2409.19606), with rounds on the manifold of doubly stochastic
//! matrices (Xie et al. 2025, arXiv 2512.24880). Predicted: AltUp (Baykal et al. 2023, arXiv 2301.13310).
//! Attended: attention residuals over blocks of layers (Moonshot AI 2026), with more states from layer to layer.
//! The states of a token lie one after another, `[n_embd * count, n_tokens]`.

use super::build::UnitBuilder;
use super::refused;
use crate::arch::{Contract, NormRef, RowWidth};
use crate::plan::Unit;
use crate::{choices, options, points, rules, weights};
use lab_base::ggml::{Error, Result, Tensor, Unary};

choices! {
    /// How several hidden states become one, and one becomes several.
    pub(super) enum MixKind {
        /// Copies at the start, their mean at the end.
        Mean = "mean",
        /// Projections, scaled to the length of the first state.
        Projected = "projected",
        /// Sums with factors that follow from all states.
        Gated = "gated",
        /// All states are predicted; the result of the first one corrects them.
        Predicted = "predicted",
        /// The first state is read, all others are written.
        Others = "others",
        /// Means of the states' norms, with a gate for each element.
        LowRank = "low_rank",
        /// All states are read and written as one long row.
        All = "all",
        /// Sums with the softmax of the states' scores. A layer may add states.
        Attended = "attended",
    }
}

options! {
    pub(super) struct Config {
        kind: MixKind, "`mean` (copies at the start, their mean at the end), `projected` (projections, scaled to the length of the first), `gated` (hyper-connections: sums with factors that follow from all states), `predicted` (AltUp: all are predicted, the first is read, and the error of its prediction corrects all), `others` (the first is read, the others are written), `low_rank` (means of their norms with a gate for each element, from a projection of low rank), `all` (they are read and written as they are, as one long row) or `attended` (attention residuals: one at the start, sums with the softmax of their scores, the last is written)";
        count: u64 => "if(kind != 'attended', n_streams, if(place == 0, 1, states))", "hidden states of a token, before a write: `n_streams`, or as many as there are";
        place: u64 => "place", "where it is used: 0 at the start, 1 within a layer, 2 at the end";
        norm: NormRef => "default", "kind and eps of its norms";
        eps: f32 = "0", when "kind == 'gated'", "added to the factors of what is read";
        magnitude: f32 = "1", when "kind == 'gated' or kind == 'low_rank'", "largest factor of what is written";
        rounds: u64 = "0", when "kind == 'gated'", "rounds of Sinkhorn's normalisation of the matrix with which states become each other when they are written; 0: each remains";
        write_eps: f32 = "0", when "kind == 'gated'", "added to the factors of what is written";
        rank: u64 = "0", when "kind == 'low_rank'", "rank of the projection to the gates";
        append: bool = "false", when "kind == 'attended'", "whether what is written becomes a further state, after which the others remain as they are";
    }
}

/// The contract of `[mix.NAME]`. `read = "hc_attn"` is the mix declared under that name, or `[mix.default]` with the
/// weights of that name.
pub(super) static CONTRACT: Contract = Contract {
    name: "mix",
    title: "Mix of hidden states",
    noun: "a mix of hidden states",
    phrase: concat!(
        "{kind == 'mean': {=count} hidden states, copies at the start}",
        "{kind == 'projected': {=count} hidden states, projected from one and to one}",
        "{kind == 'gated': {=count} hidden states read and written with factors that follow from all}",
        "{kind == 'predicted': {=count} hidden states predicted from all and corrected by what becomes of the first}",
        "{kind == 'others': the first of {=count} hidden states read, the others written}",
        "{kind == 'low_rank': {=count} hidden states, their norms read with a gate for each element}",
        "{kind == 'all': all of {=count} hidden states}",
        "{kind == 'attended': {place == 0: one hidden state | {=count} hidden states read by their scores, {append: a further one | the last} written}}",
    ),
    summary: "Makes, reads, writes or ends several hidden states.",
    formula: concat!(
        "{kind == 'mean': {place == 0: X_i = x | x = mean(X_i)}}",
        "{kind == 'projected': {place == 0: X_0 = x, X_i = |x| * unit(P_i . x) | x = mean(X_0, |X_0| * unit(P_i . X_i))}}",
        "{kind == 'gated': x = sum of (sigmoid(fn . rms(X)) + eps)_i * X_i",
        "{place == 1: ; X_i = {rounds > 0: (sinkhorn(fn . rms(X)) . X)_i | X_i} + (magnitude * sigmoid(fn . rms(X)) + write_eps)_i * y}}",
        "{kind == 'predicted': P = X + (predict . r(X_0)) . X, x = P_0; X_i = P_i + (1 + correct . r(y))_i * (y - P_0)}",
        "{kind == 'others': x = correct_scale * X_0; X_i = X_i + y for i > 0}",
        "{kind == 'low_rank': x = mean of sigmoid(up . silu(down . N))_i * N_i, N_i = norm_i . rms(X_i){place == 1: ; X_i = X_i + magnitude * sigmoid(inject . N)_i * y}}",
        "{kind == 'all': x = X; X = y}",
        "{kind == 'attended': {place == 0: X_0 = x | x = sum of softmax(score . norm(X))_i * X_i}{place == 1: ; {append: X = X | y as a further state | last X_i = X_i + y}}}",
    ),
    options: Config::OPTIONS,
    weights: weights! {
        proj: Matrix "{name}_proj.weight" ["n_embd", "n_embd", "count - 1"] never_quantised when("kind == 'projected'"), "projections of all states but the first";
        fn: Matrix "{name}_fn.weight" ["count * n_embd", "if(place == 2, 1, if(rounds > 0, 2 + count, 2)) * count"] never_quantised when("kind == 'gated'"), "projection of all states to their factors: of what is read, of what is written, and of each in each";
        base: Bias "{name}_base.weight" ["if(place == 2, 1, if(rounds > 0, 2 + count, 2)) * count"] when("kind == 'gated'"), "biases of the factors";
        scale: Scale "{name}_scale.weight" ["if(place == 2, 1, if(rounds > 0, 3, 2))"] when("kind == 'gated'"), "multipliers of the factors before their biases";
        router_norm: Scale "{name}_router_norm.weight" ["n_embd"] when("kind == 'predicted'"), "weight of the norm before the router";
        router: Matrix "{name}_router.weight" ["n_embd", "count"] never_quantised when("kind == 'predicted'"), "router: projection of a state to one number for each";
        predict: Matrix "{name}_predict_coef.weight" ["count", "count * count"] never_quantised when("kind == 'predicted'"), "projection to the factors of each state in the prediction of each";
        correct: Matrix "{name}_correct_coef.weight" ["count", "count"] never_quantised when("kind == 'predicted'"), "projection to the factors of the correction of each state";
        correct_scale: Scale "{name}_correct_scale.weight" ["n_embd"] when("kind == 'others'"), "factors of the elements of the first state";
        norm: Scale "{name}_norm.weight" ["n_embd", "count"] when("kind == 'low_rank'"), "weights of the norms of all states";
        down: Matrix "{name}_down.weight" ["n_embd * count", "rank"] never_quantised when("kind == 'low_rank'"), "projection of all norms to the hidden layer of their gates";
        up: Matrix "{name}_up.weight" ["rank", "n_embd * count"] never_quantised when("kind == 'low_rank'"), "projection to the gates of all elements";
        inject: Matrix "{name}_inject.weight" ["n_embd * count", "count"] never_quantised when("kind == 'low_rank' and place == 1"), "projection of all norms to the factors of what is written";
        score: Matrix "{name}_score.weight" ["n_embd"] never_quantised when("kind == 'attended' and place > 0"), "projection of the norm of a state to its score";
    },
    rows: RowWidth::Any,
    points: points! {
        x: Neurons ["n_embd * count"], "all hidden states of a token, after the start or a write; the one of `n_embd` elements that is read of them, or in which they end";
    },
    rules: rules! {
        "count > 1 or kind == 'attended'", "a mix is of at least two hidden states, unless they become more";
        "rounds == 0 or count == 4 and rounds < 1000", "Sinkhorn's normalisation is of four hidden states, in fewer than 1000 rounds";
        "kind == 'attended' or if(place == 0, kind == 'mean' or kind == 'projected', if(place == 1, kind != 'mean' and kind != 'projected', kind != 'predicted' and kind != 'others' and kind != 'all'))", "`mean` and `projected` start and end the hidden states, `gated` and `low_rank` are of layers and of the end, `predicted`, `others` and `all` of layers";
        "kind != 'low_rank' or rank > 0", "gates of low rank have a `rank`";
    },
    ..Contract::BLOCK
};

/// Maximum number of operations of one use of a mix; an upper estimate.
pub(crate) const NODES: usize = 48;

/// The values that the reading of hidden states keeps for their writing.
pub(crate) struct MixRead {
    /// The states, or their predictions: `[n_embd * count, n_tokens]`.
    pub(crate) all: Tensor,
    /// The factors of [`Kind::Gated`] before their offsets, `[2 * count, n_tokens]`, with rounds
    /// `[(2 + count) * count, n_tokens]`, or those of [`Kind::LowRank`] before their sigmoid, `[count, n_tokens]`.
    pub(crate) factors: Option<Tensor>,
}

/// A mix where it is used.
struct Mix<'a, 'u, 'g> {
    b: &'a UnitBuilder<'u, 'g>,
    c: Config,
}

/// The states `[n_embd * count, n_tokens]` at the start, of `x [n_embd, n_tokens]`.
pub(crate) fn start(b: &UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let _scope = b.g.scope("mix", &b.unit.path);
    let mix = Mix::new(b);
    let all = match mix.c.kind {
        MixKind::Projected => {
            let projected = mix.projected(&mix.one_each(x)?, x)?;
            let others = b.g.cont(&b.g.permute(&projected, [0, 2, 1, 3])?)?;
            b.g.concat(&mix.one(x)?, &others, 1)?
        }
        _ => mix.repeated(x)?,
    };
    let all = mix.joined(&all)?;
    b.point("x", all)
}

/// The value `[n_embd, n_tokens]` that is read of the states `[n_embd * count, n_tokens]`.
pub(crate) fn read(b: &UnitBuilder<'_, '_>, all: &Tensor) -> Result<(Tensor, MixRead)> {
    let _scope = b.g.scope("mix", &b.unit.path);
    let mix = Mix::new(b);
    let mut held = MixRead {
        all: all.clone(),
        factors: None,
    };
    let x = match mix.c.kind {
        MixKind::Gated => {
            let factors = mix.factors(all)?;
            let gates = mix.gates(&factors, 0, 1.0, mix.c.eps)?;
            held.factors = Some(factors);
            mix.summed(all, &gates)?
        }
        MixKind::Predicted => {
            held.all = mix.predicted(all)?;
            mix.first(&held.all)?
        }
        MixKind::Others => {
            b.g.mul(&mix.first(all)?, &b.required_weight("correct_scale")?)?
        }
        MixKind::Attended => mix.summed(all, &mix.shares(all)?)?,
        // The value is not computed here: it has its name already.
        MixKind::All => return Ok((all.clone(), held)),
        MixKind::LowRank => {
            let normed = mix.normed(all)?;
            let part = 1.0 / mix.c.count as f32;
            if b.weight("inject").is_some() {
                let factors = b.product("inject", &normed)?;
                held.factors = Some(b.g.scale(&factors, part)?);
            }
            let gated = b.g.mul(&normed, &mix.element_gates(&normed, part)?)?;
            let by_state = mix.by_state(&mix.apart(&gated)?)?;
            b.g.scale(&mix.sum(&by_state)?, part)?
        }
        MixKind::Mean | MixKind::Projected => return Err(misplaced(b.unit)),
    };
    Ok((b.point("x", x)?, held))
}

/// The states `[n_embd * count, n_tokens]` after the value that was read became `y [n_embd, n_tokens]`.
pub(crate) fn write(b: &UnitBuilder<'_, '_>, held: &MixRead, y: &Tensor) -> Result<Tensor> {
    let _scope = b.g.scope("mix", &b.unit.path);
    let (g, mix) = (b.g, Mix::new(b));
    if mix.c.kind == MixKind::All {
        return Ok(y.clone());
    }
    let all = mix.apart(&held.all)?;
    let written = match (mix.c.kind, &held.factors) {
        (MixKind::Gated, Some(factors)) => {
            let gates = mix.gates(factors, 1, mix.c.magnitude, mix.c.write_eps)?;
            let gates = g.reshape(&gates, [1, mix.c.count, b.n_tokens, 1])?;
            let kept = match mix.c.rounds {
                0 => all,
                rounds => {
                    let [scale, base] = [b.required_weight("scale")?, b.required_weight("base")?];
                    let each = g.sinkhorn(factors, &scale, &base, mix.c.eps, rounds)?;
                    let by_source = g.cont(&g.permute(&each, [1, 0, 2, 3])?)?;
                    mix.combined(&held.all, &by_source)?
                }
            };
            g.add(&kept, &g.mul(&mix.repeated(y)?, &gates)?)?
        }
        (MixKind::Predicted, _) => {
            let error = g.sub(y, &mix.first(&held.all)?)?;
            let gates = b.product("correct", &mix.routed(y)?)?;
            let gates = g.affine(&gates, 1.0, 1.0)?;
            let gates = g.reshape(&gates, [1, mix.c.count, b.n_tokens, 1])?;
            g.add(&all, &g.mul(&mix.repeated(&error)?, &gates)?)?
        }
        (MixKind::Others, _) => {
            let others = g.add(&mix.others(&held.all)?, &mix.one(y)?)?;
            g.concat(&mix.one(&mix.first(&held.all)?)?, &others, 1)?
        }
        (MixKind::LowRank, Some(factors)) => {
            let gates = g.scale(&g.unary(factors, Unary::Sigmoid)?, mix.c.magnitude)?;
            let gates = g.reshape(&gates, [1, mix.c.count, b.n_tokens, 1])?;
            g.add(&all, &g.mul(&mix.repeated(y)?, &gates)?)?
        }
        (MixKind::Attended, _) => return b.point("x", mix.extended(&held.all, y)?),
        _ => return Err(misplaced(b.unit)),
    };
    let written = mix.joined(&written)?;
    b.point("x", written)
}

/// The value `[n_embd, n_tokens]` of the states `[n_embd * count, n_tokens]` at the end.
pub(crate) fn end(b: &UnitBuilder<'_, '_>, all: &Tensor) -> Result<Tensor> {
    let mix = Mix::new(b);
    let (g, part) = (b.g, 1.0 / mix.c.count as f32);
    let x = match mix.c.kind {
        MixKind::Gated | MixKind::Attended | MixKind::LowRank => return Ok(read(b, all)?.0),
        MixKind::Mean => {
            let _scope = g.scope("mix", &b.unit.path);
            g.scale(&mix.sum(&mix.by_state(&mix.apart(all)?)?)?, part)?
        }
        MixKind::Projected => {
            let _scope = g.scope("mix", &b.unit.path);
            let first = mix.first(all)?;
            let others = g.permute(&mix.others(all)?, [0, 2, 1, 3])?;
            let projected = mix.projected(&g.cont(&others)?, &first)?;
            // `[count - 1, n_embd, n_tokens]`: the states are the fastest dimension.
            let by_state = g.cont(&g.permute(&projected, [1, 2, 0, 3])?)?;
            g.scale(&g.add(&first, &mix.sum(&by_state)?)?, part)?
        }
        MixKind::Predicted | MixKind::Others | MixKind::All => return Err(misplaced(b.unit)),
    };
    b.point("x", x)
}

fn misplaced(unit: &Unit) -> Error {
    refused("mix", format!("{} is not of this kind", unit.path))
}

impl<'a, 'u, 'g> Mix<'a, 'u, 'g> {
    fn new(b: &'a UnitBuilder<'u, 'g>) -> Self {
        let c = Config::read(&b.unit.options);
        Self { b, c }
    }

    fn width(&self) -> u64 {
        self.b.plan.n_embd
    }

    /// `x [n_embd, n_tokens]` as `[n_embd, 1, n_tokens]`.
    fn one(&self, x: &Tensor) -> Result<Tensor> {
        self.b.g.reshape(x, [self.width(), 1, self.b.n_tokens, 1])
    }

    /// `x [n_embd, n_tokens]` repeated for each state: `[n_embd, count, n_tokens]`.
    fn repeated(&self, x: &Tensor) -> Result<Tensor> {
        let shape = [self.width(), self.c.count, self.b.n_tokens, 1];
        self.b.g.repeat(&self.one(x)?, shape)
    }

    /// `x [n_embd, n_tokens]` repeated for each state but the first: `[n_embd, n_tokens, count - 1]`.
    fn one_each(&self, x: &Tensor) -> Result<Tensor> {
        let shape = [self.width(), self.b.n_tokens, self.c.count - 1, 1];
        self.b.g.repeat(x, shape)
    }

    /// Reshapes `[n_embd * count, n_tokens]` to `[n_embd, count, n_tokens]`.
    fn apart(&self, all: &Tensor) -> Result<Tensor> {
        let shape = [self.width(), self.c.count, self.b.n_tokens, 1];
        self.b.g.reshape(all, shape)
    }

    /// The reverse of [`Self::apart`].
    fn joined(&self, all: &Tensor) -> Result<Tensor> {
        let shape = [self.width() * self.c.count, self.b.n_tokens, 1, 1];
        self.b.g.reshape(all, shape)
    }

    /// The first state `[n_embd, n_tokens]` of `[n_embd * count, n_tokens]`, contiguous.
    fn first(&self, all: &Tensor) -> Result<Tensor> {
        self.b.columns(all, 0, self.width())
    }

    /// The other states `[n_embd, count - 1, n_tokens]` of `[n_embd * count, n_tokens]`, as a view.
    fn others(&self, all: &Tensor) -> Result<Tensor> {
        let apart = self.apart(all)?;
        let ([n, count, tokens, _], strides) = (apart.shape(), apart.strides());
        let steps = [strides[1], strides[2], strides[3]];
        let g = self.b.g;
        g.view(&apart, [n, count - 1, tokens, 1], steps, strides[1])
    }

    /// `[n_embd, count, n_tokens]` with the states first: `[count, n_embd, n_tokens]`, contiguous.
    fn by_state(&self, apart: &Tensor) -> Result<Tensor> {
        let g = self.b.g;
        g.cont(&g.permute(apart, [1, 0, 2, 3])?)
    }

    /// The sum of the states of `[n, n_embd, n_tokens]`: `[n_embd, n_tokens]`.
    fn sum(&self, by_state: &Tensor) -> Result<Tensor> {
        let g = self.b.g;
        let shape = [self.width(), self.b.n_tokens, 1, 1];
        g.reshape(&g.sum_rows(by_state)?, shape)
    }

    /// The sums of `all [n_embd * count, n_tokens]` with the factors `[count, n, n_tokens]`: `[n_embd, n, n_tokens]`.
    fn combined(&self, all: &Tensor, factors: &Tensor) -> Result<Tensor> {
        let by_state = self.by_state(&self.apart(all)?)?;
        let sums = self.b.g.mul_mat(&by_state, factors)?;
        self.b.g.exact(&sums)?;
        Ok(sums)
    }

    /// The sum of `all [n_embd * count, n_tokens]` with the factors `[count, n_tokens]`: `[n_embd, n_tokens]`.
    fn summed(&self, all: &Tensor, factors: &Tensor) -> Result<Tensor> {
        let (g, n) = (self.b.g, self.b.n_tokens);
        let factors = g.reshape(factors, [self.c.count, 1, n, 1])?;
        let sum = self.combined(all, &factors)?;
        g.reshape(&sum, [self.width(), n, 1, 1])
    }

    /// `P_i . x_i` for `x [n_embd, n_tokens, count - 1]`, scaled to the lengths of the rows of
    /// `like [n_embd, n_tokens]`.
    fn projected(&self, x: &Tensor, like: &Tensor) -> Result<Tensor> {
        let (g, b) = (self.b.g, self.b);
        let length = |x: &Tensor| g.unary(&g.sum_rows(&g.unary(x, Unary::Square)?)?, Unary::Sqrt);
        let y = b.product_by_head("proj", x)?;
        g.div(&g.mul(&y, &length(like)?)?, &length(&y)?)
    }

    /// The factors of all states before their offsets: `[2 * count, n_tokens]`, with rounds
    /// `[(2 + count) * count, n_tokens]`, at the end `[count, n_tokens]`.
    fn factors(&self, all: &Tensor) -> Result<Tensor> {
        let normed = self.b.normalise_with(self.c.norm, None, all)?;
        self.b.product("fn", &normed)
    }

    /// `magnitude * sigmoid(scale * m + base) + eps` of part `nth` of the factors: `[count, n_tokens]`.
    fn gates(&self, factors: &Tensor, nth: u64, magnitude: f32, eps: f32) -> Result<Tensor> {
        let (g, b, n) = (self.b.g, self.b, self.c.count);
        let window = |key: &str, start: u64, len: u64| {
            let weight = b.required_weight(key)?;
            let strides = weight.strides();
            let steps = [strides[1], strides[2], strides[3]];
            g.view(&weight, [len, 1, 1, 1], steps, start as usize * strides[0])
        };
        let m = b.columns(factors, nth * n, n)?;
        let m = g.mul(&m, &window("scale", nth, 1)?)?;
        let m = g.add(&m, &window("base", nth * n, n)?)?;
        g.affine(&g.unary(&m, Unary::Sigmoid)?, magnitude, eps)
    }

    /// The norms of all states, each with its own weight: `[n_embd * count, n_tokens]`.
    fn normed(&self, all: &Tensor) -> Result<Tensor> {
        let b = self.b;
        let weight = b.weight("norm");
        self.joined(&b.normalise_with(self.c.norm, weight, &self.apart(all)?)?)
    }

    /// The gates of all elements of the norms `[n_embd * count, n_tokens]`.
    fn element_gates(&self, normed: &Tensor, part: f32) -> Result<Tensor> {
        let (g, b) = (self.b.g, self.b);
        let hidden = g.scale(&b.product("down", normed)?, part)?;
        let hidden = g.unary(&hidden, Unary::Silu)?;
        g.unary(&b.product("up", &hidden)?, Unary::Sigmoid)
    }

    /// The softmax of the scores of all states: `[count, n_tokens]`.
    fn shares(&self, all: &Tensor) -> Result<Tensor> {
        let (g, b) = (self.b.g, self.b);
        let normed = b.normalise_with(self.c.norm, None, &self.apart(all)?)?;
        let scores = b.product("score", &normed)?;
        b.softmax(&g.reshape(&scores, [self.c.count, b.n_tokens, 1, 1])?)
    }

    /// The states with `y [n_embd, n_tokens]` appended as a further one, or added to the last one:
    /// `[n_embd * n, n_tokens]`.
    fn extended(&self, all: &Tensor, y: &Tensor) -> Result<Tensor> {
        let (g, width) = (self.b.g, self.width());
        let before = (self.c.count - 1) * width;
        match (self.c.append, self.c.count) {
            (true, _) => g.concat(all, y, 0),
            (false, 1) => g.add(all, y),
            (false, _) => {
                let last = g.add(&self.b.columns(all, before, width)?, y)?;
                g.concat(&self.b.columns(all, 0, before)?, &last, 0)
            }
        }
    }

    /// One number for each state, from `x [n_embd, n_tokens]`: `[count, n_tokens]`.
    fn routed(&self, x: &Tensor) -> Result<Tensor> {
        let (g, b) = (self.b.g, self.b);
        let weight = b.weight("router_norm");
        let normed = b.normalise_with(self.c.norm, weight, x)?;
        let normed = g.scale(&normed, 1.0 / self.width() as f32)?;
        g.unary(&b.product("router", &normed)?, Unary::Tanh)
    }

    /// The prediction of all states `[n_embd * count, n_tokens]`.
    fn predicted(&self, all: &Tensor) -> Result<Tensor> {
        let (g, b, n) = (self.b.g, self.b, self.c.count);
        let factors = b.product("predict", &self.routed(&self.first(all)?)?)?;
        let factors = g.reshape(&factors, [n, n, b.n_tokens, 1])?;
        g.add(all, &self.joined(&self.combined(all, &factors)?)?)
    }
}
