//! `bench diagram`: diagrams of a model, drawn from the plan that runs, and the differences between two models,
//! definitions or variants, as a picture and in words.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use lab_base::util::limited_read;
use lab_core::arch::{ArchDef, Library};
use lab_core::models::synth::SynthRequest;
use lab_core::models::towers::OpenedMedia;
use lab_core::models::{Definitions, ModelSource};
use lab_inspect::diagram::compare::{Comparison, summary};
use lab_inspect::diagram::html::page;
use lab_inspect::diagram::overlay::Overlay;
use lab_inspect::diagram::{Drawing, TracedPlan, gallery, svg, variants};

use super::options::OpenOptions;
use super::output::{ForceOption, OutputPlace};
use super::synth::key_value;
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// What is drawn: a model (file or folder) with its towers; a definition by name, each variant with symbols for
    /// sizes, of a tower or a drafter as NAME.tower or NAME.drafter where a model has its name; or one variant by name
    #[arg(value_name = "NAME|MODEL", required_unless_present_any = ["all", "model"])]
    what: Option<String>,
    /// The model, in place of the first argument
    #[arg(short, long, value_name = "MODEL", conflicts_with = "all")]
    model: Option<String>,
    /// What it is compared with: a model, a definition, or a variant by the name of its picture
    #[arg(value_name = "B", requires = "compare")]
    others: Vec<String>,
    /// Compare two: one picture that marks what differs, and a summary in Markdown
    #[arg(long, conflicts_with_all = ["all", "html", "overlay"])]
    compare: bool,
    /// Draw all definitions, and write a page that links to them
    #[arg(long, conflicts_with_all = ["what", "png", "html", "name", "set", "with"])]
    all: bool,
    /// Folder to write into
    #[arg(short, long, default_value = ".", value_name = "DIR")]
    output: OutputPlace,
    #[command(flatten)]
    force: ForceOption,
    /// Also write PNG files, with a built-in font
    #[arg(long)]
    png: bool,
    /// Write one self-contained HTML page instead, with search and three levels of detail
    #[arg(long, conflicts_with = "png")]
    html: bool,
    /// Name of the pictures; default: that of the model
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Value of a parameter of the drawn definition, as in `synth`; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
    /// Optional tensors of the drawn definition, such as output,attn_q.bias
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    with: Vec<String>,
    /// Colour the boxes of a model by the numbers of a file: of `perf --profile --json`, of `compare --json`, of
    /// `lab drift --json`, of `plan --json` (the device of each part), or an object of paths with numbers
    #[arg(long, value_name = "FILE.json", conflicts_with = "all")]
    overlay: Option<PathBuf>,
    /// Numbers of the overlay file to use: `error`, `own error`, `norm of A`, `time of ...`; default: the first of the file
    #[arg(long, value_name = "NAME", requires = "overlay")]
    quantity: Option<String>,
    #[command(flatten)]
    opening: OpenOptions,
}

impl Args {
    /// What is drawn: the model of `-m`, then the arguments.
    fn drawn(&self) -> Vec<&str> {
        let all = self.model.iter().chain(&self.what).chain(&self.others);
        all.map(String::as_str).collect()
    }
}

/// Refuses PNG in a program that was built without it.
pub(super) fn check_png(is_wanted: bool) -> Result<(), Failure> {
    if is_wanted && !cfg!(feature = "png") {
        anyhow::bail!(
            "this program was built without PNG; `cargo build --release --features png` builds it with PNG"
        );
    }
    Ok(())
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    check_png(args.png)?;
    let definitions = args.opening.definitions()?;
    if args.compare {
        return compare(args, &definitions);
    }
    if args.all {
        let files = gallery(&definitions.archs)?;
        let files = files.into_iter().map(|(name, text)| (name, text.into()));
        output::save(&args.output, &files.collect::<Vec<_>>(), args.force)?;
        return output::line(args.output.join("README.md").display().to_string());
    }
    let [what] = args.drawn()[..] else {
        anyhow::bail!("expected one model or definition; `--compare` takes two");
    };
    let (name, request) = (args.name.as_deref(), request(&args.set, &args.with));
    let drawn = samples(&definitions, what, name, request, usize::MAX)?;
    let mut files = Vec::new();
    for sample in &drawn.samples {
        files.extend(draw(args, &drawn, sample)?);
    }
    for path in output::save(&args.output, &files, args.force)? {
        output::line(path.display().to_string())?;
    }
    Ok(())
}

/// What is drawn.
struct Drawn {
    def: ArchDef,
    /// At least one.
    samples: Vec<TracedPlan>,
    /// The towers of a model.
    media: Option<OpenedMedia>,
}

impl Drawn {
    fn drawing(&self, sample: &TracedPlan) -> Result<Drawing, Failure> {
        let drawing = Drawing::new(&self.def, sample);
        match &self.media {
            Some(media) => Ok(drawing.with_towers(sample.plan(), media)?),
            None => Ok(drawing),
        }
    }
}

/// The drawings of a model, a variant or a definition. A definition without `--set` and `--with` yields its variants,
/// at most `most`. Each drawing has the given name or its own.
fn samples(
    definitions: &Definitions,
    what: &str,
    name: Option<&str>,
    request: Option<SynthRequest>,
    most: usize,
) -> Result<Drawn, Failure> {
    let path = PathBuf::from(what);
    // A folder without a model does not hide a definition of the same name.
    let is_hidden = path.is_dir() && !path.join("config.json").exists();
    let (library, plain) = library_of(definitions, what);
    let is_definition = is_hidden && library.source(plain).is_ok();
    let source = ModelSource::of(Some(&path));
    if (path.exists() || matches!(source, ModelSource::BuiltIn(_))) && !is_definition {
        if request.is_some() {
            anyhow::bail!("{what} is a model file: --set and --with apply only to a definition");
        }
        let opened = lab_core::models::open(&source, definitions)?;
        let sample = TracedPlan::new(name.unwrap_or(&opened.name), opened.plan, false)?;
        return Ok(Drawn {
            def: opened.def,
            samples: vec![sample],
            media: opened.media,
        });
    }
    let (def, variant) = find(definitions, what)?;
    let requests = match (request, variant) {
        (Some(_), Some(_)) => anyhow::bail!(
            "{what} is a variant with fixed parameters: use --set and --with with the definition `{}`",
            def.name
        ),
        (Some(request), None) | (None, Some(request)) => vec![(String::new(), request)],
        (None, None) => variants(&def),
    };
    let name = name.unwrap_or(what);
    let sample = |(tag, request): &(String, SynthRequest)| match tag.is_empty() {
        true => TracedPlan::of_definition(name, &def, request),
        false => TracedPlan::of_definition(&format!("{name}-{tag}"), &def, request),
    };
    let samples: Result<_, _> = requests.iter().take(most).map(sample).collect();
    Ok(Drawn {
        samples: samples?,
        def,
        media: None,
    })
}

/// The library that has a definition, and its name there. `NAME.tower` is a tower, `NAME.drafter` a drafter, and so is a name that no model
/// has.
fn library_of<'d, 'n>(definitions: &'d Definitions, name: &'n str) -> (&'d Library, &'n str) {
    let Definitions {
        archs,
        towers,
        drafters,
        ..
    } = definitions;
    let others = [(".tower", towers), (".drafter", drafters)];
    let mut found = others.into_iter().filter_map(|(ending, library)| {
        let plain = name.strip_suffix(ending).unwrap_or(name);
        library.source(plain).ok().map(|_| (library, plain))
    });
    let other = found.next().filter(|_| archs.source(name).is_err());
    other.unwrap_or((archs, name))
}

/// Finds a definition by its name, or a variant by the name of its picture.
fn find(definitions: &Definitions, what: &str) -> Result<(ArchDef, Option<SynthRequest>), Failure> {
    let (library, plain) = library_of(definitions, what);
    if library.source(plain).is_ok() {
        return Ok((library.get(plain)?, None));
    }
    // Names of definitions contain hyphens too: the longest matching one is used.
    let all = definitions
        .archs
        .sources()
        .chain(definitions.towers.sources())
        .chain(definitions.drafters.sources());
    let names = all.map(|(name, _)| name);
    let of_variant =
        names.filter_map(|name| Some((name, what.strip_prefix(name)?.strip_prefix('-')?)));
    let Some((name, tag)) = of_variant.max_by_key(|(name, _)| name.len()) else {
        let mut endings = [".gguf", ".safetensors"].into_iter();
        if what.contains('/') || endings.any(|ending| what.ends_with(ending)) {
            anyhow::bail!("{what}: no such file or folder");
        }
        return Ok((library.get(what)?, None));
    };
    let (library, plain) = library_of(definitions, name);
    let def = library.get(plain)?;
    let mut all = variants(&def);
    if let Some(at) = all.iter().position(|(known, _)| known == tag) {
        return Ok((def, Some(all.swap_remove(at).1)));
    }
    let known: Vec<&str> = all.iter().map(|(tag, _)| tag.as_str()).collect();
    let known = known.join(" ");
    anyhow::bail!(
        "`{what}`: no file, definition or variant of this name; variants of `{name}`:{known}"
    )
}

/// The parameters and tensors of `--set` and `--with`, if any are given.
fn request(set: &[(String, String)], with: &[String]) -> Option<SynthRequest> {
    let is_said = !set.is_empty() || !with.is_empty();
    is_said.then(|| SynthRequest {
        set: set.to_vec(),
        with: with.to_vec(),
        ..SynthRequest::default()
    })
}

/// Maximum size of the file of `--overlay` in bytes: a profile of a thousand layers is a few MB.
const MAX_OVERLAY: u64 = 64 << 20;

fn draw(
    args: &Args,
    drawn: &Drawn,
    sample: &TracedPlan,
) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let mut drawing = drawn.drawing(sample)?;
    if let Some(file) = &args.overlay {
        // The name of the picture may differ from that of the model.
        let what = args.drawn().first().copied().unwrap_or_default();
        let model = ModelSource::File(what.into()).name();
        let mut put = || -> Result<Option<String>, Failure> {
            let bytes = limited_read::bytes(file, MAX_OVERLAY)?;
            let overlay = Overlay::read(&bytes, args.quantity.as_deref())?;
            Ok(overlay.apply(&mut drawing, sample, &model)?)
        };
        if let Some(doubt) = put().map_err(|error| output::at(file, error))? {
            tracing::warn!("{}: {doubt}", file.display());
        }
    }
    if args.html {
        let name = format!("{}.html", drawing.name);
        return Ok(vec![(name, page(&drawing).into())]);
    }
    let mut files = Vec::new();
    for (ending, what, piece) in [
        ("arch", "the whole model", svg::stack(&drawing)),
        ("layers", "its kinds of layers", svg::layers(&drawing)),
    ] {
        let name = format!("{}.{ending}", drawing.name);
        let text = svg::document(&drawing, &piece, what);
        files.extend(both(name, text, args.png)?);
    }
    Ok(files)
}

/// Draws the differences and lists them.
fn compare(args: &Args, definitions: &Definitions) -> Result<(), Failure> {
    let [a, b] = args.drawn()[..] else {
        let found = args.drawn().len();
        anyhow::bail!("`--compare` takes two models or definitions, found {found}");
    };
    let drawing = |what: &str, request: Option<SynthRequest>| -> Result<Drawing, Failure> {
        let drawn = samples(definitions, what, None, request, 1)?;
        Ok(Drawing::new(&drawn.def, &drawn.samples[0]))
    };
    let a = drawing(a, request(&args.set, &args.with))?;
    let b = drawing(b, None)?;
    let comparison = Comparison::new(&a, &b);
    let name = match &args.name {
        Some(name) => name.clone(),
        None => format!("{}-vs-{}", a.name, b.name),
    };
    let text = svg::comparison(&comparison, &name);
    output::save(&args.output, &both(name, text, args.png)?, args.force)?;
    output::bytes(summary(&comparison).as_bytes())
}

/// The files of a drawing: as SVG, and perhaps as PNG.
fn both(name: String, svg: String, has_png: bool) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let png = has_png.then(|| png(&svg)).transpose()?;
    let png = png.map(|png| (format!("{name}.png"), png));
    let svg = (name + ".svg", svg.into());
    Ok([Some(svg), png].into_iter().flatten().collect())
}

#[cfg(feature = "png")]
fn png(drawing: &str) -> Result<Vec<u8>, Failure> {
    Ok(lab_inspect::diagram::png::png(drawing)?)
}

/// The stub without the feature `png`; [`run`] has refused `--png` already.
#[cfg(not(feature = "png"))]
fn png(_: &str) -> Result<Vec<u8>, Failure> {
    anyhow::bail!("this program was built without PNG")
}
