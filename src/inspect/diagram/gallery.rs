//! Pictures of all definitions in one folder, with a page that links to them.
//!
//! Kinds of layers that look the same in several definitions share a file, named after the first.

use std::collections::HashMap;

use lab_core::arch::{Library, LibraryError};

use super::{DiagramError, Drawing, TracedPlan, svg, variants};

/// The reason why no gallery was made.
#[derive(Debug, thiserror::Error)]
pub enum GalleryError {
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A definition cannot be drawn.
    #[error("{name}: {source}")]
    Drawing { name: String, source: DiagramError },
}

/// Every file of the gallery: its name and its text.
///
/// # Errors
/// A definition has problems, or no model.
pub fn gallery(library: &Library) -> Result<Vec<(String, String)>, GalleryError> {
    let mut files = Vec::new();
    let mut known: HashMap<String, String> = HashMap::new();
    let mut rows = String::new();
    for (arch, _) in library.sources() {
        let def = library.get(arch)?;
        let failed = |source: DiagramError| GalleryError::Drawing {
            name: arch.to_owned(),
            source,
        };
        for (tag, request) in variants(&def) {
            let name = match tag.is_empty() {
                true => arch.to_owned(),
                false => format!("{arch}-{tag}"),
            };
            let sample = TracedPlan::of_definition(&name, &def, &request).map_err(failed)?;
            let drawing = Drawing::new(&def, &sample);
            let file = format!("{name}.svg");
            let stack = svg::document(&drawing, &svg::stack(&drawing), "the whole model");
            files.push((file.clone(), stack));
            let mut links = Vec::new();
            for kind in &drawing.kinds {
                let text = svg::kind(kind);
                let own = format!("{name}.{}.svg", kind.letter);
                let file = known.entry(text.clone()).or_insert_with(|| {
                    files.push((own.clone(), text));
                    own
                });
                links.push(format!("[{}]({file}) {}", kind.letter, kind.label));
            }
            let first = def.notes.lines().next().unwrap_or_default();
            let first = first.replace('|', "\\|");
            let links = links.join("<br>");
            rows += &format!("| [{name}]({file}) | {links} | {first} |\n");
        }
    }
    files.push(("README.md".into(), format!("{HEAD}{rows}")));
    Ok(files)
}

const HEAD: &str = "\
# The architectures, drawn

Made by `make diagrams` (`bench diagram --all`) from the graphs that the definitions in `archs/` build. \
The first column leads to the whole model, the second to its kinds of layers with every weight and \
operation; kinds that several architectures share are one picture. Sizes are symbols; `bench diagram \
MODEL` draws a file with its numbers.

| architecture | kinds of layers | |
|---|---|---|
";
