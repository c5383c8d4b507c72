//! Prompts with media for `bench logits`: messages, the values that towers read, and what is dumped.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args as ClapArgs;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value};

use lab_base::chat::template::{self, ChatTemplate, Moment, RenderInput};
use lab_base::tokenizer::Tokenizer;
use lab_base::util::clock::unix_seconds;
use lab_core::model::{EncodedMedia, MediaRows, MediaTowers, Model, Options};
use lab_core::models::OpenedModel;
use lab_core::models::media::{PreparedMedium, PromptMedia};
use lab_core::models::towers::OpenedMedia;
use lab_core::plan::Media;

use super::Failure;
use super::input_file::read_text;
use super::options::LoadOptions;
use super::output::at;

/// The names that processors give to the values of a kind of media.
const VALUES: [(Media, &str); 2] = [
    (Media::Image, "pixel_values"),
    (Media::Audio, "input_features"),
];

/// A prompt made of messages.
#[derive(Debug, ClapArgs)]
pub(super) struct MediaPrompt {
    /// JSON file with a conversation in place of token ids: `{"messages": [...], "add_generation_prompt": true}`.
    /// Parts of a message are `{"type": "text", "text": ...}` or `{"type": "image" or "audio", "path": ...}`. `tokens`
    /// are the ids of the prompt, for models that have no chat template
    #[arg(long, value_name = "FILE.json")]
    messages: Option<PathBuf>,
    /// Safetensors file with the values that towers read, in place of those made of the files: `pixel_values` of
    /// all pictures and `input_features` of all sounds, in their order
    #[arg(long, requires = "messages", value_name = "FILE.safetensors")]
    media_values: Option<PathBuf>,
    /// Safetensors file to write: the token ids, the values and the rows of media
    #[arg(long, requires = "messages", value_name = "OUT.safetensors")]
    dump: Option<PathBuf>,
}

/// A prompt with its media.
pub(super) struct PromptWithMedia {
    /// Token ids, with a token of the vocabulary in the place of each row.
    pub(super) tokens: Vec<u32>,
    media: PromptMedia,
    /// Whether the values are single patches, which others pad.
    is_list_of_patches: bool,
    towers: Option<MediaTowers>,
}

impl MediaPrompt {
    /// The prompt of the messages; none if there are no messages.
    pub(super) fn read(
        &self,
        opened: &mut OpenedModel,
        load: &LoadOptions,
    ) -> Result<Option<PromptWithMedia>, Failure> {
        let Some(path) = &self.messages else {
            return Ok(None);
        };
        let text = read_text(path)?;
        let json: Value = serde_json::from_str(&template::keep_long_integers(&text))
            .map_err(|error| at(path, error))?;
        let mut messages = json["messages"].clone();
        let files = take_paths(&mut messages);
        let media_of_model = opened.media.take().filter(|_| !files.is_empty());
        let no_media = || anyhow::anyhow!("{}: the model takes no media", opened.weights.label());
        let bytes = files.iter().map(|(_, file)| {
            let bytes = std::fs::read(file);
            bytes.map_err(|error| at(file, error))
        });
        let bytes: Vec<Vec<u8>> = bytes.collect::<Result<_, _>>()?;
        let kinds = files.iter().zip(&bytes);
        let kinds: Vec<(Media, &[u8])> =
            kinds.map(|((kind, _), bytes)| (*kind, &**bytes)).collect();
        let mut media = Vec::with_capacity(files.len());
        let mut grids = match &self.media_values {
            Some(path) => grids(path)?.into_iter(),
            None => Vec::new().into_iter(),
        };
        let longest = match &media_of_model {
            Some(of) => of.processors.longest_sound(&kinds),
            None => Ok(0),
        };
        let longest = longest.map_err(|(medium, error)| at(&files[medium].1, error))?;
        for ((kind, bytes), (_, file)) in kinds.into_iter().zip(&files) {
            let of = media_of_model.as_ref().ok_or_else(no_media)?;
            let mut processors = of.processors.clone();
            if let (Media::Image, Some(rules)) = (kind, &mut processors.pictures)
                && let Some([rows, columns]) = grids.next()
            {
                // Values of another size than the picture would have have the size that they state.
                *rules = rules.of_patches(rows, columns).unwrap_or(rules.clone());
            }
            let before = media
                .iter()
                .filter(|of: &&PreparedMedium| of.media == kind)
                .count();
            let medium = processors.prepare(kind, bytes, before, longest);
            media.push(medium.map_err(|error| at(file, error))?);
        }
        if let Some(path) = &self.media_values {
            for kind in Media::ALL {
                let of_kind = media.iter_mut().filter(|medium| medium.media == kind);
                replace_values(path, kind, of_kind.collect())?;
            }
        }
        let add = json["add_generation_prompt"].as_bool().unwrap_or(true);
        let tokenizer = lab_core::models::tokenizer_of(opened.vocabulary.take(), &opened.weights)?;
        let id_of = |text: &str| tokenizer.id_of(text);
        let given: Option<Vec<u32>> = serde_json::from_value(json["tokens"].clone())?;
        let (tokens, places) = match (given, &media_of_model) {
            (Some(tokens), _) => (tokens, Vec::new()),
            (None, None) => {
                let rendered = rendered(opened, &tokenizer, &messages, add)?;
                (tokenizer.encode_prompt(&rendered)?, Vec::new())
            }
            (None, Some(OpenedMedia { processors, .. })) => {
                let rendered = rendered(opened, &tokenizer, &messages, add)?;
                let tokens = tokenizer.encode_prompt(&processors.expanded(&rendered, &media)?)?;
                let places = processors.places(&tokens, &media, id_of)?;
                (tokens, places)
            }
        };
        let options = Options {
            n_threads: load.model.threads(),
            flash_attn: false,
            ..Options::plain(0, 1)
        };
        let towers = media_of_model
            .map(|of| MediaTowers::load(of.towers, of.processors, &options, &mut |_, _| {}))
            .transpose()?;
        let rules = towers
            .as_ref()
            .and_then(|towers| towers.processors().pictures.as_ref());
        let is_list_of_patches = rules.is_some_and(|rules| {
            let is_list = |medium: &PreparedMedium| {
                medium
                    .prepared
                    .views
                    .iter()
                    .any(|view| view.shape.len() == 2)
            };
            rules.values.block.get() == 1 && media.iter().any(is_list)
        });
        Ok(Some(PromptWithMedia {
            tokens,
            media: PromptMedia {
                media: media.into_iter().map(Arc::new).collect(),
                places,
            },
            is_list_of_patches,
            towers,
        }))
    }
}

impl PromptWithMedia {
    /// Computes the rows of the media and sets them for sequence 0 of the model.
    pub(super) fn set(&mut self, args: &MediaPrompt, model: &mut Model) -> Result<(), Failure> {
        let Some(towers) = self.towers.take() else {
            return Ok(());
        };
        model.set_towers(towers);
        let mut encoded = EncodedMedia::default();
        model.encode_media(&self.media, &mut encoded, None)?;
        model.set_prompt_media(0, (&self.media, &encoded), &self.tokens)?;
        if let Some(path) = &args.dump {
            let n_embd = model.plan().n_embd as usize;
            let Some(towers) = model.towers() else {
                return Ok(());
            };
            let media = self.media.media.iter();
            let rows: Vec<MediaRows> = media
                .map(|medium| towers.rows(medium))
                .collect::<Result<_, _>>()?;
            self.dump(path, &rows, n_embd)?;
        }
        Ok(())
    }

    /// The values of all views of the media of a kind, unless others pad them: where they have several shapes, and lists of
    /// single patches.
    fn values(&self, kind: Media) -> Option<Vec<f32>> {
        let media = self.media.media.iter();
        let media: Vec<_> = media.filter(|medium| medium.media == kind).collect();
        let views = media.iter().flat_map(|medium| &medium.prepared.views);
        let views: Vec<_> = views.collect();
        let mut of_media = media.iter().map(|medium| medium.prepared.views.len());
        let n_views = of_media.next();
        let is_one_shape = views.windows(2).all(|pair| match kind {
            Media::Image => pair[0].shape[1..] == pair[1].shape[1..],
            Media::Audio => pair[0].shape == pair[1].shape,
        }) && of_media.all(|n| Some(n) == n_views)
            && !(kind == Media::Image && self.is_list_of_patches);
        let values = views.iter().flat_map(|view| &view.values).copied();
        (is_one_shape && !views.is_empty()).then(|| values.collect())
    }

    /// Writes the token ids, the values of views of one shape, and the rows: embeddings and the parts that layers add.
    fn dump(&self, path: &Path, rows: &[MediaRows], n_embd: usize) -> Result<(), Failure> {
        let part = |at: usize| -> Vec<f32> {
            let all = rows
                .iter()
                .flat_map(|of| of.rows.chunks_exact(of.width.max(1)));
            all.flat_map(|row| &row[at * n_embd..(at + 1) * n_embd])
                .copied()
                .collect()
        };
        let width = rows.first().map_or(n_embd, |of| of.width);
        let ids: Vec<i32> = self.tokens.iter().map(|id| *id as i32).collect();
        let mut arrays: Vec<(String, Vec<f32>, usize)> = Vec::new();
        for at in 0..width / n_embd.max(1) {
            let name = match at {
                0 => "media_embeds".to_owned(),
                at => format!("deepstack.{}", at - 1),
            };
            arrays.push((name, part(at), n_embd));
        }
        for (kind, name) in VALUES {
            arrays.extend(
                self.values(kind)
                    .map(|values| (format!("proc.{name}"), values, 1)),
            );
        }
        let mut all = vec![(
            "input_ids".to_owned(),
            TensorView::new(Dtype::I32, vec![ids.len()], bytemuck::cast_slice(&ids))?,
        )];
        for (name, values, width) in &arrays {
            let shape = vec![values.len() / width, *width];
            let view = TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(values))?;
            all.push((name.clone(), view));
        }
        Ok(safetensors::serialize_to_file(all, None, path)?)
    }
}

/// Takes the kinds and paths of media out of messages, in their order, so that their parts are those that templates expect.
fn take_paths(messages: &mut Value) -> Vec<(Media, PathBuf)> {
    let messages = messages.as_array_mut().into_iter().flatten();
    let parts =
        messages.flat_map(|message| message["content"].as_array_mut().into_iter().flatten());
    let paths = parts.filter_map(|part| {
        let kind = Media::ALL
            .into_iter()
            .find(|kind| part["type"] == kind.name())?;
        let path = part.as_object_mut()?.remove("path")?;
        Some((kind, PathBuf::from(path.as_str()?)))
    });
    paths.collect()
}

/// The numbers of rows and of columns of patches of all pictures, where a file of values states them: as grids of time, height
/// and width (`image_grid_thw`), or as the column and row of each patch (`image_position_ids`, padded with -1).
fn grids(path: &Path) -> Result<Vec<[u32; 2]>, Failure> {
    let file = std::fs::read(path).map_err(|error| at(path, error))?;
    let stored = safetensors::SafeTensors::deserialize(&file).map_err(|error| at(path, error))?;
    let array = |name: &str| {
        let array = stored.tensor(name).ok()?;
        let (long, short) = (array.data().as_chunks().0, array.data().as_chunks().0);
        let numbers: Vec<i64> = match array.dtype() {
            Dtype::I64 => long
                .iter()
                .map(|bytes| i64::from_le_bytes(*bytes))
                .collect(),
            Dtype::I32 => short
                .iter()
                .map(|bytes| i32::from_le_bytes(*bytes).into())
                .collect(),
            _ => return None,
        };
        Some((array.shape().to_vec(), numbers))
    };
    let side = |n: i64| u32::try_from(n).unwrap_or(0);
    if let Some((_, grids)) = array("image_grid_thw") {
        let grids = grids.chunks_exact(3);
        return Ok(grids.map(|grid| [side(grid[1]), side(grid[2])]).collect());
    }
    let places = array("image_position_ids");
    let Some(([_, n, 2], places)) = places
        .as_ref()
        .and_then(|(shape, places)| Some((<[usize; 3]>::try_from(shape.as_slice()).ok()?, places)))
    else {
        return Ok(Vec::new());
    };
    let last = |of: &[i64], at: usize| of.chunks_exact(2).map(|place| place[at]).max().unwrap_or(0);
    let pictures = places.chunks_exact((2 * n).max(1));
    Ok(pictures
        .map(|of| [side(last(of, 1) + 1), side(last(of, 0) + 1)])
        .collect())
}

/// An array of a file of values.
struct ValueArray {
    shape: Vec<usize>,
    values: Vec<f32>,
    /// The number of views that were read of it.
    n_views: usize,
    /// The number of values that were read, where views follow each other.
    at: usize,
    /// The number of elements of the last dimension that were read, where views stand beside each other.
    beside: usize,
}

impl ValueArray {
    /// The values of the next view, the `index`th of the `medium`th of `n_media`. `last` is the sum of the last dimensions of
    /// all views. None if the array has other shapes.
    fn next(
        &mut self,
        shape: &[usize],
        (medium, n_media, index): (usize, usize, usize),
        last: usize,
    ) -> Option<Vec<f32>> {
        let n: usize = shape.iter().product();
        let leading = self.shape.len().checked_sub(shape.len())?;
        let (outer, width) = (&self.shape[leading..], *shape.last()?);
        let size: usize = outer.iter().product();
        let is_beside = width < last && outer.last() == Some(&last);
        let start = match leading {
            // The rows of all views follow each other.
            0 => {
                let own = self.values.get(self.at..self.at + n)?.to_vec();
                self.at += n;
                return Some(own);
            }
            1 if self.shape[0] == 1 && is_beside => self.beside,
            2 if self.shape[0] == n_media && n_media > 1 => (medium * self.shape[1] + index) * size,
            _ => self.n_views * size,
        };
        self.n_views += 1;
        self.beside += width;
        let value = |i: usize| {
            let (mut rest, mut from, mut step) = (i, start, 1);
            for (n, of) in shape.iter().zip(outer).rev() {
                from += rest % n * step;
                rest /= n;
                step *= of;
            }
            self.values.get(from).copied()
        };
        (0..n).map(value).collect()
    }
}

/// Replaces the values of all media of a kind by those of a file: an array of all views or, with one more dimension, of the
/// views of each medium. Arrays may be padded at the ends of their dimensions, views may stand beside each other, and those
/// of another size may have an array of their own, whose name begins alike.
fn replace_values(
    path: &Path,
    kind: Media,
    mut media: Vec<&mut PreparedMedium>,
) -> Result<(), Failure> {
    let Some((_, name)) = VALUES
        .iter()
        .find(|(of, _)| *of == kind && !media.is_empty())
    else {
        return Ok(());
    };
    let file = std::fs::read(path).map_err(|error| at(path, error))?;
    let stored = safetensors::SafeTensors::deserialize(&file).map_err(|error| at(path, error))?;
    stored.tensor(name).map_err(|error| at(path, error))?;
    let array = |(_, view): (String, TensorView<'_>)| {
        let (numbers, _) = view.data().as_chunks();
        let values = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes));
        ValueArray {
            shape: view.shape().to_vec(),
            values: values.collect(),
            n_views: 0,
            at: 0,
            beside: 0,
        }
    };
    let mut named = stored.tensors();
    named.retain(|(other, view)| other.starts_with(name) && view.dtype() == Dtype::F32);
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut arrays: Vec<ValueArray> = named.into_iter().map(array).collect();
    let last = |medium: &&mut PreparedMedium| -> usize {
        let views = medium.prepared.views.iter();
        views.filter_map(|view| view.shape.last()).sum()
    };
    let last: usize = media.iter().map(last).sum();
    let n_media = media.len();
    for (m, medium) in media.iter_mut().enumerate() {
        for (v, view) in medium.prepared.views.iter_mut().enumerate() {
            let own = arrays
                .iter()
                .position(|array| array.shape.ends_with(&view.shape));
            let array = &mut arrays[own.unwrap_or(0)];
            let values = array.next(&view.shape, (m, n_media, v), last);
            view.values = values.ok_or_else(|| {
                let (path, shape) = (path.display(), &array.shape);
                anyhow::anyhow!("{path}: `{name}` {shape:?} does not fit the media")
            })?;
        }
    }
    Ok(())
}

/// The prompt that the model's template renders.
fn rendered(
    opened: &OpenedModel,
    tokenizer: &Tokenizer,
    messages: &Value,
    add: bool,
) -> Result<String, Failure> {
    let label = opened.weights.label();
    let found = template::choose_template(opened.weights.metadata(), None, false)
        .map_err(|error| anyhow::anyhow!("{label}: {error}"))?;
    let none = || anyhow::anyhow!("{label}: the model has no chat template");
    let template = ChatTemplate::new(found.ok_or_else(none)?)?;
    let name = |id: Option<u32>| {
        id.and_then(|id| tokenizer.token_text(id))
            .unwrap_or_default()
            .into_owned()
    };
    Ok(template.render(&RenderInput {
        messages,
        tools: None,
        documents: None,
        add_generation_prompt: add,
        continue_final_message: false,
        kwargs: &Map::new(),
        bos_token: &name(tokenizer.bos()),
        eos_token: &name(tokenizer.eos()),
        now: Moment::from_unix_seconds(unix_seconds() as i64),
    })?)
}
