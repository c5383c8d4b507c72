//! The engine's loop: reap, admit, plan a step, run it, commit it, end completed requests.
//!
//! The only place where requests are admitted, preempted, retried and ended. Each request of a failed step is
//! retried alone, so that only requests that cannot continue end, never the others or the engine. Not here: how
//! tokens are found ([`Strategy`]), which requests run in a step (`scheduler.rs`).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;

use crate::model::{self, Batch, CapturedRow, KvEvent, Points, SequenceId};
use lab_base::tokenizer::Tokenizer;

use super::client::Turns;
use super::compute::{BLOCK, Compute};
use super::constraint::ConstraintWorker;
use super::draft::{DraftControl, N_DRAFTED, SharedDrafts};
use super::event::{Event, Failure, FinishReason};
use super::kv_events::{KvEventQueue, KvEventSender};
use super::limits::Limits;
use super::scheduler::{Budget, Job, StepPlan, plan_step};
use super::sequence::Sequence;
use super::stats::{ActiveSequence, EngineLoad, Stats};
use super::strategy::Strategy;
use super::submission::Order;

mod admission;
mod ahead;
mod drafts;
mod prefixes;
mod rows;
mod step_results;

pub(super) use prefixes::Prefixes;
use rows::{StepSink, deliver};

/// Sequences that a completion may take: with classifier-free guidance, text diffusion reads two.
const N_PARTS: SequenceId = 2;

/// A completion of a request, waiting or active.
struct EngineRequest {
    sequence: Sequence,
    strategy: Box<dyn Strategy>,
}

impl EngineRequest {
    fn is_duplicate(&self, other: &Self) -> bool {
        let [own, other] = [self, other].map(|one| one.strategy.shared_input(&one.sequence));
        own.is_some() && own == other
    }
}

/// Requests that share the rows of a pass, by their indices among the active ones, and the size of their part.
struct RequestGroup {
    members: Vec<usize>,
    n_tokens: usize,
    n_rows: usize,
    /// Whether all its tokens must go into one pass.
    is_whole: bool,
}

/// The model and the requests it serves.
pub(super) struct EngineLoop<C> {
    model: C,
    tokenizer: Arc<Tokenizer>,
    limits: Limits,
    queue: VecDeque<EngineRequest>,
    /// Active requests in the order of arrival. Requests whose tokens must all go into one pass are in the order of
    /// their last pass.
    active: Vec<EngineRequest>,
    /// Requests whose tokens are complete and whose lens is not. They keep their ids.
    awaiting_lens: Vec<(Sequence, FinishReason)>,
    /// Free sequence ids. Each stands for the `N_PARTS` ids from it on.
    free_ids: Vec<SequenceId>,
    /// Requests of a failed step, to be retried alone.
    quarantined: Vec<SequenceId>,
    batch: Batch,
    /// Logits that are computed from several rows.
    buffer: Vec<f32>,
    worker: ConstraintWorker,
    drafts: DraftControl,
    shared_drafts: SharedDrafts,
    /// Whether the model's drafter failed. It is not asked again.
    drafter_failed: bool,
    /// Draft tokens that were accepted in the current step.
    n_accepted: usize,
    n_steps: usize,
    /// Whose requests start next.
    turns: Turns,
    stats: Arc<Stats>,
    /// Blocks of the cache; none if no block is kept between passes.
    n_blocks: Option<usize>,
    points: Arc<Points>,
    /// Captured logits of the current step.
    captured_rows: Vec<CapturedRow>,
    /// Unloaded adapters that were not freed yet.
    unloaded: Vec<usize>,
    /// Adapters that were freed.
    freed: Vec<usize>,
    /// What outlives the KV cache.
    prefixes: Prefixes,
    /// Who is told of the prefix cache.
    kv_events: Option<KvEventQueue>,
}

/// Whether an adapter is on for a request with these scales.
fn uses(scales: &[f32], adapter: usize) -> bool {
    scales.get(adapter).is_some_and(|scale| *scale != 0.0)
}

impl<C: Compute> EngineLoop<C> {
    pub(super) fn new(model: C, tokenizer: Arc<Tokenizer>, mut limits: Limits) -> Self {
        limits.n_parallel = limits.n_parallel.max(1);
        let ids = (0..limits.n_parallel as SequenceId).rev();
        Self {
            n_blocks: model.n_free_blocks(),
            stats: Arc::default(),
            drafts: DraftControl::new(model.takes_time(), model.drafts_blocks()),
            shared_drafts: SharedDrafts::default(),
            drafter_failed: false,
            n_accepted: 0,
            model,
            tokenizer,
            limits,
            queue: VecDeque::new(),
            active: Vec::new(),
            awaiting_lens: Vec::new(),
            free_ids: ids.map(|id| N_PARTS * id).collect(),
            quarantined: Vec::new(),
            batch: Batch::default(),
            buffer: Vec::new(),
            worker: ConstraintWorker::default(),
            n_steps: 0,
            turns: Turns::default(),
            points: Arc::default(),
            captured_rows: Vec::new(),
            unloaded: Vec::new(),
            freed: Vec::new(),
            prefixes: Prefixes::default(),
            kv_events: None,
        }
    }

    pub(super) fn with_points(self, points: Arc<Points>) -> Self {
        Self { points, ..self }
    }

    /// This engine loop, with what outlives the KV cache.
    pub(super) fn keeping(mut self, prefixes: Prefixes) -> Self {
        self.prefixes = prefixes;
        self.prefixes.slots = vec![None; self.limits.n_parallel];
        self
    }

    /// This engine loop, telling `sender` of its prefix cache.
    pub(super) fn announcing(mut self, sender: Option<KvEventSender>) -> Self {
        self.kv_events = sender.map(KvEventQueue::new);
        self
    }

    /// This engine loop, reporting its work to `stats`.
    pub(super) fn reporting(mut self, stats: Arc<Stats>) -> Self {
        self.stats = stats;
        self.report();
        self
    }

    /// Reports the active and waiting requests.
    fn report(&self) {
        let free = self.model.n_free_blocks();
        let active = self.active.iter().map(|request| &request.sequence);
        let awaiting_lens = self.awaiting_lens.iter().map(|(sequence, _)| sequence);
        let active = active.chain(awaiting_lens).map(|sequence| ActiveSequence {
            n_prompt: sequence.n_prompt,
            n_cached: sequence.n_cached,
            n_decoded: sequence.tokens.len() - sequence.n_prompt,
            is_prefill: sequence.is_prefill,
        });
        let blocks = self.n_blocks.zip(free);
        let adapters = |requests: &mut dyn Iterator<Item = &EngineRequest>| {
            let scales = requests.map(|request| request.sequence.scales.iter());
            let ids = scales.flat_map(|scales| scales.enumerate().filter(|(_, s)| **s != 0.0));
            ids.map(|(id, _)| id).collect()
        };
        self.stats.set_work(self.model.work());
        self.stats.set_now(EngineLoad {
            n_waiting: self.queue.len(),
            active: active.collect(),
            active_adapters: adapters(&mut self.active.iter()),
            waiting_adapters: adapters(&mut self.queue.iter()),
            blocks: blocks.map(|(all, free)| (all - free.min(all), all)),
        });
    }

    /// Serves requests until the last handle is dropped and every completion has ended.
    pub(super) fn serve(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        loop {
            self.free_adapters();
            self.tell_kv_events();
            if self.is_idle() {
                self.report();
                self.model.park_threads();
                match self.next_order(&mut orders) {
                    Some(order) => self.follow(order),
                    None => break,
                }
            }
            while let Ok(order) = orders.try_recv() {
                self.follow(order);
            }
            self.step();
            self.report();
        }
        self.with_store(Self::spill_rest);
        self.tell_all_cleared();
    }

    /// Tells that nothing is cached any more, because the engine ends.
    fn tell_all_cleared(&mut self) {
        if let Some(queue) = &mut self.kv_events {
            queue.push(vec![KvEvent::AllBlocksCleared]);
        }
    }

    fn tell_kv_events(&mut self) {
        if let Some(queue) = &mut self.kv_events {
            queue.push(self.model.take_kv_events());
        }
    }

    /// Waits for an order, and meanwhile does what steps leave undone.
    fn next_order(&mut self, orders: &mut mpsc::UnboundedReceiver<Order>) -> Option<Order> {
        loop {
            match orders.try_recv() {
                Ok(order) => return Some(order),
                Err(mpsc::error::TryRecvError::Disconnected) => return None,
                Err(mpsc::error::TryRecvError::Empty) => {}
            }
            match self.with_store(Self::work_in_idle) {
                None => return orders.blocking_recv(),
                Some(true) => {}
                Some(false) => std::thread::sleep(prefixes::NAP),
            }
        }
    }

    pub(super) fn follow(&mut self, order: Order) {
        match order {
            Order::Run(submitted) => {
                let scales = &submitted.checked.scales;
                if !self.freed.iter().any(|id| uses(scales, *id)) {
                    return self.enqueue(*submitted);
                }
                // It was checked before the adapter was unloaded. Its client may have left.
                let failure = Failure::Computation("its adapter was unloaded".into());
                let _ = submitted.caller.events.send(Event::Failed(failure));
            }
            Order::AddAdapter(adapter, answer) => {
                let added = self.model.add_adapter(&adapter);
                if added.is_ok() {
                    self.prefixes.adapters.push(adapter.stamp());
                }
                // Who asked may have left.
                let _ = answer.send(added);
            }
            Order::Prefix(order) => self.follow_prefix(order),
            Order::RemoveAdapter(id) => self.unloaded.push(id),
        }
    }

    /// Frees unloaded adapters that no request uses.
    pub(super) fn free_adapters(&mut self) {
        let requests = self.active.iter().chain(&self.queue);
        let sequences = requests.map(|request| &request.sequence);
        let awaiting_lens = self.awaiting_lens.iter().map(|(sequence, _)| sequence);
        let sequences: Vec<&Sequence> = sequences.chain(awaiting_lens).collect();
        let (model, freed) = (&mut self.model, &mut self.freed);
        self.unloaded.retain(|id| {
            let is_used = sequences.iter().any(|s| uses(&s.scales, *id));
            if !is_used {
                model.remove_adapter(*id);
                freed.push(*id);
            }
            is_used
        });
    }

    #[cfg(test)]
    pub(super) fn model(&self) -> &C {
        &self.model
    }

    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty() && self.queue.is_empty() && self.awaiting_lens.is_empty()
    }

    /// One step: reaps, admits, runs the pass and the lenses.
    pub(super) fn step(&mut self) {
        self.reap();
        self.encode();
        // The pass that devices compute already is of those that are active.
        if !self.model.is_ahead() {
            self.with_store(Self::restore);
            self.admit();
        }
        // Progress of requests that became active.
        self.deliver_unless_held();
        if self.active.is_empty() && self.awaiting_lens.is_empty() {
            return;
        }
        self.n_steps = self.n_steps.wrapping_add(1);
        let began = Instant::now();
        self.stats.set_step(Some(began));
        let step = AssertUnwindSafe(|| {
            if !self.active.is_empty() {
                self.run();
            }
            self.run_lenses();
        });
        if catch_unwind(step).is_err() {
            tracing::error!("a step panicked; its requests end");
            let panicked = || Failure::Computation("the engine panicked".into());
            while !self.active.is_empty() {
                self.end(0, Err(panicked()));
            }
            while !self.awaiting_lens.is_empty() {
                self.end_lens(0, Err(panicked()));
            }
        }
        self.deliver_unless_held();
        self.stats.set_step(None);
        self.with_store(|this| {
            this.spill_after(began.elapsed());
            this.save_some();
        });
    }

    /// Delivers the events of all requests, unless that can wait until devices compute the next pass.
    fn deliver_unless_held(&mut self) {
        if self.active.is_empty() || !self.model.computes_elsewhere() {
            self.deliver();
        }
    }

    /// Delivers the events of all requests.
    fn deliver(&mut self) {
        deliver(&mut self.active, &mut self.queue, &mut self.awaiting_lens);
    }

    fn job(&self, request: &EngineRequest) -> Job {
        let job = request.strategy.job(&request.sequence);
        let n_free_blocks = self.model.n_free_blocks();
        // Of a pass, other sequences that decode take some tokens.
        let most = self.model.n_batch().saturating_sub(self.limits.n_parallel);
        let n_free = n_free_blocks.map_or(most, |n| n * BLOCK);
        Job {
            is_whole: job.is_whole || n_free_blocks.is_none(),
            together: request.sequence.read_together(most.min(n_free).max(1)),
            ..job
        }
    }

    fn jobs(&self) -> Vec<Job> {
        self.active
            .iter()
            .map(|request| self.job(request))
            .collect()
    }

    /// The active requests, with duplicates in one group. While requests are quarantined, only one of them.
    fn groups(&mut self) -> Vec<RequestGroup> {
        let mut groups: Vec<RequestGroup> = Vec::with_capacity(self.active.len());
        let alone = self.quarantined.last().copied();
        for (i, request) in self.active.iter().enumerate() {
            if alone.is_some_and(|id| id != request.sequence.id) {
                continue;
            }
            let is_duplicate =
                |g: &&mut RequestGroup| self.active[g.members[0]].is_duplicate(request);
            let shares = request.strategy.shared_input(&request.sequence).is_some();
            let mut before = groups.iter_mut().filter(|_| shares);
            match before.find(is_duplicate) {
                Some(group) => group.members.push(i),
                None => groups.push(RequestGroup {
                    members: vec![i],
                    n_tokens: 0,
                    n_rows: 0,
                    is_whole: false,
                }),
            }
        }
        groups
    }

    /// The groups of the next pass, with their numbers of tokens.
    #[tracing::instrument(name = "schedule", level = "trace", target = "phase", skip_all)]
    fn plan(&mut self) -> Vec<RequestGroup> {
        loop {
            let budget = Budget {
                n_tokens: self.model.n_batch(),
                n_prefill: self.limits.n_prefill.max(1),
                n_drafted: N_DRAFTED,
                n_free_blocks: self.model.n_free_blocks(),
            };
            let mut groups = self.groups();
            let first = |g: &RequestGroup| &self.active[g.members[0]];
            let mut clients: Vec<&Arc<str>> = Vec::new();
            let jobs = groups.iter().map(|g| {
                let own = first(g).sequence.answer.client();
                let client = clients.iter().position(|one| *one == own);
                let client = client.unwrap_or_else(|| {
                    clients.push(own);
                    clients.len() - 1
                });
                Job {
                    client,
                    ..self.job(first(g))
                }
            });
            let jobs: Vec<Job> = jobs.collect();
            match plan_step(&jobs, &budget, self.n_steps) {
                StepPlan::Run(shares) if shares == [0] && !self.quarantined.is_empty() => {
                    // The request that was to run alone cannot run now; the next one has its turn.
                    self.quarantined.pop();
                }
                StepPlan::Run(shares) => {
                    for ((group, job), share) in groups.iter_mut().zip(&jobs).zip(shares) {
                        (group.n_tokens, group.is_whole) = (share, job.is_whole);
                    }
                    groups.retain(|group| group.n_tokens > 0);
                    return groups;
                }
                StepPlan::Preempt(at) => self.preempt(groups[at].members[0]),
            }
        }
    }

    #[tracing::instrument(name = "step", level = "trace", target = "phase", skip_all)]
    fn run(&mut self) {
        self.prepare();
        if self.active.is_empty() {
            return;
        }
        let rows = self.draft();
        let mut groups = self.plan();
        self.batch.clear();
        for group in &mut groups {
            let EngineRequest { sequence, strategy } = &mut self.active[group.members[0]];
            let n_before = self.batch.len();
            let banned = strategy.takes_best(sequence, 0);
            strategy.read(sequence, group.n_tokens, &mut self.batch);
            if let (Some(banned), true) = (banned, self.batch.len() > n_before) {
                self.batch.ban(banned);
            }
            let drafter = strategy.drafter();
            if drafter.is_some_and(|of| !of.tokens().is_empty()) {
                self.model.hold(sequence.id);
            }
            if let Some(recorder) = &sequence.recorder {
                recorder.want(&mut self.batch, n_before);
            }
            let wanted = &self.batch.outputs[n_before..];
            group.n_rows = wanted.iter().filter(|wanted| **wanted).count();
        }
        if self.batch.is_empty() {
            // Only a request that runs alone gets here, and the cache is too small for it.
            let full = "the KV cache has too few blocks";
            return self.end(0, Err(Failure::Computation(full.into())));
        }
        self.batch.wants_top = !self.batch.wants_hidden && self.tries_top(&groups);
        // Of other passes the host waits for all of the results.
        if !self.batch.wants_top {
            self.deliver();
        }
        let mut faults = vec![None; self.active.len()];
        let before = self.model.work();
        let members = groups.iter().flat_map(|group| &group.members);
        let mut members = members.map(|i| &self.active[*i].sequence);
        let only_decodes = members.all(|sequence| !sequence.is_prefill);
        let began = Instant::now();
        let computed = self.forward(&groups, &mut faults);
        let took = began.elapsed();
        let work = self.model.work().since(&before);
        tracing::trace!(target: "phase", ?work);
        match computed {
            Ok(()) => {
                self.settle(&groups, faults);
                self.measured(rows, only_decodes.then_some(took));
            }
            Err(error) => self.step_failed(&groups, error),
        }
    }

    /// Lets each request choose the tokens of its next batch.
    fn prepare(&mut self) {
        let mut at = 0;
        while at < self.active.len() {
            let EngineRequest { sequence, strategy } = &mut self.active[at];
            match strategy.prepare(sequence).transpose() {
                None => at += 1,
                Some(ending) => self.end(at, ending),
            }
        }
    }

    /// Whether the highest logits of rows are worth a try for any request of a pass.
    fn tries_top(&self, groups: &[RequestGroup]) -> bool {
        groups.iter().any(|group| {
            let EngineRequest { sequence, strategy } = &self.active[group.members[0]];
            group.n_rows > 0 && strategy.tries_top(sequence)
        })
    }

    /// Runs the pass. Each row goes to the requests of its group. `faults` receives the first fault of each
    /// request.
    fn forward(
        &mut self,
        groups: &[RequestGroup],
        faults: &mut [Option<Failure>],
    ) -> model::Result<()> {
        let of_rows = groups.iter().enumerate();
        let of_rows = of_rows.flat_map(|(at, group)| std::iter::repeat_n(at, group.n_rows));
        let outputs = self.batch.positions.iter().zip(&self.batch.outputs);
        let places = outputs
            .filter(|(_, wanted)| **wanted)
            .map(|(place, _)| *place);
        let rows: Vec<(usize, (SequenceId, u32))> = of_rows.zip(places).collect();
        let waits = !self.queue.is_empty();
        let has_room = !self.free_ids.is_empty() || waits && self.in_the_way().is_some();
        self.captured_rows.clear();
        let mut sink = StepSink {
            groups,
            rows,
            active: &mut self.active,
            queue: &mut self.queue,
            awaiting_lens: &mut self.awaiting_lens,
            faults,
            buffer: &mut self.buffer,
            captured_rows: &mut self.captured_rows,
            has_room,
            is_retry: !self.quarantined.is_empty(),
            is_delivered: false,
        };
        let computed = self.model.forward(&self.batch, &mut sink);
        if !sink.is_delivered && self.model.computes_elsewhere() {
            self.deliver();
        }
        computed
    }

    /// Commits the results of a step for each request, trims the cache to the committed tokens, and ends completed
    /// requests.
    fn settle(&mut self, groups: &[RequestGroup], mut faults: Vec<Option<Failure>>) {
        // The request that ran alone, if one did, is not retried again.
        self.quarantined.pop();
        let mut took_part: Vec<(usize, bool)> = Vec::with_capacity(self.active.len());
        for group in groups {
            took_part.extend(group.members.iter().map(|i| (*i, group.is_whole)));
        }
        took_part.sort_unstable();
        let mut captured_rows = self.model.captured_rows();
        captured_rows.append(&mut self.captured_rows);
        let mut moved = Vec::new();
        // In reverse order, so that earlier indices stay valid.
        for (i, is_whole) in took_part.into_iter().rev() {
            let EngineRequest { sequence, strategy } = &mut self.active[i];
            let result = match faults[i].take() {
                Some(failure) => Err(failure),
                None => {
                    if !sequence.is_prefill {
                        self.turns.charge(sequence.answer.client(), 1);
                    }
                    let outcome = strategy.commit(sequence);
                    let drafter = strategy.drafter();
                    if let Some(step) = drafter.and_then(|of| self.drafts.learn(of)) {
                        self.stats.count_draft(step);
                        self.n_accepted += step.n_accepted;
                    }
                    outcome
                }
            };
            let result = result.and_then(|ending| self.record(i, &captured_rows).map(|()| ending));
            let result = result.and_then(|ending| self.pool(i).map(|()| ending));
            if let Some(ending) = result.transpose() {
                self.end(i, ending);
                continue;
            }
            self.trim(i);
            if is_whole {
                moved.push(self.active.remove(i));
            }
        }
        self.active.extend(moved.into_iter().rev());
    }

    /// Quarantines the requests of a failed step, so that only those fail that cannot continue.
    fn step_failed(&mut self, groups: &[RequestGroup], error: model::Error) {
        let taking_part: Vec<usize> = groups.iter().flat_map(|g| g.members.clone()).collect();
        for i in &taking_part {
            let EngineRequest { sequence, strategy } = &mut self.active[*i];
            if strategy.abort() {
                sequence.ids().for_each(|id| self.model.release(id));
            }
        }
        // A single sequence that others may have disturbed is read again.
        let is_over = !matches!(error, model::Error::Disturbed);
        if let ([only], true) = (taking_part.as_slice(), is_over) {
            if matches!(error, model::Error::NotFinite) {
                return self.end(*only, Err(error.into()));
            }
            tracing::error!(%error, "a step failed; its request ends");
            return self.end(*only, Err(error.into()));
        }
        tracing::warn!(%error, "a step failed; each of its requests runs alone");
        let ids = taking_part.iter().map(|i| self.active[*i].sequence.id);
        self.quarantined = ids.collect();
        if self.model.n_free_blocks().is_none() {
            return;
        }
        for EngineRequest { sequence, strategy } in &mut self.active {
            match self.model.next(sequence.id) {
                0 if strategy.reuses_prefix() => {
                    let known = self.model.resume(sequence.id, sequence.reusable());
                    sequence.start(sequence.id, &known, Vec::new());
                }
                n => sequence.n_cached = n as usize,
            }
        }
    }

    fn end(&mut self, at: usize, result: Result<FinishReason, Failure>) {
        let mut request = self.active.remove(at);
        if result.is_ok() {
            self.share_drafts(&mut request);
        }
        let sequence = request.sequence;
        let result = result.map_err(|failure| match failure.of_changed(sequence.is_changed) {
            Failure::NotFinite {
                fault, is_changed, ..
            } => {
                // Its cached keys and values would spoil the completions that share its prefix.
                sequence.ids().for_each(|id| self.model.discard(id));
                let place = self.model.first_not_finite(sequence.id, &sequence.tokens);
                Failure::NotFinite {
                    fault,
                    place,
                    is_changed,
                }
            }
            other => other,
        });
        if let (Ok(reason), true) = (&result, sequence.awaits_lens()) {
            return self.await_lens(sequence, *reason);
        }
        self.release(&sequence);
        // A client that has the answer finds its place free.
        self.report();
        match result {
            Ok(reason) => sequence.finish(reason),
            Err(failure) => sequence.answer.fail(failure),
        }
    }
}
