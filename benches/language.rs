//! How long a definition takes from text to plan: the promise is under 5 ms for each architecture.
#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

use criterion::{Criterion, criterion_group, criterion_main};
use lab_bench::arch::Library;
use lab_bench::blocks::REGISTRY;
use lab_bench::synth::{Request, design};
use lab_bench::weights::TensorType;

fn language(c: &mut Criterion) {
    let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
    let names: Vec<String> = library.sources().map(|(name, _)| name.to_owned()).collect();
    for name in names {
        let request = Request {
            seed: 0,
            set: vec![("block_count".into(), "32".into())],
            meta: Vec::new(),
            with: Vec::new(),
            ty: TensorType::F32,
        };
        c.bench_function(&format!("{name}: parse, check and plan 32 layers"), |b| {
            b.iter(|| {
                design(&library.get(&name).expect("it is sound"), &request).expect("it fits")
            });
        });
    }
}

criterion_group!(benches, language);
criterion_main!(benches);
