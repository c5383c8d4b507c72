//! The graph of a pass over layers on a device has its operations in the order in which ggml's backends compute several
//! of them by one kernel.
//!
//! The patterns are those of ggml's CUDA backend, as far as a graph alone shows them. The operations of a layer are
//! listed by hand; views, which compute nothing, are in brackets.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use lab_base::ggml::{Device, GraphOp, OpSource};
use lab_base::weights::TensorType;
use lab_core::model::trace_tokens;
use lab_core::plan::DeviceShare;
use serde_json::{Value, json};

use crate::goldens::{golden, model, options};
use crate::support::command::{bench, made_up, scratch, text};

const N_TOKENS: usize = 3;

/// The operations of a pass whose layers are on a second device: attention over runs of slots, by flash attention. The
/// device is the processor again, which changes nothing.
fn steps(name: &str) -> Vec<GraphOp> {
    let mut plan = golden(name).plan.clone();
    plan.place(&[DeviceShare {
        device: Device::cpu().expect("the processor").name(),
        n_layers: plan.n_placeable(),
    }]);
    trace_tokens(&plan, N_TOKENS).expect("the plan has a graph")
}

fn layer(steps: &[GraphOp], at: usize) -> String {
    let prefix = format!("layers.{at}.");
    let is_own = |step: &GraphOp| step.path.starts_with(&prefix);
    let first = steps.iter().position(is_own).expect("it has operations");
    let last = steps.iter().rposition(is_own).expect("it has operations");
    let names = steps[first..=last].iter().map(|step| match step.is_view {
        true => format!("({})", step.op),
        false => step.op.clone(),
    });
    let names = names.collect::<Vec<_>>().join(" ");
    // Rows that want no result end there.
    names.replace("ADD GET_ROWS", "ADD")
}

#[test]
fn the_operations_of_a_layer_are_those_that_backends_fuse() {
    // Keys, and then values, written to the cache; then attention.
    let stored = "ROPE (VIEW) SET_ROWS (VIEW) (PERMUTE)";
    let values = "(RESHAPE) (VIEW) SET_ROWS (VIEW) (PERMUTE)";
    let attended = "FLASH_ATTN_EXT (RESHAPE) (RESHAPE) (RESHAPE) MUL_MAT";
    let gated = "MUL_MAT MUL_MAT SWIGLU MUL_MAT";
    let best = "(RESHAPE) ARGSORT (VIEW) GET_ROWS";
    let renormalised = "(RESHAPE) SUM_ROWS CLAMP DIV (RESHAPE)";
    let latent = "RMS_NORM MUL MUL_MAT RMS_NORM MUL MUL_MAT (RESHAPE) (VIEW) (PERMUTE) MUL_MAT (PERMUTE) (VIEW) ROPE CONCAT \
        (PERMUTE) MUL_MAT (RESHAPE) (VIEW) RMS_NORM MUL (VIEW) ROPE CONCAT (VIEW) SET_ROWS (VIEW) (PERMUTE) (VIEW) (PERMUTE) \
        FLASH_ATTN_EXT (RESHAPE) (RESHAPE) (PERMUTE) MUL_MAT (PERMUTE) CONT (RESHAPE) MUL_MAT ADD RMS_NORM MUL";
    let expected = [
        (
            "llama",
            1,
            format!(
                "RMS_NORM MUL MUL_MAT (RESHAPE) ROPE (PERMUTE) MUL_MAT (RESHAPE) {stored} MUL_MAT {values} \
                 {attended} ADD RMS_NORM MUL {gated} ADD"
            ),
        ),
        (
            "llama-fused-qkv",
            1,
            // Queries, keys and values are views of one product.
            format!(
                "RMS_NORM MUL MUL_MAT (VIEW) ROPE (PERMUTE) (VIEW) {stored} (VIEW) (VIEW) SET_ROWS (VIEW) (PERMUTE) \
                 {attended} ADD RMS_NORM MUL {gated} ADD"
            ),
        ),
        (
            "phi3",
            1,
            // Gate and up are views of one product.
            format!(
                "RMS_NORM MUL MUL_MAT ADD (RESHAPE) ROPE (PERMUTE) MUL_MAT ADD (RESHAPE) {stored} MUL_MAT ADD {values} \
                 {attended} ADD RMS_NORM MUL MUL_MAT (VIEW) (VIEW) SWIGLU MUL_MAT ADD"
            ),
        ),
        (
            "qwen3moe",
            1,
            format!(
                "RMS_NORM MUL MUL_MAT ADD (RESHAPE) RMS_NORM MUL ROPE (PERMUTE) MUL_MAT ADD (RESHAPE) RMS_NORM MUL {stored} \
                 MUL_MAT ADD {values} {attended} ADD RMS_NORM MUL MUL_MAT SOFT_MAX {best} {renormalised} \
                 (RESHAPE) MUL_MAT_ID MUL_MAT_ID SWIGLU MUL_MAT_ID MUL (VIEW) (VIEW) ADD ADD"
            ),
        ),
        ("deepseek2", 0, format!("{latent} {gated} ADD")),
        (
            "deepseek2",
            1,
            // The best groups come between the scores and the best experts.
            format!(
                "{latent} MUL_MAT SIGMOID (RESHAPE) ADD (RESHAPE) (RESHAPE) {best} (RESHAPE) SUM_ROWS {best} FILL SET_ROWS \
                 {best} {renormalised} SCALE (RESHAPE) MUL_MAT_ID MUL_MAT_ID SWIGLU MUL_MAT_ID MUL (VIEW) (VIEW) ADD \
                 (VIEW) ADD {gated} ADD ADD"
            ),
        ),
        (
            "gpt-oss",
            1,
            format!(
                "RMS_NORM MUL MUL_MAT ADD (RESHAPE) ROPE (PERMUTE) MUL_MAT ADD (RESHAPE) {stored} MUL_MAT ADD {values} \
                 {attended} ADD ADD RMS_NORM MUL MUL_MAT ADD {best} (RESHAPE) SOFT_MAX (RESHAPE) \
                 (RESHAPE) MUL_MAT_ID ADD_ID MUL_MAT_ID ADD_ID SWIGLU_OAI MUL_MAT_ID ADD_ID MUL (VIEW) (VIEW) ADD ADD"
            ),
        ),
    ];
    for (name, at, expected) in expected {
        assert_eq!(layer(&steps(name), at), expected, "{name}, layer {at}");
    }
}

/// An operation of a pattern: its name, and for some of its sources the operations of the pattern that they are.
type Link = (&'static str, Vec<(usize, usize)>);

/// Operations that follow each other and are computed by one kernel.
struct Pattern {
    links: Vec<Link>,
    /// Those besides the last one whose results are read by others too.
    results: Vec<usize>,
    fits: fn(&[GraphOp]) -> bool,
}

impl Pattern {
    fn matches(&self, steps: &[GraphOp], at: usize) -> bool {
        let n = self.links.len();
        let Some(own) = steps.get(at..at + n) else {
            return false;
        };
        let is_linked = |(step, (op, sources)): (&GraphOp, &Link)| {
            let is_source =
                |(nth, of): &(usize, usize)| step.sources.get(*nth) == Some(&OpSource::Op(at + of));
            step.op == *op && sources.iter().all(is_source)
        };
        let readers = |of: usize, steps: &[GraphOp]| {
            let reads = steps.iter().flat_map(|step| &step.sources);
            reads
                .filter(|source| **source == OpSource::Op(at + of))
                .count()
        };
        let is_inner =
            |of: usize| self.results.contains(&of) || readers(of, steps) == readers(of, own);
        own.iter().zip(&self.links).all(is_linked) && (0..n - 1).all(is_inner) && (self.fits)(own)
    }
}

/// The operations that select experts, from their scores to their weights.
fn selections() -> Vec<Pattern> {
    let mut all = Vec::new();
    for scores in [&["SOFT_MAX"][..], &["SIGMOID"], &["SOFTPLUS", "SQRT"]] {
        for (has_bias, is_renormalised, is_scaled) in
            [0, 1, 2, 3, 4, 5, 6, 7].map(|bits| (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0))
        {
            let mut links: Vec<Link> = vec![(scores[0], Vec::new())];
            let after_last = |links: &mut Vec<Link>, op: &'static str| {
                links.push((op, vec![(0, links.len() - 1)]));
                links.len() - 1
            };
            for op in &scores[1..] {
                after_last(&mut links, op);
            }
            let scores = links.len() - 1;
            let table = after_last(&mut links, "RESHAPE");
            let ranked = match has_bias {
                true => {
                    links.push(("ADD", vec![(0, scores)]));
                    links.len() - 1
                }
                false => scores,
            };
            links.push(("ARGSORT", vec![(0, ranked)]));
            let ids = after_last(&mut links, "VIEW");
            links.push(("GET_ROWS", vec![(0, table), (1, ids)]));
            if is_renormalised {
                let weights = after_last(&mut links, "RESHAPE");
                after_last(&mut links, "SUM_ROWS");
                let sum = after_last(&mut links, "CLAMP");
                links.push(("DIV", vec![(0, weights), (1, sum)]));
                after_last(&mut links, "RESHAPE");
            }
            if is_scaled {
                after_last(&mut links, "SCALE");
            }
            all.push(Pattern {
                links,
                results: vec![ids],
                // There are kernels for so many experts; the softmax has no mask and no factor.
                fits: |own| {
                    let n = own[0].shape[0];
                    let is_plain = own[0].sources.len() == 1 && own[0].params[0] == 1.0;
                    n.is_power_of_two() && n <= 512 && (own[0].op != "SOFT_MAX" || is_plain)
                },
            });
        }
    }
    // Weights by a softmax of the selected experts.
    let after = |at: usize| vec![(0, at)];
    all.push(Pattern {
        links: vec![
            ("RESHAPE", Vec::new()),
            ("ARGSORT", Vec::new()),
            ("VIEW", after(1)),
            ("GET_ROWS", vec![(0, 0), (1, 2)]),
            ("RESHAPE", after(3)),
            ("SOFT_MAX", after(4)),
            ("RESHAPE", after(5)),
        ],
        results: vec![2],
        fits: |own| own[0].sources[0] == own[1].sources[0] && own[1].shape[0].is_power_of_two(),
    });
    all
}

/// The pairs of elements that a kernel rotates together with other operations.
fn has_plain_pairs(rope: &GraphOp) -> bool {
    const NORMAL: u32 = 0;
    const NEOX: u32 = 2;
    [NORMAL, NEOX].contains(&rope.params[2].to_bits())
}

/// A rotation whose result is written to rows.
fn stored_rotation() -> Pattern {
    Pattern {
        links: vec![
            ("ROPE", Vec::new()),
            ("VIEW", vec![(0, 0)]),
            ("SET_ROWS", vec![(0, 1)]),
        ],
        results: Vec::new(),
        fits: |own| {
            let (rope, view, rows) = (&own[0], &own[1], &own[2]);
            let is_flat = view.shape[..2] == [rope.shape[0] * rope.shape[1], rope.shape[2]];
            let typed = matches!(rows.ty, TensorType::F32 | TensorType::F16);
            is_flat && typed && has_plain_pairs(rope)
        },
    }
}

/// A norm with its weight, and a rotation.
fn normalised_rotation() -> Pattern {
    Pattern {
        links: vec![
            ("RMS_NORM", Vec::new()),
            ("MUL", vec![(0, 0)]),
            ("ROPE", vec![(0, 1)]),
        ],
        results: Vec::new(),
        fits: |own| own[0].shape == own[1].shape && has_plain_pairs(&own[2]),
    }
}

/// The number of operations of the longest pattern that matches, at each place where one does.
fn found(steps: &[GraphOp], patterns: &[Pattern]) -> Vec<usize> {
    let longest = |at: usize| {
        let matching = patterns.iter().filter(|pattern| pattern.matches(steps, at));
        matching.map(|pattern| pattern.links.len()).max()
    };
    (0..steps.len()).filter_map(longest).collect()
}

#[test]
fn each_pattern_of_the_backend_is_found_where_the_model_has_it() {
    // The lengths of the selections of experts, and the numbers of rotations that are stored and of those after a norm.
    let expected: [(&str, &[usize], usize, usize); 7] = [
        ("llama", &[], 2, 0),
        ("llama-fused-qkv", &[], 2, 0),
        ("phi3", &[], 2, 0),
        ("qwen3moe", &[10, 10], 2, 4),
        // Softmax after the selection.
        ("gpt-oss", &[7, 7, 7, 7], 4, 0),
        // Sigmoid, bias, renormalised, scaled, in the second of two layers.
        ("glm4moe", &[12], 0, 0),
        // Groups of experts; keys are rows of two parts.
        ("deepseek2", &[], 0, 0),
    ];
    for (name, experts, stored, normalised) in expected {
        let steps = steps(name);
        assert_eq!(found(&steps, &selections()), experts, "{name}: experts");
        let n = |pattern: Pattern| found(&steps, &[pattern]).len();
        let rotations = (n(stored_rotation()), n(normalised_rotation()));
        assert_eq!(rotations, (stored, normalised), "{name}: rotations");
    }
}

/// What is no number is selected like numbers that are equal: no expert twice, which would end the process on CUDA.
#[test]
fn a_router_that_yields_no_numbers_ends_the_request() {
    let router = {
        let model = model(golden("qwen3moe"), options());
        let points = &model.points().all;
        let mut paths = points.iter().map(|point| point.path.clone());
        paths
            .find(|path| path.ends_with(".router"))
            .expect("it has a router")
    };
    let folder = scratch();
    let vocabulary = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-chat.gguf");
    let set = ["--vocab", vocabulary, "--set", "vocab_size=768"];
    let path = made_up(folder.path(), "qwen3moe", &set);
    let edit = json!({ "point": router, "op": "scale", "scale": 3e38 });
    let picked = router.replace(".router", ".picked");
    let lab = folder.path().join("plan.json");
    let plan = json!({ "captures": [{ "point": picked }], "edits": [edit, edit] });
    std::fs::write(&lab, plan.to_string()).expect("written");
    let run = |n: &str| {
        let lab = text(&lab);
        let prompt = ["--prompt", "Hi", "--plan", lab, "--max-tokens", n];
        bench(&[&["lab", "run", text(&path)][..], &prompt].concat())
    };
    let ran = run("2");
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("is not a number"), "{}", ran.err);
    // The first experts, each once.
    let ran = run("0");
    assert!(ran.is_fine(), "{}", ran.err);
    let result: Value = serde_json::from_str(&ran.out).expect("JSON");
    let first: Vec<u8> = [0.0f32, 1.0]
        .iter()
        .flat_map(|id| id.to_le_bytes())
        .collect();
    let data = &result["captures"][0]["data"];
    assert_eq!(*data, BASE64_STANDARD.encode(first), "{result}");
}
