//! The updates of an adapter, by the right map for its model.

use std::path::Path;

use super::super::{CONFIG, Error, Maps, folder_of, read_config};
use super::candidates::{MapAttempts, candidates};
use super::found::TensorUpdate;
use super::{ModuleUpdate, ShapeFn, UpdateTarget};
use lab_base::weights::{TensorEntry, folder};

/// The updates of the architecture's tensors that the modules of the folder at `path` give: `NAME.lora_a` and
/// `NAME.lora_b`, f32. Modules of parts that are not needed for text are left out, with a warning.
///
/// # Errors
/// The map of the model does not have a module, shapes do not fit, an update is no product after the map has rearranged
/// it, or maps differ and the right one is not known.
pub fn updates(
    path: &Path,
    model: &UpdateTarget<'_>,
    maps: &Maps,
    modules: &[ModuleUpdate],
    shape_of: ShapeFn<'_>,
) -> Result<Vec<TensorEntry>, Error> {
    let refuse = |message: String| Error::Config {
        path: path.to_owned(),
        message,
    };
    let mut tried = MapAttempts::default();
    for candidate in candidates(path, model, maps)? {
        let found = candidate.updates(maps.common(), modules, shape_of);
        tried.add(candidate, found);
    }
    let found = match model {
        UpdateTarget::Folder(_) => tried.only(),
        UpdateTarget::Arch(origin) => tried.settle(origin, path),
    };
    let found = found.map_err(refuse)?;
    if !found.left_out.is_empty() {
        let (parts, counts): (Vec<&str>, Vec<usize>) = found
            .left_out
            .iter()
            .map(|(part, n)| (part.as_str(), *n))
            .unzip();
        tracing::warn!(
            "{}: applied without its updates of the {} ({} modules), which a text model does not have",
            path.display(),
            parts.join(", "),
            counts.iter().sum::<usize>()
        );
    }
    Ok(found
        .updates
        .into_iter()
        .flat_map(TensorUpdate::entries)
        .collect())
}

/// Whether a folder's tensors have the architecture's names.
pub fn has_our_names(path: &Path) -> bool {
    let json = read_config(&folder_of(path).join(CONFIG));
    json.is_ok_and(|json| folder::is_config(&json))
}
