//! The models of a definition that are drawn: its table `variants` says how each is made.

use crate::arch::ArchDef;
use crate::files::synth::Request;

/// Names of the variants of a definition, the first one without, and what makes them.
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
