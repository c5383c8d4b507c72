//! Which requests run in the next step, and with how many tokens: a pure function of numbers.
//!
//! Decoding requests come first, with one token each, so that a long prompt never stalls them. While any of them
//! runs, prompts share a small budget, otherwise the whole step. Half of it is for the earliest prompt and half for
//! the shortest, so that long prompts do not delay short ones, nor short ones a long one. If prompts are of several clients,
//! the clients share first, so that the prompts of one do not delay those of another. Prompts that
//! are equally long and the shortest get equal parts. Draft tokens come last.
//! If blocks run out, the latest request is preempted.

use std::collections::BTreeMap;

use crate::plan::BLOCK_LEN;

const BLOCK: usize = BLOCK_LEN as usize;

/// An active request as the scheduler sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Job {
    /// The number of its client.
    pub(super) client: usize,
    /// Tokens that must be read before the next one can be chosen, at least 1.
    pub(super) pending: usize,
    /// Draft tokens that may be read after the pending ones.
    pub(super) drafted: usize,
    /// Whether its prompt is still being read.
    pub(super) is_prefill: bool,
    /// Whether its tokens must all go into one pass.
    pub(super) is_whole: bool,
    /// Positions left in its last block.
    pub(super) n_free_in_block: usize,
    /// Positions that are taken before its first token, such as those of a source.
    pub(super) n_before: usize,
    /// Blocks reserved for it beyond those of its pending tokens.
    pub(super) reserved: usize,
    /// Number of tokens after which a pass must end.
    pub(super) cut: Option<usize>,
    /// Number of its first tokens that one pass must read, which ends after them.
    pub(super) together: Option<usize>,
}

/// The limits of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    pub(super) n_tokens: usize,
    /// Maximum number of prefill tokens while other requests decode, at least 1.
    pub(super) n_prefill: usize,
    pub(super) n_drafted: usize,
    /// Free blocks; none if nothing is cached.
    pub(super) n_free_blocks: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StepPlan {
    /// Number of tokens of each job, draft tokens included.
    Run(Vec<usize>),
    /// The index of a job that must be preempted first.
    Preempt(usize),
}

struct StepShares<'a> {
    jobs: &'a [Job],
    shares: Vec<usize>,
    left: usize,
    blocks: Option<usize>,
}

impl StepShares<'_> {
    /// Maximum number of tokens of a job for which blocks are left.
    fn fits(&self, i: usize) -> usize {
        let (n_free, n_before) = self.free_and_before(i);
        self.blocks.map_or(usize::MAX, |blocks| {
            (n_free + blocks * BLOCK).saturating_sub(n_before)
        })
    }

    /// Positions left in the last block of a job, and those that are taken before its next token.
    fn free_and_before(&self, i: usize) -> (usize, usize) {
        match (self.jobs[i], self.shares[i]) {
            (job, 0) => (job.n_free_in_block, job.n_before),
            (job, n) => (job.n_free_in_block.saturating_sub(n + job.n_before), 0),
        }
    }

    /// Gives a job at most `n` more tokens. Returns their number.
    fn give(&mut self, i: usize, n: usize) -> usize {
        let n = n.min(self.left).min(self.fits(i));
        let (n_free, n_before) = self.free_and_before(i);
        if let Some(blocks) = self.blocks.as_mut().filter(|_| n > 0) {
            *blocks -= (n + n_before).saturating_sub(n_free).div_ceil(BLOCK);
        }
        self.shares[i] += n;
        self.left -= n;
        n
    }

    /// Gives a job at most `n` tokens, once in a step: all pending ones, or as many as end at a block boundary.
    fn give_part(&mut self, i: usize, n: usize) -> usize {
        let job = self.jobs[i];
        if self.shares[i] > 0 {
            return 0;
        }
        if let Some(all) = job.is_whole.then_some(job.pending).or(job.together) {
            let fits = all <= self.left.min(self.fits(i));
            return if fits { self.give(i, all) } else { 0 };
        }
        let all = job.cut.unwrap_or(job.pending).min(job.pending);
        let mut n = all.min(n).min(self.left).min(self.fits(i));
        if n < all && n > job.n_free_in_block {
            let whole = job.n_free_in_block + (n - job.n_free_in_block) / BLOCK * BLOCK;
            n = if whole > 0 { whole } else { n };
        }
        self.give(i, n)
    }

    /// Shares `budget` equally among the clients that have prompts. What one does not need is for the others.
    fn prompts(&mut self, mut budget: usize) {
        let mut by_client: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for i in (0..self.jobs.len()).filter(|i| self.jobs[*i].is_prefill) {
            by_client.entry(self.jobs[i].client).or_default().push(i);
        }
        let mut by_client: Vec<Vec<usize>> = by_client.into_values().collect();
        by_client.sort_by_key(|own| own.iter().map(|i| self.jobs[*i].pending).sum::<usize>());
        let mut n_left = by_client.len();
        for own in by_client {
            let taken = self.prompts_of_client(&own, budget.div_ceil(n_left));
            budget = budget.saturating_sub(taken);
            n_left -= 1;
        }
    }

    /// Gives prompts of one client, in the order of their arrival, at most about `budget` tokens. Returns their number.
    fn prompts_of_client(&mut self, prompts: &[usize], budget: usize) -> usize {
        let before = self.left;
        let Some(earliest) = prompts.first().copied() else {
            return 0;
        };
        let shortest = prompts
            .iter()
            .copied()
            .min_by_key(|i| self.jobs[*i].pending);
        let shortest = shortest.unwrap_or(earliest);
        let mut left = budget;
        let pending = self.jobs[shortest].pending;
        let equal = prompts.iter().copied();
        let equal: Vec<usize> = equal.filter(|i| self.jobs[*i].pending == pending).collect();
        if shortest == earliest && equal.len() > 1 {
            let part = (left / equal.len()).max(BLOCK);
            for i in equal {
                left = left.saturating_sub(self.give_part(i, part.min(left)));
            }
        } else if shortest != earliest {
            left = left.saturating_sub(self.give_part(shortest, left / 2));
        }
        for i in prompts.iter().copied() {
            left = left.saturating_sub(self.give_part(i, left));
        }
        before - self.left
    }
}

/// Plans a step. `jobs` are in the order of arrival. `n_steps` counts the steps, so that decoding requests
/// alternate if there are more of them than a step holds.
pub(super) fn plan_step(jobs: &[Job], budget: &Budget, n_steps: usize) -> StepPlan {
    let mut planner = StepShares {
        jobs,
        shares: vec![0; jobs.len()],
        left: budget.n_tokens,
        blocks: budget.n_free_blocks,
    };
    let decoding: Vec<usize> = (0..jobs.len()).filter(|i| !jobs[*i].is_prefill).collect();
    let from = match decoding.len() > budget.n_tokens {
        true => n_steps * budget.n_tokens % decoding.len(),
        false => 0,
    };
    let in_order = decoding.iter().cycle().skip(from).take(decoding.len());
    for i in in_order.copied() {
        let wanted = jobs[i].pending.min(planner.left);
        if jobs[i].is_whole {
            planner.give_part(i, wanted);
        } else if planner.give(i, wanted) == 0 && wanted > 0 && jobs.len() > 1 {
            return StepPlan::Preempt(jobs.len() - 1);
        }
    }
    let is_decoding = decoding.iter().any(|i| planner.shares[*i] > 0);
    let for_prompts = match is_decoding {
        true => budget.n_prefill.min(planner.left),
        false => planner.left,
    };
    planner.prompts(for_prompts);
    if planner.left == budget.n_tokens && jobs.len() > 1 {
        return StepPlan::Preempt(jobs.len() - 1);
    }
    let mut drafted = budget.n_drafted;
    for i in decoding {
        if planner.shares[i] == jobs[i].pending {
            drafted -= planner.give(i, jobs[i].drafted.min(drafted));
        }
    }
    StepPlan::Run(planner.shares)
}

/// Whether another request, whose tokens need `n_tokens` positions, can start while `jobs` run.
pub(super) fn can_start(jobs: &[Job], n_tokens: usize, n_blocks: Option<usize>) -> bool {
    let Some(n_blocks) = n_blocks.filter(|_| !jobs.is_empty()) else {
        return true;
    };
    let taken = |job: &Job| (job.pending + job.n_before).saturating_sub(job.n_free_in_block);
    let blocks = |job: &Job| job.reserved + taken(job).div_ceil(BLOCK);
    let promised: usize = jobs.iter().map(blocks).sum();
    promised + n_tokens.div_ceil(BLOCK) <= n_blocks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode() -> Job {
        Job {
            pending: 1,
            ..Job::default()
        }
    }

    fn prompt(pending: usize) -> Job {
        Job {
            pending,
            is_prefill: true,
            ..Job::default()
        }
    }

    fn whole(pending: usize) -> Job {
        Job {
            is_whole: true,
            ..prompt(pending)
        }
    }

    const BUDGET: Budget = Budget {
        n_tokens: 256,
        n_prefill: 64,
        n_drafted: 8,
        n_free_blocks: Some(100),
    };

    fn check(jobs: &[Job], budget: Budget, expected: &[usize]) {
        assert_eq!(
            plan_step(jobs, &budget, 0),
            StepPlan::Run(expected.to_vec())
        );
    }

    #[test]
    fn answers_come_before_prompts_and_prompts_share_what_is_left() {
        check(&[], BUDGET, &[]);
        check(&[decode(), decode()], BUDGET, &[1, 1]);
        check(&[prompt(500)], BUDGET, &[256]);
        check(&[prompt(500), decode()], BUDGET, &[64, 1]);
        // The earliest and the shortest get a half each, the others the rest.
        check(&[prompt(500), prompt(20), decode()], BUDGET, &[32, 20, 1]);
        check(&[prompt(500), prompt(400)], BUDGET, &[128, 128]);
        check(&[prompt(3), prompt(500), decode()], BUDGET, &[3, 48, 1]);
        // Equal ones get equal parts, in one pass.
        check(&[prompt(500), prompt(500)], BUDGET, &[128, 128]);
        check(&[prompt(500); 4], BUDGET, &[64; 4]);
        check(
            &[prompt(90), prompt(500), prompt(90)],
            BUDGET,
            &[90, 64, 90],
        );
    }

    #[test]
    fn clients_share_what_prompts_may_take() {
        let of = |client, pending| Job {
            client,
            ..prompt(pending)
        };
        // Three prompts of one client delay that of another one by half a step.
        let many = [of(0, 500), of(0, 400), of(0, 300), of(1, 450), decode()];
        check(&many, BUDGET, &[16, 0, 16, 32, 1]);
        // What one does not need is for the others.
        check(&[of(0, 500), of(1, 10), decode()], BUDGET, &[48, 10, 1]);
        let tiny = Budget {
            n_prefill: 1,
            ..BUDGET
        };
        check(&[of(0, 500), of(1, 20), decode()], tiny, &[0, 1, 1]);
    }

    #[test]
    fn decoding_requests_alternate_where_there_are_too_many() {
        let few = Budget {
            n_tokens: 2,
            ..BUDGET
        };
        let jobs = [decode(); 3];
        let steps: Vec<StepPlan> = (0..3)
            .map(|n_steps| plan_step(&jobs, &few, n_steps))
            .collect();
        let expected = [vec![1, 1, 0], vec![1, 0, 1], vec![0, 1, 1]].map(StepPlan::Run);
        assert_eq!(steps, expected);
    }

    #[test]
    fn tokens_that_belong_together_are_read_in_one_pass_or_wait() {
        let together = |n| Job {
            together: Some(n),
            ..prompt(500)
        };
        // The share of prompts does not divide them.
        check(&[together(200), decode()], BUDGET, &[200, 1]);
        check(&[prompt(600), together(200)], BUDGET, &[48, 200]);
        check(&[together(200), together(50)], BUDGET, &[200, 50]);
        let full = Budget {
            n_free_blocks: Some(1),
            ..BUDGET
        };
        check(&[together(17)], full, &[0]);
        check(&[together(16)], full, &[16]);
    }

    #[test]
    fn a_whole_sequence_waits_for_capacity() {
        let all = Budget {
            n_free_blocks: None,
            ..BUDGET
        };
        check(&[whole(200), whole(100), whole(56)], all, &[200, 0, 56]);
        let running = Job {
            is_prefill: false,
            ..whole(200)
        };
        check(&[running, running], all, &[200, 0]);
    }

    #[test]
    fn a_source_takes_blocks_before_its_first_token() {
        let sourced = Job {
            n_before: 40,
            ..prompt(1)
        };
        let blocks = |n| Budget {
            n_free_blocks: Some(n),
            ..BUDGET
        };
        check(&[sourced], blocks(3), &[1]);
        check(&[sourced, decode()], blocks(4), &[1, 1]);
        check(&[sourced, decode()], blocks(3), &[0, 1]);
        assert!(can_start(&[sourced], 16, Some(4)));
        assert!(!can_start(&[sourced], 17, Some(4)));
    }

    #[test]
    fn passes_end_where_a_block_or_a_cut_does() {
        let started = Job {
            n_free_in_block: 5,
            ..prompt(500)
        };
        check(&[started, decode()], BUDGET, &[53, 1]);
        let cut = Job {
            cut: Some(37),
            ..started
        };
        check(&[cut, decode()], BUDGET, &[37, 1]);
    }

    #[test]
    fn draft_tokens_are_read_when_all_else_is() {
        let drafting = Job {
            drafted: 6,
            n_free_in_block: 16,
            ..decode()
        };
        check(&[drafting, drafting, prompt(100)], BUDGET, &[7, 3, 64]);
        let full = Budget {
            n_tokens: 3,
            ..BUDGET
        };
        check(&[drafting, drafting], full, &[2, 1]);
    }

    #[test]
    fn the_latest_is_preempted_for_earlier_requests() {
        let tight = |n_blocks| Budget {
            n_free_blocks: Some(n_blocks),
            ..BUDGET
        };
        let inside = Job {
            n_free_in_block: 3,
            ..decode()
        };
        check(&[inside, inside], tight(0), &[1, 1]);
        let step = plan_step(&[decode(), inside], &tight(0), 0);
        assert_eq!(step, StepPlan::Preempt(1));
        let step = plan_step(&[prompt(10), prompt(10)], &tight(0), 0);
        assert_eq!(step, StepPlan::Preempt(1));
        check(&[prompt(100), inside], tight(2), &[32, 1]);
        assert!(can_start(&[inside, prompt(20)], 31, Some(4)));
        assert!(!can_start(&[inside, prompt(20)], 33, Some(4)));
        assert!(
            can_start(&[], 1000, Some(4)),
            "nobody else will give back any"
        );
    }

    /// A request of a history: its arrival, and the tokens of its prompt and its answer.
    #[derive(Clone, Debug)]
    struct Life {
        arrives: usize,
        prompt: usize,
        answer: usize,
        is_cancelled_at: Option<usize>,
    }

    fn lives() -> impl Strategy<Value = Vec<Life>> {
        let life = (
            0..60usize,
            1..200usize,
            1..40usize,
            prop::option::weighted(0.2, 0..120usize),
        );
        let life = life.prop_map(|(arrives, prompt, answer, is_cancelled_at)| Life {
            arrives,
            prompt,
            answer,
            is_cancelled_at,
        });
        prop::collection::vec(life, 1..24)
    }

    #[derive(Debug)]
    struct Running {
        life: usize,
        /// Tokens in the cache, and tokens of prompt and answer so far.
        n_cached: usize,
        len: usize,
        is_prefill: bool,
        waits: usize,
    }

    impl Running {
        fn job(&self) -> Job {
            Job {
                client: self.life % 3,
                pending: self.len - self.n_cached,
                drafted: if self.is_prefill { 0 } else { self.life % 5 },
                is_prefill: self.is_prefill,
                is_whole: false,
                reserved: 0,
                n_free_in_block: self.blocks() * BLOCK - self.n_cached,
                n_before: 0,
                cut: None,
                together: None,
            }
        }

        fn blocks(&self) -> usize {
            self.n_cached.div_ceil(BLOCK)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Every request that is not cancelled completes, within the budgets and the blocks. No running request
        /// waits longer than a round of steps unless it was preempted.
        #[test]
        fn random_histories_keep_the_invariants(
            lives in lives(),
            n_parallel in 1..9usize,
            n_tokens in 4..200usize,
            n_prefill in 1..100usize,
            n_blocks in 16..60usize,
        ) {
            let mut queue: Vec<Running> = Vec::new();
            let mut running: Vec<Running> = Vec::new();
            let mut n_done = 0;
            let mut tick = 0;
            while n_done < lives.len() {
                for (life, it) in lives.iter().enumerate().filter(|(_, l)| l.arrives == tick) {
                    let new = Running { life, n_cached: 0, len: it.prompt, is_prefill: true, waits: 0 };
                    queue.push(new);
                }
                let is_cancelled = |r: &Running| lives[r.life].is_cancelled_at == Some(tick);
                let before = queue.len() + running.len();
                queue.retain(|r| !is_cancelled(r));
                running.retain(|r| !is_cancelled(r));
                n_done += before - queue.len() - running.len();
                let free = |running: &[Running]| {
                    n_blocks - running.iter().map(Running::blocks).sum::<usize>()
                };
                let jobs = |running: &[Running]| running.iter().map(Running::job).collect::<Vec<Job>>();
                while running.len() < n_parallel && !queue.is_empty()
                    && can_start(&jobs(&running), queue[0].len, Some(free(&running)))
                {
                    running.push(queue.remove(0));
                }
                tick += 1;
                prop_assert!(tick < 20_000, "somebody starves: {running:?} {queue:?}");
                if running.is_empty() {
                    // A request may be cancelled before it arrives.
                    let arrived = lives.iter().filter(|l| l.arrives < tick).count();
                    prop_assert!(queue.is_empty() || arrived > 0);
                    continue;
                }
                let budget = Budget { n_tokens, n_prefill, n_drafted: 8, n_free_blocks: Some(free(&running)) };
                let jobs = jobs(&running);
                let shares = match plan_step(&jobs, &budget, tick) {
                    StepPlan::Run(shares) => shares,
                    StepPlan::Preempt(i) => {
                        prop_assert!(i > 0, "the earliest is never preempted");
                        let mut preempted = running.remove(i);
                        preempted.n_cached = 0;
                        preempted.is_prefill = true;
                        queue.insert(0, preempted);
                        continue;
                    }
                };
                prop_assert_eq!(shares.len(), jobs.len());
                let total: usize = shares.iter().sum();
                prop_assert!(0 < total && total <= n_tokens);
                let of_prompts: usize = (0..jobs.len()).filter(|i| jobs[*i].is_prefill).map(|i| shares[i]).sum();
                let is_decoding = (0..jobs.len()).any(|i| !jobs[i].is_prefill && shares[i] > 0);
                prop_assert!(!is_decoding || of_prompts <= n_prefill);
                let mut done = Vec::new();
                for (i, share) in shares.iter().copied().enumerate() {
                    let r = &mut running[i];
                    prop_assert!(share <= jobs[i].pending + jobs[i].drafted);
                    r.waits = if share == 0 { r.waits + 1 } else { 0 };
                    let round = jobs.len().div_ceil(n_tokens) + 1;
                    prop_assert!(jobs[i].is_prefill || r.waits <= round, "waits {}", r.waits);
                    let real = share.min(jobs[i].pending);
                    r.n_cached += real;
                    if real == jobs[i].pending {
                        r.is_prefill = false;
                        r.len += 1;
                        if r.len >= lives[r.life].prompt + lives[r.life].answer {
                            done.push(i);
                        }
                    }
                }
                let used: usize = running.iter().map(Running::blocks).sum();
                prop_assert!(used <= n_blocks);
                for i in done.into_iter().rev() {
                    running.remove(i);
                    n_done += 1;
                }
            }
        }
    }
}
