//! A batch of events as bytes, as vLLM's `KVEventBatch` (of 0.24 and later) in MessagePack: an array of the time, the events and the rank.
//! An event is a map with its class as `type`.

use std::time::UNIX_EPOCH;

use lab_core::engine::KvEventBatch;
use lab_core::model::KvEvent;
use lab_core::plan::BLOCK_LEN;
use serde::Serialize;

/// What vLLM calls the KV cache with which a model computes, whatever its device.
const MEDIUM: &str = "GPU";
/// The rank of the only engine of a model.
const RANK: u32 = 0;

/// An event with vLLM's names.
#[derive(Serialize)]
#[serde(tag = "type")]
enum WireEvent<'a> {
    BlockStored {
        block_hashes: &'a [u64],
        parent_block_hash: Option<u64>,
        token_ids: &'a [u32],
        block_size: u64,
        lora_id: Option<usize>,
        medium: &'static str,
        lora_name: Option<&'a str>,
        /// For each block, what is hashed besides its tokens.
        extra_keys: Vec<Option<[&'a str; 1]>>,
    },
    BlockRemoved {
        block_hashes: &'a [u64],
        medium: &'static str,
    },
    AllBlocksCleared,
}

impl<'a> WireEvent<'a> {
    fn of(event: &'a KvEvent) -> Self {
        match event {
            KvEvent::BlockStored {
                hashes,
                parent,
                tokens,
                adapter,
            } => {
                let name = adapter.as_ref().map(|adapter| adapter.name.as_str());
                Self::BlockStored {
                    block_hashes: hashes,
                    parent_block_hash: *parent,
                    token_ids: tokens,
                    block_size: BLOCK_LEN,
                    lora_id: adapter.as_ref().and_then(|adapter| adapter.id),
                    medium: MEDIUM,
                    lora_name: name,
                    extra_keys: vec![name.map(|name| [name]); hashes.len()],
                }
            }
            KvEvent::BlockRemoved { hashes } => Self::BlockRemoved {
                block_hashes: hashes,
                medium: MEDIUM,
            },
            KvEvent::AllBlocksCleared => Self::AllBlocksCleared,
        }
    }
}

/// The payload of a message.
pub(super) fn payload(batch: &KvEventBatch) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    let time = batch.time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let events: Vec<WireEvent<'_>> = batch.events.iter().map(WireEvent::of).collect();
    rmp_serde::to_vec_named(&(time.as_secs_f64(), events, RANK))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use lab_core::model::BlockAdapter;

    use super::*;

    /// `msgspec.msgpack.encode` of vLLM's classes in Python.
    #[test]
    fn bytes_are_those_of_vllms_classes() {
        let stored = |adapter: Option<BlockAdapter>| KvEvent::BlockStored {
            hashes: vec![1, u64::MAX],
            parent: adapter.is_some().then_some(1 << 32),
            tokens: (120..152).collect(),
            adapter: adapter.map(Arc::new),
        };
        let adapter = BlockAdapter {
            id: Some(1),
            name: "sql-lora".into(),
        };
        let batch = KvEventBatch {
            number: 0,
            time: UNIX_EPOCH + Duration::from_millis(1_500),
            events: vec![
                stored(None),
                stored(Some(adapter)),
                KvEvent::BlockRemoved {
                    hashes: vec![1, 300, 70_000],
                },
                KvEvent::AllBlocksCleared,
            ],
        };
        let bytes = payload(&batch).expect("it is encoded");
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = concat!(
            "93cb3ff80000000000009489a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739201cfffffffffffffffffb170",
            "6172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc002078797a7b7c7d7e7fcc80cc81cc82cc83cc84cc85cc86cc87cc",
            "88cc89cc8acc8bcc8ccc8dcc8ecc8fcc90cc91cc92cc93cc94cc95cc96cc97aa626c6f636b5f73697a6510a76c6f72615f6964c0a66d65",
            "6469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797392c0c089a474797065ab426c6f636b53746f726564ac626c6f",
            "636b5f6861736865739201cfffffffffffffffffb1706172656e745f626c6f636b5f68617368cf0000000100000000a9746f6b656e5f69",
            "6473dc002078797a7b7c7d7e7fcc80cc81cc82cc83cc84cc85cc86cc87cc88cc89cc8acc8bcc8ccc8dcc8ecc8fcc90cc91cc92cc93cc94",
            "cc95cc96cc97aa626c6f636b5f73697a6510a76c6f72615f696401a66d656469756da3475055a96c6f72615f6e616d65a873716c2d6c6f",
            "7261aa65787472615f6b6579739291a873716c2d6c6f726191a873716c2d6c6f726183a474797065ac426c6f636b52656d6f766564ac62",
            "6c6f636b5f6861736865739301cd012cce00011170a66d656469756da347505581a474797065b0416c6c426c6f636b73436c6561726564",
            "00",
        );
        assert_eq!(hex, expected);
    }
}
