//! Finds and opens models: a file, a folder of tensors, or a model built into the program.
//!
//! Opening reads metadata and shapes and makes the plan; the engine that runs a model loads its weights. The command
//! line and the API use this.

use std::collections::BTreeMap;
use std::path::Path;

use crate::arch::ArchDef;
use crate::hf;
use crate::models::definitions::Definitions;
use crate::models::drafters::{OpenedDrafter, open_drafter};
use crate::models::error::Error;
use crate::models::lora;
use crate::models::lora::Adapter;
use crate::models::model_files::{ModelFiles, read};
use crate::models::prompts::Prompts;
use crate::models::quantise::{self, Mix, quantise};
use crate::models::sampling_defaults::SamplingDefaults;
use crate::models::source::ModelSource;
use crate::models::towers::{OpenedMedia, open_media};
use crate::plan::{self, Plan};
use lab_base::tokenizer;
use lab_base::tokenizer::folder::FolderTokenizer;
use lab_base::util::wording;
use lab_base::weights::{self, Metadata, TensorType, Weights, gguf};

/// A model that is opened but not loaded.
#[derive(Debug)]
pub struct OpenedModel {
    /// Name under which the model is served.
    pub name: String,
    pub weights: Weights,
    /// The vocabulary of a folder; the vocabulary of a file is in its metadata.
    pub vocabulary: Option<FolderTokenizer>,
    /// The definition of the architecture.
    pub def: ArchDef,
    pub plan: Plan,
    /// Name of the chat template; none: the template that fits the request.
    pub template: Option<String>,
    /// The LoRA adapters of the model.
    pub adapters: Vec<Adapter>,
    /// The prompts of an embedding model's folder.
    pub prompts: Prompts,
    /// The sampling parameters for requests that do not set them.
    pub sampling: SamplingDefaults,
    /// The media that it takes; none if it takes texts alone.
    pub media: Option<OpenedMedia>,
    /// Maximum number of rows of a medium that the model reads before its tokens; 0 if it reads none so.
    pub n_source_rows: usize,
    /// What drafts its next tokens, if anything does.
    pub drafter: Option<OpenedDrafter>,
}

impl OpenedModel {
    /// The same model with its matrices in the types of a mix ([`crate::models::quantise`]). Its towers keep theirs, unless
    /// everything becomes f32.
    pub fn quantised(self, mix: &Mix) -> Result<Self, Error> {
        let weights = quantise(&self.weights, &self.plan, mix)?;
        let plan = Plan::new(&self.def, weights.metadata(), &weights);
        let plan = plan.map_err(|source| Error::Plan {
            model: weights.label().to_owned(),
            source,
        })?;
        let drafter = self
            .drafter
            .map(|drafter| drafter.quantised(mix))
            .transpose()?;
        let media = match (self.media, mix.base()) {
            (Some(media), TensorType::F32) => Some(media.quantised(mix)?),
            (media, _) => media,
        };
        Ok(Self {
            weights,
            plan,
            media,
            drafter,
            ..self
        })
    }

    /// The types that a mix gives to the matrices, by tensor.
    ///
    /// # Errors
    /// A condition of the mix cannot be evaluated.
    pub fn quantised_types(
        &self,
        mix: &Mix,
    ) -> Result<BTreeMap<String, TensorType>, weights::Error> {
        let types = quantise::types(&self.weights, &self.plan, mix)?;
        Ok(types
            .into_iter()
            .map(|(name, ty)| (name.to_owned(), ty))
            .collect())
    }

    /// The same model with adapters, in this order; `source` is the source of the model.
    ///
    /// # Errors
    /// An adapter does not fit the model; the error is that of the first one.
    pub fn adapted(
        self,
        adapters: &[lora::AdapterSource],
        source: &ModelSource,
        with: &Definitions,
    ) -> Result<Self, lora::Error> {
        let params = match adapters {
            [] => return Ok(self),
            _ => plan::parameters(&self.def, self.weights.metadata(), &self.weights),
        };
        let base = lora::AdaptedModel {
            plan: &self.plan,
            params: &params,
            metadata: self.weights.metadata(),
            folder: source.file().filter(|path| hf::is_folder(path)),
            maps: &with.maps,
        };
        let adapters = adapters.iter().map(|adapter| Adapter::open(adapter, &base));
        let adapters = adapters.collect::<Result<_, _>>()?;
        Ok(Self { adapters, ..self })
    }
}

/// Opens a model: its file, definition and plan.
pub fn open(source: &ModelSource, with: &Definitions) -> Result<OpenedModel, Error> {
    let ModelFiles {
        weights,
        vocabulary,
        left_out,
    } = read(source, with)?;
    let model = weights.label().to_owned();
    if let Some(kind) = gguf::AuxiliaryKind::of(weights.metadata(), weights.tensors()) {
        return Err(Error::NotAModel { model, kind });
    }
    let Some(arch) = weights.metadata().str("general.architecture") else {
        return Err(Error::NoArch { model });
    };
    let def = with.archs.get(arch).map_err(|source| Error::Arch {
        model: model.clone(),
        source,
    })?;
    let plan = Plan::new(&def, weights.metadata(), &weights).map_err(|source| Error::Plan {
        model: model.clone(),
        source,
    })?;
    report_unread(&plan, weights.metadata(), &model, with.strict)?;
    let media = open_media(source, &weights, &plan, with)?;
    let drafter = open_drafter(&weights, (&def, &plan), with)?;
    let reads_rows = plan.source.as_ref().is_some_and(|source| source.is_rows);
    let rows = media.as_ref().filter(|_| reads_rows);
    let n_source_rows = rows.map_or(0, |media| media.processors.n_of_window());
    let sampling = SamplingDefaults::of(weights.metadata());
    if let (None, Some(parts)) = (&media, left_out) {
        tracing::warn!("{model}: opened as a text model without its {parts}");
    }
    Ok(OpenedModel {
        name: source.name(),
        sampling: match plan.diffusion {
            Some(_) => sampling.memoryless(),
            None => sampling,
        },
        weights,
        vocabulary,
        def,
        plan,
        template: None,
        media,
        n_source_rows,
        drafter,
        adapters: Vec::new(),
        prompts: match source.file() {
            Some(path) if hf::is_folder(path) => Prompts::read(hf::folder_of(path)),
            _ => Prompts::default(),
        },
    })
}

/// The metadata keys of a file that are not read: keys of the architecture and of the vocabulary.
pub fn unread_keys(plan: &Plan, metadata: &Metadata) -> Vec<String> {
    let keys = plan.unread.iter().cloned();
    keys.chain(tokenizer::unread(metadata)).collect()
}

/// The first names of a list and the number of further ones; names that differ only in the layer count as one.
pub fn abbreviated(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let names = wording::by_layer(names, &wording::without_layer);
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Reports the tensors and keys that are not read: an error if `strict`, otherwise a warning.
fn report_unread(plan: &Plan, metadata: &Metadata, model: &str, strict: bool) -> Result<(), Error> {
    let keys = unread_keys(plan, metadata);
    let unread: Vec<&String> = keys.iter().chain(&plan.unclaimed).collect();
    let unread = wording::by_layer(&unread, &wording::without_layer);
    if strict && !unread.is_empty() {
        return Err(Error::Unread {
            model: model.to_owned(),
            arch: plan.arch.clone(),
            unread: unread.join(", "),
        });
    }
    if !plan.unclaimed.is_empty() {
        let (n, names) = (plan.unclaimed.len(), abbreviated(&plan.unclaimed));
        tracing::warn!("{n} tensors in the file, used by nothing: {names}");
    }
    if !keys.is_empty() {
        let keys = keys.join(", ");
        tracing::warn!(
            keys,
            "metadata that nothing reads: the result may not be what it asks for"
        );
    }
    Ok(())
}

/// The models in a folder, by name: files (the first part of a split file) and folders of tensors. GGUF files that are
/// not models, such as adapters, are omitted.
pub fn list(folder: &Path) -> Result<Vec<ModelSource>, Error> {
    let io = |source| Error::Io {
        path: folder.to_owned(),
        source,
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        found.push(ModelSource::File(path));
    }
    found.retain(is_servable);
    found.sort_by_key(ModelSource::name);
    Ok(found)
}

/// Whether a source is a model as far as its name and header tell: a GGUF file (the first part of a split one) that is
/// not an adapter or the like, or a folder of tensors.
pub fn is_servable(source: &ModelSource) -> bool {
    let Some(path) = source.file() else {
        return true;
    };
    let name = path.file_name().and_then(|n| n.to_str());
    let name = name.unwrap_or_default();
    let is_later_part = name.contains("-of-") && !name.contains("-00001-of-");
    if !name.ends_with(".gguf") || is_later_part || !path.is_file() {
        return hf::is_model(path);
    }
    // A file that cannot be read is reported when it is requested.
    let header = gguf::header(path).ok();
    let kind = header.and_then(|(metadata, tensors)| gguf::AuxiliaryKind::of(&metadata, &tensors));
    if let Some(kind) = &kind {
        tracing::info!(path = %path.display(), "not served: this is {}", kind.name());
    }
    kind.is_none()
}

/// Models by name. Models that would have the same name, such as `m.gguf` and the folder `m`, get the names of their
/// files, with the extension.
pub fn by_name(sources: Vec<ModelSource>) -> BTreeMap<String, ModelSource> {
    let mut all: BTreeMap<String, Vec<ModelSource>> = BTreeMap::new();
    for source in sources {
        all.entry(source.name()).or_default().push(source);
    }
    let whole = |source: &ModelSource| match source {
        ModelSource::File(path) => path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned()),
        ModelSource::BuiltIn(_) | ModelSource::Named { .. } => None,
    };
    let named = all
        .into_iter()
        .flat_map(|(name, mut same)| match same.len() {
            1 => vec![(name, same.remove(0))],
            _ => {
                let same = same.into_iter();
                same.map(|source| (whole(&source).unwrap_or_else(|| name.clone()), source))
                    .collect()
            }
        });
    named.collect()
}

#[cfg(test)]
mod tests {
    use crate::models::*;

    #[test]
    fn models_of_one_name_are_told_apart_by_their_endings() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("m")).expect("a folder");
        let source = |name: &str| ModelSource::File(folder.path().join(name));
        let all = by_name(vec![source("m.gguf"), source("n.gguf"), source("m")]);
        let names: Vec<&String> = all.keys().collect();
        assert_eq!(names, ["m", "m.gguf", "n"]);
        assert_eq!(all["m.gguf"], source("m.gguf"));
    }

    #[test]
    fn a_model_is_called_like_its_file_or_folder() {
        let name = |path: &str| ModelSource::File(path.into()).name();
        assert_eq!(name("models/some-1.5b.gguf"), "some-1.5b");
        // The tests run in the root of the package.
        assert_eq!(name("."), "core");
        assert_eq!(name("model/.."), "core");
        let folder = std::env::temp_dir().join(format!("bench-name-{}-1.5b", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let of_folder = name(folder.to_str().expect("UTF-8"));
        std::fs::remove_dir(&folder).expect("it is empty");
        assert!(of_folder.ends_with("-1.5b"), "{of_folder}");
    }
}
