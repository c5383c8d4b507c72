//! `bench convert`: writes a model in another format or element type.

use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;

use lab_base::util::wording::bytes;
use lab_base::weights::TensorType;
use lab_core::models;
use lab_core::models::convert::{to_folder, to_gguf};

use super::hub::model_source;
use super::options::{OpenOptions, progress_bar, shown_by};
use super::output::{ForceOption, OutputPlace};
use super::values::{byte_count, matrix_type};
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
    /// Element type of weight matrices: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k or q6_k; default: as
    /// stored; in a folder of safetensors quantised matrices become f32
    #[arg(long = "type", value_name = "TYPE", value_parser = matrix_type)]
    ty: Option<TensorType>,
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
    let mut model = models::open(&source, &args.opening.definitions()?)?;
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
    let bar = progress_bar("writing", &model.name);
    let (progress, force, ty) = (&mut shown_by(&bar), args.force.force, args.ty);
    let mut ending = target.extension().into_iter();
    let written = match ending.any(|ending| ending.eq_ignore_ascii_case("gguf")) {
        true => to_gguf(&model, ty, target, force, progress),
        false => to_folder(&model, ty, target, args.shard, force, progress),
    };
    bar.finish_and_clear();
    written?;
    let size = bytes(size(target)?);
    output::line(format!("{}: {size}", target.display()))
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
