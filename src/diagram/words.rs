//! What blocks and operations are called, for a reader who sees them for the first time.
//!
//! Formulas and docs of weights are those of the contracts; here is only what no contract says.

use crate::arch::{Contract, Mode, OptionKind, Resolved, Resource};
use crate::blocks::REGISTRY;
use crate::blocks::cache::{Cache, Window};
use crate::ggml::Step;
use crate::plan::{Plan, StatePlan, Unit};
use crate::wording;

use super::{Icon, MASK, OpShape};

/// What is read under the name of a tap.
pub(super) fn tap(name: &str) -> String {
    let words = match name {
        "x" => "the stream before this slot",
        "h" => "the normed stream",
        "layer_in" => "the stream before this layer",
        "embd" => "the embedded tokens",
        "ple" => "this layer's own input",
        _ => "saved before",
    };
    format!("reads {name}: {words}")
}

/// What a block reads under the name of a tap beside its input.
pub(super) fn second(name: &str) -> String {
    tap(name).replacen("reads", "and", 1)
}

/// What a model does, as a predicate.
pub(super) fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Causal => "writes text token by token",
        Mode::Diffusion => "fills in masked tokens, in any order",
        Mode::Encoder => "gives a vector for each token of a text",
    }
}

/// What weights are for, by the kind of what reads them.
pub(super) fn purpose(kind: &'static str) -> &'static str {
    // Operations are built for a stage under the name of the plan's field.
    let name = if kind == "per_layer" {
        "per_layer_input"
    } else {
        kind
    };
    let contract = REGISTRY.all().find(|contract| contract.name == name);
    contract.map_or(kind, Contract::short)
}

/// What an operation is called, how it is drawn, and whether a weight's key stands before the name.
pub(super) fn op(step: &Step, number: &dyn Fn(usize) -> String) -> (String, OpShape) {
    let plain = |text: &str| (text.to_owned(), OpShape::Plain);
    let sign = |text: &str, sign| (text.to_owned(), OpShape::Sign(sign));
    match step.op.as_str() {
        "MUL_MAT" => plain("matrix product"),
        "MUL_MAT_ID" => plain("products of picked experts"),
        "ADD" => sign("sum", "+"),
        "SUB" => sign("difference", "\u{2212}"),
        "MUL" => sign("product by elements", "\u{d7}"),
        "DIV" => sign("quotient by elements", "\u{f7}"),
        "ADD_ID" => plain("offset of each picked expert"),
        "RMS_NORM" => plain("RMS norm"),
        "NORM" => plain("Layer norm"),
        "L2_NORM" => plain("unit length"),
        "GROUP_NORM" => plain("group norm"),
        "ROPE" => plain("rope: turn by position"),
        "SOFT_MAX" => plain("softmax"),
        "GET_ROWS" => plain("take rows"),
        "SET_ROWS" => plain("keep"),
        "SCALE" if step.params[1] != 0.0 => plain(&format!("\u{d7} {} + {}", number(0), number(1))),
        "SCALE" => plain(&format!("\u{d7} {}", number(0))),
        "CLAMP" if step.params[0] <= f32::MIN => plain(&format!("at most {}", number(1))),
        "CLAMP" if step.params[1] >= f32::MAX => plain(&format!("at least {}", number(0))),
        "CLAMP" => plain(&format!("between {} and {}", number(0), number(1))),
        "SILU" => plain("SiLU"),
        "GELU" => plain("GELU (tanh)"),
        "GELU_ERF" => plain("GELU"),
        "RELU" => plain("ReLU"),
        "SIGMOID" => plain("sigmoid"),
        "SOFTPLUS" => plain("softplus"),
        "TANH" => plain("tanh"),
        "EXP" => plain("exp"),
        "SQR" => plain("square"),
        "SQRT" => plain("square root"),
        "NEG" => plain("negative"),
        "XIELU" => plain("xIELU"),
        "SWIGLU" => plain("SiLU(gate) \u{d7} value"),
        "GEGLU" => plain("GELU(gate) \u{d7} value"),
        "GEGLU_ERF" => plain("GELU(gate) \u{d7} value"),
        "REGLU" => plain("ReLU(gate) \u{d7} value"),
        "SWIGLU_OAI" => plain("clipped SwiGLU"),
        "ARGSORT" | "TOP_K" => plain("places of the largest"),
        "SUM_ROWS" => plain("sum of each row"),
        "CONCAT" => plain("one behind the other"),
        "FILL" => plain("fill"),
        "PAD" => plain("pad"),
        "SSM_CONV" => plain("convolution over time"),
        "SSM_SCAN" => plain("selective scan"),
        "GATED_DELTA_NET" => plain("delta rule, token by token"),
        "FLASH_ATTN_EXT" | "CUSTOM" => plain("softmax(q \u{b7} k) \u{b7} v"),
        other => plain(&other.to_lowercase().replace('_', " ")),
    }
}

/// A box with weights is called after the first one's key.
pub(super) fn weighted(step: &Step, key: &str) -> String {
    let key = key.replace('_', " ");
    let plain = || op(step, &|_| String::new()).0;
    match step.op.as_str() {
        "MUL_MAT" => format!("{key}: projection"),
        "MUL_MAT_ID" => format!("{key}: picked experts"),
        "GET_ROWS" => format!("{key}: one row each"),
        "RMS_NORM" | "NORM" | "L2_NORM" | "SSM_CONV" | "GATED_DELTA_NET" | "SSM_SCAN"
        | "CUSTOM" | "FLASH_ATTN_EXT" | "ROPE" => plain(),
        "MUL" => format!("\u{d7} {key}"),
        "DIV" => format!("\u{f7} {key}"),
        "ADD" | "ADD_ID" => format!("+ {key}"),
        _ => format!("{key}: {}", plain()),
    }
}

/// The value of an option as text; resources by their names.
pub(super) fn option(plan: &Plan, kind: OptionKind, value: &Resolved) -> String {
    match (kind, value) {
        (OptionKind::Resource(kind), Resolved::Resource(Some(at))) => match kind {
            Resource::Cache => plan.caches[*at].name.clone(),
            Resource::Rope => rope(&plan.ropes[*at]),
            Resource::Norm => norm(&plan.norms[*at]),
        },
        (_, Resolved::Resource(_)) => "none".into(),
        (_, Resolved::Float(value)) => wording::tidy(*value),
        (_, other) => other.to_value().to_string(),
    }
}

/// The kind of a norm.
pub(super) fn norm(unit: &Unit) -> String {
    match unit.option("kind") {
        Some(Resolved::Choice("layer")) => "Layer norm".into(),
        _ => "RMS norm".into(),
    }
}

fn rope(unit: &Unit) -> String {
    let name = unit.path.strip_prefix("rope.").unwrap_or(&unit.path);
    match unit.option("kind") {
        Some(Resolved::Choice(kind)) => format!("{name} ({kind})"),
        _ => name.to_owned(),
    }
}

/// Whether a value is what an option says by default, which is not worth showing.
pub(super) fn is_default(default: &str, value: &Resolved) -> bool {
    match value {
        Resolved::Int(v) => default.parse() == Ok(*v),
        Resolved::Float(v) => default.parse() == Ok(*v),
        Resolved::Bool(v) => default.parse() == Ok(*v),
        Resolved::Choice(v) => default.trim_matches('\'') == *v,
        Resolved::Resource(v) => (default == "none") == v.is_none() || default == "default",
    }
}

/// What a part does, in one plain line. `size` gives the text of an option.
pub(super) fn line(plan: &Plan, unit: &Unit, size: &dyn Fn(&Unit, &str) -> String) -> String {
    let contract = unit.contract.0;
    match contract.name {
        "attention" | "mla" => match &unit.state {
            Some(StatePlan::KeyValue(rows)) => sight(plan, &plan.caches[rows.cache].unit, size),
            _ => contract.summary.to_owned(),
        },
        "moe" => format!(
            "each token goes through {} of {} small networks, picked by a router",
            size(unit, "used"),
            size(unit, "experts")
        ),
        _ => contract.summary.trim_end_matches('.').to_owned(),
    }
}

/// What is seen in a group of layers: the definition's rule, and all where a text is read as a whole.
pub(super) fn rule(plan: &Plan, cache: &Unit) -> Cache {
    let rule = Cache::read(&cache.options);
    Cache {
        causal: rule.causal && plan.mode == Mode::Causal,
        ..rule
    }
}

/// The same rule with a window of at most so many positions, for a picture.
pub(super) fn small(plan: &Plan, cache: &Unit, size: u32) -> Cache {
    let rule = rule(plan, cache);
    Cache {
        size: rule.size.min(u64::from(size)),
        ..rule
    }
}

/// Which positions a token looks at.
fn sight(plan: &Plan, cache: &Unit, size: &dyn Fn(&Unit, &str) -> String) -> String {
    let n = size(cache, "size");
    let rule = rule(plan, cache);
    let what = match (rule.size > 0, rule.window, rule.causal) {
        (false, _, true) => "back at all earlier tokens and itself".to_owned(),
        (false, _, false) => "at all tokens of the text".to_owned(),
        (true, Window::Standard, true) => format!("back at the last {n} tokens, itself included"),
        (true, Window::Standard, false) => format!("at the last {n} tokens and all that follow"),
        (true, Window::Chunked, true) => format!("back within its chunk of {n} tokens"),
        (true, Window::Chunked, false) => format!("at all from the begin of its chunk of {n} on"),
        (true, Window::Symmetric, true) => format!("back over half of a band of {n} tokens"),
        (true, Window::Symmetric, false) => format!("at a band of {n} tokens around it"),
    };
    format!("each token looks {what}")
}

/// The picture of what is seen.
fn mask(plan: &Plan, cache: &Unit, size: &dyn Fn(&Unit, &str) -> String) -> Icon {
    let n = size(cache, "size");
    let rule = rule(plan, cache);
    let text = match (rule.size > 0, rule.window) {
        (false, _) if rule.causal => "causal".into(),
        (false, _) => "both ways".into(),
        (true, Window::Standard) => format!("window {n}"),
        (true, Window::Chunked) => format!("chunks of {n}"),
        (true, Window::Symmetric) => format!("band of {n}"),
    };
    let small = small(plan, cache, MASK / 2);
    let seen = (0..MASK).map(|query| small.visible(query, MASK));
    Icon::Mask {
        seen: seen.collect(),
        text,
    }
}

/// The small pictures of a unit.
pub(super) fn icons(
    plan: &Plan,
    unit: &Unit,
    is_symbolic: bool,
    size: &dyn Fn(&Unit, &str) -> String,
) -> Vec<Icon> {
    let mut icons = Vec::new();
    let number = |name: &str| unit.option_int(name).filter(|_| !is_symbolic);
    let cache = match &unit.state {
        Some(StatePlan::KeyValue(rows)) => Some(&plan.caches[rows.cache]),
        _ => None,
    };
    icons.extend(cache.map(|cache| mask(plan, &cache.unit, size)));
    match unit.contract.0.name {
        "attention" => {
            let (heads, groups) = (number("heads"), number("kv_heads"));
            icons.push(Icon::Heads {
                per_group: heads.zip(groups).map(|(h, g)| h / g.max(1)),
                text: format!(
                    "{} query heads, {} key heads",
                    size(unit, "heads"),
                    size(unit, "kv_heads")
                ),
            });
        }
        "mla" => icons.push(Icon::Heads {
            per_group: number("heads"),
            text: format!("{} heads, one latent row", size(unit, "heads")),
        }),
        "moe" => icons.push(Icon::Experts {
            numbers: number("used").zip(number("experts")),
            text: format!(
                "{} of {} experts",
                size(unit, "used"),
                size(unit, "experts")
            ),
        }),
        _ => {}
    }
    icons
}
