//! Names of blocks and operations, for readers who see them for the first time.
//!
//! Formulas and descriptions of weights come from the contracts; this file has only texts that no contract has.

use crate::describe;
use lab_base::ggml::GraphOp;
use lab_base::util::wording;
use lab_core::arch::{Contract, Mode, OptionKind, ResolvedOption, Resource, StateSpec};
use lab_core::blocks::REGISTRY;
use lab_core::blocks::cache::CacheOptions;
use lab_core::plan::{CachePlan, Plan, StatePlan, Unit};

use super::OpShape;
use super::context::DrawContext;

/// The description of a tap's value, after `verb`.
pub(super) fn tap(verb: &str, name: &str) -> String {
    let words = match name {
        "x" => "the hidden state before this slot",
        "h" => "the normed hidden state",
        "layer_in" => "the hidden state before this layer",
        "embd" => "the embedded tokens",
        "ple" => "this layer's own input",
        "target" => "hidden states of the model that is drafted for",
        _ => "saved before",
    };
    format!("{verb} {name}: {words}")
}

/// The purpose of weights, by the kind of the unit that reads them.
pub(super) fn purpose(kind: &'static str) -> &'static str {
    // For a stage, the kind of its operations is the name of the plan's field.
    let name = match kind {
        "per_layer" => "per_layer_input",
        _ => kind,
    };
    let contract = REGISTRY.all().find(|contract| contract.name == name);
    contract.map_or(kind, Contract::short)
}

/// The colour class of a unit, by what it keeps and where it is.
pub(super) fn class(kind: &str) -> &'static str {
    let contract = REGISTRY.all().find(|contract| contract.name == kind);
    let is_block = REGISTRY.block(kind).is_some();
    match contract.map(|contract| (contract.state, contract.option("experts"))) {
        Some((StateSpec::KeyValue { .. }, _)) => "part mix",
        Some((StateSpec::Recurrent(_), _)) => "part rec",
        Some((_, Some(_))) => "part moe",
        _ if is_block => "part net",
        _ if kind == "norm" => "part nrm",
        _ => "part end",
    }
}

/// The title of an operation, and the shape in which it is drawn.
pub(super) fn op(step: &GraphOp, number: &dyn Fn(usize) -> String) -> (String, OpShape) {
    let plain = |text: &str| (text.to_owned(), OpShape::Plain);
    let sign = |text: &str, sign| (text.to_owned(), OpShape::Sign(sign));
    match step.op.as_str() {
        "MUL_MAT" => plain("matrix product"),
        "MUL_MAT_ID" => plain("products of selected experts"),
        "ADD" => sign("sum", "+"),
        "SUB" => sign("difference", "\u{2212}"),
        "MUL" => sign("product by elements", "\u{d7}"),
        "DIV" => sign("quotient by elements", "\u{f7}"),
        "ADD_ID" => plain("bias of each selected expert"),
        "RMS_NORM" => plain("RMS norm"),
        "NORM" => plain("Layer norm"),
        "L2_NORM" => plain("L2 norm"),
        "ROPE" => plain("rope: rotate by position"),
        "SOFT_MAX" => plain("softmax"),
        "GET_ROWS" => plain("take rows"),
        "SET_ROWS" => plain("write rows"),
        "SCALE" if step.params[1] != 0.0 => plain(&format!("\u{d7} {} + {}", number(0), number(1))),
        "SCALE" => plain(&format!("\u{d7} {}", number(0))),
        "CLAMP" if step.params[0] <= f32::MIN => plain(&format!("at most {}", number(1))),
        "CLAMP" if step.params[1] >= f32::MAX => plain(&format!("at least {}", number(0))),
        "CLAMP" => plain(&format!("between {} and {}", number(0), number(1))),
        "SILU" => plain("SiLU"),
        "RELU" => plain("ReLU"),
        "GELU" | "GELU_TANH" => plain("GELU (tanh)"),
        "GELU_ERF" => plain("GELU"),
        "SQR" => plain("square"),
        "SQRT" => plain("square root"),
        "SWIGLU" => plain("SiLU(gate) \u{d7} value"),
        "GEGLU" | "GEGLU_TANH" | "GEGLU_ERF" => plain("GELU(gate) \u{d7} value"),
        "REGLU" => plain("ReLU(gate) \u{d7} value"),
        "SWIGLU_OAI" => plain("SwiGLU (clamped)"),
        "ARGSORT" | "TOP_K" => plain("top-k indices"),
        "SUM_ROWS" => plain("sum of each row"),
        "DSV4_HC_COMB" => plain("doubly stochastic matrix"),
        "SSM_CONV" | "CONVOLVE" => plain("convolution over time"),
        "SSM_SCAN" => plain("selective scan"),
        "GATED_DELTA_NET" => plain("gated delta rule"),
        "SELECT_KEYS" => plain("highest q \u{b7} k"),
        "FLASH_ATTN_EXT" | "PAGED_ATTENTION" => plain("softmax(q \u{b7} k) \u{b7} v"),
        other => plain(&other.to_lowercase().replace('_', " ")),
    }
}

/// The title of a box with weights begins with the key of the first one.
pub(super) fn weighted(step: &GraphOp, key: &str) -> String {
    let key = key.replace('_', " ");
    let plain = || op(step, &|_| String::new()).0;
    match step.op.as_str() {
        "MUL_MAT" => format!("{key}: projection"),
        // Matrices of adapters in the file have no key, only the name of their tensor.
        "MUL_MAT_ID" if key.contains('.') => format!("{key}: of the token's adapter"),
        "MUL_MAT_ID" => format!("{key}: selected experts"),
        "GET_ROWS" => format!("{key}: one row each"),
        "RMS_NORM" | "NORM" | "L2_NORM" | "SSM_CONV" | "CONVOLVE" | "DSV4_HC_COMB"
        | "GATED_DELTA_NET" | "SSM_SCAN" | "SELECT_KEYS" | "PAGED_ATTENTION" | "FLASH_ATTN_EXT"
        | "ROPE" => plain(),
        "MUL" => format!("\u{d7} {key}"),
        "DIV" => format!("\u{f7} {key}"),
        "ADD" | "ADD_ID" => format!("+ {key}"),
        _ => format!("{key}: {}", plain()),
    }
}

/// The value of an option as text; resources by name.
pub(super) fn option(plan: &Plan, kind: OptionKind, value: &ResolvedOption) -> String {
    match value {
        ResolvedOption::Resource(_) => match plan.resource(kind, value) {
            Some(unit) => with_kind(unit),
            None => "none".into(),
        },
        ResolvedOption::Float(value) => wording::tidy(*value),
        other => other.to_value().to_string(),
    }
}

pub(super) fn norm(unit: &Unit) -> String {
    match unit.option("kind") {
        Some(ResolvedOption::Choice("layer")) => "Layer norm".into(),
        _ => "RMS norm".into(),
    }
}

/// The name of a resource with its kind; only the kind if it is also the name.
fn with_kind(unit: &Unit) -> String {
    let name = unit.path.split_once('.');
    let name = name.map_or(unit.path.as_str(), |(_, name)| name);
    match unit.option("kind") {
        // The default norm has no name.
        Some(ResolvedOption::Choice(kind)) if name.is_empty() => (*kind).to_owned(),
        Some(ResolvedOption::Choice(kind)) if *kind != name => format!("{name} ({kind})"),
        _ => name.to_owned(),
    }
}

/// Whether a value is the option's default, which is not shown.
pub(super) fn is_default(
    plan: &Plan,
    kind: OptionKind,
    default: &str,
    value: &ResolvedOption,
) -> bool {
    match value {
        ResolvedOption::Resource(_) if kind == OptionKind::Resource(Resource::Act) => {
            option(plan, kind, value) == default
        }
        ResolvedOption::Int(v) => default.parse() == Ok(*v),
        ResolvedOption::Float(v) => default.parse() == Ok(*v),
        ResolvedOption::List(v) => default.parse().is_ok_and(|one: u64| *v == [one]),
        ResolvedOption::Bool(v) => default.parse() == Ok(*v),
        ResolvedOption::Choice(v) => default.trim_matches('\'') == *v,
        ResolvedOption::Resource(v) => (default == "none") == v.is_none() || default == "default",
    }
}

/// The attention rule of a cache for a picture: the definition's, but not causal in models that read a text as a whole,
/// and with a window of at most `size` positions.
pub(super) fn small(plan: &Plan, cache: &Unit, size: u32) -> CacheOptions {
    let rule = CacheOptions::read(&cache.options);
    CacheOptions {
        causal: rule.causal && plan.mode == Mode::Causal,
        size: rule.size.min(u64::from(size)),
        ..rule
    }
}

impl DrawContext<'_> {
    /// The purpose of weights that are read at a path, for a unit of this kind.
    pub(super) fn purpose(&self, kind: &'static str, path: &str) -> String {
        let role = self.roles.get(path).cloned();
        role.unwrap_or_else(|| purpose(kind).to_owned())
    }

    /// The tokens that a query attends to, in words.
    pub(super) fn seen(&self, cache: &CachePlan) -> String {
        let value = |name: &str| (name == "size").then(|| self.size(&cache.unit, name));
        describe::attended_tokens(self.plan, cache, &value)
    }

    /// A plain sentence about what a part does, with its numbers of heads or experts.
    pub(super) fn line(&self, unit: &Unit) -> String {
        let mut line = match &unit.state {
            Some(StatePlan::KeyValue(rows)) => {
                let seen = self.seen(&self.plan.caches[rows.cache]);
                format!("each token attends to {seen}")
            }
            _ => unit.contract.0.summary.trim_end_matches('.').to_owned(),
        };
        let counts = self.counts(unit);
        line.extend(counts.map(|counts| format!(": {counts}")));
        line
    }

    /// The numbers of heads and experts of a unit, in words.
    fn counts(&self, unit: &Unit) -> Option<String> {
        let has = |name: &str| unit.contract.0.option(name).is_some();
        let sizes = ["heads", "kv_heads", "used", "experts"].map(|name| self.size(unit, name));
        let [heads, keys, used, all] = sizes;
        let is_attention = matches!(unit.state, Some(StatePlan::KeyValue(_)));
        match (is_attention, has("kv_heads")) {
            (true, true) => Some(format!("{heads} query heads, {keys} KV heads")),
            (true, false) => Some(format!("{heads} query heads, one latent row")),
            _ if has("used") && has("experts") => Some(format!("{used} of {all} experts")),
            _ => None,
        }
    }
}
