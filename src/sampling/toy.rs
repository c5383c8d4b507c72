//! A toy stage, as a file and one row of a table, for tests of what is derived from a row. It is in no chain. It is
//! always compiled, because the tests of two packages use it.

#![cfg_attr(not(test), expect(dead_code, reason = "only tests use it"))]

use super::parameter::{ListKind, ListParameter, Number, Parameter, ValueRange};
use super::params::{api_range, neutral, params};

params! {
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

#[cfg(test)]
mod tests {
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
        let bonus = &PARAMETERS[0];
        assert_eq!(
            (bonus.name, bonus.default, bonus.off),
            ("toy_bonus", 0.0, Some(0.0))
        );
        bonus.set(&mut params, 2.5);
        assert_eq!(params.toy_bonus, 2.5);
        let error = bonus.check(9.0, &bonus.range).expect_err("too much");
        assert_eq!(
            error.to_string(),
            "`toy_bonus`: found `9`, expected a number from -5 to 5 (toy bonus; 0 = off)"
        );
    }
}
