//! Directions that separate two sets of rows: the difference of their means, and the first principal component of the
//! differences of pairs.

/// The mean of rows of one width, summed in f64; rows are added one by one.
#[derive(Clone, Debug, Default)]
pub struct Mean {
    n: usize,
    sum: Vec<f64>,
}

impl Mean {
    /// Adds a row, as wide as the first.
    pub fn add(&mut self, row: &[f32]) {
        self.sum.resize(row.len(), 0.0);
        self.n += 1;
        for (sum, e) in self.sum.iter_mut().zip(row) {
            *sum += f64::from(*e);
        }
    }

    /// This mean minus another one.
    pub fn less(&self, other: &Self) -> Vec<f32> {
        let pairs = self.sum.iter().zip(&other.sum);
        let less = pairs.map(|(a, b)| a / self.n as f64 - b / other.n as f64);
        less.map(|e| e as f32).collect()
    }
}

const MAX_STEPS: usize = 300;
/// The fraction of the golden ratio: its multiples are spread evenly between 0 and 1.
const GOLDEN: f64 = 0.618_033_988_749_894_9;
/// The iteration ends when a step changes the direction by at most this share.
const CLOSE: f64 = 1e-12;

/// The first principal direction of rows (length 1, not centred): the one with the largest mean square. Its sign is
/// that of the projected mean. It is zero if all rows are zero. Found by power iteration.
pub fn principal(rows: &[Vec<f32>]) -> Vec<f32> {
    let width = rows.first().map_or(0, Vec::len);
    let mut mean = vec![0.0f64; width];
    for row in rows {
        for (sum, e) in mean.iter_mut().zip(row) {
            *sum += f64::from(*e);
        }
    }
    let along =
        |v: &[f64], row: &[f32]| -> f64 { v.iter().zip(row).map(|(v, e)| v * f64::from(*e)).sum() };
    let unit = |v: &mut Vec<f64>| {
        let length = v.iter().map(|e| e * e).sum::<f64>().sqrt();
        if length > 0.0 {
            v.iter_mut().for_each(|e| *e /= length);
        }
        length
    };
    // The iteration starts at a sum of all rows. Their shares follow the golden ratio, so that the sum has a component
    // along the direction, which a single row or the mean may lack.
    let mut v = vec![0.0f64; width];
    for (row, i) in rows.iter().zip(0u32..) {
        let share = 0.5 + (f64::from(i) * GOLDEN).fract();
        for (sum, e) in v.iter_mut().zip(row) {
            *sum += share * f64::from(*e);
        }
    }
    unit(&mut v);
    for _ in 0..MAX_STEPS {
        let mut next = vec![0.0; width];
        for row in rows {
            let share = along(&v, row);
            for (sum, e) in next.iter_mut().zip(row) {
                *sum += share * f64::from(*e);
            }
        }
        if unit(&mut next) == 0.0 {
            break;
        }
        let change: f64 = next.iter().zip(&v).map(|(a, b)| (a - b) * (a - b)).sum();
        v = next;
        if change < CLOSE * CLOSE {
            break;
        }
    }
    let side: f64 = v.iter().zip(&mean).map(|(a, b)| a * b).sum();
    let sign = if side < 0.0 { -1.0 } else { 1.0 };
    v.into_iter().map(|e| (sign * e) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_direction_along_which_rows_are_largest_is_found() {
        // Four rows of known components along orthogonal directions.
        let (a, b) = ([0.6f32, 0.8, 0.0], [-0.8f32, 0.6, 0.0]);
        let row = |x: f32, y: f32| (0..3).map(|i| x * a[i] + y * b[i]).collect::<Vec<f32>>();
        let rows = [
            row(-3.0, 0.5),
            row(-2.5, -1.0),
            row(-3.5, 0.7),
            row(1.0, -0.2),
        ];
        let found = principal(&rows);
        let squares = |v: &[f32]| -> f32 {
            rows.iter()
                .map(|r| r.iter().zip(v).map(|(x, y)| x * y).sum::<f32>().powi(2))
                .sum()
        };
        let length: f32 = found.iter().map(|e| e * e).sum();
        assert!((length - 1.0).abs() < 1e-6);
        // No other direction has a larger mean square, and the projection of the mean is positive.
        for step in 0..360 {
            let (sin, cos) = (step as f32).to_radians().sin_cos();
            assert!(squares(&[cos, sin, 0.0]) <= squares(&found) * (1.0 + 1e-5));
        }
        assert!(found[0] < 0.0 && found[1] < 0.0, "{found:?}");
        // The longest row has no part of it.
        let few = [
            vec![3.0, 0.0],
            vec![0.0, 2.0],
            vec![0.0, 2.0],
            vec![0.0, 2.0],
        ];
        let [x, y] = principal(&few)[..] else {
            panic!("two elements")
        };
        assert!(x.abs() < 1e-6 && (y - 1.0).abs() < 1e-6, "{x} {y}");
        assert_eq!(principal(&[vec![0.0, 0.0]]), [0.0, 0.0]);
        assert_eq!(principal(&[]), Vec::<f32>::new());
    }

    #[test]
    fn means_are_of_the_rows_that_were_added() {
        let (mut a, mut b) = (Mean::default(), Mean::default());
        a.add(&[1.0, 2.0]);
        a.add(&[3.0, 6.0]);
        b.add(&[0.5, 0.5]);
        assert_eq!(a.less(&b), [1.5, 3.5]);
    }
}
