//! `bench arch new`: a definition to begin with.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::arch::ENDING;
use crate::cli::options::ArchOptions;
use crate::cli::{Failure, output};
use crate::common::writing::Part;
use crate::files::models::{self, Source};
use crate::inspect::nearest;

use super::styled;

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Args {
    /// Name of the architecture; the file is NAME.arch.toml
    name: String,
    /// The model: a GGUF file, or a folder that a map opens
    #[arg(long, value_name = "MODEL")]
    from: PathBuf,
    /// Folder to write into; an existing file is not replaced
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    output: PathBuf,
    #[command(flatten)]
    archs: ArchOptions,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let Args {
        name,
        from,
        output: folder,
        archs,
    } = args;

    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain) {
        anyhow::bail!(
            "`{name}` is not the name of an architecture: expected letters, digits, `_`, `-` and `.`"
        );
    }
    let path = folder.join(format!("{name}{ENDING}"));
    if path.exists() {
        anyhow::bail!("{}: the file exists and is not replaced", path.display());
    }
    let definitions = archs.definitions()?;
    let contents = models::read(&Source::of(Some(from)), &definitions)?;
    let fits = nearest::fits(&definitions.archs, &contents.weights).map_err(styled)?;
    let text =
        nearest::begun(&definitions.archs, &contents.weights, name, &fits).map_err(styled)?;
    let at = |error: std::io::Error| anyhow::anyhow!("{}: {error}", path.display());
    let mut part = Part::new(&path).map_err(at)?;
    part.write(text.as_bytes())
        .and_then(|()| part.finish())
        .map_err(at)?;
    let nearest = fits.first().map_or("", |fit| fit.arch.as_str());
    output::line(format!("{}: begun from `{nearest}`", path.display()))?;
    if contents.weights.metadata().str("general.architecture") != Some(name.as_str()) {
        output::line(format!(
            "the model names another architecture than `{name}`: the name must be the same"
        ))?;
    }
    Ok(())
}
