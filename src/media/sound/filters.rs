//! Windows and mel filter banks, computed.

use std::f64::consts::TAU;

use super::rules::{Mel, MelScale, Triangles, Window};

/// A window of `length` samples; a periodic one is the beginning of one that is longer by a sample.
pub(super) fn window(shape: Window, length: usize, periodic: bool) -> Vec<f64> {
    let period = (length - usize::from(!periodic)) as f64;
    (0..length)
        .map(|i| {
            let cosine = (TAU * i as f64 / period).cos();
            match shape {
                Window::Hann => 0.5 - 0.5 * cosine,
                Window::Hamming => 0.54 - 0.46 * cosine,
                Window::Povey => (0.5 - 0.5 * cosine).powf(0.85),
            }
        })
        .collect()
}

/// A band: its weights of the bins from `first` on.
pub(super) struct Band {
    /// The first bin with a weight.
    pub(super) first: usize,
    /// The weights.
    pub(super) weights: Vec<f64>,
}

/// Where the logarithmic part of Slaney's scale begins, in hertz and in mel, and its steps.
const SLANEY_HERTZ: f64 = 1000.0;
const SLANEY_MEL: f64 = 15.0;

fn slaney_steps() -> f64 {
    27.0 / 6.4f64.ln()
}

fn to_mel(hertz: f64, scale: MelScale) -> f64 {
    match scale {
        MelScale::Htk => 2595.0 * (1.0 + hertz / 700.0).log10(),
        MelScale::Kaldi => 1127.0 * (1.0 + hertz / 700.0).ln(),
        MelScale::Slaney if hertz >= SLANEY_HERTZ => {
            SLANEY_MEL + (hertz / SLANEY_HERTZ).ln() * slaney_steps()
        }
        MelScale::Slaney => hertz * SLANEY_MEL / SLANEY_HERTZ,
    }
}

fn to_hertz(mel: f64, scale: MelScale) -> f64 {
    match scale {
        MelScale::Htk => 700.0 * (10f64.powf(mel / 2595.0) - 1.0),
        MelScale::Kaldi => 700.0 * ((mel / 1127.0).exp() - 1.0),
        MelScale::Slaney if mel >= SLANEY_MEL => {
            SLANEY_HERTZ * ((mel - SLANEY_MEL) / slaney_steps()).exp()
        }
        MelScale::Slaney => mel * SLANEY_HERTZ / SLANEY_MEL,
    }
}

/// The bands over the `n_fft / 2 + 1` bins of an FFT. Each rises from the centre of the band before it to its own, and falls to that of the
/// next; a band that lies between two bins has no weights.
pub(super) fn bands(mel: &Mel, n_fft: usize, rate: u32) -> Vec<Band> {
    let (low, high) = (
        to_mel(mel.min_frequency, mel.scale),
        to_mel(mel.max_frequency, mel.scale),
    );
    let step = (high - low) / (mel.bands + 1) as f64;
    let centres: Vec<f64> = (0..mel.bands + 2).map(|i| low + step * i as f64).collect();
    let hertz: Vec<f64> = centres
        .iter()
        .map(|&centre| to_hertz(centre, mel.scale))
        .collect();
    let bins: Vec<f64> = (0..=n_fft / 2)
        .map(|bin| f64::from(rate) * bin as f64 / n_fft as f64)
        .map(|bin| match mel.triangles {
            Triangles::Hertz => bin,
            Triangles::Mel => to_mel(bin, mel.scale),
        })
        .collect();
    let corners = match mel.triangles {
        Triangles::Hertz => &hertz,
        Triangles::Mel => &centres,
    };
    (0..mel.bands)
        .map(|band| {
            let [left, centre, right] = [corners[band], corners[band + 1], corners[band + 2]];
            let height = if mel.equal_areas {
                2.0 / (hertz[band + 2] - hertz[band])
            } else {
                1.0
            };
            let first = bins.partition_point(|&bin| bin <= left);
            let end = bins.partition_point(|&bin| bin < right).max(first);
            let weights = bins[first..end]
                .iter()
                .map(|bin| {
                    height * ((bin - left) / (centre - left)).min((right - bin) / (right - centre))
                })
                .collect();
            Band { first, weights }
        })
        .collect()
}
