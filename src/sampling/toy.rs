//! A toy stage, as a file and one row of a table, for tests of what is derived from a row. It is in no chain. It is
//! always compiled, because the tests of two packages use it.

#![cfg_attr(not(test), expect(dead_code, reason = "only tests use it"))]

use super::candidates::Candidates;
use super::error::SampleError;
use super::parameter::{ListKind, ListParameter, Number, ParamError, Parameter, ValueRange};
use super::params::{api_range, neutral, params};
#[cfg(test)]
use super::reference_chain::Tokens;
use super::stage::{Stage, StageInput};

macro_rules! toy_table {
    ($then:ident) => {
        $then! {
            stages {
                /// Adds a number to the logit of token 0.
                Toy = toy, "toy bonus" {
                    is_cut: false, needs_history: false, lists: [
                        /// Toy biases: as logit biases
                        toy_biases: Vec<(u32, f32)>, Biases "toy-bias" = [];
                    ],
                    /// Toy: added to the logit of token 0
                    toy_bonus: f64 = 0.0, off 0.0, [-5.0, 5.0] "a number from -5 to 5", api [-2.0, 2.0] "a number from -2 to 2";
                }
            }
            search "none" {
                /// Stands for the parameter of the search.
                toy_alpha: f64 = 0.0, off 0.0, [0.0, 1.0] "a number from 0 to 1";
            }
        }
    };
}

toy_table!(params);

mod chain {
    use super::super::chain::builders;
    use super::{ParamError, Params, Stage, StageName};

    toy_table!(builders);
}

#[derive(Debug)]
struct Bonus(f64);

pub(super) fn build(params: &Params) -> Result<Option<Box<dyn Stage>>, ParamError> {
    Ok((params.toy_bonus != 0.0).then(|| Box::new(Bonus(params.toy_bonus)) as Box<dyn Stage>))
}

impl Stage for Bonus {
    fn apply(
        &mut self,
        candidates: &mut Candidates<'_>,
        _step: &StageInput<'_>,
    ) -> Result<(), SampleError> {
        candidates.change(0, |logit| logit + self.0);
        Ok(())
    }
}

#[cfg(test)]
pub(super) fn naive(params: &Params, _: &Tokens<'_>, kept: &mut [(u32, f32)]) {
    for (_, logit) in kept.iter_mut().filter(|(id, _)| *id == 0) {
        *logit = (f64::from(*logit) + params.toy_bonus) as f32;
    }
}

#[cfg(test)]
mod reference {
    use super::super::reference_chain::{Tokens, naive_stages};
    use super::{Params, StageName};

    toy_table!(naive_stages);
}

#[cfg(test)]
mod tests {
    use super::super::reference_chain;
    use super::*;

    #[test]
    fn a_row_gives_name_order_range_and_neutral_value() {
        assert_eq!(StageName::ALL, &[StageName::Toy]);
        let toy = StageName::Toy;
        assert_eq!(
            (toy.as_str(), toy.doc()),
            ("toy", " Adds a number to the logit of token 0.")
        );
        assert!(!toy.is_cut());
        let mut params = Params::default();
        assert!(chain::build(toy, &params).expect("neutral").is_none());
        let bonus = &PARAMETERS[0];
        assert_eq!(
            (bonus.name, bonus.default, bonus.off),
            ("toy_bonus", 0.0, Some(0.0))
        );
        bonus.set(&mut params, 2.5);
        assert_eq!(params.toy_bonus, 2.5);
        assert!(chain::build(toy, &params).expect("sound").is_some());
        let error = bonus.check(9.0, &bonus.range).expect_err("too much");
        assert_eq!(
            error.to_string(),
            "`toy_bonus`: found `9`, expected a number from -5 to 5 (toy bonus; 0 = off)"
        );
    }

    #[test]
    fn the_stage_and_its_naive_form_agree() {
        let params = Params {
            toy_bonus: 2.5,
            ..Params::default()
        };
        let logits = [0.25, -1.0, 3.0];
        let mut sampler = reference_chain::sampler(&super::super::Params::default());
        let built = chain::build(StageName::Toy, &params).expect("sound");
        sampler.chain.extend(built);
        let found = reference_chain::candidates(&mut sampler, &logits).expect("good logits");
        let mut expected = vec![(0, 0.25), (1, -1.0), (2, 3.0)];
        let tokens = Tokens {
            prompt: &[],
            generated: &[],
            n_vocab: logits.len(),
        };
        reference::naive(StageName::Toy, &params, &tokens, &mut expected);
        assert_eq!(found, expected);
        assert_eq!(found[0], (0, 2.75));
    }
}
