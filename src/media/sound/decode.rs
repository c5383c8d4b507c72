//! From the bytes of a file to samples.
//!
//! What of a truncated or damaged file can be decoded is a sound, as players have it: packets that cannot be decoded are left out, and
//! the end of the bytes is the end of the sound. Without any sample there is an error. What a header claims is compared with the limit
//! before anything is decoded, and the samples are counted again while they are.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as LibraryError;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;

use super::range::{check_rate, check_samples};
use super::{Sound, SoundError, SoundLimits};

/// A byte of uncompressed sound has at most this many samples; headers of streams may claim more than follows.
const SAMPLES_PER_BYTE: u64 = 2;

/// Decodes a file in a format that its first bytes tell: WAV (integers of 8 to 32 bits, floating point), FLAC, MP3, Ogg Vorbis, or M4A
/// with AAC. The channels are averaged.
///
/// # Errors
/// The bytes are no such file, have no sample, exceed a limit, or have a sample that is not finite.
pub fn decode(bytes: &[u8], limits: &SoundLimits) -> Result<Sound, SoundError> {
    // The library reads what strangers send: a panic of it is one more way to say that the file is broken.
    catch_unwind(AssertUnwindSafe(|| read(bytes, limits)))
        .unwrap_or_else(|_| Err(SoundError::Format("it is damaged".to_owned())))
}

fn format(error: &LibraryError) -> SoundError {
    SoundError::Format(error.to_string())
}

/// The audio track that a file offers first.
struct Track {
    id: u32,
    /// The number of its samples, as its header claims.
    claimed: Option<u64>,
    decoder: Box<dyn AudioDecoder>,
}

impl Track {
    fn of(reader: &dyn FormatReader) -> Result<Self, SoundError> {
        let track = reader
            .default_track(TrackType::Audio)
            .ok_or_else(|| SoundError::Format("it has no sound track".to_owned()))?;
        let parameters = track
            .codec_params
            .as_ref()
            .and_then(|parameters| parameters.audio())
            .ok_or_else(|| SoundError::Format("its codec is unknown".to_owned()))?;
        let decoder = symphonia::default::get_codecs()
            .make_audio_decoder(parameters, &AudioDecoderOptions::default())
            .map_err(|error| match error {
                LibraryError::Unsupported(_) => {
                    SoundError::Format("its codec is not supported".to_owned())
                }
                error => format(&error),
            })?;
        Ok(Self {
            id: track.id,
            claimed: track.num_frames,
            decoder,
        })
    }
}

fn read(bytes: &[u8], limits: &SoundLimits) -> Result<Sound, SoundError> {
    let too_long = |found| SoundError::TooLong {
        found,
        limit: limits.samples,
    };
    let stream = MediaSourceStream::new(
        Box::new(Cursor::new(bytes)),
        MediaSourceStreamOptions::default(),
    );
    let mut reader = symphonia::default::get_probe()
        .probe(
            &Hint::new(),
            stream,
            FormatOptions::default(),
            MetadataOptions::default(),
        )
        .map_err(|error| match error {
            LibraryError::Unsupported(_) => SoundError::Format("its format is unknown".to_owned()),
            error => format(&error),
        })?;
    let mut track = Track::of(&*reader)?;
    let possible = match reader.format_info().short_name {
        "wave" => SAMPLES_PER_BYTE.saturating_mul(bytes.len() as u64),
        _ => u64::MAX,
    };
    if let Some(claimed) = track.claimed.map(|claimed| claimed.min(possible))
        && claimed > limits.samples as u64
    {
        return Err(too_long(claimed));
    }

    let mut rate = None;
    let mut samples: Vec<f32> = Vec::new();
    let mut planes: Vec<Vec<f32>> = Vec::new();
    let mut last_error = None;
    loop {
        let packet = match reader.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            // Another stream follows in the file.
            Err(LibraryError::ResetRequired) => {
                track = Track::of(&*reader)?;
                continue;
            }
            Err(error) => {
                last_error = Some(error);
                break;
            }
        };
        if packet.track_id != track.id {
            continue;
        }
        let decoded = match track.decoder.decode(&packet) {
            Ok(decoded) => decoded,
            Err(error @ (LibraryError::DecodeError(_) | LibraryError::IoError(_))) => {
                last_error = Some(error);
                continue;
            }
            Err(error) => {
                last_error = Some(error);
                break;
            }
        };
        // The parts of a file are one sound only at one rate.
        if *rate.get_or_insert(decoded.spec().rate()) != decoded.spec().rate() {
            break;
        }
        let found = samples.len() + decoded.frames();
        if found > limits.samples {
            return Err(too_long(found as u64));
        }
        decoded.copy_to_vecs_planar::<f32>(&mut planes);
        average(&planes[..decoded.num_planes()], &mut samples);
    }
    let Some(rate) = rate.filter(|_| !samples.is_empty()) else {
        return Err(match last_error {
            Some(error) => format(&error),
            None => SoundError::Empty("the file has no samples".to_owned()),
        });
    };
    check_rate(rate)?;
    check_samples(&samples)?;
    Ok(Sound { rate, samples })
}

/// Appends the mean of the channels.
fn average(channels: &[Vec<f32>], samples: &mut Vec<f32>) {
    let Some((first, others)) = channels.split_first() else {
        return;
    };
    let start = samples.len();
    samples.extend_from_slice(first);
    if others.is_empty() {
        return;
    }
    for channel in others {
        for (sum, sample) in samples[start..].iter_mut().zip(channel) {
            *sum += sample;
        }
    }
    let count = channels.len() as f32;
    for sum in &mut samples[start..] {
        *sum /= count;
    }
}
