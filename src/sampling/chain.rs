//! Builds the chain of stages that [`Params`] describe, and checks all parameters.

use super::parameter::ParamError;
use super::params::{PARAMETERS, Params, StageName};
use super::stage::Stage;
use super::table::sampling_table;

macro_rules! builders {
    (
        stages {$(
            $(#[doc = $doc:literal])*
            $variant:ident = $module:ident, $technique:literal { $($rest:tt)* }
        )*}
        search $($search:tt)*
    ) => {
        /// A stage with checked parameters; `None` if they make it do nothing.
        pub(super) fn build(
            name: StageName,
            params: &Params,
        ) -> Result<Option<Box<dyn Stage>>, ParamError> {
            match name {
                $(StageName::$variant => $crate::$module::build(params),)*
            }
        }
    };
}

sampling_table!(builders);

impl Params {
    /// Checks that a sampler, or a contrastive search, can be built from these parameters.
    pub fn check(&self) -> Result<(), ParamError> {
        self.chain().map(drop)
    }

    /// The stages that do something, in their order.
    pub(super) fn chain(&self) -> Result<Vec<Box<dyn Stage>>, ParamError> {
        for parameter in PARAMETERS {
            parameter.check(parameter.get(self), &parameter.range)?;
        }
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
            let does_something = build(name, self)?.is_some();
            if does_something && !self.order.contains(&name) {
                let order: Vec<_> = self.order.iter().map(|name| name.as_str()).collect();
                let expected = format!("`{name}` in it, because its parameters are not neutral");
                return Err(ParamError::new("samplers", &order.join(", "), expected));
            }
        }

        self.check_mirostat()?;

        let stages = self.order.iter().map(|name| build(*name, self));
        stages.filter_map(Result::transpose).collect()
    }

    /// Checks that no stage reads the tokens so far, for completions that do not grow one by one.
    ///
    /// # Errors
    /// The first parameter whose stage does.
    pub fn check_memoryless(&self) -> Result<(), ParamError> {
        for parameter in PARAMETERS.iter().filter(|p| p.needs_history) {
            let (value, off) = (parameter.get(self), parameter.off);
            if let Some(off) = off.filter(|off| value != *off) {
                let expected = format!(
                    "{off} ({}): this model decodes by text diffusion, in no fixed order",
                    parameter.technique
                );
                return Err(ParamError::new(parameter.name, &value, expected));
            }
        }
        Ok(())
    }

    /// Checks the place of mirostat. It adapts to the sampled tokens, so it must be the only stage that cuts, and the
    /// last one.
    fn check_mirostat(&self) -> Result<(), ParamError> {
        if self.mirostat == 0 {
            return Ok(());
        }
        for &name in StageName::ALL {
            let is_rival = name.is_cut() && name != StageName::Mirostat;
            if is_rival && build(name, self)?.is_some() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NumberKind;

    /// The messages over parameters with each of these changes.
    fn refusals(changes: &[fn(&mut Params)]) -> String {
        let message = |change: &fn(&mut Params)| {
            let mut params = Params::default();
            change(&mut params);
            params
                .check()
                .expect_err("a change that is refused")
                .to_string()
        };
        changes.iter().map(message).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn neutral_parameters_make_an_empty_chain() {
        let chain = Params::default().chain().expect("neutral is valid");
        assert!(chain.is_empty());
    }

    #[test]
    fn values_out_of_range_are_refused_with_their_field() {
        insta::assert_snapshot!(
            refusals(&[
                |p| p.temperature = -0.5,
                |p| p.top_p = 1.5,
                |p| p.min_p = -0.1,
                |p| p.repeat_penalty = 0.0,
                |p| p.repeat_last_n = -2,
                |p| p.logit_bias = vec![(7, f32::INFINITY)],
                |p| p.logit_bias = vec![(7, 1.0), (3, 0.0), (7, 2.0)],
            ]),
            @"
        `temperature`: found `-0.5`, expected a finite number, 0 or more (temperature; 1 = off)
        `top_p`: found `1.5`, expected a number from 0 to 1 (nucleus sampling; 1 = off)
        `min_p`: found `-0.1`, expected a number from 0 to 1 (min-p; 0 = off)
        `repeat_penalty`: found `0`, expected a finite number above 0 (repetition penalties; 1 = off)
        `repeat_last_n`: found `-2`, expected -1 (all tokens), 0 (none) or a number of tokens (repetition penalties)
        `logit_bias`: found `7: inf`, expected a finite number or minus infinity
        `logit_bias`: found `7`, expected each token at most once
        "
        );
    }

    #[test]
    fn numbers_that_are_none_are_refused_everywhere() {
        let reals = PARAMETERS.iter().filter(|p| p.kind == NumberKind::Real);
        assert_eq!(reals.clone().count(), 16);
        for parameter in reals {
            let name = parameter.name;
            for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.25] {
                let is_signed = ["presence_penalty", "frequency_penalty"].contains(&name);
                if is_signed && bad == -0.25 {
                    continue;
                }
                let mut params = Params::default();
                parameter.set(&mut params, bad);
                let error = params.check().expect_err(name);
                assert_eq!((error.field, error.found), (name, bad.to_string()));
            }
        }
    }

    #[test]
    fn mirostat_is_refused_where_it_cannot_be_alone_and_last() {
        insta::assert_snapshot!(
            refusals(&[
                |p| p.mirostat = 3,
                |p| p.mirostat_tau = 101.0,
                |p| p.mirostat_eta = 1.5,
                |p| (p.mirostat, p.top_k) = (2, 40),
                |p| (p.mirostat, p.tfs_z) = (1, 0.9),
                |p| {
                p.mirostat = 2;
                p.order = vec![StageName::Mirostat, StageName::Temperature];
            },
            ]),
            @"
        `mirostat`: found `3`, expected 0, 1 or 2 (mirostat; 0 = off)
        `mirostat_tau`: found `101`, expected a number of bits from 0 to 100 (mirostat)
        `mirostat_eta`: found `1.5`, expected a number from 0 to 1 (mirostat)
        `mirostat`: found `2`, expected 0, because `top_k` cuts already: only one of them can
        `mirostat`: found `1`, expected 0, because `tfs_z` cuts already: only one of them can
        `samplers`: found `mirostat, temperature`, expected `mirostat` last, because it learns from the draw
        "
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
        insta::assert_snapshot!(
            refusals(&[
                |p| p.order = vec![StageName::TopK, StageName::TopP, StageName::TopK],
                |p| {
                p.order = vec![StageName::TopK, StageName::Temperature];
                p.min_p = 0.1;
            },
            ]),
            @"
        `samplers`: found `top_k`, expected each stage at most once
        `samplers`: found `top_k, temperature`, expected `min_p` in it, because its parameters are not neutral
        "
        );
        let short = Params {
            order: vec![StageName::TopK],
            top_k: 5,
            ..Params::default()
        };
        assert_eq!(short.check(), Ok(()));
    }
}
