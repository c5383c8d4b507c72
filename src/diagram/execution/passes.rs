//! Scenes about passes: what goes through the layers together, and what a pass leaves.

use std::ops::Range;

use super::super::{MASK, words};
use super::{Picture, Scene, Stage, has_keys, is_owner, is_recurrent, scene};
use crate::arch::{Mode, ParamSource};
use crate::blocks::Remasking;
use crate::blocks::diffusion::Config;
use crate::model::Options;
use crate::plan::Pooling;

impl Stage<'_, '_> {
    /// The ways in which a text is read.
    pub(super) fn passes(&self) -> Vec<Scene> {
        match self.maker.plan.mode {
            Mode::Causal => vec![self.prefill(), self.decode()],
            Mode::Encoder => vec![self.encoding()],
            Mode::Diffusion => vec![self.guessing(), self.filling()],
        }
    }

    fn prefill(&self) -> Scene {
        let keys = self.kinds(is_owner);
        let states = self.kinds(is_recurrent);
        let left = match (keys.is_empty(), states.is_empty()) {
            (false, true) => " They leave their keys and values behind.",
            (true, false) => " They leave a state behind.",
            (false, false) => " They leave keys, values and states behind.",
            (true, true) => "",
        };
        let n_batch = Options::N_BATCH;
        let line = format!(
            "The tokens of a prompt go through all layers together, at most {n_batch} in a pass.{left}"
        );
        scene(
            "Prefill: reading a prompt",
            line,
            Picture::Prefill { keys, states },
        )
    }

    fn decode(&self) -> Scene {
        let keys = self.kinds(has_keys);
        let states = self.kinds(is_recurrent);
        let kept = match (keys.is_empty(), states.is_empty()) {
            (false, true) => " and the kept keys and values",
            (true, false) => " and the state",
            (false, false) => ", the kept keys and values, and the states",
            (true, true) => "",
        };
        let line = format!(
            "An answer grows by one token a pass. Each pass reads all weights that the token uses{kept}."
        );
        let picture = Picture::Decode { keys, states };
        scene("Decode: writing the answer", line, picture)
    }

    /// Of a short text, the tokens that each sees in some layer.
    fn seen(&self) -> Vec<Range<u32>> {
        let plan = self.maker.plan;
        let seen = (0..MASK).map(|query| {
            let caches = plan.caches.iter();
            let rules = caches.map(|cache| words::small(plan, &cache.unit, MASK / 2));
            let views = rules.map(|rule| rule.visible(query, MASK));
            views.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
        });
        seen.map(Option::unwrap_or_default).collect()
    }

    fn encoding(&self) -> Scene {
        let seen = self.seen();
        let line = format!(
            "The whole text goes through all layers in one pass: every token sees {}, and becomes a \
             vector.",
            whom(&seen)
        );
        let pooling = self.maker.plan.pooling();
        let pooled = match pooling {
            Pooling::Mean => "the mean of the vectors is the vector of the text",
            Pooling::First => "the first vector is the vector of the text",
            Pooling::Last => "the last vector is the vector of the text",
            Pooling::Max => "the largest of each element is the vector of the text",
            Pooling::MeanSqrt => {
                "the sum over the square root of their number is the vector of the text"
            }
            Pooling::Weighted => "the mean weighted by position is the vector of the text",
        };
        let param = self.maker.def.params.get("pooling");
        let is_key = param.is_some_and(|p| matches!(p.source, ParamSource::Key { .. }));
        let pooled = match self.maker.is_symbolic && is_key {
            true => format!("`pooling` of the file says which vector is the text's; here {pooled}"),
            false => pooled.to_owned(),
        };
        let picture = Picture::Whole {
            seen,
            pooling: Some(pooling),
        };
        let facts = [pooled, "nothing is kept".to_owned()];
        Scene {
            facts: facts.into(),
            ..scene("Encoding: a text becomes vectors", line, picture)
        }
    }

    /// One pass over a text with masks.
    fn guessing(&self) -> Scene {
        let seen = self.seen();
        let line = format!(
            "The whole text goes through all layers at once: every token sees {}, and for every mask \
             comes a choice of tokens.",
            whom(&seen)
        );
        let mut facts = Vec::new();
        if self
            .filling_options()
            .is_some_and(|config| config.shift_logits)
        {
            facts.push("what comes out at a token speaks of the one behind it".to_owned());
        }
        let picture = Picture::Whole {
            seen,
            pooling: None,
        };
        Scene {
            facts,
            ..scene("One pass: a guess for each mask", line, picture)
        }
    }

    fn filling(&self) -> Scene {
        let line = "The answer begins as masks. Each pass reads all of the text anew and fixes some of \
                    them, block after block.";
        let rule = self
            .filling_options()
            .map(|config| first_fixed(config.remasking));
        let kept = "nothing is kept between passes, unless approximate_cache is asked for";
        let picture = Picture::Filling {
            n_prompt: 3,
            block: 4,
            fixed: [[1, 2], [0, 3], [4, 7], [5, 6]].map(Vec::from).into(),
        };
        Scene {
            facts: rule.into_iter().chain([kept]).map(str::to_owned).collect(),
            ..scene("Filling in: masks become text", line.into(), picture)
        }
    }

    fn filling_options(&self) -> Option<Config> {
        let unit = self.maker.plan.diffusion.as_ref();
        unit.map(|unit| Config::read(&unit.options))
    }
}

/// Whom each token sees, in words.
fn whom(seen: &[Range<u32>]) -> &'static str {
    match seen.iter().all(|keys| *keys == (0..MASK)) {
        true => "all others, before and behind it",
        false => "those around it, before and behind it",
    }
}

/// Which masks are fixed first, in words.
fn first_fixed(rule: Remasking) -> &'static str {
    match rule {
        Remasking::LowConfidence => "fixed first: what the model is surest of",
        Remasking::Margin => "fixed first: where the best token is furthest ahead of the second",
        Remasking::Entropy => "fixed first: where the choice is least open",
        Remasking::Random => "which ones are fixed is drawn at random",
        Remasking::None => "each mask is fixed or not by a draw of its own",
    }
}
