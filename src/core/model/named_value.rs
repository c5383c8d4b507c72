//! The named values of the last pass.

use crate::arch::PointParts;
use lab_base::ggml::Executor;
use lab_base::weights::TensorType;

use super::error::Result;
use super::graph::CapturedValue;

/// A value of the last pass.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedValue {
    /// The path of the value, such as `layers.3.attn.q`.
    pub path: String,
    /// The shape, fastest dimension first, without trailing ones.
    pub shape: Vec<u64>,
    /// Whether the last dimension is that of the pass's tokens, with one row for each.
    pub is_per_token: bool,
    pub elements: Vec<f32>,
}

impl NamedValue {
    /// Reads a captured value of the loaded graph.
    pub(super) fn read(executor: &Executor, captured: &CapturedValue) -> Result<Self> {
        let tensor = &captured.tensor;
        let shape = tensor.shape();
        let mut elements = vec![0.0f32; tensor.elements() as usize];
        if tensor.ty() == TensorType::I32 {
            let mut ids = vec![0i32; elements.len()];
            executor.read(tensor, &mut ids)?;
            elements = ids.into_iter().map(|id| id as f32).collect();
        } else {
            executor.read(tensor, &mut elements)?;
        }
        let rank = shape.iter().rposition(|n| *n != 1).map_or(1, |at| at + 1);
        Ok(Self {
            path: captured.path.clone(),
            shape: shape[..rank].to_vec(),
            is_per_token: captured.spec.parts != PointParts::Pairs && !captured.is_of_source,
            elements,
        })
    }
}
