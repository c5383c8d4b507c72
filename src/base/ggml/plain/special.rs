//! Functions that the standard library does not have.

pub(super) fn softplus(x: f64) -> f64 {
    match x > 20.0 {
        true => x,
        false => x.exp().ln_1p(),
    }
}

/// The error function: its power series up to 3, beyond that the continued fraction of its complement (Abramowitz and
/// Stegun 1964, 7.1.5 and 7.1.14).
pub(super) fn erf(x: f64) -> f64 {
    let magnitude = x.abs();
    let value = if magnitude < 3.0 {
        let (mut term, mut sum) = (magnitude, magnitude);
        for n in 1..100 {
            term *= -magnitude * magnitude / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else {
        let fraction = (1..60)
            .rev()
            .fold(magnitude, |below, n| magnitude + f64::from(n) / 2.0 / below);
        1.0 - (-magnitude * magnitude).exp() / (fraction * std::f64::consts::PI.sqrt())
    };
    value.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_has_its_tabulated_values() {
        // Abramowitz and Stegun 1964, table 7.1.
        for (x, expected) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_8),
            (1.0, 0.842_700_792_9),
            (1.9, 0.992_790_429_2),
            (2.5, 0.999_593_048_0),
            (3.5, 0.999_999_256_9),
        ] {
            assert!((erf(x) - expected).abs() < 1e-10, "{x}: {}", erf(x));
            assert!((erf(-x) + expected).abs() < 1e-10);
        }
        assert!((erf(3.0 - 1e-9) - erf(3.0)).abs() < 1e-9);
    }
}
