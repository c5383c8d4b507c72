//! A toy block for the test that a block needs only its file and two lines of `mod.rs`.
//!
//! ```text
//! y = level * (mix . h + mix.bias)
//! ```
//! `[n_embd, n_tokens]` in and out.

use super::build::UnitBuilder;
use crate::arch::Contract;
use crate::{options, rules, weights};
use lab_base::ggml::{Result, Tensor};

options! {
    pub(super) struct Config {
        level: f32 = "1", "factor of the result, above 0; 1: off";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "toy",
    title: "Toy block",
    noun: "a toy",
    phrase: "a toy{level != 1:  of level {=level}}",
    summary: "Multiplies with a matrix and a factor.",
    formula: "y = {level != 1: level * }(mix . h{has('mix.bias'):  + bias})",
    options: Config::OPTIONS,
    weights: weights! {
        mix: Matrix "toy.weight" ["n_embd", "n_embd"], "what channels are mixed by";
        mix.bias: Bias "toy.bias" ["n_embd"] optional, "bias of the mixture";
    },
    rules: rules! {
        "level > 0", "`level` is positive";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let y = b.linear("mix", x)?;
    b.g.scale(&y, c.level)
}

#[cfg(test)]
mod tests {
    use crate::arch::{ArchDef, Library};
    use crate::blocks::REGISTRY;
    use crate::model::{Batch, Model, Options};
    use crate::models::quantise::{Mix, quantise};
    use crate::models::synth::{SynthRequest, synth};
    use crate::plan::Plan;
    use lab_base::weights;
    use lab_base::weights::{TensorType, Weights};

    const TOY: &str = r#"block = "toy", level = 2.5"#;
    /// The computation of the toy block by another block.
    const LINEAR: &str = r#"block = "linear", factor = 2.5, weights = { weight = "toy" }"#;

    fn source(branch: &str) -> String {
        format!(
            r#"
            name = "toys"

            [[stack]]
            [[stack.slot]]
            name   = "mixer"
            pre    = "attn_norm"
            branch = [{{ {branch} }}]

            [head]
            norm = "output_norm"
            "#
        )
    }

    fn definition(branch: &str) -> Result<ArchDef, String> {
        let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
        let checked = library.check("toys.arch.toml", &source(branch));
        checked.map_err(|problems| problems.to_string())
    }

    fn made_up(def: &ArchDef) -> Weights {
        let scratch = tempfile::tempdir().expect("a folder");
        let path = scratch.path().join("toys.gguf");
        let request = SynthRequest {
            set: vec![("block_count".to_owned(), "8".to_owned())],
            ..SynthRequest::default()
        };
        synth(def, &request, &path).expect("it can be made");
        weights::open(&path).expect("it opens")
    }

    fn plan(def: &ArchDef, weights: &Weights) -> Plan {
        Plan::new(def, weights.metadata(), weights).expect("it fits")
    }

    fn logits(def: &ArchDef, weights: &Weights) -> Vec<f32> {
        let options = Options {
            k_type: TensorType::F32,
            v_type: TensorType::F32,
            flash_attn: false,
            ..Options::plain(64, 64)
        };
        let model = Model::load(plan(def, weights), weights, options, &mut |_, _| {});
        let mut batch = Batch::default();
        for (position, token) in (0..).zip([3, 14, 15]) {
            batch.push(token, 0, position, true);
        }
        let mut model = model.expect("it loads");
        model.forward(&batch).expect("the pass runs").to_vec()
    }

    #[test]
    fn a_block_is_its_file_and_its_line() {
        let def = definition(TOY).expect("sound");
        let weights = made_up(&def);
        let expected = logits(&definition(LINEAR).expect("sound"), &weights);
        assert_eq!(logits(&def, &weights), expected);
        assert!(expected.iter().all(|v| v.is_finite()) && expected.iter().any(|v| *v != 0.0));

        let reference = REGISTRY.to_markdown(&|_| Vec::new());
        assert!(reference.contains("### `toy`\n\nMultiplies with a matrix and a factor."));
    }

    #[test]
    fn the_guide_shows_it_whole() {
        let own = include_str!("toy.rs").split("\n#[cfg(test)]").next();
        let guide = include_str!("../../../docs/adding-a-model.md");
        let shown = format!(
            "```rust\n{}```\n",
            own.expect("what comes before the tests")
        );
        assert!(guide.contains(&shown), "{shown}");
    }

    #[test]
    fn a_mix_says_how_it_is_quantised() {
        let def = definition(TOY).expect("sound");
        let weights = made_up(&def);
        let rules = r#"
            base = "Q4_K_M"
            [[rule]]
            tensors = "*.toy.*"
            when = "il < n_layer // 8"
            type = "q6_k"
        "#;
        let mix = Mix::of_file("mine", rules).expect("sound");
        let quantised = quantise(&weights, &plan(&def, &weights), &mix).expect("made");
        let ty = |name: &str| quantised.tensor(name).expect("it is there").ty;
        // Rows of 64 elements do not fit blocks of 256: a similar type is used.
        assert_eq!(ty("blk.0.toy.weight"), TensorType::Q8_0);
        assert_eq!(ty("blk.1.toy.weight"), TensorType::Q5_0);
    }

    #[test]
    fn its_contract_says_what_is_wrong() {
        let unknown = definition(r#"block = "toy", leve = 2.5"#).expect_err("no such option");
        assert!(
            unknown.contains("leve") && unknown.contains("level"),
            "{unknown}"
        );
        let def = definition(r#"block = "toy", level = -1.0"#).expect("sound in itself");
        let made = crate::models::synth::design(&def, &SynthRequest::default());
        let message = made.expect_err("a rule is broken").to_string();
        assert!(message.contains("`level` is positive"), "{message}");
    }
}
