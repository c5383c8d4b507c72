//! Selection of keys by their index scores: as lists, which attention over KV blocks reads, or as a mask.

use ggml_sys as sys;

use super::super::arena::Tensor;
use super::super::error::Error;
use super::paged_attention::KvBlocks;
use super::{Graph, fault, pointer};

/// The rule by which keys are selected for a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selector {
    /// Number of selected blocks of positions, those with the highest scores.
    pub top: u64,
    /// Number of positions of a block, which starts at a multiple of it.
    pub span: u64,
    /// Number of the last blocks, which are selected whatever their scores are.
    pub local: u64,
    /// Whether `top` whole blocks are selected, and the last block in addition if it is not whole.
    pub tail: bool,
}

impl Graph {
    /// Lists of the blocks with the highest scores for each query: i32 `[top, 1, n]`, or without weights
    /// `[top, heads, n]`, with a tail `top + 1`; see [`Selected`](super::Selected).
    ///
    /// A key's score is the sum over the heads of `weights [heads, n] * max(q . k, 0)`; without weights it is `q . k`
    /// for each head of `q [d, heads, n]`, f32. A block's score is the highest score of those of its positions that are
    /// in the query's interval. Ties are broken as in [`Self::largest`]. The values of `blocks` are not read.
    pub fn select(
        &self,
        q: &Tensor,
        weights: Option<&Tensor>,
        blocks: &KvBlocks<'_>,
        selector: Selector,
    ) -> Result<Tensor, Error> {
        const OP: &str = "select";
        self.float(OP, q, true)?;
        blocks.check(OP, q)?;
        let [_, heads, n, _] = q.shape();
        if let Some(weights) = weights {
            self.float(OP, weights, true)?;
            if weights.shape() != [heads, n, 1, 1] {
                return fault(OP, format!("{weights:?} for {q:?}"));
            }
        }
        let Selector {
            top,
            span,
            local,
            tail,
        } = selector;
        let is_small = |n: u64| n < 1 << 31;
        let n_blocks =
            (blocks.table.shape()[0].saturating_mul(blocks.block_len)).div_ceil(span.max(1));
        let groups = weights.map_or(heads, |_| 1);
        let sized = is_small(top.saturating_add(n_blocks)) && is_small(span) && is_small(local);
        if blocks.k.shape()[1] != 1 || top == 0 || span == 0 || !sized || !is_small(groups * n) {
            return fault(OP, format!("{selector:?} of {blocks:?} for {q:?}"));
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: types, shapes and layout were checked; no weights are null. The operation checks the values of
        // the two lists.
        let ptr = unsafe {
            sys::shim_select(
                ctx,
                q.as_ptr(),
                pointer(weights),
                blocks.k.as_ptr(),
                blocks.queries.as_ptr(),
                blocks.table.as_ptr(),
                top as i32,
                span as i32,
                if tail { -1 } else { local as i32 },
                blocks.block_len as i32,
            )
        };
        let [k, queries, table] = [blocks.k, blocks.queries, blocks.table].map(Some);
        let lists = self.node(OP, ptr, &[Some(q), k, queries, table, weights])?;
        let strides = lists.strides();
        self.view(
            &lists,
            [top + u64::from(tail), groups, n, 1],
            [strides[1], strides[2], strides[3]],
            0,
        )
    }

    /// The maximum of every `n` consecutive elements of each row: `a [n * m, b, c] -> [m, b, c]`; contiguous f32.
    pub fn max_of(&self, a: &Tensor, n: u64) -> Result<Tensor, Error> {
        self.float("max_of", a, true)?;
        if n == 0 || !a.shape()[0].is_multiple_of(n) || n > i32::MAX as u64 {
            return fault("max_of", format!("{n} elements of {a:?}"));
        }
        let n = n as i32;
        // SAFETY: type, layout and sizes were checked.
        append!(
            self,
            "max_of",
            sys::ggml_pool_2d,
            [a],
            sys::GGML_OP_POOL_MAX,
            n,
            1,
            n,
            1,
            0.0,
            0.0
        )
    }

    /// The indices of the `k` largest elements of each row of `a [n, m]`, in no order -> `[k, m]`, i32, bounded by n. Of a row
    /// with elements that are no number they have no meaning.
    pub fn highest(&self, a: &Tensor, k: u64) -> Result<Tensor, Error> {
        const OP: &str = "highest";
        self.float(OP, a, true)?;
        let n = a.shape()[0];
        if k == 0 || k > n || n > i32::MAX as u64 {
            return fault(OP, format!("{k} places of {a:?}"));
        }
        // SAFETY: type, layout and sizes were checked.
        let places = append!(self, OP, sys::ggml_top_k, [a], k as i32)?;
        self.bound(&places, n);
        Ok(places)
    }

    /// 0 at the `k` largest elements of each row of `a [n, m]`, else `other`. Contiguous f32.
    pub fn largest(&self, a: &Tensor, k: u64, other: f32) -> Result<Tensor, Error> {
        const OP: &str = "largest";
        self.float(OP, a, true)?;
        let [n, m, ..] = a.shape();
        if k == 0 || k > n || n > i32::MAX as u64 {
            return fault(OP, format!("{k} places of {a:?}"));
        }
        let others = self.fill(&self.reshape(a, [1, n, m, 1])?, other)?;
        // Vulkan's selection counts neither infinity nor what is no number, and then gives fewer indices.
        let a = &self.clamp(a, f32::MIN, f32::MAX)?;
        let places = self.highest(a, k)?;
        let of_places = self.view(&others, [1, k, m, 1], [4, 4 * n as usize, 4], 0)?;
        let zeros = self.fill(&self.cont(&of_places)?, 0.0)?;
        let written = self.put_rows(&others, &zeros, &places)?;
        self.reshape(&written, [n, m, 1, 1])
    }
}

#[cfg(test)]
mod tests {
    use super::super::Selected;
    use super::*;
    use crate::ggml::ScoreOptions;
    use crate::ggml::tests::{kv_blocks, loaded, put, result};
    use crate::weights::TensorType::{F32, I32};

    const BLOCK: usize = 16;
    const PLAIN: ScoreOptions<'static> = ScoreOptions {
        scale: 0.25,
        softcap: 0.0,
        max_bias: 0.0,
        sinks: None,
    };

    fn numbers(seed: u32, n: usize) -> Vec<f32> {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    /// An indexer over `n` positions in blocks in reverse order; the last `n_queries` positions have queries.
    struct Case {
        n: usize,
        n_queries: usize,
        heads: usize,
        d: usize,
        is_sum: bool,
        selector: Selector,
    }

    impl Case {
        fn slot(&self, position: usize) -> usize {
            let n_blocks = self.n.div_ceil(BLOCK);
            (n_blocks - 1 - position / BLOCK) * BLOCK + position % BLOCK
        }

        fn keys(&self) -> Vec<f32> {
            let mut keys = vec![f32::NAN; self.n.div_ceil(BLOCK) * BLOCK * self.d];
            for position in 0..self.n {
                let row = numbers(position as u32 + 7, self.d);
                keys[self.slot(position) * self.d..][..self.d].copy_from_slice(&row);
            }
            keys
        }

        fn run(&self, threads: usize) -> Vec<i32> {
            let n_blocks = self.n.div_ceil(BLOCK);
            let g = Graph::new(64, 8).expect("a small graph");
            let input = |ty, shape: [usize; 3]| {
                let shape = shape.map(|n| n as u64);
                g.input("t", ty, &shape).expect("a sound shape")
            };
            let q = input(F32, [self.d, self.heads, self.n_queries]);
            let weights = input(F32, [self.heads, self.n_queries, 1]);
            let k = input(F32, [self.d, 1, n_blocks * BLOCK]);
            let lists = input(I32, [4, self.n_queries, 1]);
            let table = input(I32, [n_blocks, 1, 1]);
            let blocks = kv_blocks(&k, &k, &lists, &table);
            let of_heads = self.is_sum.then_some(&weights);
            let selected = g.select(&q, of_heads, &blocks, self.selector);
            let selected = selected.expect("shapes fit");
            let listed = g.cont(&selected).expect("a copy");
            let mut executor = loaded(g, &[&listed], threads);
            let size = |t: &Tensor| t.elements() as usize;
            put(&mut executor, &q, &numbers(1, size(&q)));
            if self.is_sum {
                put(&mut executor, &weights, &numbers(2, size(&weights)));
            }
            put(&mut executor, &k, &self.keys());
            let ids: Vec<i32> = (0..n_blocks as i32).rev().collect();
            put(&mut executor, &table, &ids);
            let first = self.n - self.n_queries;
            let of_queries = (first..self.n).flat_map(|at| [0, at as i32, 0, at as i32 + 1]);
            put(&mut executor, &lists, &of_queries.collect::<Vec<_>>());
            executor.run().expect("it runs");
            let mut found = result::<i32>(&executor, &listed);
            for list in found.chunks_mut(self.room()) {
                let end = list.iter().position(|at| *at < 0).unwrap_or(list.len());
                list[end..].fill(-1);
            }
            found
        }

        fn room(&self) -> usize {
            self.selector.top as usize + usize::from(self.selector.tail)
        }

        fn dot(&self, q: &[f32], [query, head, position]: [usize; 3]) -> f64 {
            let q = &q[(query * self.heads + head) * self.d..][..self.d];
            let k = numbers(position as u32 + 7, self.d);
            q.iter()
                .zip(&k)
                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                .sum()
        }

        /// Checks that a list has the blocks with the highest scores for a query and a head, or all heads. Ties may be
        /// broken in any way.
        fn check_list(&self, query: usize, group: usize, list: &[i32]) {
            let q = numbers(1, self.d * self.heads * self.n_queries);
            let weights = numbers(2, self.heads * self.n_queries);
            let last = self.n - self.n_queries + query;
            let score = |position: usize| match self.is_sum {
                false => self.dot(&q, [query, group, position]),
                true => (0..self.heads)
                    .map(|h| {
                        f64::from(weights[query * self.heads + h])
                            * self.dot(&q, [query, h, position]).max(0.0)
                    })
                    .sum(),
            };
            let span = self.selector.span as usize;
            let is_cut = self.selector.tail && !(last + 1).is_multiple_of(span);
            let end = last / span + usize::from(!is_cut);
            let local = end - self.selector.local as usize;
            let best = |block: usize| {
                let of = block * span..((block + 1) * span).min(last + 1);
                match block >= local {
                    true => f64::INFINITY,
                    false => of.map(score).fold(f64::NEG_INFINITY, f64::max),
                }
            };
            if end <= self.selector.top as usize {
                assert_eq!(list, [-1], "query {query}");
                return;
            }
            // A block that is not whole is the last one of the list, whatever its score is.
            let list = match (is_cut, list) {
                (true, [whole @ .., last]) if *last == end as i32 => whole,
                (true, _) => panic!("query {query}: {list:?}"),
                (false, list) => list,
            };
            assert_eq!(list.len(), self.selector.top as usize, "query {query}");
            assert!(list.is_sorted_by(|a, b| a < b), "{list:?}");
            let is_listed = |block: &usize| list.contains(&(*block as i32));
            let (taken, left): (Vec<usize>, Vec<usize>) = (0..end).partition(is_listed);
            assert_eq!(taken.len(), list.len());
            let least = taken.into_iter().map(best).fold(f64::INFINITY, f64::min);
            let most = left.into_iter().map(best).fold(f64::NEG_INFINITY, f64::max);
            assert!(
                least >= most - 1e-5,
                "query {query}, group {group}: {least} and {most}"
            );
        }
    }

    fn cases() -> Vec<Case> {
        let case = |n, n_queries, heads, d, is_sum, [top, span, local]: [u64; 3]| Case {
            n,
            n_queries,
            heads,
            d,
            is_sum,
            selector: Selector {
                top,
                span,
                local,
                tail: false,
            },
        };
        let with_tail = |case: Case| Case {
            selector: Selector {
                tail: true,
                ..case.selector
            },
            ..case
        };
        vec![
            with_tail(case(600, 9, 6, 16, true, [5, 8, 0])),
            with_tail(case(41, 41, 2, 24, true, [2, 4, 0])),
            case(14, 14, 4, 64, true, [8, 1, 0]),
            case(1300, 3, 7, 32, true, [100, 1, 0]),
            case(700, 5, 1, 40, false, [9, 1, 0]),
            case(700, 5, 3, 24, false, [4, 48, 2]),
            case(600, 2, 6, 16, true, [5, 7, 1]),
        ]
    }

    #[test]
    fn what_scores_highest_is_selected() {
        for case in cases() {
            let found = case.run(2);
            assert_eq!(found, case.run(1), "whatever the threads");
            let groups = if case.is_sum { 1 } else { case.heads };
            let room = case.room();
            for (at, list) in found.chunks(room).enumerate() {
                let (query, group) = (at / groups, at % groups);
                let end = list
                    .iter()
                    .position(|at| *at < 0)
                    .map_or(room, |end| end.max(1));
                case.check_list(query, group, &list[..end]);
            }
        }
    }

    #[test]
    fn a_mask_leaves_the_largest() {
        let g = Graph::new(64, 8).expect("a small graph");
        let a = g.input("a", F32, &[50, 3]).expect("a shape");
        let y = g.largest(&a, 7, -5.0).expect("shapes fit");
        assert!(g.largest(&a, 51, 0.0).is_err() && g.largest(&a, 0, 0.0).is_err());
        let mut executor = loaded(g, &[&y], 1);
        let mut values = numbers(3, 150);
        values[20] = f32::NEG_INFINITY;
        put(&mut executor, &a, &values);
        executor.run().expect("it runs");
        let found: Vec<f32> = result(&executor, &y);
        for (row, found) in values.chunks(50).zip(found.chunks(50)) {
            let mut sorted = row.to_vec();
            sorted.sort_by(|a, b| b.total_cmp(a));
            let expected = row.iter().map(|v| if *v >= sorted[6] { 0.0 } else { -5.0 });
            assert_eq!(found, expected.collect::<Vec<f32>>());
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let g = Graph::new(64, 8).expect("a small graph");
        let input = |ty, shape: &[u64]| g.input("t", ty, shape).expect("a sound shape");
        let q = input(F32, &[16, 4, 2]);
        let k = input(F32, &[16, 1, 32]);
        let (lists, table) = (input(I32, &[4, 2]), input(I32, &[2]));
        let blocks = kv_blocks(&k, &k, &lists, &table);
        let one = Selector {
            top: 1,
            span: 1,
            local: 0,
            tail: false,
        };
        let select = |weights: Option<&Tensor>, selector| g.select(&q, weights, &blocks, selector);
        assert!(select(None, one).is_ok());
        for selector in [
            Selector { top: 0, ..one },
            Selector { span: 0, ..one },
            Selector {
                top: 1 << 31,
                ..one
            },
            Selector {
                local: u64::MAX,
                ..one
            },
        ] {
            assert!(select(None, selector).is_err(), "{selector:?}");
        }
        let weights = input(F32, &[3, 2]);
        assert!(select(Some(&weights), one).is_err());
        let lists = input(I32, &[1, 3, 2]);
        let selected = Some(Selected {
            lists: &lists,
            span: 1,
        });
        let wrong = KvBlocks { selected, ..blocks };
        assert!(g.paged_attention(&q, &wrong, &PLAIN).is_err());
    }
}
