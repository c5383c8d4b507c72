//! The towers of a model as parts of its drawing: each with a drawing of its own, and where its rows go.

use lab_core::models::towers::{OpenedMedia, OpenedTower};
use lab_core::plan::{Media, MediaAttention, Plan};

use super::{DiagramError, Drawing, TowerDrawing, TracedPlan, ids};

impl Drawing {
    /// The drawing with the towers of a model. `plan` is that of the model.
    ///
    /// # Errors
    /// The graph of a tower cannot be built.
    pub fn with_towers(mut self, plan: &Plan, media: &OpenedMedia) -> Result<Self, DiagramError> {
        for tower in &media.towers {
            let reads = match tower.media {
                Media::Image => "pictures",
                Media::Audio => "sounds",
            };
            let name = format!("{}: {reads}", self.name);
            let sample = TracedPlan::of_tower(&name, tower, &media.processors)?;
            let mut drawing = Self::new(&tower.def, &sample);
            ids::within(&mut drawing, tower.media.name());
            self.towers.push(TowerDrawing {
                drawing,
                reads,
                goes: goes(plan, tower, media),
            });
        }
        Ok(self)
    }
}

/// Where the rows of a tower go.
fn goes(plan: &Plan, tower: &OpenedTower, media: &OpenedMedia) -> Vec<String> {
    if plan.source.as_ref().is_some_and(|source| source.is_rows) {
        return vec!["the rows are the source, to which the layers attend".into()];
    }
    let token = media.processors.row_token(tower.media);
    let token = token.map_or_else(String::new, |token| format!(" `{token}`"));
    let mut all = vec![format!(
        "each row takes the place of the embedding of a token{token}"
    )];
    let parts = plan.layers.iter().enumerate().flat_map(|(il, layer)| {
        let branches = layer.slots.iter().flat_map(|slot| &slot.branches);
        let units = branches.map(|branch| &branch.block);
        let of_media = units.filter(|unit| unit.contract.0.is_of_media);
        of_media.filter_map(move |unit| Some((il, unit.option_int("part")?)))
    });
    let has_parts = tower.plan.n_embd > plan.n_embd;
    all.extend(
        parts
            .filter(|_| has_parts)
            .map(|(il, part)| format!("part {part} of each row is added in layer {il}")),
    );
    all.extend(match tower.plan.media_attention() {
        MediaAttention::Causal => None,
        MediaAttention::Both => Some("the tokens of a medium attend to each other in both directions"),
        MediaAttention::Window => Some("in layers with a window, the tokens of a medium attend to each other in both directions"),
        MediaAttention::Prefix => Some("the whole prompt attends in both directions"),
    }.map(str::to_owned));
    all
}
