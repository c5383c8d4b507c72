//! Small graphs against arithmetic by hand, and calls that ggml would abort on.

mod interleave;
mod matmul;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod tiles;

use super::*;
use crate::weights::FileBytes;
use crate::weights::TensorType::{self, F16, F32, I32, I64, Q8_0};

const PLAIN: ScoreOptions<'_> = ScoreOptions {
    scale: 1.0,
    softcap: 0.0,
    max_bias: 0.0,
    sinks: None,
};

fn graph() -> Graph {
    Graph::new(64, 8).expect("a small graph")
}

fn tensor(g: &Graph, ty: TensorType, shape: &[u64]) -> Tensor {
    g.input("t", ty, shape).expect("a sound shape")
}

pub(super) fn loaded(mut g: Graph, outputs: &[&Tensor], threads: usize) -> Executor {
    for output in outputs {
        g.output(output).expect("of this graph");
    }
    let mut executor = Executor::new(&[], threads, 256).expect("the processor");
    executor.load(g).expect("it fits");
    executor
}

/// Blocks of 16 slots without selection, bias or keys of whole spans.
pub(super) fn kv_blocks<'a>(
    k: &'a Tensor,
    v: &'a Tensor,
    queries: &'a Tensor,
    table: &'a Tensor,
) -> KvBlocks<'a> {
    KvBlocks {
        k,
        v,
        queries,
        table,
        block_len: 16,
        selected: None,
        whole: None,
        bias: None,
    }
}

pub(super) fn put<T: bytemuck::Pod>(executor: &mut Executor, tensor: &Tensor, values: &[T]) {
    executor.write(tensor, values).expect("as many values");
}

pub(super) fn result<T: bytemuck::Pod>(executor: &Executor, tensor: &Tensor) -> Vec<T> {
    let mut values = vec![T::zeroed(); tensor.elements() as usize];
    executor.read(tensor, &mut values).expect("a result");
    values
}

/// Bytes of a file before its tensor: so many that the device's alignment begins among them.
const BEFORE: usize = 64;

/// A tensor whose bytes are the end of an allocation: a sanitizer notices what is read beyond it (`make sanitize`).
pub(super) fn in_place(
    arena: &Arena,
    name: &str,
    ty: TensorType,
    shape: &[u64],
    bytes: &[u8],
) -> Tensor {
    let host = FileBytes::Static([&[0; BEFORE], bytes].concat().leak());
    in_file(arena, name, (ty, shape), &host)
}

/// A tensor that begins after the first bytes of a file.
fn in_file(
    arena: &Arena,
    name: &str,
    (ty, shape): (TensorType, &[u64]),
    host: &FileBytes,
) -> Tensor {
    let tensor = arena.tensor(name, ty, shape).expect("a sound shape");
    let cpu = Device::cpu().expect("the processor");
    let copied = cpu
        .adopt(arena, host, &[(&tensor, BEFORE)])
        .expect("it fits");
    assert!(copied.is_empty(), "`{name}` is not used in place");
    tensor
}

#[test]
fn what_ggml_would_abort_on_is_refused() {
    let g = graph();
    let a = tensor(&g, F32, &[4, 3]);
    let b = tensor(&g, F32, &[5, 3]);
    let half = tensor(&g, F16, &[4, 3]);
    let ids = tensor(&g, I32, &[2]);
    let bounded = g.index_input("ids", I32, &[2], 3).expect("an index type");
    let beyond = g.index_input("ids", I32, &[2], 4).expect("an index type");
    let rows = g.index_input("rows", I64, &[3], 3).expect("an index type");
    let transposed = g.permute(&a, [1, 0, 2, 3]).expect("a permutation");
    let rope = RopeParams {
        pairing: RopePairing::Norm,
        sections: None,
        dims: 4,
        orig_ctx: 1,
        base: 1e4,
        freq_scale: 1.0,
        ext_factor: 0.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    let refused: Vec<(&str, Result<Tensor, Error>)> = vec![
        ("shape with zero", g.arena().tensor("t", F32, &[0])),
        ("five dimensions", g.arena().tensor("t", F32, &[1; 5])),
        ("no dimension", g.arena().tensor("t", F32, &[])),
        ("part of a block", g.arena().tensor("t", Q8_0, &[33])),
        ("too large", g.arena().tensor("t", F32, &[1 << 40, 1 << 40])),
        ("indices of floats", g.arena().indices("t", F32, &[1], 1)),
        ("product of other widths", g.mul_mat(&a, &b)),
        ("product by halves", g.mul_mat(&a, &half)),
        ("product of a transposed matrix", g.mul_mat(&transposed, &b)),
        ("product of indices", g.mul_mat(&ids, &a)),
        ("sum of other shapes", g.add(&a, &b)),
        ("sum of halves", g.add(&a, &half)),
        ("rows by unchecked ids", g.get_rows(&a, &ids)),
        ("rows beyond the table", g.get_rows(&a, &beyond)),
        ("rows by floats", g.get_rows(&a, &b)),
        ("writing rows of another width", g.set_rows(&a, &b, &rows)),
        ("writing rows at i32", g.set_rows(&a, &a, &bounded)),
        ("norm of halves", g.rms_norm(&half, 1e-5)),
        ("negative eps", g.rms_norm(&a, -1.0)),
        ("eps not a number", g.layer_norm(&a, f32::NAN)),
        ("activation of a view", g.unary(&transposed, Unary::Silu)),
        ("gate and up of other shapes", g.glu(Glu::Silu, &a, &b)),
        ("reshape to more", g.reshape(&a, [4, 4, 1, 1])),
        ("reshape of a view", g.reshape(&transposed, [12, 1, 1, 1])),
        (
            "view beyond the end",
            g.view(&a, [4, 3, 1, 1], [16, 48, 48], 4),
        ),
        (
            "view with steps beyond",
            g.view(&a, [4, 3, 1, 1], [32, 48, 48], 0),
        ),
        (
            "view whose rows overlap beyond the size",
            g.view(&a, [4, 3, 2, 1], [16, 0, 0], 0),
        ),
        ("view of nothing", g.view(&a, [0, 1, 1, 1], [16, 48, 48], 0)),
        (
            "view that wraps",
            g.view(&a, [4, u64::MAX, 1, 1], [usize::MAX, 16, 16], 0),
        ),
        ("permutation with a repeat", g.permute(&a, [0, 0, 1, 2])),
        ("cast to a quantised type", g.cast(&a, Q8_0)),
        ("mask of another width", g.soft_max(&a, Some(&b), &PLAIN)),
        (
            "flash with other widths",
            g.flash_attn(&a, &b, &b, None, &PLAIN),
        ),
        (
            "flash with an f32 mask",
            g.flash_attn(&a, &a, &a, Some(&a), &PLAIN),
        ),
        ("rope without positions", g.rope(&a, &ids, None, &rope)),
        (
            "rope wider than the row",
            g.rope(&a, &ids, None, &RopeParams { dims: 6, ..rope }),
        ),
    ];
    for (what, result) in refused {
        assert!(result.is_err(), "{what}: {result:?}");
    }
    assert!(g.exact(&a).is_err());
}

#[test]
fn an_arena_that_is_full_refuses() {
    let g = Graph::new(2, 0).expect("a tiny graph");
    tensor(&g, F32, &[1]);
    tensor(&g, F32, &[1]);
    assert!(matches!(
        g.input("t", F32, &[1]),
        Err(Error::Capacity { capacity: 2 })
    ));
}

#[test]
fn tensors_of_other_graphs_are_not_touched() {
    let (mut g, other) = (graph(), graph());
    let x = tensor(&g, F32, &[2]);
    let foreign = tensor(&other, F32, &[2]);
    let result = other.add(&foreign, &foreign).expect("shapes fit");
    assert!(
        g.add(&x, &result).is_err(),
        "a result of another graph is not data"
    );
    assert!(g.expand(&result).is_err());
    let y = g.add(&x, &x).expect("shapes fit");
    g.output(&y).expect("of this graph");
    let mut executor = Executor::new(&[], 1, 256).expect("the processor");
    assert!(executor.run().is_err(), "nothing is loaded");
    assert!(
        executor.write(&x, &[1.0f32, 2.0]).is_err(),
        "not loaded yet"
    );
    executor.load(g).expect("it fits");
    assert!(executor.write(&foreign, &[1.0f32, 2.0]).is_err());
    assert!(executor.write(&x, &[1.0f32]).is_err(), "too few values");
    assert!(
        executor.read(&y, &mut [0.0f32; 3]).is_err(),
        "too many values"
    );
}

/// A product of one column, of another that is copied between, or read by views alone.
fn product_of_product(is_copied: bool, n: u64) -> (Graph, [Tensor; 3]) {
    let mut g = graph();
    let (a, b) = (tensor(&g, F32, &[n, n]), tensor(&g, F32, &[n]));
    let y = g.mul_mat(&a, &b).expect("shapes fit");
    let y = match is_copied {
        true => g.copy(&y),
        false => g.reshape(&y, [1, n, 1, 1]),
    };
    let y = g
        .reshape(&y.expect("contiguous"), [1, 1, n, 1])
        .expect("as many");
    let y = g.reshape(&y, [n, 1, 1, 1]).expect("as many");
    let out = g.mul_mat(&a, &y).expect("shapes fit");
    g.output(&out).expect("of this graph");
    (g, [a, b, out])
}

#[test]
fn a_graph_with_as_many_nodes_has_places_of_its_own() {
    const N: usize = 64;
    let values: Vec<f32> = (0..N * N).map(|i| ((i * 37) % 101) as f32 * 0.01).collect();
    // As many operations, and views in their places.
    let places = [true, false].map(|is_copied| product_of_product(is_copied, N as u64).0.n_nodes());
    assert_eq!(places[0], places[1]);
    let results = [true, false].map(|after_another| {
        let mut executor = Executor::new(&[], 1, 256).expect("the processor");
        if after_another {
            executor
                .load(product_of_product(true, N as u64).0)
                .expect("it fits");
        }
        let (g, [a, b, out]) = product_of_product(false, N as u64);
        executor.load(g).expect("it fits");
        put(&mut executor, &a, &values);
        put(&mut executor, &b, &values[..N]);
        executor.run().expect("it runs");
        result::<f32>(&executor, &out)
    });
    assert_eq!(results[0], results[1]);
}

#[test]
fn a_graph_larger_than_the_executor_makes_it_grow() {
    let sum_of = |mut g: Graph, n: usize| {
        let x = tensor(&g, F32, &[2]);
        let sum = (1..n).fold(x.clone(), |sum, _| g.add(&sum, &x).expect("shapes fit"));
        g.output(&sum).expect("of this graph");
        (g, x, sum)
    };
    let mut executor = Executor::new(&[], 1, 16).expect("the processor");
    for n in [3usize, 280] {
        let (g, x, sum) = sum_of(Graph::new(300, 4).expect("a graph"), n);
        let before = executor.load(g).expect("it fits");
        assert_eq!(before.is_some(), n > 3);
        put(&mut executor, &x, &[1.0f32, -2.0]);
        executor.run().expect("it runs");
        assert_eq!(result::<f32>(&executor, &sum), [n as f32, -2.0 * n as f32]);
    }
    // The memory of the graph before went with the scheduler.
    let (large, ..) = sum_of(Graph::new(3000, 4).expect("a graph"), 2);
    assert!(executor.load(large).expect("it fits").is_none());
}

#[test]
fn indices_are_checked_when_they_are_written() {
    let g = graph();
    let table = tensor(&g, F32, &[2, 3]);
    let ids = g.index_input("ids", I32, &[1], 3).expect("an index type");
    let row = g.get_rows(&table, &ids).expect("shapes fit");
    let mut executor = loaded(g, &[&row], 1);
    put(&mut executor, &table, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    for wrong in [-1, 3] {
        assert!(executor.write_indices(&ids, &[wrong]).is_err());
    }
    assert!(
        executor.write(&ids, &[1i32]).is_err(),
        "indices are not written unchecked"
    );
    executor
        .write_indices(&ids, &[2i32])
        .expect("below the bound");
    executor.run().expect("it runs");
    assert_eq!(result::<f32>(&executor, &row), [5.0, 6.0]);
}

#[test]
fn rows_of_ids_keep_their_bound() {
    let g = graph();
    let (matrices, x) = (tensor(&g, F32, &[4, 2, 3]), tensor(&g, F32, &[4, 1, 2]));
    let rows = g.index_input("rows", I32, &[2], 5).expect("an index type");
    let product = |bound: u64| {
        let ids = g.index_input("ids", I32, &[1, 5], bound);
        let ids = g.get_rows(&ids.expect("an index type"), &rows);
        g.mul_mat_id(&matrices, &x, &ids.expect("rows of ids"))
    };
    product(3).expect("as many as matrices");
    assert!(product(4).is_err());
}

#[test]
fn quantised_rows_are_near_their_values() {
    let values: Vec<f32> = (0..64).map(|i| (i as f32 / 10.0).sin()).collect();
    assert_eq!(
        quantize(&values, 32, Q8_0).expect("whole blocks").len(),
        2 * 34
    );
    assert!(quantize(&values, 33, Q8_0).is_err());
    assert!(
        quantize(&values, 64, TensorType::IQ2_XXS).is_err(),
        "needs importances"
    );
    assert!(quantize(&values, 64, I32).is_err());
}

#[test]
fn block_sizes_are_those_of_ggml() {
    for &ty in TensorType::ALL {
        // SAFETY: the id is one of ggml's types.
        let (bytes, len) = unsafe {
            (
                ggml_sys::ggml_type_size(ty.id()),
                ggml_sys::ggml_blck_size(ty.id()),
            )
        };
        assert_eq!(
            (bytes as u64, len as u64),
            (ty.block_bytes(), ty.block_len()),
            "{ty}"
        );
    }
}

#[test]
fn a_graph_over_stand_ins_is_measured_and_does_not_run() {
    let sized = |is_real: bool| {
        let weights = Arena::new(1, 0).expect("an arena");
        let w = weights.tensor("w", F32, &[64, 96]).expect("a sound shape");
        let cpu = Device::cpu().expect("the processor");
        match is_real {
            true => cpu.allocate(&weights, "a weight").map(drop),
            false => cpu.stand_in(&weights, &[&w]),
        }
        .expect("a place");
        let product = || {
            let mut g = graph();
            let x = tensor(&g, F32, &[64, 5]);
            let y = g.mul_mat(&w, &x).expect("shapes fit");
            g.output(&y).expect("of this graph");
            g
        };
        let mut executor = Executor::new(&[], 1, 256).expect("the processor");
        let sizes = executor.measure(product()).expect("it fits");
        let bytes = vec![0u8; w.bytes()];
        assert_eq!(Device::write(&w, &bytes).is_ok(), is_real);
        assert_eq!(Device::copy_rows(&w, 0, 1, 1).is_ok(), is_real);
        assert_eq!(executor.reserve(product()).is_ok(), is_real);
        assert_eq!(executor.load(product()).is_ok(), is_real);
        sizes
    };
    let described = sized(false);
    assert!(described[0] > 0);
    assert_eq!(described, sized(true));
}

fn doubling(n: u64) -> (Graph, Tensor, Tensor) {
    let mut g = graph();
    let x = tensor(&g, F32, &[n]);
    let y = g.scale(&x, 2.0).expect("shapes fit");
    g.output(&y).expect("of this graph");
    (g, x, y)
}

#[test]
fn a_graph_is_loaded_again_as_long_as_it_has_its_memory() {
    let mut executor = Executor::new(&[], 1, 256).expect("the processor");
    let run = |executor: &mut Executor, x: &Tensor, y: &Tensor, value: f32| {
        let n = x.elements() as usize;
        put(executor, x, &vec![value; n]);
        executor.run().expect("it runs");
        assert_eq!(result::<f32>(executor, y), vec![2.0 * value; n]);
    };
    let (large, xl, yl) = doubling(1000);
    let (small, xs, ys) = doubling(10);
    executor.load(large).expect("it fits");
    run(&mut executor, &xl, &yl, 1.0);
    let mut other = executor.load(small).expect("it fits").expect("the large");
    for value in [3.0, 4.0] {
        assert!(executor.can_reload(&other));
        assert!(executor.write(&xl, &[0.0f32; 1000]).is_err());
        run(&mut executor, &xs, &ys, value);
        let small = executor.load(other).expect("it fits").expect("the small");
        run(&mut executor, &xl, &yl, value);
        other = executor.load(small).expect("it fits").expect("the large");
    }
    // A larger graph gets other memory, and the places of the others are gone.
    let (larger, x, y) = doubling(1_000_000);
    let small = executor.load(larger).expect("it fits").expect("the small");
    run(&mut executor, &x, &y, 5.0);
    assert!(!executor.can_reload(&small) && !executor.can_reload(&other));
    assert!(executor.load(small).is_err());
    run(&mut executor, &x, &y, 6.0);
    let mut other_device = Executor::new(&[], 1, 256).expect("the processor");
    assert!(other_device.load(other).is_err());
}

#[test]
fn rows_are_multiplied_with_their_numbers() {
    for (shape, of_factors, threads) in [
        ([7, 5, 3, 2], [1, 5, 3, 2], 2),
        ([64, 8, 3, 1], [1, 8, 1, 1], 3),
        ([33, 4, 2, 1], [1, 1, 2, 1], 1),
        ([16, 2, 1, 1], [16, 1, 1, 1], 2),
    ] {
        let g = graph();
        let x = tensor(&g, F32, &shape);
        let factors = tensor(&g, F32, &of_factors);
        let y = g.mul(&x, &factors).expect("shapes fit");
        let mut executor = loaded(g, &[&y], threads);
        let values =
            |n: u64| -> Vec<f32> { (0..n).map(|i| (i * 37 % 101) as f32 - 50.5).collect() };
        let (a, b) = (
            values(shape.iter().product()),
            values(of_factors.iter().product()),
        );
        put(&mut executor, &x, &a);
        put(&mut executor, &factors, &b);
        executor.run().expect("it runs");
        let expected = (0..a.len() as u64).map(|i| {
            let mut rest = i;
            let mut at = 0;
            let mut stride = 1;
            for (n, m) in shape.iter().zip(&of_factors) {
                at += rest % n % m * stride;
                stride *= m;
                rest /= n;
            }
            a[i as usize] * b[at as usize]
        });
        let expected: Vec<f32> = expected.collect();
        assert_eq!(
            result::<f32>(&executor, &y),
            expected,
            "{shape:?} by {of_factors:?}"
        );
    }
}

#[test]
fn norms_are_those_of_their_rows_with_any_number_of_threads() {
    let epsilon = 1e-5;
    // Rows that fill vectors, and such that do not; weights for all rows, and for each of the first axis.
    for (shape, of_weights) in [
        ([64, 5, 3, 2], [64, 1, 1, 1]),
        ([39, 4, 2, 1], [39, 4, 1, 1]),
        ([7, 1, 1, 1], [7, 1, 1, 1]),
    ] {
        let values =
            |n: u64| -> Vec<f32> { (0..n).map(|i| (i * 37 % 101) as f32 / 9.0 - 5.5).collect() };
        let a = values(shape.iter().product());
        let w = values(of_weights.iter().product());
        let norms = |threads: usize| {
            let g = graph();
            let x = tensor(&g, F32, &shape);
            let weights = tensor(&g, F32, &of_weights);
            let alone = g.rms_norm(&x, epsilon).expect("a norm");
            let norm = g.rms_norm(&x, epsilon).expect("a norm");
            let weighed = g.mul(&norm, &weights).expect("shapes fit");
            let mut executor = loaded(g, &[&alone, &weighed], threads);
            put(&mut executor, &x, &a);
            put(&mut executor, &weights, &w);
            executor.run().expect("it runs");
            [alone, weighed].map(|y| result::<f32>(&executor, &y))
        };
        let found = norms(1);
        assert_eq!(found, norms(3), "{shape:?}");
        let n = shape[0] as usize;
        for (row, x) in a.chunks(n).enumerate() {
            let squares: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
            let scale = 1.0 / (squares / n as f64 + f64::from(epsilon)).sqrt();
            let w = &w[row % of_weights[1] as usize * n..][..n];
            for i in 0..n {
                let expected = f64::from(x[i]) * scale;
                let of = [expected, expected * f64::from(w[i])];
                for (found, expected) in found.iter().zip(of) {
                    let found = f64::from(found[row * n + i]);
                    let is_near = (found - expected).abs() <= 3e-7 * expected.abs();
                    assert!(is_near, "{shape:?}, row {row}: {found} for {expected}");
                }
            }
        }
    }
}

#[test]
fn heads_that_are_carried_along_time_fit_together() {
    let g = graph();
    let heads = |d: u64, n: u64| tensor(&g, F32, &[d, 2, n]);
    let states = |d: u64, n_seqs: u64| tensor(&g, F32, &[2 * d * d, n_seqs]);
    let (x, narrow, uneven) = (heads(64, 4), heads(32, 4), heads(64, 3));
    let (bonus, two, three) = (tensor(&g, F32, &[64, 2]), states(64, 2), states(64, 3));
    assert!(g.wkv7([&x; 6], &two).is_ok());
    assert!(g.wkv6([&x; 4], &bonus, &two).is_ok());
    assert!(g.gated_linear_attention([&x; 4], &two, 1.0).is_ok());
    let refused = [
        ("narrow heads", g.wkv7([&narrow; 6], &states(32, 2))),
        ("states of other heads", g.wkv7([&x; 6], &states(32, 2))),
        ("unequal sequences", g.wkv7([&uneven; 6], &two)),
        (
            "more sequences than tokens",
            g.wkv7([&uneven; 6], &states(64, 6)),
        ),
        ("a bonus of other heads", g.wkv6([&x; 4], &x, &three)),
        ("other keys", g.wkv6([&uneven, &x, &x, &x], &bonus, &two)),
        (
            "other values",
            g.gated_linear_attention([&x, &narrow, &x, &x], &two, 1.0),
        ),
    ];
    for (what, result) in refused {
        assert!(result.is_err(), "{what}: {result:?}");
    }
}

#[cfg(target_os = "linux")]
fn bind_to_one_processor() {
    // 1024 processors, as in the C library's `cpu_set_t`.
    type Processors = [u64; 16];
    unsafe extern "C" {
        fn sched_getaffinity(pid: i32, bytes: usize, set: *mut Processors) -> i32;
        fn sched_setaffinity(pid: i32, bytes: usize, set: *const Processors) -> i32;
    }
    let mut set: Processors = [0; 16];
    // SAFETY: the set has as many bytes as are stated; 0 is the calling thread.
    let found = unsafe { sched_getaffinity(0, size_of::<Processors>(), &raw mut set) };
    assert_eq!(found, 0, "the processors of this thread are known");
    let first = set
        .iter()
        .position(|word| *word != 0)
        .expect("there is one");
    let lowest = set[first] & set[first].wrapping_neg();
    set = [0; 16];
    set[first] = lowest;
    // SAFETY: as above.
    let bound = unsafe { sched_setaffinity(0, size_of::<Processors>(), &raw const set) };
    assert_eq!(bound, 0, "this thread is bound");
}

/// Two threads that share a processor meet after each operation. One that waits without offering the processor keeps
/// the other from running until the system takes it away, which is after a millisecond or more.
#[cfg(target_os = "linux")]
#[test]
fn a_thread_that_waits_offers_its_processor() {
    const OPERATIONS: u32 = 200;
    let spent = std::thread::spawn(|| {
        bind_to_one_processor();
        let g = Graph::new(OPERATIONS as usize + 1, 8).expect("a small graph");
        let x = tensor(&g, F32, &[4]);
        let y = (0..OPERATIONS).fold(x.clone(), |sum, _| g.add(&sum, &x).expect("shapes fit"));
        let mut executor = loaded(g, &[&y], 2);
        put(&mut executor, &x, &[1.0f32; 4]);
        let before = crate::util::measure::thread_time();
        executor.run().expect("it runs");
        let spent = crate::util::measure::thread_time().saturating_sub(before);
        assert_eq!(result::<f32>(&executor, &y), [OPERATIONS as f32 + 1.0; 4]);
        spent
    });
    let spent = spent.join().expect("it computes") / OPERATIONS;
    assert!(
        spent < std::time::Duration::from_micros(300),
        "each operation takes {spent:?} of a processor"
    );
}
