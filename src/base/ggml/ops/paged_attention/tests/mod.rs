//! Attention over blocks against a naive reference in f64, against ggml's, and against itself with
//! other neighbours, blocks and threads.

mod reference;
mod whole;

use super::*;
use crate::ggml::tests::{kv_blocks, loaded, put, result};
use TensorType::{BF16, F16, F32, I32, Q4_0, Q8_0};
use reference::*;

fn some_queries() -> Vec<Query> {
    [causal(1, 25..40), causal(2, 149..150), causal(3, 0..1)].concat()
}

#[test]
fn every_width_of_heads_is_computed() {
    for (dk, dv) in [
        (64, 64),
        (80, 80),
        (96, 96),
        (128, 128),
        (192, 128),
        (256, 256),
        (8, 24),
        (100, 36),
        (1024, 1024),
    ] {
        for (heads, kv_heads) in [(2, 2), (6, 2), (5, 1)] {
            let shape = AttentionShape {
                dk,
                dv,
                heads,
                kv_heads,
                ..SMALL
            };
            check(&shape, &NO_RULE, &some_queries(), &HERE);
        }
    }
}

#[test]
fn every_size_of_groups_is_computed() {
    for group in [1, 2, 3, 4, 7, 8, 16, 80] {
        for kv_heads in [1, 2] {
            let shape = AttentionShape {
                heads: group * kv_heads,
                kv_heads,
                ..SMALL
            };
            check(&shape, &NO_RULE, &some_queries(), &HERE);
        }
    }
}

#[test]
fn every_pair_of_types_is_computed() {
    let types = [F32, F16, BF16, Q8_0, Q4_0];
    for (k, v) in types
        .iter()
        .flat_map(|k| types.iter().map(move |v| (*k, *v)))
    {
        for heads in [2, 8] {
            let shape = AttentionShape {
                dk: 96,
                heads,
                k,
                v: Some(v),
                ..SMALL
            };
            check(&shape, &NO_RULE, &some_queries(), &HERE);
        }
    }
}

#[test]
fn values_may_lie_in_the_keys() {
    for (k, dk, dv) in [
        (F16, 576, 512),
        (Q8_0, 576, 512),
        (F32, 576, 512),
        (BF16, 72, 40),
    ] {
        for heads in [1, 3, 16] {
            let shape = AttentionShape {
                dk,
                dv,
                heads,
                kv_heads: 1,
                k,
                v: None,
            };
            check(&shape, &NO_RULE, &some_queries(), &HERE);
        }
    }
}

#[test]
fn caps_biases_and_sinks_are_applied() {
    for (softcap, max_bias, far, sinks) in [
        (2.0, 0.0, None, false),
        (0.0, 8.0, None, false),
        (0.0, 0.0, Some(0), false),
        (0.0, 0.0, Some(5), false),
        (0.0, 0.0, Some(400), false),
        (0.0, 0.0, None, true),
        (1.0, 4.0, Some(40), true),
    ] {
        for heads in [2, 12] {
            let shape = AttentionShape { heads, ..SMALL };
            let rule = ScoreRule {
                softcap,
                max_bias,
                far,
                sinks,
                ..NO_RULE
            };
            check(&shape, &rule, &some_queries(), &HERE);
        }
    }
}

/// Windows that end with, surround or lie away from the query.
fn windows() -> Vec<Query> {
    let window = |position: i32, first, end| Query {
        sequence: 4,
        position,
        first,
        end,
    };
    let rolling = (180..200).map(|p| window(p, p - 70, p + 1));
    let around = (90..100).map(|p| window(p, p - 20, p + 21));
    let apart = [
        window(300, 3, 9),
        window(301, 290, 302),
        window(302, 64, 128),
        window(303, 7, 7),
    ];
    rolling.chain(around).chain(apart).collect()
}

#[test]
fn only_the_interval_is_seen() {
    let linear = ScoreRule {
        max_bias: 8.0,
        ..NO_RULE
    };
    let near = ScoreRule {
        far: Some(15),
        ..NO_RULE
    };
    for (heads, rule) in [(2, linear), (16, linear), (2, near)] {
        let shape = AttentionShape { heads, ..SMALL };
        check(&shape, &rule, &windows(), &HERE);
    }
}

#[test]
fn longer_blocks_and_a_pool_that_ends_within_one_are_read() {
    let queries = causal(1, 40..44);
    for (block_len, short) in [(32, 0), (48, 0), (256, 0), (16, 15), (64, 9)] {
        let place = |seed| BlockPlace {
            block_len,
            seed,
            short,
            ..HERE
        };
        // What the last block lacks must not be needed.
        let is_whole = |seed: &u64| {
            let lists = lists(&queries, &NO_RULE, &place(*seed));
            lists.slots.iter().all(|(.., slot)| *slot < lists.n_slots)
        };
        let seed = (1..).find(is_whole).expect("some order leaves it out");
        check(&SMALL, &NO_RULE, &queries, &place(seed));
    }
    // A whole sequence in a pool of fewer slots than a block has.
    for (k, heads) in [(F16, 2), (Q8_0, 2), (F16, 16)] {
        let shape = AttentionShape {
            k,
            v: Some(k),
            heads,
            ..SMALL
        };
        let queries = causal(7, 0..5);
        let mut lists = lists(&queries, &NO_RULE, &HERE);
        lists.table.fill(0);
        lists.n_slots = 5;
        for (_, position, slot) in &mut lists.slots {
            *slot = *position as usize;
        }
        let found = attend_lists(&shape, &NO_RULE, &queries, &HERE, &lists);
        for (query, found) in queries.iter().zip(found) {
            let (expected, bound) = reference(&shape, &NO_RULE, query, &mut Rows::new());
            let near = found
                .iter()
                .zip(expected)
                .all(|(a, b)| (f64::from(*a) - b).abs() <= bound);
            assert!(near, "{query:?}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_neighbours_blocks_or_threads() {
    let wanted = [causal(1, 100..101), causal(2, 70..78), windows()].concat();
    let shapes = [
        SMALL,
        AttentionShape { heads: 2, ..SMALL },
        AttentionShape {
            dk: 100,
            dv: 36,
            heads: 7,
            kv_heads: 1,
            ..SMALL
        },
        AttentionShape {
            heads: 32,
            k: Q8_0,
            v: Some(Q4_0),
            ..SMALL
        },
        AttentionShape {
            dk: 80,
            dv: 64,
            heads: 16,
            kv_heads: 1,
            k: BF16,
            v: None,
        },
        AttentionShape {
            heads: 6,
            k: F32,
            v: Some(Q8_0),
            ..SMALL
        },
    ];
    let rule = ScoreRule {
        softcap: 3.0,
        max_bias: 8.0,
        far: Some(20),
        sinks: true,
        ..NO_RULE
    };
    for shape in &shapes {
        let alone: Vec<Vec<u32>> = wanted
            .iter()
            .map(|q| bits(&attend(shape, &rule, &[*q], &BlockPlace { threads: 1, ..HERE })[0]))
            .collect();
        for (neighbours, threads, block_len) in
            [(0, 1, 16), (1, 2, 16), (2, 3, 32), (5, 2, 64), (8, 3, 16)]
        {
            // Ragged neighbours before, between and after.
            let mut queries = wanted.clone();
            for i in 0..neighbours {
                let at = mixed(i) as usize % queries.len();
                let from = (mixed(i + 100) % 150) as i32;
                let others = causal(10 + i, from..from + 1 + (i as i32 % 3) * 9);
                queries.splice(at..at, others);
            }
            let place = BlockPlace {
                block_len,
                seed: neighbours + 1,
                threads,
                short: 0,
            };
            let found = attend(shape, &rule, &queries, &place);
            for (query, alone) in wanted.iter().zip(&alone) {
                let at = queries
                    .iter()
                    .position(|q| q == query)
                    .expect("it is there");
                assert_eq!(&bits(&found[at]), alone, "{shape:?} {place:?} {query:?}");
            }
        }
    }
}

#[test]
fn lists_that_lie_read_nothing_and_disturb_nobody() {
    let queries = [causal(1, 30..40), causal(2, 50..52)].concat();
    for heads in [2, 16] {
        let shape = AttentionShape { heads, ..SMALL };
        let good = attend(&shape, &NO_RULE, &queries, &HERE);
        let (max, min) = (i32::MAX, i32::MIN);
        for lie in [
            [-1, 3, 0, 4],
            [min, 3, 0, 4],
            [max, 3, 0, 4],
            [0, 3, -1, 4],
            [0, 3, min, 4],
            [0, 3, 5, 4],
            [0, 3, 0, max],
            [0, 3, max - 1, max],
            [0, 3, max, min],
            [2, 3, 0, 100_000],
            [0, min, 0, -5],
        ] {
            let mut lists = lists(&queries, &NO_RULE, &HERE);
            for at in [0, 4, 11] {
                lists.queries[4 * at..][..4].copy_from_slice(&lie);
            }
            let found = attend_lists(&shape, &NO_RULE, &queries, &HERE, &lists);
            for (i, row) in found.iter().enumerate() {
                let expected = if [0, 4, 11].contains(&i) {
                    vec![0; row.len()]
                } else {
                    bits(&good[i])
                };
                assert_eq!(bits(row), expected, "{lie:?} in row {i}");
            }
        }
        for id in [-1, min, max, 1 << 27, 1000] {
            // The second sequence's last block: queries 10 and 11 see it.
            let mut lists = lists(&queries, &NO_RULE, &HERE);
            *lists.table.last_mut().expect("blocks") = id;
            let found = attend_lists(&shape, &NO_RULE, &queries, &HERE, &lists);
            assert!(found[10..].iter().flatten().all(|x| *x == 0.0), "{id}");
            assert_eq!(found[..10], good[..10], "{id}");
        }
    }
}

#[test]
fn a_position_far_from_its_keys_is_no_overflow() {
    let query = |position| Query {
        sequence: 1,
        position,
        first: 0,
        end: 20,
    };
    let rule = ScoreRule {
        max_bias: 8.0,
        ..NO_RULE
    };
    let found = attend(&SMALL, &rule, &[query(i32::MIN), query(i32::MAX)], &HERE);
    assert!(found.iter().flatten().all(|x| x.is_finite()));
}

#[test]
fn queries_may_lie_apart() {
    // [dk, heads, n] of rows that hold something else after each head.
    let g = Graph::new(64, 8).expect("a small graph");
    let rows = g.input("q", F32, &[40, 2, 3]).expect("a shape");
    let q = g
        .view(&rows, [32, 2, 3, 1], [160, 320, 960], 0)
        .expect("a window");
    let dense = g.cont(&q).expect("a copy");
    let k = g.input("k", F32, &[32, 1, 16]).expect("a shape");
    let list = g.input("list", I32, &[4, 3]).expect("a shape");
    let table = g.input("table", I32, &[1]).expect("a shape");
    let blocks = kv_blocks(&k, &k, &list, &table);
    let a = g.paged_attention(&q, &blocks, &PLAIN).expect("shapes fit");
    let b = g
        .paged_attention(&dense, &blocks, &PLAIN)
        .expect("shapes fit");
    let mut executor = loaded(g, &[&a, &b], 2);
    put(&mut executor, &rows, &numbers(Q, 0, 0, 240));
    put(&mut executor, &k, &numbers(K, 0, 0, 512));
    put(&mut executor, &table, &[0i32]);
    put(
        &mut executor,
        &list,
        &[0, 0, 0, 1, 0, 1, 0, 2, 0, 2, 0, 16i32],
    );
    executor.run().expect("it runs");
    let read = |y| result::<f32>(&executor, y);
    assert_eq!(read(&a), read(&b));
    assert_eq!(
        read(&a)[..32],
        numbers(K, 0, 0, 32),
        "one key is its own mean"
    );
}

#[test]
fn what_does_not_go_together_is_refused() {
    let g = Graph::new(64, 8).expect("a small graph");
    let t = |ty, shape: &[u64]| g.input("t", ty, shape).expect("a sound shape");
    let (q, k) = (t(F32, &[32, 4, 3]), t(F16, &[32, 2, 64]));
    let (list, table) = (t(I32, &[4, 3]), t(I32, &[4]));
    let blocks = kv_blocks(&k, &k, &list, &table);
    g.paged_attention(&q, &blocks, &PLAIN).expect("it is sound");

    let three_heads = t(F16, &[32, 3, 64]);
    let fewer = t(F16, &[32, 2, 48]);
    let narrow = t(F16, &[16, 2, 64]);
    let other = t(TensorType::Q5_0, &[32, 2, 64]);
    let transposed = g.permute(&k, [1, 0, 2, 3]).expect("a permutation");
    let two = t(I32, &[4, 2]);
    let floats = t(F32, &[4, 3]);
    let wide = t(F16, &[2048, 2, 64]);
    let of_k = |k| KvBlocks { k, ..blocks };
    let of_v = |v| KvBlocks { v, ..blocks };
    let of_queries = |queries| KvBlocks { queries, ..blocks };
    let of_len = |block_len| KvBlocks {
        block_len,
        ..blocks
    };
    let (v, table) = (&three_heads, &list);
    let refused = [
        KvBlocks { v, ..of_k(v) },
        of_v(&three_heads),
        of_v(&fewer),
        of_k(&narrow),
        of_k(&other),
        of_v(&other),
        of_v(&transposed),
        of_queries(&two),
        of_queries(&floats),
        KvBlocks { table, ..blocks },
        of_v(&wide),
        of_len(0),
        of_len(24),
        of_len(u64::MAX - 15),
    ];
    for blocks in refused {
        assert!(
            g.paged_attention(&q, &blocks, &PLAIN).is_err(),
            "{blocks:?}"
        );
    }
    for bias in [
        t(F32, &[4, 6]),
        t(F32, &[2, 7]),
        t(F16, &[4, 7]),
        t(F32, &[4, 7, 2]),
    ] {
        let biased = KvBlocks {
            bias: Some(&bias),
            ..blocks
        };
        let refused = g.paged_attention(&q, &biased, &PLAIN);
        assert!(refused.is_err(), "{bias:?}");
    }
    let halves = t(F16, &[32, 4, 3]);
    let four = t(F32, &[32, 4, 3, 2]);
    let across = g.permute(&q, [1, 0, 2, 3]).expect("a permutation");
    for q in [&halves, &four, &across] {
        assert!(g.paged_attention(q, &blocks, &PLAIN).is_err(), "{q:?}");
    }
    let scores = [
        ScoreOptions {
            scale: f32::NAN,
            ..PLAIN
        },
        ScoreOptions {
            softcap: -1.0,
            ..PLAIN
        },
        ScoreOptions {
            max_bias: f32::INFINITY,
            ..PLAIN
        },
        ScoreOptions {
            sinks: Some(&floats),
            ..PLAIN
        },
    ];
    for scores in scores {
        assert!(
            g.paged_attention(&q, &blocks, &scores).is_err(),
            "{scores:?}"
        );
    }
}
