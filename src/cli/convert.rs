//! `bench convert`: writes a model in another format or element type.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args as ClapArgs;

use lab_base::util::limited_read::MAX_DEFINITION;
use lab_base::util::wording::bytes;
use lab_base::weights::TensorType;
use lab_core::model::Options;
use lab_core::models;
use lab_core::models::convert::{to_folder, to_gguf};
use lab_core::models::quantise::{Importance, Mix};
use lab_core::models::{ModelSource, OpenedModel};
use lab_inspect::calibrate::calibrate;
use lab_inspect::evaluate::PASS;

use super::hub::model_source;
use super::input_file::read_at_most;
use super::options::{LoadOptions, OpenOptions, cores, progress_bar, shown_by};
use super::output::{ForceOption, OutputPlace};
use super::text_windows::{TextOptions, check_predicts, read_windows, window_size};
use super::values::{byte_count, mix};
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The model, in place of `-m`: a GGUF file, or a folder of safetensors
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// What to write: NAME.gguf, or a folder of safetensors with the metadata in a config.json
    #[arg(value_name = "DST", required_unless_present = "model")]
    target: Option<OutputPlace>,
    /// The model; the only argument is then DST
    #[arg(short, long, value_name = "MODEL", conflicts_with = "target")]
    model: Option<PathBuf>,
    /// Types of weight matrices: f32, f16, bf16, or one of llama-quantize's mixes: q1_0, q2_0, q4_0, q4_1, q5_0, q5_1,
    /// q8_0, q2_k, q2_k_s, q3_k_s, q3_k_m, q3_k_l, q4_k_s, q4_k_m, q5_k_s, q5_k_m, q6_k, iq1_s, iq1_m, iq2_xxs,
    /// iq2_xs, iq2_s, iq2_m, iq3_xxs, iq3_xs, iq3_s, iq3_m, iq4_nl, iq4_xs, tq1_0, tq2_0, mxfp4_moe; or mxfp4 or
    /// nvfp4. q3_k, q4_k and q5_k are q3_k_m, q4_k_m and q5_k_m. Default: as stored; in a folder of safetensors
    /// quantised matrices become f32
    #[arg(long = "type", value_name = "TYPE", value_parser = mix)]
    ty: Option<Mix>,
    /// File with rules that give each tensor its type (docs/quantisation.md), in place of `--type`
    #[arg(long, value_name = "FILE.toml", conflicts_with = "ty")]
    mix: Option<PathBuf>,
    /// Importance matrix of llama-imatrix, in either of its formats: errors in columns that matter more count more. The mixes
    /// below 3 bits need one
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// File with a text on which the importance is measured first, in windows of 512 tokens
    #[arg(long, value_name = "FILE", conflicts_with = "imatrix")]
    calibrate: Option<PathBuf>,
    #[command(flatten)]
    texts: TextOptions,
    /// Write the importance that `--calibrate` measured to this file, in the format of llama-imatrix (GGUF)
    #[arg(long, value_name = "FILE.gguf", requires = "calibrate")]
    save_imatrix: Option<OutputPlace>,
    /// Maximum size of each safetensors file of a folder, in bytes, such as 512M or 5G; a larger tensor has a
    /// file of its own
    #[arg(long, value_name = "BYTES", default_value = "5G", value_parser = byte_count)]
    shard: u64,
    #[command(flatten)]
    force: ForceOption,
    #[command(flatten)]
    opening: OpenOptions,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    // With `-m`, the first argument is what is written.
    let (source, target) = match (&args.model, &args.target) {
        (None, Some(target)) => (&args.source, &**target),
        (Some(model), _) => (model, args.source.as_path()),
        (None, None) => anyhow::bail!("DST: expected NAME.gguf or a folder to write"),
    };
    let source = model_source(Some(source))?;
    let mix = args.mix(&source)?;
    let mut model = models::open(&source, &args.opening.definitions()?)?;
    with_vocabulary(&mut model)?;
    let bar = progress_bar("writing", &model.name);
    let (progress, force) = (&mut shown_by(&bar), args.force.force);
    let mix = mix.as_ref();
    let mut ending = target.extension().into_iter();
    let written = match ending.any(|ending| ending.eq_ignore_ascii_case("gguf")) {
        true => to_gguf(&model, mix, target, force, progress),
        false => to_folder(&model, mix, target, args.shard, force, progress),
    };
    bar.finish_and_clear();
    written?;
    let size = bytes(size(target)?);
    output::line(format!("{}: {size}", target.display()))
}

impl Args {
    /// The types that the matrices get; none: those that they have.
    fn mix(&self, source: &ModelSource) -> Result<Option<Mix>, Failure> {
        let mix = match &self.mix {
            Some(path) => Some(read_mix(path)?),
            None => self.ty.clone(),
        };
        let importance = match (&self.imatrix, &self.calibrate) {
            (Some(path), _) => Some(Importance::read(path)?),
            (None, Some(path)) => Some(self.measure(source, path)?),
            (None, None) => None,
        };
        match (mix, importance) {
            (Some(mix), importance) => Ok(Some(mix.with_importance(importance.map(Arc::new)))),
            (None, Some(_)) if self.save_imatrix.is_none() => {
                anyhow::bail!("--imatrix and --calibrate: expected --type or --mix with it")
            }
            (None, _) => Ok(None),
        }
    }

    /// Measures the importance of columns on a text.
    fn measure(&self, source: &ModelSource, text: &Path) -> Result<Importance, Failure> {
        let mut opened = models::open(source, &self.opening.definitions()?)?;
        check_predicts(&opened)?;
        opened.drafter = None;
        let size = window_size(&opened, None);
        let windows = read_windows(&mut opened, text, size, (usize::MAX, self.texts))?;
        let options = Options {
            n_threads: cores(),
            k_type: TensorType::F32,
            v_type: TensorType::F32,
            n_ctx_seq: size,
            ..Options::plain(size.next_multiple_of(256), PASS)
        };
        let mut model = LoadOptions::load_placed(opened, options)?;
        let bar = progress_bar("calibrating", "");
        let name = text.display().to_string();
        let found = calibrate(&mut model, &windows, &name, &mut shown_by(&bar));
        bar.finish_and_clear();
        let found = found?;
        if let Some(path) = &self.save_imatrix {
            found.write(self.force.target(path))?;
        }
        Ok(found)
    }
}

/// Adds the vocabulary of a folder to the metadata of the file that is written.
pub(super) fn with_vocabulary(model: &mut OpenedModel) -> Result<(), Failure> {
    if let Some(vocabulary) = &model.vocabulary {
        let keys = vocabulary.for_file()?;
        model.weights.add_metadata(&keys.metadata);
        if let Some(text) = keys.differs_at {
            tracing::warn!(
                text,
                "the file tokenizes some texts differently from the folder"
            );
        }
    }
    Ok(())
}

/// The mix of a file.
fn read_mix(path: &Path) -> Result<Mix, Failure> {
    let text = read_at_most(path, MAX_DEFINITION)?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Mix::of_file(&name, &text).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))
}

/// Size of a file, or of the files in a folder, in bytes.
fn size(path: &Path) -> Result<u64, Failure> {
    if !path.is_dir() {
        return Ok(std::fs::metadata(path)?.len());
    }
    let mut sum = 0;
    for entry in std::fs::read_dir(path)? {
        sum += entry?.metadata()?.len();
    }
    Ok(sum)
}
