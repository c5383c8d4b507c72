//! The results of pooling: a vector, or scores of classes.

use lab_base::weights::Metadata;

use super::capabilities::{can_pool, ends_in_vectors};
use crate::arch::ResolvedOption;
use crate::plan::{Plan, Pooling};

/// The results of a model that pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PooledOutput {
    /// A vector of this many elements.
    Vector(u64),
    /// Scores of classes.
    Scores {
        n_classes: u64,
        are_probabilities: bool,
    },
    /// Scores of this many classes for each token.
    TokenScores(u64),
}

impl PooledOutput {
    /// Whether it is the score of a pair of texts: one class, or the probabilities of relevant and not relevant.
    pub fn scores_pairs(&self) -> bool {
        matches!(
            self,
            Self::Scores { n_classes: 1, .. }
                | Self::Scores {
                    n_classes: 2,
                    are_probabilities: true
                }
        )
    }

    /// The result of pooling with a model. `metadata` says whether a model that writes text is meant for it.
    ///
    /// # Errors
    /// The model cannot pool, or it writes text and names no pooling.
    pub fn of(plan: &Plan, metadata: &Metadata) -> Result<Self, String> {
        can_pool(plan).map_err(|why| format!("the model {why}"))?;
        let width = |key: &str| {
            let tensor = plan.pool.weight(key).map(|at| &plan.tensors[at]);
            // A tensor of one dimension is one row.
            tensor.map(|tensor| tensor.shape.get(1).copied().unwrap_or(1))
        };
        if let Some(n_classes) = width("cls.output").or_else(|| width("cls")) {
            if plan.pooling() == Pooling::Each {
                return Ok(Self::TokenScores(n_classes));
            }
            let softmax = plan.pool.option("softmax");
            return Ok(Self::Scores {
                n_classes,
                are_probabilities: softmax == Some(&ResolvedOption::Bool(true)),
            });
        }
        let key = format!("{}.pooling_type", plan.arch);
        let has_pooling = metadata.i64(&key).is_some_and(|kind| kind > 0);
        if !ends_in_vectors(plan) && !has_pooling {
            let message = format!("the model writes text, and names no pooling (`{key}`)");
            return Err(message);
        }
        let width = width("dense_3").or_else(|| width("dense_2"));
        Ok(Self::Vector(width.unwrap_or(plan.n_embd)))
    }
}
