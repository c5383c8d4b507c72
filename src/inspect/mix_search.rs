//! The mix of types of least divergence within a number of bits per weight, by measured sensitivities.
//!
//! What a tensor costs in a type is its sensitivity times the squared error of its values, each weighted by the importance of its
//! column. The sensitivity is measured: the divergence that one type of few bits causes in this tensor alone, over the error of that
//! type. Around the mix that is found it is measured again, as what the divergence loses when the tensor alone keeps its type.

use std::collections::BTreeMap;
use std::sync::Arc;

use lab_base::ggml::MADE_TYPES;
use lab_base::util::wording::without_layer;
use lab_base::weights::{self, TensorType, Weights};
use lab_core::models::OpenedModel;
use lab_core::models::quantise::search::{Candidate, cheapest};
use lab_core::models::quantise::{Importance, Mix, weighted_error};

/// Bits per weight of the type in which a sensitivity is measured first: few enough for a divergence far above rounding.
const PROBE_BITS: f64 = 3.5;

/// Why there is no mix.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error(transparent)]
    Weights(#[from] weights::Error),
    #[error("--budget {budget}: the smallest types take {least:.2} bits per weight")]
    Budget { budget: f64, least: f64 },
}

/// A tensor whose type is searched.
struct Searched {
    name: String,
    /// The type in the file is the last one, with no error.
    types: Vec<TensorType>,
    bytes: Vec<u64>,
    errors: Vec<f64>,
    /// Divergence for each unit of error.
    sensitivity: f64,
    elements: u64,
}

impl Searched {
    fn cost(&self, at: usize) -> f64 {
        self.sensitivity * self.errors[at]
    }

    fn candidates(&self) -> Vec<Candidate> {
        let all = self.bytes.iter().enumerate();
        let candidate = |(at, bytes): (usize, &u64)| Candidate {
            bytes: *bytes,
            cost: self.cost(at),
        };
        all.map(candidate).collect()
    }

    fn is_stored(&self, at: usize) -> bool {
        at + 1 == self.types.len()
    }

    /// The type that measures the sensitivity first.
    fn probe(&self) -> usize {
        let bits = |at: &usize| self.bytes[*at] as f64 * 8.0 / self.elements as f64;
        let all = 0..self.types.len() - 1;
        let distance = |at: &usize| (bits(at) - PROBE_BITS).abs();
        let near = all.min_by(|a, b| distance(a).total_cmp(&distance(b)));
        near.unwrap_or(0)
    }
}

/// The search for a model.
pub struct MixSearch {
    tensors: Vec<Searched>,
    importance: Arc<Importance>,
    /// Bytes for the searched tensors.
    budget: u64,
    /// Bytes and elements of the others.
    rest: (u64, u64),
}

/// The mix that was found.
pub struct SearchedMix {
    pub mix: Mix,
    /// Bits per weight of all tensors together.
    pub bits: f64,
    /// Mean divergence on the text of the search.
    pub kl: f64,
    /// The searched tensors with their types.
    pub types: BTreeMap<String, TensorType>,
    pub layers: Vec<LayerReport>,
}

/// The searched tensors of a layer, or one that is in none.
pub struct LayerReport {
    pub name: String,
    pub bits: f64,
    /// What its types add to the divergence, as the sensitivities predict.
    pub cost: f64,
    /// Number of tensors by the name of the type.
    pub types: BTreeMap<&'static str, usize>,
}

impl SearchedMix {
    /// The types as a file for `bench convert --mix`.
    pub fn rules(&self) -> String {
        let mut by_type: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, ty) in &self.types {
            by_type.entry(ty.name()).or_default().push(name);
        }
        let mut text = format!("type = \"{}\"\n", self.mix.base());
        for (ty, names) in by_type {
            let names = names.join(" ");
            text.push_str(&format!(
                "\n[[rule]]\ntensors = \"{names}\"\ntype = \"{ty}\"\n"
            ));
        }
        text.push_str("\n[[rule]]\ntype = \"stored\"\n");
        text
    }
}

/// Bits per weight of all tensors, some of them in other types.
pub fn bits_per_weight(weights: &Weights, types: &BTreeMap<String, TensorType>) -> f64 {
    let (mut bytes, mut elements) = (0, 0);
    for tensor in weights.tensors() {
        let ty = types.get(&tensor.name);
        bytes += ty
            .and_then(|ty| ty.tensor_bytes(&tensor.shape))
            .unwrap_or(tensor.bytes);
        elements += tensor.elements();
    }
    bytes as f64 * 8.0 / elements as f64
}

impl MixSearch {
    /// Computes the errors of all types that each matrix can have.
    ///
    /// # Errors
    /// Values cannot be read, or the smallest types exceed the budget, in bits per weight of all tensors together.
    pub fn new(
        opened: &OpenedModel,
        importance: &Arc<Importance>,
        budget: f64,
    ) -> Result<Self, SearchError> {
        let searched = opened.quantised_types(&Mix::from(TensorType::Q8_0))?;
        let mut tensors = Vec::new();
        let (mut rest, mut n_elements) = ((0, 0), 0);
        for tensor in opened.weights.tensors() {
            n_elements += tensor.elements();
            if !searched.contains_key(&tensor.name) {
                rest = (rest.0 + tensor.bytes, rest.1 + tensor.elements());
                continue;
            }
            let mut of = Searched {
                name: tensor.name.clone(),
                types: Vec::new(),
                bytes: Vec::new(),
                errors: Vec::new(),
                sensitivity: 0.0,
                elements: tensor.elements(),
            };
            for ty in MADE_TYPES {
                let Some(bytes) = ty.tensor_bytes(&tensor.shape).filter(|n| *n < tensor.bytes)
                else {
                    continue;
                };
                let error = weighted_error(&opened.weights, tensor, ty, Some(importance))?;
                if let Some(error) = error {
                    of.types.push(ty);
                    of.bytes.push(bytes);
                    of.errors.push(error);
                }
            }
            of.types.push(tensor.ty);
            of.bytes.push(tensor.bytes);
            of.errors.push(0.0);
            tensors.push(of);
        }
        let least: u64 = tensors.iter().filter_map(|t| t.bytes.iter().min()).sum();
        let of_bits = |bits: f64| (bits * n_elements as f64 / 8.0) as u64;
        let bits_of = |bytes: u64| bytes as f64 * 8.0 / n_elements as f64;
        let Some(for_searched) = of_bits(budget).checked_sub(rest.0).filter(|n| *n >= least) else {
            let least = bits_of(least + rest.0);
            return Err(SearchError::Budget { budget, least });
        };
        Ok(Self {
            tensors,
            importance: importance.clone(),
            budget: for_searched,
            rest,
        })
    }

    /// The mix in which each searched tensor has a type, by its number among the types of the tensor.
    fn mix(&self, chosen: &[usize]) -> Mix {
        let all = self.tensors.iter().zip(chosen);
        let other = all.filter(|(tensor, at)| !tensor.is_stored(**at));
        let types = other.map(|(tensor, at)| (tensor.name.as_str(), tensor.types[*at]));
        Mix::of_types("searched", types).with_importance(Some(self.importance.clone()))
    }

    fn choose(&self) -> Vec<usize> {
        let candidates: Vec<_> = self.tensors.iter().map(Searched::candidates).collect();
        // The budget holds the smallest types, as was checked.
        cheapest(&candidates, self.budget).unwrap_or_default()
    }

    /// Finds a mix. `measure` gives the divergence of the model in a mix. `progress` gets the number of measurements done
    /// and of all.
    ///
    /// # Errors
    /// A measurement fails.
    pub fn run<E>(
        &mut self,
        rounds: usize,
        progress: &mut dyn FnMut(u64, u64),
        measure: &mut dyn FnMut(&Mix) -> Result<f64, E>,
    ) -> Result<SearchedMix, E> {
        let n = self.tensors.len();
        let total = (n * (1 + rounds) + 1 + rounds) as u64;
        let mut done = 0;
        let mut measure = |mix: &Mix| {
            done += 1;
            progress(done, total);
            measure(mix)
        };
        let stored: Vec<usize> = self.tensors.iter().map(|t| t.types.len() - 1).collect();
        for at in 0..n {
            let mut alone = stored.clone();
            alone[at] = self.tensors[at].probe();
            if alone[at] == stored[at] {
                continue;
            }
            let kl = measure(&self.mix(&alone))?;
            let of = &mut self.tensors[at];
            let error = of.errors[alone[at]];
            of.sensitivity = if error > 0.0 { kl / error } else { 0.0 };
        }
        let mut best = self.choose();
        let mut kl = measure(&self.mix(&best))?;
        for _ in 0..rounds {
            let mut within = self
                .tensors
                .iter()
                .map(|t| t.sensitivity)
                .collect::<Vec<_>>();
            for at in (0..n).filter(|at| !self.tensors[*at].is_stored(best[*at])) {
                let mut without = best.clone();
                without[at] = stored[at];
                let less = measure(&self.mix(&without))?;
                let error = self.tensors[at].errors[best[at]];
                if error > 0.0 {
                    // The two measurements err in opposite ways: alone, and beside the errors of all others.
                    within[at] = (within[at] + (kl - less).max(0.0) / error) / 2.0;
                }
            }
            for (tensor, sensitivity) in self.tensors.iter_mut().zip(within) {
                tensor.sensitivity = sensitivity;
            }
            let next = self.choose();
            if next == best {
                break;
            }
            let of_next = measure(&self.mix(&next))?;
            if of_next < kl {
                (best, kl) = (next, of_next);
            }
        }
        Ok(self.report(&best, kl))
    }

    fn report(&self, chosen: &[usize], kl: f64) -> SearchedMix {
        let mut layers: Vec<(LayerReport, [u64; 2])> = Vec::new();
        let mut types = BTreeMap::new();
        let [mut bytes, mut elements] = [self.rest.0, self.rest.1];
        for (tensor, at) in self.tensors.iter().zip(chosen) {
            let ty = tensor.types[*at];
            types.insert(tensor.name.clone(), ty);
            let name = match without_layer(&tensor.name).1 {
                Some(layer) => format!("blk.{layer}"),
                None => tensor.name.clone(),
            };
            let place = layers.iter().position(|(layer, _)| layer.name == name);
            let place = place.unwrap_or_else(|| {
                let layer = LayerReport {
                    name,
                    bits: 0.0,
                    cost: 0.0,
                    types: BTreeMap::new(),
                };
                layers.push((layer, [0, 0]));
                layers.len() - 1
            });
            let (layer, sums) = &mut layers[place];
            layer.cost += tensor.cost(*at);
            *layer.types.entry(ty.name()).or_default() += 1;
            *sums = [sums[0] + tensor.bytes[*at], sums[1] + tensor.elements];
            bytes += tensor.bytes[*at];
            elements += tensor.elements;
        }
        let layers = layers
            .into_iter()
            .map(|(layer, [bytes, elements])| LayerReport {
                bits: bytes as f64 * 8.0 / elements as f64,
                ..layer
            });
        SearchedMix {
            mix: self.mix(chosen),
            bits: bytes as f64 * 8.0 / elements as f64,
            kl,
            types,
            layers: layers.collect(),
        }
    }
}
