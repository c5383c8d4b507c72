//! `bench diagram`: pictures of a model, drawn from what runs.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::diagram::{Drawing, Sample, svg};
use crate::models::Source;
use crate::synth::Request;
use crate::weights::TensorType;

use super::options::ArchOptions;
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// A model (file or folder), or the name of a definition
    #[arg(value_name = "NAME|MODEL")]
    what: String,
    /// Folder to write into
    #[arg(short, long, default_value = ".", value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    archs: ArchOptions,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    std::fs::create_dir_all(&args.output)?;
    let definitions = args.archs.definitions()?;
    let path = PathBuf::from(&args.what);
    let (def, sample) = if path.exists() {
        let opened = crate::models::open(&Source::File(path), &definitions)?;
        let sample = Sample::of_model(&opened.name, &opened.plan)?;
        (opened.def, sample)
    } else {
        let def = definitions.archs.get(&args.what)?;
        let request = Request {
            seed: 0,
            set: Vec::new(),
            meta: Vec::new(),
            with: Vec::new(),
            ty: TensorType::F32,
            vocabulary: None,
        };
        let sample = Sample::of_definition(&def.name, &def, &request)?;
        (def, sample)
    };
    let source = definitions.archs.source(&def.name)?;
    let drawing = Drawing::new(&def, &source.text, &sample);
    for (ending, what, piece) in [
        ("arch", "the whole model", svg::stack(&drawing)),
        ("layers", "its kinds of layers", svg::layers(&drawing)),
    ] {
        let file = args.output.join(format!("{}.{ending}.svg", drawing.name));
        std::fs::write(&file, svg::document(&drawing, &piece, what))?;
        output::line(file.display().to_string())?;
    }
    Ok(())
}
