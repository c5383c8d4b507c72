//! Resampling of bytes as Pillow does it: separable, first along rows, with a filter that is as wide as the picture is shrunk
//! (antialias), weights of 22 bits, and results rounded to bytes after each axis.

use std::f64::consts::PI;

use serde::Deserialize;

/// The number of channels of a picture.
pub(super) const CHANNELS: usize = 3;
/// Bits of a weight after the point: 32 less the 8 of a byte and 2 for sums beyond it.
const PRECISION: u32 = 32 - 8 - 2;
/// A half, which rounds a sum.
const HALF: i32 = 1 << (PRECISION - 1);

/// A filter, by its number in PIL (`resample` of a processor).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "u8")]
pub enum Filter {
    /// 1.
    Lanczos,
    /// 2.
    Bilinear,
    /// 3.
    Bicubic,
    /// 4.
    Box,
    /// 5.
    Hamming,
}

impl TryFrom<u8> for Filter {
    type Error = String;

    fn try_from(number: u8) -> Result<Self, String> {
        Ok(match number {
            1 => Self::Lanczos,
            2 => Self::Bilinear,
            3 => Self::Bicubic,
            4 => Self::Box,
            5 => Self::Hamming,
            other => {
                return Err(format!(
                    "filter {other}, expected 1 (Lanczos), 2 (bilinear), 3 (bicubic), 4 (box) or 5 (Hamming)"
                ));
            }
        })
    }
}

impl Filter {
    /// The distance from which on weights are 0.
    fn support(self) -> f64 {
        match self {
            Self::Lanczos => 3.0,
            Self::Bicubic => 2.0,
            Self::Bilinear | Self::Hamming => 1.0,
            Self::Box => 0.5,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let sinc = |x: f64| match x == 0.0 {
            true => 1.0,
            false => (x * PI).sin() / (x * PI),
        };
        let distance = x.abs();
        match self {
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Self::Bicubic if distance < 1.0 => {
                const A: f64 = -0.5;
                ((A + 2.0) * distance - (A + 3.0)) * distance * distance + 1.0
            }
            Self::Bicubic if distance < 2.0 => {
                (((distance - 5.0) * distance + 8.0) * distance - 4.0) * -0.5
            }
            Self::Bilinear if distance < 1.0 => 1.0 - distance,
            Self::Box if x > -0.5 && x <= 0.5 => 1.0,
            Self::Hamming if distance == 0.0 => 1.0,
            Self::Hamming if distance < 1.0 => {
                sinc(distance) * (0.54 + 0.46 * (distance * PI).cos())
            }
            _ => 0.0,
        }
    }
}

/// The weights of the inputs of each output along an axis.
struct Weights {
    /// The first input of each output, and the end of its weights.
    ranges: Vec<(usize, usize)>,
    weights: Vec<i32>,
}

impl Weights {
    fn new(from: usize, to: usize, filter: Filter) -> Self {
        let scale = from as f64 / to as f64;
        let wide = scale.max(1.0);
        let support = filter.support() * wide;
        let (mut ranges, mut weights) = (Vec::with_capacity(to), Vec::new());
        let mut row = Vec::new();
        for output in 0..to {
            let centre = (output as f64 + 0.5) * scale;
            // Conversion cuts off, and stops at 0.
            let first = (centre - support + 0.5) as usize;
            let end = ((centre + support + 0.5) as usize).min(from);
            row.clear();
            row.extend((first..end).map(|x| filter.weight((x as f64 - centre + 0.5) / wide)));
            let sum: f64 = row.iter().sum();
            let unit = f64::from(1 << PRECISION);
            let fixed = |weight: &f64| {
                let weight = if sum == 0.0 { *weight } else { weight / sum } * unit;
                // Half away from 0.
                (weight + 0.5f64.copysign(weight)) as i32
            };
            weights.extend(row.iter().map(fixed));
            ranges.push((first, weights.len()));
        }
        Self { ranges, weights }
    }

    /// The first input and the weights of each output.
    fn iter(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let mut start = 0;
        self.ranges.iter().map(move |&(first, end)| {
            let weights = &self.weights[start..end];
            start = end;
            (first, weights)
        })
    }
}

fn byte(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// Pixels of RGB at another size, given as width and height.
pub(super) fn resample(
    pixels: &[u8],
    from: (usize, usize),
    to: (usize, usize),
    filter: Filter,
) -> Vec<u8> {
    let narrowed = (from.0 != to.0).then(|| along_rows(pixels, from.0, to.0, filter));
    let pixels = narrowed.as_deref().unwrap_or(pixels);
    match from.1 == to.1 {
        true => pixels.to_vec(),
        false => along_columns(pixels, to.0 * CHANNELS, from.1, to.1, filter),
    }
}

fn along_rows(pixels: &[u8], from: usize, to: usize, filter: Filter) -> Vec<u8> {
    let weights = Weights::new(from, to, filter);
    let mut out = Vec::with_capacity(pixels.len() / from * to);
    for row in pixels.chunks_exact(from * CHANNELS) {
        for (first, weights) in weights.iter() {
            let inputs = row[first * CHANNELS..].chunks_exact(CHANNELS);
            let mut sums = [HALF; CHANNELS];
            for (input, weight) in inputs.zip(weights) {
                for (sum, byte) in sums.iter_mut().zip(input) {
                    *sum += i32::from(*byte) * weight;
                }
            }
            out.extend(sums.map(byte));
        }
    }
    out
}

fn along_columns(pixels: &[u8], row_len: usize, from: usize, to: usize, filter: Filter) -> Vec<u8> {
    let weights = Weights::new(from, to, filter);
    let mut out = Vec::with_capacity(row_len * to);
    let mut sums = vec![0i32; row_len];
    for (first, weights) in weights.iter() {
        sums.fill(HALF);
        let rows = pixels[first * row_len..].chunks_exact(row_len);
        for (row, weight) in rows.zip(weights) {
            for (sum, byte) in sums.iter_mut().zip(row) {
                *sum += i32::from(*byte) * weight;
            }
        }
        out.extend(sums.iter().map(|sum| byte(*sum)));
    }
    out
}
