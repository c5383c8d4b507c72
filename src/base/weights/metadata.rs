//! The metadata of a weight file: ordered keys with typed values.
//!
//! The value types are those of GGUF, which has the most; other formats are converted to them. Strings within arrays
//! are bytes, because real vocabularies have pieces that are not UTF-8. The planner, the tokenizer and `inspect` read
//! the metadata.

use std::collections::HashMap;

macro_rules! value_types {
    ($( $variant:ident($ty:ty) $name:literal; )*) => {
        /// A scalar or array value.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Value { $( $variant($ty), )* Str(String), Array(Array) }

        /// A homogeneous array; also of arrays, which the specification allows.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Array { $( $variant(Vec<$ty>), )* Str(StringArray), Array(Vec<Self>) }

        impl Value {
            /// Name of the value's type, as error messages and `inspect` print it.
            pub fn type_name(&self) -> &'static str {
                match self {
                    $( Self::$variant(_) => $name, )*
                    Self::Str(_) => "string",
                    Self::Array(_) => "array",
                }
            }
        }

        impl Array {
            pub fn len(&self) -> usize {
                match self {
                    $( Self::$variant(v) => v.len(), )*
                    Self::Str(v) => v.len(),
                    Self::Array(v) => v.len(),
                }
            }

            /// The element at `index` as a separate value; `None` past the end.
            pub fn get(&self, index: usize) -> Option<Value> {
                Some(match self {
                    $( Self::$variant(v) => Value::$variant(*v.get(index)?), )*
                    Self::Str(v) => Value::Str(String::from_utf8_lossy(v.get(index)?).into_owned()),
                    Self::Array(v) => Value::Array(v.get(index)?.clone()),
                })
            }
        }
    };
}

value_types! {
    U8(u8) "u8";
    I8(i8) "i8";
    U16(u16) "u16";
    I16(i16) "i16";
    U32(u32) "u32";
    I32(i32) "i32";
    F32(f32) "f32";
    Bool(bool) "bool";
    U64(u64) "u64";
    I64(i64) "i64";
    F64(f64) "f64";
}

/// Many byte strings in two allocations: a vocabulary has hundreds of thousands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StringArray {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl StringArray {
    pub fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of all strings one after another, and where each of them ends.
    pub fn joined(&self) -> (&[u8], &[usize]) {
        (&self.bytes, &self.ends)
    }

    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.bytes[start..end])
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i).expect("the index is below the length"))
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for StringArray {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut out = Self::default();
        for item in items {
            out.push(item.as_ref());
        }
        out
    }
}

impl Value {
    /// The value as an integer: integers, and booleans as 0 or 1.
    pub fn as_i64(&self) -> Option<i64> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => i64::try_from(v).ok()?,
            Self::I64(v) => v,
            Self::Bool(v) => v.into(),
            _ => return None,
        })
    }

    /// The value as a float: floats and integers.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            Self::Bool(_) => None,
            _ => self.as_i64().map(|v| v as f64),
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(v) => Some(v),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(v) => Some(v),
            _ => None,
        }
    }

    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(v) => Some(v),
            _ => None,
        }
    }
}

impl Array {
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn as_strings(&self) -> Option<&StringArray> {
        match self {
            Self::Str(v) => Some(v),
            _ => None,
        }
    }
}

/// Ordered keys with values. A key occurs once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// Sets a key, replacing an earlier value in place.
    pub fn insert(&mut self, key: impl Into<String>, value: Value) {
        let key = key.into();
        if let Some(&at) = self.index.get(&key) {
            self.entries[at].1 = value;
            return;
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    /// The text of a key, if its value is text.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// The integer of a key, if its value is one.
    pub fn i64(&self, key: &str) -> Option<i64> {
        self.get(key)?.as_i64()
    }

    /// The boolean of a key, if its value is one.
    pub fn bool(&self, key: &str) -> Option<bool> {
        self.get(key)?.as_bool()
    }

    /// The array of a key, if its value is one.
    pub fn array(&self, key: &str) -> Option<&Array> {
        self.get(key)?.as_array()
    }

    /// Keys and values in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl<K: Into<String>> FromIterator<(K, Value)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, Value)>>(items: I) -> Self {
        let mut out = Self::default();
        for (key, value) in items {
            out.insert(key, value);
        }
        out
    }
}
