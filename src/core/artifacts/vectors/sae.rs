//! Sparse autoencoders of hidden states: features `f = act(W_enc (x - c) + b_enc)`, and the reconstruction
//! `W_dec f + b_dec` of `x`.
//!
//! Without a `threshold` the activation is a ReLU and `c` is `b_dec`, as in the first published ones. With a threshold
//! (JumpReLU) a feature is 0 unless it is above its threshold, and `c` is 0.

use super::Arrays;

/// A sparse autoencoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Sae {
    width: usize,
    n_features: usize,
    /// `[width][n_features]`.
    encoder: Vec<f32>,
    /// `[n_features][width]`.
    decoder: Vec<f32>,
    /// The bias of each feature, which is added to the product with `x`.
    bias: Vec<f32>,
    /// The threshold of each feature.
    threshold: Vec<f32>,
}

/// The numbers of a feature that an edit needs.
#[derive(Clone, Debug, PartialEq)]
pub struct SaeFeature {
    /// The feature's row of the encoder.
    pub encoder: Vec<f32>,
    /// The feature's row of the decoder.
    pub decoder: Vec<f32>,
    /// The bias, which is added to the product with the encoder's row.
    pub bias: f32,
    /// The threshold; a feature that is not above it is 0.
    pub threshold: f32,
}

impl Sae {
    /// Makes an autoencoder of these tensors.
    pub(super) fn of(mut arrays: Arrays) -> Result<Self, String> {
        let (shape, decoder) = arrays.remove("W_dec").unwrap_or_default();
        let [n_features, width] = shape[..] else {
            return Err(format!(
                "`W_dec` has the shape {shape:?}, expected [features, width]"
            ));
        };
        let mut take = |name: &str, expected: &[usize]| match arrays.remove(name) {
            Some((shape, own)) if shape == expected => Ok(Some(own)),
            Some((shape, _)) => Err(format!(
                "`{name}` has the shape {shape:?}, expected {expected:?}"
            )),
            None => Ok(None),
        };
        let missing = |name: &str| format!("`{name}` is missing");
        let encoder = take("W_enc", &[width, n_features])?.ok_or_else(|| missing("W_enc"))?;
        let mut bias = take("b_enc", &[n_features])?.ok_or_else(|| missing("b_enc"))?;
        let centre = take("b_dec", &[width])?.ok_or_else(|| missing("b_dec"))?;
        let logs = take("log_threshold", &[n_features])?;
        let logs = logs.map(|all| all.iter().map(|t| t.exp()).collect());
        let threshold: Option<Vec<f32>> = take("threshold", &[n_features])?.or(logs);
        if threshold.is_none() {
            for (row, centre) in encoder.chunks_exact(n_features).zip(&centre) {
                for (bias, weight) in bias.iter_mut().zip(row) {
                    *bias -= weight * centre;
                }
            }
        }
        Ok(Self {
            width,
            n_features,
            encoder,
            decoder,
            bias,
            threshold: threshold.unwrap_or_else(|| vec![0.0; n_features]),
        })
    }

    /// Number of elements of a hidden state.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of features.
    pub fn n_features(&self) -> usize {
        self.n_features
    }

    /// The features `[n_features, n]` of hidden states `[width, n]`. The encoder, which is larger than a cache, is read
    /// once for all of them.
    pub fn features(&self, rows: &[f32]) -> Vec<f32> {
        /// Features whose sums are computed together: those of several rows fit into a cache.
        const AT_ONCE: usize = 1024;
        let (n, rows) = (self.n_features, rows.chunks_exact(self.width));
        let mut out = self.bias.repeat(rows.len());
        for first in (0..n).step_by(AT_ONCE) {
            let part = first..(first + AT_ONCE).min(n);
            for (i, weights) in self.encoder.chunks_exact(n).enumerate() {
                let weights = &weights[part.clone()];
                for (sums, x) in out.chunks_exact_mut(n).zip(rows.clone()) {
                    let x = x[i];
                    for (sum, weight) in sums[part.clone()].iter_mut().zip(weights) {
                        *sum += x * weight;
                    }
                }
            }
        }
        for row in out.chunks_exact_mut(n) {
            for (value, threshold) in row.iter_mut().zip(&self.threshold) {
                if *value <= *threshold {
                    *value = 0.0;
                }
            }
        }
        out
    }

    /// A feature by its number.
    pub fn feature(&self, at: usize) -> Option<SaeFeature> {
        let decoder = self.decoder.chunks_exact(self.width).nth(at)?;
        let rows = self.encoder.chunks_exact(self.n_features);
        Some(SaeFeature {
            encoder: rows.map(|row| row[at]).collect(),
            decoder: decoder.to_vec(),
            bias: self.bias[at],
            threshold: self.threshold[at],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrays(threshold: Option<[f32; 3]>) -> Arrays {
        let row = |name: &str, shape: &[usize], row: &[f32]| {
            (name.to_owned(), (shape.to_vec(), row.to_vec()))
        };
        let mut all = Arrays::from([
            row("W_enc", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            row("W_dec", &[3, 2], &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
            row("b_enc", &[3], &[0.5, -20.0, 0.0]),
            row("b_dec", &[2], &[1.0, -1.0]),
        ]);
        all.extend(threshold.map(|t| row("threshold", &[3], &t)));
        all
    }

    #[test]
    fn features_are_those_of_the_formula() {
        let relu = Sae::of(arrays(None)).expect("sound");
        // x - b_dec = [1, 2]
        assert_eq!(relu.features(&[2.0, 1.0]), [9.5, 0.0, 15.0]);
        let jump = Sae::of(arrays(Some([7.0, 0.0, 12.0]))).expect("sound");
        assert_eq!(jump.features(&[2.0, 1.0]), [0.0, 0.0, 0.0]);
        assert_eq!(jump.features(&[1.0, 2.0]), [9.5, 0.0, 15.0]);
        let both = jump.features(&[2.0, 1.0, 1.0, 2.0]);
        assert_eq!(both, [0.0, 0.0, 0.0, 9.5, 0.0, 15.0]);
        let feature = jump.feature(2).expect("there are three");
        assert_eq!(
            (feature.encoder, feature.decoder),
            (vec![3.0, 6.0], vec![0.5, 0.6])
        );
        assert_eq!((feature.bias, feature.threshold), (0.0, 12.0));
        assert_eq!(jump.feature(3), None);
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        for name in ["W_enc", "b_enc", "b_dec"] {
            let mut missing = arrays(None);
            missing.remove(name);
            let error = Sae::of(missing).expect_err("refused");
            assert!(error.contains("is missing"), "{error}");
            let mut wrong = arrays(None);
            wrong.insert(name.into(), (vec![1], vec![0.0]));
            let error = Sae::of(wrong).expect_err("refused");
            assert!(error.contains("expected ["), "{error}");
        }
    }
}
