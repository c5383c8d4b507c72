//! Keys and values between passes: cells, who they belong to, and what a query sees of them.
//!
//! Layers that see the same have a pool of cells, which all sequences share; a cell holds one
//! position of one sequence in each of those layers. Where only a window is seen, a cell is given
//! back when its position has left the window for good, so that such a pool does not grow with the
//! context. Rows are written by index, so that one built graph serves any cells. The book-keeping
//! (`Pools`) is pure; the storage is one tensor of keys and one of values for each layer.

use std::collections::HashMap;

use crate::blocks::cache::Cache as Visibility;
use crate::blocks::{KeyValueStore, Seen};
use crate::ggml::{Arena, Device, Error, Graph, Tensor};
use crate::plan::{KeyValuePlan, Plan};
use crate::weights::TensorType;

/// A sequence of tokens that see each other.
pub type SequenceId = u32;

/// Cells are looked at in multiples of this, so that a graph serves many steps.
const VIEW_STEP: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    sequence: SequenceId,
    position: u32,
}

/// Who holds which cell.
#[derive(Clone, Debug)]
struct Cells {
    cells: Vec<Option<Cell>>,
    used: usize,
    /// Cells below this may be taken; from here on none is.
    end: usize,
}

impl Cells {
    fn new(n_cells: usize) -> Self {
        Self {
            cells: vec![None; n_cells],
            used: 0,
            end: 0,
        }
    }

    fn free(&self) -> usize {
        self.cells.len() - self.used
    }

    /// Takes a cell for each token, or none if they do not all fit.
    fn take(&mut self, tokens: &[(SequenceId, u32)]) -> Option<Vec<usize>> {
        if tokens.len() > self.free() {
            return None;
        }
        let mut out = Vec::with_capacity(tokens.len());
        let mut at = 0;
        for &(sequence, position) in tokens {
            while self.cells[at].is_some() {
                at += 1;
            }
            self.cells[at] = Some(Cell { sequence, position });
            out.push(at);
            at += 1;
            self.end = self.end.max(at);
        }
        self.used += tokens.len();
        Some(out)
    }

    /// Gives back the cells of a sequence whose positions are `unwanted`.
    fn release(&mut self, sequence: SequenceId, unwanted: impl Fn(u32) -> bool) {
        for cell in &mut self.cells[..self.end] {
            if cell.is_some_and(|c| c.sequence == sequence && unwanted(c.position)) {
                *cell = None;
                self.used -= 1;
            }
        }
        while self.end > 0 && self.cells[self.end - 1].is_none() {
            self.end -= 1;
        }
    }

    /// Number of leading cells a pass looks at.
    fn view(&self) -> usize {
        self.end.next_multiple_of(VIEW_STEP).min(self.cells.len())
    }

    /// Calls `visible` for each cell among the first `n_kv` that a query sees.
    fn for_each_visible(
        &self,
        n_kv: usize,
        query: (SequenceId, u32),
        rule: &Visibility,
        mut visible: impl FnMut(usize, u32),
    ) {
        for (i, cell) in self.cells[..n_kv.min(self.end)].iter().enumerate() {
            if let Some(c) = cell
                && c.sequence == query.0
                && rule.is_visible(query.1, c.position)
            {
                visible(i, c.position);
            }
        }
    }
}

/// The cells of layers that see the same.
#[derive(Clone, Debug)]
struct Pool {
    cells: Cells,
    rule: Visibility,
    /// For each sequence the position before which nothing is left.
    left: HashMap<SequenceId, u32>,
}

impl Pool {
    /// Whether all that a query sees of its sequence can still be there.
    fn reaches(&self, sequence: SequenceId, position: u32) -> bool {
        let left = self.left.get(&sequence).copied().unwrap_or(0);
        self.rule.first_visible(position) >= left
    }

    /// Gives back what no query of a sequence from `position` on can see.
    fn leave(&mut self, sequence: SequenceId, position: u32) {
        let first = self.rule.first_visible(position);
        if first > self.left.get(&sequence).copied().unwrap_or(0) {
            self.left.insert(sequence, first);
            self.cells.release(sequence, |position| position < first);
        }
    }
}

/// The cells of all layers, a pool for each group of the plan.
#[derive(Clone, Debug)]
pub(super) struct Pools {
    pools: Vec<Pool>,
}

impl Pools {
    /// Pools of so many cells.
    pub(super) fn new(pools: impl Iterator<Item = (usize, Visibility)>) -> Self {
        let pools = pools.map(|(n_cells, rule)| Pool {
            cells: Cells::new(n_cells),
            rule,
            left: HashMap::new(),
        });
        Self {
            pools: pools.collect(),
        }
    }

    /// Positions that are free in every pool.
    pub(super) fn free(&self) -> Option<usize> {
        self.pools.iter().map(|pool| pool.cells.free()).min()
    }

    /// The lowest position of each sequence among `places`.
    fn lowest(places: &[(SequenceId, u32)]) -> HashMap<SequenceId, u32> {
        let mut lowest = HashMap::new();
        for &(sequence, position) in places {
            let at = lowest.entry(sequence).or_insert(position);
            *at = position.min(*at);
        }
        lowest
    }

    /// A place whose window has been left, so that it cannot be computed any more.
    pub(super) fn unreachable(&self, places: &[(SequenceId, u32)]) -> Option<(SequenceId, u32)> {
        let reachable = |(sequence, position): &(SequenceId, u32)| {
            self.pools
                .iter()
                .all(|pool| pool.reaches(*sequence, *position))
        };
        places.iter().copied().find(|place| !reachable(place))
    }

    /// Takes a cell for each token in every pool, or none if they do not all fit. What the tokens
    /// and all later ones cannot see any more is given back first.
    pub(super) fn take(&mut self, places: &[(SequenceId, u32)]) -> Option<Vec<Vec<usize>>> {
        for (sequence, position) in Self::lowest(places) {
            for pool in &mut self.pools {
                pool.leave(sequence, position);
            }
        }
        if self.free().is_some_and(|free| free < places.len()) {
            return None;
        }
        self.pools
            .iter_mut()
            .map(|pool| pool.cells.take(places))
            .collect()
    }

    /// Gives back the cells of a sequence from a position on, or all of them if what it sees there
    /// is gone. Returns the position at which it goes on.
    pub(super) fn release(&mut self, sequence: SequenceId, from: u32) -> u32 {
        let is_whole = self.pools.iter().all(|pool| pool.reaches(sequence, from));
        let from = if is_whole { from } else { 0 };
        for pool in &mut self.pools {
            pool.cells.release(sequence, |position| position >= from);
            if from == 0 {
                pool.left.remove(&sequence);
            }
        }
        from
    }

    /// Gives back single places.
    pub(super) fn give_back(&mut self, places: &[(SequenceId, u32)]) {
        for &(sequence, position) in places {
            for pool in &mut self.pools {
                pool.cells.release(sequence, |p| p == position);
            }
        }
    }

    /// Number of leading cells of each pool that a pass looks at.
    pub(super) fn views(&self) -> Vec<usize> {
        self.pools.iter().map(|pool| pool.cells.view()).collect()
    }

    /// The mask of the queries over the first `n_kv` cells of a pool.
    pub(super) fn mask(&self, pool: usize, n_kv: usize, queries: &[(SequenceId, u32)]) -> Mask {
        let pool = &self.pools[pool];
        Mask::of_cells(&pool.cells, n_kv, queries, &pool.rule)
    }
}

/// Rows that may be seen, as a mask `[n_kv, n_tokens]`: 0 or a bias where visible, -inf where not.
pub(super) struct Mask {
    values: Vec<f32>,
}

impl Mask {
    /// Of the cells of a pool.
    fn of_cells(
        cells: &Cells,
        n_kv: usize,
        queries: &[(SequenceId, u32)],
        rule: &Visibility,
    ) -> Self {
        let mut values = vec![f32::NEG_INFINITY; n_kv * queries.len()];
        for (row, query) in values.chunks_exact_mut(n_kv).zip(queries) {
            cells.for_each_visible(n_kv, *query, rule, |i, position| {
                row[i] = rule.mask(query.1, position);
            });
        }
        Self { values }
    }

    /// Of the tokens of the pass itself.
    pub(super) fn of_tokens(queries: &[(SequenceId, u32)], rule: &Visibility) -> Self {
        let value = |q: &(SequenceId, u32), k: &(SequenceId, u32)| {
            if q.0 == k.0 && rule.is_visible(q.1, k.1) {
                rule.mask(q.1, k.1)
            } else {
                f32::NEG_INFINITY
            }
        };
        let values = queries
            .iter()
            .flat_map(|q| queries.iter().map(move |k| value(q, k)));
        Self {
            values: values.collect(),
        }
    }

    /// The values as f32.
    pub(super) fn as_f32(&self) -> &[f32] {
        &self.values
    }

    /// The values as f16: 0, -inf and distances up to 2048 are exact.
    pub(super) fn to_f16(&self) -> Vec<half::f16> {
        self.values
            .iter()
            .map(|v| half::f16::from_f32(*v))
            .collect()
    }
}

/// Storage of keys and values for the cells of all pools.
pub(super) struct KeyValues {
    /// Keys and values of each unit by its path: `[row, n_cells]`.
    rows: HashMap<String, (Tensor, Option<Tensor>)>,
    bytes: usize,
}

impl KeyValues {
    pub(super) fn new(
        plan: &Plan,
        n_cells: &[usize],
        k: TensorType,
        v: TensorType,
    ) -> Result<Self, Error> {
        let states: Vec<_> = plan
            .key_values()
            .filter(|(_, rows)| n_cells[rows.cache] > 0)
            .collect();
        let arena = Arena::new(2 * states.len(), 0)?;
        let mut rows = HashMap::with_capacity(states.len());
        for (unit, state) in states {
            let n_cells = n_cells[state.cache] as u64;
            let keys = arena.tensor(&format!("{}.cache_k", unit.path), k, &[state.k, n_cells])?;
            let values = if state.v_in_k {
                None
            } else {
                let name = format!("{}.cache_v", unit.path);
                Some(arena.tensor(&name, v, &[state.v, n_cells])?)
            };
            rows.insert(unit.path.clone(), (keys, values));
        }
        let bytes = if rows.is_empty() {
            0
        } else {
            Device::cpu()?.allocate(&arena, "the key/value cache")?
        };
        Ok(Self { rows, bytes })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The store of a pass over cached keys and values.
pub(super) struct CachedStore<'a> {
    pub(super) cache: &'a KeyValues,
    /// Cells of each pool that the pass looks at.
    pub(super) n_kv: Vec<usize>,
    /// Cell of each token in each pool, i64 `[n_tokens]`.
    pub(super) cells: Vec<Tensor>,
    /// Masks by cache group.
    pub(super) masks: Vec<Tensor>,
    /// What the units of this pass may see, by their paths.
    pub(super) seen: HashMap<String, (Tensor, Option<Tensor>)>,
}

/// What a unit stored in this pass.
fn stored(
    seen: &HashMap<String, (Tensor, Option<Tensor>)>,
    masks: &[Tensor],
    path: &str,
    state: &KeyValuePlan,
) -> Result<Seen, Error> {
    let Some((k, v)) = seen.get(path) else {
        return Err(Error::Arguments {
            op: "stored",
            message: format!("{path} stored nothing in this pass"),
        });
    };
    Ok(Seen {
        k: k.clone(),
        v: v.clone(),
        mask: masks[state.cache].clone(),
    })
}

impl KeyValueStore for CachedStore<'_> {
    fn append(
        &mut self,
        g: &Graph,
        path: &str,
        state: &KeyValuePlan,
        k: &Tensor,
        v: Option<&Tensor>,
    ) -> Result<Seen, Error> {
        let Some((keys, values)) = self.cache.rows.get(path) else {
            return Err(Error::Arguments {
                op: "append",
                message: format!("{path} has no cache"),
            });
        };
        let (n_kv, cells) = (self.n_kv[state.cache], &self.cells[state.cache]);
        let head = |rows: &Tensor| {
            let width = rows.shape()[0];
            let row = rows.ty().row_bytes(width).unwrap_or(0) as usize;
            let all = row * n_kv;
            g.view(rows, [width, n_kv as u64, 1, 1], [row, all, all], 0)
        };
        // Reading what `set_rows` returns orders the reading after the writing.
        let k = head(&g.set_rows(keys, k, cells)?)?;
        let v = match (values, v) {
            (Some(values), Some(v)) => Some(head(&g.set_rows(values, v, cells)?)?),
            _ => None,
        };
        self.seen.insert(path.to_owned(), (k, v));
        self.stored(path, state)
    }

    fn stored(&self, path: &str, state: &KeyValuePlan) -> Result<Seen, Error> {
        stored(&self.seen, &self.masks, path, state)
    }
}

/// The store of a pass that keeps nothing: its own tokens are all there is to see.
pub(super) struct PassStore {
    /// Masks by cache group.
    pub(super) masks: Vec<Tensor>,
    /// What the units of this pass may see, by their paths.
    pub(super) seen: HashMap<String, (Tensor, Option<Tensor>)>,
}

impl KeyValueStore for PassStore {
    fn append(
        &mut self,
        _: &Graph,
        path: &str,
        state: &KeyValuePlan,
        k: &Tensor,
        v: Option<&Tensor>,
    ) -> Result<Seen, Error> {
        self.seen.insert(path.to_owned(), (k.clone(), v.cloned()));
        self.stored(path, state)
    }

    fn stored(&self, path: &str, state: &KeyValuePlan) -> Result<Seen, Error> {
        stored(&self.seen, &self.masks, path, state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::cache::Window;

    fn rule(causal: bool, window: Window, size: u64) -> Visibility {
        Visibility {
            causal,
            size,
            window,
            alibi: 0.0,
        }
    }

    fn visible(mask: &Mask, n_kv: usize) -> Vec<String> {
        let row = |row: &[f32]| {
            row.iter()
                .map(|v| if *v == 0.0 { '#' } else { '.' })
                .collect()
        };
        mask.as_f32().chunks(n_kv).map(row).collect()
    }

    #[test]
    fn a_query_sees_its_own_sequence_up_to_its_position() {
        let mut cells = Cells::new(6);
        let tokens = [(0, 0), (1, 0), (0, 1), (1, 1)];
        assert_eq!(cells.take(&tokens), Some(vec![0, 1, 2, 3]));
        assert_eq!(
            visible(
                &Mask::of_cells(&cells, 6, &tokens, &rule(true, Window::Standard, 0)),
                6
            ),
            ["#.....", ".#....", "#.#...", ".#.#.."]
        );
        assert_eq!(
            visible(
                &Mask::of_cells(&cells, 6, &tokens[..1], &rule(false, Window::Standard, 0)),
                6
            ),
            ["#.#..."]
        );
        assert_eq!(
            visible(
                &Mask::of_tokens(&tokens, &rule(true, Window::Standard, 0)),
                4
            ),
            ["#...", ".#..", "#.#.", ".#.#"]
        );
    }

    #[test]
    fn released_cells_are_taken_again_and_the_view_shrinks() {
        let mut cells = Cells::new(4);
        assert_eq!(cells.take(&[(0, 0), (1, 0), (0, 1)]), Some(vec![0, 1, 2]));
        assert_eq!(cells.take(&[(2, 0), (2, 1)]), None);
        cells.release(0, |_| true);
        assert_eq!((cells.free(), cells.end), (3, 2));
        assert_eq!(cells.take(&[(2, 0), (2, 1)]), Some(vec![0, 2]));
        cells.release(2, |position| position >= 1);
        assert_eq!((cells.free(), cells.end), (2, 2));
    }

    #[test]
    fn a_window_moves_on_and_a_sequence_cannot_go_back_behind_it() {
        let rules = [
            rule(true, Window::Standard, 0),
            rule(true, Window::Standard, 3),
        ];
        let mut pools = Pools::new([16, 5].into_iter().zip(rules));
        for position in 0..12 {
            assert!(pools.take(&[(7, position)]).is_some(), "{position}");
        }
        // The window of 11 begins at 9; that of 10 began at 8, which is gone.
        assert_eq!(pools.unreachable(&[(7, 11)]), None);
        assert_eq!(pools.unreachable(&[(7, 10)]), Some((7, 10)));
        assert_eq!(pools.release(7, 11), 11);
        assert_eq!(pools.free(), Some(3));
        assert_eq!(pools.release(7, 4), 0);
        assert_eq!(pools.free(), Some(5));
        assert_eq!(pools.unreachable(&[(7, 0)]), None);
    }

    #[test]
    fn a_pass_that_fits_into_no_pool_takes_nothing() {
        let rules = [
            rule(true, Window::Standard, 0),
            rule(true, Window::Standard, 3),
        ];
        let mut pools = Pools::new([16, 5].into_iter().zip(rules));
        let many: Vec<_> = (0..6).map(|position| (0, position)).collect();
        assert_eq!(pools.take(&many), None);
        assert_eq!(pools.free(), Some(5));
        assert_eq!(pools.views(), [0, 0]);
    }

    #[test]
    fn windows_end_at_starts_at_or_surround_the_query() {
        let tokens: Vec<_> = (0..6).map(|position| (0, position)).collect();
        let rows = |rule: &Visibility| visible(&Mask::of_tokens(&tokens, rule), 6);
        assert_eq!(
            rows(&rule(true, Window::Standard, 2))[2..5],
            [".##...", "..##..", "...##."]
        );
        assert_eq!(
            rows(&rule(true, Window::Chunked, 3))[2..5],
            ["###...", "...#..", "...##."]
        );
        assert_eq!(
            rows(&rule(false, Window::Symmetric, 2))[2..5],
            [".###..", "..###.", "...###"]
        );
    }

    #[test]
    fn a_linear_bias_is_minus_the_distance() {
        let tokens: Vec<_> = (0..3).map(|position| (0, position)).collect();
        let rule = Visibility {
            alibi: 8.0,
            ..rule(true, Window::Standard, 0)
        };
        let mask = Mask::of_tokens(&tokens, &rule);
        assert_eq!(mask.as_f32()[6..], [-2.0, -1.0, 0.0]);
    }
}
