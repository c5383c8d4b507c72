//! Facts about a tokenizer class that are only in its code, not in a file of its folder.
//!
//! The facts are data (`classes.toml`); no class is named here. A folder names its class, or at least the type of its
//! model. Invariant: the table parses, and no two entries of one form share a name.

use std::sync::LazyLock;

use serde::Deserialize;

use super::Error;
use super::files::FolderFiles;

/// The form of the files that hold a vocabulary.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum ClassForm {
    Ranks,
    Merges,
    Words,
    Pieces,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenizerClass {
    names: Vec<String>,
    form: ClassForm,
    /// The pattern that splits texts into words.
    pub(super) pattern: Option<String>,
    pub(super) normal_form: Option<String>,
    #[serde(default)]
    special: Vec<String>,
    /// Tokens that replace the first pieces of a model, and the number of pieces that they replace.
    #[serde(default)]
    pub(super) leading: Vec<String>,
    #[serde(default)]
    pub(super) replaced: usize,
    /// The tokens that a text starts with, and those that it ends with.
    #[serde(default)]
    pub(super) first: Vec<String>,
    #[serde(default)]
    pub(super) last: Vec<String>,
    #[serde(default)]
    pub(super) strips_left: Vec<String>,
    bos: Option<String>,
    eos: Option<String>,
    unk: Option<String>,
    pad: Option<String>,
    sep: Option<String>,
    mask: Option<String>,
}

/// The name of the entry for files that contain their own pattern.
pub(super) const TEKKEN: &str = "Tekken";

static CLASSES: LazyLock<Vec<TokenizerClass>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct Table {
        class: Vec<TokenizerClass>,
    }
    let table: Table = toml::from_str(include_str!("classes.toml")).expect("classes.toml");
    table.class
});

pub(super) fn named(form: ClassForm, name: &str) -> Option<&'static TokenizerClass> {
    CLASSES
        .iter()
        .find(|class| class.form == form && class.names.iter().any(|known| known == name))
}

pub(super) fn find(
    files: &FolderFiles,
    form: ClassForm,
) -> Result<Option<&'static TokenizerClass>, Error> {
    Ok(names(files)?.iter().find_map(|name| named(form, name)))
}

/// The entry for a folder, which must exist.
pub(super) fn required(
    files: &FolderFiles,
    form: ClassForm,
) -> Result<&'static TokenizerClass, Error> {
    let class = find(files, form)?;
    class.map_or_else(|| Err(unknown(files)), Ok)
}

fn unknown(files: &FolderFiles) -> Error {
    let names = names(files).unwrap_or_default();
    Error::UnknownClass {
        path: files.tokenizer_path(),
        class: match names.is_empty() {
            true => "no class is named".to_owned(),
            false => format!("nothing is known of class `{}`", names.join("`, `")),
        },
    }
}

/// The possible class names of a folder, the most specific first.
fn names(files: &FolderFiles) -> Result<Vec<String>, Error> {
    const CLASS: &str = "tokenizer_class";
    const TYPE: &str = "model_type";
    let text_config = files.config.object("text_config")?;
    let named = [
        files.tokenizer_config.text(CLASS)?,
        files.config.text(CLASS)?,
        files.config.text(TYPE)?,
        text_config.text(TYPE)?,
    ];
    let plain = |name: &str| name.strip_suffix("Fast").unwrap_or(name).to_owned();
    Ok(named.into_iter().flatten().map(plain).collect())
}

impl TokenizerClass {
    /// The tokens after those of the file, with number ranges expanded.
    pub(super) fn special(&self) -> Vec<String> {
        self.special
            .iter()
            .flat_map(|text| numbered(text))
            .collect()
    }

    pub(super) fn unknown(&self) -> Option<&str> {
        self.unk.as_deref()
    }

    pub(super) fn roles(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("bos", &self.bos),
            ("eos", &self.eos),
            ("unk", &self.unk),
            ("pad", &self.pad),
            ("sep", &self.sep),
            ("mask", &self.mask),
        ]
        .into_iter()
        .filter_map(|(role, token)| Some((role, token.as_deref()?)))
    }

    /// All tokens that the entry names, except those after the file's.
    pub(super) fn named_tokens(&self) -> impl Iterator<Item = &str> {
        let ends = self.first.iter().chain(&self.last).map(String::as_str);
        ends.chain(self.roles().map(|(_, token)| token))
    }
}

/// The texts that a `{first..last}` in a text expands to.
fn numbered(text: &str) -> Vec<String> {
    let parts = || {
        let (before, rest) = text.split_once('{')?;
        let (range, after) = rest.split_once('}')?;
        let (first, last) = range.split_once("..")?;
        let range = first.parse::<u32>().ok()?..=last.parse().ok()?;
        Some(range.map(|n| format!("{before}{n}{after}")).collect())
    };
    parts().unwrap_or_else(|| vec![text.to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_parses_and_its_names_are_unique() {
        assert!(CLASSES.len() > 8);
        for form in [
            ClassForm::Ranks,
            ClassForm::Merges,
            ClassForm::Words,
            ClassForm::Pieces,
        ] {
            let classes = CLASSES.iter().filter(|class| class.form == form);
            let mut names: Vec<_> = classes.flat_map(|class| &class.names).collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "{form:?}");
        }
        assert!(named(ClassForm::Ranks, TEKKEN).is_some());
        assert_eq!(numbered("<a{3..5}>"), ["<a3>", "<a4>", "<a5>"]);
        assert_eq!(numbered("{x}"), ["{x}"]);
    }

    #[test]
    fn every_pattern_is_one_of_the_library() {
        for class in CLASSES.iter() {
            let Some(pattern) = &class.pattern else {
                continue;
            };
            let step = serde_json::json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
            let split: Result<tokenizers::PreTokenizerWrapper, _> = serde_json::from_value(step);
            assert!(split.is_ok(), "{:?}: {split:?}", class.names);
        }
    }
}
