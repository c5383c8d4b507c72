//! `bench diagram A B --compare`: the differences between two models, definitions or variants, as a picture and in
//! words.

use clap::Args as ClapArgs;

use crate::files::models::Definitions;
use crate::files::synth::Request;
use crate::inspect::diagram::compare::{Comparison, summary};
use crate::inspect::diagram::{Drawing, svg};

use super::diagram::{Args, request, samples, save_png};
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct CompareArgs {
    /// What it is compared with: a model, a definition, or a variant by the name of its picture
    #[arg(value_name = "B", requires = "compare")]
    others: Vec<String>,
    /// Compare two: one picture that marks what differs, and a summary in Markdown
    #[arg(long, conflicts_with_all = ["all", "html", "overlay"])]
    pub(super) compare: bool,
}

/// Draws the differences and lists them.
pub(super) fn run(args: &Args, definitions: &Definitions) -> Result<(), Failure> {
    let (Some(a), [b]) = (&args.what, args.comparison.others.as_slice()) else {
        let found = usize::from(args.what.is_some()) + args.comparison.others.len();
        anyhow::bail!("`--compare` takes two models or definitions, found {found}");
    };
    let a = drawing(definitions, a, request(&args.set, &args.with))?;
    let b = drawing(definitions, b, None)?;
    let comparison = Comparison::new(&a, &b);
    let name = match &args.name {
        Some(name) => name.clone(),
        None => format!("{}-vs-{}", a.name, b.name),
    };
    let text = svg::comparison(&comparison, &name);
    output::save(&args.output, &format!("{name}.svg"), text.as_bytes())?;
    if args.png {
        save_png(&args.output, &name, &text)?;
    }
    output::bytes(summary(&comparison).as_bytes())
}

/// The first drawing of a model, a definition or a variant.
fn drawing(
    definitions: &Definitions,
    what: &str,
    request: Option<Request>,
) -> Result<Drawing, Failure> {
    let (def, mut samples) = samples(definitions, what, None, request, 1)?;
    Ok(Drawing::new(&def, &samples.swap_remove(0)))
}
