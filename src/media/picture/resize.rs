//! Pictures of bytes and the operations on them: resize, pad, crop.

use std::num::NonZeroU32;

use image::ImageEncoder as _;

use super::resample::{CHANNELS, Filter, resample};
use super::size::Extent;

/// A decoded picture, RGB, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    size: Extent,
    bytes: Vec<u8>,
}

impl Picture {
    /// A picture of bytes, three for each pixel; none if their number does not fit.
    pub fn new(height: NonZeroU32, width: NonZeroU32, bytes: Vec<u8>) -> Option<Self> {
        let size = Extent { height, width };
        let is_whole = size.area() * CHANNELS as u64 == bytes.len() as u64;
        is_whole.then_some(Self { size, bytes })
    }

    /// Its size.
    pub fn size(&self) -> Extent {
        self.size
    }

    /// Its bytes: red, green and blue of each pixel, row by row.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The picture as a JPEG file, made smaller so that no side has more than `most` pixels; none if it cannot be encoded.
    pub fn thumbnail(&self, most: NonZeroU32) -> Option<Vec<u8>> {
        let (height, width) = self.size.sides();
        let scale = (f64::from(most.get()) / height.max(width)).min(1.0);
        let size = Extent::of(
            (height * scale).max(1.0).round(),
            (width * scale).max(1.0).round(),
        );
        let small = self.resized(size.ok()?, Filter::Bilinear);
        let (mut file, size) = (Vec::new(), small.size);
        let encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut file, 90);
        let colours = image::ExtendedColorType::Rgb8;
        let written =
            encoder.write_image(&small.bytes, size.width.get(), size.height.get(), colours);
        written.ok().map(|()| file)
    }

    pub(super) fn row_len(&self) -> usize {
        self.size.width.get() as usize * CHANNELS
    }

    /// A picture of one colour.
    fn filled(size: Extent, colour: [u8; CHANNELS]) -> Self {
        Self {
            size,
            bytes: colour.repeat(size.area() as usize),
        }
    }

    /// The picture at another size.
    pub(super) fn resized(&self, size: Extent, filter: Filter) -> Self {
        let sides = |size: Extent| (size.width.get() as usize, size.height.get() as usize);
        Self {
            size,
            bytes: resample(&self.bytes, sides(self.size), sides(size), filter),
        }
    }

    /// A window on the picture, which may reach beyond it. Its upper left corner is at `top` and `left`.
    pub(super) fn window(&self, top: i64, left: i64, size: Extent, colour: [u8; CHANNELS]) -> Self {
        if (top, left, size) == (0, 0, self.size) {
            return self.clone();
        }
        let mut window = Self::filled(size, colour);
        // What of the picture lies within the window, along one axis: where it begins in both, and its length.
        let common = |start: i64, of_window: NonZeroU32, of_picture: NonZeroU32| {
            let (window, picture) = (i64::from(of_window.get()), i64::from(of_picture.get()));
            let from = start.clamp(0, picture);
            let until = (start + window).clamp(0, picture);
            let at = (from - start).clamp(0, window);
            (from as usize, at as usize, (until - from) as usize)
        };
        let (from_row, at_row, rows) = common(top, size.height, self.size.height);
        let (from, at, len) = common(left, size.width, self.size.width);
        let (own, its) = (self.row_len(), window.row_len());
        for row in 0..rows {
            let from = (from_row + row) * own + from * CHANNELS;
            let at = (at_row + row) * its + at * CHANNELS;
            let len = len * CHANNELS;
            window.bytes[at..at + len].copy_from_slice(&self.bytes[from..from + len]);
        }
        window
    }
}
