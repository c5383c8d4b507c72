//! `bench arch new`: drafts a definition, and a map for a folder without a matching one.

use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;

use crate::cli::Failure;
use crate::cli::options::OpenOptions;
use crate::cli::output::{self, ForceOption, OutputPlace, at};
use lab_base::util::atomic_file::PartFile;
use lab_core::arch::ENDING;
use lab_core::hf;
use lab_core::models::{self, Definitions, ModelSource};
use lab_inspect::nearest;

use super::styled;

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct NewArgs {
    /// Name of the architecture; the file is NAME.arch.toml
    name: String,
    /// The model: a GGUF file, or a Hugging Face folder; for a folder without a matching map, a draft map is written as well
    #[arg(short = 'm', long, value_name = "MODEL", alias = "model")]
    from: PathBuf,
    /// Name of the map to begin from, for a folder (`bench doctor FOLDER` names the map of a class); without it the nearest
    #[arg(long, value_name = "NAME")]
    map: Option<String>,
    /// Folder to write into, made if there is none
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    output: OutputPlace,
    #[command(flatten)]
    force: ForceOption,
    #[command(flatten)]
    opening: OpenOptions,
}

pub(super) fn run(args: &NewArgs) -> Result<(), Failure> {
    let (name, force) = (&args.name, args.force);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain) {
        anyhow::bail!(
            "`{name}` is not the name of an architecture: expected letters, digits, `_`, `-` and `.`"
        );
    }
    let path = args.output.join(format!("{name}{ENDING}"));
    let checked = force.target(&path).check();
    checked.map_err(|error| at(&path, error))?;
    let definitions = args.opening.definitions()?;
    if let Some(map) = &args.map {
        let from = &args.from;
        if !hf::is_folder(from) {
            anyhow::bail!(
                "{}: `--map {map}` begins from the map of a Hugging Face folder, and this is no folder with a config.json; \
                 leave `--map` out",
                from.display()
            );
        }
        return folder_without_map(args, &definitions, &path);
    }
    let source = ModelSource::of(Some(&args.from));
    let contents = match models::read(&source, &definitions) {
        Err(models::Error::Folder(hf::Error::NoMap { .. })) => {
            return folder_without_map(args, &definitions, &path);
        }
        contents => contents?,
    };
    let fits = nearest::definition_fits(&definitions.archs, &contents.weights).map_err(styled)?;
    let text = nearest::draft_definition(&definitions.archs, &contents.weights, name, &fits)
        .map_err(styled)?;
    write(&path, &text, force)?;
    let nearest = fits.first().map_or("", |fit| fit.arch.as_str());
    output::line(format!("{}: begun from `{nearest}`", path.display()))?;
    let own = contents.weights.metadata().str("general.architecture");
    if let Some(own) = own.filter(|own| own != name) {
        output::line(format!(
            "the model is of architecture `{own}`, and is opened with the definition of that name: `{name}` is used \
             for models whose general.architecture is `{name}`"
        ))?;
    }
    Ok(())
}

/// Writes a draft map for a folder, and the definition that it belongs to.
fn folder_without_map(args: &NewArgs, with: &Definitions, path: &Path) -> Result<(), Failure> {
    let (name, archs) = (&args.name, &with.archs);
    let map_path = args.output.join(format!("{name}{}", hf::ENDING));
    let checked = args.force.target(&map_path).check();
    checked.map_err(|error| at(&map_path, error))?;
    let (folder, maps) = hf::fits(&args.from, &with.maps, archs)?;
    let mut fits = nearest::folder_fits(archs, &folder, maps).map_err(styled)?;
    if let Some(wanted) = &args.map {
        let known = || fits.iter().map(|fit| fit.map.map.as_str());
        let Some(at) = known().position(|name| name == wanted) else {
            let near = lab_core::arch::nearest(wanted, known());
            let near = near.or_else(|| known().next()).unwrap_or_default();
            anyhow::bail!(
                "there is no map `{wanted}` of a text model to begin from; `--map {near}` begins from `{near}`, and without \
                 `--map` the nearest to the folder is taken"
            );
        };
        fits[..=at].rotate_right(1);
    }
    let map = nearest::draft_map(&with.maps, name, &folder, &fits);
    let (Some(best), Some(map)) = (fits.first(), map) else {
        anyhow::bail!("{}: there is no map to begin with", args.from.display());
    };
    if best.is_exact() {
        write(&map_path, &map, args.force)?;
        let (base, path) = (&best.map.map, map_path.display());
        let fits = "which fits the folder";
        output::line(format!("{path}: begun from the map `{base}`, {fits}"))?;
        return output::line(format!(
            "no definition is needed, unless the code of the model differs from that of `{}`",
            best.fit.arch
        ));
    }
    let weights = &best.map.weights;
    let mut of_archs = nearest::definition_fits(archs, weights).map_err(styled)?;
    // The definition of the map comes first.
    of_archs.sort_by_key(|fit| fit.arch != best.fit.arch);
    let definition = nearest::draft_definition(archs, weights, name, &of_archs).map_err(styled)?;
    write(path, &definition, args.force)?;
    write(&map_path, &map, args.force)?;
    let (map, arch) = (&best.map.map, &best.fit.arch);
    let (map_path, path) = (map_path.display(), path.display());
    output::line(format!("{map_path}: begun from the map `{map}`"))?;
    output::line(format!("{path}: begun from `{arch}`"))?;
    output::line(format!(
        "if nothing in the definition changes, remove it and write `arch = \"{arch}\"` into the map"
    ))
}

fn write(path: &Path, text: &str, force: ForceOption) -> Result<(), Failure> {
    let write = || {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut part = PartFile::new(force.target(path))?;
        part.write(text.as_bytes())?;
        part.finish()
    };
    write().map_err(|error| at(path, error))
}
