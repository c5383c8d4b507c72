//! A drafter: a model that proposes the next tokens of another one, its target.
//!
//! It reads the tokens of the target's sequences, and where its definition says so a row of values of the target for each of them. Its
//! sequences have the ids of the target's. A draft begins with the tokens and rows that are new since the last one; then the drafter goes
//! on alone, token by token, and what it stored meanwhile is forgotten: its cache holds only what the target has read.
//!
//! Not here: how many tokens are worth drafting, and what becomes of them.

use std::collections::HashMap;

use crate::models::drafters::OpenedDrafter;
use crate::plan::DraftBlock;

use super::after_graph::AfterGraph;
use super::batch::Batch;
use super::cache::{NOBODY, SequenceId};
use super::draft::{Draft, DraftModel, DraftRequest};
use super::draft_rows::DraftRows;
use super::drafted_sequence::DraftedSequence;
use super::error::{Error, Result};
use super::graph_shape::TargetRows;
use super::lifecycle::Model;
use super::memory_use::MemoryUse;
use super::open_draft::{OpenDraft, ReadPass};
use super::options::Options;

/// Maximum number of tokens of a draft.
pub(super) const MOST: usize = 16;

/// A drafter and what it knows of the sequences of its target.
pub(super) struct Drafter {
    /// The first head, or all of it.
    model: Model,
    /// The heads that draft the tokens after the first one. All read what the first one reads; the last one drafts all further tokens.
    further: Vec<Model>,
    /// Elements of a row of the target; 0 if it reads tokens alone.
    width: usize,
    /// The blocks that it drafts; none if it goes on token by token.
    block: Option<DraftBlock>,
    /// The token of the target for each of the drafter's; none if they have the same vocabulary.
    tokens: Option<Vec<u32>>,
    sequences: HashMap<SequenceId, DraftedSequence>,
    /// The logits of the last blocks with what the tokens before added.
    chained: Vec<f32>,
    /// The graph of what they add.
    after: AfterGraph,
}

impl Drafter {
    /// Loads a drafter for a target with these options, after it is placed.
    ///
    /// # Errors
    /// The errors of [`Model::load`], or a drafter with another vocabulary.
    pub(super) fn load(opened: OpenedDrafter, target: &Model, reads_texts: bool) -> Result<Self> {
        let of = |plan| target.options.of_drafter(plan);
        let options: Vec<Options> = opened.plans().map(of).collect();
        // With a vocabulary of its own it does not read the target's tokens.
        let n_vocab = match reads_texts {
            true => u64::MAX,
            false => target.plan.n_vocab,
        };
        let OpenedDrafter {
            plan,
            further,
            weights,
            tokens,
            ..
        } = opened;
        let plans = [plan].into_iter().chain(further);
        let heads = plans.zip(options);
        let heads =
            heads.map(|(plan, options)| Model::load(plan, &weights, options, &mut |_, _| {}));
        Self::new(heads.collect::<Result<_>>()?, tokens, n_vocab)
    }

    /// A drafter of loaded heads. `tokens` has the target's token for each of its own; none if both have the same vocabulary.
    ///
    /// # Errors
    /// Some of `tokens` are not in the target's vocabulary of `n_vocab` tokens, or the drafter has another one.
    fn new(mut heads: Vec<Model>, tokens: Option<Vec<u32>>, n_vocab: u64) -> Result<Self> {
        let fault = |found: String, expected: String| Err(Error::Drafter { found, expected });
        let further = heads.split_off(heads.len().min(1));
        let Some(model) = heads.pop() else {
            return fault("no head".into(), "one".into());
        };
        let own = model.row_width() as u64;
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
            further,
            sequences: HashMap::new(),
            chained: Vec::new(),
            after: AfterGraph::default(),
        })
    }

    /// Number of graphs built for what tokens add to the logits of those after them.
    #[cfg(test)]
    pub(super) fn n_after_graphs(&self) -> u64 {
        self.after.n_built()
    }

    fn draft_for(&mut self, wanted: &[DraftRequest<'_>]) -> Result<Vec<Draft>> {
        let mut open = self.read_new(wanted, None)?;
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
        ends.into_iter()
            .for_each(|(sequence, end)| self.cut(sequence, end));
        let all = done.iter_mut().flat_map(|draft| &mut draft.tokens);
        all.for_each(|token| *token = self.token_of_target(*token));
        Ok(done)
    }

    /// The target's token for one of its own.
    fn token_of_target(&self, token: u32) -> u32 {
        let tokens = self.tokens.as_ref();
        tokens.map_or(token, |tokens| tokens[token as usize])
    }

    /// Forgets the positions of a sequence from one of its own on.
    fn cut(&mut self, sequence: SequenceId, from: u32) {
        for model in [&mut self.model].into_iter().chain(&mut self.further) {
            if model.next(sequence) > from {
                model.forget(sequence, from);
            }
        }
    }

    /// Ends a sequence whose values are not to be used again.
    fn discard(&mut self, sequence: SequenceId) {
        for model in [&mut self.model].into_iter().chain(&mut self.further) {
            model.discard(sequence);
        }
    }

    /// Reads what is new of the sequences, and chooses the first token of each draft. With `all` the logits of all rows are added there.
    fn read_new(
        &mut self,
        wanted: &[DraftRequest<'_>],
        all: Option<&mut Vec<f32>>,
    ) -> Result<Vec<OpenDraft>> {
        let n_batch = self.model.options().n_batch;
        let most = match all {
            Some(_) if self.block.is_none() => n_batch.min(self.model.max_outputs()),
            _ => n_batch,
        };
        let mut pass = ReadPass::new(self.kind_of_values(), all);
        let mut open = Vec::with_capacity(wanted.len());
        for (at, request) in wanted.iter().enumerate() {
            let Some((first, end)) = self.new_places(request) else {
                continue;
            };
            let mut left = first..end;
            while !left.is_empty() {
                let room = most - pass.batch.len();
                let part = left.start..left.end.min(left.start + room as u32);
                left.start = part.end;
                self.push_new(request, (part.start, part.end), &mut pass);
                if left.is_empty() {
                    pass.wait(self.open_draft(at, request, end), self.block.is_none());
                }
                if pass.batch.len() == most {
                    self.first_tokens(&mut pass, &mut open)?;
                }
            }
        }
        self.first_tokens(&mut pass, &mut open)?;
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
        pass: &mut ReadPass<'_>,
    ) {
        let sequence = request.sequence;
        let known = self.sequences.get(&sequence).filter(|_| self.width > 0);
        let has_logits = pass.all.is_some() && self.block.is_none();
        for position in first..end {
            let own = self.own_position(sequence, position);
            let token = self.token_at(request, position);
            pass.batch.push(token, sequence, own, has_logits);
            if let Some(known) = known {
                let at = (position - known.first) as usize * self.width;
                let row = &known.rows[at..at + self.width];
                pass.rows.insert((sequence, own), row);
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
            row: 0,
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
            let first = known.first;
            known.offset = first;
            self.discard(sequence);
            return Some((first, end));
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
    fn first_tokens(&mut self, pass: &mut ReadPass<'_>, open: &mut Vec<OpenDraft>) -> Result<()> {
        if pass.batch.is_empty() {
            return Ok(());
        }
        let empty = DraftRows::of_kind(self.kind_of_values());
        self.run(0, &mut pass.batch, std::mem::replace(&mut pass.rows, empty))?;
        match self.block {
            None => self.take(0, &mut pass.waiting),
            Some(block) => self.read_blocks(&mut pass.waiting, block)?,
        }
        if let Some(all) = &mut pass.all {
            let chains = self.block.is_some() && self.model.plan().chains_tokens();
            match chains {
                true => all.append(&mut self.chained),
                false => all.extend_from_slice(self.model.results().0),
            }
        }
        open.append(&mut pass.waiting);
        pass.batch.clear();
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
            self.run(0, &mut batch, DraftRows::of_kind(TargetRows::Kept))?;
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
        self.after.forget();
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
            let (added, right) = self.model.after(&mut self.after, &tokens, &states)?;
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

    /// The next token of each open draft, after `n` tokens, by the head of this place.
    fn go_on(&mut self, open: &mut [OpenDraft], n: usize) -> Result<()> {
        let kind = match self.width {
            0 => TargetRows::None,
            _ => TargetRows::Own,
        };
        let (mut batch, mut rows) = (Batch::default(), DraftRows::of_kind(kind));
        for (row, draft) in open.iter_mut().enumerate() {
            let place = (draft.sequence, draft.end + n as u32 - 1);
            let token = draft.draft.tokens.last().copied().unwrap_or_default();
            let token = self.token_of_target(token);
            batch.push(token, place.0, place.1, true);
            rows.insert(place, &draft.next);
            draft.row = row;
        }
        let head = self.head_of(n);
        self.run(head, &mut batch, rows)?;
        self.take(head, open);
        Ok(())
    }

    /// The head that drafts the token after `n` others.
    fn head_of(&self, n: usize) -> usize {
        n.min(self.further.len())
    }

    fn head(&self, head: usize) -> &Model {
        match head.checked_sub(1) {
            None => &self.model,
            Some(at) => &self.further[at],
        }
    }

    /// Runs a head, and those after it, which read the same and have no results.
    fn run(&mut self, head: usize, batch: &mut Batch, rows: DraftRows) -> Result<()> {
        let goes_on = self.width > 0 && self.block.is_none();
        let is_block = rows.kind == TargetRows::Kept;
        batch.wants_hidden = goes_on || is_block && self.model.plan().chains_tokens();
        let later = head..self.further.len();
        if !later.is_empty() {
            let mut batch = batch.clone();
            batch.outputs.fill(false);
            batch.wants_hidden = false;
            for model in &mut self.further[later] {
                model.draft_rows = rows.clone();
                model.forward(&batch)?;
            }
        }
        let model = match head.checked_sub(1) {
            None => &mut self.model,
            Some(at) => &mut self.further[at],
        };
        model.draft_rows = rows;
        model.forward(batch).map(drop)
    }

    /// Adds the likeliest token of its row of the last pass of a head to each draft.
    fn take(&self, head: usize, drafts: &mut [OpenDraft]) {
        let (logits, hidden) = self.head(head).results();
        let width = self.model.row_width();
        let n_embd = self.model.plan().n_embd as usize;
        for draft in drafts.iter_mut() {
            let i = draft.row;
            let Some(row) = logits.get(i * width..(i + 1) * width) else {
                continue;
            };
            let Some((token, probability)) = likeliest(row) else {
                continue;
            };
            draft.draft.tokens.push(token);
            draft.draft.probabilities.push(probability);
            draft.next.clear();
            let next = hidden.get(i * n_embd..(i + 1) * n_embd);
            draft.next.extend_from_slice(next.unwrap_or_default());
        }
    }
}

impl DraftModel for Drafter {
    fn drafts_blocks(&self) -> bool {
        self.block.is_some()
    }

    fn n_logits(&self) -> usize {
        self.model.row_width()
    }

    fn memory(&self) -> MemoryUse {
        let further = self.further.iter();
        further.fold(self.model.memory(), |all, head| {
            all.with_model(&head.memory())
        })
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
            _ => self.discard(sequence),
        }
    }

    fn forget(&mut self, sequence: SequenceId, from: u32) {
        let own = match self.sequences.get_mut(&sequence) {
            Some(known) => {
                known.forget(from, self.width);
                from.saturating_sub(known.offset)
            }
            // It knows of no rows before the first ones.
            None if self.width > 0 => return,
            None => from,
        };
        self.cut(sequence, own);
    }

    fn draft(&mut self, wanted: &[DraftRequest<'_>]) -> Result<Vec<Draft>> {
        let drafted = self.draft_for(wanted);
        let heads = [&self.model].into_iter().chain(&self.further);
        heads.for_each(Model::park_threads);
        if drafted.is_err() {
            // What of the sequences is stored is not known.
            wanted.iter().for_each(|of| self.release(of.sequence));
        }
        drafted
    }

    fn logits(&mut self, request: &DraftRequest<'_>) -> Result<Vec<f32>> {
        let fault = |found: &str| Error::Drafter {
            found: found.into(),
            expected: "a sequence that was just read".into(),
        };
        let mut all = Vec::new();
        let mut open = self.read_new(std::slice::from_ref(request), Some(&mut all))?;
        let Some(OpenDraft {
            end, most, draft, ..
        }) = open.first()
        else {
            return Err(fault("a sequence of which no values are known"));
        };
        let (end, most) = (*end, *most);
        if draft.tokens.is_empty() {
            return Err(fault("logits that are no numbers"));
        }
        let n_passes = if self.block.is_some() { 1 } else { most };
        for n in 1..n_passes {
            self.go_on(&mut open, n)?;
            let head = self.head(self.head_of(n));
            all.extend_from_slice(head.results().0);
        }
        self.cut(request.sequence, end);
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
