//! A mixture of experts (Shazeer et al. 2017): a router sends each position to a few of many
//! MLPs.
//!
//! ```text
//! s    = score(router . r + router.bias)          softmax or sigmoid over all experts
//! pick = the `used` experts with the largest s + selection bias, within the best groups, or by_token[token]
//!        (several may share one: e = pick // share)
//! w    = s[pick]  ->  softmax or sigmoid, sum to one, scale, as set; or those of `sparse_mixer`
//! y    = sum over picked e of w_e * (down_e . (act(gate_e.h) * up_e.h + ..) * down.scale_e + ..)
//! ```
//! The last experts may be the identity: their `w_e . h` is added. Experts may work on a narrower hidden state:
//! `h = latent_down . h`, `y = latent_up . y`, through a norm if set. `[n_embd, n_tokens]` in and out. `r` is `h`, or
//! the branch's `side`, through the router's norm.

use super::build::{PickedExperts, UnitBuilder};
use super::sparse_mixer;
use crate::arch::{ActRef, Contract, NormRef, SideInput};
use crate::{choices, options, points, rules, weights};
use lab_base::ggml::{Graph, Result, Tensor, Unary};

choices! {
    /// How the router's logits become scores.
    pub(super) enum Score {
        /// Softmax over all experts.
        Softmax = "softmax",
        Sigmoid = "sigmoid",
        /// No function: the logits are ranked, and softmax runs over the picked ones.
        SoftmaxAfter = "softmax_after",
        /// No function: the logits are ranked, and the weights are the sigmoids of the picked ones.
        SigmoidAfter = "sigmoid_after",
        /// `sqrt(softplus(x))` of each.
        SqrtSoftplus = "sqrt_softplus",
        /// No function: the logits are ranked, and each picked one gets its weight separately.
        SparseMixer = "sparse_mixer",
    }
}

choices! {
    /// Where an expert's weight is applied.
    pub(super) enum WeightAt {
        /// To the expert's result.
        Output = "output",
        /// To the expert's input.
        Input = "input",
    }
}

choices! {
    /// The weight of an expert that several of the router's experts share.
    pub(super) enum ShareWeight {
        /// The weight of the selected router expert.
        Selected = "selected",
        /// The weight of the router's expert with the number of the shared one.
        Number = "number",
    }
}

options! {
    pub(super) struct Config {
        act: ActRef, "activation of each expert's hidden layer: a kind or a declared name, see `[act.NAME]`";
        score: Score = "expert_score", "how the router's logits become scores: `softmax`, `sigmoid`, `softmax_after` (over those selected), `sigmoid_after` (of those selected, which are so by their logits), `sqrt_softplus` or `sparse_mixer` (each selected logit against the remaining ones near it)";
        jitter: f32 = "0", when "score == 'sparse_mixer'", "jitter of `sparse_mixer`: a logit counts if it is below the selected one by at most twice this share of it";
        renormalise: bool = "expert_norm", "whether the weights of the selected experts are divided by their sum";
        experts: u64 => "n_expert", "number of experts";
        used: u64 => "n_expert_used", "experts selected for each token";
        share: u64 = "1", "experts of the router that share one: an expert selected as number e is number e // share";
        identity: u64 = "0", "experts of the router, the last ones, that are not stored and return what they read; 0: none";
        stored: u64 => "if(share > 1, experts // share, if(identity > 0, experts - identity, experts))", when "share > 1 or identity > 0", "number of stored experts";
        share_weight: ShareWeight = "selected", when "share > 1", "weight of a shared expert: that of the `selected` one, or of the router's expert with its `number`";
        width: u64 = "n_ff_exp", "elements of an expert's hidden layer";
        latent: u64 = "if(has('latent_down'), dim('latent_down', 1), n_embd)", when "has('latent_down')", "elements of the input of an expert, which may be fewer than the hidden state has";
        scale: f32 = "1", "factor of the experts' weights; 1: none";
        groups: u64 => "n_group", when "groups > 1", "groups of experts; 1: no groups";
        groups_used: u64 => "n_group_used", when "groups > 1", "groups that experts are selected from, those with the highest sum of best scores";
        group_best: u64 = "2", when "groups > 1", "best scores of a group that are summed";
        weight_at: WeightAt = "output", "what the weight of an expert multiplies: its `output` or its `input`";
        router_norm: NormRef = "none", "norm of the input of the router";
        latent_norm: NormRef = "none", when "has('latent_up')", "norm of the sum of the experts' results, before `latent_up`";
        router_scale: f32 = "1", "factor of what the router reads; 1: none";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "moe",
    title: "Mixture of experts",
    noun: "experts",
    phrase: "{=used} of {=experts} experts {has('by_token'): that a table has for the token, weighed by {=score} | by {=score}}{groups > 1: , from {=groups_used} of {=groups} groups}{share > 1: , {=share} of which share one}{identity > 0: , {=identity} of which return what they read}, each of width {=width}{has('gate') or has('gate_up'): , gated by {=act} |  with {=act}}",
    summary: "Sends each position through a few of many MLPs.",
    formula: concat!(
        "y = {has('latent_up'): latent_up . }{latent_norm -> latent_norm: sum over picked e of w_e * down_e . (",
        "{has('gate') or has('gate_up'): {=act}(gate_e.h) * up_e.h | {=act}(up_e.h)})}{identity > 0:  + sum over other picked e of w_e * h};  w = {scale != 1: scale * }{=score}(router.h)",
    ),
    options: Config::OPTIONS,
    weights: weights! {
        router: Matrix "ffn_gate_inp.weight" ["n_embd", "experts"] never_quantised, "router: projection to a logit for each expert";
        router.bias: Bias "ffn_gate_inp.bias" ["experts"] optional, "bias of the router's logits";
        router_norm: Scale "ffn_gate_inp.scale" ["n_embd"] optional when("router_norm"), "weight of the norm of the router's input";
        selection: Bias "exp_probs_b.bias" ["experts"] optional, "selection bias, added to the scores only to select experts";
        by_token: Ids("experts") "ffn_gate_tid2eid.weight" ["used", "n_vocab"] optional, "experts of each token, instead of those with the highest scores";
        latent_down: Matrix "ffn_latent_down.weight" ["n_embd", "latent"] optional, "projection from the hidden state to the experts' input";
        latent_up: Matrix "ffn_latent_up.weight" ["latent", "n_embd"] optional when("has('latent_down')"), "projection from the sum of the experts' results to the hidden state";
        latent_norm: Scale "ffn_latent_norm.weight" ["latent"] when("has('latent_up') and latent_norm"), "weight of the norm of the sum of the experts' results";
        gate_up: Matrix "ffn_gate_up_exps.weight" ["latent", "2 * width", "stored"] optional, "gate and up projection of every expert in one matrix: the rows of the gate, then those of up";
        gate_up.bias: Bias "ffn_gate_up_exps.bias" ["2 * width", "stored"] optional when("has('gate_up')"), "bias of `gate_up`";
        gate: Matrix "ffn_gate_exps.weight" ["latent", "width", "stored"] unless_forbidden when("not has('gate_up')"), "gate projection of every expert";
        gate.bias: Bias "ffn_gate_exps.bias" ["width", "stored"] optional when("not has('gate_up') and has('gate')"), "bias of the gate projections";
        up: Matrix "ffn_up_exps.weight" ["latent", "width", "stored"] when("not has('gate_up')"), "up projection of every expert";
        up.bias: Bias "ffn_up_exps.bias" ["width", "stored"] optional when("not has('gate_up')"), "bias of the up projections";
        down: Matrix "ffn_down_exps.weight" ["width", "latent", "stored"], "down projection of every expert";
        down.bias: Bias "ffn_down_exps.bias" ["latent", "stored"] optional, "bias of the down projections";
        down.scale: Scale "ffn_down_exps.scale" ["stored"] optional, "factor of the result of every expert";
    },
    side: Some(SideInput {
        width: "n_embd",
        doc: "input of the router",
    }),
    points: points! {
        router: Experts ["experts"], "logits of the router";
        ranking: Experts ["experts"], "scores by which experts are picked; weights do not follow from them";
        picked: Indices ["used"], "numbers of the picked experts, or of what they share";
        weights: Neurons ["1", "used"], "weights of the picked experts";
        gate: Neurons ["width", "used"], "gate products of the picked experts before their activation";
        up: Neurons ["width", "used"], "up products of the picked experts";
        hidden: Neurons ["width", "used"], "hidden layers of the picked experts";
        results: Neurons ["latent", "used"], "results of the picked experts, before they are weighed and added";
    },
    rules: rules! {
        "act", "a hidden layer has an activation";
        "used > 0 and used <= experts", "`used` is at least 1 and at most `experts`";
        "share > 0 and experts % share == 0", "`share` divides `experts`";
        "identity == 0 or identity < experts and share == 1 and weight_at == 'output'", "some experts are stored; where others return what they read, none are shared, and weights are of the output";
        "groups > 0 and experts % groups == 0 and groups_used > 0 and groups_used <= groups and group_best > 0", "`groups` divides `experts`, `groups_used` is at most `groups`, `group_best` is positive";
        "groups == 1 or used <= groups_used * experts / groups", "the picked groups have enough experts";
        "score != 'sparse_mixer' or used <= 2 and groups == 1 and jitter >= 0 and not has('selection')", "`sparse_mixer` picks one or two of all experts, by their logits alone; its `jitter` is not negative";
        "not has('by_token') or score != 'sparse_mixer' and groups == 1 and not has('selection')", "experts that follow from the token are not selected: by no groups, no selection bias, no `sparse_mixer`";
        "has('latent_down') or latent == n_embd", "experts read as many elements as the hidden state has, unless a projection makes fewer";
        "scale != 0", "`scale` is not zero";
    },
    ..Contract::BLOCK
};

/// Lower bound of a sum of weights: the smallest normal number of half precision.
const MIN_SUM: f32 = 6.103_515_6e-5;

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let (g, n) = (b.g, b.n_tokens);
    let routed = b.side.clone().unwrap_or_else(|| x.clone());
    let (picked, weights) = route(b, &c, &routed)?;
    let picked = b.point("picked", picked)?;
    let weights = b.point("weights", weights)?;
    let (picked, weights, returned) = match c.identity {
        0 => (picked, weights, None),
        _ => {
            let (picked, weights, returned) = stored(g, &c, &picked, &weights)?;
            (picked, weights, Some(returned))
        }
    };

    // A token may pick an expert twice: experts that share one, those that are not stored, and the numbers of a table,
    // which a file may repeat.
    let may_repeat = c.share > 1 || c.identity > 0 || b.weight("by_token").is_some();
    let picks = &PickedExperts {
        ids: picked,
        may_repeat,
    };
    let x = match b.weight("latent_down") {
        Some(_) => b.linear("latent_down", x)?,
        None => x.clone(),
    };
    let input = g.reshape(&x, [c.latent, 1, n, 1])?;
    let input = match c.weight_at {
        WeightAt::Output => input,
        WeightAt::Input => {
            let copies = g.repeat(&input, [c.latent, c.used, n, 1])?;
            g.mul(&copies, &weights)?
        }
    };
    let (gate, up) = if b.weight("gate_up").is_some() {
        let (gate, up) = b.halves(&experts(b, "gate_up", &input, picks)?)?;
        (Some(gate), up)
    } else {
        let up = experts(b, "up", &input, picks)?;
        let gate = match b.weight("gate") {
            Some(_) => Some(experts(b, "gate", &input, picks)?),
            None => None,
        };
        (gate, up)
    };
    let hidden = b.hidden(c.act, gate, up)?;
    let hidden = b.point("hidden", hidden)?;
    let y = experts(b, "down", &hidden, picks)?; // [n_embd, used, n_tokens]
    let y = b.point("results", y)?;
    let y = match c.weight_at {
        WeightAt::Output => g.mul(&y, &weights)?,
        WeightAt::Input => y,
    };
    let y = sum_experts(g, &y)?;
    let y = match returned {
        Some(weight) => g.add(&y, &g.mul(&x, &weight)?)?,
        None => y,
    };
    match b.weight("latent_up") {
        Some(_) => {
            let y = b.normalise_with(c.latent_norm, b.weight("latent_norm"), &y)?;
            b.linear("latent_up", &y)
        }
        None => Ok(y),
    }
}

/// `w_e . x` for the picked experts, with their factors and biases: `[rows, used, n_tokens]`.
fn experts(
    b: &UnitBuilder<'_, '_>,
    key: &str,
    x: &Tensor,
    picked: &PickedExperts,
) -> Result<Tensor> {
    let mut y = b.product_of_experts(key, x, picked)?;
    if let Some(scale) = b.weight(&format!("{key}.scale")) {
        y = b.g.mul(&y, &factors(b.g, scale, &picked.ids)?)?;
    }
    match b.weight(&format!("{key}.bias")) {
        Some(bias) => b.g.add_id(&y, bias, &picked.ids),
        None => Ok(y),
    }
}

/// One number for each picked expert: `values [experts]` -> `[1, used, n_tokens]`.
fn factors(g: &Graph, values: &Tensor, picked: &Tensor) -> Result<Tensor> {
    let (n_experts, n) = (values.shape()[0], picked.shape()[1]);
    let column = g.reshape(values, [1, n_experts, 1, 1])?;
    let table = g.repeat(&column, [1, n_experts, n, 1])?;
    g.get_rows(&table, picked)
}

/// Splits the picked experts `[used, n_tokens]` with weights `[1, used, n_tokens]` into the stored experts, their
/// weights, and the sum `[1, n_tokens]` of the other weights. The last stored expert, with weight 0, replaces each that
/// is not stored.
fn stored(
    g: &Graph,
    c: &Config,
    picked: &Tensor,
    weights: &Tensor,
) -> Result<(Tensor, Tensor, Tensor)> {
    let (used, n) = (picked.shape()[0], picked.shape()[1]);
    let (below, others) = g.ids_below(picked, c.stored)?;
    let others = g.mul(weights, &g.reshape(&others, [1, used, n, 1])?)?;
    let sum = g.sum_rows(&g.reshape(&others, [used, n, 1, 1])?)?;
    Ok((below, g.sub(weights, &others)?, sum))
}

/// The sum over the picked experts: `y [n_embd, used, n_tokens]` -> `[n_embd, n_tokens]`.
fn sum_experts(g: &Graph, y: &Tensor) -> Result<Tensor> {
    let (shape, strides) = (y.shape(), y.strides());
    let one = |i: u64| {
        let window = [shape[0], shape[2], 1, 1];
        let steps = [strides[2], strides[2] * shape[2] as usize, strides[3]];
        g.view(y, window, steps, i as usize * strides[1])
    };
    let mut sum = one(0)?;
    for i in 1..shape[1] {
        sum = g.add(&sum, &one(i)?)?;
    }
    if shape[1] == 1 { g.cont(&sum) } else { Ok(sum) }
}

/// The picked experts `[used, n_tokens]`, as numbers of the shared experts, and their weights `[1, used, n_tokens]`.
fn route(b: &UnitBuilder<'_, '_>, c: &Config, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let (g, n) = (b.g, b.n_tokens);
    let x = b.normalise_with(c.router_norm, b.weight("router_norm"), x)?;
    let x = g.scale(&x, c.router_scale)?;
    let logits = b.linear("router", &x)?; // [experts, n_tokens]
    let logits = b.point("router", logits)?;
    let scores = match c.score {
        Score::Softmax => b.softmax(&logits)?,
        Score::Sigmoid => g.unary(&logits, Unary::Sigmoid)?,
        Score::SoftmaxAfter | Score::SigmoidAfter | Score::SparseMixer => logits,
        Score::SqrtSoftplus => g.unary(&g.unary(&logits, Unary::Softplus)?, Unary::Sqrt)?,
    };
    let picked = match b.weight("by_token") {
        Some(_) => b.ids_of_tokens("by_token")?,
        None => best(b, c, &scores)?,
    };
    let shared = match c.share {
        1 => picked.clone(),
        share => g.divide_ids(&picked, share)?,
    };
    let weighed = match c.share_weight {
        ShareWeight::Selected => &picked,
        ShareWeight::Number => &shared,
    };
    // Backends compute all of the following, from the scores on, by one kernel if the operations are these in this
    // order. None has a kernel that selects groups too.
    let by_expert = [1, c.used, n, 1];
    let table = g.reshape(&scores, [1, c.experts, n, 1])?;
    let weights = g.get_rows(&table, weighed)?;
    let flat = |weights: &Tensor| g.reshape(weights, [c.used, n, 1, 1]);
    let weights = match c.score {
        Score::SoftmaxAfter => b.softmax(&flat(&weights)?)?,
        Score::SigmoidAfter => g.unary(&weights, Unary::Sigmoid)?,
        Score::SparseMixer => sparse_mixer::weights(g, &scores, c.used, c.jitter)?,
        _ => weights,
    };
    let weights = if c.renormalise {
        let weights = flat(&weights)?;
        let sum = g.clamp(&g.sum_rows(&weights)?, MIN_SUM, f32::MAX)?;
        g.div(&weights, &sum)?
    } else {
        weights
    };
    let weights = g.scale(&g.reshape(&weights, by_expert)?, c.scale)?;
    g.expand(&weights)?;
    Ok((shared, weights))
}

/// The experts with the highest scores `[experts, n_tokens]`: `[used, n_tokens]`.
fn best(b: &UnitBuilder<'_, '_>, c: &Config, scores: &Tensor) -> Result<Tensor> {
    let g = b.g;
    let ranked = match b.weight("selection") {
        Some(bias) => g.add(scores, bias)?,
        None => scores.clone(),
    };
    let ranked = b.point("ranking", ranked)?;
    let ranked = if c.groups > 1 && c.groups_used < c.groups {
        best_groups(g, c, &ranked)?
    } else {
        ranked
    };
    g.top_k(&ranked, c.used)
}

/// Scores `[experts, n_tokens]` in which the experts outside the best groups are -inf. The score of a group is the sum
/// of its best scores.
fn best_groups(g: &Graph, c: &Config, ranked: &Tensor) -> Result<Tensor> {
    let (n, size) = (ranked.shape()[1], c.experts / c.groups);
    let rows = g.reshape(ranked, [size, c.groups * n, 1, 1])?;
    let n_best = size.min(c.group_best);
    let best = g.top_k(&rows, n_best)?; // [n_best, groups * n_tokens]
    let cells = g.reshape(ranked, [1, size, c.groups * n, 1])?;
    let best = g.get_rows(&cells, &best)?; // [1, n_best, groups * n_tokens]
    let best = g.reshape(&best, [n_best, c.groups * n, 1, 1])?;
    let sums = g.reshape(&g.sum_rows(&best)?, [c.groups, n, 1, 1])?;
    let chosen = g.top_k(&sums, c.groups_used)?; // [groups_used, n_tokens]
    let groups = g.reshape(ranked, [size, c.groups, n, 1])?;
    let kept = g.get_rows(&groups, &chosen)?; // [size, groups_used, n_tokens]
    let nothing = g.fill(&groups, f32::NEG_INFINITY)?;
    let out = g.put_rows(&nothing, &kept, &chosen)?;
    g.reshape(&out, [c.experts, n, 1, 1])
}
