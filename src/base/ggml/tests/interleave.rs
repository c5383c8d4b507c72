//! Products with interleaved rows: the bits of those with the rows as they are in the file.

use super::super::*;
use super::matmul::{quantized, values};
use super::{BEFORE, in_file, result};
use crate::weights::FileBytes;
use crate::weights::TensorType::{self, *};

pub(super) const TYPES: &[TensorType] = &[
    Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4,
];

/// A matrix in a file.
pub(super) struct Matrix {
    pub(super) tensor: Tensor,
    rows: RowsInFile,
}

pub(super) fn matrix(arena: &Arena, ty: TensorType, shape: [u64; 4], seed: u32) -> Matrix {
    let n = shape.iter().product::<u64>() as usize;
    let bytes = quantized(&values(n, seed), shape[0] as usize, ty);
    let file = FileBytes::Static([&[0; BEFORE], &bytes[..]].concat().leak());
    let tensor = in_file(arena, "w", (ty, &shape), &file);
    let rows = RowsInFile {
        file,
        offset: BEFORE,
        ty,
        shape,
    };
    Matrix { tensor, rows }
}

impl Matrix {
    pub(super) fn interleave(&self) -> InterleavedRows {
        let rows = InterleavedRows::of(std::slice::from_ref(&self.rows), |_| {});
        let rows = rows.expect("there is memory").remove(0);
        self.tensor.use_interleaved(&rows).expect("its own rows");
        rows
    }

    /// Products of a view of the rows from `first` on with `n` columns.
    pub(super) fn product(&self, first: u64, n: usize, threads: usize) -> Vec<f32> {
        let [k, m, ..] = self.tensor.shape();
        let mut g = Graph::new(16, 8).expect("a small graph");
        let strides = self.tensor.strides();
        let strides = [strides[1], strides[2], strides[3]];
        let shape = [k, m - first, 1, 1];
        let some = g.view(&self.tensor, shape, strides, first as usize * strides[0]);
        let some = some.expect("rows of the matrix");
        let b = g.input("b", F32, &[k, n as u64]).expect("columns");
        let z = g.mul_mat(&some, &b).expect("shapes fit");
        g.output(&z).expect("of this graph");
        let mut executor = Executor::new(&[], threads, 64).expect("the processor");
        executor.load(g).expect("it fits");
        executor
            .write(&b, &values(k as usize * n, 5))
            .expect("columns");
        executor.run().expect("it runs");
        result(&executor, &z)
    }
}

#[test]
fn interleaved_rows_give_the_same_bits() {
    for &ty in TYPES {
        for k in [256, 1280] {
            let arena = Arena::new(1, 0).expect("small");
            // The last rows are no whole tile.
            let m = if k == 256 { 48 } else { 53 };
            let matrix = matrix(&arena, ty, [k, m, 1, 1], k as u32);
            // Whole tiles, part of one, and columns that are multiplied alone, some at a time, and in parts.
            let cases = [
                (0, 2, 1),
                (16, 3, 2),
                (0, 4, 1),
                (32, 9, 1),
                (8, 2, 2),
                (0, 130, 2),
            ];
            let products = || cases.map(|(first, n, threads)| matrix.product(first, n, threads));
            let before = products();
            let alone = matrix.product(0, 1, 1);
            if !matrix.tensor.interleaves() {
                assert!(!machine_interleaves(), "{ty}");
                return;
            }
            let _rows = matrix.interleave();
            assert!(before == products(), "{ty}, rows of {k}");
            // The first column of many, of which each has the bits that it has alone.
            let [two, many] = [2, 130].map(|n| matrix.product(0, n, 1));
            let m = m as usize;
            assert_eq!(matrix.product(0, 1, 2)[..], two[..m], "{ty}, rows of {k}");
            assert_eq!(many[..m], two[..m], "{ty}, rows of {k}");
            let near = alone.iter().zip(&two).all(|(a, b)| (a - b).abs() < 1e-3);
            assert!(near, "{ty}, rows of {k}");
        }
    }
}

/// Whether the kernels of this machine read interleaved rows.
fn machine_interleaves() -> bool {
    RowsInFile::are_interleaved(Q8_0, [32, 16, 1, 1])
}

#[test]
fn experts_are_interleaved() {
    if !machine_interleaves() {
        return;
    }
    let k = 256;
    // The last rows of one expert are no whole tile.
    for (m, n_experts) in [(32, 4), (40, 1)] {
        for &ty in TYPES {
            let arena = Arena::new(1, 0).expect("small");
            let matrix = matrix(&arena, ty, [k, m, n_experts, 1], 3);
            let product = || {
                let mut g = Graph::new(16, 8).expect("a small graph");
                let b = g.input("b", F32, &[k, 1, 3]).expect("columns");
                let ids = g.index_input("ids", I32, &[2, 3], n_experts).expect("ids");
                let z = g.mul_mat_id(&matrix.tensor, &b, &ids).expect("shapes fit");
                g.output(&z).expect("of this graph");
                let mut executor = Executor::new(&[], 2, 64).expect("the processor");
                // Experts of one column are multiplied as those of several.
                executor.set_batch_invariant();
                executor.load(g).expect("it fits");
                executor
                    .write(&b, &values(3 * k as usize, 5))
                    .expect("columns");
                let experts = [0, 3, 3, 1, 1, 2].map(|expert| expert % n_experts as i32);
                executor.write_indices(&ids, &experts).expect("ids");
                executor.run().expect("it runs");
                result::<f32>(&executor, &z)
            };
            let before = product();
            let _rows = matrix.interleave();
            assert_eq!(before, product(), "{ty}, {n_experts} experts of {m} rows");
        }
    }
}

#[test]
fn rows_are_interleaved_once_for_all_users() {
    if !machine_interleaves() {
        return;
    }
    let arenas = [(); 2].map(|()| Arena::new(1, 0).expect("small"));
    let first = matrix(&arenas[0], Q4_K, [256, 16, 1, 1], 1);
    let mut n_made = 0;
    let all = [first.rows.clone()];
    let rows = InterleavedRows::of(&all, |bytes| n_made += bytes).expect("there is memory");
    assert_eq!(n_made, 16 * 144);
    let again = InterleavedRows::of(&all, |bytes| n_made += bytes).expect("there is memory");
    assert_eq!(n_made, 16 * 144, "the second user made none");
    // Rows of another matrix are refused.
    let other = matrix(&arenas[1], Q4_K, [256, 32, 1, 1], 1);
    assert!(other.tensor.use_interleaved(&rows[0]).is_err());
    first
        .tensor
        .use_interleaved(&again[0])
        .expect("its own rows");
    // Rows that are not whole tiles are not interleaved, nor those of types without kernels.
    let bad = |ty, shape| RowsInFile {
        ty,
        shape,
        ..first.rows.clone()
    };
    for bad in [bad(Q4_K, [256, 15, 1, 1]), bad(F32, [256, 16, 1, 1])] {
        assert!(InterleavedRows::of(&[bad], |_| {}).is_err());
    }
}
