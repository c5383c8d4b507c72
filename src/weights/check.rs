//! Weights that are not finite numbers: a damaged file is told apart from a strange model.
//!
//! Plain floats are looked at one by one. In quantised blocks only the scales are floats, so only
//! they are looked at; types without such a rule are named as unchecked, never passed silently.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Error, TensorInfo, TensorType, Weights};

/// Looks at the tensors of these names. Returns the types that have no rule.
///
/// # Errors
/// The first tensor, in the order of `names`, that holds NaN or infinity.
pub fn check(weights: &Weights, names: &[&str]) -> Result<Vec<&'static str>, Error> {
    let tensors: Vec<&TensorInfo> = names
        .iter()
        .filter_map(|name| weights.tensor(name))
        .collect();
    let next = AtomicUsize::new(0);
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut faults: Vec<(usize, Error)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..n_threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut faults = Vec::new();
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(tensor) = tensors.get(at) else {
                            return faults;
                        };
                        faults.extend(fault(tensor, weights.data(tensor)).map(|fault| (at, fault)));
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_default())
            .collect()
    });
    faults.sort_by_key(|(at, _)| *at);
    if let Some((_, fault)) = faults.into_iter().next() {
        return Err(fault);
    }
    let mut unchecked: Vec<&'static str> = tensors
        .iter()
        .filter(|t| rule(t.ty).is_none())
        .map(|t| t.ty.name())
        .collect();
    unchecked.sort_unstable();
    unchecked.dedup();
    Ok(unchecked)
}

/// How a block's floats are found.
enum Rule {
    /// The type holds integers, which are always finite.
    Integers,
    F32,
    F64,
    Bf16,
    /// f16 numbers at these offsets of each block.
    F16At(&'static [usize]),
    /// An 8-bit exponent at the head of each block; 255 is NaN.
    E8m0,
}

fn rule(ty: TensorType) -> Option<Rule> {
    Some(match ty {
        TensorType::I8 | TensorType::I16 | TensorType::I32 | TensorType::I64 => Rule::Integers,
        TensorType::F32 => Rule::F32,
        TensorType::F64 => Rule::F64,
        TensorType::BF16 => Rule::Bf16,
        TensorType::F16
        | TensorType::Q4_0
        | TensorType::Q5_0
        | TensorType::Q8_0
        | TensorType::IQ4_NL
        | TensorType::IQ4_XS
        | TensorType::Q1_0
        | TensorType::Q2_0 => Rule::F16At(&[0]),
        TensorType::Q4_1
        | TensorType::Q5_1
        | TensorType::Q8_1
        | TensorType::Q4_K
        | TensorType::Q5_K => Rule::F16At(&[0, 2]),
        TensorType::Q2_K => Rule::F16At(&[80, 82]),
        TensorType::Q3_K => Rule::F16At(&[108]),
        TensorType::Q6_K => Rule::F16At(&[208]),
        TensorType::MXFP4 => Rule::E8m0,
        _ => return None,
    })
}

fn fault(tensor: &TensorInfo, data: &[u8]) -> Option<Error> {
    let rule = rule(tensor.ty)?;
    let size = tensor.ty.block_bytes() as usize;
    let blocks_per_row = (tensor.shape[0] / tensor.ty.block_len()).max(1);
    let float16 =
        |block: &[u8], at: usize| half::f16::from_le_bytes([block[at], block[at + 1]]).to_f64();
    data.chunks_exact(size).enumerate().find_map(|(i, block)| {
        let value = match rule {
            Rule::Integers => return None,
            Rule::F32 => f64::from(f32::from_le_bytes(std::array::from_fn(|b| block[b]))),
            Rule::F64 => f64::from_le_bytes(std::array::from_fn(|b| block[b])),
            Rule::Bf16 => half::bf16::from_le_bytes([block[0], block[1]]).to_f64(),
            Rule::F16At(offsets) => offsets
                .iter()
                .map(|at| float16(block, *at))
                .find(|v| !v.is_finite())
                .unwrap_or(0.0),
            Rule::E8m0 if block[0] == u8::MAX => f64::NAN,
            Rule::E8m0 => 0.0,
        };
        (!value.is_finite()).then(|| Error::NotFinite {
            tensor: tensor.name.clone(),
            row: i as u64 / blocks_per_row,
            found: if value.is_nan() { "NaN" } else { "infinity" },
        })
    })
}
