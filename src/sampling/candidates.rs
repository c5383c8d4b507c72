//! The tokens that may still be picked in this step, with their logits.
//!
//! At first the candidates borrow the caller's logits. A stage that changes a logit copies them; a stage that removes
//! tokens leaves a list of (id, logit). The buffers are in [`Store`], one for all samplers of a thread. They have the size
//! of the vocabulary from the first step on, so that later steps do not allocate.
//!
//! Of a row whose highest logits alone are known, the others are [`Unlisted`]: they have a bound, and their weights a
//! sum within limits. A stage that these do not decide ends with [`SampleError::Undecided`].
//!
//! Invariants: ids rise, whatever stages ran, so the draw depends on the candidates alone; no logit is NaN or plus
//! infinity; a token with minus infinity is banned, and no cut keeps one.

use std::cell::RefCell;

use super::error::SampleError;
use super::row_logits::{Allowed, RowLogits, TopLogits, check_mask};
use super::select::{self, Cut};
use super::softmax::sum_exp;
use super::unlisted::{Unlisted, scaled};

thread_local! {
    /// No sampler keeps anything in it. So memory does not grow with the number of requests, and the first step of a
    /// request touches no new pages.
    static STORE: RefCell<Store> = RefCell::default();
}

#[derive(Debug, Default)]
pub(super) struct Store {
    logits: Vec<f32>,
    ids: Vec<u32>,
    scratch: Scratch,
}

/// Buffers whose contents no call keeps for the next.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) values: Vec<f32>,
    positions: Vec<u32>,
}

impl Store {
    /// Lends the buffers of this thread. `f` runs no other sampler.
    pub(super) fn lend<R>(f: impl FnOnce(&mut Self) -> R) -> R {
        STORE.with_borrow_mut(f)
    }

    fn reserve(&mut self, n_vocab: usize) {
        fn reserve<T>(buffer: &mut Vec<T>, n: usize) {
            buffer.clear();
            buffer.reserve_exact(n);
        }
        reserve(&mut self.logits, n_vocab);
        reserve(&mut self.ids, n_vocab);
        reserve(&mut self.scratch.values, n_vocab);
        reserve(&mut self.scratch.positions, n_vocab);
    }

    #[cfg(test)]
    pub(super) fn capacities(&self) -> [usize; 4] {
        [
            self.logits.capacity(),
            self.ids.capacity(),
            self.scratch.values.capacity(),
            self.scratch.positions.capacity(),
        ]
    }
}

/// The storage of the candidates' logits.
#[derive(Clone, Copy, Debug)]
enum Form<'a> {
    /// The caller's slice, one logit for each id.
    Borrowed(&'a [f32]),
    /// The store, one logit for each id.
    Dense,
    /// The store, one logit for each of the store's ids.
    Listed,
}

#[derive(Debug)]
pub(super) struct Candidates<'a> {
    form: Form<'a>,
    store: &'a mut Store,
    n_vocab: usize,
    max: Option<f32>,
    /// The tokens that are not listed and may still be picked; none if all others are removed.
    unlisted: Option<Unlisted>,
}

impl<'a> Candidates<'a> {
    /// All tokens that have a logit and are allowed.
    pub(super) fn new(
        row: RowLogits<'a>,
        allowed: Allowed<'_>,
        store: &'a mut Store,
    ) -> Result<Self, SampleError> {
        let logits = match row {
            RowLogits::All(logits) => logits,
            RowLogits::Top(top) => return Self::of_top(top, allowed, store),
        };
        let max = checked_max(logits)?;
        store.reserve(logits.len());
        let mut candidates = Self {
            form: Form::Borrowed(logits),
            store,
            n_vocab: logits.len(),
            max: Some(max),
            unlisted: None,
        };
        if let Some(mask) = allowed.mask {
            candidates.copy_masked(logits, mask)?;
        }
        for id in allowed.banned {
            candidates.change(*id, |_| f64::NEG_INFINITY);
        }
        Ok(candidates)
    }

    /// The highest logits of a row. Of those that equal the least, others may have lower ids: these are not listed.
    fn of_top(
        top: TopLogits<'_>,
        allowed: Allowed<'_>,
        store: &'a mut Store,
    ) -> Result<Self, SampleError> {
        let max = checked_max(top.logits).map_err(|_| SampleError::Undecided)?;
        let is_known = max.is_finite() && top.log_sum.is_finite();
        if !is_known || top.ids.len() != top.logits.len() {
            return Err(SampleError::Undecided);
        }
        allowed.check(top.n_vocab)?;
        let are_all = top.ids.len() >= top.n_vocab;
        let bound = match are_all {
            true => f32::NEG_INFINITY,
            false => top.logits.iter().copied().fold(max, f32::min),
        };
        store.reserve(0);
        let Store {
            logits,
            ids,
            scratch,
        } = &mut *store;
        let positions = &mut scratch.positions;
        let all = (0u32..).zip(top.logits);
        positions.extend(all.filter(|(_, l)| **l > bound).map(|(at, _)| at));
        positions.sort_unstable_by_key(|at| top.ids[*at as usize]);
        logits.extend(positions.iter().map(|at| top.logits[*at as usize]));
        let mut unlisted = (bound > f32::NEG_INFINITY).then(|| {
            let n = top.n_vocab - positions.len();
            Unlisted::new(bound, n, max, (top.log_sum, sum_exp(logits, max)))
        });
        if let Some(unlisted) = &mut unlisted
            && (allowed.mask.is_some() || !allowed.banned.is_empty())
        {
            unlisted.lose_some();
        }
        logits.clear();
        positions.retain(|at| allowed.has(top.ids[*at as usize]));
        logits.extend(positions.iter().map(|at| top.logits[*at as usize]));
        ids.extend(positions.iter().map(|at| top.ids[*at as usize]));
        Ok(Self {
            form: Form::Listed,
            store,
            n_vocab: top.n_vocab,
            max: None,
            unlisted,
        })
    }

    fn copy_masked(&mut self, logits: &[f32], mask: &[u32]) -> Result<(), SampleError> {
        check_mask(mask, logits.len())?;
        let copy = &mut self.store.logits;
        for (&word, part) in mask.iter().zip(logits.chunks(32)) {
            match word {
                0 => copy.resize(copy.len() + part.len(), f32::NEG_INFINITY),
                u32::MAX => copy.extend_from_slice(part),
                _ => copy.extend(part.iter().enumerate().map(|(bit, &logit)| {
                    let is_allowed = word >> bit & 1 == 1;
                    if is_allowed { logit } else { f32::NEG_INFINITY }
                })),
            }
        }
        self.form = Form::Dense;
        self.max = None;
        Ok(())
    }

    pub(super) fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// The logits, by rising id.
    pub(super) fn logits(&self) -> &[f32] {
        match self.form {
            Form::Borrowed(logits) => logits,
            Form::Dense | Form::Listed => &self.store.logits,
        }
    }

    pub(super) fn logits_and_scratch(&mut self) -> (&[f32], &mut Scratch) {
        let logits = match self.form {
            Form::Borrowed(logits) => logits,
            Form::Dense | Form::Listed => &self.store.logits,
        };
        (logits, &mut self.store.scratch)
    }

    pub(super) fn id(&self, position: usize) -> u32 {
        match self.form {
            Form::Borrowed(_) | Form::Dense => position as u32,
            Form::Listed => self.store.ids[position],
        }
    }

    /// The least and the greatest possible sum of e^(logit - max) of the tokens that are not listed; none if all are.
    pub(super) fn unlisted(&self, max: f32) -> Option<(f64, f64)> {
        self.unlisted.map(|unlisted| unlisted.weight(max))
    }

    /// Whether all candidates with a logit of at least `floor` are listed.
    pub(super) fn are_listed_from(&self, floor: f64) -> bool {
        self.unlisted
            .is_none_or(|unlisted| floor > f64::from(unlisted.bound))
    }

    /// Ends the step if tokens are not listed.
    pub(super) fn need_all(&self) -> Result<(), SampleError> {
        match self.unlisted {
            Some(_) => Err(SampleError::Undecided),
            None => Ok(()),
        }
    }

    /// The highest logit, which is finite; an error if every token is banned.
    pub(super) fn max(&mut self) -> Result<f32, SampleError> {
        let max = match self.max {
            Some(max) => max,
            None => checked_max(self.logits())?,
        };
        self.max = Some(max);
        if self.unlisted.is_some_and(|unlisted| max <= unlisted.bound) {
            return Err(SampleError::Undecided);
        }
        if max == f32::NEG_INFINITY {
            return Err(SampleError::NothingLeft {
                n_vocab: self.n_vocab,
            });
        }
        Ok(max)
    }

    /// Changes the logit of token `id`, if it is a candidate and not banned. A finite result beyond the range of f32 is
    /// clamped.
    pub(super) fn change(&mut self, id: u32, new: impl Fn(f64) -> f64) {
        let position = match self.form {
            Form::Borrowed(_) | Form::Dense => Some(id as usize),
            Form::Listed => self.store.ids.binary_search(&id).ok(),
        };
        if let (None, Some(unlisted)) = (position, &mut self.unlisted) {
            return unlisted.change_one(new);
        }
        let Some(logit) = position.and_then(|position| self.owned().get_mut(position)) else {
            return;
        };
        let before = *logit;
        if before > f32::NEG_INFINITY {
            // Only minus infinity bans a token. A finite number that overflows is clamped to the range of f32.
            let after = match new(f64::from(before)) {
                f64::NEG_INFINITY => f32::NEG_INFINITY,
                changed => (changed as f32).clamp(f32::MIN, f32::MAX),
            };
            *logit = after;
            self.max = match self.max {
                Some(max) if after >= max => Some(after),
                Some(max) if before < max => Some(max),
                _ => None,
            };
        }
    }

    /// Multiplies the distances of all logits from the highest, which becomes 0, by a positive factor.
    pub(super) fn scale(&mut self, factor: f64) -> Result<(), SampleError> {
        let max = self.max()?;
        for logit in self.owned() {
            *logit = scaled(*logit, max, factor);
        }
        self.max = None;
        if let Some(unlisted) = &mut self.unlisted {
            unlisted.scale(max, factor);
        }
        Ok(())
    }

    #[cfg(test)]
    fn change_all(&mut self, new: impl Fn(f32) -> f32) {
        for logit in self.owned() {
            *logit = new(*logit);
        }
        self.max = None;
    }

    pub(super) fn keep_best(&mut self, n: usize) -> Result<(), SampleError> {
        let (logits, scratch) = self.logits_and_scratch();
        if n < logits.len() {
            let cut = select::best(logits, n, &mut scratch.values);
            return self.keep(cut);
        }
        self.need_all()
    }

    /// Keeps the candidates above a cut. A cut always keeps the best token, so a known maximum stays valid, and never
    /// keeps a banned one.
    pub(super) fn keep(&mut self, cut: Cut) -> Result<(), SampleError> {
        let unlisted = self.unlisted.take();
        if unlisted.is_some_and(|unlisted| cut.logit <= unlisted.bound) {
            return Err(SampleError::Undecided);
        }
        self.keep_selected(|logits, positions| cut.survivors(logits, positions));
        Ok(())
    }

    /// Keeps the candidates above either of two cuts, which must keep the same.
    pub(super) fn keep_decided(&mut self, one: Cut, other: Cut) -> Result<(), SampleError> {
        let logits = self.logits();
        // One of them keeps what the other does.
        let n_kept = |cut: Cut| {
            let n_above = logits.iter().filter(|logit| **logit > cut.logit).count();
            let n_equal = logits.iter().filter(|logit| **logit == cut.logit).count();
            n_above + n_equal.min(cut.n_equal)
        };
        let unlisted = self.unlisted;
        let is_below = unlisted.is_some_and(|unlisted| other.logit <= unlisted.bound);
        if is_below || n_kept(one) != n_kept(other) {
            return Err(SampleError::Undecided);
        }
        self.keep(one)
    }

    /// Keeps the tokens at these positions of the logits, which rise; there is at least one.
    pub(super) fn keep_positions(&mut self, kept: impl Iterator<Item = u32>) {
        self.keep_selected(|_, positions| {
            positions.clear();
            positions.extend(kept);
        });
        self.max = None;
    }

    /// Keeps the tokens for which `wanted` is true, by position and logit; there is at least one.
    pub(super) fn keep_where(&mut self, wanted: impl Fn(u32, f32) -> bool) {
        self.keep_selected(|logits, positions| {
            positions.clear();
            let all = (0..).zip(logits.iter().copied());
            positions.extend(all.filter(|(p, l)| wanted(*p, *l)).map(|(p, _)| p));
        });
        self.max = None;
    }

    /// Keeps the tokens at the positions that `select` writes, which rise.
    fn keep_selected(&mut self, select: impl FnOnce(&[f32], &mut Vec<u32>)) {
        let Store {
            logits,
            ids,
            scratch: Scratch { positions, .. },
        } = &mut *self.store;
        match self.form {
            Form::Borrowed(borrowed) => {
                select(borrowed, positions);
                logits.extend(positions.iter().map(|&p| borrowed[p as usize]));
                std::mem::swap(ids, positions);
            }
            Form::Dense => {
                select(logits, positions);
                gather(logits, positions);
                std::mem::swap(ids, positions);
            }
            Form::Listed => {
                select(logits, positions);
                gather(logits, positions);
                gather(ids, positions);
            }
        }
        self.form = Form::Listed;
    }

    fn owned(&mut self) -> &mut [f32] {
        if let Form::Borrowed(logits) = self.form {
            self.store.logits.extend_from_slice(logits);
            self.form = Form::Dense;
        }
        &mut self.store.logits
    }
}

fn gather<T: Copy>(items: &mut Vec<T>, positions: &[u32]) {
    for (to, &from) in positions.iter().enumerate() {
        items[to] = items[from as usize];
    }
    items.truncate(positions.len());
}

/// Number of logits that are looked at together.
const LANES: usize = 16;

/// All ones if the condition holds. Lanes of conditions are as wide as the logits, so that they stay in registers.
fn lane(holds: bool) -> u32 {
    if holds { u32::MAX } else { 0 }
}

/// The highest logit; minus infinity if there are none. NaN and plus infinity are errors.
pub(super) fn checked_max(logits: &[f32]) -> Result<f32, SampleError> {
    let (blocks, rest) = logits.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut is_bad = [0; LANES];
    for block in blocks {
        for i in 0..LANES {
            lanes[i] = if block[i] > lanes[i] {
                block[i]
            } else {
                lanes[i]
            };
            is_bad[i] |= lane(is_bad_logit(block[i]));
        }
    }

    let is_any_bad = is_bad != [0; LANES] || rest.iter().any(|&l| is_bad_logit(l));
    if is_any_bad && let Some(index) = logits.iter().position(|&l| is_bad_logit(l)) {
        return Err(if logits[index].is_nan() {
            SampleError::NotANumber { index }
        } else {
            SampleError::Infinite { index }
        });
    }
    Ok(lanes.iter().chain(rest).copied().fold(lanes[0], f32::max))
}

pub(super) fn position_of(logits: &[f32], value: f32) -> Option<usize> {
    let (blocks, _) = logits.as_chunks::<LANES>();
    // A block without an early exit is compared as a whole.
    let has = |block: &[f32; LANES]| block.iter().fold(0, |all, &l| all | lane(l == value)) != 0;
    let from = blocks.iter().position(has).unwrap_or(blocks.len()) * LANES;
    let within = logits[from..].iter().position(|&l| l == value);
    within.map(|position| from + position)
}

fn is_bad_logit(logit: f32) -> bool {
    let is_good = logit < f32::INFINITY;
    !is_good
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference_chain;

    const BANNED: f32 = f32::NEG_INFINITY;

    #[test]
    fn logits_that_are_no_numbers_are_errors_wherever_they_are() {
        for n in [1, 16, 17, 40] {
            for index in 0..n {
                let mut logits = vec![0.5; n];
                logits[index] = f32::NAN;
                assert_eq!(checked_max(&logits), Err(SampleError::NotANumber { index }));
                logits[index] = f32::INFINITY;
                assert_eq!(checked_max(&logits), Err(SampleError::Infinite { index }));
                logits[index] = 7.0;
                assert_eq!(checked_max(&logits), Ok(7.0));
                logits[index] = BANNED;
                let rest = if n == 1 { BANNED } else { 0.5 };
                assert_eq!(checked_max(&logits), Ok(rest));
            }
        }
        assert_eq!(checked_max(&[]), Ok(BANNED));
    }

    #[test]
    fn a_change_reaches_every_form_and_no_banned_token() {
        let mut store = Store::default();
        let logits = [1.0, BANNED, 3.0, 2.0];
        let mut candidates =
            Candidates::new(RowLogits::All(&logits), Allowed::default(), &mut store)
                .expect("good logits");
        candidates.change(0, |l| l + 4.5);
        candidates.change(1, |l| l + 4.5);
        candidates.change(9, |l| l + 4.5);
        assert_eq!(candidates.logits(), [5.5, BANNED, 3.0, 2.0]);
        assert_eq!(candidates.max(), Ok(5.5));

        candidates.keep_best(2).expect("it is listed");
        candidates.change(3, |l| l + 1e9);
        candidates.change(2, |l| l * 1e300);
        assert_eq!(candidates.logits(), [5.5, f32::MAX]);
        assert_eq!((candidates.id(0), candidates.id(1)), (0, 2));
        assert_eq!(candidates.max(), Ok(f32::MAX));
    }

    proptest! {
        #[test]
        fn cuts_give_the_same_in_every_form(
            logits in reference_chain::logits(1..200),
            n in 1..50usize,
            m in 1..50usize,
        ) {
            let mut stores = [Store::default(), Store::default(), Store::default()];
            let [borrowed, dense, listed] = &mut stores;
            let mut forms = [
                Candidates::new(RowLogits::All(&logits), Allowed::default(), borrowed).expect("good logits"),
                Candidates::new(RowLogits::All(&logits), Allowed::default(), dense).expect("good logits"),
                Candidates::new(RowLogits::All(&logits), Allowed::default(), listed).expect("good logits"),
            ];
            forms[1].change_all(|l| l);
            forms[2].keep_best(n.max(m)).expect("it is listed");
            let [first, ..] = forms.each_mut().map(|candidates| {
                candidates.keep_best(n.min(m)).expect("it is listed");
                let len = candidates.logits().len();
                let ids: Vec<u32> = (0..len).map(|i| candidates.id(i)).collect();
                (ids, candidates.logits().to_vec())
            });
            let mut best = reference_chain::falling(&logits);
            if n.min(m) < logits.len() {
                best.truncate(n.min(m));
            } else {
                best = (0..logits.len() as u32).collect();
            }
            best.sort_unstable();
            prop_assert_eq!(&first.0, &best);
            for candidates in &forms {
                prop_assert_eq!(candidates.logits(), first.1.as_slice());
                for (i, &id) in first.0.iter().enumerate() {
                    prop_assert_eq!(candidates.id(i), id);
                }
            }
        }
    }
}
