//! What choices mean, as predicates: "normalises queries and keys per head".
//!
//! Phrases are by option and value of a contract; what has none is told with the contract's own words.
//! A test holds the table to the contracts.

use crate::diagram::PartOption;

/// Option, value, phrase.
const PHRASES: &[[&str; 3]] = &[
    [
        "qk_norm",
        "none",
        "takes queries and keys as they are projected",
    ],
    ["qk_norm", "head", "normalises queries and keys per head"],
    [
        "qk_norm",
        "each",
        "normalises queries and keys per head, with a gain for each head",
    ],
    [
        "qk_norm",
        "factor",
        "normalises queries and keys per head, with one factor for each head",
    ],
    [
        "qk_norm",
        "full",
        "normalises the queries and keys of all heads together",
    ],
    [
        "qk_norm_at",
        "before",
        "normalises queries and keys before their rotation",
    ],
    [
        "qk_norm_at",
        "after",
        "normalises queries and keys after their rotation",
    ],
    ["v_norm", "none", "takes values as they are projected"],
    ["v_norm", "yes", "normalises each value head"],
    ["inner_norm", "none", "projects what is inside as it is"],
    [
        "inner_norm",
        "yes",
        "normalises what is inside before the last projection",
    ],
    ["rope", "none", "does not turn queries and keys by position"],
    ["rope", "yes", "turns queries and keys by position"],
    ["rope.kind", "norm", "turns neighbouring pairs of elements"],
    [
        "rope.kind",
        "neox",
        "turns pairs of elements that lie half of the turned ones apart",
    ],
    [
        "rope.kind",
        "mrope",
        "turns pairs of elements in sections with positions of their own",
    ],
    [
        "rope.kind",
        "imrope",
        "turns pairs of elements in interleaved sections with positions of their own",
    ],
    ["rope.scaling", "none", "turns by the position itself"],
    [
        "rope.scaling",
        "linear",
        "turns by the position over a factor of the file",
    ],
    [
        "rope.scaling",
        "longrope",
        "turns by tables for short and for long texts (longrope)",
    ],
    [
        "rope.scaling",
        "yarn",
        "turns slow pairs by less for long texts (yarn)",
    ],
    ["cache.causal", "true", "looks back only"],
    ["cache.causal", "false", "looks both ways"],
    [
        "cache.window",
        "standard",
        "has a window that ends at the token",
    ],
    [
        "cache.window",
        "chunked",
        "has windows one behind the other, in chunks",
    ],
    ["cache.window", "symmetric", "has a window around the token"],
    [
        "kv_layer",
        "an earlier one",
        "reads the keys and values of an earlier layer",
    ],
    [
        "kv_layer",
        "its own",
        "reads keys and values of its own layer",
    ],
    ["values", "proj", "projects values by themselves"],
    ["values", "key", "takes the keys as values"],
    ["gate", "none", "has no gate on the mixed values"],
    ["gate", "element", "gates each element of the mixed values"],
    ["gate", "head", "gates each head of the mixed values"],
    [
        "gate",
        "query",
        "gates the mixed values by numbers projected beside the queries",
    ],
    ["gate_act", "sigmoid", "has a gate through a sigmoid"],
    ["gate_act", "softplus", "has a gate through a softplus"],
    ["gate_act", "silu", "has a gate through a SiLU"],
    ["act", "silu", "activates with SiLU"],
    ["act", "gelu", "activates with GELU (tanh)"],
    ["act", "gelu_erf", "activates with GELU"],
    ["act", "relu", "activates with ReLU"],
    ["act", "relu2", "activates with the square of ReLU"],
    ["act", "swiglu_oai", "activates with a clipped SwiGLU"],
    ["act", "xielu", "activates with xIELU"],
    ["score", "softmax", "scores experts with a softmax over all"],
    ["score", "sigmoid", "scores each expert with a sigmoid"],
    [
        "score",
        "softmax_after",
        "scores experts with a softmax over those picked",
    ],
    [
        "score",
        "sqrt_softplus",
        "scores each expert with the root of a softplus",
    ],
    [
        "score",
        "sparse_mixer",
        "scores each picked expert against those that come near it",
    ],
    [
        "renormalise",
        "true",
        "lets the weights of the picked experts sum to one",
    ],
    [
        "renormalise",
        "false",
        "takes the scores of the picked experts as their weights",
    ],
    ["weight_at", "output", "weighs what experts give"],
    ["weight_at", "input", "weighs what experts read"],
    [
        "clamp_at",
        "before",
        "bounds the gate before its activation",
    ],
    ["clamp_at", "after", "bounds the gate after its activation"],
    [
        "router_norm",
        "none",
        "lets the router read what comes in as it is",
    ],
    ["router_norm", "yes", "normalises what the router reads"],
    [
        "head_map",
        "tiled",
        "lets value heads read the key heads in turn",
    ],
    [
        "head_map",
        "interleaved",
        "lets neighbouring value heads read one key head",
    ],
    ["decay", "head", "fades the matrix of a head as a whole"],
    [
        "decay",
        "element",
        "fades each element of the keys by itself",
    ],
    ["kind", "rms", "normalises by the mean square (RMS norm)"],
    [
        "kind",
        "layer",
        "normalises by mean and variance (layer norm)",
    ],
    [
        "norm.kind",
        "rms",
        "normalises by the mean square (RMS norm)",
    ],
    [
        "norm.kind",
        "layer",
        "normalises by mean and variance (layer norm)",
    ],
];

/// Numbers by which something is left out: option, phrase where it is there.
const PRESENT: &[[&str; 2]] = &[
    ["cache.size", "sees a window of {} tokens"],
    [
        "cache.alibi",
        "lowers scores by distance, by at most {} for each token",
    ],
    ["softcap", "bounds its scores smoothly ({})"],
    ["clamp", "cuts values off at {}"],
    [
        "temp_scale",
        "makes queries larger with their position ({})",
    ],
    ["scale", "multiplies by {}"],
    ["jitter", "lets scores near the best one count ({})"],
    ["decay_bound", "has a lowest logarithm of the decay ({})"],
    ["groups", "picks experts from groups ({})"],
];

/// The predicate of a choice, if there are words for it.
pub(super) fn predicate(option: &PartOption) -> Option<&'static str> {
    let found = PHRASES
        .iter()
        .find(|[name, value, _]| *name == option.name && *value == option.value);
    found.map(|[.., phrase]| *phrase)
}

/// What is there where a number is not the one by which the contract leaves something out.
pub(in crate::diagram) fn present(option: &PartOption) -> String {
    let found = PRESENT.iter().find(|[name, _]| *name == option.name);
    match found {
        Some([_, phrase]) => phrase.replace("{}", &format!("`{}`", option.value)),
        None => format!("has `{} = {}`: {}", option.name, option.value, option.doc),
    }
}

/// The first words of a doc: what the option is, without its values.
pub(super) fn about(doc: &str) -> &str {
    doc.split([':', ';']).next().unwrap_or(doc).trim()
}

/// A title within a sentence.
pub(super) fn plain(title: &str) -> String {
    let is_name = title.chars().nth(1).is_some_and(char::is_uppercase);
    let mut chars = title.chars();
    match chars.next() {
        Some(first) if !is_name => first.to_lowercase().chain(chars).collect(),
        _ => title.to_owned(),
    }
}

/// A title with its article.
pub(super) fn article(title: &str) -> String {
    let plain = plain(title);
    match plain.starts_with(['a', 'e', 'i', 'o', 'u', 'R']) {
        _ if is_uncounted(&plain) => plain,
        true => format!("an {plain}"),
        false => format!("a {plain}"),
    }
}

/// A title of which there is one already, with its article.
pub(super) fn further(title: &str) -> String {
    let plain = plain(title);
    match is_uncounted(&plain) {
        true => format!("further {plain}"),
        false => format!("a further {plain}"),
    }
}

/// Whether a title has no article.
fn is_uncounted(plain: &str) -> bool {
    let (title, _) = plain.split_once(" (").unwrap_or((plain, ""));
    ["attention", "latent attention"].contains(&title)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{Contract, OptionKind};
    use crate::blocks::REGISTRY;

    fn contracts() -> Vec<&'static Contract> {
        let stages = [
            REGISTRY.embed,
            REGISTRY.per_layer,
            REGISTRY.head,
            REGISTRY.norm,
        ];
        REGISTRY.blocks.iter().copied().chain(stages).collect()
    }

    /// The kinds of values that options of a name take.
    fn kinds(name: &str) -> Vec<OptionKind> {
        let (own, from) = match name.split_once('.') {
            Some(("rope", own)) => (own, vec![REGISTRY.rope]),
            Some(("cache", own)) => (own, vec![REGISTRY.cache]),
            Some(("norm", own)) => (own, vec![REGISTRY.norm]),
            _ => (name, contracts()),
        };
        let found = from.iter().filter_map(|contract| contract.option(own));
        found.map(|spec| spec.kind).collect()
    }

    #[test]
    fn phrases_are_of_options_and_values_that_there_are() {
        for [name, value, _] in PHRASES {
            let takes = |kind: &OptionKind| match kind {
                OptionKind::Choice(values) => values.contains(value),
                OptionKind::Bool => ["true", "false"].contains(value),
                OptionKind::Resource(_) => ["none", "yes"].contains(value),
                OptionKind::Int => ["its own", "an earlier one"].contains(value),
                OptionKind::Float => false,
            };
            assert!(kinds(name).iter().any(takes), "{name} = {value}");
        }
        for [name, _] in PRESENT {
            let is_number = |kind: &OptionKind| matches!(kind, OptionKind::Int | OptionKind::Float);
            assert!(kinds(name).iter().any(is_number), "{name}");
        }
    }

    #[test]
    fn every_named_value_of_a_block_has_a_phrase() {
        for spec in REGISTRY.blocks.iter().flat_map(|contract| contract.options) {
            let OptionKind::Choice(values) = spec.kind else {
                continue;
            };
            for value in values {
                let has = |row: &&[&str; 3]| row[0] == spec.name && row[1] == *value;
                assert!(
                    PHRASES.iter().any(|row| has(&row)),
                    "{} = {value}",
                    spec.name
                );
            }
        }
    }
}
