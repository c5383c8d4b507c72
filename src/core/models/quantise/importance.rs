//! How much each input column of a matrix matters: the mean square of the values that it was multiplied with on a text.
//!
//! Reads and writes the importance matrices of llama.cpp (`llama-imatrix`): a GGUF file with sums and counts, and an older
//! format without a name. A file is untrusted input: it is read no further than its lengths say, and every sum is a
//! finite number that is not negative.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lab_base::ggml::ColumnSums;
use lab_base::util::atomic_file::OutputPath;
use lab_base::util::limited_read;
use lab_base::weights::gguf::{self, NewTensor};
use lab_base::weights::{Array, Error, Metadata, TensorType, Value, Weights};

/// Largest file of the older format: 4 GiB.
const MAX_BYTES: u64 = 4 << 30;
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";

/// The importance of the columns of a model's matrices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Importance {
    /// By tensor.
    pub tensors: BTreeMap<String, ColumnSums>,
    /// Number of parts of the text, and the tokens of each.
    pub n_chunks: u32,
    pub chunk_size: u32,
    /// Names of the texts.
    pub datasets: Vec<String>,
    /// The file that it was read from.
    pub file: Option<PathBuf>,
}

impl Importance {
    /// Reads a file of either format.
    ///
    /// # Errors
    /// The file cannot be read, breaks a rule of its format, or has a sum that is negative or not finite.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io {
            path: path.to_owned(),
            source,
        };
        let mut magic = [0; 4];
        let mut file = limited_read::open(path).map_err(io)?;
        let n = std::io::Read::read(&mut file, &mut magic).map_err(io)?;
        drop(file);
        let found = match n == 4 && &magic == b"GGUF" {
            true => Self::of_gguf(&gguf::open(path)?),
            false => Self::of_bytes(&limited_read::bytes(path, MAX_BYTES).map_err(io)?),
        };
        let found = found.and_then(|found| found.checked().map(|()| found));
        let mut found = found.map_err(|message| Error::File {
            path: path.to_owned(),
            message: format!("not an importance matrix: {message}"),
        })?;
        found.file = Some(path.to_owned());
        Ok(found)
    }

    fn of_gguf(weights: &Weights) -> Result<Self, String> {
        let values = |name: &str| -> Result<Vec<f32>, String> {
            let tensor = weights.tensor(name);
            let tensor = tensor.ok_or_else(|| format!("there is no tensor `{name}`"))?;
            if tensor.ty != TensorType::F32 {
                return Err(format!("`{name}` is {}, expected f32", tensor.ty));
            }
            let bytes = weights.data(tensor).map_err(|error| error.to_string())?;
            let (values, _) = bytes.as_chunks::<4>();
            Ok(values.iter().map(|v| f32::from_le_bytes(*v)).collect())
        };
        let mut tensors = BTreeMap::new();
        for tensor in weights.tensors() {
            if let Some(name) = tensor.name.strip_suffix(SUMS) {
                let counts = values(&format!("{name}{COUNTS}"))?;
                let counts = counts.into_iter().map(f32::round).collect();
                let sums = values(&tensor.name)?;
                tensors.insert(name.to_owned(), ColumnSums { sums, counts });
            } else if let Some(name) = tensor.name.strip_suffix(COUNTS)
                && weights.tensor(&format!("{name}{SUMS}")).is_none()
            {
                return Err(format!("there is no tensor `{name}{SUMS}`"));
            }
        }
        let metadata = weights.metadata();
        let number = |key: &str| metadata.i64(key).and_then(|n| u32::try_from(n).ok());
        let datasets = metadata.array(DATASETS).and_then(Array::as_strings);
        let datasets = datasets.into_iter().flat_map(|all| all.iter());
        Ok(Self {
            tensors,
            n_chunks: number(CHUNK_COUNT).unwrap_or(0),
            chunk_size: number(CHUNK_SIZE).unwrap_or(0),
            datasets: datasets
                .map(|name| String::from_utf8_lossy(name).into_owned())
                .collect(),
            file: None,
        })
    }

    /// The older format: the number of tensors, for each the length of its name, the name, the number of parts, the number of
    /// sums and the sums, then the number of parts and the name of the text. Numbers have 32 bits.
    fn of_bytes(bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Rest { bytes, at: 0 };
        let mut found = Self::default();
        for _ in 0..rest.size("the number of tensors")? {
            let n = rest.size("the length of a name")?;
            let name = String::from_utf8_lossy(rest.take(n, "a name")?).into_owned();
            // The sums of older programs are not divided by a count.
            let count = rest.int("a count")?.max(1) as f32;
            let n = rest.size("the number of sums")?.checked_mul(4);
            let sums = rest.take(n.unwrap_or(usize::MAX), &format!("the sums of `{name}`"))?;
            let (sums, _) = sums.as_chunks::<4>();
            let sums = sums.iter().map(|v| f32::from_le_bytes(*v)).collect();
            let counts = vec![count];
            found.tensors.insert(name, ColumnSums { sums, counts });
        }
        if !rest.is_empty() {
            found.n_chunks = rest.size("the number of parts")? as u32;
        }
        if !rest.is_empty() {
            let n = rest.size("the length of the text's name")?;
            let name = rest.take(n, "the text's name")?;
            found.datasets = vec![String::from_utf8_lossy(name).into_owned()];
        }
        Ok(found)
    }

    /// Refuses what is no importance.
    fn checked(&self) -> Result<(), String> {
        if self.tensors.is_empty() {
            return Err("it has no tensors".into());
        }
        for (name, columns) in &self.tensors {
            let (n, n_counts) = (columns.sums.len(), columns.counts.len());
            if n == 0 || n_counts == 0 || !n.is_multiple_of(n_counts) {
                return Err(format!("`{name}` has {n} sums and {n_counts} counts"));
            }
            let fits = |v: &&f32| !(v.is_finite() && **v >= 0.0);
            if let Some(sum) = columns.sums.iter().find(fits) {
                return Err(format!("`{name}` has the sum of squares {sum}"));
            }
            if let Some(count) = columns.counts.iter().find(fits) {
                return Err(format!("`{name}` has the count {count}"));
            }
        }
        Ok(())
    }

    /// Writes the GGUF format.
    ///
    /// # Errors
    /// The file exists and is not to be replaced, a name is too long for the format, or the operating system fails.
    pub fn write(&self, target: OutputPath<'_>) -> Result<(), Error> {
        let mut metadata = Metadata::default();
        metadata.insert("general.type", Value::Str("imatrix".into()));
        let datasets = self.datasets.iter().collect();
        metadata.insert(DATASETS, Value::Array(Array::Str(datasets)));
        metadata.insert(CHUNK_COUNT, Value::U32(self.n_chunks));
        metadata.insert(CHUNK_SIZE, Value::U32(self.chunk_size));
        let (mut tensors, mut values) = (Vec::new(), Vec::new());
        for (name, columns) in &self.tensors {
            let n_counts = columns.counts.len();
            let width = columns.sums.len() / n_counts.max(1);
            for (ending, width, of) in [(SUMS, width, &columns.sums), (COUNTS, 1, &columns.counts)]
            {
                tensors.push(NewTensor {
                    name: format!("{name}{ending}"),
                    ty: TensorType::F32,
                    shape: vec![width as u64, n_counts as u64],
                });
                values.push(of);
            }
        }
        let bytes = |i: usize| -> std::io::Result<Vec<u8>> {
            Ok(values[i].iter().flat_map(|v| v.to_le_bytes()).collect())
        };
        gguf::write(target, &metadata, &tensors, bytes)
    }
}

/// The rest of a file.
struct Rest<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Rest<'a> {
    fn is_empty(&self) -> bool {
        self.bytes.len() == self.at
    }

    fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8], String> {
        let taken = self.bytes[self.at..].get(..n);
        let taken = taken.ok_or_else(|| {
            let n_all = self.bytes.len();
            format!(
                "{what} at byte {} has {n} bytes, and the file {n_all}",
                self.at
            )
        })?;
        self.at += n;
        Ok(taken)
    }

    fn int(&mut self, what: &str) -> Result<i32, String> {
        let four = self.take(4, what)?;
        Ok(i32::from_le_bytes([four[0], four[1], four[2], four[3]]))
    }

    fn size(&mut self, what: &str) -> Result<usize, String> {
        let at = self.at;
        let n = self.int(what)?;
        usize::try_from(n).map_err(|_| format!("{what} at byte {at} is {n}"))
    }
}

#[cfg(test)]
mod tests {
    use lab_base::ggml::IMPORTANCE_LIMIT;

    use super::*;

    fn older(n_sums: i32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for n in [1, 1] {
            bytes.extend(i32::to_le_bytes(n));
        }
        bytes.push(b't');
        for n in [2, n_sums] {
            bytes.extend(i32::to_le_bytes(n));
        }
        bytes.extend([1.0f32, 3.0].iter().flat_map(|v| v.to_le_bytes()));
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Importance, String> {
        let scratch = tempfile::tempdir().expect("a folder");
        let path = scratch.path().join("importance");
        std::fs::write(&path, bytes).expect("a writable folder");
        let found = Importance::read(&path).map_err(|error| error.to_string());
        found.map_err(|error| error.replace(&format!("{}: ", path.display()), ""))
    }

    #[test]
    fn both_formats_are_read_and_one_is_written() {
        let found = read(&older(2)).expect("the older format");
        assert_eq!(found.tensors["t"].means(), [0.5, 1.5]);
        let scratch = tempfile::tempdir().expect("a folder");
        let path = scratch.path().join("written.gguf");
        let columns = ColumnSums {
            sums: vec![8.0, 2.0, 0.0, 0.0],
            counts: vec![4.0, 0.0],
        };
        let mut written = Importance {
            n_chunks: 3,
            chunk_size: 512,
            datasets: vec!["a text".into()],
            ..Importance::default()
        };
        written
            .tensors
            .insert("blk.0.ffn_up_exps.weight".into(), columns);
        written
            .write(OutputPath::from(&*path))
            .expect("it can be written");
        let again = Importance::read(&path).expect("it can be read");
        written.file = Some(path);
        assert_eq!(again, written);
        // No row met the second matrix.
        let means = again.tensors["blk.0.ffn_up_exps.weight"].means();
        assert_eq!(means, [2.0, 0.5, 1.0, 1.0]);
    }

    #[test]
    fn a_file_that_is_none_is_refused_with_the_place() {
        let refused = |bytes: &[u8]| read(bytes).expect_err("no importance matrix");
        assert!(
            refused(b"").contains("the number of tensors at byte 0 has 4 bytes, and the file 0")
        );
        assert!(refused(&older(-1)).contains("the number of sums at byte 13 is -1"));
        let message = refused(&older(i32::MAX));
        assert!(
            message.contains("the sums of `t` at byte 17 has 8589934588 bytes"),
            "{message}"
        );
        let mut negative = older(2);
        negative[17..21].copy_from_slice(&(-1.0f32).to_le_bytes());
        assert!(refused(&negative).contains("`t` has the sum of squares -1"));
        negative[17..21].copy_from_slice(&f32::NAN.to_le_bytes());
        assert!(refused(&negative).contains("`t` has the sum of squares NaN"));
        assert!(refused(&0i32.to_le_bytes()).contains("it has no tensors"));
    }

    #[test]
    fn huge_sums_keep_their_ratios() {
        let columns = ColumnSums {
            sums: vec![1e30, 5e29],
            counts: vec![1.0],
        };
        let means = columns.means();
        assert!(
            means[0] <= IMPORTANCE_LIMIT && means[0] == 2.0 * means[1],
            "{means:?}"
        );
    }
}
