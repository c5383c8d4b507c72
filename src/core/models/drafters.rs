//! The drafter of a model: opened beside it, from the same file or from one of its own.

use std::collections::HashSet;
use std::fmt::Display;
use std::path::Path;

use crate::arch::ArchDef;
use crate::arch::expr::Value as Number;
use crate::hf;
use crate::plan::{DeviceShare, Plan, TensorPlan};
use lab_base::tokenizer;
use lab_base::tokenizer::Tokenizer;
use lab_base::weights::{Metadata, TensorInfo, TensorType, Value, Weights};

use super::definitions::{Definitions, DrafterChoice};
use super::error::Error;
use super::model_files::{read, tokenizer_of};
use super::quantise::Mix;
use super::source::ModelSource;

/// The key of the number of a drafter's head, of several with weights of their own.
pub(super) const HEAD: &str = "target.head";
/// The tokens of a vocabulary in a file's metadata.
const TOKENS: &str = "tokenizer.ggml.tokens";

/// A drafter that is opened but not loaded.
#[derive(Debug)]
pub struct OpenedDrafter {
    /// Its name: that of its definition, or of its file.
    pub name: String,
    pub weights: Weights,
    pub def: ArchDef,
    pub plan: Plan,
    /// Those of its further heads, each with weights of its own.
    pub further: Vec<Plan>,
    /// The target's token for each token that it has a logit for; none if they are the same.
    pub tokens: Option<Vec<u32>>,
    /// The vocabularies, if it is a model with another one than its target: then it reads and writes texts.
    pub vocabularies: Option<Vocabularies>,
}

/// The vocabulary of a drafter and that of its target.
#[derive(Debug)]
pub struct Vocabularies {
    pub own: Tokenizer,
    pub target: Tokenizer,
}

impl OpenedDrafter {
    fn new((name, def): (String, ArchDef), weights: Weights, target: &Plan) -> Result<Self, Error> {
        let (plan, further) = plans(&def, &weights)?;
        let fault = misfit(&plan, target);
        let named = def.target.as_ref().and_then(|of| of.tokens.as_ref());
        let named = named.and_then(|name| {
            let with_ending = || weights.tensor(&format!("{}.weight", name.value));
            weights.tensor(&name.value).or_else(with_ending)
        });
        let has_distances = plan.target.as_ref().is_some_and(|of| of.has_distances);
        let tokens = match named {
            Some(tensor) => Some(tokens_of(&weights, tensor, has_distances)?),
            None => None,
        };
        let opened = Self {
            name,
            weights,
            def,
            plan,
            further,
            tokens,
            vocabularies: None,
        };
        match fault {
            Some(message) => Err(opened.refused(message)),
            None => Ok(opened),
        }
    }

    /// The plans of its heads.
    pub fn plans(&self) -> impl Iterator<Item = &Plan> {
        [&self.plan].into_iter().chain(&self.further)
    }

    /// Bytes of [`Self::shared`].
    pub fn shared_bytes(&self, weights: &Weights, target: &Plan) -> u64 {
        self.shared(weights, target).map(|of| of.bytes).sum()
    }

    /// The weights that it uses in place where its target `weights` does, by all of its heads.
    pub fn shared(&self, weights: &Weights, target: &Plan) -> impl Iterator<Item = &TensorPlan> {
        let place = |weights: &Weights, name: &str| {
            let (bytes, offset) = weights.place(weights.tensor(name)?)?;
            Some((bytes.as_ptr(), offset))
        };
        let on_processor = self.plan.devices.is_empty() && target.devices.is_empty();
        let used = target.tensors.iter().filter(|_| on_processor);
        let used: HashSet<_> = used.filter_map(|of| place(weights, &of.name)).collect();
        let own = self.plans().flat_map(|plan| &plan.tensors);
        own.filter(move |of| {
            place(&self.weights, &of.name).is_some_and(|place| used.contains(&place))
        })
    }

    fn refused(&self, message: String) -> Error {
        Error::Drafter {
            drafter: self.weights.label().to_owned(),
            message,
        }
    }

    /// Places all of it where the last layer of the target is, or on the processor. A drafter is placed once.
    pub fn place_like(&mut self, target: &Plan) {
        let slots = target.layers.iter().flat_map(|layer| &layer.slots);
        let last = slots.flat_map(|slot| &slot.branches).last();
        let device = last.and_then(|branch| branch.block.device.checked_sub(1));
        let device = device.and_then(|at| target.devices.get(at));
        for plan in [&mut self.plan].into_iter().chain(&mut self.further) {
            let share = device.map(|device| DeviceShare {
                device: device.clone(),
                n_layers: plan.n_placeable(),
            });
            plan.place_with(share.as_slice(), &[]);
        }
    }

    /// The same drafter with its matrices in the types of a mix, without the importance of columns, which is the model's.
    pub(super) fn quantised(self, mix: &Mix) -> Result<Self, Error> {
        let mix = mix.clone().with_importance(None);
        let mut weights = self.weights.clone();
        for plan in self.plans() {
            weights = super::quantise::quantise(&weights, plan, &mix)?;
        }
        let (plan, further) = plans(&self.def, &weights)?;
        Ok(Self {
            weights,
            plan,
            further,
            ..self
        })
    }
}

/// The plans of a drafter's heads: the first one, and those after it whose weights are there.
fn plans(def: &ArchDef, weights: &Weights) -> Result<(Plan, Vec<Plan>), Error> {
    let plan = Plan::new(def, weights.metadata(), weights);
    let plan = plan.map_err(|source| Error::Plan {
        model: weights.label().to_owned(),
        source,
    })?;
    let n_heads = plan.target.as_ref().map_or(1, |target| target.n_heads);
    let mut further = Vec::new();
    for head in 1..u32::try_from(n_heads).unwrap_or(u32::MAX) {
        let mut metadata = weights.metadata().clone();
        metadata.insert(HEAD, Value::U32(head));
        match Plan::new(def, &metadata, weights) {
            Ok(plan) => further.push(plan),
            Err(error) => {
                tracing::info!(%error, "of {n_heads} prediction heads the first {head} are used");
                break;
            }
        }
    }
    Ok((plan, further))
}

/// Why a drafter cannot draft for a target; none if it can.
fn misfit(plan: &Plan, target: &Plan) -> Option<String> {
    if plan.recurrent().next().is_some() {
        return Some("it keeps recurrent states, which cannot go back to before a draft".into());
    }
    if plan.source.is_some() || plan.diffusion.is_some() || plan.n_vocab == 0 {
        return Some("it does not go on with a text token by token".into());
    }
    let read = plan.target.as_ref()?;
    if read.width != target.n_embd || target.write.is_some() || target.source.is_some() {
        return Some(format!(
            "it reads hidden states of {} elements, and those of the model have {}{}",
            read.width,
            target.n_embd,
            if target.write.is_some() {
                ", several for each token"
            } else {
                ""
            },
        ));
    }
    let n = target.layers.len() as u64;
    let late = read.after.iter().find(|after| **after > n)?;
    Some(format!(
        "it reads the hidden state after {late} layers, and the model has {n}"
    ))
}

/// The drafter of a model; none if there is none.
///
/// # Errors
/// The file that is named cannot be read, is no model or drafter, or does not fit the model.
pub fn open_drafter(
    model: &Weights,
    (def, plan): (&ArchDef, &Plan),
    with: &Definitions,
) -> Result<Option<OpenedDrafter>, Error> {
    match &with.drafter {
        DrafterChoice::None => Ok(None),
        DrafterChoice::Found => Ok(in_file(model, (def, plan), with)),
        DrafterChoice::Named(source) => {
            let mut weights = read_drafter(source, with)?;
            weights.add_metadata(&number_of_layers(plan));
            let Some(arch) = weights.metadata().str("general.architecture") else {
                let model = weights.label().to_owned();
                return Err(Error::NoArch { model });
            };
            let of_drafter = with.drafters.get(arch);
            let own = match with.drafters.source(arch).is_ok() {
                true => of_drafter,
                false => with.archs.get(arch),
            };
            let own = own.map_err(|source| Error::Arch {
                model: weights.label().to_owned(),
                source,
            })?;
            let name = source.name();
            let weights = with_tables_of(model, &own, weights)?;
            let mut opened = OpenedDrafter::new((name, own), weights, plan)?;
            if opened.plan.target.is_none()
                && let Some(message) = other_vocabulary(opened.weights.metadata(), model.metadata())
            {
                tracing::info!("the drafter reads and writes texts: {message}");
                let own = tokenizer_in(&opened.weights);
                let both = own.and_then(|own| Ok((own, tokenizer_in(model)?)));
                let (own, target) =
                    both.map_err(|error| opened.refused(format!("{message}; {error}")))?;
                opened.vocabularies = Some(Vocabularies { own, target });
            }
            Ok(Some(opened))
        }
    }
}

/// The weights of a drafter: those of a folder by a map of drafters, or by one of models, or those of a file.
fn read_drafter(source: &ModelSource, with: &Definitions) -> Result<Weights, Error> {
    if let Some(path) = source.file().filter(|path| hf::is_folder(path)) {
        let maps = (&with.drafter_maps, &with.drafters);
        match hf::open(path, maps.0, maps.1, with.allow_unmapped) {
            Err(hf::Error::NoMap { .. }) => {}
            opened => return Ok(opened?.weights),
        }
    }
    Ok(read(source, with)?.weights)
}

/// The tokenizer of a model with these weights.
fn tokenizer_in(weights: &Weights) -> Result<Tokenizer, String> {
    let place = Path::new(weights.label());
    let folder = hf::is_folder(place).then(|| tokenizer::folder::read(hf::folder_of(place)));
    let folder = folder.transpose().map_err(|error| error.to_string())?;
    tokenizer_of(folder, weights).map_err(|error| error.to_string())
}

/// What a drafter may know of its target.
fn number_of_layers(target: &Plan) -> Metadata {
    let mut known = Metadata::default();
    known.insert("target.block_count", Value::U32(target.layers.len() as u32));
    known
}

/// The drafter that the definition of a model names, if its weights are in the model's file.
fn in_file(
    model: &Weights,
    (def, plan): (&ArchDef, &Plan),
    with: &Definitions,
) -> Option<OpenedDrafter> {
    let has_heads = matches!(plan.params.get("n_nextn"), Some(Number::Int(1..)));
    let note = |error: &dyn Display| match has_heads {
        true => tracing::info!(%error, "the prediction heads of the model are not used"),
        false => tracing::debug!(%error, "no drafter in the file"),
    };
    let Some(name) = def.drafter.as_ref().map(|name| name.value.clone()) else {
        note(&"its definition names no drafter");
        return None;
    };
    let own = with.drafters.of_target(&name, def);
    let own = own.inspect_err(|error| tracing::warn!(%error, "the drafter is not used"));
    let opened = OpenedDrafter::new((name, own.ok()?), model.clone(), plan);
    let opened = opened.inspect_err(|error| note(error)).ok();
    opened.filter(|of| !of.plan.layers.is_empty())
}

/// The weights of a drafter, with the token table and the head of its target where its own file has none.
fn with_tables_of(target: &Weights, def: &ArchDef, own: Weights) -> Result<Weights, Error> {
    if def.target.is_none() {
        return Ok(own);
    }
    let head = def.head.iter().map(|head| &head.unit);
    let uses = [&def.embed].into_iter().chain(head);
    let names = uses.flat_map(|of| of.weights.iter().map(|weight| &weight.tensor));
    let lacking = names.filter(|name| own.tensor(name).is_none());
    let shared: Vec<_> = lacking.filter_map(|name| target.tensor(name)).collect();
    let entries = own.tensors().iter().map(|tensor| own.entry(tensor));
    let entries = entries.chain(shared.into_iter().map(|tensor| target.entry(tensor)));
    let files: Vec<_> = own.files().chain(target.files()).cloned().collect();
    let all = Weights::of(
        own.label().to_owned(),
        own.metadata().clone(),
        entries.collect(),
    );
    Ok(all?.with_files(files))
}

/// Token ids in a tensor of whole numbers, which may be distances from the places in it.
fn tokens_of(
    weights: &Weights,
    tensor: &TensorInfo,
    are_distances: bool,
) -> Result<Vec<u32>, Error> {
    let refuse = |message: &str| Error::Drafter {
        drafter: weights.label().to_owned(),
        message: format!("the tensor `{}` {message}", tensor.name),
    };
    let (n, n_rows) = (tensor.shape.iter().product::<u64>(), tensor.shape.get(1));
    if n_rows.is_some_and(|n| *n > 1) {
        return Err(refuse(
            "has several rows, expected one token for each of the drafter's",
        ));
    }
    let mut bytes = vec![0; n as usize * tensor.ty.block_bytes() as usize];
    weights.rows(tensor, 0, &mut bytes)?;
    let numbers: Vec<i64> = match tensor.ty {
        TensorType::I64 => {
            let all = bytes.as_chunks().0.iter();
            all.map(|of| i64::from_le_bytes(*of)).collect()
        }
        TensorType::I32 => {
            let all = bytes.as_chunks().0.iter();
            all.map(|of| i64::from(i32::from_le_bytes(*of))).collect()
        }
        _ => return Err(refuse("has no whole numbers, expected token ids")),
    };
    let numbers = (0i64..).zip(numbers);
    let tokens = numbers.map(|(at, number)| {
        let from = if are_distances { at } else { 0 };
        u32::try_from(number.checked_add(from)?).ok()
    });
    let tokens: Option<Vec<u32>> = tokens.collect();
    tokens.ok_or_else(|| refuse("has a number that is no token id"))
}

/// How the vocabulary of a drafter differs from that of its target; none if each of its tokens is the target's token of the same id.
fn other_vocabulary(drafter: &Metadata, target: &Metadata) -> Option<String> {
    let [own, other] = [drafter, target].map(|metadata| metadata.array(TOKENS)?.as_strings());
    let (own, other) = own.zip(other)?;
    let mut both = own.iter().zip(other.iter()).enumerate();
    if let Some((at, (a, b))) = both.find(|(_, (a, b))| a != b) {
        let [a, b] = [a, b].map(String::from_utf8_lossy);
        return Some(format!(
            "its vocabulary differs from that of the model: token {at} is `{a}`, and `{b}` there"
        ));
    }
    (own.len() > other.len()).then(|| {
        let (own, other) = (own.len(), other.len());
        format!("its vocabulary has {own} tokens, and that of the model {other}")
    })
}
