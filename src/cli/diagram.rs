//! `bench diagram`: pictures of a model, drawn from what runs.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::diagram::png::png;
use crate::diagram::{Drawing, Sample, svg};
use crate::models::Source;
use crate::synth::Request;
use crate::weights::TensorType;

use super::options::ArchOptions;
use super::synth::key_value;
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// A model (file or folder), or the name of a definition
    #[arg(value_name = "NAME|MODEL")]
    what: String,
    /// Folder to write into
    #[arg(short, long, default_value = ".", value_name = "DIR")]
    output: PathBuf,
    /// Write PNG files as well, with light colours and a font that is part of the program
    #[arg(long)]
    png: bool,
    /// Name of the pictures, if it is to be another than the model's
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Of a definition: a parameter of what is drawn, as in `synth`; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
    /// Of a definition: optional tensors that are drawn, such as output,attn_q.bias
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    with: Vec<String>,
    #[command(flatten)]
    archs: ArchOptions,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    std::fs::create_dir_all(&args.output)?;
    let definitions = args.archs.definitions()?;
    let path = PathBuf::from(&args.what);
    let (def, sample) = if path.exists() {
        let opened = crate::models::open(&Source::File(path), &definitions)?;
        let sample = Sample::of_model(args.name.as_ref().unwrap_or(&opened.name), &opened.plan)?;
        (opened.def, sample)
    } else {
        let def = definitions.archs.get(&args.what)?;
        let request = Request {
            seed: 0,
            set: args.set.clone(),
            meta: Vec::new(),
            with: args.with.clone(),
            ty: TensorType::F32,
            vocabulary: None,
        };
        let sample = Sample::of_definition(args.name.as_ref().unwrap_or(&def.name), &def, &request)?;
        (def, sample)
    };
    let source = definitions.archs.source(&def.name)?;
    let drawing = Drawing::new(&def, &source.text, &sample);
    for (ending, what, piece) in [
        ("arch", "the whole model", svg::stack(&drawing)),
        ("layers", "its kinds of layers", svg::layers(&drawing)),
    ] {
        let file = args.output.join(format!("{}.{ending}.svg", drawing.name));
        let text = svg::document(&drawing, &piece, what);
        std::fs::write(&file, &text)?;
        output::line(file.display().to_string())?;
        if args.png {
            let file = file.with_extension("png");
            std::fs::write(&file, png(&text)?)?;
            output::line(file.display().to_string())?;
        }
    }
    Ok(())
}
