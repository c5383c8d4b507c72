//! Multimodal folders along every path equal transformers, from the files of their pictures and sounds.
//!
//! `scripts/make_media_goldens.py` makes the folders of `tests/media` that have `prompts.json`: two prompts with the same text, in
//! which two media are exchanged. The media are pictures and sounds of sizes that no processor changes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use lab_base::weights::TensorType;
use lab_core::arch::ArchDef;
use lab_core::model::{
    self, Batch, EncodedMedia, FIRST_MEDIA_ID, MediaRows, MediaSpan, MediaTowers, Model, Options,
    SequenceMedia,
};
use lab_core::models::media::{PreparedMedium, PromptMedia};
use lab_core::models::tokenizer_of;
use lab_core::models::towers::{OpenedMedia, OpenedTower};
use lab_core::plan::{Media, Plan};
use serde_json::{Value, json};

use crate::goldens::{EXACT, Golden, bound, of_folder, options};
use crate::support::command::{bench, scratch, text};
use crate::support::{PATHS, TextMedia, flips, hf, logits, middle_nmse, nmse, parse_npy, sources};

/// A prompt and what transformers computes from it.
struct Prompt {
    messages: Value,
    tokens: Vec<u32>,
    media: PromptMedia,
    expected: Vec<f64>,
}

/// A folder with towers.
pub(crate) struct MediaGolden {
    /// The text model with the first prompt.
    pub(crate) golden: Golden,
    towers: OpenedMedia,
    prompts: [Prompt; 2],
}

fn root() -> PathBuf {
    sources::root().join("tests/media")
}

/// The file of the logits of each prompt.
const LOGITS: [&str; 2] = ["logits.npy", "other.npy"];

/// Every folder.
pub(crate) fn of_media() -> impl Iterator<Item = &'static MediaGolden> {
    static ALL: LazyLock<Vec<MediaGolden>> = LazyLock::new(|| {
        let places = std::fs::read_dir(root()).expect("tests/media is readable");
        let places = places.map(|place| place.expect("tests/media is readable").path());
        let mut places: Vec<PathBuf> = places
            .filter(|place| place.join("prompts.json").is_file())
            .collect();
        places.sort();
        assert!(places.len() >= 6, "{places:?}");
        places
            .iter()
            .map(|place| MediaGolden::open(place))
            .collect()
    });
    ALL.iter()
}

/// The files that messages name, with their kinds.
fn files(messages: &Value) -> Vec<(Media, Vec<u8>)> {
    let messages = messages.as_array().expect("messages").iter();
    let parts = messages.flat_map(|message| message["content"].as_array().expect("parts"));
    let of_part = |part: &Value| {
        let path = root().join("inputs").join(part["path"].as_str()?);
        let kind = Media::ALL
            .into_iter()
            .find(|kind| part["type"] == kind.name());
        Some((kind.expect("a kind of media"), hf::read(&path)))
    };
    parts.filter_map(of_part).collect()
}

impl MediaGolden {
    fn open(place: &Path) -> Self {
        let scratch = scratch();
        let (mut golden, mut opened) = of_folder(hf::open_at(place.to_owned()), scratch.path());
        let name = &golden.name;
        let towers = opened
            .media
            .take()
            .unwrap_or_else(|| panic!("{name}: no tower"));
        let tokenizer = tokenizer_of(opened.vocabulary.take(), &opened.weights);
        let tokenizer = tokenizer.expect("it has a vocabulary");
        let stored: Value =
            serde_json::from_slice(&hf::read(&place.join("prompts.json"))).expect("JSON");
        let prompts = [0, 1].map(|at| {
            let messages = stored[at]["messages"].clone();
            let files = files(&messages);
            let all: Vec<(Media, &[u8])> = files.iter().map(|(kind, of)| (*kind, &**of)).collect();
            let processors = &towers.processors;
            let longest = processors.longest_sound(&all).expect("sounds");
            let prepared = all.iter().enumerate().map(|(at, (kind, bytes))| {
                let before = all[..at].iter().filter(|(of, _)| of == kind);
                let medium = processors.prepare(*kind, bytes, before.count(), longest);
                medium.expect("sound media")
            });
            let media: Vec<_> = prepared.collect();
            let tokens: Vec<u32> =
                serde_json::from_value(stored[at]["tokens"].clone()).expect("token ids");
            let places = towers
                .processors
                .places(&tokens, &media, |text| tokenizer.id_of(text));
            Prompt {
                media: PromptMedia {
                    media: media.into_iter().map(Arc::new).collect(),
                    places: places.expect("the rows of the media"),
                },
                messages,
                tokens,
                expected: parse_npy(&hf::read(&place.join(LOGITS[at]))).values,
            }
        });
        golden.tokens = prompts[0].tokens.clone();
        let mut all = Self {
            golden,
            towers,
            prompts,
        };
        let rows = all.rows(all.opened(|_| None));
        all.golden.media = Some(all.prompts[0].text_media(&rows.expect("rows")));
        all
    }

    /// The towers, those for which there is another definition with that one.
    fn opened(&self, other: impl Fn(&OpenedTower) -> Option<(ArchDef, Plan)>) -> Vec<OpenedTower> {
        let of_tower = |tower: &OpenedTower| {
            let (def, plan) =
                other(tower).unwrap_or_else(|| (tower.def.clone(), tower.plan.clone()));
            OpenedTower {
                media: tower.media,
                weights: tower.weights.clone(),
                def,
                plan,
            }
        };
        self.towers.towers.iter().map(of_tower).collect()
    }

    fn load(
        &self,
        opened: Vec<OpenedTower>,
        options: &Options,
    ) -> Result<MediaTowers, model::Error> {
        MediaTowers::load(
            opened,
            self.towers.processors.clone(),
            options,
            &mut |_, _| {},
        )
    }

    /// The rows of the media of the first prompt.
    fn rows(&self, opened: Vec<OpenedTower>) -> Result<Vec<Arc<MediaRows>>, model::Error> {
        let mut towers = self.load(opened, &options())?;
        let media = self.prompts[0].media.media.iter();
        media
            .map(|medium| Ok(Arc::new(towers.rows(medium)?)))
            .collect()
    }

    /// The definitions of its towers.
    pub(crate) fn towers(&self) -> impl Iterator<Item = &OpenedTower> {
        self.towers.towers.iter()
    }

    /// How far the logits are from the reference if a tower has another definition; none if that does not run.
    pub(crate) fn distance(&self, name: &str, def: &ArchDef) -> Option<f64> {
        let of_tower = |tower: &OpenedTower| {
            let plan = Plan::new(def, tower.weights.metadata(), &tower.weights);
            plan.ok().map(|plan| (def.clone(), plan))
        };
        let mut own = self.towers().filter(|tower| tower.def.name == name);
        if own.any(|tower| of_tower(tower).is_none()) {
            return None;
        }
        let is_own = |tower: &OpenedTower| tower.def.name == name;
        let opened = self.opened(|tower| is_own(tower).then(|| of_tower(tower)).flatten());
        let rows = self.rows(opened).ok()?;
        let prompt = &self.prompts[0];
        let n_of_rows: usize = rows.iter().map(|of| of.rows.len() / of.width).sum();
        let n_of_media: usize = prompt.media.media.iter().map(|of| of.n_rows()).sum();
        if n_of_rows != n_of_media {
            return None;
        }
        let media = prompt.text_media(&rows);
        let mut text = self.golden.text();
        text.media = Some(&media);
        let found = logits(&self.golden.def, &self.golden.weights, text, &PATHS[0])?.ok()?;
        Some(nmse(&found, &prompt.expected))
    }

    /// The model with its towers.
    fn model(&self, options: Options) -> Model {
        let towers = self
            .load(self.opened(|_| None), &options)
            .expect("they load");
        let plan = self.golden.plan.clone();
        let mut model =
            Model::load(plan, &self.golden.weights, options, &mut |_, _| {}).expect("it loads");
        model.set_towers(towers);
        model
    }
}

impl Prompt {
    /// The media of the prompt with rows of the media of the first one, in that order.
    fn text_media(&self, rows: &[Arc<MediaRows>]) -> TextMedia {
        let mut first = FIRST_MEDIA_ID;
        let ids: Vec<u32> = rows
            .iter()
            .map(|of| {
                let id = first;
                first += (of.rows.len() / of.width) as u32;
                id
            })
            .collect();
        let spans = self.media.places.iter().map(|place| MediaSpan {
            at: place.at as u32,
            first_id: ids[place.medium] + place.from as u32,
            n: place.n as u32,
            rows: Arc::clone(&rows[place.medium]),
            from: place.from,
            grid: place.grid,
            attention: place.attention,
        });
        let set = SequenceMedia::new(spans.collect(), &self.tokens).expect("sound spans");
        TextMedia {
            set: Arc::new(set),
            whole: self.media.attending_ahead(self.tokens.len()),
        }
    }

    /// Computes the rows of the media and gives them to a sequence.
    fn set(&self, model: &mut Model, sequence: u32) {
        let mut encoded = EncodedMedia::default();
        let media = &self.media;
        assert!(model.encode_media(media, &mut encoded, None).expect("rows"));
        let set = model.set_prompt_media(sequence, (media, &encoded), &self.tokens);
        set.expect("they fit");
    }

    /// The end of a pass that shall read the tokens before `end`: not within tokens of which some attend to later ones.
    fn end_of_pass(&self, end: usize) -> usize {
        let whole = self.media.attending_ahead(self.tokens.len());
        let mut cut = whole.iter().filter(|of| of.start < end && end < of.end);
        cut.next().map_or(end, |of| of.end).min(self.tokens.len())
    }

    fn first_medium(&self) -> usize {
        self.media.places[0].at
    }
}

/// Sequences that read prompts, in passes together.
struct Readers<'a> {
    model: &'a mut Model,
    sequences: Vec<(u32, &'a Prompt)>,
    /// The rows of each sequence that were read, by position.
    found: Vec<Vec<(usize, Vec<f32>)>>,
}

impl<'a> Readers<'a> {
    fn new(model: &'a mut Model, sequences: &[(u32, &'a Prompt)]) -> Self {
        Self {
            model,
            sequences: sequences.to_vec(),
            found: vec![Vec::new(); sequences.len()],
        }
    }

    /// Reads all that is left, `n` tokens of each sequence in a pass.
    fn read(mut self, n: usize) -> Vec<Vec<(usize, Vec<f32>)>> {
        let width = self.model.row_width();
        loop {
            let mut batch = Batch::default();
            let mut places = Vec::new();
            for (i, (id, prompt)) in self.sequences.iter().enumerate() {
                let next = self.model.next(*id) as usize;
                // Each at a place of its own.
                let end = prompt.end_of_pass((next + n + i).min(prompt.tokens.len()));
                for at in next..end {
                    batch.push(prompt.tokens[at], *id, at as u32, true);
                    places.push((i, at));
                }
            }
            if batch.is_empty() {
                return self.found;
            }
            let rows = self.model.forward(&batch).expect("the pass runs");
            for (row, (i, at)) in rows.chunks_exact(width).zip(places) {
                self.found[i].push((at, row.to_vec()));
            }
        }
    }
}

/// The error of rows that were read.
fn error(found: &[(usize, Vec<f32>)], prompt: &Prompt) -> f64 {
    let width = prompt.expected.len() / prompt.tokens.len();
    let rows = found.iter().flat_map(|(_, row)| row).copied();
    let expected = found
        .iter()
        .flat_map(|(at, _)| &prompt.expected[at * width..(at + 1) * width]);
    nmse(
        &rows.collect::<Vec<f32>>(),
        &expected.copied().collect::<Vec<f64>>(),
    )
}

fn check(name: &str, what: &str, found: &[(usize, Vec<f32>)], prompt: &Prompt, bound: f64) {
    let error = error(found, prompt);
    assert!(!found.is_empty(), "{name}, {what}: nothing was read");
    assert!(error <= bound, "{name}, {what}: NMSE {error:.1e}");
}

#[test]
fn the_program_equals_transformers_from_the_files() {
    let scratch = scratch();
    for of in of_media() {
        let name = &of.golden.name;
        let folder = scratch.path().join(name);
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        hf::open_at(root().join(name)).write(&folder);
        for (at, prompt) in of.prompts.iter().enumerate() {
            let mut messages = prompt.messages.clone();
            for part in messages[0]["content"].as_array_mut().expect("parts") {
                if let Some(path) = part["path"].as_str() {
                    part["path"] = json!(root().join("inputs").join(path));
                }
            }
            let file = scratch.path().join("messages.json");
            std::fs::write(&file, json!({ "messages": messages }).to_string()).expect("written");
            let out = scratch.path().join(format!("{name}-{at}.npy"));
            let dump = scratch.path().join(format!("{name}-{at}.safetensors"));
            let ran = bench(&[
                "logits",
                "-m",
                text(&folder),
                "--type",
                "f32",
                "--messages",
                text(&file),
                "-o",
                text(&out),
                "--dump",
                text(&dump),
            ]);
            assert!(ran.is_fine(), "{name}: {}", ran.err);
            let dump = hf::read(&dump);
            let dump = safetensors::SafeTensors::deserialize(&dump).expect("safetensors");
            let ids = dump.tensor("input_ids").expect("token ids");
            let ids: Vec<u32> = ids
                .data()
                .chunks_exact(4)
                .map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]]))
                .collect();
            assert_eq!(ids, prompt.tokens, "{name}: prompt {at}");
            let found = parse_npy(&hf::read(&out)).values;
            let found: Vec<f32> = found.into_iter().map(|value| value as f32).collect();
            let error = nmse(&found, &prompt.expected);
            println!("{name:14} prompt {at}: NMSE {error:.1e}");
            assert!(error <= EXACT, "{name}: prompt {at}: NMSE {error:.1e}");
        }
    }
}

#[test]
fn media_along_every_path_equal_the_reference() {
    let mut failures = Vec::new();
    for of in of_media() {
        let golden = &of.golden;
        assert!(
            golden.plan.unread.is_empty(),
            "{}: {:?}",
            golden.name,
            golden.plan.unread
        );
        let mut row = format!("{:14}", golden.name);
        for path in &PATHS {
            let Some(found) = logits(&golden.def, &golden.weights, golden.text(), path) else {
                row.push_str("        -");
                continue;
            };
            let found = found.unwrap_or_else(|e| panic!("{}, {}: {e}", golden.name, path.name));
            let bound = bound(golden, path);
            let width = found.len() / golden.tokens.len();
            let is_routed = golden
                .plan
                .units()
                .any(|unit| unit.contract.0.name == "moe");
            let is_near_tie = is_routed && path.kv_type != TensorType::F32;
            let error = match is_near_tie {
                true => middle_nmse(&found, &golden.expected, width),
                false => nmse(&found, &golden.expected),
            };
            row.push_str(&format!("  {error:7.0e}"));
            let n_flips = flips(&found, &golden.expected, width, bound);
            let is_fine = matches!(path.kv_type, TensorType::F32 | TensorType::F16);
            if error > bound || is_fine && !is_near_tie && n_flips > 0 {
                failures.push(format!("{}, {}: NMSE {error:.1e}", golden.name, path.name));
            }
        }
        println!("{row}");
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Options under which blocks of keys are shared.
fn shared_blocks() -> Options {
    Options {
        n_seqs: 5,
        n_ctx_seq: 128,
        flash_attn: true,
        ..options()
    }
}

#[test]
fn sequences_with_other_media_and_with_none_share_passes() {
    for of in of_media() {
        let name = &of.golden.name;
        let [first, other] = &of.prompts;
        // The same tokens as a text: those that hold the places of rows have embeddings too.
        let alone = {
            let mut model = of.model(options());
            Readers::new(&mut model, &[(0, first)]).read(first.tokens.len())
        };
        for flash_attn in [false, true] {
            let mut model = of.model(Options {
                flash_attn,
                ..shared_blocks()
            });
            for n in [1, 6, 100] {
                first.set(&mut model, 0);
                other.set(&mut model, 1);
                let readers = Readers::new(&mut model, &[(0, first), (1, other), (2, first)]);
                let found = readers.read(n);
                check(name, "first", &found[0], first, EXACT);
                check(name, "other", &found[1], other, EXACT);
                let rows = |of: &[(usize, Vec<f32>)]| -> Vec<f32> {
                    of.iter().flat_map(|(_, row)| row).copied().collect()
                };
                let expected: Vec<f64> = rows(&alone[0]).into_iter().map(f64::from).collect();
                let error = nmse(&rows(&found[2]), &expected);
                assert!(error <= EXACT, "{name}, without media: NMSE {error:.1e}");
                for id in 0..3 {
                    model.release(id);
                    model.forget_media(id);
                }
            }
        }
    }
}

#[test]
fn prefixes_are_shared_where_media_are_the_same() {
    for of in of_media() {
        let name = &of.golden.name;
        let [first, other] = &of.prompts;
        let n = first.tokens.len();
        let mut model = of.model(shared_blocks());
        first.set(&mut model, 0);
        let found = Readers::new(&mut model, &[(0, first)]).read(7);
        check(name, "the first time", &found[0], first, EXACT);
        // The media of another sequence are the same, and those of a third are exchanged; one has none.
        first.set(&mut model, 1);
        other.set(&mut model, 2);
        let ids = [1, 2, 3];
        let cached = ids.map(|id| model.resume(id, &first.tokens).n_cached);
        let last = &first.media.places[1];
        assert!(cached[0] >= (n - 1) / 16 * 16, "{name}: {cached:?}");
        assert!(
            cached[0] > last.at,
            "{name}: {cached:?} of media at {}",
            last.at
        );
        // A text has the same tokens up to the first medium; a prompt whose media are exchanged too.
        let before = first.first_medium();
        assert!(
            cached[1] <= before && cached[2] <= before,
            "{name}: {cached:?}"
        );
        let found = Readers::new(&mut model, &[(1, first), (2, other)]).read(5);
        check(name, "the same media", &found[0], first, EXACT);
        check(name, "other media", &found[1], other, EXACT);
        // A sequence that ended begins again with other media, and what it read before is kept.
        (0..4).for_each(|id| model.release(id));
        other.set(&mut model, 0);
        assert_eq!(model.resume(0, &other.tokens).n_cached, n - 1, "{name}");
        let found = Readers::new(&mut model, &[(0, other)]).read(5);
        check(name, "a sequence used again", &found[0], other, EXACT);
        // Tokens within a medium are taken back and read again.
        let place = other.media.places[1];
        for back in [place.at + 1, place.at + place.n - 1, place.at] {
            let next = model.forget(0, back as u32) as usize;
            assert!(next <= back, "{name}: {next}");
            let found = Readers::new(&mut model, &[(0, other)]).read(3);
            assert_eq!(found[0].len(), n - next);
            check(name, "after a part was taken back", &found[0], other, EXACT);
        }
    }
}

#[test]
fn no_bit_depends_on_the_other_tokens_of_passes() {
    for of in of_media() {
        let name = &of.golden.name;
        let [first, other] = &of.prompts;
        let deterministic = Options {
            deterministic: true,
            ..shared_blocks()
        };
        let read = |n: usize, sequences: &[(u32, &Prompt)]| {
            let mut model = of.model(deterministic.clone());
            sequences
                .iter()
                .for_each(|(id, prompt)| prompt.set(&mut model, *id));
            let mut found = Readers::new(&mut model, sequences).read(n);
            found.swap_remove(0)
        };
        let alone = read(100, &[(0, first)]);
        check(name, "deterministic", &alone, first, EXACT);
        for n in [1, 4, 9] {
            assert!(
                read(n, &[(0, first), (1, other), (2, first)]) == alone,
                "{name}, {n}"
            );
        }
    }
}

#[test]
fn rows_that_are_computed_in_pieces_are_those_of_one_run() {
    for of in of_media() {
        let name = &of.golden.name;
        let prompt = &of.prompts[0];
        let mut model = of.model(options());
        prompt.set(&mut model, 0);
        let whole = Readers::new(&mut model, &[(0, prompt)]).read(100);
        let mut model = of.model(options());
        let (mut encoded, mut n_pieces) = (EncodedMedia::default(), 0);
        while !model
            .encode_media(&prompt.media, &mut encoded, Some(Instant::now()))
            .expect("rows")
        {
            n_pieces += 1;
            assert!(n_pieces < 10_000, "{name}: it makes no progress");
        }
        assert!(n_pieces > 0, "{name}: there was time for all");
        model
            .set_prompt_media(0, (&prompt.media, &encoded), &prompt.tokens)
            .expect("they fit");
        let found = Readers::new(&mut model, &[(0, prompt)]).read(100);
        assert!(found == whole, "{name}");
    }
}

/// The folders show what is special about media in text models.
#[test]
fn folders_show_every_way_in_which_texts_read_media() {
    let mut attentions = BTreeSet::new();
    let (mut has_grid, mut has_parts, mut has_branches) = (false, false, false);
    let mut kinds = BTreeSet::new();
    for of in of_media() {
        let golden = &of.golden;
        for prompt in &of.prompts {
            for place in &prompt.media.places {
                attentions.insert(format!("{:?}", place.attention));
                has_grid |= place
                    .grid
                    .is_some_and(|grid| grid[1] > 1 && grid[2] > grid[1]);
            }
            let media = prompt.media.media.iter();
            kinds.extend(media.map(|of: &Arc<PreparedMedium>| of.media.name()));
        }
        has_parts |= golden.plan.media_width() > golden.plan.n_embd;
        has_branches |= golden.plan.has_branches_of_media();
    }
    assert!(has_grid && has_parts && has_branches);
    assert!(attentions.len() >= 2, "{attentions:?}");
    assert_eq!(kinds, BTreeSet::from(["audio", "image"]));
}
