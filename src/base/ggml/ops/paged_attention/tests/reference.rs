//! What attention over blocks is tested with: contents that follow from names, a naive reference in
//! f64, and pools in which every slot that nothing may read holds NaN.

use std::collections::BTreeMap;

use super::super::*;
use crate::ggml::tests::{in_place, kv_blocks, loaded, put};
use crate::ggml::{Arena, Selected, quantize};
use TensorType::{BF16, F16, F32, I32, Q4_0, Q8_0};

pub(super) const PLAIN: ScoreOptions<'_> = ScoreOptions {
    scale: 0.125,
    softcap: 0.0,
    max_bias: 0.0,
    sinks: None,
};

#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionShape {
    pub(super) dk: usize,
    pub(super) dv: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) k: TensorType,
    /// None: values are the heads of the keys.
    pub(super) v: Option<TensorType>,
}

pub(super) const SMALL: AttentionShape = AttentionShape {
    dk: 64,
    dv: 64,
    heads: 4,
    kv_heads: 2,
    k: F16,
    v: Some(F16),
};

#[derive(Clone, Copy, Debug)]
pub(super) struct ScoreRule {
    pub(super) softcap: f32,
    pub(super) max_bias: f32,
    /// Distances from -far to far have a bias of their own; none: there is no bias by distance.
    pub(super) far: Option<usize>,
    pub(super) sinks: bool,
    /// Keys of whole blocks of positions: those of a sequence are the rows of sequence [`OF_WHOLE`] more.
    pub(super) whole: Option<WholeSpans>,
    /// Whether whole blocks with an odd number are selected, of queries that see more than two.
    pub(super) is_selective: bool,
}

const OF_WHOLE: u64 = 1000;

pub(super) const NO_RULE: ScoreRule = ScoreRule {
    softcap: 0.0,
    max_bias: 0.0,
    far: None,
    sinks: false,
    whole: None,
    is_selective: false,
};

impl ScoreRule {
    /// The selected blocks of a query; `None`: all of them. One that is not whole is listed and not attended to.
    fn selected(&self, query: &Query) -> Option<Vec<i32>> {
        let n = query.end / self.whole?.span as i32;
        (self.is_selective && n > 2).then(|| (0..=n).filter(|block| block % 2 == 1).collect())
    }

    /// The rows that a query attends to, each with its position.
    fn seen(&self, query: &Query) -> Vec<(u64, i32)> {
        let own = |from: i32| (from.max(query.first)..query.end).map(|p| (query.sequence, p));
        let Some(WholeSpans { span, near }) = self.whole else {
            return own(0).collect();
        };
        let n = query.end / span as i32;
        let listed = self.selected(query).unwrap_or((0..n).collect());
        let whole = listed.into_iter().filter(|block| *block < n);
        let whole = whole.map(|block| (OF_WHOLE + query.sequence, block));
        own(query.end - near as i32).chain(whole).collect()
    }

    /// Number of rows of a KV block after those of its positions.
    fn further(&self, block_len: usize) -> usize {
        let further = |whole: WholeSpans| WholeSpans::further(whole.span, block_len as u64);
        self.whole.map_or(0, further) as usize
    }
}

/// A query of a sequence, whose contents follow from its name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Query {
    pub(super) sequence: u64,
    pub(super) position: i32,
    pub(super) first: i32,
    pub(super) end: i32,
}

pub(super) fn causal(sequence: u64, positions: std::ops::Range<i32>) -> Vec<Query> {
    let query = |position| Query {
        sequence,
        position,
        first: 0,
        end: position + 1,
    };
    positions.map(query).collect()
}

pub(super) fn mixed(mut x: u64) -> u64 {
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        x = (x ^ x >> 29).wrapping_mul(factor);
    }
    x ^ x >> 32
}

pub(super) fn numbers(kind: u64, sequence: u64, position: i32, n: usize) -> Vec<f32> {
    let seed = mixed(mixed(kind << 32 ^ sequence).wrapping_add(position as u64 + 1));
    (0..n as u64)
        .map(|i| (mixed(seed.wrapping_add(i)) >> 40) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

pub(super) const Q: u64 = 0;
pub(super) const K: u64 = 1;
pub(super) const V: u64 = 2;
pub(super) const SINKS: u64 = 3;
const BIAS: u64 = 4;

pub(super) fn bias_of(shape: &AttentionShape, far: usize) -> Vec<f32> {
    let bias = numbers(BIAS, 0, 0, shape.heads * (2 * far + 1));
    bias.iter().map(|b| 2.0 * b).collect()
}

pub(super) fn sinks_of(shape: &AttentionShape) -> Vec<f32> {
    let sinks = numbers(SINKS, 0, 0, shape.heads);
    sinks.iter().map(|s| 3.0 * s).collect()
}

fn decoded(row: &[f32], ty: TensorType) -> Vec<f64> {
    let bytes = quantize(row, row.len(), ty).expect("whole blocks");
    let half = |b: &[u8]| half::f16::from_le_bytes([b[0], b[1]]).to_f64();
    match ty {
        F32 => row.iter().map(|x| f64::from(*x)).collect(),
        F16 => bytes.chunks(2).map(half).collect(),
        BF16 => {
            let wide = |b: &[u8]| half::bf16::from_le_bytes([b[0], b[1]]).to_f64();
            bytes.chunks(2).map(wide).collect()
        }
        Q8_0 => {
            let block = |b: &[u8]| {
                let d = half(b);
                b[2..]
                    .iter()
                    .map(move |x| d * f64::from(*x as i8))
                    .collect::<Vec<_>>()
            };
            bytes.chunks(34).flat_map(block).collect()
        }
        Q4_0 => {
            let block = |b: &[u8]| {
                let d = half(b);
                let value = |x: u8| d * (f64::from(x) - 8.0);
                let low = b[2..].iter().map(|x| value(x & 15));
                low.chain(b[2..].iter().map(|x| value(x >> 4)))
                    .collect::<Vec<_>>()
            };
            bytes.chunks(18).flat_map(block).collect()
        }
        other => panic!("{other} is not a type of the test"),
    }
}

type Row = (Vec<f64>, Vec<f64>);

/// The rows of the positions of sequences: queries share them.
pub(super) type Rows = BTreeMap<(u64, i32), Row>;

fn stored(shape: &AttentionShape, sequence: u64, position: i32) -> Row {
    let row = numbers(K, sequence, position, shape.dk * shape.kv_heads);
    let k = decoded(&row, shape.k);
    let v = match shape.v {
        Some(ty) => decoded(
            &numbers(V, sequence, position, shape.dv * shape.kv_heads),
            ty,
        ),
        None => k
            .chunks(shape.dk)
            .flat_map(|h| h[..shape.dv].to_vec())
            .collect(),
    };
    (k, v)
}

/// The slope of a head (Press et al. 2022), for any number of heads.
fn slope(head: usize, heads: usize, max_bias: f64) -> f64 {
    let power = (1 << heads.ilog2()) as f64;
    let (h, bias) = (head as f64, max_bias);
    if h < power {
        2f64.powf(-bias / power * (h + 1.0))
    } else {
        2f64.powf(-bias / 2.0 / power * (2.0 * (h - power) + 1.0))
    }
}

/// Values of a query and how far f32 may be off: the error of a score moves its weight, and each
/// addition rounds.
pub(super) fn reference(
    shape: &AttentionShape,
    rule: &ScoreRule,
    query: &Query,
    stored_rows: &mut Rows,
) -> (Vec<f64>, f64) {
    const EPS: f64 = 1.0 / (1 << 24) as f64;
    let q = numbers(Q, query.sequence, query.position, shape.dk * shape.heads);
    let seen = rule.seen(query);
    for &(sequence, p) in &seen {
        let row = || stored(shape, sequence, p);
        stored_rows.entry((sequence, p)).or_insert_with(row);
    }
    let rows: Vec<&Row> = seen.iter().map(|at| &stored_rows[at]).collect();
    let sinks = sinks_of(shape);
    let bias = bias_of(shape, rule.far.unwrap_or(0));
    let (mut out, mut bound) = (Vec::new(), 0f64);
    for head in 0..shape.heads {
        let of = head / (shape.heads / shape.kv_heads);
        let q = &q[head * shape.dk..][..shape.dk];
        let mut score_error = 0f64;
        let score = |(row, p): (&&Row, i32)| {
            let products = q
                .iter()
                .zip(&row.0[of * shape.dk..])
                .map(|(a, b)| f64::from(*a) * b);
            let (sum, size) = products.fold((0.0, 0.0), |(s, a), x| (s + x, a + x.abs()));
            let mut score = sum * f64::from(PLAIN.scale);
            let rounds = (shape.dk / 16 + 8) as f64;
            score_error = score_error.max(EPS * (rounds * size * f64::from(PLAIN.scale) + 8.0));
            if rule.softcap > 0.0 {
                let cap = f64::from(rule.softcap);
                score = cap * (score / cap).tanh();
                score_error += 8.0 * EPS * cap;
            }
            if rule.max_bias > 0.0 {
                let bias = slope(head, shape.heads, f64::from(rule.max_bias))
                    * f64::from((query.position - p).abs());
                score -= bias;
                score_error += 8.0 * EPS * bias;
            }
            if let Some(far) = rule.far {
                let far = far as i32;
                let distance = (p - query.position).clamp(-far, far);
                let row = (distance + far) as usize;
                score += f64::from(bias[row * shape.heads + head]);
                score_error += 8.0 * EPS;
            }
            score
        };
        let scores: Vec<f64> = rows
            .iter()
            .zip(seen.iter().map(|at| at.1))
            .map(score)
            .collect();
        let sink = rule.sinks.then(|| f64::from(sinks[head]));
        let highest = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - highest).exp()).collect();
        let total: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - highest).exp());
        for d in 0..shape.dv {
            let values = rows.iter().map(|row| row.1[of * shape.dv + d]);
            let sum: f64 = values.zip(&weights).map(|(v, w)| v * w).sum();
            out.push(if rows.is_empty() { 0.0 } else { sum / total });
        }
        bound = bound.max(2.0 * score_error + EPS * (rows.len() + 64) as f64);
    }
    (out, bound)
}

/// Where things lie and who computes them: what must not matter.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockPlace {
    pub(super) block_len: usize,
    pub(super) seed: u64,
    pub(super) threads: usize,
    /// Slots that the pool lacks after its last block.
    pub(super) short: usize,
}

pub(super) const HERE: BlockPlace = BlockPlace {
    block_len: 16,
    seed: 0,
    threads: 2,
    short: 0,
};

pub(super) struct Lists {
    pub(super) queries: Vec<i32>,
    pub(super) table: Vec<i32>,
    pub(super) slots: Vec<(u64, i32, usize)>,
    pub(super) n_slots: usize,
}

pub(super) fn lists(queries: &[Query], rule: &ScoreRule, place: &BlockPlace) -> Lists {
    let mut seen: BTreeMap<u64, (i32, i32)> = BTreeMap::new();
    for q in queries {
        let range = seen.entry(q.sequence).or_insert((q.first, q.end));
        *range = (range.0.min(q.first), range.1.max(q.end));
    }
    let block_len = place.block_len as i32;
    let n_rows = block_len + rule.further(place.block_len) as i32;
    let n_blocks: i32 = seen
        .values()
        .map(|(_, end)| end.max(&0) / block_len + 1)
        .sum();
    // A third more blocks than are needed, in an order of the seed.
    let mut ids: Vec<i32> = (0..n_blocks + n_blocks / 3).collect();
    ids.sort_by_key(|id| mixed(place.seed << 32 ^ *id as u64));
    let mut out = Lists {
        queries: Vec::new(),
        table: vec![-1; place.seed as usize % 3],
        slots: Vec::new(),
        n_slots: ids.len() * (place.block_len + rule.further(place.block_len)),
    };
    let mut begins = BTreeMap::new();
    for (sequence, (first, end)) in seen {
        begins.insert(sequence, out.table.len() as i32);
        for block in 0..=(end - 1).max(0) / block_len {
            let wanted = (block * block_len).max(first)..((block + 1) * block_len).min(end);
            let id = if wanted.is_empty() {
                -1
            } else {
                ids.pop().expect("enough blocks")
            };
            out.table.push(id);
            let slot = |p: i32| (sequence, p, (id * n_rows + p % block_len) as usize);
            out.slots.extend(wanted.clone().map(slot));
            let span = rule.whole.map_or(i32::MAX, |whole| whole.span as i32);
            for last in wanted.filter(|p| (p + 1) % span == 0) {
                let before = if span < block_len {
                    last % block_len / span
                } else {
                    0
                };
                let slot = (id * n_rows + block_len + before) as usize;
                out.slots.push((OF_WHOLE + sequence, last / span, slot));
            }
        }
    }
    out.n_slots -= place.short;
    for q in queries {
        out.queries
            .extend([begins[&q.sequence], q.position, q.first, q.end]);
    }
    out
}

/// The bytes of a pool: rows where positions lie, NaN everywhere else.
fn pool(kind: u64, lists: &Lists, width: usize, ty: TensorType) -> Vec<u8> {
    let row = ty.row_bytes(width as u64).expect("whole blocks") as usize;
    let mut bytes = vec![0xff; lists.n_slots * row];
    for (sequence, position, slot) in &lists.slots {
        let values = numbers(kind, *sequence, *position, width);
        let stored = quantize(&values, width, ty).expect("whole blocks");
        bytes[slot * row..][..row].copy_from_slice(&stored);
    }
    bytes
}

pub(super) fn attend(
    shape: &AttentionShape,
    rule: &ScoreRule,
    queries: &[Query],
    place: &BlockPlace,
) -> Vec<Vec<f32>> {
    attend_lists(shape, rule, queries, place, &lists(queries, rule, place))
}

pub(super) fn attend_lists(
    shape: &AttentionShape,
    rule: &ScoreRule,
    queries: &[Query],
    place: &BlockPlace,
    lists: &Lists,
) -> Vec<Vec<f32>> {
    let g = Graph::new(64, 8).expect("a small graph");
    let input = |ty, shape: &[usize]| {
        let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
        g.input("t", ty, &shape).expect("a sound shape")
    };
    let n = queries.len();
    let q = input(F32, &[shape.dk, shape.heads, n]);
    let arenas = [(); 2].map(|()| Arena::new(1, 0).expect("a small arena"));
    let pool = |arena, kind, ty, width: usize| {
        let bytes = pool(kind, lists, width * shape.kv_heads, ty);
        let shape = [width, shape.kv_heads, lists.n_slots].map(|n| n as u64);
        in_place(arena, "pool", ty, &shape, &bytes)
    };
    let k = pool(&arenas[0], K, shape.k, shape.dk);
    let v = shape.v.map(|ty| pool(&arenas[1], V, ty, shape.dv));
    let strides = k.strides();
    let head = || {
        let steps = [strides[1], strides[2], strides[3]];
        let window = [
            shape.dv as u64,
            shape.kv_heads as u64,
            lists.n_slots as u64,
            1,
        ];
        g.view(&k, window, steps, 0).expect("within the keys")
    };
    let values = v.clone().unwrap_or_else(head);
    let (list, table) = (input(I32, &[4, n]), input(I32, &[lists.table.len()]));
    let sinks = rule.sinks.then(|| input(F32, &[shape.heads]));
    let bias = rule.far.map(|far| input(F32, &[shape.heads, 2 * far + 1]));
    const CAPACITY: usize = 128;
    let chosen = rule.is_selective.then(|| input(I32, &[CAPACITY, 1, n]));
    let selected = chosen.as_ref().zip(rule.whole);
    let blocks = KvBlocks {
        block_len: place.block_len as u64,
        bias: bias.as_ref(),
        whole: rule.whole,
        selected: selected.map(|(lists, whole)| Selected {
            lists,
            span: whole.span,
        }),
        ..kv_blocks(&k, &values, &list, &table)
    };
    let scores = ScoreOptions {
        softcap: rule.softcap,
        max_bias: rule.max_bias,
        sinks: sinks.as_ref(),
        ..PLAIN
    };
    let y = g.paged_attention(&q, &blocks, &scores).expect("shapes fit");
    let mut executor = loaded(g, &[&y], place.threads);
    let rows = |kind, width| -> Vec<f32> {
        let row = |q: &Query| numbers(kind, q.sequence, q.position, width);
        queries.iter().flat_map(row).collect()
    };
    put(&mut executor, &q, &rows(Q, shape.dk * shape.heads));
    put(&mut executor, &list, &lists.queries);
    put(&mut executor, &table, &lists.table);
    if let (Some(bias), Some(far)) = (&bias, rule.far) {
        put(&mut executor, bias, &bias_of(shape, far));
    }
    if let Some(sinks) = &sinks {
        put(&mut executor, sinks, &sinks_of(shape));
    }
    if let Some(chosen) = &chosen {
        let list = |q: &Query| rule.selected(q).unwrap_or_default().into_iter();
        let padded = |q: &Query| {
            list(q)
                .chain(std::iter::repeat(-1))
                .take(CAPACITY)
                .collect()
        };
        let all: Vec<Vec<i32>> = queries.iter().map(padded).collect();
        put(&mut executor, chosen, &all.concat());
    }
    let mut run = || {
        executor.run().expect("it runs");
        let mut y_values = vec![f32::NAN; y.elements() as usize];
        executor.read(&y, &mut y_values).expect("the result");
        y_values
    };
    let first = run();
    assert_eq!(bits(&first), bits(&run()), "a second run of the same graph");
    first
        .chunks(shape.dv * shape.heads)
        .map(<[f32]>::to_vec)
        .collect()
}

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

pub(super) fn check(
    shape: &AttentionShape,
    rule: &ScoreRule,
    queries: &[Query],
    place: &BlockPlace,
) {
    let found = attend(shape, rule, queries, place);
    let mut rows = Rows::new();
    for (query, found) in queries.iter().zip(&found) {
        let (expected, bound) = reference(shape, rule, query, &mut rows);
        for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
            let off = (f64::from(*a) - b).abs();
            assert!(
                off <= bound,
                "{shape:?} {rule:?} {place:?} {query:?} element {i}: {a}, expected {b} within {bound:e}"
            );
        }
    }
}
