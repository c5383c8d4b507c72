//! Changes of the prefix cache, for routers that send a request to the server that has most of its prompt cached.
//!
//! A block has the hash that vLLM gives it with `--prefix-caching-hash-algo sha256_cbor` and `PYTHONHASHSEED=0`: SHA-256 of the
//! canonical CBOR of its parent's hash, its tokens and its extra keys, which are the name of the adapter or nothing. So the
//! servers of a router name equal blocks equally. Blocks that are computed with edits, media or a source are not announced.
//! Not here: the format in which events are sent.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::BLOCK;

/// The hash of a block and of all tokens before it.
type BlockHash = [u8; 32];

/// The adapters with which blocks are computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockAdapter {
    /// The id of the adapter, from 1 on, as vLLM counts; none if there are several.
    pub id: Option<usize>,
    /// The name of the adapter, and its scale where that is not 1; of several, joined by commas.
    pub name: String,
}

/// A change of the prefix cache. Blocks are named by the last 8 bytes of their hash, as in vLLM's events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Full blocks that follow each other are cached from now on.
    BlockStored {
        hashes: Vec<u64>,
        /// The block before them; none at the start of a text.
        parent: Option<u64>,
        /// The tokens of all of them.
        tokens: Vec<u32>,
        adapter: Option<Arc<BlockAdapter>>,
    },
    /// These blocks are not cached any more.
    BlockRemoved { hashes: Vec<u64> },
    /// No block is cached any more.
    AllBlocksCleared,
}

/// What is announced of a node of the prefix tree.
#[derive(Clone, Debug)]
pub(super) struct Announced {
    hash: BlockHash,
    adapter: Option<Arc<BlockAdapter>>,
    /// Whether texts start after it.
    is_start: bool,
}

impl Announced {
    /// The node where texts start that are computed with these adapters.
    pub(super) fn start(adapter: Option<BlockAdapter>) -> Self {
        let mut seed = Vec::new();
        write_text(&mut seed, "0");
        Self {
            hash: Sha256::digest(&seed).into(),
            adapter: adapter.map(Arc::new),
            is_start: true,
        }
    }

    /// The block that follows this one.
    pub(super) fn next(&self, tokens: &[u32; BLOCK]) -> Self {
        let adapter = self.adapter.as_deref();
        Self {
            hash: block_hash(&self.hash, tokens, adapter.map(|of| of.name.as_str())),
            adapter: self.adapter.clone(),
            is_start: false,
        }
    }

    pub(super) fn name(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.hash;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

/// The changes since they were taken.
#[derive(Clone, Debug)]
pub(super) struct KvEventLog {
    /// The parts that a cached block has.
    pub(super) parts: Vec<usize>,
    events: Vec<KvEvent>,
}

impl KvEventLog {
    pub(super) fn new(parts: Vec<usize>) -> Self {
        Self {
            parts,
            events: Vec::new(),
        }
    }

    pub(super) fn stored(&mut self, parent: &Announced, of: &Announced, tokens: &[u32; BLOCK]) {
        let before = (!parent.is_start).then(|| parent.name());
        if let Some(KvEvent::BlockStored {
            hashes,
            tokens: all,
            adapter,
            ..
        }) = self.events.last_mut()
            && hashes.last().copied() == before
            && *adapter == of.adapter
        {
            hashes.push(of.name());
            all.extend_from_slice(tokens);
            return;
        }
        self.events.push(KvEvent::BlockStored {
            hashes: vec![of.name()],
            parent: before,
            tokens: tokens.to_vec(),
            adapter: of.adapter.clone(),
        });
    }

    pub(super) fn removed(&mut self, of: &Announced) {
        match self.events.last_mut() {
            Some(KvEvent::BlockRemoved { hashes }) => hashes.push(of.name()),
            _ => self.events.push(KvEvent::BlockRemoved {
                hashes: vec![of.name()],
            }),
        }
    }

    pub(super) fn take(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.events)
    }
}

fn block_hash(parent: &BlockHash, tokens: &[u32], extra_key: Option<&str>) -> BlockHash {
    let mut cbor = Vec::with_capacity(5 * tokens.len() + 64);
    write_head(&mut cbor, ARRAY, 3);
    write_head(&mut cbor, BYTES, parent.len() as u64);
    cbor.extend_from_slice(parent);
    write_head(&mut cbor, ARRAY, tokens.len() as u64);
    for token in tokens {
        write_head(&mut cbor, UNSIGNED, u64::from(*token));
    }
    match extra_key {
        Some(key) => {
            write_head(&mut cbor, ARRAY, 1);
            write_text(&mut cbor, key);
        }
        None => cbor.push(NULL),
    }
    Sha256::digest(&cbor).into()
}

/// Major types of CBOR (RFC 8949), and null.
const UNSIGNED: u8 = 0;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const NULL: u8 = 0xf6;

/// The head of an item, in the shortest form.
fn write_head(out: &mut Vec<u8>, major: u8, n: u64) {
    let bytes = n.to_be_bytes();
    let (info, n_bytes) = match n {
        0..24 => (n as u8, 0),
        24..0x100 => (24, 1),
        0x100..0x1_0000 => (25, 2),
        0x1_0000..0x1_0000_0000 => (26, 4),
        _ => (27, 8),
    };
    out.push(major << 5 | info);
    out.extend_from_slice(&bytes[8 - n_bytes..]);
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    write_head(out, TEXT, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `hashlib.sha256(cbor2.dumps(value, canonical=True))` in Python, where the first parent is the hash of `"0"`.
    #[test]
    fn hashes_are_those_of_sha256_over_canonical_cbor() {
        let tokens: [u32; BLOCK] = [
            0, 23, 24, 255, 256, 65_535, 65_536, 151_935, 1, 2, 3, 4, 5, 6, 7, 8,
        ];
        let hex = |of: &Announced| -> String {
            of.hash.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let start = Announced::start(None);
        assert_eq!(
            hex(&start),
            "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"
        );
        let first = start.next(&tokens);
        assert_eq!(
            hex(&first),
            "03034e7980c57fdd2230bb3b2544b53a7a38a87e840f9b7236dc6d67e5b59514"
        );
        assert_eq!(
            hex(&first.next(&[7; BLOCK])),
            "157119be76281a317a23143353884a07109398b20f6df04e21f591c2bfb53be2"
        );
        assert_eq!(first.name(), 0x36dc_6d67_e5b5_9514);
        let adapted = Announced::start(Some(BlockAdapter {
            id: Some(1),
            name: "sql-lora".into(),
        }));
        assert_eq!(
            hex(&adapted.next(&tokens)),
            "92523fd6df0c4b693f9179fadca5b9ea16eaea99bbcb523e9e1c879c812926ab"
        );
    }
}
