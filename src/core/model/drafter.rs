//! A drafter: a model that proposes the next tokens of another one, its target.
//!
//! It reads the tokens of the target's sequences, and where its definition says so a row of values of the target for each of them. Its
//! sequences have the ids of the target's. A draft begins with the tokens and rows that are new since the last one; then the drafter goes
//! on alone, token by token, and what it stored meanwhile is forgotten: its cache holds only what the target has read.
//!
//! Not here: how many tokens are worth drafting, and what becomes of them.

use std::collections::HashMap;

use crate::models::drafters::OpenedDrafter;
use crate::plan::{DraftBlock, Plan};
use lab_base::weights::Weights;

use super::batch::Batch;
use super::cache::{NOBODY, SequenceId};
use super::draft::{Draft, DraftModel, DraftRequest};
use super::draft_rows::DraftRows;
use super::error::{Error, Result};
use super::estimate::Estimator;
use super::graph_shape::TargetRows;
use super::lifecycle::Model;
use super::memory_use::MemoryUse;
use super::options::Options;
use super::stage;

/// Maximum number of tokens of a draft.
const MOST: usize = 16;

/// Number of the last rows of a sequence that are kept at least until it is drafted for; twice as many leave down to it. The drafter never
/// reads what lies before them.
const KEPT_ROWS: usize = 256;

/// A drafter and what it knows of the sequences of its target.
struct Drafter {
    model: Model,
    /// Elements of a row of the target; 0 if it reads tokens alone.
    width: usize,
    /// The blocks that it drafts; none if it goes on token by token.
    block: Option<DraftBlock>,
    /// The token of the target for each of the drafter's; none if they have the same vocabulary.
    tokens: Option<Vec<u32>>,
    sequences: HashMap<SequenceId, DraftedSequence>,
    /// The logits of the last blocks with what the tokens before added.
    chained: Vec<f32>,
}

/// What a drafter knows of a sequence.
#[derive(Debug, Default)]
struct DraftedSequence {
    /// The position of the target at which the drafter's sequence starts.
    offset: u32,
    /// The position of the first row that the drafter has not read.
    first: u32,
    /// The rows from there on, one after the other.
    rows: Vec<f32>,
}

impl DraftedSequence {
    /// Number of rows that are not read.
    fn n_rows(&self, width: usize) -> usize {
        self.rows.len() / width.max(1)
    }

    /// Adds the row of a position. Rows of later positions are not valid any more.
    fn keep(&mut self, position: u32, row: &[f32]) {
        let n = self.n_rows(row.len());
        match position.checked_sub(self.first) {
            // It was read before, and is read again.
            None => return,
            Some(at) if at as usize <= n => self.rows.truncate(at as usize * row.len()),
            Some(_) => {
                self.rows.clear();
                self.first = position;
            }
        }
        self.rows.extend_from_slice(row);
        // Half of them leave at a time, so that few rows are moved.
        if self.n_rows(row.len()) >= 2 * KEPT_ROWS {
            self.rows.drain(..KEPT_ROWS * row.len());
            self.first += KEPT_ROWS as u32;
        }
    }

    /// Drops the rows from a position on.
    fn forget(&mut self, from: u32, width: usize) {
        let n = from.saturating_sub(self.first) as usize;
        self.rows.truncate(n * width);
        if from < self.first {
            self.first = from;
        }
    }
}

/// A draft that is being made.
struct OpenDraft {
    /// Its number among the requests.
    at: usize,
    sequence: SequenceId,
    most: usize,
    /// The last token of the sequence.
    last: u32,
    /// The position after what the drafter has read of the target.
    end: u32,
    /// The row that stands for that of the target at the next token.
    next: Vec<f32>,
    draft: Draft,
}

impl Drafter {
    /// Loads a drafter for a target with these options, after it is placed.
    ///
    /// # Errors
    /// The errors of [`Model::load`], or a drafter with another vocabulary.
    fn load(opened: OpenedDrafter, target: &Model) -> Result<Self> {
        let options = target.options.of_drafter(&opened.plan);
        let OpenedDrafter {
            plan,
            weights,
            tokens,
            ..
        } = opened;
        let model = Model::load(plan, &weights, options, &mut |_, _| {})?;
        Self::new(model, tokens, target.plan.n_vocab)
    }

    /// A drafter of a loaded model. `tokens` has the target's token for each of its own; none if both have the same vocabulary.
    ///
    /// # Errors
    /// Some of `tokens` are not in the target's vocabulary of `n_vocab` tokens, or the drafter has another one.
    fn new(model: Model, tokens: Option<Vec<u32>>, n_vocab: u64) -> Result<Self> {
        let own = model.row_width() as u64;
        let fault = |found: String, expected: String| Err(Error::Drafter { found, expected });
        match &tokens {
            None if own > n_vocab => {
                return fault(
                    format!("a vocabulary of {own} tokens"),
                    format!("that of the target, which has {n_vocab}"),
                );
            }
            Some(of) if of.len() as u64 != own => {
                let n = of.len();
                return fault(
                    format!("the target's tokens of {n} tokens"),
                    format!("those of {own}"),
                );
            }
            Some(of) => {
                if let Some(token) = of.iter().find(|token| u64::from(**token) >= n_vocab) {
                    return fault(format!("the token {token}"), format!("ids below {n_vocab}"));
                }
            }
            None => {}
        }
        let target = model.plan().target.as_ref();
        Ok(Self {
            width: target.map_or(0, |target| target.row_width() as usize),
            block: target.and_then(|target| target.block),
            tokens,
            model,
            sequences: HashMap::new(),
            chained: Vec::new(),
        })
    }

    fn draft_for(&mut self, wanted: &[DraftRequest<'_>]) -> Result<Vec<Draft>> {
        let mut open = self.read_new(wanted)?;
        let mut done = vec![Draft::default(); wanted.len()];
        let ends: Vec<(SequenceId, u32)> = open.iter().map(|of| (of.sequence, of.end)).collect();
        let most = open.iter().map(|of| of.most).max().unwrap_or(0);
        let n_passes = if self.block.is_some() { 1 } else { most };
        for n in 1..n_passes {
            let (finished, left): (Vec<_>, Vec<_>) = open
                .into_iter()
                .partition(|of| of.most <= n || of.draft.tokens.len() < n);
            finished.into_iter().for_each(|of| done[of.at] = of.draft);
            open = left;
            if open.is_empty() {
                break;
            }
            self.go_on(&mut open, n)?;
        }
        open.into_iter().for_each(|of| done[of.at] = of.draft);
        for (sequence, end) in ends {
            if self.model.next(sequence) > end {
                self.model.forget(sequence, end);
            }
        }
        let all = done.iter_mut().flat_map(|draft| &mut draft.tokens);
        all.for_each(|token| *token = self.token_of_target(*token));
        Ok(done)
    }

    /// The target's token for one of its own.
    fn token_of_target(&self, token: u32) -> u32 {
        let tokens = self.tokens.as_ref();
        tokens.map_or(token, |tokens| tokens[token as usize])
    }

    /// Reads what is new of the sequences, and chooses the first token of each draft.
    fn read_new(&mut self, wanted: &[DraftRequest<'_>]) -> Result<Vec<OpenDraft>> {
        let n_batch = self.model.options().n_batch;
        let mut open = Vec::with_capacity(wanted.len());
        let mut batch = Batch::default();
        let mut rows = DraftRows::of_kind(self.kind_of_values());
        // The drafts whose first rows the pass gives.
        let mut waiting: Vec<OpenDraft> = Vec::new();
        for (at, request) in wanted.iter().enumerate() {
            let Some((first, end)) = self.new_places(request) else {
                continue;
            };
            let mut left = first..end;
            while !left.is_empty() {
                let room = n_batch - batch.len();
                let part = left.start..left.end.min(left.start + room as u32);
                left.start = part.end;
                self.push_new(request, (part.start, part.end), &mut batch, &mut rows);
                match left.is_empty() {
                    true => waiting.push(self.open_draft(at, request, end)),
                    false => self.first_tokens(&mut batch, &mut rows, &mut waiting, &mut open)?,
                }
            }
            if let Some(last) = batch.outputs.last_mut().filter(|_| self.block.is_none()) {
                *last = true;
            }
            if batch.len() == n_batch {
                self.first_tokens(&mut batch, &mut rows, &mut waiting, &mut open)?;
            }
        }
        self.first_tokens(&mut batch, &mut rows, &mut waiting, &mut open)?;
        for request in wanted {
            self.drop_read(request.sequence);
        }
        Ok(open)
    }

    /// Adds the tokens of the target's positions from the first to the end to a pass, with their rows.
    fn push_new(
        &self,
        request: &DraftRequest<'_>,
        (first, end): (u32, u32),
        batch: &mut Batch,
        rows: &mut DraftRows,
    ) {
        let sequence = request.sequence;
        let known = self.sequences.get(&sequence).filter(|_| self.width > 0);
        for position in first..end {
            let own = self.own_position(sequence, position);
            batch.push(self.token_at(request, position), sequence, own, false);
            if let Some(known) = known {
                let at = (position - known.first) as usize * self.width;
                rows.insert((sequence, own), &known.rows[at..at + self.width]);
            }
        }
    }

    /// A draft without a token, of a sequence that is read up to a position of the target.
    fn open_draft(&self, at: usize, request: &DraftRequest<'_>, end: u32) -> OpenDraft {
        OpenDraft {
            at,
            sequence: request.sequence,
            most: request.most.min(self.most()),
            last: request.tokens.last().copied().unwrap_or_default(),
            end: self.own_position(request.sequence, end),
            next: Vec::new(),
            draft: Draft::default(),
        }
    }

    /// Drops the rows of a sequence that are read.
    fn drop_read(&mut self, sequence: SequenceId) {
        let next = self.model.next(sequence);
        if let Some(known) = self.sequences.get_mut(&sequence) {
            let n = (known.offset + next).saturating_sub(known.first) as usize;
            let n = n.min(known.n_rows(self.width));
            known.rows.drain(..n * self.width);
            known.first += n as u32;
        }
    }

    /// The positions of the target that the drafter has to read; none if nothing can be drafted.
    fn new_places(&mut self, request: &DraftRequest<'_>) -> Option<(u32, u32)> {
        let (sequence, n) = (request.sequence, request.tokens.len() as u32);
        if request.most == 0 || n == 0 {
            return None;
        }
        // A token of a medium stands for a row that the drafter does not have.
        let n_vocab = self.model.plan().n_vocab;
        let is_medium = |token: &u32| u64::from(*token) >= n_vocab;
        if self.width == 0 && request.tokens.iter().any(is_medium) {
            return None;
        }
        if self.width == 0 {
            if self.model.next(sequence) == 0 {
                self.model.resume(sequence, request.tokens);
            }
            let next = self.model.next(sequence).min(n - 1);
            if self.model.next(sequence) > next {
                self.model.forget(sequence, next);
            }
            return Some((self.model.next(sequence), n));
        }
        // The row at a position goes with the token after it, of which the last one has no row yet.
        let known = self.sequences.get_mut(&sequence)?;
        let end = known.first + known.n_rows(self.width) as u32;
        if known.first + 1 >= n || end + 1 < n {
            return None;
        }
        let end = n - 1;
        let read = &request.tokens[known.first as usize..];
        if let Some(at) = read.iter().rposition(is_medium) {
            let after = (at + 1).min(known.n_rows(self.width));
            known.rows.drain(..after * self.width);
            known.first += after as u32;
        }
        if known.first >= end {
            return None;
        }
        if self.model.next(sequence) + known.offset != known.first {
            self.model.discard(sequence);
            known.offset = known.first;
        }
        Some((known.first, end))
    }

    /// The token that the drafter reads at a position of the target.
    fn token_at(&self, request: &DraftRequest<'_>, position: u32) -> u32 {
        let after = u32::from(self.width > 0 && self.block.is_none());
        request.tokens[(position + after) as usize]
    }

    fn own_position(&self, sequence: SequenceId, position: u32) -> u32 {
        let known = self.sequences.get(&sequence);
        position - known.map_or(0, |known| known.offset)
    }

    fn kind_of_values(&self) -> TargetRows {
        match self.width {
            0 => TargetRows::None,
            _ => TargetRows::Values,
        }
    }

    /// Runs the pass so far. The drafts that wait for it get their first tokens.
    fn first_tokens(
        &mut self,
        batch: &mut Batch,
        rows: &mut DraftRows,
        waiting: &mut Vec<OpenDraft>,
        open: &mut Vec<OpenDraft>,
    ) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let kind = self.kind_of_values();
        self.run(batch, std::mem::replace(rows, DraftRows::of_kind(kind)))?;
        match self.block {
            None => self.take(waiting),
            Some(block) => self.read_blocks(waiting, block)?,
        }
        open.append(waiting);
        batch.clear();
        Ok(())
    }

    /// Drafts a block for each sequence, all tokens of it at once.
    fn read_blocks(&mut self, drafts: &mut [OpenDraft], block: DraftBlock) -> Result<()> {
        let options = self.model.options();
        let at_once = options.n_batch.min(self.model.max_outputs()) / block.len as usize;
        let width = self.model.row_width();
        for drafts in drafts.chunks_mut(at_once.max(1)) {
            let mut batch = Batch::default();
            for draft in drafts.iter() {
                // The first row may draft too.
                let n_masks = draft.most as u32 - u32::from(block.from_first);
                batch.push(draft.last, draft.sequence, draft.end, block.from_first);
                for at in 1..=n_masks {
                    batch.push(block.mask, draft.sequence, draft.end + at, true);
                }
            }
            self.run(&mut batch, DraftRows::of_kind(TargetRows::Kept))?;
            if self.model.plan().chains_tokens() {
                self.chain(drafts)?;
                continue;
            }
            let mut rows = self.model.results().0.chunks_exact(width);
            for draft in drafts {
                let own = rows.by_ref().take(draft.most).map(likeliest);
                let own = own.collect::<Vec<_>>().into_iter().map_while(|token| token);
                (draft.draft.tokens, draft.draft.probabilities) = own.unzip();
            }
        }
        Ok(())
    }

    /// Chooses the tokens of blocks one after the other: each adds something to the logits of the one after it.
    fn chain(&mut self, drafts: &mut [OpenDraft]) -> Result<()> {
        let width = self.model.row_width();
        let (logits, hidden) = self.model.results();
        let (mut logits, hidden) = (logits.to_vec(), hidden.to_vec());
        let n_embd = self.model.plan().n_embd as usize;
        let mut n_rows = 0;
        let firsts: Vec<usize> = drafts
            .iter()
            .map(|draft| {
                n_rows += draft.most;
                n_rows - draft.most
            })
            .collect();
        let mut before: Vec<u32> = drafts.iter().map(|draft| draft.last).collect();
        let most = drafts.iter().map(|draft| draft.most).max().unwrap_or(0);
        for n in 0..most {
            let is_open = |i: &usize| n < drafts[*i].most && drafts[*i].draft.tokens.len() == n;
            let open: Vec<usize> = (0..drafts.len()).filter(is_open).collect();
            if open.is_empty() {
                break;
            }
            let rows: Vec<usize> = open.iter().map(|i| firsts[*i] + n).collect();
            let states = rows.iter();
            let states = states.flat_map(|row| &hidden[row * n_embd..(row + 1) * n_embd]);
            let states: Vec<f32> = states.copied().collect();
            let tokens: Vec<u32> = open.iter().map(|i| before[*i]).collect();
            let (added, right) = self.model.after(&tokens, &states)?;
            for (at, i) in open.into_iter().enumerate() {
                let row = &mut logits[rows[at] * width..(rows[at] + 1) * width];
                let added = &added[at * width..(at + 1) * width];
                row.iter_mut()
                    .zip(added)
                    .for_each(|(own, more)| *own += more);
                let Some((token, probability)) = likeliest(row) else {
                    continue;
                };
                let draft = &mut drafts[i].draft;
                draft.tokens.push(token);
                draft
                    .probabilities
                    .push(right.get(at).copied().unwrap_or(probability));
                before[i] = self.token_of_target(token);
            }
        }
        self.chained = logits;
        Ok(())
    }

    /// The next token of each open draft, after `n` tokens.
    fn go_on(&mut self, open: &mut [OpenDraft], n: usize) -> Result<()> {
        let kind = match self.width {
            0 => TargetRows::None,
            _ => TargetRows::Own,
        };
        let (mut batch, mut rows) = (Batch::default(), DraftRows::of_kind(kind));
        for draft in open.iter() {
            let place = (draft.sequence, draft.end + n as u32 - 1);
            let token = draft.draft.tokens.last().copied().unwrap_or_default();
            let token = self.token_of_target(token);
            batch.push(token, place.0, place.1, true);
            rows.insert(place, &draft.next);
        }
        self.run(&mut batch, rows)?;
        self.take(open);
        Ok(())
    }

    fn run(&mut self, batch: &mut Batch, rows: DraftRows) -> Result<()> {
        let goes_on = self.width > 0 && self.block.is_none();
        let is_block = rows.kind == TargetRows::Kept;
        batch.wants_hidden = goes_on || is_block && self.model.plan().chains_tokens();
        self.model.draft_rows = rows;
        self.model.forward(batch).map(drop)
    }

    /// Adds the likeliest token of each row of the last pass to its draft.
    fn take(&self, drafts: &mut [OpenDraft]) {
        let (logits, hidden) = self.model.results();
        let width = self.model.row_width();
        let n_hidden = hidden.len() / drafts.len().max(1);
        for (i, draft) in drafts.iter_mut().enumerate() {
            let Some(row) = logits.get(i * width..(i + 1) * width) else {
                continue;
            };
            let Some((token, probability)) = likeliest(row) else {
                continue;
            };
            draft.draft.tokens.push(token);
            draft.draft.probabilities.push(probability);
            draft.next.clear();
            draft
                .next
                .extend_from_slice(&hidden[i * n_hidden..(i + 1) * n_hidden]);
        }
    }
}

/// The memory of a drafter that is not loaded, of a target with these weights and options.
///
/// # Errors
/// The drafter cannot run with these options.
pub fn drafter_memory(
    opened: &OpenedDrafter,
    (weights, target): (&Weights, &Plan),
    options: &Options,
) -> Result<MemoryUse> {
    let mut estimator = Estimator::new(&opened.plan, &opened.weights)?;
    let own = estimator.memory(&options.of_drafter(&opened.plan))?;
    Ok(own.without_mapped(opened.shared_bytes(weights, target)))
}

impl DraftModel for Drafter {
    fn drafts_blocks(&self) -> bool {
        self.block.is_some()
    }

    fn n_logits(&self) -> usize {
        self.model.row_width()
    }

    fn memory(&self) -> MemoryUse {
        self.model.memory()
    }

    fn most(&self) -> usize {
        let of_block = |block: DraftBlock| block.len as usize - usize::from(!block.from_first);
        self.block.map_or(MOST, |block| MOST.min(of_block(block)))
    }

    fn keep(&mut self, places: &[(SequenceId, u32)], rows: &[f32]) {
        for ((sequence, position), row) in places.iter().zip(rows.chunks_exact(self.width.max(1))) {
            if *sequence != NOBODY {
                let known = self.sequences.entry(*sequence).or_default();
                known.keep(*position, row);
            }
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
        // Rows of values depend on more than the tokens, so that no prefix is used again.
        match self.width {
            0 => self.model.release(sequence),
            _ => self.model.discard(sequence),
        }
    }

    fn forget(&mut self, sequence: SequenceId, from: u32) {
        let Some(known) = self.sequences.get_mut(&sequence) else {
            if self.width == 0 && self.model.next(sequence) > from {
                self.model.forget(sequence, from);
            }
            return;
        };
        known.forget(from, self.width);
        let own = from.saturating_sub(known.offset);
        if self.model.next(sequence) > own {
            self.model.forget(sequence, own);
        }
    }

    fn draft(&mut self, wanted: &[DraftRequest<'_>]) -> Result<Vec<Draft>> {
        let drafted = self.draft_for(wanted);
        self.model.park_threads();
        if drafted.is_err() {
            // What of the sequences is stored is not known.
            wanted.iter().for_each(|of| self.release(of.sequence));
        }
        drafted
    }

    fn logits(&mut self, request: &DraftRequest<'_>) -> Result<Vec<f32>> {
        let sequence = request.sequence;
        let fault = |found: &str| Error::Drafter {
            found: found.into(),
            expected: "a sequence that was just read".into(),
        };
        let places = self.new_places(request);
        let (first, end) =
            places.ok_or_else(|| fault("a sequence of which no values are known"))?;
        let mut all = Vec::new();
        let mut open = [self.open_draft(0, request, end)];
        if let Some(block) = self.block {
            self.read_new(std::slice::from_ref(request))?;
            self.model.forget(sequence, open[0].end);
            self.read_blocks(&mut open, block)?;
            all = match self.model.plan().chains_tokens() {
                true => std::mem::take(&mut self.chained),
                false => self.model.results().0.to_vec(),
            };
            self.model.forget(sequence, open[0].end);
            return Ok(all);
        }
        // As many rows as have their logits in the pass: what the drafter goes on with is not what the head reads.
        let at_once = self.model.max_outputs().min(self.model.options().n_batch);
        for from in (first..end).step_by(at_once) {
            let mut batch = Batch::default();
            let mut rows = DraftRows::of_kind(self.kind_of_values());
            let part = (from, end.min(from + at_once as u32));
            self.push_new(request, part, &mut batch, &mut rows);
            batch.outputs.fill(true);
            self.run(&mut batch, rows)?;
            all.extend_from_slice(self.model.results().0);
        }
        let width = self.model.row_width();
        let draft = &mut open[0];
        let last = all.len().saturating_sub(width);
        let (token, _) =
            likeliest(&all[last..]).ok_or_else(|| fault("logits that are no numbers"))?;
        draft.draft.tokens.push(token);
        let hidden = self.model.results().1;
        let n_hidden = self.model.plan().n_embd as usize;
        draft.next = hidden[hidden.len().saturating_sub(n_hidden)..].to_vec();
        for n in 1..draft.most {
            self.go_on(&mut open, n)?;
            all.extend_from_slice(self.model.results().0);
        }
        self.model.forget(sequence, open[0].end);
        self.drop_read(sequence);
        Ok(all)
    }
}

/// The token with the highest logit, and its probability; none if a logit is not a number.
fn likeliest(logits: &[f32]) -> Option<(u32, f32)> {
    let (mut best, mut at) = (f32::NEG_INFINITY, None);
    for (token, logit) in (0..).zip(logits) {
        if logit.is_nan() {
            return None;
        }
        if *logit > best {
            (best, at) = (*logit, Some(token));
        }
    }
    let sum: f32 = logits.iter().map(|logit| (logit - best).exp()).sum();
    Some((at?, 1.0 / sum))
}

impl Model {
    /// What tokens before add to the logits of states `[n_embd, n]`: `[n_logits, n]`, and for each how likely its token is right; empty if
    /// the head does not say so.
    fn after(&mut self, before: &[u32], states: &[f32]) -> Result<(Vec<f32>, Vec<f32>)> {
        let (graph, ends) = stage::build_after(&self.graph_parts(), before.len())?;
        self.graphs.load(graph)?;
        let mut added = vec![0.0; before.len() * self.row_width()];
        let n_right = ends.right.iter().len() * before.len();
        let mut right = vec![0.0; n_right];
        let executor = &mut self.graphs.executor;
        let ids: Vec<i32> = before.iter().map(|token| *token as i32).collect();
        executor.write_indices(&ends.before, &ids)?;
        if ends.right.is_some() {
            executor.write(&ends.hidden, states)?;
        }
        executor.run()?;
        executor.read(&ends.added, &mut added)?;
        if let Some(likely) = &ends.right {
            executor.read(likely, &mut right)?;
            right
                .iter_mut()
                .for_each(|x: &mut f32| *x = 1.0 / (1.0 + (-*x).exp()));
        }
        Ok((added, right))
    }

    /// Loads its drafter, which is placed and reads the values of its passes from now on. The options of the model name these
    /// values ([`Options::for_drafter`]).
    ///
    /// # Errors
    /// The errors of [`Model::load`], or a drafter with another vocabulary.
    pub fn load_drafter(&mut self, opened: OpenedDrafter) -> Result<()> {
        let name = opened.name.clone();
        self.drafter = Some(Box::new(Drafter::load(opened, self)?));
        tracing::info!(drafter = name, "drafts the next tokens");
        Ok(())
    }

    /// The most tokens that its drafter drafts; none if it has no drafter.
    pub fn drafter(&self) -> Option<usize> {
        self.drafter.as_ref().map(|drafter| drafter.most())
    }

    /// Whether its drafter makes all tokens of a draft in one pass.
    pub fn drafts_blocks(&self) -> bool {
        let drafter = self.drafter.as_ref();
        drafter.is_some_and(|drafter| drafter.drafts_blocks())
    }

    /// The logits `[n_logits, n]` that its drafter computes, and `n_logits`: after each token of a sequence that this model has read since it began or was
    /// last drafted for, then after each token of the draft but the last.
    ///
    /// # Errors
    /// There is no drafter, no such token, more of them than a pass holds, or a computation fails.
    pub fn draft_logits(&mut self, wanted: &DraftRequest<'_>) -> Result<(Vec<f32>, usize)> {
        let Some(drafter) = &mut self.drafter else {
            return Err(Error::Drafter {
                found: "none".into(),
                expected: "a drafter".into(),
            });
        };
        Ok((drafter.logits(wanted)?, drafter.n_logits()))
    }

    /// Drafts for sequences, together: the tokens that its drafter holds for the likeliest.
    ///
    /// # Errors
    /// A computation of the drafter fails, or its cache is full. The sequences of the model are as before.
    pub fn draft(&mut self, wanted: &[DraftRequest<'_>]) -> Result<Vec<Draft>> {
        // Threads that wait for a pass of one model would delay those of the other.
        self.graphs.executor.rest();
        match &mut self.drafter {
            Some(drafter) => drafter.draft(wanted),
            None => Ok(vec![Draft::default(); wanted.len()]),
        }
    }
}
