//! What a request asks of the sampler, as plain numbers.
//!
//! Each stage checks the fields it reads when it is built; [`Params::check`] builds them all.
//! The ranges are those in which the arithmetic means something. Narrower ones, such as a
//! temperature of at most 2, are the API's business, and so is knowing the vocabulary.

use std::fmt;

use super::StageName;
use super::stage::Stage;

/// The parameters of one request. The default is neutral: a draw from the model's distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// Divides the logits; 0 picks the best token (the lowest id among equals) and never draws.
    pub temperature: f64,
    /// How many of the most probable tokens stay; 0 keeps all.
    pub top_k: u32,
    /// Probability that the tokens that stay must reach together, 0 to 1; 1 keeps all, 0 the best.
    pub top_p: f64,
    /// Least probability relative to the best token's, 0 to 1; 0 keeps all.
    pub min_p: f64,
    /// Most standard deviations of the logits that a token may be below the best; 0 keeps all.
    pub top_n_sigma: f64,
    /// Probability that the tokens of the most expected surprise must reach together, 0 to 1; 1
    /// keeps all.
    pub typical_p: f64,
    /// How often the most probable tokens are excluded, 0 to 1.
    pub xtc_probability: f64,
    /// Probability from which a token counts as one of them; above 0.5 none is excluded.
    pub xtc_threshold: f64,
    /// Share of the bends in the curve of the sorted probabilities that stays, 0 to 1; 1 keeps all.
    pub tfs_z: f64,
    /// Version of mirostat, 1 or 2; 0 for none. Without effect at temperature 0.
    pub mirostat: u32,
    /// Surprise in bits that mirostat aims at, 0 to 100.
    pub mirostat_tau: f64,
    /// How fast mirostat learns, 0 to 1.
    pub mirostat_eta: f64,
    /// Weight of what a candidate repeats against its probability in contrastive search
    /// ([`Contrastive`](super::Contrastive)), 0 to 1; 0 for none. The candidates are the `top_k`.
    pub penalty_alpha: f64,
    /// Divides positive and multiplies negative logits of tokens in the window; 1 does nothing.
    pub repeat_penalty: f64,
    /// Length of that window, the last tokens of prompt and answer; 0 is none, -1 all.
    pub repeat_last_n: i32,
    /// Taken once from the logit of each token that the answer has.
    pub presence_penalty: f64,
    /// Taken from the logit of a token for each time that the answer has it.
    pub frequency_penalty: f64,
    /// Taken from the logit of a token that would prolong a repeated passage of the allowed length;
    /// 0 does nothing.
    pub dry_multiplier: f64,
    /// That is multiplied by this for each token beyond the allowed length.
    pub dry_base: f64,
    /// Length from which a repeated passage counts.
    pub dry_allowed_length: u32,
    /// How many of the last tokens are looked at; -1 all, 0 none.
    pub dry_last_n: i32,
    /// Tokens behind which a repetition begins anew.
    pub dry_breakers: Vec<u32>,
    /// Added to the logits of these tokens; minus infinity bans one.
    pub logit_bias: Vec<(u32, f32)>,
    /// Chooses the random numbers; without effect at temperature 0.
    pub seed: u64,
    /// The stages in the order they run. One that is left out must have neutral parameters.
    pub order: Vec<StageName>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            top_n_sigma: 0.0,
            typical_p: 1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            tfs_z: 1.0,
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            penalty_alpha: 0.0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_last_n: -1,
            dry_breakers: Vec::new(),
            logit_bias: Vec::new(),
            seed: 0,
            order: StageName::ALL.to_vec(),
        }
    }
}

impl Params {
    /// Whether a sampler, or contrastive search, can be made of these.
    pub fn check(&self) -> Result<(), ParamError> {
        self.chain().map(drop)
    }

    /// The stages that do something, in order.
    pub(super) fn chain(&self) -> Result<Vec<Box<dyn Stage>>, ParamError> {
        for (i, &name) in self.order.iter().enumerate() {
            if self.order[..i].contains(&name) {
                return Err(ParamError::new(
                    "samplers",
                    &name,
                    "each stage at most once",
                ));
            }
        }
        for &name in StageName::ALL {
            let does_something = name.build(self)?.is_some();
            if does_something && !self.order.contains(&name) {
                let order: Vec<_> = self.order.iter().map(|name| name.as_str()).collect();
                let expected = format!("`{name}` in it, because its parameters are not neutral");
                return Err(ParamError::new("samplers", &order.join(", "), expected));
            }
        }

        ParamError::unless(
            (0.0..=1.0).contains(&self.penalty_alpha),
            "penalty_alpha",
            &self.penalty_alpha,
            "a number from 0 to 1",
        )?;
        self.check_mirostat()?;

        let stages = self.order.iter().map(|name| name.build(self));
        stages.filter_map(Result::transpose).collect()
    }

    /// Checks that nothing here looks at the tokens so far, for answers that do not grow one by one.
    ///
    /// # Errors
    /// The first parameter that does.
    pub fn check_memoryless(&self) -> Result<(), ParamError> {
        let none = "a neutral value: this model fills answers in, in no fixed order";
        let fields: [(_, &dyn fmt::Display, bool); 6] = [
            (
                "repeat_penalty",
                &self.repeat_penalty,
                self.repeat_penalty == 1.0,
            ),
            (
                "presence_penalty",
                &self.presence_penalty,
                self.presence_penalty == 0.0,
            ),
            (
                "frequency_penalty",
                &self.frequency_penalty,
                self.frequency_penalty == 0.0,
            ),
            (
                "dry_multiplier",
                &self.dry_multiplier,
                self.dry_multiplier == 0.0,
            ),
            ("mirostat", &self.mirostat, self.mirostat == 0),
            (
                "penalty_alpha",
                &self.penalty_alpha,
                self.penalty_alpha == 0.0,
            ),
        ];
        let mut fields = fields.into_iter();
        fields
            .try_for_each(|(field, found, is_good)| ParamError::unless(is_good, field, found, none))
    }

    /// Mirostat steers by what is drawn, so it decides alone how many tokens stay, and it does so last.
    fn check_mirostat(&self) -> Result<(), ParamError> {
        if self.mirostat == 0 {
            return Ok(());
        }
        for &name in StageName::ALL {
            let is_rival = name.is_cut() && name != StageName::Mirostat;
            if is_rival && name.build(self)?.is_some() {
                let expected = format!("0, because `{name}` cuts already: only one of them can");
                return Err(ParamError::new("mirostat", &self.mirostat, expected));
            }
        }
        if self.order.last() != Some(&StageName::Mirostat) {
            let order: Vec<_> = self.order.iter().map(|name| name.as_str()).collect();
            let expected = "`mirostat` last, because it learns from the draw";
            return Err(ParamError::new("samplers", &order.join(", "), expected));
        }
        Ok(())
    }
}

/// A parameter outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: found `{found}`, expected {expected}")]
pub struct ParamError {
    /// The field of [`Params`].
    pub field: &'static str,
    /// Its value.
    pub found: String,
    /// What it may be.
    pub expected: String,
}

impl ParamError {
    pub(super) fn new(
        field: &'static str,
        found: &dyn fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        Self {
            field,
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    /// An error unless `is_good`.
    pub(crate) fn unless(
        is_good: bool,
        field: &'static str,
        found: &dyn fmt::Display,
        expected: &str,
    ) -> Result<(), Self> {
        if is_good {
            return Ok(());
        }
        Err(Self::new(field, found, expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Params), message: &str) {
        let mut params = Params::default();
        change(&mut params);
        let error = params.check().expect_err(message);
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn neutral_parameters_make_an_empty_chain() {
        let chain = Params::default().chain().expect("neutral is valid");
        assert!(chain.is_empty());
    }

    #[test]
    fn values_out_of_range_are_refused_with_their_field() {
        refused(
            |p| p.temperature = -0.5,
            "`temperature`: found `-0.5`, expected a finite number, 0 or more",
        );
        refused(
            |p| p.temperature = f64::NAN,
            "`temperature`: found `NaN`, expected a finite number, 0 or more",
        );
        refused(
            |p| p.top_p = 1.5,
            "`top_p`: found `1.5`, expected a number from 0 to 1",
        );
        refused(
            |p| p.top_p = f64::NAN,
            "`top_p`: found `NaN`, expected a number from 0 to 1",
        );
        refused(
            |p| p.min_p = -0.1,
            "`min_p`: found `-0.1`, expected a number from 0 to 1",
        );
        refused(
            |p| p.repeat_penalty = 0.0,
            "`repeat_penalty`: found `0`, expected a finite number above 0",
        );
        refused(
            |p| p.repeat_last_n = -2,
            "`repeat_last_n`: found `-2`, expected -1 (all tokens), 0 (none) or a number of tokens",
        );
        refused(
            |p| p.presence_penalty = f64::INFINITY,
            "`presence_penalty`: found `inf`, expected a finite number",
        );
        refused(
            |p| p.frequency_penalty = f64::NAN,
            "`frequency_penalty`: found `NaN`, expected a finite number",
        );
        refused(
            |p| p.logit_bias = vec![(7, f32::INFINITY)],
            "`logit_bias`: found `7: inf`, expected a finite number or minus infinity",
        );
        refused(
            |p| p.logit_bias = vec![(7, 1.0), (3, 0.0), (7, 2.0)],
            "`logit_bias`: found `7`, expected each token at most once",
        );
    }

    #[test]
    fn numbers_that_are_none_are_refused_everywhere() {
        type Field = fn(&mut Params) -> &mut f64;
        let fields: [(&str, Field); 16] = [
            ("temperature", |p| &mut p.temperature),
            ("top_p", |p| &mut p.top_p),
            ("min_p", |p| &mut p.min_p),
            ("top_n_sigma", |p| &mut p.top_n_sigma),
            ("typical_p", |p| &mut p.typical_p),
            ("xtc_probability", |p| &mut p.xtc_probability),
            ("xtc_threshold", |p| &mut p.xtc_threshold),
            ("tfs_z", |p| &mut p.tfs_z),
            ("mirostat_tau", |p| &mut p.mirostat_tau),
            ("mirostat_eta", |p| &mut p.mirostat_eta),
            ("penalty_alpha", |p| &mut p.penalty_alpha),
            ("repeat_penalty", |p| &mut p.repeat_penalty),
            ("presence_penalty", |p| &mut p.presence_penalty),
            ("frequency_penalty", |p| &mut p.frequency_penalty),
            ("dry_multiplier", |p| &mut p.dry_multiplier),
            ("dry_base", |p| &mut p.dry_base),
        ];
        for (name, field) in fields {
            for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let mut params = Params::default();
                *field(&mut params) = bad;
                let error = params.check().expect_err(name);
                assert_eq!((error.field, error.found), (name, bad.to_string()));
            }
            if !name.ends_with("e_penalty") && name != "frequency_penalty" {
                let mut params = Params::default();
                *field(&mut params) = -0.25;
                assert_eq!(params.check().expect_err(name).field, name);
            }
        }
    }

    #[test]
    fn mirostat_is_refused_where_it_cannot_be_alone_and_last() {
        refused(
            |p| p.mirostat = 3,
            "`mirostat`: found `3`, expected 0 (off), 1 or 2 (its version)",
        );
        refused(
            |p| p.mirostat_tau = 101.0,
            "`mirostat_tau`: found `101`, expected a number of bits from 0 to 100",
        );
        refused(
            |p| p.mirostat_eta = 1.5,
            "`mirostat_eta`: found `1.5`, expected a number from 0 to 1",
        );
        refused(
            |p| (p.mirostat, p.top_k) = (2, 40),
            "`mirostat`: found `2`, expected 0, because `top_k` cuts already: only one of them can",
        );
        refused(
            |p| (p.mirostat, p.tfs_z) = (1, 0.9),
            "`mirostat`: found `1`, expected 0, because `tfs_z` cuts already: only one of them can",
        );
        refused(
            |p| {
                p.mirostat = 2;
                p.order = vec![StageName::Mirostat, StageName::Temperature];
            },
            "`samplers`: found `mirostat, temperature`, expected `mirostat` last, because it learns \
             from the draw",
        );
        let allowed = Params {
            mirostat: 1,
            temperature: 0.8,
            repeat_penalty: 1.1,
            dry_multiplier: 1.0,
            logit_bias: vec![(1, 2.0)],
            ..Params::default()
        };
        assert_eq!(allowed.check(), Ok(()));
    }

    #[test]
    fn an_order_that_repeats_or_forgets_a_stage_is_refused() {
        refused(
            |p| p.order = vec![StageName::TopK, StageName::TopP, StageName::TopK],
            "`samplers`: found `top_k`, expected each stage at most once",
        );
        refused(
            |p| {
                p.order = vec![StageName::TopK, StageName::Temperature];
                p.min_p = 0.1;
            },
            "`samplers`: found `top_k, temperature`, expected `min_p` in it, because its parameters \
             are not neutral",
        );
        let short = Params {
            order: vec![StageName::TopK],
            top_k: 5,
            ..Params::default()
        };
        assert_eq!(short.check(), Ok(()));
    }
}
