//! The file format of stored prefixes: a segment, which has consecutive KV blocks of one prefix.
//!
//! All numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `BENCHKVP` |
//! | 4 | version |
//! | 4 | n, the number of blocks |
//! | 4 | the first block's place in the prefix |
//! | 4 | 0 |
//! | 32 | what the prefix is computed with ([`PrefixSeed`]) |
//! | 32 | hash of the prefix before the first block |
//! | 32 | hash of the layout: the tensors of a block |
//! | 64 n | the tokens |
//! | 8 n | the parts that each block has, a set of bits |
//! | | for each tensor of the layout, the bytes of the blocks that have its part |
//! | 32 | SHA-256 of all bytes before |
//!
//! A file is input that anything may have changed: lengths are checked before anything is allocated, and nothing is used whose
//! hash, layout or numbers are not as expected. Not here: where files lie.

use std::io::{self, Read, Write};

use sha2::{Digest, Sha256};

use crate::model::{PrefixBlocks, PrefixLayout};
use crate::plan::BLOCK_LEN;
use lab_base::ggml::dequantize;

pub(super) const BLOCK: usize = BLOCK_LEN as usize;

const MAGIC: &[u8; 8] = b"BENCHKVP";
/// To be raised when the format changes, or the meaning of what is cached.
const VERSION: u32 = 2;
const FIXED: usize = 120;
/// Bytes of the tokens and the parts of a block.
const OF_BLOCK: usize = 4 * BLOCK + 8;
const HASH: usize = 32;

/// Maximum number of blocks of a segment.
const MAX_BLOCKS: usize = 1 << 16;
/// Elements that are checked at a time.
const CHECKED_AT_ONCE: usize = 1 << 16;

/// A SHA-256 hash of a prefix, of what it is computed with and of its tokens up to the end of a block.
pub(super) type PrefixHash = [u8; HASH];

/// What prefixes are computed with: the start of their hashes.
pub(crate) type PrefixSeed = PrefixHash;

/// The hash of a prefix with one more block.
fn next_hash(before: &PrefixHash, tokens: &[u32]) -> PrefixHash {
    let mut hash = Sha256::new();
    hash.update(before);
    tokens
        .iter()
        .for_each(|token| hash.update(token.to_le_bytes()));
    hash.finalize().into()
}

/// The hashes of a prefix after each whole block of `tokens`, which follow a prefix with this hash.
pub(super) fn hashes(before: &PrefixHash, tokens: &[u32]) -> Vec<PrefixHash> {
    let mut last = *before;
    let blocks = tokens.chunks_exact(BLOCK).map(|block| {
        last = next_hash(&last, block);
        last
    });
    blocks.collect()
}

/// The hash of a layout.
pub(super) fn layout_hash(layout: &PrefixLayout) -> PrefixHash {
    let mut hash = Sha256::new();
    for tensor in &layout.tensors {
        let (part, ty, n, bytes) = (
            tensor.part,
            tensor.ty.name(),
            tensor.n_elements,
            tensor.bytes,
        );
        hash.update(format!("{part} {ty} {n} {bytes}\n"));
    }
    hash.update(format!("{} {}", layout.n_parts(), layout.state()));
    hash.finalize().into()
}

/// A segment without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) first: usize,
    pub(super) seed: PrefixSeed,
    /// Hash of the prefix before the first block.
    pub(super) before: PrefixHash,
    pub(super) tokens: Vec<u32>,
    pub(super) parts: Vec<u64>,
    /// Size of the whole segment in bytes.
    pub(super) size: u64,
}

/// Why a segment is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SegmentError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Unfit(&'static str),
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

/// A reader that hashes what it reads.
struct Hashed<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Hashed<R> {
    fn take(&mut self, n: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; n];
        self.inner.read_exact(&mut bytes)?;
        self.hash.update(&bytes);
        Ok(bytes)
    }

    fn header(&mut self, layout: &PrefixLayout) -> Result<SegmentHeader, SegmentError> {
        use SegmentError::Unfit;
        let fixed = self.take(FIXED)?;
        if fixed[..8] != MAGIC[..] {
            return Err(Unfit("it does not start as a file of the prefix cache"));
        }
        let word = |at| u32::from_le_bytes(number(&fixed, at));
        if word(8) != VERSION {
            return Err(Unfit("it is of another version"));
        }
        let (n, first) = (word(12) as usize, word(16) as usize);
        if n == 0 || n > MAX_BLOCKS || word(20) != 0 {
            return Err(Unfit("its numbers are out of range"));
        }
        if number::<HASH>(&fixed, 88) != layout_hash(layout) {
            return Err(Unfit("it is of a cache of another layout"));
        }
        let tokens = self.take(4 * BLOCK * n)?;
        let tokens = tokens.chunks_exact(4).map(|token| number(token, 0));
        let parts = self.take(8 * n)?;
        let parts = parts.chunks_exact(8).map(|parts| number(parts, 0));
        let parts: Vec<u64> = parts.map(u64::from_le_bytes).collect();
        if parts
            .iter()
            .any(|parts| parts >> (layout.n_parts() - 1) > 1)
        {
            return Err(Unfit("it has parts that the cache does not have"));
        }
        let data: u64 = parts.iter().map(|own| layout.bytes_of(*own) as u64).sum();
        Ok(SegmentHeader {
            first,
            seed: number(&fixed, 24),
            before: number(&fixed, 56),
            tokens: tokens.map(u32::from_le_bytes).collect(),
            parts,
            size: (FIXED + OF_BLOCK * n + HASH) as u64 + data,
        })
    }
}

impl SegmentHeader {
    /// Reads the header at the start of a segment.
    ///
    /// # Errors
    /// It cannot be read, or is of another version or layout.
    pub(super) fn read(reader: impl Read, layout: &PrefixLayout) -> Result<Self, SegmentError> {
        let hash = Sha256::new();
        let inner = reader;
        Hashed { inner, hash }.header(layout)
    }
}

/// Reads and checks a segment of at most `limit` bytes.
///
/// # Errors
/// It cannot be read, is of another version or layout, was changed, or has numbers that are not finite.
pub(super) fn read(
    reader: impl Read,
    layout: &PrefixLayout,
    limit: u64,
) -> Result<(SegmentHeader, PrefixBlocks), SegmentError> {
    use SegmentError::Unfit;
    let mut reader = Hashed {
        inner: reader,
        hash: Sha256::new(),
    };
    let header = reader.header(layout)?;
    if header.size > limit {
        return Err(Unfit("it is longer than the file"));
    }
    let mut data = Vec::with_capacity(layout.tensors.len());
    for tensor in &layout.tensors {
        let own = header
            .parts
            .iter()
            .filter(|own| **own >> tensor.part & 1 == 1);
        data.push(reader.take(own.count() * tensor.bytes)?);
    }
    let mut hash = [0; HASH];
    reader.inner.read_exact(&mut hash)?;
    let found: PrefixHash = reader.hash.finalize().into();
    if found != hash {
        return Err(Unfit("its bytes are not those that were written"));
    }
    for (tensor, bytes) in layout.tensors.iter().zip(&data) {
        let row = tensor.bytes.max(1);
        let n_rows = (CHECKED_AT_ONCE / tensor.n_elements.max(1)).max(1);
        let mut numbers = Vec::new();
        for bytes in bytes.chunks(n_rows * row) {
            numbers.resize(bytes.len() / row * tensor.n_elements, 0.0);
            if dequantize(bytes, tensor.ty, &mut numbers).is_err()
                || !numbers.iter().all(|number: &f32| number.is_finite())
            {
                return Err(Unfit("it has numbers that are not finite"));
            }
        }
    }
    let blocks = PrefixBlocks {
        first: header.first,
        tokens: header.tokens.clone(),
        parts: header.parts.clone(),
        data,
    };
    Ok((header, blocks))
}

/// Writes a segment. Returns its hash.
pub(super) fn write(
    writer: &mut impl Write,
    layout: &PrefixLayout,
    (seed, before): (&PrefixSeed, &PrefixHash),
    blocks: &PrefixBlocks,
) -> io::Result<PrefixHash> {
    let mut head = Vec::with_capacity(FIXED + OF_BLOCK * blocks.parts.len());
    head.extend(MAGIC);
    let words = [
        VERSION,
        blocks.parts.len() as u32,
        blocks.first as u32,
        0u32,
    ];
    head.extend(words.into_iter().flat_map(u32::to_le_bytes));
    head.extend(seed);
    head.extend(before);
    head.extend(layout_hash(layout));
    head.extend(blocks.tokens.iter().flat_map(|token| token.to_le_bytes()));
    head.extend(blocks.parts.iter().flat_map(|parts| parts.to_le_bytes()));
    let mut hash = Sha256::new();
    for bytes in std::iter::once(&head).chain(&blocks.data) {
        hash.update(bytes);
        writer.write_all(bytes)?;
    }
    let hash: PrefixHash = hash.finalize().into();
    writer.write_all(&hash)?;
    Ok(hash)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{Model, Options};

    /// The layout of the shipped model's cache, and blocks of it with these parts.
    pub(in super::super) fn layout() -> PrefixLayout {
        use crate::models::{self, Definitions, ModelSource};
        let definitions = Definitions::open(&[]).expect("the built-in definitions");
        let opened = models::open(&ModelSource::of(None), &definitions).expect("the shipped model");
        let options = Options::plain(64, 16);
        let model = Model::load(opened.plan, &opened.weights, options, &mut |_, _| {});
        let layout = model.expect("it loads").prefix_layout();
        layout.expect("it shares prefixes")
    }

    pub(in super::super) fn blocks(
        layout: &PrefixLayout,
        first: usize,
        parts: &[u64],
    ) -> PrefixBlocks {
        let n_of = |part: usize| parts.iter().filter(|own| **own >> part & 1 == 1).count();
        let data = layout.tensors.iter().enumerate().map(|(i, tensor)| {
            let n = n_of(tensor.part) * tensor.bytes;
            // Halves and floats of these bytes are finite.
            (0..n).map(|at| ((at + i + first) % 60) as u8).collect()
        });
        PrefixBlocks {
            first,
            tokens: (0..(parts.len() * BLOCK) as u32).collect(),
            parts: parts.to_vec(),
            data: data.collect(),
        }
    }

    const SEED: PrefixSeed = [7; 32];

    fn written(layout: &PrefixLayout, blocks: &PrefixBlocks) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, layout, (&SEED, &[9; 32]), blocks).expect("memory");
        bytes
    }

    #[test]
    fn what_was_written_is_read() {
        let layout = layout();
        for parts in [&[1][..], &[1, 0, 1], &[0]] {
            let blocks = blocks(&layout, 3, parts);
            let bytes = written(&layout, &blocks);
            let (header, read) = read(&*bytes, &layout, bytes.len() as u64).expect("a segment");
            assert_eq!(read, blocks);
            assert_eq!((header.seed, header.before), (SEED, [9; 32]));
            assert_eq!(header.size, bytes.len() as u64);
            let alone = SegmentHeader::read(&*bytes, &layout).expect("a header");
            assert_eq!(alone, header);
        }
    }

    /// Of 10 000 changed files, each is refused or has the blocks that were written.
    #[test]
    fn a_changed_file_is_dropped() {
        let layout = layout();
        let blocks = blocks(&layout, 0, &[1, 1, 1]);
        let bytes = written(&layout, &blocks);
        let mut random = 1u64;
        let mut draw = |n: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % n as u64) as usize
        };
        let mut n_right = 0;
        for i in 0..10_000 {
            let mut changed = bytes.clone();
            match i % 5 {
                0 => changed.truncate(draw(bytes.len())),
                1 => {
                    let at = draw(bytes.len());
                    changed[at] ^= 1 << draw(8);
                }
                // Within the header, where lengths are.
                2 => changed[draw(FIXED + 300)] = draw(256) as u8,
                3 => {
                    let (from, to) = (draw(bytes.len()), draw(bytes.len()));
                    changed.swap(from, to);
                }
                _ => {
                    let at = draw(bytes.len());
                    changed.drain(at..(at + draw(64)).min(bytes.len()));
                }
            }
            if let Ok((_, found)) = read(&*changed, &layout, changed.len() as u64) {
                assert_eq!(found, blocks);
                n_right += 1;
            }
        }
        assert!(n_right < 1000, "{n_right} of the changes change nothing");
    }

    proptest! {
        /// A file whose hash fits, made by somebody who knows the format, still has sound lengths and finite numbers.
        #[test]
        fn a_forged_file_is_refused_or_sound(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            in_head in any::<bool>(),
        ) {
            let layout = layout_once();
            let blocks = blocks(layout, 0, &[1, 1]);
            let mut bytes = written(layout, &blocks);
            let n = bytes.len() - HASH;
            for (at, value) in changes {
                let at = at.index(if in_head { FIXED + 2 * OF_BLOCK } else { n });
                bytes[at] = value;
            }
            let hash = Sha256::digest(&bytes[..n]);
            bytes.splice(n.., hash);
            if let Ok((header, found)) = read(&*bytes, layout, bytes.len() as u64) {
                prop_assert_eq!(found.tokens.len(), BLOCK * found.parts.len());
                prop_assert_eq!(header.size, bytes.len() as u64);
                for (tensor, data) in layout.tensors.iter().zip(&found.data) {
                    let own = found.parts.iter().filter(|own| **own >> tensor.part & 1 == 1);
                    prop_assert_eq!(data.len(), own.count() * tensor.bytes);
                    let mut numbers = vec![0.0; data.len() / tensor.bytes.max(1) * tensor.n_elements];
                    dequantize(data, tensor.ty, &mut numbers).expect("whole blocks");
                    prop_assert!(numbers.iter().all(|number| number.is_finite()));
                }
            }
        }
    }

    fn layout_once() -> &'static PrefixLayout {
        static LAYOUT: std::sync::LazyLock<PrefixLayout> = std::sync::LazyLock::new(layout);
        &LAYOUT
    }

    #[test]
    fn numbers_that_are_not_finite_are_refused() {
        let layout = layout();
        let mut blocks = blocks(&layout, 0, &[1]);
        let last = blocks.data.last_mut().expect("a tensor");
        last.fill(0xff);
        let bytes = written(&layout, &blocks);
        let error = read(&*bytes, &layout, bytes.len() as u64).expect_err("it is refused");
        assert!(error.to_string().contains("not finite"), "{error}");
    }

    #[test]
    fn a_hash_stands_for_all_tokens_before_and_for_what_computes_them() {
        let tokens: Vec<u32> = (0..40).collect();
        let all = hashes(&SEED, &tokens);
        assert_eq!(all.len(), 2, "whole blocks");
        assert_ne!(all, hashes(&[8; 32], &tokens));
        let mut other = tokens.clone();
        other[0] = 99;
        assert_ne!(all[1], hashes(&SEED, &other)[1]);
        assert_eq!(all[1..], hashes(&all[0], &tokens[16..]));
    }
}
