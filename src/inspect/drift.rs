//! Measures how a model's numbers differ from a reference, layer by layer: for example quantised weights or a quantised
//! cache against the same model in f32.
//!
//! The error after a layer has two parts: the error of its input, and the error that it adds. So the second model runs
//! once unchanged, and once more for each layer with that layer's input set to the reference's.

use std::sync::Arc;

use lab_base::util::distances::nmse;
use lab_core::model::{
    Batch, Error, Lab, LabCapture, LabEdit, LabOp, Model, NamedValue, Positions,
};

use super::compare::{KlDivergence, divergence};

/// The values that a model computes for a text.
#[derive(Debug)]
pub struct LayerStates {
    /// Hidden states before each layer, `[n_embd, n_tokens]`.
    before: Vec<Vec<f32>>,
    /// Hidden states after each layer, `[n_embd, n_tokens]`.
    after: Vec<Vec<f32>>,
    paths: Vec<String>,
    /// The logits, `[n_vocab, n_tokens]`.
    logits: NamedValue,
}

/// The error of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerDrift {
    pub path: String,
    /// NMSE of the hidden state after the layer.
    pub nmse: f64,
    /// The NMSE if the layer gets the reference's input; `None` if the input cannot be set.
    pub own: Option<f64>,
}

/// The errors of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Drift {
    pub layers: Vec<LayerDrift>,
    /// NMSE of the logits.
    pub logits: f64,
    /// Divergence of the next-token distributions from the reference's; `None` for a model without logits.
    pub divergence: Option<KlDivergence>,
}

/// The points at the inputs or outputs of the layers.
fn points(model: &Model, end: &str) -> Vec<usize> {
    let found = model.points().find(&format!("layers.*.{end}"));
    found.unwrap_or_default()
}

/// Runs a text in one pass. Returns the rows of the wanted points, in order, and the logits.
fn run(
    model: &mut Model,
    tokens: &[u32],
    wanted: &[usize],
    edits: Vec<LabEdit>,
) -> Result<(Vec<Vec<f32>>, Vec<f32>), Error> {
    let all = Positions::Range(0, tokens.len() as u32);
    let capture = |point: &usize| LabCapture {
        point: *point,
        positions: all.clone(),
    };
    let lab = Arc::new(Lab::new(wanted.iter().map(capture).collect(), edits));
    model.begin(0, &[], Some(&lab));
    let mut batch = Batch::default();
    for (position, token) in (0..).zip(tokens) {
        batch.push(*token, 0, position, true);
    }
    let logits = model.forward(&batch)?.to_vec();
    let mut rows = vec![Vec::new(); wanted.len()];
    for captured in model.captured_rows() {
        for (_, rows) in wanted
            .iter()
            .zip(&mut rows)
            .filter(|(at, _)| **at == captured.point)
        {
            rows.extend_from_slice(&captured.row);
        }
    }
    model.release(0);
    Ok((rows, logits))
}

/// The values that a model computes for a text, which must fit into one pass.
pub fn layer_states(model: &mut Model, tokens: &[u32]) -> Result<LayerStates, Error> {
    let (before, after) = (points(model, "in"), points(model, "out"));
    let names = after.iter().map(|at| model.points().all[*at].path.clone());
    let paths = names.collect();
    let wanted: Vec<usize> = before.iter().chain(&after).copied().collect();
    let (mut rows, logits) = run(model, tokens, &wanted, Vec::new())?;
    let after = rows.split_off(before.len());
    let width = logits.len() / tokens.len().max(1);
    Ok(LayerStates {
        before: rows,
        after,
        paths,
        logits: NamedValue {
            path: lab_core::model::LOGITS.to_owned(),
            shape: vec![width as u64, tokens.len() as u64],
            is_per_token: true,
            elements: logits,
        },
    })
}

/// The errors of a model compared with the values that a reference computed for the same text.
///
/// # Errors
/// A pass fails, or the models have different layers.
pub fn drift(model: &mut Model, tokens: &[u32], reference: &LayerStates) -> Result<Drift, Error> {
    let found = layer_states(model, tokens)?;
    let mut pairs = found.after.iter().zip(&reference.after);
    let is_alike = found.paths.len() == reference.paths.len()
        && pairs.all(|(a, b)| a.len() == b.len())
        && found.logits.shape == reference.logits.shape;
    if !is_alike {
        let text = "the models have different layers or widths";
        return Err(Error::Internal(text.into()));
    }
    let (before, after) = (points(model, "in"), points(model, "out"));
    let mut layers = Vec::with_capacity(after.len());
    for (at, path) in found.paths.iter().enumerate() {
        let input = before.get(at).copied();
        let input = input.filter(|_| before.len() == after.len());
        let input = input.filter(|point| model.points().all[*point].is_editable());
        let own = match input {
            Some(point) => {
                let rows = &reference.before[at];
                let width = rows.len() / tokens.len().max(1);
                let edit = LabEdit {
                    point,
                    positions: Positions::Range(0, tokens.len() as u32),
                    tokens: None,
                    op: LabOp::Affine {
                        factor: vec![0.0; width],
                        offsets: rows.chunks(width.max(1)).map(<[f32]>::to_vec).collect(),
                    },
                };
                let (rows, _) = run(model, tokens, &[after[at]], vec![edit])?;
                Some(nmse(&rows[0], &reference.after[at]))
            }
            None => None,
        };
        layers.push(LayerDrift {
            path: path.clone(),
            nmse: nmse(&found.after[at], &reference.after[at]),
            own,
        });
    }
    let [a, b] = [&reference.logits, &found.logits];
    Ok(Drift {
        layers,
        logits: nmse(&b.elements, &a.elements),
        divergence: divergence(std::slice::from_ref(a), std::slice::from_ref(b)),
    })
}
