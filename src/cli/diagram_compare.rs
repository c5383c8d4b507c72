//! `bench diagram A B --compare`: what two models, definitions or variants of one have in common and
//! what not, as a picture and in words.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::arch::ArchDef;
use crate::diagram::compare::{Comparison, summary};
use crate::diagram::png::png;
use crate::diagram::{Drawing, Sample, svg, variants};
use crate::models::{Definitions, Source};
use crate::synth::Request;

use super::diagram::{Args, request};
use super::synth::key_value;
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct CompareArgs {
    /// What it is compared with: a model, a definition, or a variant by the name of its picture
    #[arg(value_name = "B", requires = "compare")]
    others: Vec<String>,
    /// Compare two: one picture that marks what differs, and a summary in Markdown
    #[arg(long, conflicts_with_all = ["all", "html", "overlay"])]
    pub(super) compare: bool,
    /// Of the second definition: a parameter, as `--set` is of the first; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value, requires = "compare")]
    set_b: Vec<(String, String)>,
    /// Of the second definition: optional tensors, as `--with` is of the first
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAMES",
        requires = "compare"
    )]
    with_b: Vec<String>,
}

/// Draws and tells what differs.
pub(super) fn run(args: &Args, definitions: &Definitions) -> Result<(), Failure> {
    let (Some(a), [b]) = (&args.what, args.comparison.others.as_slice()) else {
        let found = usize::from(args.what.is_some()) + args.comparison.others.len();
        anyhow::bail!("`--compare` takes two models or definitions, found {found}");
    };
    let second = &args.comparison;
    let a = drawing(definitions, a, request(&args.set, &args.with))?;
    let b = drawing(definitions, b, request(&second.set_b, &second.with_b))?;
    let comparison = Comparison::new(&a, &b);
    let name = match &args.name {
        Some(name) => name.clone(),
        None => format!("{}-vs-{}", a.name, b.name),
    };
    let text = svg::comparison(&comparison, &name);
    let file = args.output.join(format!("{name}.svg"));
    std::fs::write(&file, &text)?;
    if args.png {
        std::fs::write(args.output.join(format!("{name}.png")), png(&text)?)?;
    }
    output::bytes(summary(&comparison).as_bytes())
}

/// The drawing of a model, a definition or a variant.
fn drawing(
    definitions: &Definitions,
    what: &str,
    request: Option<Request>,
) -> Result<Drawing, Failure> {
    let path = PathBuf::from(what);
    if path.exists() {
        if request.is_some() {
            anyhow::bail!("{what} is a model: it has no parameters to set");
        }
        let opened = crate::models::open(&Source::File(path), definitions)?;
        let sample = Sample::of_model(&opened.name, &opened.plan)?;
        return drawn(definitions, &opened.def, &sample);
    }
    let (def, variant) = find(definitions, what)?;
    let request = match (request, variant) {
        (Some(_), Some(_)) => anyhow::bail!(
            "{what} is a variant: it has its parameters; set those of `{}`",
            def.name
        ),
        (Some(request), None) | (None, Some(request)) => request,
        (None, None) => variants(&def)?.swap_remove(0).1,
    };
    let sample = Sample::of_definition(what, &def, &request)?;
    drawn(definitions, &def, &sample)
}

fn drawn(definitions: &Definitions, def: &ArchDef, sample: &Sample) -> Result<Drawing, Failure> {
    let source = definitions.archs.source(&def.name)?;
    Ok(Drawing::new(def, &source.text, sample))
}

/// A definition by its name, or one of its variants by the name of its picture.
fn find(definitions: &Definitions, what: &str) -> Result<(ArchDef, Option<Request>), Failure> {
    let library = &definitions.archs;
    let is_known = |name: &str| library.sources().any(|(known, _)| known == name);
    if is_known(what) {
        return Ok((library.get(what)?, None));
    }
    // Names of definitions have hyphens too: the longest that is one.
    let ends = what.rmatch_indices('-').map(|(at, _)| at);
    let mut names = ends.map(|at| (&what[..at], &what[at + 1..]));
    let Some((name, tag)) = names.find(|(name, _)| is_known(name)) else {
        return Ok((library.get(what)?, None));
    };
    let def = library.get(name)?;
    let mut all = variants(&def)?;
    if let Some(at) = all.iter().position(|(known, _)| known == tag) {
        return Ok((def, Some(all.swap_remove(at).1)));
    }
    let known = all.iter().filter(|(tag, _)| !tag.is_empty());
    let known: Vec<String> = known.map(|(tag, _)| format!("`{name}-{tag}`")).collect();
    let known = match known.is_empty() {
        true => format!("`{name}` has none"),
        false => format!("those of `{name}` are {}", known.join(", ")),
    };
    anyhow::bail!("`{what}`: no file, definition or variant of this name; {known}")
}
