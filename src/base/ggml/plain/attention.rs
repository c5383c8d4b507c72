//! Attention: with masks, over KV blocks, and over selected keys.

use super::super::error::Error;
use super::array::{PlainArray, PlainNode, dot};
use crate::weights::TensorType;

/// The slope of a head's linear position bias (Press et al. 2022); 1 without a bias, as the factor of masks.
fn slope(head: usize, heads: usize, max_bias: f64) -> f64 {
    if max_bias <= 0.0 {
        return 1.0;
    }
    let power = 1usize << heads.ilog2();
    match head < power {
        true => 2f64.powf(-max_bias / power as f64 * (head + 1) as f64),
        false => 2f64.powf(-max_bias / 2.0 / power as f64 * (2 * (head - power) + 1) as f64),
    }
}

/// Softmax of scores, with a sink that takes part in it; all zeros if all scores are -inf.
fn softmax(scores: &mut [f64], sink: Option<f64>) {
    let start = sink.unwrap_or(f64::NEG_INFINITY);
    let max = scores.iter().copied().fold(start, f64::max);
    if max == f64::NEG_INFINITY {
        scores.fill(0.0);
        return;
    }
    scores.iter_mut().for_each(|s| *s = (*s - max).exp());
    let sum = scores.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
    scores.iter_mut().for_each(|s| *s /= sum);
}

fn capped(score: f64, softcap: f64) -> f64 {
    match softcap == 0.0 {
        true => score,
        false => softcap * (score / softcap).tanh(),
    }
}

/// `softmax(a * scale + slope * mask)` over rows.
pub(super) fn soft_max(node: &PlainNode) -> Result<PlainArray, Error> {
    let mut a = node.input(0)?;
    let (mask, sinks) = (node.optional(1)?, node.optional(2)?);
    let (scale, max_bias) = (node.param(0), node.param(1));
    let heads = a.shape[2];
    for at @ [query, head, n] in a.rows() {
        let row = a.row_mut(at);
        row.iter_mut().for_each(|s| *s *= scale);
        if let Some(mask) = &mask {
            let mask = mask.row([query, head % mask.shape[2], n % mask.shape[3]]);
            let slope = slope(head, heads, max_bias);
            row.iter_mut().zip(mask).for_each(|(s, m)| *s += slope * m);
        }
        softmax(row, sinks.as_ref().map(|sinks| sinks.values[head]));
    }
    Ok(a)
}

fn add(out: &mut [f64], weight: f64, row: &[f64]) {
    out.iter_mut().zip(row).for_each(|(o, v)| *o += weight * v);
}

/// Attention over all keys under a mask: `[dv, heads, n_q, n]`.
pub(super) fn flash(node: &PlainNode) -> Result<PlainArray, Error> {
    let [q, k, v] = node.inputs([0, 1, 2])?;
    let (mask, sinks) = (node.optional(3)?, node.optional(4)?);
    let [scale, max_bias, softcap] = [0, 1, 2].map(|at| node.param(at));
    let (heads, per_head) = (q.shape[2], q.shape[2] / k.shape[2]);
    let mut out = PlainArray::zeros(node.shape());
    for [head, query, n] in out.rows() {
        let slope = slope(head, heads, max_bias);
        let key_head = head / per_head;
        let score = |key: usize| {
            let product = dot(q.row([query, head, n]), k.row([key, key_head, n]));
            let masked = mask.as_ref().map_or(0.0, |m| m.at(key, [query, 0, n]));
            capped(product * scale, softcap) + slope * masked
        };
        let mut scores: Vec<f64> = (0..k.shape[1]).map(score).collect();
        softmax(&mut scores, sinks.as_ref().map(|sinks| sinks.values[head]));
        let mixed = out.row_mut([head, query, n]);
        for (key, weight) in scores.iter().enumerate().filter(|(_, w)| **w != 0.0) {
            add(mixed, *weight, v.row([key, key_head, n]));
        }
    }
    Ok(out)
}

/// The lists of the queries of a pass: the place in the table where the blocks of a query's sequence start, its
/// position, and the first and the end of the positions that it attends to.
struct QueryLists {
    queries: PlainArray,
    table: PlainArray,
    block: usize,
    /// Number of rows of a KV block: those of its positions, then further ones.
    rows: usize,
    n_slots: usize,
}

impl QueryLists {
    fn interval(&self, query: usize) -> [usize; 3] {
        [1, 2, 3].map(|at| self.queries.index(at, [query, 0, 0]))
    }

    fn slot(&self, query: usize, position: usize) -> Option<usize> {
        let start = self.queries.index(0, [query, 0, 0]);
        let block = self.table.values.get(start + position / self.block)?;
        let slot = *block as usize * self.rows + position % self.block;
        (slot < self.n_slots).then_some(slot)
    }

    /// The slot of the key of the whole block of `span` positions that ends at `last`.
    fn further_slot(&self, query: usize, last: usize, span: usize) -> Option<usize> {
        let own = self.slot(query, last)? - last % self.block;
        let ends_before = if span < self.block {
            last % self.block / span
        } else {
            0
        };
        let slot = own + self.block + ends_before;
        (slot < self.n_slots).then_some(slot)
    }
}

/// Attention of each query to an interval of its sequence, or to selected positions of the interval.
pub(super) fn paged(node: &PlainNode) -> Result<PlainArray, Error> {
    let [q, k, v] = node.inputs([0, 1, 2])?;
    let [block, span, near] = [11, 12, 14].map(|at| node.int(at).max(0) as usize);
    let further = if near > 0 {
        (block / span.max(1)).max(1)
    } else {
        0
    };
    let lists = QueryLists {
        queries: node.input(3)?,
        table: node.input(4)?,
        block: block.max(1),
        rows: block.max(1) + further,
        n_slots: k.shape[2],
    };
    let [scale, softcap, max_bias] = [8, 9, 10].map(|at| node.param(at));
    let (mut selected, mut bias, mut sinks) = (None, None, None);
    let has_bias = node.int(13) != 0;
    for at in [5, 6, 7] {
        match node.source(at)? {
            Some(source) if source.ty() == TensorType::I32 => selected = Some(source.read()?),
            Some(source) if has_bias && bias.is_none() => bias = Some(source.read()?),
            Some(source) => sinks = Some(source.read()?),
            None => {}
        }
    }
    let (heads, per_head) = (q.shape[1], q.shape[1] / k.shape[1]);
    let mut out = PlainArray::zeros(node.shape());
    for [head, query, _] in out.rows() {
        let key_head = head / per_head;
        let [position, first, end] = lists.interval(query);
        let is_in = |p: &usize| {
            let list = selected
                .as_ref()
                .map(|s| s.row([key_head % s.shape[1], query, 0]));
            list.is_none_or(|list| {
                let taken = list.iter().take_while(|block| **block >= 0.0);
                list[0] < 0.0 || taken.into_iter().any(|block| *block as usize == p / span)
            })
        };
        let (positions, slots): (Vec<usize>, Option<Vec<usize>>) = match near {
            0 => {
                let positions: Vec<usize> = (first..end).filter(is_in).collect();
                let slots = positions.iter().map(|p| lists.slot(query, *p)).collect();
                (positions, slots)
            }
            // The last positions, then the last position of each whole block, which stands for its key.
            _ => {
                let near: Vec<usize> = (first.max(end.saturating_sub(near))..end).collect();
                let whole = (first..end).filter(|p| (p + 1) % span == 0).filter(is_in);
                let whole: Vec<usize> = whole.collect();
                let of_near = near.iter().map(|p| lists.slot(query, *p));
                let of_whole = whole.iter().map(|p| lists.further_slot(query, *p, span));
                let slots = of_near.chain(of_whole).collect();
                ([near, whole].concat(), slots)
            }
        };
        let Some(slots) = slots else { continue };
        let slope = match max_bias > 0.0 {
            true => slope(head, heads, max_bias),
            false => 0.0,
        };
        // The bias for the distance of key and query, limited to the distances of the table.
        let of_distance = |bias: &PlainArray, p: usize| {
            let far = bias.shape[1] as i64 / 2;
            let distance = (p as i64 - position as i64).clamp(-far, far);
            bias.at(head, [(distance + far) as usize, 0, 0])
        };
        let score = |(p, slot): (&usize, &usize)| {
            let product = dot(q.row([head, query, 0]), k.row([key_head, *slot, 0]));
            let of_distance = bias.as_ref().map_or(0.0, |bias| of_distance(bias, *p));
            let linear = slope * (position as f64 - *p as f64).abs();
            capped(product * scale, softcap) - linear + of_distance
        };
        let mut scores: Vec<f64> = positions.iter().zip(&slots).map(score).collect();
        softmax(&mut scores, sinks.as_ref().map(|sinks| sinks.values[head]));
        let mixed = out.row_mut([head, query, 0]);
        for (weight, slot) in scores.iter().zip(&slots) {
            add(mixed, *weight, v.row([key_head, *slot, 0]));
        }
    }
    Ok(out)
}

/// The blocks of positions with the highest index scores, as lists in ascending order that end with a negative number;
/// a list that starts with one stands for all blocks.
pub(super) fn select(node: &PlainNode) -> Result<PlainArray, Error> {
    let (q, k) = (node.input(0)?, node.input(1)?);
    let lists = QueryLists {
        queries: node.input(2)?,
        table: node.input(3)?,
        block: node.int(11).max(1) as usize,
        rows: node.int(11).max(1) as usize,
        n_slots: k.shape[2],
    };
    let weights = node.optional(4)?;
    let [top, span, local] = [8, 9, 10].map(|at| node.int(at).max(0) as usize);
    // Whole blocks are scored, and a block that is not whole is selected in addition.
    let has_tail = node.int(10) < 0;
    let mut out = PlainArray::zeros(node.shape());
    for [head, query, _] in out.rows() {
        let [position, first, end] = lists.interval(query);
        let score = |p: usize| -> Option<f64> {
            let key = k.row([0, lists.slot(query, p)?, 0]);
            Some(match &weights {
                None => dot(q.row([head, query, 0]), key),
                Some(weights) => (0..q.shape[1])
                    .map(|h| weights.at(h, [query, 0, 0]) * dot(q.row([h, query, 0]), key).max(0.0))
                    .sum(),
            })
        };
        let list = out.row_mut([head, query, 0]);
        list[0] = -1.0;
        let blocks_end = if has_tail {
            end / span
        } else {
            end.div_ceil(span)
        };
        let blocks: Vec<usize> = (first / span..blocks_end).collect();
        if end <= first || blocks.len() <= top {
            continue;
        }
        let of_block = |block: &usize| {
            let is_local = local > 0 && block + local > position / span;
            let seen = (block * span).max(first)..((block + 1) * span).min(end);
            let highest = seen.filter_map(score).fold(f64::NEG_INFINITY, f64::max);
            if is_local { f64::INFINITY } else { highest }
        };
        let scores: Vec<f64> = blocks.iter().map(of_block).collect();
        let mut best: Vec<usize> = (0..blocks.len()).collect();
        best.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        best.truncate(top);
        best.sort_unstable();
        for (value, at) in list.iter_mut().zip(best) {
            *value = blocks[at] as f64;
        }
        if has_tail {
            let is_whole = end.is_multiple_of(span);
            list[top] = if is_whole { -1.0 } else { blocks_end as f64 };
        }
    }
    Ok(out)
}
