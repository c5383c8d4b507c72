//! Why a file is no sound, or a sound cannot be prepared.

/// The reason.
#[derive(Debug, thiserror::Error)]
pub enum SoundError {
    /// The bytes are no sound in a supported format.
    #[error(
        "the file is no sound that can be read: {0}; WAV, FLAC, MP3, Ogg Vorbis and M4A (AAC) can"
    )]
    Format(String),
    /// There is no sample in it.
    #[error("the sound is empty: {0}")]
    Empty(String),
    /// The limit of samples is exceeded.
    #[error("the sound has {found} samples, at most {limit} are allowed")]
    TooLong {
        /// The number, as far as it is known.
        found: u64,
        /// The limit.
        limit: usize,
    },
    /// The rules cannot make anything of so few samples.
    #[error("the sound has {found} samples at {rate} Hz, at least {least} are needed")]
    TooShort {
        /// The number.
        found: usize,
        /// Samples a second.
        rate: u32,
        /// The smallest number.
        least: usize,
    },
    /// A sample is infinite, huge, or not a number.
    #[error("sample {0} of the sound is no number, or beyond 1e30")]
    NoSample(usize),
    /// The file or the rules have a sampling rate that is none.
    #[error("the sampling rate is {found} Hz, expected {least} to {most}")]
    Rate {
        /// The rate.
        found: u32,
        /// The lowest.
        least: u32,
        /// The highest.
        most: u32,
    },
    /// A rule of the processor is out of its range.
    #[error("the processor's `{key}` is {found}, expected {expected}")]
    Rule {
        /// The place in the rules.
        key: &'static str,
        /// Its value.
        found: String,
        /// What is possible.
        expected: String,
    },
}
