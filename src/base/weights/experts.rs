//! Stacks experts that old files store one by one into the one tensor that a model reads.
//!
//! The tensors `blk.N.ffn_gate.E.weight` of shape `[n, m]` become `blk.N.ffn_gate_exps.weight` of `[n, m, n_expert]`,
//! one expert after another. Invariant: no byte is copied before its row is read.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{Error, LazyTensor, MAX_DIMS, TensorData, TensorEntry, TensorInfo, Weights};

const PROJECTIONS: [&str; 3] = ["ffn_gate", "ffn_up", "ffn_down"];

/// The weights with single experts stacked; other weights are unchanged.
///
/// # Errors
/// The experts are not counted from 0 on, or differ in type or shape.
pub fn stacked(weights: Weights) -> Result<Weights, Error> {
    let mut stacks: BTreeMap<String, BTreeMap<usize, &TensorInfo>> = BTreeMap::new();
    for tensor in weights.tensors() {
        if let Some((name, expert)) = place(&tensor.name) {
            stacks.entry(name).or_default().insert(expert, tensor);
        }
    }
    if stacks.is_empty() {
        return Ok(weights);
    }
    let source = Arc::new(weights.clone());
    let mut entries: Vec<TensorEntry> = weights
        .tensors()
        .iter()
        .filter(|tensor| place(&tensor.name).is_none())
        .map(|tensor| weights.entry(tensor))
        .collect();
    for (name, experts) in stacks {
        entries.push(stack(&source, name, experts)?);
    }
    let label = weights.label().to_owned();
    let stacked = Weights::of(label, weights.metadata().clone(), entries)?;
    Ok(stacked.with_files(weights.files().cloned()))
}

/// The name of the stack to which a tensor belongs, and its place in the stack.
fn place(name: &str) -> Option<(String, usize)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (projection, rest) = rest.split_once('.')?;
    let (expert, ending) = rest.split_once('.')?;
    // One way to write a number: two tensors are never the same expert.
    let is_number = |text: &str| {
        let is_plain = text == "0" || !text.starts_with('0');
        is_plain && !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
    };
    let is_single = is_number(layer) && PROJECTIONS.contains(&projection) && is_number(expert);
    let expert = expert
        .parse()
        .ok()
        .filter(|_| is_single && ending == "weight")?;
    Some((format!("blk.{layer}.{projection}_exps.weight"), expert))
}

fn stack(
    source: &Arc<Weights>,
    name: String,
    experts: BTreeMap<usize, &TensorInfo>,
) -> Result<TensorEntry, Error> {
    let refuse = |tensor: &str, message: String| Error::NotComputed {
        tensor: tensor.to_owned(),
        message,
    };
    for (expected, found) in experts.keys().enumerate() {
        if expected != *found {
            let message = format!("expert {expected} is missing of {}", experts.len());
            return Err(refuse(&name, message));
        }
    }
    let experts: Vec<TensorInfo> = experts.into_values().cloned().collect();
    let first = &experts[0];
    for other in &experts[1..] {
        if (other.ty, &other.shape) != (first.ty, &first.shape) {
            let message = format!(
                "is {} {:?}, and expert 0 (`{}`) is {} {:?}; experts must be alike",
                other.ty, other.shape, first.name, first.ty, first.shape
            );
            return Err(refuse(&other.name, message));
        }
    }
    let mut shape = first.shape.clone();
    if shape.len() >= MAX_DIMS {
        return Err(refuse(&first.name, "has too many dimensions".into()));
    }
    shape.push(experts.len() as u64);
    Ok(TensorEntry {
        name,
        ty: first.ty,
        shape,
        data: TensorData::Lazy(Arc::new(ExpertStack {
            source: Arc::clone(source),
            experts,
        })),
    })
}

struct ExpertStack {
    source: Arc<Weights>,
    experts: Vec<TensorInfo>,
}

impl fmt::Debug for ExpertStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} experts from {}",
            self.experts.len(),
            self.experts[0].name
        )
    }
}

impl LazyTensor for ExpertStack {
    fn rows(&self, first: u64, mut out: &mut [u8]) -> Result<(), String> {
        let (n_rows, row) = (self.experts[0].n_rows(), self.experts[0].row_bytes());
        let mut at = first;
        while !out.is_empty() {
            let (expert, inside) = ((at / n_rows) as usize, at % n_rows);
            let expert = self.experts.get(expert).ok_or("there are no such rows")?;
            let n = (n_rows - inside).min(out.len() as u64 / row);
            let (part, rest) = out.split_at_mut((n * row) as usize);
            let given = self.source.rows(expert, inside, part);
            given.map_err(|error| error.to_string())?;
            out = rest;
            at += n;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::gguf::builder::{GgufBuilder, open};

    /// Gates of `n` experts in two layers, with 2 rows of 4 numbers each, and another tensor.
    fn file(names: &[&str]) -> Result<Weights, Error> {
        let mut file = GgufBuilder::new();
        let mut data = Vec::new();
        for (i, name) in names.iter().enumerate() {
            file = file.tensor(name, &[4, 2], 0, 32 * i as u64);
            data.extend((0..8).flat_map(|j| ((10 * i + j) as f32).to_le_bytes()));
        }
        stacked(open(file.data(&data).bytes()).expect("a sound file"))
    }

    #[test]
    fn single_experts_become_one_tensor() {
        let names = [
            "blk.0.ffn_gate.1.weight",
            "blk.0.attn_q.weight",
            "blk.0.ffn_gate.0.weight",
        ];
        let weights = file(&names).expect("they stack");
        assert_eq!(weights.tensors().len(), 2);
        let stack = weights.tensor("blk.0.ffn_gate_exps.weight").expect("there");
        assert_eq!(stack.shape, [4, 2, 2]);
        let numbers = |bytes: &[u8]| -> Vec<f32> {
            let each = bytes.chunks_exact(4);
            each.map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes")))
                .collect()
        };
        let all = numbers(&weights.data(stack).expect("made"));
        let expected: Vec<f32> = (20..28).chain(0..8).map(|n| n as f32).collect();
        assert_eq!(all, expected);
        let some = numbers(&weights.some_rows(stack, 1, 2).expect("made"));
        assert_eq!(some, expected[4..12]);
        assert!(weights.tensor("blk.0.attn_q.weight").is_some());
    }

    #[test]
    fn experts_that_do_not_stack_are_refused() {
        let message = file(&["blk.0.ffn_up.0.weight", "blk.0.ffn_up.2.weight"]);
        let message = message.expect_err("one is missing").to_string();
        assert_eq!(
            message,
            "tensor `blk.0.ffn_up_exps.weight`: expert 1 is missing of 2"
        );
        let untouched = file(&["blk.0.ffn_up.weight", "blk.0.attn_q.0.weight"]);
        assert_eq!(untouched.expect("as it was").tensors().len(), 2);
        // Two names of one expert: the second is no expert, and not lost.
        let twice = file(&["blk.0.ffn_up.0.weight", "blk.0.ffn_up.00.weight"]).expect("they stack");
        assert!(twice.tensor("blk.0.ffn_up.00.weight").is_some());
    }
}
