//! Operations that take rows from tables and write rows to tables by index.

use ggml_sys as sys;

use super::super::arena::Tensor;
use super::super::error::Error;
use super::{Graph, fault, is_matrix_type};
use crate::weights::TensorType;

impl Graph {
    /// The rows of `table [n, rows, b]` at `ids [m, b]` -> `[n, m, b]`, f32. Rows of an i32 table stay i32 with the
    /// same bound.
    pub fn get_rows(&self, table: &Tensor, ids: &Tensor) -> Result<Tensor, Error> {
        let (st, si) = (table.shape(), ids.shape());
        let fits = st[2] == si[1] && st[3] == 1 && si[2..] == [1, 1];
        if !fits || !table.has_dense_rows() || !ids.has_dense_rows() {
            return fault(
                "get_rows",
                format!("{table:?} by {ids:?}: expected as many lists of rows as tables"),
            );
        }
        let is_table = is_matrix_type(table.ty()) || table.ty() == TensorType::I32;
        if ids.ty() != TensorType::I32 || !is_table {
            return fault(
                "get_rows",
                format!("{table:?} by {ids:?}: expected numbers by i32"),
            );
        }
        self.bounded("get_rows", ids, st[1])?;
        // SAFETY: shapes and types were checked; the values of `ids` are bounded when written.
        let rows = append!(self, "get_rows", sys::ggml_get_rows, [table, ids])?;
        self.bound_as(&rows, table);
        Ok(rows)
    }

    /// The indices of the `k` largest elements of each row, largest first: `a [n, m]` -> `[k, m]`, i32, bounded by n.
    /// What is no number is smaller than all numbers on the processor, and anywhere on other devices; the indices of a
    /// row differ from each other in any case. Of equal elements the processor takes the first.
    pub fn top_k(&self, a: &Tensor, k: u64) -> Result<Tensor, Error> {
        self.float("top_k", a, true)?;
        let n = a.shape()[0];
        if k == 0 || k > n || n > i32::MAX as u64 {
            return fault("top_k", format!("{k} places of {a:?}"));
        }
        // ggml makes two tensors: the sorted indices and a view of them.
        self.arena.reserve()?;
        // SAFETY: type, layout and sizes were checked.
        let places = append!(self, "top_k", sys::shim_best, [a], k as i32)?;
        // SAFETY: the source of the window is the sorting, which is alive with it.
        let sorted = unsafe { sys::shim_tensor_src(places.as_ptr(), 0) };
        self.scopes.note(&self.arena.wrap("top_k", sorted)?);
        self.bound(&places, n);
        Ok(places)
    }

    /// Ids divided by a number and rounded down; i32, with the bound divided likewise.
    ///
    /// # Errors
    /// The ids have no bound or one above 2^20, or the divisor is 0.
    pub fn divide_ids(&self, ids: &Tensor, by: u64) -> Result<Tensor, Error> {
        let (float, bound) = self.numbers_of("divide_ids", ids, by)?;
        // Half an id more is far from any whole quotient, whichever way a number is rounded.
        let scaled = self.affine(&float, 1.0 / by as f32, 0.5 / by as f32)?;
        let divided = self.converted("divide_ids", &scaled, TensorType::I32)?;
        self.bound(&divided, bound.div_ceil(by));
        Ok(divided)
    }

    /// Ids limited to `end - 1`, i32, with the bound limited likewise; and f32 of the same shape, 1 for the limited ids
    /// and 0 for the others.
    ///
    /// # Errors
    /// The ids have no bound or one above 2^20, or `end` is 0.
    pub fn ids_below(&self, ids: &Tensor, end: u64) -> Result<(Tensor, Tensor), Error> {
        let (float, bound) = self.numbers_of("ids_below", ids, end)?;
        let below = self.clamp(&float, 0.0, end as f32 - 1.0)?;
        let others = self.sub(&self.clamp(&float, 0.0, end as f32)?, &below)?;
        let below = self.converted("ids_below", &below, TensorType::I32)?;
        self.bound(&below, bound.min(end));
        Ok((below, others))
    }

    /// How often each of `ids [n, m]` is in a list of its row, `lists [k, 1, m]` of whole numbers below 2^24: f32 `[1, n, m]`.
    ///
    /// # Errors
    /// The ids have no bound or one above 2^20, or the shapes do not fit.
    pub fn times_listed(&self, ids: &Tensor, lists: &Tensor) -> Result<Tensor, Error> {
        let ([n, m, a, b], [k, one, rows, c]) = (ids.shape(), lists.shape());
        if (one, rows, [a, b, c]) != (1, m, [1; 3]) {
            return fault("times_listed", format!("{ids:?} in {lists:?}"));
        }
        let (ids, _) = self.numbers_of("times_listed", ids, 1)?;
        let ids = self.reshape(&ids, [1, n, m, 1])?;
        let away = self.sub(&self.repeat(lists, [k, n, m, 1])?, &ids)?;
        // The square of the difference of whole numbers is 0 or at least 1.
        let differ = self.clamp(&self.mul(&away, &away)?, 0.0, 1.0)?;
        self.affine(&self.sum_rows(&differ)?, -1.0, k as f32)
    }

    /// Ids as f32, exact, and their bound. `by` must not be 0.
    fn numbers_of(&self, op: &'static str, ids: &Tensor, by: u64) -> Result<(Tensor, u64), Error> {
        let bound = self.arena.0.bounds.borrow().get(&ids.key()).copied();
        let bound = bound.filter(|bound| *bound <= 1 << 20);
        match (ids.ty(), bound, by) {
            (TensorType::I32, Some(bound), 1..) => {
                Ok((self.converted(op, ids, TensorType::F32)?, bound))
            }
            _ => fault(op, format!("{ids:?} by {by}")),
        }
    }

    fn converted(
        &self,
        op: &'static str,
        values: &Tensor,
        ty: TensorType,
    ) -> Result<Tensor, Error> {
        // SAFETY: callers pass f32 or i32, of which any layout is converted.
        append!(self, op, sys::ggml_cast, [values], ty.id())
    }

    pub(super) fn bound(&self, ids: &Tensor, bound: u64) {
        self.arena.0.bounds.borrow_mut().insert(ids.key(), bound);
    }

    /// Records that the values of a tensor are among those of another tensor, which may be indices.
    pub(super) fn bound_as(&self, of: &Tensor, other: &Tensor) {
        let bound = other.arena.0.bounds.borrow().get(&other.key()).copied();
        if let Some(bound) = bound {
            self.bound(of, bound);
        }
    }

    /// Writes rows `values [n, m, b]` (f32) at `ids [m, b]` (i32) into `target [n, rows, b]`, a result of this graph,
    /// which is not copied. The result is the target after writing.
    pub fn put_rows(
        &self,
        target: &Tensor,
        values: &Tensor,
        ids: &Tensor,
    ) -> Result<Tensor, Error> {
        let (st, sv, si) = (target.shape(), values.shape(), ids.shape());
        let fits = st[0] == sv[0]
            && st[2] == sv[2]
            && sv[1] == si[0]
            && sv[2] == si[1]
            && [st[3], sv[3], si[2], si[3]] == [1, 1, 1, 1];
        let typed = target.ty() == TensorType::F32
            && values.ty() == TensorType::F32
            && ids.ty() == TensorType::I32;
        let dense = target.is_contiguous() && values.has_dense_rows() && ids.has_dense_rows();
        if !fits || !typed || !dense || !self.is_result(target) {
            return fault("put_rows", format!("{values:?} into {target:?} at {ids:?}"));
        }
        self.bounded("put_rows", ids, st[1])?;
        // SAFETY: shapes, types and layout were checked; the values of `ids` are bounded, and the
        // target is scratch memory of this graph.
        append!(self, "put_rows", sys::ggml_set_rows, [target, values, ids])
    }

    /// Writes rows `values [n, m]` (f32) into `target [n, rows]` at `ids [m]` (i64); the result is
    /// the target after writing.
    ///
    /// # Errors
    /// The shapes do not fit each other, a type is not supported, the ids are not an index tensor bounded by the number
    /// of rows, or the target is read-only memory of the host.
    pub fn set_rows(
        &self,
        target: &Tensor,
        values: &Tensor,
        ids: &Tensor,
    ) -> Result<Tensor, Error> {
        let (st, sv, si) = (target.shape(), values.shape(), ids.shape());
        let flat = st[2] == 1 && st[3] == 1 && sv[2] == 1 && sv[3] == 1 && si[1..] == [1, 1, 1];
        if !flat
            || st[0] != sv[0]
            || sv[1] != si[0]
            || !target.has_dense_rows()
            || !values.has_dense_rows()
        {
            return fault("set_rows", format!("{values:?} into {target:?} at {ids:?}"));
        }
        let stored = matches!(
            target.ty(),
            TensorType::F32
                | TensorType::F16
                | TensorType::BF16
                | TensorType::Q8_0
                | TensorType::Q4_0
                | TensorType::Q4_1
                | TensorType::Q5_0
                | TensorType::Q5_1
                | TensorType::IQ4_NL
        );
        if values.ty() != TensorType::F32 || ids.ty() != TensorType::I64 || !stored {
            return fault(
                "set_rows",
                format!("{values:?} into {target:?} at {ids:?}: unsupported types"),
            );
        }
        if target.arena.is_host_memory() {
            return fault("set_rows", format!("{target:?} is read-only"));
        }
        self.bounded("set_rows", ids, st[1])?;
        // SAFETY: shapes, types and layout were checked; the values of `ids` are bounded when
        // written, and the target's memory is our own.
        append!(self, "set_rows", sys::ggml_set_rows, [target, values, ids])
    }

    pub(super) fn bounded(&self, op: &'static str, ids: &Tensor, rows: u64) -> Result<(), Error> {
        match ids.arena.0.bounds.borrow().get(&ids.key()) {
            Some(&bound) if bound <= rows => Ok(()),
            Some(&bound) => fault(
                op,
                format!("`{}` goes up to {bound}, there are {rows} rows", ids.name()),
            ),
            None => fault(op, format!("`{}` is not an index tensor", ids.name())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ggml::tests::{loaded, put, result};
    use TensorType::{F32, I32};

    /// Rows of `n` numbers of few different values, with infinities and what is no number.
    fn rows(n: usize, m: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        let value = |at: u32| match at % 13 {
            0 => f32::NAN,
            1 => -f32::NAN,
            2 => f32::INFINITY,
            3 => f32::NEG_INFINITY,
            4 => -0.0,
            _ => (at % 29) as f32 - 13.0,
        };
        (0..n * m).map(|_| value(next())).collect()
    }

    /// The order that the operation documents.
    fn naive(row: &[f32], k: usize) -> Vec<i32> {
        let mut places: Vec<usize> = (0..row.len()).collect();
        places.sort_by(|a, b| match (row[*a], row[*b]) {
            (x, y) if x.is_nan() || y.is_nan() => x.is_nan().cmp(&y.is_nan()),
            (x, y) => y.partial_cmp(&x).expect("numbers"),
        });
        places.iter().take(k).map(|at| *at as i32).collect()
    }

    #[test]
    fn the_best_are_those_of_a_total_order() {
        for (n, k) in [
            (1, 1),
            (2, 2),
            (8, 3),
            (16, 16),
            (17, 4),
            (128, 8),
            (300, 64),
            (5000, 40),
        ] {
            let m = 5;
            for seed in 0..8 {
                let mut values = rows(n, m, seed);
                // A row in which nothing is a number, and one in which every number is before all before it.
                values[..n].fill(f32::NAN);
                values[n..2 * n]
                    .iter_mut()
                    .zip(0..)
                    .for_each(|(x, i)| *x = i as f32);
                let g = Graph::new(16, 4).expect("a small graph");
                let a = g
                    .input("a", F32, &[n as u64, m as u64])
                    .expect("a sound shape");
                let best = g.top_k(&a, k as u64).expect("as many places");
                // A copy: the places are the start of longer rows.
                let best = g.copy(&best).expect("rows of indices");
                let mut executor = loaded(g, &[&best], 3);
                put(&mut executor, &a, &values);
                executor.run().expect("it runs");
                let expected: Vec<i32> = values.chunks(n).flat_map(|row| naive(row, k)).collect();
                assert_eq!(
                    result::<i32>(&executor, &best),
                    expected,
                    "{k} of {n}, seed {seed}"
                );
            }
        }
    }

    #[test]
    fn a_router_that_yields_no_numbers_picks_different_experts() {
        let g = Graph::new(16, 4).expect("a small graph");
        let a = g.input("a", F32, &[64, 3]).expect("a sound shape");
        let best = g.top_k(&a, 8).expect("as many places");
        let best = g.copy(&best).expect("rows of indices");
        assert_eq!(best.ty(), I32);
        let mut executor = loaded(g, &[&best], 2);
        let values = [[f32::NAN; 64], [-f32::NAN; 64], [f32::INFINITY; 64]].concat();
        put(&mut executor, &a, &values);
        executor.run().expect("it runs");
        let first: Vec<i32> = (0..8).collect();
        assert_eq!(result::<i32>(&executor, &best), first.repeat(3));
    }
    #[test]
    fn ids_are_counted_in_the_list_of_their_row() {
        let g = Graph::new(16, 4).expect("a small graph");
        let ids = g.index_input("ids", I32, &[4, 2], 1 << 20).expect("sound");
        let lists = g.input("lists", F32, &[3, 1, 2]).expect("a sound shape");
        let times = g.times_listed(&ids, &lists).expect("shapes fit");
        let other = g.input("other", F32, &[3, 1, 3]).expect("a sound shape");
        assert!(g.times_listed(&ids, &other).is_err());
        assert_eq!(times.shape(), [1, 4, 2, 1]);
        let mut executor = loaded(g, &[&times], 2);
        let last = (1 << 20) - 1;
        let all = [0, 7, last, last - 1, 7, 5, 0, 1];
        executor.write_indices::<i32>(&ids, &all).expect("in range");
        put(
            &mut executor,
            &lists,
            &[last as f32, -1.0, 0.0, 5.0, 5.0, -1.0],
        );
        executor.run().expect("it runs");
        let expected = [1.0, 0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0];
        assert_eq!(result::<f32>(&executor, &times), expected);
    }
}
