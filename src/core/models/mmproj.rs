//! The projector file (mmproj) of a model in a GGUF file: which one is used.

use std::path::{Path, PathBuf};

use lab_base::weights::{Weights, gguf};

use super::ModelSource;

/// What is in the name of a projector file.
pub const WORD: &str = "mmproj";

/// The key of a vocabulary's tokens in a GGUF file.
const TOKENS: &str = "tokenizer.ggml.tokens";

/// The keys of the width of the rows that a projector makes.
const WIDTHS: [&str; 2] = ["clip.vision.projection_dim", "clip.audio.projection_dim"];

/// Words in names of projector files that name no model: element types, and what converters write for want of a name.
const WORDS: [&str; 10] = [
    "f16", "bf16", "f32", "fp16", "fp32", "q8_0", "q6_k", "q4_k_m", "model", "vision",
];

/// Maximum number of names of a folder that are examined.
const MAX_NAMES: usize = 4096;

/// Which projector file has the towers of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MmprojChoice {
    /// The one that is beside the model, if there is one; else the towers of its folder.
    #[default]
    Found,
    /// None, and no towers of a folder either.
    None,
    /// This one.
    File(PathBuf),
}

/// The projector file beside a GGUF file: `mmproj` is in its name, it makes rows of `n_embd` elements, and the rest of
/// its name is the beginning of the model's, or says nothing. In the folder of a repository of the Hub, any name fits.
pub fn beside(source: &ModelSource, n_embd: u64) -> Option<PathBuf> {
    let path = source.file().filter(|path| is_gguf(path))?;
    let is_of_repository = matches!(source, ModelSource::Named { .. });
    let folders: Vec<&Path> = path.ancestors().skip(1).collect();
    let cache = folders
        .iter()
        .position(|folder| folder.ends_with("snapshots"));
    // A repository may have its quantisations in folders, and the projector above them.
    let n = cache.filter(|_| is_of_repository).unwrap_or(1);
    let mut folders = folders.into_iter().take(n.max(1));
    folders.find_map(|folder| in_folder(folder, path, is_of_repository, n_embd))
}

/// The projector file for a model in a folder.
fn in_folder(folder: &Path, path: &Path, is_of_repository: bool, n_embd: u64) -> Option<PathBuf> {
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    let model = name_of(path);
    let entries = std::fs::read_dir(folder).ok()?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<(usize, usize, PathBuf)> = paths
        .take(MAX_NAMES)
        .filter(|path| is_gguf(path) && name_of(path).contains(WORD))
        .filter_map(|path| {
            let named = model_in(&name_of(&path));
            let fits = model.starts_with(&named);
            let rank = type_rank(&name_of(&path));
            (fits || is_of_repository).then_some((if fits { named.len() } else { 0 }, rank, path))
        })
        .collect();
    found.sort_by(|a, b| (b.0, a.1, &a.2).cmp(&(a.0, b.1, &b.2)));
    let fits = |path: &Path| {
        let (metadata, _) = gguf::header(path).ok()?;
        let widths = WIDTHS.iter().filter_map(|key| metadata.i64(key));
        Some(widths.into_iter().any(|width| width == n_embd as i64))
    };
    let mut found = found.into_iter().map(|(.., path)| path);
    found.find(|path| fits(path) == Some(true))
}

/// Whether a vocabulary in a file's metadata has a token; true if there is none there.
pub(super) fn has_token(model: &Weights, token: &str) -> bool {
    let tokens = model.metadata().array(TOKENS);
    let Some(tokens) = tokens.and_then(|tokens| tokens.as_strings()) else {
        return true;
    };
    token.is_empty() || tokens.iter().any(|other| other == token.as_bytes())
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "gguf")
}

/// The name of a file without its ending, in lower case.
fn name_of(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default();
    name.to_string_lossy().to_lowercase()
}

/// The name of the model in the name of a projector file; empty if it names none.
fn model_in(name: &str) -> String {
    let is_mark = |c: char| matches!(c, '-' | '.' | '_');
    let mut rest = name.replace(WORD, "");
    loop {
        let trimmed = rest.trim_matches(is_mark);
        let without = WORDS.iter().find_map(|word| {
            let head = trimmed.strip_suffix(word)?;
            (head.is_empty() || head.ends_with(is_mark)).then_some(head)
        });
        match without {
            Some(head) => rest = head.to_owned(),
            None => return trimmed.to_owned(),
        }
    }
}

/// The order in which element types are taken: half precision first, since kernels are made for it.
fn type_rank(name: &str) -> usize {
    let order = ["f16", "fp16", "bf16", "q8_0", "f32"];
    let ranks = order
        .iter()
        .position(|word| name.rsplit(['-', '.']).any(|part| part == *word));
    ranks.unwrap_or(order.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_projector_files_name_a_model_or_none() {
        for (name, model) in [
            ("mmproj-f16", ""),
            ("mmproj-model-f16", ""),
            ("mmproj", ""),
            ("pond-4b-it.mmproj", "pond-4b-it"),
            ("mmproj-pond-4b-it-q8_0", "pond-4b-it"),
            ("pond-4b-it-mmproj-bf16", "pond-4b-it"),
            ("mmproj-chef16", "chef16"),
        ] {
            assert_eq!(model_in(name), model, "{name}");
        }
        assert!(type_rank("mmproj-f16") < type_rank("mmproj-bf16"));
        assert!(type_rank("mmproj-bf16") < type_rank("mmproj"));
    }
}
