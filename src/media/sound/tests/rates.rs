//! Sampling rates: against soxr, and against tones whose samples are known at every rate.

use std::f64::consts::TAU;

use super::*;

fn tone(rate: u32, hertz: f64, samples: usize) -> Vec<f32> {
    let at = |i| (TAU * hertz * i as f64 / f64::from(rate)).sin() as f32 / 2.0;
    (0..samples).map(at).collect()
}

#[test]
fn samples_equal_those_of_soxr() {
    let Some(folder) = references() else {
        return;
    };
    let sound = decode(
        &std::fs::read(folder.join("inputs/stereo.wav")).unwrap(),
        &LIMITS,
    )
    .unwrap();
    let found = resample(&sound, 16_000, &LIMITS).unwrap();
    let expected = read_array(&folder.join("inputs/stereo.16k.npy")).elements;
    // Its qualities HQ and VHQ differ by 3e-7.
    assert!(
        nmse(&found, &expected) < 5e-7,
        "{:e}",
        nmse(&found, &expected)
    );
}

#[test]
fn a_tone_is_the_same_tone_at_every_rate() {
    for rate in [
        8_000, 11_025, 12_000, 22_050, 24_000, 32_000, 44_100, 44_101, 48_000, 96_000, 192_000,
        768_000,
    ] {
        for hertz in [100.0, 1_000.0, 3_200.0] {
            let samples = tone(rate, hertz, rate as usize + 7);
            let sound = Sound { rate, samples };
            let found = resample(&sound, 16_000, &LIMITS).unwrap();
            let expected = tone(16_000, hertz, found.len());
            let expected_length = (u64::from(rate) + 7) * 16_000;
            assert_eq!(
                found.len() as u64,
                expected_length.div_ceil(rate.into()),
                "{rate}"
            );
            // At the ends there is silence around it.
            let inner = 6_000..found.len() - 6_000;
            let error = nmse(&found[inner.clone()], &expected[inner]);
            assert!(error < 1e-9, "{rate} Hz, tone of {hertz} Hz: {error:e}");
        }
    }
}

#[test]
fn nothing_remains_of_what_the_rate_cannot_express() {
    for rate in [22_050, 44_100, 48_000] {
        let samples = tone(rate, 9_500.0, rate as usize);
        let found = resample(&Sound { rate, samples }, 16_000, &LIMITS)
            .unwrap()
            .into_owned();
        let loudest = found[6_000..10_000]
            .iter()
            .fold(0f32, |a, b| a.max(b.abs()));
        assert!(loudest < 1e-4, "{rate}: {loudest:e}");
    }
}

#[test]
fn a_rate_in_a_header_does_not_make_a_huge_sound() {
    let slow = Sound {
        rate: 1_000,
        samples: vec![0.1; 300_000],
    };
    let error = resample(&slow, 16_000, &LIMITS).unwrap_err();
    assert!(
        matches!(
            error,
            SoundError::TooLong {
                found: 4_800_000,
                ..
            }
        ),
        "{error}"
    );
    let none = Sound {
        rate: 0,
        samples: vec![0.1],
    };
    assert!(matches!(
        resample(&none, 16_000, &LIMITS),
        Err(SoundError::Rate { found: 0, .. })
    ));
    for sample in [f32::NAN, f32::INFINITY, 3e38] {
        let samples = vec![0.0, sample, 0.1];
        for rate in [16_000, 44_100] {
            let error = resample(
                &Sound {
                    rate,
                    samples: samples.clone(),
                },
                16_000,
                &LIMITS,
            )
            .unwrap_err();
            assert!(matches!(error, SoundError::NoSample(1)), "{error}");
        }
    }
    let single = Sound {
        rate: 48_000,
        samples: vec![0.1],
    };
    assert_eq!(resample(&single, 16_000, &LIMITS).unwrap().len(), 1);
}
