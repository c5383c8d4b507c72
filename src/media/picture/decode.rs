//! Bytes of a file to a picture as PIL opens it and converts it to RGB: turned by its EXIF orientation, alpha dropped, 16 bits
//! cut to 8.
//! The size is checked before anything is decoded.

use std::io::Cursor;
use std::num::NonZeroU32;

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};

use super::error::PictureError;
use super::resize::Picture;

/// Bounds of what is decoded and prepared.
#[derive(Clone, Copy, Debug)]
pub struct PictureLimits {
    /// The largest number of pixels of a file.
    pub max_pixels: u64,
    /// The largest number of pixels of all views that are made of a picture.
    pub max_view_pixels: u64,
}

impl Default for PictureLimits {
    /// A camera's picture, of 192 MiB; and 384 MiB of values.
    fn default() -> Self {
        Self {
            max_pixels: 64 << 20,
            max_view_pixels: 32_000_000,
        }
    }
}

/// The bytes that a decoder may allocate for each pixel: 16 bits of four channels, twice.
const BYTES_PER_PIXEL: u64 = 16;
/// The bytes that a decoder may allocate besides.
const BYTES_AT_LEAST: u64 = 4 << 20;

/// The formats that are read.
const FORMATS: [(ImageFormat, &str); 5] = [
    (ImageFormat::Png, "PNG"),
    (ImageFormat::Jpeg, "JPEG"),
    (ImageFormat::WebP, "WebP"),
    (ImageFormat::Gif, "GIF"),
    (ImageFormat::Bmp, "BMP"),
];

/// The picture in a file: PNG, JPEG, WebP, GIF (its first frame) or BMP.
///
/// # Errors
/// The bytes are no such file, it is damaged, or it has more pixels than the limit.
pub fn decode(bytes: &[u8], limits: &PictureLimits) -> Result<Picture, PictureError> {
    let format = image::guess_format(bytes).map_err(|_| PictureError::Format)?;
    let (format, name) = FORMATS
        .into_iter()
        .find(|(known, _)| *known == format)
        .ok_or(PictureError::Format)?;
    let refuse = |error: image::ImageError| PictureError::Unreadable(name, error.to_string());
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut bounds = Limits::default();
    let max_bytes = limits.max_pixels.saturating_mul(BYTES_PER_PIXEL);
    bounds.max_alloc = Some(max_bytes.saturating_add(BYTES_AT_LEAST));
    reader.limits(bounds);
    let mut decoder = reader.into_decoder().map_err(refuse)?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > limits.max_pixels {
        return Err(PictureError::TooLarge {
            width,
            height,
            max: limits.max_pixels,
        });
    }
    // A damaged description of the orientation is no reason to refuse a picture.
    let turn = decoder.orientation().ok();
    let mut picture = DynamicImage::from_decoder(decoder).map_err(refuse)?;
    if let Some(turn) = turn {
        picture.apply_orientation(turn);
    }
    let (width, height) = (picture.width(), picture.height());
    let bytes = rgb(picture);
    let sides = NonZeroU32::new(height).zip(NonZeroU32::new(width));
    let picture = sides.and_then(|(height, width)| Picture::new(height, width, bytes));
    picture.ok_or_else(|| PictureError::Unreadable(name, "it has no pixels".into()))
}

/// The bytes of a picture as RGB. Of 16 bits the upper 8 are taken, except of grey without alpha.
fn rgb(picture: DynamicImage) -> Vec<u8> {
    let upper = |value: u16| (value >> 8) as u8;
    match picture {
        // PIL clips these.
        DynamicImage::ImageLuma16(picture) => {
            let grey = picture.iter().map(|value| (*value).min(255) as u8);
            grey.flat_map(|value| [value; 3]).collect()
        }
        DynamicImage::ImageLumaA16(picture) => {
            let pixels = picture.as_raw().chunks_exact(2);
            pixels.flat_map(|pixel| [upper(pixel[0]); 3]).collect()
        }
        DynamicImage::ImageRgb16(picture) => picture.iter().map(|value| upper(*value)).collect(),
        DynamicImage::ImageRgba16(picture) => {
            let pixels = picture.as_raw().chunks_exact(4);
            pixels
                .flat_map(|pixel| [upper(pixel[0]), upper(pixel[1]), upper(pixel[2])])
                .collect()
        }
        // Without blending.
        other => other.into_rgb8().into_raw(),
    }
}
