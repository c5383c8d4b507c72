//! Tests of the matrix products in `ggml-sys/src/matmul`: for the types that have a kernel there, the bits of a column
//! of the result do not depend on the other columns; for all others on request ([`Executor::set_batch_invariant`]).

use super::super::*;
use super::{in_place, put, result};
use crate::weights::TensorType::{self, *};

const TYPES: &[TensorType] = &[
    F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ2_XXS, IQ2_XS,
    IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS, MXFP4,
];

fn executor(threads: usize, is_invariant: bool) -> Executor {
    let mut executor = Executor::new(&[], threads, 64).expect("the processor");
    if is_invariant {
        executor.set_batch_invariant();
    }
    executor
}

pub(super) fn values(n: usize, mut seed: u32) -> Vec<f32> {
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Rows of `k` values in a type that can be made of them, each column as important as the others.
pub(super) fn quantized(values: &[f32], k: usize, ty: TensorType) -> Vec<u8> {
    let row_bytes = ty.row_bytes(k as u64).expect("whole blocks") as usize;
    let mut out = vec![0; values.len() / k * row_bytes];
    quantize_into(values, k, ty, Some(&vec![1.0; k]), &mut out).expect("a type with a maker");
    out
}

fn run(executor: &mut Executor, output: &Tensor) -> Vec<f32> {
    executor.run().expect("it runs");
    result(executor, output)
}

/// `a [k, m] . b [k, n]`, in the order of the columns.
fn product(
    ty: TensorType,
    a: &[u8],
    b: &[f32],
    k: usize,
    (threads, is_invariant): (usize, bool),
) -> Vec<f32> {
    let m = a.len() / ty.row_bytes(k as u64).expect("whole blocks") as usize;
    let n = b.len() / k;
    let mut g = Graph::new(16, 8).expect("a small graph");
    let x = g.input("a", ty, &[k as u64, m as u64]).expect("a matrix");
    let y = g.input("b", F32, &[k as u64, n as u64]).expect("a matrix");
    let z = g.mul_mat(&x, &y).expect("shapes fit");
    g.output(&z).expect("of this graph");
    let mut executor = self::executor(threads, is_invariant);
    executor.load(g).expect("it fits");
    put(&mut executor, &x, a);
    put(&mut executor, &y, b);
    run(&mut executor, &z)
}

fn dequantized(ty: TensorType, a: &[u8], k: usize) -> Vec<f32> {
    let m = a.len() / ty.row_bytes(k as u64).expect("whole blocks") as usize;
    let mut g = Graph::new(16, 8).expect("a small graph");
    let x = g.input("a", ty, &[k as u64, m as u64]).expect("a matrix");
    let ids = g
        .index_input("ids", I32, &[m as u64], m as u64)
        .expect("rows");
    let y = g.get_rows(&x, &ids).expect("shapes fit");
    g.output(&y).expect("of this graph");
    let mut executor = self::executor(1, false);
    executor.load(g).expect("it fits");
    put(&mut executor, &x, a);
    let all: Vec<i32> = (0..m as i32).collect();
    executor.write_indices(&ids, &all).expect("rows");
    run(&mut executor, &y)
}

/// The values of 8-bit codes for blocks of `block` values, as ggml rounds columns: the step is the 127th part of
/// the largest value of a block; in blocks of 32 it is stored as f16.
fn eight_bits(x: &[f32], block: usize) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for part in x.chunks(block) {
        let largest = part
            .iter()
            .copied()
            .max_by(|a, b| a.abs().total_cmp(&b.abs()))
            .expect("a block");
        let inverse = if block == 256 {
            -127.0 / largest
        } else {
            127.0 / largest.abs()
        };
        let step = match block {
            256 => f64::from(1.0 / inverse),
            _ => f64::from(half::f16::from_f32(largest.abs() / 127.0)),
        };
        let code = |v: &f32| f64::from((inverse * v).round_ties_even().min(127.0));
        out.extend(part.iter().map(|v| code(v) * step));
    }
    out
}

fn rounded(ty: TensorType, x: &[f32]) -> Vec<f64> {
    match ty {
        F32 => x.iter().map(|v| f64::from(*v)).collect(),
        F16 => x
            .iter()
            .map(|v| f64::from(half::f16::from_f32(*v)))
            .collect(),
        BF16 => x
            .iter()
            .map(|v| f64::from(half::bf16::from_f32(*v)))
            .collect(),
        _ if ty.block_len() == 256 => eight_bits(x, 256),
        _ => eight_bits(x, 32),
    }
}

/// The exact sum of products, and the bound of the difference of f32 sums from it, plus that of ggml's f16 sums of blocks (q4_1, q5_1).
fn exact(ty: TensorType, w: &[f32], x: &[f64]) -> (f64, f64) {
    let (mut sum, mut size) = (0.0, 0.0f64);
    for (w, x) in w.iter().zip(x) {
        let product = f64::from(*w) * x;
        sum += product;
        size += product.abs();
    }
    let mut bound = size * w.len() as f64 * f64::from(f32::EPSILON) / 2.0;
    if matches!(ty, Q4_1 | Q5_1) {
        for (w, x) in w.chunks(32).zip(x.chunks(32)) {
            let largest = w.iter().fold(0.0f64, |m, w| m.max(f64::from(w.abs())));
            bound += largest * x.iter().sum::<f64>().abs() / 2048.0;
        }
    }
    (sum, bound)
}

/// Compares the products of `n` columns with exact sums; row `r` of `a` has the values of row `r % n_rows` of `w`.
fn check(ty: TensorType, a: &[u8], w: &[f32], (k, n): (usize, usize), how: (usize, bool)) {
    let b = values(k * n, 77 + n as u32);
    let found = product(ty, a, &b, k, how);
    let m = found.len() / n;
    for c in 0..n {
        let x = rounded(ty, &b[c * k..][..k]);
        let rows: Vec<(f64, f64)> = w.chunks(k).map(|w| exact(ty, w, &x)).collect();
        for (r, (exact, bound)) in rows.iter().cycle().take(m).enumerate() {
            let found = found[c * m + r];
            assert!(
                (f64::from(found) - exact).abs() <= *bound,
                "{ty}, k {k}, n {n}, row {r}, column {c}: {found} for {exact}"
            );
        }
    }
}

#[test]
fn products_are_the_sums_of_products() {
    // More than one batch of unpacked weights, and rows that do not fill a tile.
    for (k, m) in [(1280, 37), (256, 16), (512, 1)] {
        for (i, &ty) in TYPES.iter().enumerate() {
            let a = quantized(&values(k * m, i as u32), k, ty);
            let w = dequantized(ty, &a, k);
            for n in [1, 2, 3, 8, 13, 130] {
                check(ty, &a, &w, (k, n), (1, false));
            }
        }
    }
}

/// Matrices of more than half a megabyte are read from memory in another order.
#[test]
fn large_matrices_are_multiplied_like_small_ones() {
    const ROWS: usize = 16;
    const LARGE: usize = 1 << 20;
    for is_invariant in [false, true] {
        for (i, &ty) in TYPES.iter().enumerate() {
            // Rows of unquantised values may end within a vector register.
            for k in [1280, 1283, 8] {
                if k % ty.block_len() as usize != 0 {
                    continue;
                }
                let rows = quantized(&values(k * ROWS, i as u32), k, ty);
                let w = dequantized(ty, &rows, k);
                let a = rows.repeat(LARGE.div_ceil(rows.len()));
                for (n, threads) in [(1, 1), (1, 2), (2, 2)] {
                    check(ty, &a, &w, (k, n), (threads, is_invariant));
                }
            }
        }
    }
}

#[test]
fn matrices_are_multiplied_where_they_lie() {
    for &ty in TYPES {
        for (k, m) in [(256, 1), (512, 33), (1280, 16)] {
            let a = quantized(&values(k * m, 3), k, ty);
            for n in [1, 3, 17] {
                let b = values(k * n, 4);
                let (k, m, n) = (k as u64, m as u64, n as u64);
                let (left, right) = (Arena::new(2, 0), Arena::new(2, 0));
                let (left, right) = (left.expect("small"), right.expect("small"));
                let x = in_place(&left, "a", ty, &[k, m], &a);
                let y = in_place(&right, "b", F32, &[k, n], bytemuck::cast_slice(&b));
                let mut g = Graph::new(16, 8).expect("a small graph");
                let z = g.mul_mat(&x, &y).expect("shapes fit");
                g.output(&z).expect("of this graph");
                let mut executor = self::executor(2, true);
                executor.load(g).expect("it fits");
                let copied = product(ty, &a, &b, k as usize, (2, true));
                assert_eq!(
                    run(&mut executor, &z),
                    copied,
                    "{ty}, k {k}, {m} rows, {n} columns"
                );
            }
        }
    }
}

fn same_bits(ty: TensorType, k: usize, m: usize) {
    let a = quantized(&values(k * m, 5), k, ty);
    let b = values(k * 64, 6);
    let all = product(ty, &a, &b, k, (1, true));
    for (threads, columns) in [
        (1, &[1, 2, 3, 5, 8, 17, 64][..]),
        (2, &[1, 17]),
        (3, &[5, 64]),
    ] {
        for &n in columns {
            // The last columns are taken, so that the place of a column differs too.
            let part = product(ty, &a, &b[(64 - n) * k..], k, (threads, true));
            let same = part
                .iter()
                .zip(&all[(64 - n) * m..])
                .all(|(x, y)| x.to_bits() == y.to_bits());
            assert!(same, "{ty}, {m} rows: {n} columns on {threads} threads");
        }
    }
}

#[test]
fn a_column_has_the_same_bits_in_any_company() {
    for &ty in TYPES {
        same_bits(ty, 1280, 37);
    }
    // There are so many rows that the threads take them from a common queue.
    for ty in [F16, Q8_0, Q4_K, Q5_0] {
        same_bits(ty, 512, 2100);
    }
}

#[test]
fn heads_and_turned_columns_multiply_like_matrices() {
    let (k, m, n, heads, groups) = (64, 40, 3, 2, 3);
    for ty in [F32, F16, Q8_0, Q5_1] {
        let a = quantized(&values(k * m * heads, 1), k, ty);
        let b = values(k * n * heads * groups, 2);
        let mut g = Graph::new(16, 8).expect("a small graph");
        let x = g
            .input("a", ty, &[k as u64, m as u64, heads as u64])
            .expect("matrices");
        let all = (heads * groups) as u64;
        let y = g
            .input("b", F32, &[k as u64, all, n as u64])
            .expect("matrices");
        let transposed = g.permute(&y, [0, 2, 1, 3]).expect("axes");
        let z = g.mul_mat(&x, &transposed).expect("shapes fit");
        g.output(&z).expect("of this graph");
        let mut executor = self::executor(2, true);
        executor.load(g).expect("it fits");
        put(&mut executor, &x, &a);
        put(&mut executor, &y, &b);
        let found = run(&mut executor, &z);
        for head in 0..heads * groups {
            let columns: Vec<f32> = (0..n)
                .flat_map(|c| b[(c * heads * groups + head) * k..][..k].to_vec())
                .collect();
            let bytes = a.len() / heads;
            let alone = product(
                ty,
                &a[head / groups * bytes..][..bytes],
                &columns,
                k,
                (1, true),
            );
            assert_eq!(found[head * m * n..][..m * n], alone, "{ty}, head {head}");
        }
    }
}

#[test]
fn experts_multiply_like_matrices() {
    // One column is tested too, since it has its own functions.
    for (on, tokens) in [(true, 45), (false, 1)] {
        experts_of(tokens, on);
    }
}

fn experts_of(tokens: usize, is_invariant: bool) {
    let (k, m, experts, used) = (512, 20, 4, 2);
    for ty in [
        F32, F16, BF16, Q8_0, Q4_K, Q6_K, Q5_0, Q2_K, Q3_K, IQ2_XS, IQ3_S,
    ] {
        let a = quantized(&values(k * m * experts, 3), k, ty);
        let b = values(k * tokens, 4);
        // Most tokens have the same first expert, so one expert gets many columns.
        let chosen: Vec<i32> = (0..tokens as i32)
            .flat_map(|t| {
                [
                    if t % 5 == 0 { 3 } else { 1 },
                    if t % 2 == 0 { 0 } else { 2 },
                ]
            })
            .collect();
        let mut g = Graph::new(16, 8).expect("a small graph");
        let x = g
            .input("a", ty, &[k as u64, m as u64, experts as u64])
            .expect("matrices");
        let y = g
            .input("b", F32, &[k as u64, 1, tokens as u64])
            .expect("columns");
        let ids = g
            .index_input("ids", I32, &[used as u64, tokens as u64], experts as u64)
            .expect("ids");
        let z = g.mul_mat_id(&x, &y, &ids).expect("shapes fit");
        g.output(&z).expect("of this graph");
        let mut executor = self::executor(3, is_invariant);
        executor.load(g).expect("it fits");
        put(&mut executor, &x, &a);
        put(&mut executor, &y, &b);
        executor.write_indices(&ids, &chosen).expect("ids");
        let found = run(&mut executor, &z);
        let bytes = a.len() / experts;
        for (i, &expert) in chosen.iter().enumerate() {
            let weights = &a[expert as usize * bytes..][..bytes];
            let alone = product(ty, weights, &b[i / used * k..][..k], k, (1, is_invariant));
            assert_eq!(found[i * m..][..m], alone, "{ty}, choice {i}");
        }
    }
}
