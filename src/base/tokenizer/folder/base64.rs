//! Base64 in the files of vocabularies (RFC 4648, section 4), with or without padding.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

const ENGINE: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The bytes of a text; `None` if it is not base64.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    ENGINE.decode(text).ok()
}
