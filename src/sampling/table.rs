//! The one table of the sampling stages, in the order of llama.cpp's default chain.
//!
//! A stage is its file and its row here. From the row follow the order of the chain, the fields of
//! [`Params`](super::Params) with ranges and defaults, the names in `samplers`, the fields of HTTP
//! requests, the options of the command line and docs/sampling.md. `off` is the value at which a
//! parameter does nothing; `api` is the narrower range of HTTP requests, where there is one. A stage is
//! `is_cut` if it removes tokens by their probabilities, `needs_history` if it reads the tokens so far.
//!
//! `lists` are the parameters that are lists, with their options of the command line and the texts of the
//! default.

macro_rules! sampling_table {
    ($then:ident) => {
        $then! {
            stages {
                /// Adds a bias to the logits of chosen tokens.
                LogitBias = logit_bias, "logit bias" {
                    is_cut: false, needs_history: false, lists: [
                        /// Logit bias: number added to the logit of a token; -inf, or -100 in HTTP requests, excludes the token
                        logit_bias: Vec<(u32, f32)>, Biases "logit-bias" = [];
                    ],
                }
                /// Lowers the logits of tokens that occurred before.
                Penalties = penalties, "repetition penalties" {
                    is_cut: false, needs_history: true, lists: [],
                    /// Repetition penalty: divides positive and multiplies negative logits of tokens in the window
                    repeat_penalty: f64 = 1.0, off 1.0, [f64::MIN_POSITIVE, f64::MAX] "a finite number above 0";
                    /// Window of the repetition penalty: the last tokens of prompt and completion
                    repeat_last_n: i32 = 64, [-1.0, 2147483647.0] "-1 (all tokens), 0 (none) or a number of tokens";
                    /// Presence penalty: subtracted once from the logit of each token of the completion
                    presence_penalty: f64 = 0.0, off 0.0, [f64::MIN, f64::MAX] "a finite number",
                        api [-2.0, 2.0] "a number from -2 to 2";
                    /// Frequency penalty: subtracted from a token's logit for each time it is in the completion
                    frequency_penalty: f64 = 0.0, off 0.0, [f64::MIN, f64::MAX] "a finite number",
                        api [-2.0, 2.0] "a number from -2 to 2";
                }
                /// Lowers the logits of tokens that would continue a repetition.
                Dry = dry, "DRY repetition penalty" {
                    is_cut: false, needs_history: true, lists: [
                        /// DRY sequence breaker: text at which a repetition ends
                        dry_sequence_breakers: Vec<u32>, Breakers "dry-sequence-breaker" = ["\n", ":", "\"", "*"];
                    ],
                    /// DRY multiplier: penalty of a token that would continue a repetition of the allowed length
                    dry_multiplier: f64 = 0.0, off 0.0, [0.0, f64::MAX] "a finite number, 0 or more";
                    /// DRY base: factor of the penalty for each token beyond the allowed length
                    dry_base: f64 = 1.75, [1.0, f64::MAX] "a finite number, 1 or more";
                    /// DRY allowed length: length in tokens of the shortest repetition that is penalised
                    dry_allowed_length: u32 = 2, [0.0, 4294967295.0] "an integer, 0 or more";
                    /// DRY window: the last tokens of prompt and completion
                    dry_penalty_last_n: i32 = -1, [-1.0, 2147483647.0] "-1 (all tokens), 0 (none) or a number of tokens";
                }
                /// Keeps the tokens whose logits are within `top_n_sigma` standard deviations of the best.
                TopNSigma = top_n_sigma, "top-n-sigma" {
                    is_cut: true, needs_history: false, lists: [],
                    /// Top-n-sigma: maximum number of standard deviations below the best logit
                    top_n_sigma: f64 = 0.0, off 0.0, [0.0, f64::MAX] "a finite number, 0 or more";
                }
                /// Keeps the `top_k` most probable tokens.
                TopK = top_k, "top-k" {
                    is_cut: true, needs_history: false, lists: [],
                    /// Top-k: number of most probable tokens that are kept
                    top_k: u32 = 0, off 0.0, [0.0, 4294967295.0] "an integer, 0 or more";
                }
                /// Removes the tail, which begins where the curve of the sorted probabilities becomes flat.
                TfsZ = tfs_z, "tail-free sampling" {
                    is_cut: true, needs_history: false, lists: [],
                    /// Tail-free sampling z: share of the absolute second differences of the sorted probabilities that is kept
                    tfs_z: f64 = 1.0, off 1.0, [0.0, 1.0] "a number from 0 to 1";
                }
                /// Keeps the tokens whose surprisal is nearest to the entropy, until their total probability reaches `typical_p`.
                TypicalP = typical_p, "locally typical sampling" {
                    is_cut: true, needs_history: false, lists: [],
                    /// Locally typical sampling: total probability of the kept tokens, those with a surprisal near the entropy
                    typical_p: f64 = 1.0, off 1.0, [0.0, 1.0] "a number from 0 to 1";
                }
                /// Keeps the most probable tokens until their total probability reaches `top_p`.
                TopP = top_p, "nucleus sampling" {
                    is_cut: true, needs_history: false, lists: [],
                    /// Nucleus sampling (top-p): total probability of the kept tokens, the most probable ones
                    top_p: f64 = 1.0, off 1.0, [0.0, 1.0] "a number from 0 to 1";
                }
                /// Keeps the tokens at least `min_p` times as probable as the best.
                MinP = min_p, "min-p" {
                    is_cut: true, needs_history: false, lists: [],
                    /// Min-p: minimum probability of a kept token relative to the most probable one
                    min_p: f64 = 0.0, off 0.0, [0.0, 1.0] "a number from 0 to 1";
                }
                /// Excludes the tokens above a threshold, except the least probable of them.
                Xtc = xtc, "XTC" {
                    is_cut: true, needs_history: false, lists: [],
                    /// XTC probability: probability that a step excludes tokens
                    xtc_probability: f64 = 0.0, off 0.0, [0.0, 1.0] "a number from 0 to 1";
                    /// XTC threshold: of the tokens with at least this probability all but the least probable are excluded; above 0.5 = off
                    xtc_threshold: f64 = 0.1, [0.0, 1.0] "a number from 0 to 1";
                }
                /// Divides the logits by `temperature`.
                Temperature = temperature, "temperature" {
                    is_cut: false, needs_history: false, lists: [],
                    /// Temperature: divides the logits; 0 = greedy, the most probable token
                    temperature: f64 = 1.0, off 1.0, [0.0, f64::MAX] "a finite number, 0 or more";
                }
                /// Removes improbable tokens so that the surprisal of the sampled tokens is `mirostat_tau` bits on average.
                Mirostat = mirostat, "mirostat" {
                    is_cut: true, needs_history: true, lists: [],
                    /// Mirostat version; replaces the stages that remove tokens; without effect at temperature 0
                    mirostat: u32 = 0, off 0.0, [0.0, 2.0] "0, 1 or 2";
                    /// Mirostat target surprisal
                    mirostat_tau: f64 = 5.0, [0.0, 100.0] "a number of bits from 0 to 100";
                    /// Mirostat learning rate
                    mirostat_eta: f64 = 0.1, [0.0, 1.0] "a number from 0 to 1";
                }
            }
            search "contrastive search" {
                /// Contrastive search: weight of the degeneration penalty, the similarity to earlier hidden states, among the `top_k`
                /// candidates; needs `top_k` above 0
                penalty_alpha: f64 = 0.0, off 0.0, [0.0, 1.0] "a number from 0 to 1";
            }
        }
    };
}

pub(super) use sampling_table;
