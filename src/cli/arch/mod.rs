//! `bench arch`: lists, checks and shows architecture definitions, drafts a new one, and tests one against a reference.

mod draft;
mod llama_server;
mod prove;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Subcommand;

use lab_base::util::limited_read::{self, MAX_DEFINITION};
use lab_core::arch::{DRAFTER_ENDING, ENDING, Library, LibraryError, SourceFile, TOWER_ENDING};
use lab_core::hf::{self, Maps};

use super::options::ArchOptions;
use super::{Failure, output};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List all definitions: name, origin, mode, summary
    List {
        #[command(flatten)]
        archs: ArchOptions,
    },
    /// Report all problems of definitions and weight maps
    Check {
        /// Definitions (NAME.arch.toml), weight maps (NAME.arch.stmap.toml), or folders of both
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Print the reference of blocks, options and resources as Markdown
    Blocks {
        #[command(flatten)]
        archs: ArchOptions,
    },
    /// Draft a definition for a model from the most similar one; open questions are comments
    New(draft::NewArgs),
    /// Compare a model with the logits that another program computed, along every execution path
    Prove(Box<prove::ProveArgs>),
    /// Print the JSON Schema of definitions, for editors
    Schema {
        /// Print the schema of weight maps (NAME.arch.stmap.toml) instead
        #[arg(long)]
        map: bool,
    },
    /// Print a definition with all defaults written out
    Show {
        /// The architecture
        name: String,
        #[command(flatten)]
        archs: ArchOptions,
    },
}

pub(super) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::List { archs } => list(archs),
        Command::Blocks { archs } => {
            let page = archs.library()?.reference(&archs.towers()?);
            output::bytes(page.as_bytes())
        }
        Command::Schema { map } => {
            let schema = match map {
                true => lab_core::hf::schema(),
                false => lab_core::blocks::REGISTRY.schema(),
            };
            output::json(&schema)
        }
        Command::Check { files } => check(files),
        Command::New(args) => draft::run(args),
        Command::Prove(args) => prove::run(args),
        Command::Show { name, archs } => {
            let others = [archs.towers()?, archs.drafters()?];
            let mut others = others.into_iter();
            let library = match others.find(|of| of.source(name).is_ok()) {
                Some(library) => library,
                None => archs.library()?,
            };
            let def = library.get(name).map_err(styled)?;
            output::bytes(def.to_toml().as_bytes())
        }
    }
}

/// The problems of a definition, with colours on a terminal.
fn styled(error: LibraryError) -> Failure {
    match error {
        LibraryError::Broken(problems) if std::io::stderr().is_terminal() => {
            anyhow::anyhow!("{}", problems.render(true))
        }
        other => other.into(),
    }
}

fn list(archs: &ArchOptions) -> Result<(), Failure> {
    let mut text = String::new();
    for library in [archs.library()?, archs.towers()?, archs.drafters()?] {
        list_library(&library, &mut text);
    }
    output::bytes(text.as_bytes())
}

fn list_library(library: &Library, text: &mut String) {
    for (name, source) in library.sources() {
        let place = match source.is_embedded {
            true => "built in",
            false => source.path.as_str(),
        };
        let state = match library.get(name) {
            Ok(def) => {
                let notes = def.notes.lines().next().unwrap_or_default();
                let file = file_name(Path::new(&source.path));
                let own =
                    [ENDING, TOWER_ENDING, DRAFTER_ENDING].map(|ending| file.strip_suffix(ending));
                let file = match own.contains(&Some(name)) {
                    true => String::new(),
                    false => format!("({file}) "),
                };
                format!("{}  {file}{notes}", def.mode.name())
            }
            Err(LibraryError::Broken(problems)) => {
                format!("BROKEN ({} problems)", problems.problems().len())
            }
            Err(other) => other.to_string(),
        };
        text.push_str(&format!("{name:16} {place:10} {state}\n"));
    }
}

fn file_name(file: &Path) -> &str {
    file.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
}

fn check(paths: &[PathBuf]) -> Result<(), Failure> {
    let registry = &lab_core::blocks::REGISTRY;
    let libraries = [
        Library::open(registry, &[])?,
        Library::towers(registry, &[])?,
        Library::drafters(registry, &[])?,
    ];
    let mut files = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => files.extend(definitions_in(path).map_err(|error| output::at(path, error))?),
            false => files.push(path.clone()),
        }
    }
    let mut broken = 0;
    for file in &files {
        let path = file.display().to_string();
        match problem(&libraries, file)? {
            None => output::line(format!("{path}: sound"))?,
            Some(problem) => {
                broken += 1;
                output::line(problem)?;
            }
        }
    }
    if broken > 0 {
        anyhow::bail!("{broken} of {} files have problems", files.len());
    }
    Ok(())
}

/// The definitions and maps of a folder, in the order of their names.
fn definitions_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = file_name(&path);
        let endings = [
            ENDING,
            TOWER_ENDING,
            DRAFTER_ENDING,
            hf::ENDING,
            hf::TOWER_ENDING,
        ];
        if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
    found.sort();
    match found.is_empty() {
        true => Err(std::io::Error::other("no definition and no map")),
        false => Ok(found),
    }
}

/// The problems of a definition or of a map, if it has any.
fn problem(
    [archs, towers, drafters]: &[Library; 3],
    file: &Path,
) -> Result<Option<String>, Failure> {
    let path = file.display().to_string();
    let text = limited_read::text(file, MAX_DEFINITION).map_err(|e| output::at(file, e))?;
    let colour = std::io::stdout().is_terminal();
    let name = file_name(file);
    let registry = &lab_core::blocks::REGISTRY;
    let is_of_tower = name.ends_with(TOWER_ENDING) || name.ends_with(hf::TOWER_ENDING);
    if name.ends_with(hf::ENDING) || name.ends_with(hf::TOWER_ENDING) {
        // A map may extend one of its own folder, and its definition may be there.
        let folder = file.parent().filter(|folder| *folder != Path::new(""));
        let folders = [folder.unwrap_or(Path::new(".")).to_owned()];
        let (maps, library) = match is_of_tower {
            true => (
                Maps::towers(&folders)?,
                Library::towers(registry, &folders)?,
            ),
            false => (Maps::open(&folders)?, Library::open(registry, &folders)?),
        };
        let is_embedded = false;
        let source = SourceFile {
            path,
            text,
            is_embedded,
        };
        let problems = maps.check(&source, &library).err();
        return Ok(problems.map(|problems| problems.render(colour)));
    }
    let (library, ending) = match is_of_tower {
        true => (towers, TOWER_ENDING),
        false if name.ends_with(DRAFTER_ENDING) => (drafters, DRAFTER_ENDING),
        false => (archs, ENDING),
    };
    Ok(match library.check(&path, &text) {
        Ok(def) if name != format!("{}{ending}", def.name) => Some(format!(
            "error: {path}: the file of definition `{}` must be named `{}{ending}`",
            def.name, def.name
        )),
        Ok(_) => None,
        Err(problems) => Some(problems.render(colour)),
    })
}
