//! The drafter of a model, in numbers: what it reads, what it is made of, and the memory that it takes. Nothing is loaded.

use serde::Serialize;

use lab_base::util::wording::{bytes, count};
use lab_base::weights::Weights;
use lab_core::model::{MemoryUse, Options, drafter_memory};
use lab_core::models::drafters::OpenedDrafter;
use lab_core::plan::Plan;

/// A drafter of a model.
#[derive(Clone, Debug, Serialize)]
pub struct DrafterReport {
    /// The name of its definition, or of its file.
    pub name: String,
    pub layers: usize,
    /// Weights that are its own, and their bytes.
    pub weights: u64,
    pub weight_bytes: u64,
    /// After how many layers it reads hidden states of the model; none if it reads tokens alone.
    pub reads: Option<Vec<u64>>,
    /// Whether it has another vocabulary, and so reads and writes the text.
    pub reads_text: bool,
    /// Tokens that it may draft.
    pub tokens: u64,
    /// The memory that it takes besides that of the model, or why that is not known.
    #[serde(skip)]
    pub memory: Result<MemoryUse, String>,
}

impl DrafterReport {
    /// The drafter of a model with these weights, which would run with these options.
    pub fn of(drafter: &OpenedDrafter, model: (&Weights, &Plan), options: &Options) -> Self {
        let (plan, shared) = (&drafter.plan, drafter.shared_bytes(model.0, model.1));
        let bytes = drafter.plans().map(Plan::weight_bytes).sum::<u64>();
        let is_own = |name: &str| !model.1.tensors.iter().any(|of| of.name == name);
        let has_own_file = shared == 0;
        let own = drafter.plans().flat_map(|plan| &plan.tensors);
        let own = own.filter(|of| has_own_file || is_own(&of.name));
        let elements = own.map(|of| of.shape.iter().product::<u64>());
        let memory = drafter_memory(drafter, model, options);
        Self {
            name: drafter.name.clone(),
            layers: drafter.plans().map(|plan| plan.layers.len()).sum(),
            weights: elements.sum(),
            weight_bytes: bytes.saturating_sub(shared),
            reads_text: drafter.vocabularies.is_some(),
            reads: plan.target.as_ref().map(|of| of.after.clone()),
            tokens: plan.n_logits(),
            memory: memory.map_err(|error| error.to_string()),
        }
    }

    /// What it is, in words.
    pub fn phrase(&self) -> String {
        let reads = match &self.reads {
            None if self.reads_text => "reads the text, in a vocabulary of its own".to_owned(),
            None => "reads tokens alone".to_owned(),
            Some(after) => {
                let after = after.iter().map(u64::to_string).collect::<Vec<_>>();
                format!("reads hidden states after layers {}", after.join(", "))
            }
        };
        format!(
            "`{}`, {} layers, {} weights in {}; {reads}",
            self.name,
            self.layers,
            count(self.weights),
            bytes(self.weight_bytes)
        )
    }

    /// The memory that it takes, in words.
    pub fn memory_phrase(&self) -> String {
        match &self.memory {
            Ok(memory) => format!(
                "besides the model {} of weights, {} of cache, {} of scratch memory",
                bytes(memory.mapped.saturating_add(memory.copied)),
                bytes(memory.cache),
                bytes(memory.compute)
            ),
            Err(error) => format!("memory: {error}"),
        }
    }
}
