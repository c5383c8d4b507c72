//! The element types of weight files: names, ids and block geometry.
//!
//! The ids are those of the GGUF specification and of ggml, so the table serves readers, writers, the planner's byte
//! counts and `ggml`. It is data: nothing here converts a value.

use std::fmt;
use std::str::FromStr;

macro_rules! tensor_types {
    ($( $variant:ident = $id:literal, $name:literal, block $block:literal of $bytes:literal bytes; )*) => {
        /// Element type of a tensor, as stored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(non_camel_case_types, reason = "spelt as the field spells them")]
        pub enum TensorType { $( $variant, )* }

        impl TensorType {
            /// All types, in the order of their ids.
            pub const ALL: &'static [Self] = &[ $( Self::$variant, )* ];

            /// Id in GGUF files and in ggml.
            pub const fn id(self) -> u32 {
                match self { $( Self::$variant => $id, )* }
            }

            /// Lower-case name, as used on the command line.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$variant => $name, )* }
            }

            /// Number of elements of a block: a row has a whole number of blocks.
            pub const fn block_len(self) -> u64 {
                match self { $( Self::$variant => $block, )* }
            }

            /// Number of bytes of a block.
            pub const fn block_bytes(self) -> u64 {
                match self { $( Self::$variant => $bytes, )* }
            }
        }
    };
}

tensor_types! {
    F32     = 0,  "f32",     block 1 of 4 bytes;
    F16     = 1,  "f16",     block 1 of 2 bytes;
    Q4_0    = 2,  "q4_0",    block 32 of 18 bytes;
    Q4_1    = 3,  "q4_1",    block 32 of 20 bytes;
    Q5_0    = 6,  "q5_0",    block 32 of 22 bytes;
    Q5_1    = 7,  "q5_1",    block 32 of 24 bytes;
    Q8_0    = 8,  "q8_0",    block 32 of 34 bytes;
    Q8_1    = 9,  "q8_1",    block 32 of 36 bytes;
    Q2_K    = 10, "q2_k",    block 256 of 84 bytes;
    Q3_K    = 11, "q3_k",    block 256 of 110 bytes;
    Q4_K    = 12, "q4_k",    block 256 of 144 bytes;
    Q5_K    = 13, "q5_k",    block 256 of 176 bytes;
    Q6_K    = 14, "q6_k",    block 256 of 210 bytes;
    Q8_K    = 15, "q8_k",    block 256 of 292 bytes;
    IQ2_XXS = 16, "iq2_xxs", block 256 of 66 bytes;
    IQ2_XS  = 17, "iq2_xs",  block 256 of 74 bytes;
    IQ3_XXS = 18, "iq3_xxs", block 256 of 98 bytes;
    IQ1_S   = 19, "iq1_s",   block 256 of 50 bytes;
    IQ4_NL  = 20, "iq4_nl",  block 32 of 18 bytes;
    IQ3_S   = 21, "iq3_s",   block 256 of 110 bytes;
    IQ2_S   = 22, "iq2_s",   block 256 of 82 bytes;
    IQ4_XS  = 23, "iq4_xs",  block 256 of 136 bytes;
    I8      = 24, "i8",      block 1 of 1 bytes;
    I16     = 25, "i16",     block 1 of 2 bytes;
    I32     = 26, "i32",     block 1 of 4 bytes;
    I64     = 27, "i64",     block 1 of 8 bytes;
    F64     = 28, "f64",     block 1 of 8 bytes;
    IQ1_M   = 29, "iq1_m",   block 256 of 56 bytes;
    BF16    = 30, "bf16",    block 1 of 2 bytes;
    TQ1_0   = 34, "tq1_0",   block 256 of 54 bytes;
    TQ2_0   = 35, "tq2_0",   block 256 of 66 bytes;
    MXFP4   = 39, "mxfp4",   block 32 of 17 bytes;
    NVFP4   = 40, "nvfp4",   block 64 of 36 bytes;
    Q1_0    = 41, "q1_0",    block 128 of 18 bytes;
    Q2_0    = 42, "q2_0",    block 64 of 18 bytes;
}

impl TensorType {
    /// The type with this GGUF id, if this program knows it.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.id() == id)
    }

    /// Number of bytes of a row of `len` elements; `None` if `len` is not a whole number of blocks or the size does not
    /// fit 64 bits.
    pub fn row_bytes(self, len: u64) -> Option<u64> {
        if !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Number of bytes of a tensor of this shape (ggml order), with the checks of [`Self::row_bytes`].
    pub fn tensor_bytes(self, shape: &[u64]) -> Option<u64> {
        let (first, rest) = shape.split_first()?;
        rest.iter()
            .try_fold(self.row_bytes(*first)?, |bytes, n| bytes.checked_mul(*n))
    }

    /// Whether an element is a plain number, not a part of a quantised block.
    pub const fn is_plain(self) -> bool {
        self.block_len() == 1
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TensorType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.to_ascii_lowercase();
        Self::ALL
            .iter()
            .copied()
            .find(|t| t.name() == name)
            .ok_or_else(|| {
                let names: Vec<_> = Self::ALL.iter().map(|t| t.name()).collect();
                format!(
                    "unknown tensor type `{text}`: expected one of {}",
                    names.join(", ")
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_are_unique_and_found() {
        for &t in TensorType::ALL {
            assert_eq!(TensorType::from_id(t.id()), Some(t));
            assert_eq!(t.name().parse(), Ok(t));
        }
        assert_eq!(TensorType::from_id(4), None);
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(TensorType::Q8_0.tensor_bytes(&[64, 3]), Some(2 * 34 * 3));
        assert_eq!(TensorType::Q8_0.row_bytes(33), None);
        assert_eq!(TensorType::F32.tensor_bytes(&[u64::MAX / 2, 3]), None);
    }
}
