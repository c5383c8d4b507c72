//! The variants of a definition that are drawn; its table `variants` defines how each is made.

use crate::arch::ArchDef;
use crate::files::synth::Request;

/// The names of a definition's variants and the requests that make them; the first one has no name.
pub fn variants(def: &ArchDef) -> Vec<(String, Request)> {
    let mut all = vec![(String::new(), Request::default())];
    for (name, text) in &def.variants {
        let mut request = Request::default();
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) => request.set.push((key.to_owned(), value.to_owned())),
                None => request.with.push(word.to_owned()),
            }
        }
        match name.as_str() {
            "default" => all[0].1 = request,
            _ => all.push((name.clone(), request)),
        }
    }
    all
}
