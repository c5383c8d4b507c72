//! How long a definition takes from text to plan: the promise is under 5 ms for each architecture.
#![allow(clippy::unwrap_used, reason = "a bench")]

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use lab_base::weights::TensorType;
use lab_core::arch::Library;
use lab_core::blocks::REGISTRY;
use lab_core::models::synth::{SynthRequest, design};

fn language(c: &mut Criterion) {
    let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
    let names: Vec<String> = library.sources().map(|(name, _)| name.to_owned()).collect();
    let request = SynthRequest {
        seed: 0,
        set: vec![("block_count".into(), "32".into())],
        meta: Vec::new(),
        with: Vec::new(),
        ty: TensorType::F32,
        vocabulary: None,
        drafter: None,
    };
    let plan =
        |name: &str| design(&library.get(name).expect("it is sound"), &request).expect("it fits");
    // The slowest by itself, the rest together.
    let slowest = names
        .iter()
        .max_by_key(|name| {
            let start = Instant::now();
            black_box(plan(name));
            start.elapsed()
        })
        .expect("there are definitions");
    c.bench_function(
        &format!("{slowest}: parse, check and plan 32 layers"),
        |b| {
            b.iter(|| plan(slowest));
        },
    );
    c.bench_function(&format!("all {} definitions", names.len()), |b| {
        b.iter(|| {
            names
                .iter()
                .map(|name| plan(name).1.layers.len())
                .sum::<usize>()
        });
    });
}

criterion_group!(benches, language);
criterion_main!(benches);
