//! The prefix cache as bytes: what its KV blocks and recurrent states hold, and the way back.
//!
//! A prefix is known by its tokens and by what they are computed with (the scales of adapters). Bytes of another layout are
//! refused. Not here: where the bytes are kept, and whether they are those of this model.

use crate::blocks::cache::CacheOptions as Visibility;
use crate::plan::BLOCK_LEN;
use lab_base::ggml::{Device, Tensor};
use lab_base::weights::TensorType;

use super::adapters;
use super::cache::{PartPlace, usable_blocks};
use super::error::{Error, Result};
use super::lifecycle::Model;

const BLOCK: usize = BLOCK_LEN as usize;

/// A tensor of the cache, as its part in a block of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTensor {
    /// The part to which it belongs: the KV group, or, after all groups, the recurrent state.
    pub part: usize,
    pub ty: TensorType,
    /// Elements of a block.
    pub n_elements: usize,
    /// Bytes of a block.
    pub bytes: usize,
}

/// What a block of a prefix consists of, and which blocks a sequence needs to continue.
#[derive(Clone, Debug)]
pub struct PrefixLayout {
    /// The tensors, in the order of [`PrefixBlocks::data`].
    pub tensors: Vec<BlockTensor>,
    /// What the queries of each KV group attend to.
    rules: Vec<Visibility>,
    has_states: bool,
}

impl PrefixLayout {
    /// Number of parts of a block: one for each KV group, and the state.
    pub fn n_parts(&self) -> usize {
        self.rules.len() + usize::from(self.has_states)
    }

    /// Bytes of a block with these parts, a set of bits.
    pub fn bytes_of(&self, parts: u64) -> usize {
        let own = self.tensors.iter().filter(|of| parts >> of.part & 1 == 1);
        own.map(|of| of.bytes).sum()
    }

    /// The part with the recurrent state, as a set of bits; empty if the model has none.
    pub fn state(&self) -> u64 {
        u64::from(self.has_states) << self.rules.len()
    }

    /// The parts that every later token needs of every block, as a set of bits.
    pub fn always_needed(&self) -> u64 {
        let rules = self.rules.iter().enumerate();
        let always = rules.filter(|(_, rule)| rule.first_visible(u32::MAX - 1) == 0);
        always.fold(0, |parts, (part, _)| parts | 1 << part)
    }

    /// How many of these blocks a sequence can continue after, by the parts that each has.
    pub fn usable(&self, parts: &[u64]) -> usize {
        let has = |at: usize, part: usize| parts[at] >> part & 1 == 1;
        usable_blocks(self.rules.iter(), self.has_states, parts.len(), has)
    }

    /// The parts of the first `n` blocks that a sequence needs that continues after them.
    pub fn needed(&self, n: usize) -> Vec<u64> {
        let mut needed = vec![0; n];
        for (part, rule) in self.rules.iter().enumerate() {
            let first = rule.first_visible((n * BLOCK) as u32) as usize / BLOCK;
            let seen = needed.iter_mut().skip(first);
            seen.for_each(|parts| *parts |= 1 << part);
        }
        if let Some(last) = needed.last_mut() {
            *last |= self.state();
        }
        needed
    }
}

/// Consecutive KV blocks of a prefix, with the parts that each has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixBlocks {
    /// The first one's place in the prefix.
    pub first: usize,
    /// Their tokens.
    pub tokens: Vec<u32>,
    /// The parts of each block, as sets of bits.
    pub parts: Vec<u64>,
    /// For each tensor of the layout, the bytes of the blocks that have its part, one after another.
    pub data: Vec<Vec<u8>>,
}

impl PrefixBlocks {
    /// Size of the data in bytes.
    pub fn bytes(&self) -> usize {
        self.data.iter().map(Vec::len).sum()
    }

    /// Adds the blocks that follow these.
    pub fn append(&mut self, more: Self) {
        if self.parts.is_empty() {
            *self = more;
            return;
        }
        self.tokens.extend(more.tokens);
        self.parts.extend(more.parts);
        for (own, more) in self.data.iter_mut().zip(more.data) {
            own.extend(more);
        }
    }
}

impl Model {
    /// The layout of blocks of prefixes; none where prefixes are not shared, or follow sources.
    pub fn prefix_layout(&self) -> Option<PrefixLayout> {
        if !self.is_shared() || self.reads_source() {
            return None;
        }
        let of = |part, tensor: &Tensor, n_rows: usize| BlockTensor {
            part,
            ty: tensor.ty(),
            n_elements: n_rows * tensor.shape()[0] as usize,
            bytes: n_rows * tensor.strides()[1],
        };
        let n_groups = self.block_manager.n_groups();
        let of_pools = self.cache.tensors();
        let of_pools = of_pools.map(|(pool, tensor, n_rows)| of(pool, tensor, n_rows));
        let of_states = self.states.tensors().into_iter();
        let of_states = of_states.map(|tensor| of(n_groups, tensor, 1));
        let rules = (0..n_groups).map(|group| self.block_manager.rule(group).clone());
        let layout = PrefixLayout {
            tensors: of_pools.chain(of_states).collect(),
            rules: rules.collect(),
            has_states: self.has_states(),
        };
        (1..=u64::BITS as usize)
            .contains(&layout.n_parts())
            .then_some(layout)
    }

    /// The tensors of [`Self::prefix_layout`], each with its part and the rows of a block.
    fn block_tensors(&self) -> Vec<(usize, Tensor, usize)> {
        let of_pools = self.cache.tensors();
        let of_pools = of_pools.map(|(pool, tensor, n_rows)| (pool, tensor.clone(), n_rows));
        let n_groups = self.block_manager.n_groups();
        let of_states = self.states.tensors().into_iter();
        let of_states = of_states.map(|tensor| (n_groups, tensor.clone(), 1));
        of_pools.chain(of_states).collect()
    }

    /// The prefix key of texts that are computed with these scales of adapters, without edits and media.
    fn key_of_scales(&self, scales: &[f32]) -> Vec<u32> {
        let n = self.adapters.all.len();
        adapters::key(scales.iter().take(n).copied())
    }

    /// The parts that the full blocks of tokens have in the prefix cache, up to the first block that it does not know.
    pub fn prefix_parts(&mut self, scales: &[f32], tokens: &[u32]) -> Vec<u64> {
        let key = self.key_of_scales(scales);
        let parts = self.block_manager.parts(&key, tokens);
        parts.iter().map(|places| bits(places)).collect()
    }

    /// Reads parts of the last blocks of `tokens`: those in `wanted`, for each block from the block `first` on. It ends before a
    /// block that is not known, and has only the parts that are cached.
    ///
    /// # Errors
    /// A device does not give the bytes.
    pub fn read_prefix(
        &mut self,
        scales: &[f32],
        tokens: &[u32],
        first: usize,
        wanted: &[u64],
    ) -> Result<PrefixBlocks> {
        let key = self.key_of_scales(scales);
        let mut places = self.block_manager.parts(&key, tokens);
        let mut places = places.split_off(first.min(places.len()));
        for (places, wanted) in places.iter_mut().zip(wanted) {
            places.retain(|(part, _)| wanted >> part & 1 == 1);
        }
        let mut data = Vec::new();
        let mut bytes = Vec::new();
        self.graphs.executor.wait();
        for (part, tensor, n_rows) in self.block_tensors() {
            let mut own = Vec::new();
            for run in runs_of(&places, part) {
                let (at, n) = (run.start * n_rows, run.len() * n_rows);
                Device::read_rows(&tensor, at, n, &mut bytes)?;
                own.extend_from_slice(&bytes);
            }
            data.push(own);
        }
        let end = (first + places.len()) * BLOCK;
        Ok(PrefixBlocks {
            first,
            tokens: tokens[first * BLOCK..end].to_vec(),
            parts: places.iter().map(|places| bits(places)).collect(),
            data,
        })
    }

    /// Puts blocks of a prefix into the prefix cache: those parts in `wanted` that it lacks, as far as there is room. `before` are
    /// the tokens before them.
    ///
    /// # Errors
    /// The blocks are not of the layout, or a device does not take the bytes. The cache is as before.
    pub fn write_prefix(
        &mut self,
        scales: &[f32],
        before: &[u32],
        blocks: &PrefixBlocks,
        wanted: &[u64],
    ) -> Result<()> {
        let tensors = self.block_tensors();
        let n_blocks = blocks.parts.len();
        let has_part = |part: usize| {
            let of_blocks = blocks.parts.iter();
            of_blocks.filter(move |parts| **parts >> part & 1 == 1)
        };
        let fits = |((part, tensor, n_rows), data): (&(usize, Tensor, usize), &Vec<u8>)| {
            data.len() == has_part(*part).count() * n_rows * tensor.strides()[1]
        };
        let n_vocab = self.plan.n_vocab;
        let is_sound = blocks.tokens.len() == n_blocks * BLOCK
            && before.len() == blocks.first * BLOCK
            && blocks.data.len() == tensors.len()
            && tensors.iter().zip(&blocks.data).all(fits)
            && blocks
                .tokens
                .iter()
                .all(|token| u64::from(*token) < n_vocab);
        if !is_sound {
            return Err(Error::Batch {
                found: format!("{n_blocks} stored blocks of another layout"),
                expected: "blocks of this model's cache".into(),
            });
        }
        let key = self.key_of_scales(scales);
        let there = blocks.parts.iter().zip(wanted);
        let wanted: Vec<u64> = there.map(|(has, wanted)| has & wanted).collect();
        let tokens = [before, &blocks.tokens].concat();
        self.announce(&key);
        let taken = self
            .block_manager
            .take_parts(&key, &tokens, blocks.first, &wanted);
        let mut written = Ok(());
        self.graphs.executor.wait();
        for ((part, tensor, n_rows), data) in tensors.iter().zip(&blocks.data) {
            // The place of each taken block among those of the data.
            let mut sources = Vec::with_capacity(taken.places.len());
            let mut n_before = 0;
            for (places, has) in taken.places.iter().zip(&blocks.parts) {
                let place = places.iter().find(|(own, _)| own == part);
                sources.extend(place.map(|(_, block)| (n_before, *block as usize)));
                n_before += usize::from(has >> part & 1 == 1);
            }
            let size = n_rows * tensor.strides()[1];
            for run in sources.chunk_by(|a, b| a.0 + 1 == b.0 && a.1 + 1 == b.1) {
                let (from, to) = run[0];
                let bytes = &data[from * size..(from + run.len()) * size];
                if written.is_ok() {
                    written = Device::write_rows(tensor, to * n_rows, bytes);
                }
            }
        }
        self.block_manager.keep_parts(taken, written.is_ok());
        Ok(written?)
    }

    /// Removes a prefix from the prefix cache, except for what sequences use. Returns the number of its tokens that were known.
    pub fn erase_prefix(&mut self, scales: &[f32], tokens: &[u32]) -> usize {
        let key = self.key_of_scales(scales);
        self.block_manager.erase(&key, tokens)
    }
}

fn bits(places: &[PartPlace]) -> u64 {
    places.iter().fold(0, |bits, (part, _)| bits | 1 << part)
}

/// The blocks of a part, those that follow each other together.
fn runs_of(places: &[Vec<PartPlace>], part: usize) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    let own = places.iter().flatten().filter(|(own, _)| *own == part);
    for (_, block) in own {
        let block = *block as usize;
        match runs.last_mut().filter(|run| run.end == block) {
            Some(run) => run.end += 1,
            None => runs.push(block..block + 1),
        }
    }
    runs
}
