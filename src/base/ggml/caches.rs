//! The types of keys and values that a device can store: it must write rows and read them by flash attention.

use ggml_sys as sys;

use super::arena::Tensor;
use super::device::Device;
use super::error::Error;
use super::ops::{Graph, ScoreOptions};
use crate::weights::TensorType;

/// Types of keys and values, the largest first.
pub const CACHE_TYPES: [TensorType; 9] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q8_0,
    TensorType::Q5_1,
    TensorType::Q5_0,
    TensorType::Q4_1,
    TensorType::Q4_0,
    TensorType::IQ4_NL,
];

const N_SLOTS: u64 = 256;
const N_HEADS: u64 = 4;

impl Device {
    /// Whether this is a device of another machine. Such a device claims every operation without asking the machine.
    pub fn is_remote(self) -> bool {
        self.backend_name() == "RPC"
    }

    /// Whether the device claims to compute a node of a graph.
    pub fn supports(self, node: &Tensor) -> bool {
        // SAFETY: the device lives as long as the program, the node as its arena.
        unsafe { sys::ggml_backend_dev_supports_op(self.as_ptr(), node.as_ptr()) }
    }

    /// Whether this device can write keys and values of a type, with heads of `d` elements, and read them by flash
    /// attention.
    ///
    /// # Errors
    /// The heads are not whole blocks of the type.
    pub fn can_cache(self, ty: TensorType, d: u64) -> Result<bool, Error> {
        let g = Graph::new(16, 4)?;
        let cache = g.input("cache", ty, &[d * N_HEADS, N_SLOTS])?;
        let rows = g.input("rows", TensorType::F32, &[d * N_HEADS, 1])?;
        let at = g.index_input("at", TensorType::I64, &[1], N_SLOTS)?;
        let written = g.set_rows(&cache, &rows, &at)?;
        let head = ty.row_bytes(d).unwrap_or(0) as usize;
        let row = cache.strides()[1];
        let shape = [d, N_SLOTS, N_HEADS, 1];
        let keys = g.view(&cache, shape, [row, head, row * N_SLOTS as usize], 0)?; // [d, n_kv, heads]
        let q = g.input("q", TensorType::F32, &[d, 1, N_HEADS])?;
        let mask = g.input("mask", TensorType::F16, &[N_SLOTS, 1])?;
        let scores = ScoreOptions {
            scale: 1.0,
            softcap: 0.0,
            max_bias: 0.0,
            sinks: None,
        };
        let read = g.flash_attn(&q, &keys, &keys, Some(&mask), &scores)?;
        Ok(self.supports(&written) && self.supports(&read))
    }
}
