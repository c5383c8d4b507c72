//! Attention to the last positions and to the keys of whole blocks of positions.

use super::super::*;
use super::reference::*;
use crate::ggml::Selected;
use crate::ggml::tests::kv_blocks;
use TensorType::{F32, I32};

const SHAPE: AttentionShape = AttentionShape {
    dk: 40,
    dv: 40,
    heads: 6,
    kv_heads: 1,
    k: F32,
    v: None,
};

fn rules() -> impl Iterator<Item = ScoreRule> {
    let spans = [2, 4, 8, 16, 48].into_iter();
    let whole = spans.flat_map(|span| [1, 8, 1000].map(|near| Some(WholeSpans { span, near })));
    whole.flat_map(|whole| {
        [false, true].map(|is_selective| ScoreRule {
            whole,
            is_selective,
            ..NO_RULE
        })
    })
}

fn some_queries() -> Vec<Query> {
    let single = [(2, 0), (3, 47), (3, 48), (4, 159)];
    let single = single
        .into_iter()
        .flat_map(|(id, at)| causal(id, at..at + 1));
    causal(1, 90..104).into_iter().chain(single).collect()
}

#[test]
fn the_last_positions_and_whole_blocks_are_attended_to() {
    for rule in rules() {
        check(&SHAPE, &rule, &some_queries(), &HERE);
    }
}

#[test]
fn bits_follow_from_the_query_alone() {
    let other = BlockPlace {
        threads: 1,
        seed: 7,
        ..HERE
    };
    for rule in rules() {
        let all = attend(&SHAPE, &rule, &some_queries(), &HERE);
        for (query, found) in some_queries().into_iter().zip(&all) {
            let alone = attend(&SHAPE, &rule, &[query], &other);
            assert_eq!(bits(&alone[0]), bits(found), "{rule:?} {query:?}");
        }
    }
}

#[test]
fn blocks_that_do_not_exist_are_not_read() {
    let queries = [causal(1, 5..6), causal(2, 190..191)].concat();
    for rule in rules() {
        for lie in [-1, i32::MIN, i32::MAX, 1 << 27, 17] {
            let mut lists = lists(&queries, &rule, &HERE);
            *lists.table.last_mut().expect("blocks") = lie;
            let found = attend_lists(&SHAPE, &rule, &queries, &HERE, &lists);
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
