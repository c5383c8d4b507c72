//! Models in several files: `NAME-00001-of-00003.gguf` and so on.
//!
//! Every part is a GGUF file with its own tensors. `split.no` and `split.count` state the number of the part and of all
//! parts; the first part has the model's metadata.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::weights::map::map;
use crate::weights::{Error, FileBytes, Metadata, Weights};

use super::read::ParsedHeader;
use super::{SplitFault, join, parse_file};

const MAX_PARTS: u64 = 1024;

pub(super) fn count(metadata: &Metadata) -> Result<u64, SplitFault> {
    if metadata.get("split.count").is_none() {
        return Ok(1);
    }
    let found = number(metadata, "split.count")?;
    if found > MAX_PARTS {
        let limit = MAX_PARTS;
        return Err(SplitFault::Count { found, limit });
    }
    Ok(found)
}

pub(super) fn open(
    path: &Path,
    one: (FileBytes, ParsedHeader),
    count: u64,
) -> Result<Weights, Error> {
    let label = path.display().to_string();
    let refuse = |fault| Error::Split {
        label: label.clone(),
        fault,
    };
    let no = number(&one.1.metadata, "split.no").map_err(refuse)?;
    if no >= count {
        return Err(refuse(SplitFault::Number { found: no, count }));
    }
    let paths = part_paths(path, no, count).map_err(refuse)?;
    let mut one = Some(one);
    let mut parts = Vec::with_capacity(paths.len());
    for (i, part_path) in (0..).zip(&paths) {
        let (bytes, parsed) = match one.take_if(|_| i == no) {
            Some(part) => part,
            None if !part_path.exists() => {
                let path = part_path.clone();
                let part = i + 1;
                return Err(refuse(SplitFault::Missing { part, count, path }));
            }
            None => {
                let bytes = map(part_path)?;
                let parsed = parse_file(&part_path.display().to_string(), &bytes)?;
                (bytes, parsed)
            }
        };
        check_part(&parsed.metadata, i, count).map_err(|fault| Error::Split {
            label: part_path.display().to_string(),
            fault,
        })?;
        parts.push((bytes, parsed));
    }
    check_tensors(&parts).map_err(refuse)?;
    Ok(join(label, parts))
}

fn number(metadata: &Metadata, key: &'static str) -> Result<u64, SplitFault> {
    metadata
        .i64(key)
        .and_then(|number| u64::try_from(number).ok())
        .ok_or(SplitFault::Key { key })
}

fn part_paths(path: &Path, no: u64, count: u64) -> Result<Vec<PathBuf>, SplitFault> {
    let ending = |no: u64| format!("-{no:05}-of-{count:05}.gguf");
    let part = no + 1;
    let stem = path
        .file_name()
        .and_then(|name| name.to_str()?.strip_suffix(&ending(part)))
        .ok_or(SplitFault::Name { part, count })?;
    Ok((1..=count)
        .map(|part| path.with_file_name(format!("{stem}{}", ending(part))))
        .collect())
}

fn check_part(metadata: &Metadata, expected: u64, count: u64) -> Result<(), SplitFault> {
    let found = number(metadata, "split.no")?;
    let found_count = number(metadata, "split.count")?;
    if (found, found_count) != (expected, count) {
        return Err(SplitFault::Part {
            found: found.saturating_add(1),
            found_count,
            expected: expected + 1,
            count,
        });
    }
    Ok(())
}

fn check_tensors(parts: &[(FileBytes, ParsedHeader)]) -> Result<(), SplitFault> {
    let mut seen = HashMap::new();
    for (second, (_, parsed)) in (1..).zip(parts) {
        for tensor in &parsed.tensors {
            if let Some(first) = seen.insert(tensor.name.as_str(), second) {
                let name = tensor.name.clone();
                return Err(SplitFault::DuplicateTensor {
                    name,
                    first,
                    second,
                });
            }
        }
    }
    let found = seen.len() as u64;
    let Some((_, first)) = parts.first() else {
        return Ok(());
    };
    match number(&first.metadata, "split.tensors.count")? {
        expected if expected != found => Err(SplitFault::Tensors { found, expected }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights;
    use crate::weights::gguf::builder::{GgufBuilder, string};

    /// Part `no` of `count` of a model of `n` tensors; the part has one tensor.
    fn part(no: u16, count: u16, n: i32) -> GgufBuilder {
        GgufBuilder::new()
            .u32("only.in", u32::from(no))
            .key("split.no", 2, &no.to_le_bytes())
            .key("split.count", 2, &count.to_le_bytes())
            .key("split.tensors.count", 5, &n.to_le_bytes())
            .tensor(&format!("t{no}"), &[4], 24, 0)
            .data(&[no as u8; 4])
    }

    /// Files `m-0000N-of-00003.gguf` for the given parts, in a separate folder.
    fn folder(parts: &[GgufBuilder]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (i, part) in (1..).zip(parts) {
            std::fs::write(path_of(folder.path(), i), part.bytes()).expect("a writable folder");
        }
        let first = path_of(folder.path(), 1);
        (folder, first)
    }

    fn path_of(folder: &Path, part: u32) -> PathBuf {
        folder.join(format!("m-{part:05}-of-00003.gguf"))
    }

    fn refusals(models: &[&[GgufBuilder]]) -> String {
        let message = |parts: &&[GgufBuilder]| {
            let (folder, first) = folder(parts);
            let error = weights::open(&first).expect_err("the parts do not fit");
            let prefix = format!("{}/m-0000", folder.path().display());
            error.to_string().replace(&prefix, "part ")
        };
        models.iter().map(message).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn any_part_opens_all() {
        let (folder, _) = folder(&[part(0, 3, 3), part(1, 3, 3), part(2, 3, 3)]);
        for opened in 1..=3 {
            let path = path_of(folder.path(), opened);
            let weights = weights::open(&path).expect("a sound model");
            assert_eq!(weights.label(), path.display().to_string());
            assert_eq!(
                weights.metadata().i64("only.in"),
                Some(0),
                "the first part's metadata"
            );
            let found: Vec<_> = weights.tensors().iter().map(|t| t.name.as_str()).collect();
            assert_eq!(found, ["t0", "t1", "t2"]);
            for (i, tensor) in weights.tensors().iter().enumerate() {
                assert_eq!(weights.data(tensor).expect("in place")[..], [i as u8; 4]);
            }
        }
    }

    #[test]
    fn a_model_in_one_part_is_one_file_of_any_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, part(0, 1, 1).bytes()).expect("a writable folder");
        assert!(weights::open(&path).is_ok());
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        insta::assert_snapshot!(
            refusals(&[
                &[part(0, 3, 3), part(1, 3, 3)],
                &[part(0, 3, 3), part(2, 3, 3), part(1, 3, 3)],
                &[part(0, 3, 3), part(1, 4, 3), part(2, 3, 3)],
                &[part(0, 3, 4), part(1, 3, 4), part(2, 3, 4)],
            ]),
            @"
        part 1-of-00003.gguf: part 3 of 3 is missing: expected `part 3-of-00003.gguf`; all parts belong in one folder
        part 2-of-00003.gguf: the file is part 3 of 3, expected part 2 of 3
        part 2-of-00003.gguf: the file is part 2 of 4, expected part 2 of 3
        part 1-of-00003.gguf: the parts hold 3 tensors, expected 4 (key `split.tensors.count`)
        "
        );
        let twice = part(1, 3, 4).tensor("t0", &[1], 24, 32).data(&[0; 32]);
        insta::assert_snapshot!(
            refusals(&[
                &[part(0, 3, 4), twice, part(2, 3, 4)],
                &[
                part(0, 3, 3),
                GgufBuilder {
                    version: 1,
                    ..part(1, 3, 3)
                },
                part(2, 3, 3),
            ],
            ]),
            @"
        part 1-of-00003.gguf: tensor `t0` is in part 1 and in part 2
        part 2-of-00003.gguf: at byte 4: GGUF version 1, expected 2 or 3; the file is older than the format: convert the model again, or download a newer file
        "
        );
    }

    #[test]
    fn keys_and_name_must_tell_the_part() {
        insta::assert_snapshot!(
            refusals(&[
                &[GgufBuilder::new().u32("split.count", 3)],
                &[GgufBuilder::new().key("split.count", 8, &string(b"3"))],
                &[GgufBuilder::new()
                .u32("split.count", 2000)
                .u32("split.no", 0)],
                &[part(3, 3, 3)],
                &[part(1, 3, 3)],
            ]),
            @"
        part 1-of-00003.gguf: key `split.no` is missing or not a count
        part 1-of-00003.gguf: key `split.count` is missing or not a count
        part 1-of-00003.gguf: key `split.count` is 2000, expected at most 1024
        part 1-of-00003.gguf: key `split.no` is 3, expected less than 3
        part 1-of-00003.gguf: the file is part 2 of 3, expected a name that ends in `-00002-of-00003.gguf`
        "
        );
        let message = part(0, 3, 3).open().expect_err("a part in memory");
        assert_eq!(
            message,
            "test: part of 3: a model built into the program is one file"
        );
    }
}
