//! What blocks and operations are called, for a reader who sees them for the first time.
//!
//! Formulas and docs of weights are those of the contracts; here is only what no contract says.

use crate::arch::{Mode, OptionKind, Resolved, Resource};
use crate::blocks::cache::{Cache, Window};
use crate::ggml::Step;
use crate::plan::{Plan, StatePlan, Unit};

use super::{Icon, MASK, OpShape};

/// What a use of a contract is called.
pub(super) fn title(contract: &str) -> &'static str {
    match contract {
        "attention" => "Attention",
        "delta_net" => "Gated delta net",
        "ffn" => "Feed-forward network",
        "identity" => "Factor",
        "linear" => "Linear map",
        "mamba" => "Selective scan",
        "mamba2" => "State-space scan",
        "mla" => "Latent attention",
        "moe" => "Mixture of experts",
        "short_conv" => "Short convolution",
        "embed" => "Token embedding",
        "per_layer_input" => "Input of each layer",
        "head" => "Head",
        "norm" => "Norm",
        _ => "Block",
    }
}

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

/// A short name for the pattern of a stack.
pub(super) fn short(contract: &str) -> &'static str {
    match contract {
        "attention" => "attention",
        "delta_net" => "delta net",
        "ffn" => "network",
        "identity" => "factor",
        "linear" => "linear",
        "mamba" => "scan",
        "mamba2" => "state space",
        "mla" => "latent attention",
        "moe" => "experts",
        "short_conv" => "convolution",
        _ => "block",
    }
}

/// What weights are for, by the kind of what reads them.
pub(super) fn purpose(kind: &str) -> &'static str {
    match kind {
        "embed" => "token table",
        "head" => "head",
        "norm" => "norms",
        "per_layer" | "per_layer_input" => "inputs of layers",
        other => short(other),
    }
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

/// A float with as many digits as say something.
pub(crate) fn tidy(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value < 0.0 {
            "\u{2212}\u{221e}".into()
        } else {
            value.to_string()
        };
    }
    let size = value.abs().log10().floor() as i32;
    if !(-4..7).contains(&size) {
        return format!("{value:.3e}");
    }
    let digits = (4 - size).clamp(0, 8) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Thousands in groups, large numbers short: `4 096`, `6.7 B`.
pub(crate) fn count(n: u64) -> String {
    let scaled = |unit: f64, name: &str| format!("{} {name}", three(n as f64 / unit));
    match n {
        0..10_000 => n.to_string(),
        10_000..1_000_000 => scaled(1e3, "K"),
        1_000_000..1_000_000_000 => scaled(1e6, "M"),
        _ => scaled(1e9, "B"),
    }
}

/// Bytes in binary units.
pub(crate) fn bytes(n: u64) -> String {
    let scaled =
        |power: u32, name: &str| format!("{} {name}", three(n as f64 / 1024f64.powi(power as i32)));
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => scaled(1, "KiB"),
        1_048_576..1_073_741_824 => scaled(2, "MiB"),
        _ => scaled(3, "GiB"),
    }
}

/// A share of a whole.
pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p >= 9.95 => format!("{p:.0} %"),
        p if p >= 0.05 => format!("{p:.1} %"),
        p if p > 0.0 => "< 0.1 %".into(),
        _ => "0 %".into(),
    }
}

fn three(value: f64) -> String {
    let digits = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
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
        (_, Resolved::Float(value)) => tidy(*value),
        (_, other) => other.to_value().to_string(),
    }
}

fn named<'u>(unit: &'u Unit, name: &str) -> Option<&'u Resolved> {
    let specs = unit.contract.0.options;
    unit.options.get(specs.iter().position(|o| o.name == name)?)
}

/// The kind of a norm.
pub(super) fn norm(unit: &Unit) -> String {
    match named(unit, "kind") {
        Some(Resolved::Choice("layer")) => "Layer norm".into(),
        _ => "RMS norm".into(),
    }
}

fn rope(unit: &Unit) -> String {
    let name = unit.path.strip_prefix("rope.").unwrap_or(&unit.path);
    match named(unit, "kind") {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_digits_as_say_something() {
        let cases = [
            (0.125, "0.125"),
            (1.0, "1"),
            (-6.0, "-6"),
            (1.0 / 3.0, "0.33333"),
            (1e-5, "1.000e-5"),
            (10_000.0, "10000"),
            (f64::NEG_INFINITY, "\u{2212}\u{221e}"),
        ];
        for (value, text) in cases {
            assert_eq!(tidy(value), text);
        }
        assert_eq!(
            (count(9_999), count(12_345)),
            ("9999".into(), "12.3 K".into())
        );
        assert_eq!(
            (count(6_700_000_000), bytes(1536)),
            ("6.70 B".into(), "1.50 KiB".into())
        );
        assert_eq!(
            (count(999_999), bytes(1023)),
            ("1000 K".into(), "1023 B".into())
        );
    }
}
