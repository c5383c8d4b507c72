//! Attention to the last positions and to the keys of whole blocks of positions, against a naive reference in f64.
//! Rows that nothing may read hold NaN.

use super::super::*;
use super::reference::{mixed, numbers};
use crate::ggml::Selected;
use crate::ggml::tests::{kv_blocks, loaded, put, result};
use TensorType::{F32, I32};

const BLOCK: usize = 16;
const D: usize = 40;
const HEADS: usize = 6;
/// Which numbers are those of positions, of whole blocks, of queries.
const OWN: u64 = 11;
const WHOLE: u64 = 12;
const QUERY: u64 = 13;

#[derive(Clone, Copy)]
struct Case {
    span: usize,
    near: usize,
    /// Whether the blocks with an odd number are selected, of queries that see more than two.
    is_selective: bool,
    threads: usize,
}

impl Case {
    fn rows(&self) -> usize {
        BLOCK + WholeSpans::further(self.span as u64, BLOCK as u64) as usize
    }

    fn list(&self, position: usize) -> Option<Vec<usize>> {
        let n = (position + 1) / self.span;
        // One that is not whole is listed and not attended to.
        (self.is_selective && n > 2).then(|| (0..=n).filter(|block| block % 2 == 1).collect())
    }

    fn seen(&self, position: usize) -> Vec<(u64, usize)> {
        let near = (position + 1).saturating_sub(self.near)..=position;
        let n = (position + 1) / self.span;
        let listed = self.list(position).unwrap_or((0..n).collect());
        let whole = listed.into_iter().filter(|block| *block < n);
        near.map(|at| (OWN, at))
            .chain(whole.map(|at| (WHOLE, at)))
            .collect()
    }

    fn expected(&self, sequence: u64, position: usize) -> Vec<f64> {
        let q = numbers(QUERY, sequence, position as i32, D * HEADS);
        let rows = self.seen(position);
        let rows = rows
            .iter()
            .map(|(kind, at)| numbers(*kind, sequence, *at as i32, D));
        let rows: Vec<Vec<f32>> = rows.collect();
        let of_head = |q: &[f32]| {
            let product = |row: &Vec<f32>| {
                q.iter()
                    .zip(row)
                    .map(|(a, b)| f64::from(*a) * f64::from(*b))
                    .sum::<f64>()
            };
            let weights: Vec<f64> = rows
                .iter()
                .map(|row| (0.125 * product(row)).exp())
                .collect();
            let sum: f64 = weights.iter().sum();
            let element = |i: usize| {
                let all = weights
                    .iter()
                    .zip(&rows)
                    .map(|(w, row)| w * f64::from(row[i]));
                all.sum::<f64>() / sum
            };
            (0..D).map(element).collect::<Vec<f64>>()
        };
        q.chunks(D).flat_map(of_head).collect()
    }

    /// Results of queries, each of a sequence and at a position, with blocks in an order of the seed.
    fn run(&self, queries: &[(u64, usize)], seed: u64) -> Vec<Vec<f32>> {
        self.run_with(queries, seed, &|_| {})
    }

    fn run_with(
        &self,
        queries: &[(u64, usize)],
        seed: u64,
        change: &dyn Fn(&mut Vec<i32>),
    ) -> Vec<Vec<f32>> {
        let mut sequences: Vec<(u64, usize)> = Vec::new();
        for (id, at) in queries {
            match sequences.iter_mut().find(|(known, _)| known == id) {
                Some((_, end)) => *end = (*end).max(at + 1),
                None => sequences.push((*id, at + 1)),
            }
        }
        let n_blocks: usize = sequences.iter().map(|(_, end)| end.div_ceil(BLOCK)).sum();
        let mut ids: Vec<usize> = (0..n_blocks).collect();
        ids.sort_by_key(|id| mixed(seed << 32 ^ *id as u64));
        let rows = self.rows();
        let (mut table, mut begins) = (Vec::new(), Vec::new());
        let mut pool = vec![f32::NAN; n_blocks * rows * D];
        for (id, end) in &sequences {
            begins.push((*id, table.len() as i32));
            let own: Vec<usize> = (0..end.div_ceil(BLOCK)).filter_map(|_| ids.pop()).collect();
            table.extend(own.iter().map(|id| *id as i32));
            let mut put = |row: usize, values: Vec<f32>| {
                pool[row * D..][..D].copy_from_slice(&values);
            };
            for at in 0..*end {
                put(
                    own[at / BLOCK] * rows + at % BLOCK,
                    numbers(OWN, *id, at as i32, D),
                );
                if (at + 1) % self.span == 0 {
                    let further = if self.span < BLOCK {
                        at % BLOCK / self.span
                    } else {
                        0
                    };
                    let values = numbers(WHOLE, *id, (at / self.span) as i32, D);
                    put(own[at / BLOCK] * rows + BLOCK + further, values);
                }
            }
        }
        change(&mut table);
        let begin = |id: &u64| {
            begins
                .iter()
                .find(|(known, _)| known == id)
                .map_or(0, |of| of.1)
        };
        let lists = queries
            .iter()
            .flat_map(|(id, at)| [begin(id), *at as i32, 0, *at as i32 + 1]);
        let lists: Vec<i32> = lists.collect();
        const CAPACITY: usize = 128;
        let selected = queries.iter().flat_map(|(_, at)| {
            let mut list = self.list(*at).unwrap_or_default();
            list.truncate(CAPACITY);
            let ids = list.into_iter().map(|block| block as i32);
            ids.chain(std::iter::repeat(-1))
                .take(CAPACITY)
                .collect::<Vec<i32>>()
        });
        let selected: Vec<i32> = selected.collect();

        let g = Graph::new(64, 8).expect("a small graph");
        let n = queries.len() as u64;
        let input = |ty, shape: &[u64]| g.input("t", ty, shape).expect("a sound shape");
        let q = input(F32, &[D as u64, HEADS as u64, n]);
        let k = input(F32, &[D as u64, 1, (n_blocks * rows) as u64]);
        let list = input(I32, &[4, n]);
        let blocks = input(I32, &[table.len() as u64]);
        let chosen = input(I32, &[CAPACITY as u64, 1, n]);
        let kv = KvBlocks {
            selected: self.is_selective.then_some(Selected {
                lists: &chosen,
                span: self.span as u64,
            }),
            whole: Some(WholeSpans {
                span: self.span as u64,
                near: self.near as u64,
            }),
            ..kv_blocks(&k, &k, &list, &blocks)
        };
        let y = g
            .paged_attention(&q, &kv, &super::PLAIN)
            .expect("it is sound");
        let mut executor = loaded(g, &[&y], self.threads);
        let of_queries = queries
            .iter()
            .flat_map(|(id, at)| numbers(QUERY, *id, *at as i32, D * HEADS));
        put(&mut executor, &q, &of_queries.collect::<Vec<f32>>());
        put(&mut executor, &k, &pool);
        put(&mut executor, &list, &lists);
        put(&mut executor, &blocks, &table);
        if self.is_selective {
            put(&mut executor, &chosen, &selected);
        }
        executor.run().expect("it runs");
        let out = result::<f32>(&executor, &y);
        out.chunks(D * HEADS).map(<[f32]>::to_vec).collect()
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let spans = [2, 4, 8, 16, 48].into_iter();
    let cases = spans.flat_map(|span| [1, 8, 1000].map(|near| (span, near)));
    cases.flat_map(|(span, near)| {
        [false, true].map(|is_selective| Case {
            span,
            near,
            is_selective,
            threads: 2,
        })
    })
}

fn some_queries() -> Vec<(u64, usize)> {
    let reading = (90..104).map(|at| (1, at));
    reading
        .chain([(2, 0), (3, 47), (3, 48), (4, 159)])
        .collect()
}

#[test]
fn the_last_positions_and_whole_blocks_are_attended_to() {
    for case in cases() {
        let found = case.run(&some_queries(), 3);
        for ((id, at), found) in some_queries().into_iter().zip(&found) {
            let expected = case.expected(id, at);
            let error = found
                .iter()
                .zip(&expected)
                .map(|(a, b)| (f64::from(*a) - b).abs());
            let error = error.fold(0.0, f64::max);
            let Case {
                span,
                near,
                is_selective,
                ..
            } = case;
            assert!(
                error < 1e-5,
                "span {span}, near {near}, selective {is_selective}, query {id} {at}: {error}"
            );
        }
    }
}

#[test]
fn bits_follow_from_the_query_alone() {
    for case in cases() {
        let all = case.run(&some_queries(), 0);
        for (i, query) in some_queries().into_iter().enumerate() {
            let alone = Case { threads: 1, ..case }.run(&[query], 7);
            let bits = |row: &Vec<f32>| row.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            assert_eq!(bits(&alone[0]), bits(&all[i]));
        }
    }
}

#[test]
fn blocks_that_do_not_exist_are_not_read() {
    for case in cases() {
        for lie in [-1, i32::MIN, i32::MAX, 1 << 27, 13] {
            let found = case.run_with(&[(1, 5), (2, 190)], 1, &|table| {
                *table.last_mut().expect("blocks") = lie;
            });
            assert!(found[1].iter().all(|x| *x == 0.0), "{lie}");
            assert!(found[0].iter().all(|x| x.is_finite()), "{lie}");
        }
    }
}

#[test]
fn blocks_of_other_lengths_are_refused() {
    let g = Graph::new(64, 8).expect("a small graph");
    let t = |ty, shape: &[u64]| g.input("t", ty, shape).expect("a sound shape");
    let (q, k) = (t(F32, &[32, 4, 3]), t(F32, &[32, 1, 100]));
    let (list, table, chosen) = (t(I32, &[4, 3]), t(I32, &[4]), t(I32, &[5, 1, 3]));
    let whole = |span, near| Some(WholeSpans { span, near });
    let blocks = KvBlocks {
        selected: Some(Selected {
            lists: &chosen,
            span: 4,
        }),
        whole: whole(4, 8),
        ..kv_blocks(&k, &k, &list, &table)
    };
    let attend = |blocks: &KvBlocks<'_>, scores| g.paged_attention(&q, blocks, scores);
    attend(&blocks, &super::PLAIN).expect("it is sound");
    for whole in [
        whole(0, 8),
        whole(3, 8),
        whole(24, 8),
        whole(8, 8),
        whole(4, 0),
        whole(1 << 40, 8),
    ] {
        let refused = KvBlocks { whole, ..blocks };
        assert!(attend(&refused, &super::PLAIN).is_err(), "{whole:?}");
    }
    let linear = ScoreOptions {
        max_bias: 8.0,
        ..super::PLAIN
    };
    assert!(attend(&blocks, &linear).is_err());
}
