//! Test files that are written byte by byte, valid or not, independently of the writer, which is tested against them.

use crate::weights::{Weights, gguf};

#[derive(Clone, Debug)]
pub(crate) struct GgufBuilder {
    pub(super) magic: [u8; 4],
    pub(super) version: u32,
    pub(super) n_tensors: u64,
    pub(super) n_keys: u64,
    pub(super) keys: Vec<u8>,
    pub(super) tensors: Vec<u8>,
    pub(super) data: Vec<u8>,
    pub(super) alignment: usize,
}

impl GgufBuilder {
    pub(crate) fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            n_tensors: 0,
            n_keys: 0,
            keys: Vec::new(),
            tensors: Vec::new(),
            data: Vec::new(),
            alignment: 32,
        }
    }

    /// A key whose value has type `ty` and these bytes.
    pub(crate) fn key(mut self, key: &str, ty: u32, value: &[u8]) -> Self {
        self.n_keys += 1;
        self.keys.extend(string(key.as_bytes()));
        self.keys.extend(ty.to_le_bytes());
        self.keys.extend(value);
        self
    }

    /// A key of type u32. The key `general.alignment` also sets the alignment of the built file.
    pub(crate) fn u32(mut self, key: &str, value: u32) -> Self {
        if key == "general.alignment" {
            self.alignment = value as usize;
        }
        self.key(key, 4, &value.to_le_bytes())
    }

    /// A tensor description; `offset` counts from the start of the data.
    pub(crate) fn tensor(mut self, name: &str, shape: &[u64], ty: u32, offset: u64) -> Self {
        self.n_tensors += 1;
        self.tensors.extend(string(name.as_bytes()));
        self.tensors.extend((shape.len() as u32).to_le_bytes());
        shape
            .iter()
            .for_each(|n| self.tensors.extend(n.to_le_bytes()));
        self.tensors.extend(ty.to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        self
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.keys.extend(bytes);
        self
    }

    pub(crate) fn data(mut self, bytes: &[u8]) -> Self {
        self.data.extend(bytes);
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.to_le_bytes());
        out.extend(self.n_keys.to_le_bytes());
        out.extend(&self.keys);
        out.extend(&self.tensors);
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }

    pub(crate) fn open(&self) -> Result<Weights, String> {
        open(self.bytes())
    }
}

pub(crate) fn string(text: &[u8]) -> Vec<u8> {
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text);
    out
}

pub(crate) fn array(ty: u32, len: u64) -> Vec<u8> {
    let mut out = ty.to_le_bytes().to_vec();
    out.extend(len.to_le_bytes());
    out
}

/// Opens a file in memory. The memory is never freed, like that of a model that is built into the program.
pub(crate) fn open(bytes: Vec<u8>) -> Result<Weights, String> {
    gguf::from_static("test", bytes.leak()).map_err(|error| error.to_string())
}

/// A valid file with two tensors: four floats, and one block of Q8_0.
pub(super) fn sound() -> GgufBuilder {
    let tokens = [array(8, 2), string(b"a"), string(b"\xff")].concat();
    let block: Vec<u8> = (0..34).collect();
    GgufBuilder::new()
        .key("general.architecture", 8, &string(b"test"))
        .u32("test.block_count", 1)
        .key("tokens", 9, &tokens)
        .tensor("a", &[2, 2], 0, 0)
        .tensor("b.weight", &[32], 8, 32)
        .data(&[1; 16])
        .data(&[0; 16])
        .data(&block)
}

pub(super) fn refusals(files: &[GgufBuilder]) -> String {
    let message = |file: &GgufBuilder| {
        let message = file.open().expect_err("the file breaks a rule");
        message.replacen("test: ", "", 1)
    };
    files.iter().map(message).collect::<Vec<_>>().join("\n")
}
