//! Layout of boxes and arrows from top to bottom: ranks, order, positions, routes.
//!
//! The layered method of Sugiyama, Tagawa and Toda (1981): every box lies below all boxes that it reads, long arrows
//! run through lanes that are kept free for them, the order within a rank follows the centres of the neighbours, and
//! the positions are near those centres and keep the boxes apart.

use super::fragment::{Point, Rect};

/// Boxes and arrows with their positions.
#[derive(Clone, Debug, Default)]
pub(super) struct GraphLayout {
    pub(super) boxes: Vec<Rect>,
    /// The arrows, in the given order, as points that they pass through. An arrow may bend between the second point of
    /// one pair and the first of the next.
    pub(super) routes: Vec<Vec<Point>>,
    pub(super) w: f64,
    pub(super) h: f64,
}

const GAP_X: f64 = 22.0;
const GAP_Y: f64 = 30.0;
/// Width that is kept free for a passing arrow.
const LANE: f64 = 10.0;
const SWEEPS: usize = 8;
const PASSES: usize = 24;

struct LayeredGraph {
    /// Width and height of the boxes, followed by those of the lanes.
    sizes: Vec<Point>,
    rank: Vec<usize>,
    above: Vec<Vec<usize>>,
    below: Vec<Vec<usize>>,
    n_boxes: usize,
    lanes: Vec<Vec<usize>>,
}

/// Places boxes of the given widths and heights so that every arrow `(from, to)` points down. Arrows go from lower to
/// higher indices.
pub(super) fn layout(sizes: &[Point], arrows: &[(usize, usize)]) -> GraphLayout {
    if sizes.is_empty() {
        return GraphLayout::default();
    }
    let net = LayeredGraph::new(sizes, arrows);
    let ranks = net.ordered();
    let x = net.places(&ranks);
    net.draw(&ranks, &x, arrows)
}

impl LayeredGraph {
    fn new(sizes: &[Point], arrows: &[(usize, usize)]) -> Self {
        let n = sizes.len();
        let mut rank = vec![0usize; n];
        for to in 0..n {
            for (from, _) in arrows.iter().filter(|(from, t)| *t == to && *from < to) {
                rank[to] = rank[to].max(rank[*from] + 1);
            }
        }
        // A box that reads nothing is placed right above its first reader.
        for at in (0..n).rev() {
            let reads = arrows.iter().any(|(_, to)| *to == at);
            let readers = arrows.iter().filter(|(from, _)| *from == at);
            let first = readers.map(|(_, to)| rank[*to]).min();
            if let (false, Some(first)) = (reads, first) {
                rank[at] = first.saturating_sub(1);
            }
        }
        let mut net = Self {
            sizes: sizes.to_vec(),
            rank,
            above: vec![Vec::new(); n],
            below: vec![Vec::new(); n],
            n_boxes: n,
            lanes: Vec::new(),
        };
        for (from, to) in arrows {
            let mut lanes = Vec::new();
            let mut last = *from;
            for rank in net.rank[*from] + 1..net.rank[*to] {
                let lane = net.sizes.len();
                net.sizes.push((LANE, 0.0));
                net.rank.push(rank);
                net.above.push(Vec::new());
                net.below.push(Vec::new());
                net.join(last, lane);
                lanes.push(lane);
                last = lane;
            }
            net.join(last, *to);
            net.lanes.push(lanes);
        }
        net
    }

    fn join(&mut self, from: usize, to: usize) {
        self.below[from].push(to);
        self.above[to].push(from);
    }

    /// The boxes and lanes of each rank, in an order with few crossings.
    fn ordered(&self) -> Vec<Vec<usize>> {
        let n_ranks = self.rank.iter().max().map_or(0, |most| most + 1);
        let mut ranks = vec![Vec::new(); n_ranks];
        for at in 0..self.sizes.len() {
            ranks[self.rank[at]].push(at);
        }
        let mut best = (self.crossings(&ranks), ranks.clone());
        for sweep in 0..SWEEPS {
            let down = sweep % 2 == 0;
            let order: Vec<usize> = match down {
                true => (1..n_ranks).collect(),
                false => (0..n_ranks.saturating_sub(1)).rev().collect(),
            };
            for rank in order {
                let neighbour = if down { rank - 1 } else { rank + 1 };
                let place = self.positions(&ranks[neighbour]);
                let ends = if down { &self.above } else { &self.below };
                let own = self.positions(&ranks[rank]);
                let middle = |at: &usize| {
                    let known: Vec<usize> = ends[*at].iter().map(|e| place[*e]).collect();
                    match known.is_empty() {
                        true => own[*at] as f64,
                        false => known.iter().sum::<usize>() as f64 / known.len() as f64,
                    }
                };
                ranks[rank].sort_by(|a, b| middle(a).total_cmp(&middle(b)));
            }
            let crossings = self.crossings(&ranks);
            if crossings < best.0 {
                best = (crossings, ranks.clone());
            }
        }
        best.1
    }

    fn positions(&self, rank: &[usize]) -> Vec<usize> {
        let mut place = vec![0; self.sizes.len()];
        for (i, at) in rank.iter().enumerate() {
            place[*at] = i;
        }
        place
    }

    fn crossings(&self, ranks: &[Vec<usize>]) -> usize {
        let pairs = ranks.windows(2).map(|pair| {
            let place = self.positions(&pair[0]);
            let ends = pair[1].iter().flat_map(|at| {
                let mut ends: Vec<usize> = self.above[*at].iter().map(|e| place[*e]).collect();
                ends.sort_unstable();
                ends
            });
            let ends: Vec<usize> = ends.collect();
            let crossed = |(i, a): (usize, &usize)| ends[i + 1..].iter().filter(|b| *b < a).count();
            ends.iter().enumerate().map(crossed).sum::<usize>()
        });
        pairs.sum()
    }

    /// The horizontal centre of every box and lane: near those of its neighbours in other ranks, without overlap in its
    /// own.
    fn places(&self, ranks: &[Vec<usize>]) -> Vec<f64> {
        let mut x = vec![0.0; self.sizes.len()];
        for rank in ranks {
            let mut left = 0.0;
            for at in rank {
                x[*at] = left + self.sizes[*at].0 / 2.0;
                left += self.sizes[*at].0 + GAP_X;
            }
        }
        let mean =
            |x: &[f64], ends: &[usize]| ends.iter().map(|e| x[*e]).sum::<f64>() / ends.len() as f64;
        for pass in 0..PASSES {
            let down = pass % 2 == 0;
            let near = |x: &[f64], at: usize| match (&self.above[at], &self.below[at]) {
                (above, below) if above.is_empty() && below.is_empty() => x[at],
                (above, below) if above.is_empty() => mean(x, below),
                (above, below) if down || below.is_empty() => mean(x, above),
                (above, below) => f64::midpoint(mean(x, above), mean(x, below)),
            };
            self.settle(&mut x, ranks, down, &near);
        }
        // Chains are straightened where possible.
        for (down, ends, back) in [
            (false, &self.below, &self.above),
            (true, &self.above, &self.below),
        ] {
            let straight = |x: &[f64], at: usize| match ends[at].as_slice() {
                [end] if back[*end].len() == 1 => x[*end],
                _ => x[at],
            };
            self.settle(&mut x, ranks, down, &straight);
        }
        x
    }

    /// Moves the boxes rank by rank, downwards or upwards, towards their wanted positions, in order and without
    /// overlap.
    fn settle(
        &self,
        x: &mut [f64],
        ranks: &[Vec<usize>],
        down: bool,
        wanted: &dyn Fn(&[f64], usize) -> f64,
    ) {
        for i in 0..ranks.len() {
            let rank = &ranks[if down { i } else { ranks.len() - 1 - i }];
            let mut left: Vec<f64> = rank.iter().map(|at| wanted(x, *at)).collect();
            let mut right = left.clone();
            let apart = |i: usize| {
                let [a, b] = [i - 1, i].map(|i| self.sizes[rank[i]].0);
                (a + b) / 2.0 + GAP_X
            };
            // The position is the mean of two: with all boxes pushed right, and with all pushed left, as far as needed.
            for i in 1..rank.len() {
                left[i] = left[i].max(left[i - 1] + apart(i));
            }
            for i in (1..rank.len()).rev() {
                right[i - 1] = right[i - 1].min(right[i] - apart(i));
            }
            for (i, at) in rank.iter().enumerate() {
                x[*at] = f64::midpoint(left[i], right[i]);
            }
        }
    }

    fn draw(&self, ranks: &[Vec<usize>], x: &[f64], arrows: &[(usize, usize)]) -> GraphLayout {
        let left = (0..self.sizes.len()).map(|at| x[at] - self.sizes[at].0 / 2.0);
        let left = left.fold(f64::INFINITY, f64::min);
        let right = (0..self.sizes.len()).map(|at| x[at] + self.sizes[at].0 / 2.0);
        let right = right.fold(f64::NEG_INFINITY, f64::max);
        let mut tops = Vec::with_capacity(ranks.len());
        let mut y = 0.0;
        for rank in ranks {
            let h = rank.iter().map(|at| self.sizes[*at].1).fold(0.0, f64::max);
            tops.push((y, h));
            y += h + GAP_Y;
        }
        let middle = |at: usize| (x[at] - left).round();
        let place = |at: usize| {
            let (w, h) = self.sizes[at];
            let (top, room) = tops[self.rank[at]];
            Rect::new(middle(at) - w / 2.0, top + ((room - h) / 2.0).round(), w, h)
        };
        let boxes: Vec<Rect> = (0..self.n_boxes).map(place).collect();
        let route = |(i, (from, to)): (usize, &(usize, usize))| {
            let (top, room) = tops[self.rank[*from]];
            let (start, below) = (middle(*from), boxes[*from].y + boxes[*from].h);
            let mut route = vec![(start, below), (start, top + room)];
            for lane in &self.lanes[i] {
                let (top, room) = tops[self.rank[*lane]];
                route.extend([(middle(*lane), top), (middle(*lane), top + room)]);
            }
            let end = middle(*to) + self.port(i, *to, arrows, x);
            route.extend([(end, tops[self.rank[*to]].0), (end, boxes[*to].y)]);
            route
        };
        GraphLayout {
            routes: arrows.iter().enumerate().map(route).collect(),
            boxes,
            w: right - left,
            h: y - GAP_Y,
        }
    }

    /// The distance of an arrow's end from the centre of its box. Several arrows end side by side, in order.
    fn port(&self, arrow: usize, to: usize, arrows: &[(usize, usize)], x: &[f64]) -> f64 {
        let from = |i: usize| x[*self.lanes[i].last().unwrap_or(&arrows[i].0)];
        let mut all: Vec<usize> = (0..arrows.len()).filter(|i| arrows[*i].1 == to).collect();
        all.sort_by(|a, b| from(*a).total_cmp(&from(*b)));
        let nth = all.iter().position(|i| *i == arrow).unwrap_or(0);
        let step = (self.sizes[to].0 / (all.len() + 1) as f64).min(28.0);
        (nth as f64 - (all.len() - 1) as f64 / 2.0) * step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A random graph whose arrows go from lower to higher indices.
    fn random(seed: u32, n: usize) -> (Vec<Point>, Vec<(usize, usize)>) {
        let mut state = seed;
        let mut next = move |below: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize % below.max(1)
        };
        let sizes = (0..n).map(|_| (20.0 + next(200) as f64, 16.0 + next(60) as f64));
        let sizes = sizes.collect();
        let arrows = (1..n).flat_map(|to| [(next(to), to), (next(to), to)]);
        (sizes, arrows.collect())
    }

    #[test]
    fn boxes_never_meet_and_arrows_go_down_past_them() {
        for seed in 0..60 {
            let (sizes, arrows) = random(seed, 2 + seed as usize % 24);
            let flow = layout(&sizes, &arrows);
            for (i, a) in flow.boxes.iter().enumerate() {
                assert!(flow.boxes[i + 1..].iter().all(|b| !a.meets(b)), "{seed}");
                assert!(a.x >= -1.0 && a.x + a.w <= flow.w + 1.0 && a.y >= 0.0);
                assert!(a.y + a.h <= flow.h + 0.5, "{seed}");
            }
            for (route, (from, to)) in flow.routes.iter().zip(&arrows) {
                assert!(route.is_sorted_by(|a, b| a.1 <= b.1), "{seed}: {route:?}");
                let ends = [route[0].1, route[route.len() - 1].1];
                let boxes = [&flow.boxes[*from], &flow.boxes[*to]];
                assert_eq!(ends, [boxes[0].y + boxes[0].h, boxes[1].y]);
                // Pieces within ranks are straight; between ranks there are no boxes.
                for [(x, top), (_, bottom)] in route.as_chunks().0 {
                    let inside = |r: &Rect| {
                        let is_beside = *x <= r.x || r.x + r.w <= *x;
                        !is_beside && r.y < bottom - 0.5 && *top + 0.5 < r.y + r.h
                    };
                    let met = (0..flow.boxes.len()).find(|at| inside(&flow.boxes[*at]));
                    assert!(met.is_none_or(|at| at == *from || at == *to), "{seed}");
                }
            }
        }
    }

    #[test]
    fn a_chain_is_straight() {
        let sizes = [60.0, 100.0, 20.0].map(|w| (w, 20.0));
        let flow = layout(&sizes, &[(0, 1), (1, 2)]);
        let middles: Vec<f64> = flow.boxes.iter().map(|b| b.x + b.w / 2.0).collect();
        let is_straight = middles.iter().all(|m| (m - middles[0]).abs() < 1.0);
        assert!(is_straight, "{middles:?}");
    }
}
