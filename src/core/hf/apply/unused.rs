//! The contents of a folder that a map does not use.

use std::collections::BTreeSet;

use crate::arch::{Spanned, fits_pattern};

use super::super::config::Config;
use super::super::definition::Map;

/// Stored tensors and configuration keys that the map does not mention.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unmapped {
    pub(crate) tensors: Vec<String>,
    pub(crate) keys: Vec<String>,
}

/// Whether a key, or a part of it, has no effect on the results.
pub(super) fn is_ignored(map: &Map, key: &str) -> bool {
    let fits = |part| {
        let mut ignored = map.ignored_keys.iter();
        ignored.any(|pattern| fits_pattern(&pattern.value, part))
    };
    parts(key).any(fits)
}

/// Stored tensors that are neither used nor ignored, by their names in the files, and the parts of the model that are
/// left out.
pub(super) fn unused(
    map: &Map,
    config: &Config<'_>,
    used: &BTreeSet<String>,
) -> (Vec<String>, Vec<(String, usize)>) {
    let checkpoint = config.checkpoint;
    let mut unused: Vec<&str> = checkpoint.tensors().map(|(name, _)| name).collect();
    unused.retain(|name| !used.contains(*name));
    let mut without = |patterns: &[Spanned<String>]| {
        let n_before = unused.len();
        for pattern in patterns {
            let patterns = config.patterns(&pattern.value);
            unused.retain(|name| !config.fits(&patterns, name));
        }
        n_before - unused.len()
    };
    let mut left_out: Vec<(String, usize)> = Vec::new();
    for (part, patterns) in &map.parts {
        let n = without(patterns);
        match left_out.iter_mut().find(|(other, _)| other == part) {
            _ if n == 0 => {}
            Some((_, all)) => *all += n,
            None => left_out.push((part.clone(), n)),
        }
    }
    without(&map.ignored_tensors);
    if map.is_tower {
        // Other parts of the model have the others.
        let roots: BTreeSet<&str> = used.iter().map(|name| root(name)).collect();
        unused.retain(|name| roots.contains(root(name)));
    }
    let names = unused
        .into_iter()
        .map(|name| checkpoint.stored_name(name).to_owned());
    (names.collect(), left_out)
}

/// The first two parts of a tensor's name.
fn root(name: &str) -> &str {
    let mut dots = name.match_indices('.').map(|(at, _)| at);
    dots.nth(1).map_or(name, |end| &name[..end])
}

/// A key with dots, the objects that contain it, and its last part.
fn parts(key: &str) -> impl Iterator<Item = &str> {
    let objects = key.match_indices('.').map(|(end, _)| &key[..end]);
    objects.chain([key]).chain(key.rsplit('.').next())
}
