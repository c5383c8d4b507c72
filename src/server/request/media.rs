//! Parts of a message with media.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use lab_core::plan::Media;
use serde_json::Value;

use crate::http::error::Error;

use super::json_access::malformed;

/// A medium of a conversation.
pub(crate) struct MessageMedium {
    /// The field that it stands in.
    pub param: String,
    pub media: Media,
    /// Those of its file.
    pub bytes: Vec<u8>,
}

/// What a part of a message is, if it is a medium.
pub(super) fn media_of(part: &Value) -> Option<Media> {
    match part["type"].as_str()? {
        "image_url" | "input_image" => Some(Media::Image),
        "audio_url" | "input_audio" => Some(Media::Audio),
        _ => None,
    }
}

impl MessageMedium {
    /// The medium of a part of a message; none if it is another part.
    pub(super) fn read(param: &str, part: &Value) -> Result<Option<Self>, Error> {
        let Some(media) = media_of(part) else {
            return Ok(None);
        };
        let (param, bytes) = match part["type"].as_str() {
            Some("input_audio") => {
                let param = format!("{param}.input_audio.data");
                let Some(data) = part["input_audio"]["data"].as_str() else {
                    return Err(malformed(&param, "a string"));
                };
                let bytes = BASE64_STANDARD.decode(data.trim()).ok();
                let bytes = bytes.ok_or_else(|| malformed(&param, "base64"))?;
                (param, bytes)
            }
            _ => {
                let name = match media {
                    Media::Image => "image_url",
                    Media::Audio => "audio_url",
                };
                let param = format!("{param}.{name}");
                let url = &part[name];
                let Some(url) = url.as_str().or_else(|| url["url"].as_str()) else {
                    return Err(malformed(&param, "an object with `url`"));
                };
                let bytes = of_url(&param, url)?;
                (param, bytes)
            }
        };
        Ok(Some(Self {
            param,
            media,
            bytes,
        }))
    }
}

/// The bytes of a data URL.
fn of_url(param: &str, url: &str) -> Result<Vec<u8>, Error> {
    let Some(rest) = url.strip_prefix("data:") else {
        let message = format!(
            "`{param}`: addresses are not fetched, expected a data URL (`data:TYPE;base64,...`)"
        );
        return Err(Error::unsupported(param, message));
    };
    let encoded = rest.split_once(";base64,").map(|(_, encoded)| encoded);
    let bytes = encoded.and_then(|encoded| BASE64_STANDARD.decode(encoded.trim()).ok());
    bytes.ok_or_else(|| malformed(param, "a data URL in base64"))
}
