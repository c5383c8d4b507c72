//! Mean and covariance of rows that are added one by one, in f64 (Welford 1962).

/// Mean and, if wanted, covariance of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    n: u64,
    mean: Vec<f64>,
    /// Sums of products of differences from the mean, `[width][width]`.
    products: Option<Vec<f64>>,
}

impl Moments {
    /// The moments of no rows, each of `width` elements.
    pub fn new(width: usize, has_covariance: bool) -> Self {
        Self {
            n: 0,
            mean: vec![0.0; width],
            products: has_covariance.then(|| vec![0.0; width * width]),
        }
    }

    /// Moments that were computed before; `None` if sizes differ.
    pub fn of(n: u64, mean: Vec<f64>, covariance: Option<Vec<f64>>) -> Option<Self> {
        let size = mean.len() * mean.len();
        if covariance.as_ref().is_some_and(|all| all.len() != size) {
            return None;
        }
        let times = n.saturating_sub(1) as f64;
        let products = covariance.map(|all| all.into_iter().map(|e| e * times).collect());
        Some(Self { n, mean, products })
    }

    pub fn n(&self) -> u64 {
        self.n
    }

    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// The sample covariance of the rows, `[width][width]`; 0 for a single row. `None` if it is not computed.
    pub fn covariance(&self) -> Option<Vec<f64>> {
        let by = self.n.saturating_sub(1).max(1) as f64;
        let products = self.products.as_ref()?;
        Some(products.iter().map(|e| e / by).collect())
    }

    pub fn add(&mut self, row: &[f32]) {
        self.n += 1;
        let n = self.n as f64;
        let before: Vec<f64> = row
            .iter()
            .zip(&self.mean)
            .map(|(e, mean)| f64::from(*e) - mean)
            .collect();
        for (mean, difference) in self.mean.iter_mut().zip(&before) {
            *mean += difference / n;
        }
        let Some(products) = &mut self.products else {
            return;
        };
        let after: Vec<f64> = row
            .iter()
            .zip(&self.mean)
            .map(|(e, mean)| f64::from(*e) - mean)
            .collect();
        let width = after.len().max(1);
        for (sums, before) in products.chunks_exact_mut(width).zip(&before) {
            for (sum, after) in sums.iter_mut().zip(&after) {
                *sum += before * after;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_rows_are_those_of_the_formula_and_go_on_from_stored_ones() {
        let rows: Vec<Vec<f32>> = (0..50)
            .map(|i| {
                (0..3)
                    .map(|j| ((i * 7 + j * 3) as f32).sin() + 1000.0)
                    .collect()
            })
            .collect();
        let mut all = Moments::new(3, true);
        rows[..20].iter().for_each(|row| all.add(row));
        let (n, mean, covariance) = (all.n(), all.mean().to_vec(), all.covariance());
        let mut all = Moments::of(n, mean, covariance).expect("sizes fit");
        rows[20..].iter().for_each(|row| all.add(row));
        let mean = |j: usize| rows.iter().map(|row| f64::from(row[j])).sum::<f64>() / 50.0;
        let covariance = all.covariance().expect("it is wanted");
        for i in 0..3 {
            assert!((all.mean()[i] - mean(i)).abs() < 1e-9);
            for j in 0..3 {
                let products = rows
                    .iter()
                    .map(|r| (f64::from(r[i]) - mean(i)) * (f64::from(r[j]) - mean(j)));
                assert!((covariance[3 * i + j] - products.sum::<f64>() / 49.0).abs() < 1e-9);
            }
        }
        assert_eq!(Moments::new(2, true).covariance(), Some(vec![0.0; 4]));
        assert_eq!(Moments::new(2, false).covariance(), None);
        assert_eq!(Moments::of(1, vec![0.0; 2], Some(vec![0.0; 3])), None);
    }
}
