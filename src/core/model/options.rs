//! The options with which a model runs, and what follows from them for a plan.

use crate::arch::Mode;
use crate::blocks::cache::CacheOptions as Visibility;
use crate::plan::{
    BLOCK_LEN, CacheCapacity, CachePlan, KeyTokens, KeyValuePlan, Plan, SlotLayout, TargetPlan,
    Unit,
};
use lab_base::ggml::KvBlocks;
use lab_base::weights::TensorType;

use super::buckets::bucket;
use super::error::{Error, Result};

/// The options with which a model runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Slots of the cache: positions of all sequences together. 0: nothing is cached between passes.
    pub n_ctx: usize,
    /// Maximum number of positions of a sequence, which decides between RoPE tables for short and for long
    /// contexts; 0: the context length of the training.
    pub n_ctx_seq: usize,
    /// Maximum number of sequences that run at the same time, for which recurrent states and the slots of attention
    /// windows are made; at least 1.
    pub n_seqs: usize,
    /// Number of checkpoints: cached states of ended sequences, and of positions within running ones, from which a
    /// later sequence can continue. Only for models with recurrent states.
    pub n_checkpoints: usize,
    /// Maximum number of tokens of a pass.
    pub n_batch: usize,
    /// Maximum number of rows of logits that are computed before they are read; 0: as many as take 64 MB, and on a device
    /// one for each sequence.
    pub n_outputs: usize,
    /// Whether a head that is not on the processor gives the highest logits of its rows besides all of them.
    pub top_logits: bool,
    /// Whether that device may begin the next pass with the best tokens before these are read.
    pub feeds_tokens: bool,
    /// Number of threads that compute.
    pub n_threads: usize,
    /// Element type of cached keys.
    pub k_type: TensorType,
    /// Element type of cached values.
    pub v_type: TensorType,
    /// Whether flash attention is used.
    pub flash_attn: bool,
    /// Whether attention on other devices than the processor reads block tables.
    pub device_tables: bool,
    /// Whether the bits of a sequence's results must not depend on the rest of its batches, which slows products
    /// of some types.
    pub deterministic: bool,
    /// Whether results are vectors instead of logits: the hidden state after the final norm.
    pub embeddings: bool,
    /// Whether every token attends to the whole pass, regardless of the definition.
    pub non_causal: bool,
    /// Whether the values of a pass can be read after it, which takes memory for all of them.
    pub capture: bool,
    /// The values that passes give the drafter of the model, if it has one that reads any.
    pub for_drafter: Option<TargetPlan>,
    /// Whether products on the processor read copies of quantised matrices whose rows are interleaved.
    pub interleave: bool,
    /// Whether plain loops compute instead of the processor's kernels, which is slow and independent of them.
    pub plain: bool,
}

/// Positions that a drafter has for each sequence beyond those of its target.
const AHEAD: usize = 2 * BLOCK_LEN as usize;

/// Number of highest logits of a row that a device gives.
pub const N_TOP: usize = 64;

impl Options {
    /// Options for one sequence on one thread, 16-bit keys and values and flash attention, with `n_ctx` slots and
    /// passes of at most `n_batch` tokens.
    pub fn plain(n_ctx: usize, n_batch: usize) -> Self {
        Self {
            n_ctx,
            n_ctx_seq: 0,
            n_seqs: 1,
            n_checkpoints: 0,
            n_batch,
            n_outputs: 0,
            top_logits: true,
            feeds_tokens: true,
            n_threads: 1,
            k_type: TensorType::F16,
            v_type: TensorType::F16,
            flash_attn: true,
            device_tables: false,
            deterministic: false,
            embeddings: false,
            non_causal: false,
            capture: false,
            for_drafter: None,
            interleave: true,
            plain: false,
        }
    }

    /// The options of a drafter with this plan whose target runs with these.
    #[must_use]
    pub fn of_drafter(&self, plan: &Plan) -> Self {
        let block = plan.target.as_ref().and_then(|target| target.block);
        let n_rows = block.map_or(1, |block| block.len as usize);
        Self {
            for_drafter: None,
            top_logits: false,
            feeds_tokens: false,
            // A row of each sequence has logits, or all of a block.
            n_outputs: self.n_seqs.max(1).saturating_mul(n_rows),
            n_batch: self.n_batch.max(n_rows),
            // Drafts go on beyond what the target has read.
            n_ctx: match self.n_ctx {
                0 => 0,
                n => n + self.n_seqs.max(1) * AHEAD,
            },
            ..self.clone()
        }
    }

    /// The default maximum number of tokens of a pass.
    pub const N_BATCH: usize = 512;

    /// The default maximum number of tokens of a pass where layers are on devices other than the processor.
    pub const N_BATCH_ON_DEVICES: usize = 2048;

    pub(super) fn capacity(&self, plan: &Plan) -> CacheCapacity {
        CacheCapacity {
            n_ctx: self.n_ctx as u64,
            n_seqs: self.n_seqs.max(1) as u64,
            n_batch: self.n_batch as u64,
            layout: match (self.is_paged(plan), self.pads(plan)) {
                (true, _) => SlotLayout::Blocks,
                (false, false) => SlotLayout::Runs,
                (false, true) => SlotLayout::PaddedRuns,
            },
        }
    }

    /// Whether rows of nobody pad the passes of a plan, so that few graphs serve all. They cost time on the processor,
    /// where building a graph takes a small part of a pass, and save it on devices. Recurrent operators need equally many
    /// tokens of each sequence; the keys of sources and of spans follow from all rows of a pass; text diffusion and
    /// encoders read whole texts, and values that are captured are those of all rows. Passes of these have the shape of
    /// their batch.
    pub(super) fn pads(&self, plan: &Plan) -> bool {
        let is_simple = |group: &CachePlan| {
            let pools = |rows: &KeyValuePlan| rows.pooled.is_some();
            group.keys == KeyTokens::Tokens
                && group.span().is_none()
                && self.visibility(plan, group).causal
                && !plan.key_values().any(|(_, rows)| pools(rows))
        };
        self.n_ctx > 0
            && !self.is_paged(plan)
            && !self.capture
            && !plan.devices.is_empty()
            && plan.units().any(|unit| unit.device != 0)
            && plan.recurrent().next().is_none()
            && plan.source.is_none()
            && plan.diffusion.is_none()
            && plan.caches.iter().all(is_simple)
    }

    /// Maximum number of rows of a pass, those of nobody included.
    pub(super) fn rows_of_pass(&self, plan: &Plan) -> usize {
        let n = self.n_batch.max(1);
        match self.pads(plan) {
            true => bucket(n) + bucket(self.n_seqs.max(1)),
            false => n,
        }
    }

    /// Maximum number of scores of a pass over runs in a pool of `n_slots` slots, as rows times keys: whole batches of
    /// the default size may attend to all slots, larger ones to fewer.
    pub(super) fn most_scores(&self, plan: &Plan, n_slots: usize) -> usize {
        const STEP: usize = 256;
        let n = self.rows_of_pass(plan);
        let n_kv = match self.pads(plan) {
            true => (Self::N_BATCH * n_slots / n).next_multiple_of(STEP),
            false => n_slots,
        };
        n * n_kv.min(n_slots)
    }

    /// The largest context, in whole blocks, whose caches and states take at most `bytes`.
    pub fn n_ctx_within(&self, plan: &Plan, bytes: u64) -> usize {
        let states = plan.recurrent_bytes(self.n_rows() as u64 + 1);
        let left = bytes.saturating_sub(states.unwrap_or(u64::MAX));
        let capacity = self.capacity(plan);
        let fits = |n_blocks: u64| {
            let capacity = CacheCapacity {
                n_ctx: n_blocks * BLOCK_LEN,
                ..capacity
            };
            plan.cache_bytes(capacity, self.k_type, self.v_type)
                .is_some_and(|needed| needed <= left)
        };
        let (mut fitting, mut too_many) = (0, i32::MAX as u64 / BLOCK_LEN);
        while fitting + 1 < too_many {
            let middle = fitting.midpoint(too_many);
            if fits(middle) {
                fitting = middle;
            } else {
                too_many = middle;
            }
        }
        (fitting * BLOCK_LEN) as usize
    }

    /// Bytes of caches and states with one block; `None` on overflow, or if a row is not a whole number of blocks.
    pub fn bytes_of_block(&self, plan: &Plan) -> Option<u64> {
        let capacity = CacheCapacity {
            n_ctx: BLOCK_LEN,
            ..self.capacity(plan)
        };
        let states = plan.recurrent_bytes(self.n_rows() as u64 + 1)?;
        plan.cache_bytes(capacity, self.k_type, self.v_type)?
            .checked_add(states)
    }

    /// Whether results are logits.
    pub(super) fn projects(&self, plan: &Plan) -> bool {
        let head = plan.head.as_ref().and_then(|head| head.unit.as_ref());
        head.is_some() && !self.embeddings
    }

    /// Elements of a row of results.
    pub(super) fn row_width(&self, plan: &Plan) -> usize {
        let n = match self.projects(plan) {
            true => plan.n_logits(),
            false => plan.n_embd,
        };
        n as usize
    }

    /// Maximum number of rows of results that are computed at a time.
    pub(super) fn outputs_at_once(&self, plan: &Plan) -> usize {
        const BYTES: usize = 64 << 20;
        match self.n_outputs {
            _ if !self.projects(plan) || self.capture => usize::MAX,
            0 => {
                let n = BYTES / (size_of::<f32>() * self.row_width(plan).max(1));
                let head = plan.head.as_ref().and_then(|head| head.unit.as_ref());
                let is_on_device = head.is_some_and(|unit| unit.device != 0);
                let of_sequences = if is_on_device { bucket(self.n_seqs) } else { 1 };
                n.max(of_sequences)
            }
            n => n,
        }
    }

    /// Number of highest logits that a pass gives for each row; 0: rows are read whole. The processor's rows are where they
    /// are looked at.
    pub(super) fn n_top(&self, plan: &Plan) -> usize {
        let head = plan.head.as_ref().and_then(|head| head.unit.as_ref());
        let is_elsewhere = head.is_some_and(|unit| unit.device != 0);
        let is_used = self.top_logits && self.projects(plan) && !self.capture && !self.plain;
        match is_elsewhere && is_used && plan.n_vocab > 4 * N_TOP as u64 {
            true => N_TOP,
            false => 0,
        }
    }

    /// Whether the best tokens of a decoding pass can be the tokens of the next one without the host: passes are padded, and one
    /// device computes all of them.
    pub(super) fn feeds_next(&self, plan: &Plan) -> bool {
        let head = plan.head.as_ref().and_then(|head| head.unit.as_ref());
        self.feeds_tokens
            && self.n_top(plan) > 0
            && self.pads(plan)
            && plan.target.is_none()
            && plan.n_vocab <= 1 << 20
            && head.is_some_and(|head| {
                let mut devices = plan.units().map(|unit| unit.device);
                head.device == plan.embed.device && devices.all(|device| device == head.device)
            })
    }

    /// Slots of each KV group.
    pub(super) fn n_slots(&self, plan: &Plan) -> Vec<usize> {
        let capacity = self.capacity(plan);
        let groups = plan.caches.iter();
        groups.map(|group| capacity.slots(group) as usize).collect()
    }

    /// Whether attention reads block tables instead of runs. The processor has this operation, and some devices have a
    /// part of it.
    pub(super) fn is_paged(&self, plan: &Plan) -> bool {
        let fits = |(unit, rows): (&Unit, &KeyValuePlan)| {
            let (k, v) = (rows.k / rows.heads, rows.v / rows.heads);
            let v_type = if rows.v_in_k {
                self.k_type
            } else {
                self.v_type
            };
            let can_hold = KvBlocks::can_hold;
            let index = can_hold(self.k_type, rows.index);
            let is_read = unit.device == 0 || (self.device_tables && rows.index == 0);
            is_read && can_hold(self.k_type, k) && can_hold(v_type, v) && index
        };
        self.flash_attn && self.n_ctx > 0 && plan.key_values().all(fits)
    }

    pub(super) fn check_deterministic(&self, plan: &Plan) -> Result<()> {
        let on_devices = plan.key_values().any(|(unit, _)| unit.device != 0);
        match self.n_ctx > 0 && (on_devices || !self.is_paged(plan)) {
            true => Err(Error::NotDeterministic),
            false => Ok(()),
        }
    }

    /// Number of states that are stored, if the model has any.
    pub(super) fn n_rows(&self) -> usize {
        match self.n_ctx {
            0 => 0,
            _ => self.n_seqs.saturating_add(self.n_checkpoints),
        }
    }

    /// Whether keys, and values, are cached in a quantised type.
    pub(super) fn is_quantised(&self) -> [bool; 2] {
        [self.k_type, self.v_type].map(|ty| !ty.is_plain())
    }

    /// Checks the types of the caches. Returns the size of caches and states in bytes.
    ///
    /// # Errors
    /// A head is not a whole number of blocks of a type.
    pub fn check_cache(&self, plan: &Plan) -> Result<u64> {
        let states = plan
            .recurrent_bytes((self.n_rows() as u64).saturating_add(1))
            .unwrap_or(u64::MAX);
        if self.n_ctx == 0 {
            return Ok(states);
        }
        for (_, rows) in plan.key_values() {
            // A head is read by itself, so it too must be a whole number of blocks. Values that
            // lie in the keys have the keys' type.
            let v_type = if rows.v_in_k {
                self.k_type
            } else {
                self.v_type
            };
            let heads = [
                (self.k_type, rows.k / rows.heads),
                (v_type, rows.v / rows.heads),
                (self.k_type, rows.index),
            ];
            for (ty, head) in heads {
                if ty.row_bytes(head).is_none() {
                    return Err(Error::CacheType {
                        ty,
                        block: ty.block_len(),
                        row: head,
                    });
                }
            }
        }
        let rows = plan.cache_bytes(self.capacity(plan), self.k_type, self.v_type);
        Ok(rows.unwrap_or(u64::MAX).saturating_add(states))
    }

    /// The positions that the queries of a KV group attend to.
    pub(super) fn visibility(&self, plan: &Plan, group: &CachePlan) -> Visibility {
        let rule = Visibility::read(&group.unit.options);
        Visibility {
            causal: rule.causal && !self.non_causal && plan.mode == Mode::Causal,
            ..rule
        }
    }

    /// Whether sequences of a plan share their cached prefixes.
    pub fn shares(&self, plan: &Plan) -> bool {
        let of_tokens = |group: &&CachePlan| group.keys == KeyTokens::Tokens;
        let mut groups = plan.caches.iter().filter(of_tokens);
        self.n_ctx > 0 && groups.all(|group| self.visibility(plan, group).causal)
    }
}
