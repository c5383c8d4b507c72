//! The sampler over a vocabulary of 151,936: time per token, and per row of log-probabilities.
//!
//! The logits have the shape of a language model's: a bell of unlikely tokens, with a few far
//! above it. `cargo bench --bench sampler`.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use lab_sampling::{ContrastiveSearch, Logprobs, Params, Sampler};

const N_VOCAB: usize = 151_936;

/// Rows in turn, so that no branch predictor learns one by heart.
const N_ROWS: usize = 8;

fn rows() -> Vec<Vec<f32>> {
    let mut state = 1u64;
    let mut uniform = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 24) as f32
    };
    let mut row = || {
        let bell = (0..N_VOCAB).map(|_| (0..12).map(|_| uniform()).sum::<f32>() * 2.5 - 15.0);
        let mut row: Vec<f32> = bell.collect();
        for i in 0..30 {
            let at = (uniform() * N_VOCAB as f32) as usize;
            row[at.min(N_VOCAB - 1)] = 18.0 - 0.4 * i as f32;
        }
        row
    };
    (0..N_ROWS).map(|_| row()).collect()
}

fn chains() -> Vec<(&'static str, Params)> {
    let neutral = Params::default();
    let usual = Params {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        ..neutral.clone()
    };
    vec![
        (
            "greedy",
            Params {
                temperature: 0.0,
                ..neutral.clone()
            },
        ),
        ("top_k 40, top_p 0.95, temperature 0.8", usual.clone()),
        (
            "the same with penalties",
            Params {
                repeat_penalty: 1.1,
                frequency_penalty: 0.1,
                ..usual
            },
        ),
        (
            "top_p 0.95 of all",
            Params {
                top_p: 0.95,
                ..neutral.clone()
            },
        ),
        (
            "min_p 0.05 of all",
            Params {
                min_p: 0.05,
                ..neutral.clone()
            },
        ),
        (
            "typical_p 0.95 of all",
            Params {
                typical_p: 0.95,
                ..neutral.clone()
            },
        ),
        (
            "top_n_sigma 1 of all",
            Params {
                top_n_sigma: 1.0,
                ..neutral.clone()
            },
        ),
        (
            "tfs_z 0.95 of all",
            Params {
                tfs_z: 0.95,
                ..neutral.clone()
            },
        ),
        (
            "mirostat 1, tau 5",
            Params {
                mirostat: 1,
                ..neutral.clone()
            },
        ),
        (
            "mirostat 2, tau 5",
            Params {
                mirostat: 2,
                ..neutral.clone()
            },
        ),
        ("draw from all", neutral),
    ]
}

fn sampler(criterion: &mut Criterion) {
    let rows = rows();
    let mut group = criterion.benchmark_group("sample");
    for (name, params) in chains() {
        let mut sampler = Sampler::new(&params, 0).expect("valid parameters");
        sampler.accept_prompt(&(0..1000).collect::<Vec<_>>());
        let mut turn = rows.iter().cycle();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let row = turn.next().expect("an endless cycle");
                let token = sampler.sample(black_box(row)).expect("good logits");
                sampler.accept(token);
                token
            });
        });
    }
    group.finish();

    let mut turn = rows.iter().cycle();
    criterion.bench_function("logprobs of one and the top 20", |bencher| {
        bencher.iter(|| {
            let row = turn.next().expect("an endless cycle");
            let logprobs = Logprobs::new(black_box(row)).expect("good logits");
            (logprobs.of(77), logprobs.rank(77), logprobs.top(20))
        });
    });
}

/// One choice of contrastive search among 4 tokens after a sequence of 1000.
fn contrastive(criterion: &mut Criterion) {
    const N_EMBD: usize = 1024;
    let params = Params {
        penalty_alpha: 0.6,
        top_k: 4,
        ..Params::default()
    };
    let rows = rows();
    let mut search = ContrastiveSearch::new(&params, N_EMBD).expect("valid parameters");
    for part in 0..10 {
        let tokens: Vec<u32> = (0..100).collect();
        let states = &rows[part % N_ROWS][..100 * N_EMBD];
        search.accept_prompt(&tokens, states).expect("good states");
    }
    let states = &rows[0][..4 * N_EMBD];
    criterion.bench_function("contrastive search, 4 of 1000 x 1024", |bencher| {
        bencher.iter(|| {
            let candidates = search
                .candidates(black_box(&rows[1]), None)
                .expect("good logits");
            search.choose(&candidates, states).expect("good states")
        });
    });
}

criterion_group!(benches, sampler, contrastive);
criterion_main!(benches);
