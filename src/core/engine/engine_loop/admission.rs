//! How a request becomes active and waiting again: enqueued, admitted, preempted, reaped.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::{CacheMiss, CachedPrefix, EncodedMedia, SequenceId};

use super::super::answer_stream::AnswerStream;
use super::super::autoregressive::AutoregressiveStrategy;
use super::super::client::QueuePermit;
use super::super::compute::{BLOCK, Compute};
use super::super::contrastive::ContrastiveStrategy;
use super::super::diffusion::DiffusionStrategy;
use super::super::draft::{Drafter, DrafterKind};
use super::super::event::Failure;
use super::super::pooling::PoolingStrategy;
use super::super::recorder::Recorder;
use super::super::scheduler::can_start;
use super::super::sequence::Sequence;
use super::super::stats;
use super::super::strategy::Strategy;
use super::super::submission::{CheckedRequest, Decoding, Submitted};
use super::super::thinking::ThinkingBudget;
use super::{EngineLoop, EngineRequest};

/// How long rows of media are computed in a step while completions decode.
const ENCODING: Duration = Duration::from_millis(20);
/// How long they are computed in a step while none does. The request can be cancelled between steps.
const ENCODING_ALONE: Duration = Duration::from_millis(100);

impl<C: Compute> EngineLoop<C> {
    pub(crate) fn enqueue(&mut self, submitted: Submitted) {
        let Submitted { checked, caller } = submitted;
        let CheckedRequest {
            request,
            source,
            decoding,
            scales,
            lab,
        } = checked;
        let answer = AnswerStream::new(&request, source.len(), caller, Arc::clone(&self.tokenizer));
        let most = request.max_tokens.unwrap_or(usize::MAX);
        let limit = request.prompt.len().saturating_add(most);
        let limit = limit.min(self.limits.n_ctx.saturating_sub(source.len()));
        let (n_prompt, media) = (request.prompt.len(), request.media);
        let (mut tokens, mut n_parts) = (request.prompt, 1);
        let strategy: Box<dyn Strategy> = match decoding {
            Decoding::Autoregressive(sampler) => {
                // A wrong draft token must be rolled back.
                let rolls_back = self.model.n_free_blocks().is_some();
                let mut drafts = self.limits.drafts;
                // What others wrote, and what edits made of it, is no draft of what comes next.
                drafts.drafters[DrafterKind::Shared as usize] &=
                    request.cache_prompt && lab.is_none();
                // A completion that nothing drafts for has no drafter, which would keep its steps from beginning early.
                if request.drafts.n_max.is_none() {
                    drafts.drafters[DrafterKind::Model as usize] &= self.model.drafter().is_some();
                }
                let drafter = Drafter::new(drafts, request.drafts, self.tokenizer.vocab_len())
                    .filter(|_| rolls_back);
                let constraint = request.constraint.as_ref();
                let constrained = constraint.map(|compiled| self.worker.start(compiled));
                let thinking = request.thinking.as_ref().map(ThinkingBudget::new);
                let strategy = AutoregressiveStrategy::new(
                    sampler,
                    &tokens,
                    limit,
                    drafter,
                    constrained,
                    thinking,
                );
                Box::new(strategy.ruled(request.rules))
            }
            Decoding::Contrastive(search) => Box::new(ContrastiveStrategy::new(search, limit)),
            Decoding::Pooling(model, second) => Box::new(PoolingStrategy::new(model, second)),
            Decoding::Diffusion(sampler, settings) => {
                n_parts = settings.n_parts();
                tokens.resize(n_prompt + settings.length, settings.mask);
                Box::new(DiffusionStrategy::new(sampler, settings, request.trace))
            }
        };
        let has_edits = lab.as_ref().is_some_and(|plan| !plan.lab.key().is_empty());
        let is_changed = has_edits || request.adapters.is_some();
        let points = &self.points;
        let recorder = lab.map(|plan| Recorder::new(plan, Arc::clone(points)));
        let mut sequence = Sequence::new(tokens, n_prompt, n_parts, scales, recorder, answer);
        sequence.source = source;
        sequence.media = media;
        if let Some(recorder) = &sequence.recorder {
            sequence.encoded = EncodedMedia::capturing(recorder.of_towers());
        }
        sequence.is_changed = is_changed;
        sequence.priority = request.priority;
        sequence.slot = request.slot;
        self.enter(sequence.answer.client());
        self.queue.push_back(EngineRequest { sequence, strategy });
    }

    /// Ends requests that are cancelled or out of time: active ones, those that wait for their lens, and those in the
    /// queue.
    pub(super) fn reap(&mut self) {
        let (limits, now) = (self.limits, Instant::now());
        let is_over = |sequence: &Sequence| sequence.answer.is_over(&limits, now);
        let request_is_over = |r: &EngineRequest| is_over(&r.sequence);
        while let Some(at) = self.active.iter().position(request_is_over) {
            let request = self.active.remove(at);
            self.end_early(request.sequence, now);
        }
        let lens_is_over = |(sequence, _): &(Sequence, _)| is_over(sequence);
        while let Some(at) = self.awaiting_lens.iter().position(lens_is_over) {
            let (sequence, _) = self.awaiting_lens.remove(at);
            self.end_early(sequence, now);
        }
        while let Some(at) = self.queue.iter().position(request_is_over) {
            if let Some(request) = self.queue.remove(at) {
                request.sequence.answer.end_early(&limits, now);
            }
        }
    }

    fn end_early(&mut self, sequence: Sequence, now: Instant) {
        self.release(&sequence);
        self.report();
        sequence.answer.end_early(&self.limits, now);
    }

    /// Starts waiting completions as far as the cache has room.
    pub(super) fn admit(&mut self) {
        while !self.queue.is_empty() {
            let at = match self.free_ids.is_empty() {
                true => None,
                false => self.next_waiting(),
            };
            match at {
                Some(at) => {
                    let (Some(mut request), Some(id)) =
                        (self.queue.remove(at), self.free_ids.pop())
                    else {
                        return;
                    };
                    self.start(&mut request, id);
                    self.active.push(request);
                }
                None => match self.in_the_way() {
                    Some(at) => self.preempt(at),
                    None => return,
                },
            }
        }
    }

    /// Counts a request of a client that may have none.
    fn enter(&mut self, client: &Arc<str>) {
        let requests = self.queue.iter().chain(&self.active);
        let sequences = requests.map(|request| &request.sequence);
        let sequences = sequences.chain(self.awaiting_lens.iter().map(|(sequence, _)| sequence));
        let of = |sequence: &Sequence| Arc::clone(sequence.answer.client());
        let present: BTreeSet<Arc<str>> = sequences.map(of).collect();
        if !present.contains(client) {
            self.turns.enter(client, &present);
        }
    }

    /// The active completion that gives its place to the first waiting one: the latest of the client with the most of them,
    /// where the client of the waiting one has none. What it has computed stays in the prefix cache until it is evicted.
    pub(super) fn in_the_way(&self) -> Option<usize> {
        // Without a prefix cache, all that it has computed would be lost.
        self.model.n_free_blocks()?;
        let waiting = &self.queue[*self.in_turn().first()?].sequence;
        let n_active = self.n_active_of_clients();
        if waiting.unencoded().is_some()
            || waiting.restoring.is_some()
            || n_active.contains_key(waiting.answer.client())
        {
            return None;
        }
        let (most, _) = n_active
            .into_iter()
            .filter(|(_, n)| *n > 1)
            .max_by_key(|(_, n)| *n)?;
        let of_most = |request: &EngineRequest| request.sequence.answer.client() == &most;
        self.active.iter().rposition(of_most)
    }

    /// The number of active completions of each client that has some.
    fn n_active_of_clients(&self) -> BTreeMap<Arc<str>, usize> {
        let active = self.active.iter().map(|request| &request.sequence);
        let active = active.chain(self.awaiting_lens.iter().map(|(sequence, _)| sequence));
        let mut all = BTreeMap::new();
        for sequence in active {
            *all.entry(Arc::clone(sequence.answer.client())).or_default() += 1;
        }
        all
    }

    /// The waiting completion that starts next, as [`Self::in_turn`] says. It waits while an active one reads its prefix. None
    /// if there is no room for it.
    fn next_waiting(&mut self) -> Option<usize> {
        for at in self.in_turn() {
            let n_positions = self.queue[at].sequence.n_positions();
            if !can_start(&self.jobs(), n_positions, self.model.n_free_blocks()) {
                return None;
            }
            let is_ready = self.queue[at].sequence.unencoded().is_none();
            if is_ready && !self.awaits_prefix(at) && self.is_restored(at) {
                return Some(at);
            }
        }
        None
    }

    /// The places of the waiting completions in the order in which they are to start: those of clients with nothing active,
    /// of clients for which the fewest tokens were computed, of the first priority, of requests with the fewest active
    /// completions, and of these the first that came. So neither a client with many requests nor a request with many
    /// completions keeps others waiting.
    fn in_turn(&self) -> Vec<usize> {
        let active = self.active.iter().map(|request| &request.sequence);
        let active = active.chain(self.awaiting_lens.iter().map(|(sequence, _)| sequence));
        let active: Vec<*const QueuePermit> = active.map(|s| s.answer.permit()).collect();
        let n_active_of_clients = self.n_active_of_clients();
        let turn = |at: &usize| {
            let sequence = &self.queue[*at].sequence;
            let client = sequence.answer.client();
            let is_active = n_active_of_clients.contains_key(client);
            let own = sequence.answer.permit();
            let n_active = active.iter().filter(|permit| **permit == own).count();
            let computed = self.turns.computed(client);
            (is_active, computed, sequence.priority, n_active)
        };
        let mut in_turn: Vec<usize> = (0..self.queue.len()).collect();
        in_turn.sort_by_cached_key(turn);
        in_turn
    }

    /// Computes rows of the media of a waiting completion for a short time, so that those that decode go on meanwhile. One that
    /// was begun comes first. At most one has all its rows and waits for room, so that few are kept.
    pub(super) fn encode(&mut self) {
        let begun = |request: &EngineRequest| {
            request.sequence.is_encoding && request.sequence.unencoded().is_some()
        };
        let Some(at) = self.queue.iter().position(begun).or_else(|| {
            let with_media = |at: &usize| self.queue[*at].sequence.media.is_some();
            self.in_turn().into_iter().find(with_media)
        }) else {
            return;
        };
        let time = match self.active.is_empty() {
            true => ENCODING_ALONE,
            false => ENCODING,
        };
        let request = &mut self.queue[at];
        let Some(media) = request.sequence.unencoded().map(Arc::clone) else {
            return;
        };
        request.sequence.is_encoding = true;
        let (model, encoded) = (&mut self.model, &mut request.sequence.encoded);
        let piece = AssertUnwindSafe(|| model.encode_media(&media, encoded, Instant::now() + time));
        let failure = match catch_unwind(piece) {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.into(),
            Err(_) => Failure::Computation("computing the media panicked".into()),
        };
        tracing::error!(
            ?failure,
            "the media of a prompt are not computed; its request ends"
        );
        if let Some(request) = self.queue.remove(at) {
            request.sequence.answer.fail(failure);
        }
    }

    fn start(&mut self, request: &mut EngineRequest, id: SequenceId) {
        let sequence = &mut request.sequence;
        sequence.prepare(id, &mut self.model);
        let n_tokens = sequence.tokens.len();
        let client = Arc::clone(sequence.answer.client());
        if self.model.n_free_blocks().is_none() || !request.strategy.reuses_prefix() {
            self.turns.charge(&client, n_tokens);
            tracing::debug!(sequence = id, n_tokens, "starts");
            sequence.answer.looked_up([0; 2], [CacheMiss::Off; 2]);
            return sequence.start(id, &CachedPrefix::default(), Vec::new());
        }
        let known = self.model.resume(id, sequence.reusable());
        self.turns.charge(&client, n_tokens - known.n_cached);
        let reusable = sequence.reusable().to_vec();
        self.note_lookup(sequence, &reusable, &known);
        tracing::debug!(
            sequence = id,
            n_tokens,
            n_cached = known.n_cached,
            reason = %known.miss,
            "starts"
        );
        let mut cuts = Vec::new();
        if self.model.has_states() {
            // A later request may continue where this one leaves a known prefix, and where its present tokens end.
            cuts.push((n_tokens - 1) / BLOCK * BLOCK);
            cuts.push(known.n_known);
            cuts.retain(|cut| *cut > known.n_cached);
            cuts.dedup();
        }
        sequence.start(id, &known, cuts);
    }

    /// Whether an active request is still reading the prefix of a waiting one.
    fn awaits_prefix(&mut self, at: usize) -> bool {
        let waiting = &self.queue[at];
        if !self.model.is_shared() || !waiting.strategy.reuses_prefix() {
            return false;
        }
        let has_states = self.model.has_states();
        let (waiting, tokens) = (&waiting.sequence, waiting.sequence.reusable());
        let mut awaits = false;
        let earlier = self.active.iter_mut().map(|request| &mut request.sequence);
        for earlier in earlier.filter(|s| s.is_prefill && s.is_computed_as(waiting)) {
            let both = tokens.iter().zip(&earlier.tokens);
            let n_same = both.take_while(|(a, b)| a == b).count();
            let n_shared = n_same.min(tokens.len() - 1) / BLOCK * BLOCK;
            if n_shared > earlier.n_cached {
                awaits = true;
                if has_states {
                    earlier.cut_at(n_shared);
                }
            }
        }
        awaits
    }

    pub(super) fn release(&mut self, sequence: &Sequence) {
        self.note_prefix(sequence);
        sequence.ids().for_each(|id| self.model.release(id));
        self.free_ids.push(sequence.id);
        self.quarantined.retain(|id| *id != sequence.id);
    }

    /// Preempts an active request, so that others have its blocks. Its tokens stay in the prefix cache until they
    /// are evicted.
    pub(super) fn preempt(&mut self, at: usize) {
        let mut request = self.active.remove(at);
        tracing::debug!(sequence = request.sequence.id, "preempted");
        stats::count(&self.stats.n_preempted, 1);
        self.release(&request.sequence);
        request.sequence.suspend();
        self.queue.push_front(request);
    }
}
